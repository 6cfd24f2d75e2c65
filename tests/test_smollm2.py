"""A real language model, SmolLM2-135M, under our engine and under plain Hugging Face."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.lens.tokens import encode_prompt
from cs_heads.tasks import builtin_tasks
from tests.plain import plain_score

pytestmark = pytest.mark.real

# Heads of the first layers that many skills rest on: zeroing them changes what the model says.
HEADS = ((1, 5), (1, 3), (20, 0))


@pytest.fixture(scope="module")
def model(smollm2):
    return cs.load_model(smollm2, device="cpu")


@pytest.fixture(scope="module")
def plain(smollm2):
    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


def test_the_model_sees_what_plain_transformers_shows_it(model, tokenizer):
    for prompt in ("The capital of France is", "def f(x):\n    return x +", "One, two,"):
        assert list(encode_prompt(model.tokenizer, prompt)) == tokenizer(prompt)["input_ids"]


def test_logits_are_those_of_plain_transformers(model, plain, tokenizer):
    tokens = torch.tensor([tokenizer("When Mary and John went to the shop, John gave a ring to")["input_ids"]])
    with torch.no_grad():
        ours, theirs = model(tokens), plain(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)
    assert tokenizer.decode(ours[0, -1].argmax()) == " Mary"


def test_it_passes_every_check(model, smollm2):
    checks = cs.check_model(model, reference=smollm2)
    assert [str(check) for check in checks if check.status != "ok"] == []
    found = {check.name: check.found for check in checks}
    assert found["heads"] == "30 layers × 9 heads, 3 key/value heads"
    assert found["BOS"] == "none prepended, as the tokenizer does by itself"


def test_a_head_off_is_its_slice_of_the_output_projection_zeroed(model, plain):
    task = cs.load_task("everyday/indirect_object", n=3)
    experiment = cs.Experiment(model, task, progress=False)
    masks = np.zeros((2, 30, 9), dtype=bool)
    masks[(1, *zip(*HEADS, strict=True))] = True
    masks[0, 1, 5] = True
    ours, greedy = experiment.logprob(masks), experiment(masks)
    for row, mask in enumerate(masks):
        for column, encoded in enumerate(experiment.encoded):
            target = encoded.continuations[0]
            logprob, right = plain_score(plain, encoded.prompt, target, mask)
            assert ours[row, column] == pytest.approx(logprob / len(target), abs=2e-3)
            assert greedy[row, column] == right
    assert np.abs(ours[1] - experiment.logprob(np.zeros((1, 30, 9), dtype=bool))[0]).min() > 0.01


def test_answers_of_everyday_skills_are_one_token(tokenizer):
    for name in builtin_tasks():
        if name.startswith("everyday/") and name not in ("everyday/sums", "everyday/capitals"):
            answers = {e.target for e in cs.load_task(name).examples}
            assert all(len(tokenizer(answer, add_special_tokens=False)["input_ids"]) == 1 for answer in answers), name


def test_a_small_search_finds_heads_of_plurals_and_not_those_of_every_skill(smollm2):
    """Without controls the same search finds L1H3 and L1H5 too, and copying loses .7."""
    model = cs.load_model(smollm2, device="cpu")
    skill, *controls = (cs.load_task(f"everyday/{name}", n=40) for name in ("plural", "agreement", "copying"))
    found = cs.find_heads(model, skill, controls=controls, budget=1200, progress=False)
    assert found.spent <= 1200

    def loss(task: cs.Task) -> float:
        experiment = cs.Experiment(model, task.held_out.take(24), progress=False)
        intact, ablated = experiment(np.stack([found.grid.mask([]), found.grid.mask(found.top(5))])).mean(axis=1)
        return (intact - ablated) / (intact - task.chance)

    lost = loss(skill)
    assert lost > 0.6
    assert all(loss(control) < lost / 2 for control in controls)


@pytest.mark.slow
def test_heads_of_plurals_are_found_that_other_skills_can_do_without(smollm2):
    """Where plain sensing finds L1H3 to L1H5, a group that every skill needs."""
    model = cs.load_model(smollm2, device="cpu")
    task = cs.load_task("everyday/plural", seed=0)
    found = cs.find_heads(model, task, progress=False)
    assert not {cs.Head(1, 3), cs.Head(1, 4), cs.Head(1, 5)} & {*found.top(5)}
    proof = cs.confirm(model, task, found.top(5), exclude=found.shared, progress=False)
    assert proof.verdict == "specific"
    assert proof.specificity.own.loss >= 0.7
    assert proof.specificity.mean.loss <= 0.2
