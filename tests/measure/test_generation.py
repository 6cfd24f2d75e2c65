"""Texts under masks are those of plain Hugging Face, decoded greedily one row at a time, token for token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.lens.abilities import Abilities
from cs_heads.measure.engine.forwards import Forwards
from cs_heads.measure.engine.generation import Generation
from tests.measure.test_engine import MODELS, workload
from tests.plain import heads_zeroed
from tests.tiny import make_hf_model

END = 5


def plain_text(model, prompt, mask, finished):
    """Greedy decoding that runs the whole text again for every token."""
    text = []
    with heads_zeroed(model, mask), torch.no_grad():
        while not finished(text):
            logits = model(torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, -1]
            text.append(int(logits.argmax()))
    return tuple(text)


def half_right(text, finished):
    """A finished text that leaves the given one after its first token."""
    draft = [text[0]]
    while not finished(draft):
        draft.append(3 + (len(draft) * 7 + text[0]) % 17)
    return tuple(draft)


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_examples=st.integers(1, 4),
    n_masks=st.integers(1, 3),
    length=st.integers(1, 6),
    ideas=st.builds(Abilities, st.booleans(), st.booleans()),
    batch_tokens=st.sampled_from([1, 60, 4096]),
    drafting=st.sampled_from(["none", "intact", "wrong"]),
)
@settings(max_examples=8)
def test_texts_are_those_of_plain_greedy_decoding(
    load, architecture, backend, seed, n_examples, n_masks, length, ideas, batch_tokens, drafting
):
    examples, masks, pairs = workload(seed, n_examples, n_masks)
    prompts = [example.prompt for example in examples]
    hf = make_hf_model(architecture)

    def finished(text):
        return len(text) >= length or (len(text) > 0 and text[-1] == END)

    forwards = Forwards(load(architecture, backend), examples, batch_tokens, ideas=ideas)
    intact = [plain_text(hf, prompt, np.zeros_like(masks[0]), finished) for prompt in prompts]
    wrong = [half_right(text, finished) for text in intact]
    drafts = dict(enumerate({"none": [], "intact": intact, "wrong": wrong}[drafting]))
    found = {}
    generation = Generation(forwards, prompts, finished)
    for batch in generation.run(masks[pairs[:, 0]], pairs[:, 1], drafts, progress=False):
        for pair, text in batch:
            assert pair not in found
            found[pair] = text
    expected = [plain_text(hf, prompts[example], masks[mask], finished) for mask, example in pairs]
    assert [found[pair] for pair in range(len(pairs))] == expected
