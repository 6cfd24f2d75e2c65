"""Mean and resample ablation against plain Hugging Face with the z of heads exchanged by hand."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task
from cs_heads.engine.ablation import Ablation
from tests.known_heads import rows_run
from tests.plain import output_projections
from tests.tiny import N_HEADS, N_LAYERS, choice_records, completion_records, make_hf_model

SHAPE = (N_LAYERS, N_HEADS)


@contextmanager
def heads_set(model, mask, z):
    """Set the input slices of the output projections of masked heads to ``z`` [layer, pos or 1, head, d_head]."""

    def put(layer):
        def hook(module, arguments):
            x = arguments[0].unflatten(-1, (N_HEADS, -1)).clone()
            for head in np.flatnonzero(mask[layer]):
                x[0, :, head] = z[layer][:, head]
            return (x.flatten(-2), *arguments[1:])

        return hook

    handles = [p.register_forward_pre_hook(put(layer)) for layer, p in enumerate(output_projections(model))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plain_z(model, tokens):
    """z of the intact model, by layer [pos, head, d_head]."""
    kept = []
    handles = [
        p.register_forward_pre_hook(lambda m, a: kept.append(a[0][0].unflatten(-1, (N_HEADS, -1)).clone()))
        for p in output_projections(model)
    ]
    with torch.no_grad():
        model(torch.tensor([list(tokens)]))
    for handle in handles:
        handle.remove()
    return kept


def plain_logprob(model, prompt, target, mask, z):
    with heads_set(model, mask, z), torch.no_grad():
        logits = model(torch.tensor([[*prompt, *target[:-1]]])).logits[0]
    logprobs = logits[len(prompt) - 1 :].log_softmax(-1)
    return logprobs[range(len(target)), list(target)].mean().item()


def few_shot_records(rng, n):
    """Choice records after the same worked examples, which masks share where heads are zeroed."""
    shots = " . ".join(["the cat runs", "a dog sees the king", "one two three four"])
    return [{**record, "prompt": f"{shots} . {record['prompt']}"} for record in choice_records(rng, n)]


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_of_choices_a_head_is_set_to_what_it_gives_with_the_right_ones(load, backend, kind):
    """Places are counted from the end of the prompt, the first and last standing for those the other text lacks."""
    rng = np.random.default_rng(1)
    model, task = load("llama", backend), Task.from_records(few_shot_records(rng, 5))
    masks = rng.random((3, *SHAPE)) < 0.3
    experiment = Experiment(model, task, ablation=kind)
    measured, partner = experiment.logprob(masks), experiment._engine.ablation.partner
    hf, answers = make_hf_model("llama"), [example.answer for example in task.examples]
    given = [plain_z(hf, e.inputs_of(a)) for e, a in zip(experiment.encoded, answers, strict=True)]
    mean = [torch.cat(of_layer).mean(0, keepdim=True) for of_layer in zip(*given, strict=True)]
    for number, (example, answer) in enumerate(zip(experiment.encoded, answers, strict=True)):
        target, other = example.continuations[answer], int(partner[number])
        at = np.arange(len(example.inputs_of(answer))) - len(example.prompt) + len(experiment.encoded[other].prompt)
        z = mean if kind == "mean" else [each[at.clip(0, len(each) - 1)] for each in given[other]]
        for mask, row in zip(masks, measured, strict=True):
            assert row[number] == pytest.approx(plain_logprob(hf, example.prompt, target, mask, z), abs=1e-4)


def test_every_example_takes_its_heads_from_another():
    for n in range(2, 9):
        for seed in range(20):
            partner = Ablation("resample", [0] * n, seed).partner
            assert sorted(partner) == list(range(n))
            assert (partner != np.arange(n)).all()


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_the_intact_model_is_the_same_whatever_the_kind(load, kind):
    task = Task.from_records(choice_records(np.random.default_rng(2), 6))
    intact = np.zeros((1, *SHAPE), dtype=bool)
    zero, other = Experiment(load("llama"), task), Experiment(load("llama"), task, ablation=kind)
    np.testing.assert_allclose(other.logprob(intact), zero.logprob(intact), atol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "resample"])
@pytest.mark.usefixtures("no_short_cuts")
def test_the_intact_runs_that_z_is_taken_from_are_counted_once(load, kind):
    task = Task.from_records(completion_records(np.random.default_rng(2), 6))
    model, masks = load("llama"), np.random.default_rng(3).random((3, *SHAPE)) < 0.3
    experiment = Experiment(model, task, ablation=kind)
    assert (experiment.spent, experiment.preparation) == (0, 6)
    with rows_run(model) as rows:
        experiment(masks[:2])
        experiment(masks)
    assert sum(rows) == experiment.spent == 6 + 3 * 6
    assert Experiment(model, task).preparation == 0


def test_resampling_needs_another_example(load):
    task = Task.from_records(choice_records(np.random.default_rng(2), 1))
    with pytest.raises(ValueError, match="ablation 'resample' needs two examples or more, the task has 1"):
        Experiment(load("llama"), task, ablation="resample")
