import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads.demo import planted_heads, planted_universal_heads
from cs_heads.lens import encode_example, load_model
from cs_heads.methods import gradient
from cs_heads.methods.gradient import attribution_patching
from cs_heads.tasks import Task, load_task
from cs_heads.tasks.pairs import PromptPair
from tests.known_heads import WORKING, own_answers, rows_run
from tests.on_model import on_model
from tests.plain import gated_nll

gradient_importance = on_model(gradient.gradient_importance)

PAIRS = [
    PromptPair("the cat sees a big", "the dog sees a red", " bird", instead=" king"),
    PromptPair("one two", "a small king runs", " three", instead=" four"),
    PromptPair("a red dog sleeps", "two", " the", instead=" cat"),
]


def test_importance_is_the_mean_of_finite_differences(load_known, backend, task, known_folder):
    """Plain Hugging Face, each gate of each example turned a little both ways."""
    model = load_known(backend)
    plain = AutoModelForCausalLM.from_pretrained(known_folder)
    h, each = 1e-2, []
    with torch.no_grad():
        for example in task.examples[:20]:
            tokens = encode_example(model.tokenizer, example.prompt, example.continuations)
            row = np.empty((3, 4))
            for index in np.ndindex(3, 4):
                up, down = torch.ones(3, 4), torch.ones(3, 4)
                up[index], down[index] = 1 + h, 1 - h
                losses = [
                    gated_nll(plain, tokens.prompt, tokens.continuations[0], gates).item() for gates in (up, down)
                ]
                row[index] = (losses[0] - losses[1]) / (2 * h)
            each.append(row)
    few = Task.from_records([{"prompt": e.prompt, "target": e.continuations[0]} for e in task.examples[:20]])
    assert gradient_importance(model, few).importance == pytest.approx(np.abs(each).mean(axis=0), abs=3e-3, rel=0.01)
    signed = gradient_importance(model, few, signed=True)
    assert signed.importance == pytest.approx(-np.mean(each, axis=0), abs=3e-3, rel=0.01)


def test_the_working_heads_of_a_model_have_the_largest_gradients(model, task):
    ranking = gradient_importance(model, task)
    assert set(ranking.top(2)) == set(WORKING)
    assert ranking.importance[1, 1] == 0
    assert (ranking.method, ranking.unit) == ("gradient", "nats, absolute")


# The contrast with controls


@pytest.fixture(scope="module")
def others(model):
    """Two other tasks, of 30 and 40 examples, all of which the intact model answers right."""
    records = own_answers(model, 70, seed=9)
    return [Task.from_records(records[:30], "first"), Task.from_records(records[30:], "second")]


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_with_controls_the_planted_heads_of_the_demo_model_come_first(signed):
    """The head that every skill needs counts less than without, where it is among the first five."""
    model = load_model("demo", device="cpu")
    task, *others = (load_task(f"demo/{skill}", n=60) for skill in ("capitals", "code", "rhyme", "agreement"))
    planted, (universal,) = planted_heads("capitals"), planted_universal_heads()
    plain, contrast = (gradient_importance(model, task, signed=signed, controls=c) for c in ((), others))
    place = universal.layer, universal.head
    assert universal in plain.top(5)
    assert contrast.importance[place] < 0.7 * plain.importance[place] / plain.importance.std()
    assert set(contrast.top(4)) <= set(planted)


def test_the_contrast_is_between_standard_deviations_over_heads(model, task, others):
    """The controls are as large as what is drawn of them: the gradients of each task by itself say what is expected."""
    others, signed = [other.take(20) for other in others], True
    own, *rest = (gradient_importance(model, each, signed=signed) for each in (task, *others))
    contrast = gradient_importance(model, task, signed=signed, controls=others)
    scaled = [each.importance / each.importance.std() for each in (own, *rest)]
    np.testing.assert_allclose(contrast.importance, scaled[0] - (scaled[1] + scaled[2]) / 2, rtol=1e-5, atol=1e-9)
    widths = [np.diff(each.interval)[..., 0] / each.importance.std() for each in (own, *rest)]
    width = np.sqrt(widths[0] ** 2 + (widths[1] ** 2 + widths[2] ** 2) / 4)
    np.testing.assert_allclose(np.diff(contrast.interval)[..., 0], width, rtol=1e-5, atol=1e-9)
    assert contrast.unit == "standard deviations over heads, less those of the controls"
    assert contrast.method == own.method


@pytest.mark.usefixtures("no_short_cuts")
def test_the_cost_of_a_contrast_holds_the_intact_runs_and_the_examples_of_the_controls(model, task, others):
    with rows_run(model) as rows:
        ranking = gradient_importance(model, task, controls=others)
    assert sum(rows) == (40 + 30 + 40) + (40 + 20 + 20)
    assert (ranking.spent, ranking.backwards) == (sum(rows) + 80, 80)
    assert ranking.provenance["controls"] == ["first", "second"]
    assert ranking.provenance["control_examples"] == 40


def test_a_budget_is_split_evenly_between_task_and_controls(model, task, others):
    rankings = [gradient_importance(model, task, controls=others, budget=153, seed=seed) for seed in (0, 1)]
    assert [ranking.spent for ranking in rankings] == [150, 150]
    assert (rankings[0].provenance["examples"], rankings[0].provenance["control_examples"]) == (10, 10)
    assert rankings[0].importance.tobytes() != rankings[1].importance.tobytes()


def test_the_confirming_side_of_a_control_and_a_budget_for_none_are_refused_before_the_model_runs(model, task, others):
    for control, budget, said in (
        (others[0].split(20)[1], None, "controls must not be the confirming side of a split"),
        (others[0], 73, r"budget must be 74 or more .*\(the intact model: 70; one example of each control"),
    ):
        with rows_run(model) as rows, pytest.raises(ValueError, match=said):
            gradient_importance(model, task, controls=[control], budget=budget)
        assert rows == []


# Attribution patching


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_attribution_is_what_transformer_lens_reads_from_its_gradient_cache(load, architecture):
    tools = pytest.importorskip("transformer_lens.tools.analysis.attribution_patching")
    model = load(architecture)
    effects = attribution_patching(model, PAIRS)
    for number, pair in enumerate(PAIRS):
        clean, corrupted = (
            encode_example(model.tokenizer, text, [pair.target, pair.instead]) for text in (pair.clean, pair.corrupted)
        )
        (first,), (second,) = corrupted.continuations

        def metric(logits, first=first, second=second):
            return logits[0, -1, first] - logits[0, -1, second]

        # Without the embeddings no hook_z has a gradient.
        names = ["hook_embed", *(f"blocks.{layer}.attn.hook_z" for layer in range(3))]
        runs = [
            tools.cache_activation_and_gradient(model, torch.tensor([tokens.prompt]), metric, names_filter=names)
            for tokens in (clean, corrupted)
        ]
        for layer, name in enumerate(names[1:]):
            moved = runs[0].activations[name][0, -1] - runs[1].activations[name][0, -1]
            expected = (moved * runs[1].gradients[name][0, -1]).sum(dim=-1)
            assert effects[number, layer] == pytest.approx(expected.numpy(), abs=1e-4, rel=1e-3)
