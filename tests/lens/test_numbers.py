"""NaN or infinity is no score, no token and no gradient: one error names the dtype, the units off and the example."""

import re

import numpy as np
import pytest
import torch

import cs_heads as cs
from cs_heads.lens import EncodedExample
from cs_heads.lens.attention import attention_patterns
from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.differentiate import GradientExample, gate_gradients
from cs_heads.lens.logprobs import NotFiniteError
from cs_heads.lens.patch import PatchPoint, patch_gradients, patched_effects, record_z
from cs_heads.units import Grid, Head
from tests.on_model import losses
from tests.plain import plain_score
from tests.tiny import make_hf_model, saved

GRID = Grid(3, 4)
RECORDS = [
    {"prompt": "the cat", "target": " runs"},
    {"prompt": "a big red dog sees", "target": " the king"},
    {"prompt": "one , two", "target": " three"},
]
L0H1_OFF = (
    r"gives NaN or infinity in float16 with L0H1 off, on example \d, the text that begins '<s> [a-z ,]+', which is"
)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A Llama whose heads L0H0 and L0H1 write numbers near the largest of float16 that cancel: with one off, too large.

    The two heads see and say the same, and have output weights of opposite signs.
    """
    plain = make_hf_model("llama")
    attention = plain.model.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight[:8] = attention.q_proj.weight[8:16]
        signs = torch.where(torch.rand(32, 8, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)
        attention.o_proj.weight[:, :16] = torch.cat([signs, -signs], dim=1) * 60_000
    return saved(plain, tmp_path_factory.mktemp("overflowing")), plain


@pytest.fixture(scope="module")
def too_large(tmp_path_factory):
    """A Llama whose weights are finite in float16, and whose logits are not."""
    plain = make_hf_model("llama")
    plain.lm_head.weight.data.sign_().mul_(60_000)
    return saved(plain, tmp_path_factory.mktemp("too_large"))


@pytest.fixture
def half(overflowing, backend):
    return cs.load_model(overflowing[0], "cpu", "float16", backend)


def masks(*off):
    return np.stack([GRID.mask([]), *(GRID.mask([head]) for head in off)])


def test_what_float16_cannot_say_is_refused_and_float32_says_what_plain_hugging_face_says(
    overflowing, half, backend, monkeypatch
):
    folder, plain = overflowing
    task = cs.Task.from_records(RECORDS)
    experiment = cs.Experiment(half, task)
    assert np.isfinite(experiment.logprob(masks("L1H1"))).all()
    with pytest.raises(NotFiniteError, match=L0H1_OFF) as error:
        experiment(masks("L0H1"))
    assert re.search(r"^[^\n]*Load it in float32 or bfloat16[^\n]*$", str(error.value))
    # Intact, 60,000 less 60,000 leaves what float32 rounds, and no two ways to run that agree.
    monkeypatch.setattr("cs_heads.lens.abilities._Trial.check", lambda trial: None)
    right = cs.Experiment(cs.load_model(folder, "cpu", "float32", backend), task)
    found = right.logprob(masks("L0H1"))
    for example, tokens in enumerate(right.encoded):
        for row, mask in enumerate(masks("L0H1")):
            wanted, _ = plain_score(plain, tokens.prompt, tokens.continuations[0], mask)
            within = 1e-4 if mask.any() else 0.05
            assert found[row, example] == pytest.approx(wanted / len(tokens.continuations[0]), abs=within)


def test_no_token_is_the_likeliest_of_nan(too_large, backend):
    """The argmax of NaN is token 0: a target of it was right, and texts were of it alone."""
    model = cs.load_model(too_large, "cpu", "float16", backend)
    intact = r"in float16 with nothing off, on example 0, the text that begins '<s> <s> a dog', which is"
    record = {"prompt": [1, 1, 4, 5], "target": [0]}
    task = cs.Task.from_records([record])
    for ask in (lambda e: e(masks()), lambda e: e.generate(masks(), max_new_tokens=3)):
        with pytest.raises(NotFiniteError, match=intact.replace("a dog", r"\w+ \w+")):
            ask(cs.Experiment(model, task))
    choices = cs.Task.from_records([{"prompt": [1, 1, 4, 5], "choices": [[0], [7]], "answer": 0}])
    with pytest.raises(NotFiniteError, match="with nothing off"):
        cs.Experiment(model, choices)(masks())


def test_a_text_ends_in_that_error_where_a_later_token_overflows(load, folders, backend, monkeypatch):
    """The first tokens are right; what is read in a later step is not."""
    from cs_heads.engine import generation

    model, read, steps = load("llama", backend), generation.logits_at, []

    def overflow(*arguments, **options):
        logits = read(*arguments, **options)
        steps.append(len(logits))
        return torch.where(torch.arange(len(logits))[:, None] == 1, logits * torch.inf, logits) if steps[2:] else logits

    monkeypatch.setattr(generation, "logits_at", overflow)
    with pytest.raises(
        NotFiniteError, match="in float32 with L2H3 off, on example 0, the text that begins '<s> the cat'"
    ):
        cs.Experiment(model, cs.Task.from_records(RECORDS[:1])).generate(masks("L2H3"), max_new_tokens=6)


def test_gradients_patches_and_attention_are_numbers_too(half, too_large, backend):
    broken = cs.load_model(too_large, "cpu", "float16", backend)
    prompt, target = (1, 4, 5), (6,)
    gates, room = (1 - masks("L0H1")[1:]).astype(np.float32), TokenBudget(1000)
    asked = [[GradientExample(EncodedExample(prompt, (target, (7,)), merged=False), 0, (1.0, 1.0))]]
    for each, of in ((asked, "probability"), (losses([prompt], [target]), "loss")):
        with pytest.raises(NotFiniteError, match=r"with L0H1 off, on the text that begins '<s>"):
            gate_gradients(half, each, gates, room, of=of)
    points = [PatchPoint((1, 4, 5), (2,), (6,)), PatchPoint((1, 4, 7), (2,), (6,))]
    strength = np.zeros((2, 3, 4), dtype=np.float32)
    strength[1, 2, 3] = 1
    source = record_z(broken, points, room)
    with pytest.raises(NotFiniteError, match=r"with L2H3 patched, on example 1, the text that begins '<s>"):
        patched_effects(broken, points, source, np.arange(1, 2), strength[1:], room=room)
    with pytest.raises(NotFiniteError, match=r"with nothing off, on example 0"):
        patch_gradients(broken, points, source, room)
    if backend == "bridge":
        # HookedTransformer shows zeros in their place.
        with pytest.raises(NotFiniteError, match=r"in attention of L2H3 with L0H1 off, on the text that begins '<s>"):
            attention_patterns(half, prompt, [Head(0, 0), Head(2, 3)], GRID.mask(["L0H1"]))


def test_a_head_whose_attention_is_nan_does_not_attend_to_nothing(tmp_path, backend):
    """HookedTransformer puts zero for attention that is NaN, and goes on."""
    plain = make_hf_model("llama")
    with torch.no_grad():
        plain.model.layers[1].self_attn.q_proj.weight[8:16].sign_().mul_(60_000)
    saved(plain, tmp_path)
    task = cs.Task.from_records(RECORDS)
    with pytest.raises(NotFiniteError, match="in float16 with nothing off, on example"):
        cs.Experiment(cs.load_model(tmp_path, "cpu", "float16", backend), task).logprob(masks("L2H0"))
    right = cs.Experiment(cs.load_model(tmp_path, "cpu", "float32", backend), task)
    for example, tokens in enumerate(right.encoded):
        wanted, _ = plain_score(plain, tokens.prompt, tokens.continuations[0], GRID.mask([]))
        assert right.logprob(masks())[0, example] == pytest.approx(wanted / len(tokens.continuations[0]), abs=1e-3)


def test_the_mean_of_nan_is_put_in_no_head_s_place(half):
    """Resample, mean and optimal ablation take what heads give when intact."""
    point = half.hook_dict["blocks.1.attn.hook_z"]
    point.add_hook(lambda z, hook: z * torch.inf, is_permanent=True)
    task = cs.Task.from_records(RECORDS)
    for ablation in ("mean", "resample"):
        with pytest.raises(
            NotFiniteError, match=r"float16 (in what heads of layer 1 give when intact|with nothing off)"
        ):
            cs.Experiment(half, task, ablation=ablation)(masks("L1H1"))


def test_tokens_that_a_model_never_says_are_no_fault(load, folders, backend):
    """Logits of minus infinity, as of a padded vocabulary, leave the others what they are; to score them is refused."""
    model = load("llama", backend)
    task = cs.Task.from_records(RECORDS)
    wanted = cs.Experiment(model, task).logprob(masks("L1H1"))
    biased = model.unembed.register_forward_hook(
        lambda module, given, logits: logits.index_fill(-1, torch.tensor([0, 2]), -torch.inf)
    )
    try:
        found = cs.Experiment(model, task).logprob(masks("L1H1"))
        assert (found > wanted).all()
        assert np.isfinite(found).all()
        with pytest.raises(NotFiniteError, match="in float32 with nothing off, on example 0"):
            cs.Experiment(model, cs.Task.from_records([{"prompt": [1, 4], "target": [2]}]))(masks())
    finally:
        biased.remove()
