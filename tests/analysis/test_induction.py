"""A model trained to go on with words that come again: the heads that it does so by are found, and named."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import cs_heads as cs
from cs_heads.units import Head
from tests.tiny import WORDS, make_tokenizer, saved

PREVIOUS, INDUCTION = Head(0, 1), Head(1, 2)
SHORTEST, LONGEST, ROW, STEPS = 6, 15, 32, 300
# The tokenizer's words, without special tokens.
FIRST = 3


def again(rng: np.random.Generator, n: int) -> tuple[np.ndarray, int]:
    """Rows of ``<s>`` and so many different words, which then come again, from any of them on, until a row is full."""
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    words = FIRST + rng.random((n, len(WORDS))).argsort(axis=1)[:, :length]
    # They begin anywhere: neither the place nor the words left say how it goes on.
    places = rng.integers(0, length - 1, size=(n, 1)) + np.arange(ROW - 1 - length)
    more = np.take_along_axis(words, places % length, axis=1)
    return np.concatenate([np.ones((n, 1), dtype=int), words, more], axis=1), length


def trained() -> GPT2LMHeadModel:
    """Two layers of attention alone, in each of which one head alone learns to write much."""
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": ROW, "vocab_size": len(make_tokenizer())}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**size, **drop, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False))
    for block, head in zip(model.transformer.h, (PREVIOUS, INDUCTION), strict=True):
        for parameter in block.mlp.parameters():
            parameter.requires_grad_(False).zero_()
        keeps = (torch.arange(64) // 16 == head.head).float()[:, None]
        block.attn.c_proj.weight.data.mul_(keeps + 0.3 * (1 - keeps))
        block.attn.c_proj.weight.register_hook(keeps.mul)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        rows, length = again(rng, 32)
        tokens = torch.from_numpy(rows)
        logits = model(tokens, use_cache=False).logits[:, length + 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, length + 2 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def task(n: int) -> cs.Task:
    """What comes next, of n examples to find with and as many unseen."""
    rng, records = np.random.default_rng(0), []
    for _ in range(2 * n):
        rows, length = again(rng, 1)
        end = length + 2 + int(rng.integers(0, 8))
        records.append({"prompt": rows[0, :end].tolist(), "target": [int(rows[0, end])]})
    return cs.Task.from_records(records, "again").split(n, seed=0)[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cs.load_model(saved(trained(), tmp_path_factory.mktemp("induction")), device="cpu")


def test_the_heads_of_induction_are_named(model):
    heads = [PREVIOUS, INDUCTION, Head(0, 3)]
    previous, induction, other = cs.explain(model, task(80), heads, controls=None, progress=False).cards
    assert "all of it and more through later units" in previous.words
    assert "all of it and more at tokens before the last" in previous.words
    assert "has the habit previous token on random tokens" in previous.words
    assert "all of it what the head writes itself" in induction.words
    assert "has the habit induction on random tokens" in induction.words
    assert "looks at what followed earlier copies of the last token" in induction.words
    assert other.words.startswith("Unclear: ")
