"""Work in batches that fit into memory: one loop for scores, texts, gradients and patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int

from cs_heads.lens.model import HookedModel, device_of

Item = TypeVar("Item")
Result = TypeVar("Result")
Pass = Literal["scoring", "patching", "gradient"]

_DEFAULT_TOKENS: dict[Pass, dict[str, int]] = {
    "scoring": {"cpu": 4096, "cuda": 131_072, "other": 16_384},
    "patching": {"cpu": 4096, "cuda": 65_536, "other": 16_384},
    "gradient": {"cpu": 1024, "cuda": 32_768, "other": 4096},
}

# On a CPU, numbers that the widest layer makes in one forward (float32: 8 MiB), beyond which caches no longer hold
# them, and tokens at least: `benchmarks/engine.py --tokens`.
_CACHED, _LEAST_TOKENS = 2**21, 1024


class DoesNotFitError(MemoryError):
    """One row by itself needs more memory than there is."""


@dataclass
class TokenBudget:
    """The most padded tokens of one forward; calls that share it do not try again what did not fit into memory.

    Attributes:
        tokens: So many.
        rows: Rows that were run with it.

    >>> budget = TokenBudget(4096)
    >>> budget.halve(3000)
    >>> budget.tokens
    1500
    """

    tokens: int
    rows: int = 0

    def halve(self, tokens: int | float) -> None:
        """Allow half of the tokens that did not fit, or half of the budget where that is less."""
        self.tokens = max(1, int(min(self.tokens, tokens) / 2))


def default_tokens(model: HookedModel, kind: Pass) -> int:
    """Padded tokens of one pass through the model at most: beyond these, passes get no faster on its kind of device.

    For ``"scoring"`` they are measured by ``benchmarks/engine.py``, on a CPU by the width of the model. Elsewhere a
    pass that keeps more of the model takes fewer.
    """
    by_device, device = _DEFAULT_TOKENS[kind], device_of(model).type
    tokens = by_device.get(device, by_device["other"])
    if device == "cpu" and kind == "scoring":
        widest = max(getattr(model.cfg, "d_mlp", None) or 0, model.cfg.d_model)
        return min(tokens, max(_LEAST_TOKENS, _CACHED // widest))
    return tokens


def in_batches(
    items: Sequence[Item],
    size: Callable[[Sequence[Item]], int],
    run: Callable[[Sequence[Item]], Iterable[Result]],
    shrink: Callable[[Sequence[Item]], None],
    describe: Callable[[Item], str],
) -> Iterator[Result]:
    """Run items batch by batch; a batch that does not fit into memory is made smaller and run again.

    Args:
        items: What is run, in this order.
        size: How many of the items left make up the next batch, one or more.
        run: Runs a batch. What it yields before memory runs out is yielded again when the batch is run again.
        shrink: Makes ``size`` smaller after this batch, of two items or more, did not fit.
        describe: Names an item in the error.

    Raises:
        DoesNotFitError: A single item does not fit into memory.
    """
    done = 0
    while done < len(items):
        batch = items[done : done + size(items[done:])]
        try:
            yield from run(batch)
            done += len(batch)
            continue
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            if len(batch) == 1:
                if isinstance(error, DoesNotFitError):
                    raise
                raise DoesNotFitError(f"{describe(batch[0])} does not fit into memory by itself") from error
        # Only here is the traceback gone, and with it the memory that its frames hold.
        shrink(batch)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run_in_batches(
    lengths: Sequence[int],
    budget: TokenBudget,
    run: Callable[[Int[np.ndarray, " n"]], None],
    unknown: Bool[np.ndarray, " row"] | None = None,
    done: Callable[[int], Any] = lambda _: None,
) -> None:
    """Call ``run`` with row numbers until every row had its turn.

    Args:
        lengths: Tokens of each row. The longest rows go first, so that rows of like length share a batch.
        budget: Padded tokens of one batch; halved where a batch does not fit into memory.
        run: Runs the rows of one batch.
        unknown: Rows that are asked for; a batch without any is not run (None: all are).
        done: Called with the number of these that a batch had.

    Raises:
        DoesNotFitError: A single row does not fit into memory.
    """

    def run_rows(rows: Sequence[int]) -> tuple[()]:
        new = len(rows) if unknown is None else int(unknown[rows].sum())
        if new:
            run(np.array(rows))
            budget.rows += new
            done(new)
        return ()

    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    for _ in in_batches(
        order,
        size=lambda rows: max(1, budget.tokens // lengths[rows[0]]),
        run=run_rows,
        shrink=lambda rows: budget.halve(len(rows) * lengths[rows[0]]),
        describe=lambda row: f"a row of {lengths[row]} tokens",
    ):
        pass


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the device or the machine, does not suffice."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def like_lengths(lengths: Int[np.ndarray, " row"], budget: int, overhead: int) -> int:
    """How many of the next rows go into one forward so that all forwards cost least.

    Rows of a forward are padded to its longest.

    Args:
        lengths: Tokens of each row, the longest first.
        budget: Tokens of a forward at most.
        overhead: What a forward costs beside its tokens, in tokens.

    >>> like_lengths(np.array([40, 5, 5, 5]), 4096, overhead=90), like_lengths(np.array([40, 5, 5, 5]), 4096, 110)
    (1, 4)
    """
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    ends = np.append(starts[1:], len(lengths))
    cost, first = np.zeros(len(starts) + 1), len(lengths)
    for place in range(len(starts) - 1, -1, -1):
        tokens = (ends[place:] - starts[place]) * lengths[starts[place]]
        each = tokens + overhead * np.ceil(tokens / budget) + cost[place + 1 :]
        best = int(np.argmin(each))
        cost[place], first = each[best], int(ends[place + best])
    return first
