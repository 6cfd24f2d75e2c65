"""A tiny model whose working heads are known: all others write nothing to the residual stream."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cs_heads.lens import abilities
from cs_heads.units import Head
from tests.tiny import WORDS, make_hf_model, saved, sentence

WORKING = (Head(0, 1), Head(2, 3))
IDLE = (Head(0, 0), Head(2, 0))


def save_model_with_known_heads(folder: Path) -> Path:
    """Write a Llama in which the working heads write loudly and no other head writes at all."""
    model = make_hf_model("llama")
    for layer, block in enumerate(model.model.layers):
        written = block.self_attn.o_proj.weight.data
        d_head = block.self_attn.head_dim
        for head in range(written.shape[1] // d_head):
            written[:, head * d_head : (head + 1) * d_head] *= 4.0 if Head(layer, head) in WORKING else 0.0
    return saved(model, folder)


def own_answers(model: Any, n: int, seed: int = 0) -> list[dict]:
    """``n`` different completion records whose target is the word the intact model says next."""
    rng = np.random.default_rng(seed)
    records: dict[str, dict] = {}
    while True:
        for prompt, word in _said_next(model, [sentence(rng) for _ in range(64)]):
            if len(records) == n:
                return list(records.values())
            if word in WORDS:
                records[prompt] = {"prompt": prompt, "target": f" {word}"}


def write_records(path: Path, records: Iterable) -> Path:
    """Write a file of a record a line; returns the path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def _said_next(model: Any, prompts: list[str]) -> Iterator[tuple[str, str]]:
    """Each prompt and the word the model says next."""
    for prompt, logits in zip(prompts, _next_logits(model, prompts), strict=True):
        yield prompt, model.tokenizer.convert_ids_to_tokens(int(logits.argmax()))


def _next_logits(model: Any, prompts: list[str]) -> torch.Tensor:
    """What comes after each prompt; in one forward, for what comes after a token does not change it."""
    rows = [[model.tokenizer.bos_token_id, *model.tokenizer(p, add_special_tokens=False)["input_ids"]] for p in prompts]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    with torch.no_grad():
        logits = model(tokens)
    return torch.stack([logits[place, len(row) - 1] for place, row in enumerate(rows)])


def word_records(model: Any, n: int, instruction: str, seed: int = 0) -> list[dict]:
    """``n`` choice records by worked examples, whose answer the intact model prefers there and when instructed."""
    rng = np.random.default_rng(seed)
    records: dict[str, dict] = {}
    while len(records) < n:
        asked = [sentence(rng, 1, 6) for _ in range(64)]
        pairs = [list(map(str, rng.choice(WORDS, size=2, replace=False))) for _ in asked]
        ids = torch.tensor([model.tokenizer.convert_tokens_to_ids(pair) for pair in pairs])
        shown = [(sentence(rng, 1, 3), rng.choice(WORDS)) for _ in asked]
        shots = [f"Q: {x}\nA: {y}\n\nQ: {words}\nA:" for (x, y), words in zip(shown, asked, strict=True)]
        instructed = [
            f"{instruction}\nWord: {x}\nAnswer: {y}\n\nWord: {words}\nAnswer:"
            for (x, y), words in zip(shown, asked, strict=True)
        ]
        first, second = (_next_logits(model, form).gather(1, ids).argmax(1).tolist() for form in (shots, instructed))
        for words, prompt, pair, one, other in zip(asked, shots, pairs, first, second, strict=True):
            if one == other:
                records[words] = {"prompt": prompt, "choices": [f" {word}" for word in pair], "answer": one}
    return list(records.values())[:n]


def hopeless_records(n: int, seed: int = 0) -> list[dict]:
    """Choice records whose answers are drawn by lot: no model beats chance."""
    rng = np.random.default_rng(seed)
    return [{"prompt": sentence(rng), "choices": [" cat", " dog"], "answer": int(rng.integers(2))} for _ in range(n)]


@contextmanager
def rows_run(model: Any) -> Iterator[list[int]]:
    """The rows of each forward that the model runs inside the block, but for those that try whether it may."""
    rows: list[int] = []
    trying, look = [False], abilities._Trial.check

    def check(trial: Any) -> None:
        trying[0] = True
        try:
            look(trial)
        finally:
            trying[0] = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abilities._Trial, "check", check)
        with before_forwards(model, lambda tokens: trying[0] or rows.append(len(tokens))):
            yield rows


@contextmanager
def before_forwards(model: Any, see: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Show the tokens of each forward of the model inside the block, without a hook: one would alter the model."""
    kind = type(model)
    forward, own = kind.forward, "forward" in vars(kind)

    def watched(self: Any, tokens: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if self is model:
            see(tokens)
        return forward(self, tokens, *arguments, **options)

    kind.forward = watched
    try:
        yield
    finally:
        if own:
            kind.forward = forward
        else:
            del kind.forward


def choice_of_own_answers(model: Any, n: int, name: str, seed: int = 0) -> Any:
    """A choice task of whole prompts: what the intact model says next, and another word."""
    from cs_heads.tasks import Task

    rng = np.random.default_rng(seed)
    records = []
    for record in own_answers(model, n, seed):
        other = next(f" {word}" for word in rng.permutation(WORDS) if f" {word}" != record["target"])
        answer = int(rng.integers(2))
        choices = [other, record["target"]] if answer else [record["target"], other]
        records.append({"prompt": record["prompt"], "choices": choices, "answer": answer})
    return Task.from_records(records, name)
