"""Score records of the demo model under many masks at once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from cs_heads.demo.gates import Gated


def encode(
    tokenizer: PreTrainedTokenizerFast, prompts: list[str]
) -> tuple[Int[Tensor, "row pos"], Int[Tensor, " row"]]:
    """Token ids padded on the right, and the last position of each prompt."""
    rows = tokenizer(prompts)["input_ids"]
    ids = torch.full((len(rows), max(map(len, rows))), tokenizer.pad_token_id)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) - 1 for row in rows])


def _token(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) != 1:
        raise ValueError(f"text={text!r} has {len(tokens)} tokens; the demo's answers have one")
    return tokens[0]


@torch.no_grad()
def accuracies(
    gated: Gated,
    tokenizer: PreTrainedTokenizerFast,
    records: list[dict[str, Any]],
    masks: Bool[Tensor, "mask layer head"],
    rows: int = 256,
) -> Float[Tensor, "mask example"]:
    """1 where an example is answered right with the heads of a mask off (True = off)."""
    ids, last = encode(tokenizer, [record["prompt"] for record in records])
    pairs = torch.cartesian_prod(torch.arange(len(masks)), torch.arange(len(records)))
    right = torch.empty(len(pairs))
    choices = [
        [_token(tokenizer, choice) for choice in record["choices"]] if "choices" in record else None
        for record in records
    ]
    targets = [record["answer"] if "choices" in record else _token(tokenizer, record["target"]) for record in records]
    for part in torch.arange(len(pairs)).split(rows):
        mask, example = pairs[part].T
        logits = gated(ids[example], last[example], (~masks[mask]).float())
        best = logits.argmax(1)
        for i, number in enumerate(example.tolist()):
            if choices[number] is not None:
                best[i] = logits[i, choices[number]].argmax()
        right[part] = (best == torch.tensor(targets)[example]).float()
    return right.view(len(masks), len(records))
