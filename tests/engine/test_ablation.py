"""What units become where they are off is prepared once, and counted. Its numbers: ``test_units``."""

import numpy as np
import pytest

from cs_heads import Experiment, Task
from cs_heads.engine.ablation import Ablation
from cs_heads.tasks import Example
from tests.known_heads import rows_run
from tests.tiny import N_HEADS, N_LAYERS, WORDS, choice_records, completion_records

SHAPE = (N_LAYERS, N_HEADS)


def test_every_example_takes_its_heads_from_another():
    for n in range(2, 40):
        partner = Ablation("resample", [0] * n).partner
        assert sorted(partner) == list(range(n))
        assert (partner != np.arange(n)).all()


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


@pytest.mark.parametrize("answer", [0, 1])
@pytest.mark.parametrize("too_long", [False, True])
def test_what_a_text_is_at_its_own_places_changes_nothing(load, answer, too_long):
    """Of a single example it is the mean by position, though another choice has a prompt of another length."""
    words = np.random.default_rng(4).choice(WORDS[:18], 90 if too_long else 6)
    if too_long:
        records = [{"prompt": " ".join(words), "choices": [" runs", " sees a big red cat"], "answer": answer}]
        task = Task.from_records(records).with_truncation()
    else:
        prompts = (" ".join(words), "the king sees " + " ".join(words))
        example = Example(prompt=prompts[answer], continuations=(" runs", " runs"), answer=answer, prompts=prompts)
        task = Task("own prompts", "choice", (example,))
    experiment = Experiment(load("llama"), task, ablation="position_mean", progress=False)
    assert len({len(experiment.encoded[0].prompt_of(choice)) for choice in (0, 1)}) == 2
    masks = np.stack([np.zeros(SHAPE, dtype=bool), np.ones(SHAPE, dtype=bool)])
    intact, off = experiment.observe(masks).logprobs[:, 0, answer]
    assert off == pytest.approx(intact, abs=1e-4)
