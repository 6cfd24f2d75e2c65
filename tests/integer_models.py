"""Small models over integers, trained in seconds, and their tasks: no text, no tokenizer, short contexts."""

from functools import cache
from itertools import permutations, product
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

P = 8
EQUALS = P
"""Numbers below P are added modulo P; the token after them asks for the sum, and is never an answer."""
DIGITS, LENGTH, THEN = 6, 4, 6
"""As many different digits are sorted, after the token that asks for it."""
HEADS = (2, 4)


@cache
def adding_model(backend: str):
    """Addition modulo 8 after three tokens, which are its whole context: ``[a, b, =]``, 9 tokens in, 8 out."""
    shape = {"d_vocab": P + 1, "d_vocab_out": P, "n_ctx": 3, "n_layers": HEADS[0], "n_heads": HEADS[1], "d_model": 32}
    shape |= {"d_head": 8, "d_mlp": 64, "act_fn": "relu", "normalization_type": "LN", "seed": 0}
    torch.manual_seed(0)
    if backend == "hooked":
        from transformer_lens import HookedTransformer

        model = HookedTransformer({**shape, "device": "cpu"})
    else:
        from transformer_lens.model_bridge import TransformerBridge

        model = TransformerBridge.boot_native(shape)
    tokens = torch.tensor([record["prompt"] for record in addition()])
    sums = torch.tensor([record["target"][0] for record in addition()])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, -1], sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return model


def addition() -> list[dict]:
    """Every sum of two numbers, as records of token ids."""
    return [{"prompt": [a, b, EQUALS], "target": [(a + b) % P]} for a, b in product(range(P), repeat=2)]


def sorting(n: int, *, inside: bool = False) -> list[dict]:
    """Lists of different digits and the same in order, which comes after the prompt, or ``inside`` it."""
    drawn = np.random.default_rng(0).permutation(list(permutations(range(DIGITS), LENGTH)))[:n].tolist()
    if not inside:
        return [{"prompt": [*digits, THEN], "target": sorted(digits)} for digits in drawn]
    places = list(range(LENGTH, 2 * LENGTH))
    return [
        {"prompt": [*digits, THEN, *sorted(digits)[:-1]], "target": sorted(digits), "positions": places}
        for digits in drawn
    ]


def save_sorting_model(folder: Path) -> Path:
    """Write a GPT-2 that sorts four digits, in a context of eight tokens, as a folder without a tokenizer."""
    torch.manual_seed(0)
    sizes = {"n_layer": HEADS[0], "n_head": HEADS[1], "n_embd": 32, "n_positions": 2 * LENGTH, "vocab_size": DIGITS + 1}
    neither = {"bos_token_id": None, "eos_token_id": None, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **neither))
    records = sorting(360, inside=True)
    tokens = torch.tensor([record["prompt"] for record in records])
    answers = torch.tensor([record["target"] for record in records])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(80):
        batch = slice(step % 4, None, 4)
        logits = model(tokens[batch]).logits[:, LENGTH:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers[batch].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    return folder
