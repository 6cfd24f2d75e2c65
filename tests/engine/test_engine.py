"""Whatever short cuts are taken, every pair has the numbers of plain Hugging Face, one row at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.engine import Engine, forwards
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities
from tests.conftest import BACKENDS
from tests.on_model import observed
from tests.plain import plain_score
from tests.tiny import N_HEADS, N_LAYERS, WORDS, make_hf_model

SHAPE = (N_LAYERS, N_HEADS)
# Of the last 3.x line of TransformerLens, on which both backends are tried, few are enough.
MODELS = [
    (architecture, backend)
    for backend in BACKENDS
    for architecture in (("gpt2", "llama", "qwen2", "neo", "gemma2") if BACKENDS[1:] == () else ("gpt2", "llama"))
]


def workload(seed, n_examples, n_masks):
    """Examples that share beginnings of any length, masks that begin at any layer, and some of their pairs."""
    rng = np.random.default_rng(seed)
    tokens = np.arange(3, 3 + len(WORDS))

    def text(low, high):
        return tuple(rng.choice(tokens, size=rng.integers(low, high)).tolist())

    few_shot, examples = text(0, 25), []
    for _ in range(n_examples):
        question = (few_shot if rng.random() < 0.8 else ()) + text(1, 8)
        few_shot = question if rng.random() < 0.2 else few_shot
        choices = {text(1, 4) for _ in range(rng.integers(1, 5))}
        examples.append(EncodedExample(question, tuple(sorted(choices)), False))
    masks = rng.random((n_masks, *SHAPE)) < rng.choice([0.1, 0.4])
    for mask in masks:
        mask[: rng.integers(0, N_LAYERS + 1)] = False
    masks = np.unique(masks, axis=0)
    pairs = [(m, e) for m in range(len(masks)) for e in range(n_examples) if rng.random() < 0.8] or [(0, 0)]
    return examples, masks, np.array(pairs)


@pytest.fixture(scope="module")
def plain():
    """Score and greedy match of one continuation by plain Hugging Face, remembered."""
    models, known = {}, {}

    def score(architecture, prompt, target, mask):
        key = (architecture, prompt, target, mask.tobytes())
        if key not in known:
            models.setdefault(architecture, make_hf_model(architecture))
            known[key] = plain_score(models[architecture], prompt, target, mask)
        return known[key]

    return score


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_examples=st.integers(1, 4),
    n_masks=st.integers(1, 3),
    ideas=st.builds(Abilities, st.booleans(), st.booleans(), st.booleans()),
    batch_tokens=st.sampled_from([17, 60, 4096]),
    overhead=st.sampled_from([0, 96]),
)
@settings(max_examples=5)
def test_any_plan_gives_the_numbers_of_plain_hugging_face(
    load, plain, architecture, backend, seed, n_examples, n_masks, ideas, batch_tokens, overhead
):
    """Where forwards cost nothing beside their tokens, masks start at every layer, and no row is padded."""
    examples, masks, pairs = workload(seed, n_examples, n_masks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwards, "_OVERHEAD", {"cpu": (overhead, overhead), "cuda": (overhead, overhead)})
        engine = Engine(load(architecture, backend), examples, batch_tokens, ideas=ideas)
        found = observed(engine, masks, pairs)
    for (mask, example), (logprobs, hits) in zip(pairs, found, strict=True):
        prompt, targets = examples[example].prompt, examples[example].continuations
        truth = [plain(architecture, prompt, target, masks[mask]) for target in targets]
        np.testing.assert_allclose(logprobs, [logprob for logprob, _ in truth], atol=1e-4)
        assert (hits == 1).tolist() == [greedy for _, greedy in truth]


@pytest.mark.parametrize("architecture", ["gpt2", "neo"])
def test_examples_may_fill_the_context(load, backend, plain, architecture):
    """Long pasts with short pieces beside short pasts with long ones: no padding may stand beyond the last position."""
    rng = np.random.default_rng(0)
    shared = tuple(rng.integers(3, 23, 48).tolist())
    short = tuple(rng.integers(3, 23, 8).tolist())
    prompts = [(*shared, *rng.integers(3, 23, 4).tolist()) for _ in range(2)]
    prompts += [(*short, *rng.integers(3, 23, 41).tolist()) for _ in range(2)]
    examples = [EncodedExample(prompt, ((5, 6), (7, 8)), False) for prompt in prompts]
    examples.append(EncodedExample(tuple(rng.integers(3, 23, 62).tolist()), ((5, 6),), False))
    masks = np.eye(12, dtype=bool)[[0, 5, 11]].reshape(3, *SHAPE)
    pairs = np.array([(m, e) for m in range(3) for e in range(5)])
    found = observed(Engine(load(architecture, backend), examples), masks, pairs)
    for (mask, example), (logprobs, _) in zip(pairs, found, strict=True):
        prompt, targets = examples[example].prompt, examples[example].continuations
        truth = [plain(architecture, prompt, target, masks[mask])[0] for target in targets]
        np.testing.assert_allclose(logprobs, truth, atol=1e-4)
