"""Texts under masks are those of plain Hugging Face, decoded greedily one row at a time, token for token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.engine.forwards import Forwards
from cs_heads.engine.generation import Generation
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens.abilities import Abilities
from tests.engine.test_engine import MODELS, workload
from tests.plain import plain_text, units_replaced
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model

END = 5


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_examples=st.integers(1, 3),
    n_masks=st.integers(1, 2),
    length=st.integers(1, 4),
    ideas=st.builds(Abilities, st.booleans(), st.booleans()),
    batch_tokens=st.sampled_from([17, 4096]),
)
@settings(max_examples=3)
def test_texts_are_those_of_plain_greedy_decoding(
    load, architecture, backend, seed, n_examples, n_masks, length, ideas, batch_tokens
):
    examples, masks, pairs = workload(seed, n_examples, n_masks)
    prompts = [example.prompt for example in examples]
    hf = make_hf_model(architecture)

    def finished(text):
        return len(text) >= length or (len(text) > 0 and text[-1] == END)

    forwards = Forwards(load(architecture, backend), examples, batch_tokens, ideas=ideas)
    found = {}
    generation = Generation(forwards, prompts, finished)
    for batch in generation.run(PairMasks.of(masks[pairs[:, 0]]), pairs[:, 1]):
        for pair, text in batch:
            assert pair not in found
            found[pair] = text
    expected = []
    for mask, example in pairs:
        with units_replaced(hf, "heads", masks[mask]):
            expected.append(plain_text(hf, prompts[example], finished))
    assert [found[pair] for pair in range(len(pairs))] == expected


@pytest.mark.parametrize("architecture", ["gpt2", "neo"])
def test_texts_may_fill_the_context(load, backend, architecture):
    """Prompts of very unequal length, up to the last position; two of which others begin with."""
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(3, 23, n).tolist()) for n in (58, 5, 5, 5, 5, 5)]
    prompts += [prompts[0][:30], prompts[1][:3]]
    model, hf = load(architecture, backend), make_hf_model(architecture)
    masks = np.zeros((8, N_LAYERS, N_HEADS), dtype=bool)
    masks[:, 1, 2] = True

    def finished(text):
        return len(text) >= 6

    with units_replaced(hf, "heads", masks[0]):
        expected = [plain_text(hf, prompt, finished) for prompt in prompts]
    generation = Generation(Forwards(model, []), prompts, finished)
    found = dict(pair for batch in generation.run(PairMasks.of(masks), np.arange(8)) for pair in batch)
    assert [found[i] for i in range(8)] == expected


@pytest.mark.parametrize(("limit", "where"), [(3, "prompts"), (1, "texts")])
def test_texts_that_do_not_fit_are_halved_and_each_comes_once(load, monkeypatch, limit, where):
    from cs_heads.engine import forwards, generation

    examples, masks, _ = workload(7, 4, 4)
    pairs = np.array([(m, e) for m in range(len(masks)) for e in range(4)])
    prompts = [example.prompt for example in examples]

    def texts():
        writing = Generation(Forwards(load("llama"), examples), prompts, lambda text: len(text) >= 5)
        return [p for batch in writing.run(PairMasks.of(masks[pairs[:, 0]]), pairs[:, 1]) for p in batch]

    expected = dict(texts())
    module, name = (forwards, "token_logprobs") if where == "prompts" else (generation, "logits_at")
    then = getattr(module, name)

    def short(model, tokens, *arguments, **options):
        if len(tokens) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return then(model, tokens, *arguments, **options)

    monkeypatch.setattr(forwards, "token_budget", lambda model: 4096)
    monkeypatch.setattr(module, name, short)
    found = texts()
    assert len(found) == len(expected)
    assert dict(found) == expected
