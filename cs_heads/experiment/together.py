"""What one experiment is asked, or several on one engine, measured in forwards that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import as_gates
from cs_heads.engine.forwards import Mask
from cs_heads.engine.protocol import EngineLike, PairMasks
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.experiment.results import SCORE, CachedResults, Entry, LookedUp, Request, requests
from cs_heads.lens.locks import alone
from cs_heads.progress import counting, is_shown, show_baseline
from cs_heads.trial import left_out

# Score, log-probability and margin of a right answer.
_RIGHT = np.array([1.0, 0.0, 10.0])

Scored = Callable[
    [int, Float[np.ndarray, " continuation"], Float[np.ndarray, " continuation"]], Float[np.ndarray, " 3"]
]
"""From an example, log-probabilities and shares of argmax tokens of its continuations to score, logprob and margin."""


@dataclass(frozen=True, eq=False)
class Part:
    """What a call of one experiment asks of its engine.

    Attributes:
        engine: What runs it.
        first: The number that the engine has for the first example of the task.
        cached: Where results are kept.
        looked_up: The pairs asked for, and which of them nothing has.
        scored: What is made of the engine's results.
        name: That of the task.
        progress: Whether to show a bar.
        right_or_wrong: Whether no scorer judges the answers.
    """

    engine: EngineLike
    first: int
    cached: CachedResults
    looked_up: LookedUp
    scored: Scored
    name: str
    progress: bool | None
    right_or_wrong: bool = False

    @property
    def entries(self) -> list[Entry]:
        """What is known under the mask of each row of the call."""
        return self.looked_up.entries

    def show_baseline(self) -> None:
        """Show what is known of the intact model, where the call asks for it."""
        if is_shown() and self._intact is not None:
            show_baseline(self.name, self._intact[:, SCORE])

    @property
    def is_intact(self) -> bool:
        """Whether the call asks for nothing but the intact model, whose answers are right or wrong."""
        return self.right_or_wrong and bool(self._nothing_off.all())

    @cached_property
    def _intact(self) -> Entry | None:
        """What is known with nothing off, where the call asks for that."""
        rows = self._nothing_off
        return self.entries[int(rows.argmax())] if rows.any() else None

    @cached_property
    def _nothing_off(self) -> Bool[np.ndarray, " row"]:
        masks = self.looked_up.masks
        # Of a mask nothing is True, of gates all are 1.
        return np.asarray(~masks.any(axis=(1, 2)) if masks.dtype == bool else (masks == 1).all(axis=(1, 2)))


@dataclass(frozen=True, eq=False)
class Asked:
    """A call of an experiment.

    Attributes:
        experiment: The experiment.
        masks: ``[row, layer, head]``.
        examples: Each row's own example indices ``[row, k]``; None: all of them in every row.
        response: ``"score"``, ``"probability"`` or ``"margin"``.
    """

    experiment: ExperimentLike
    masks: Shaped[np.ndarray, "row layer head"]
    examples: Int[np.ndarray, "row k"] | None = None
    response: str = "score"


def measure_together(asked: Sequence[Asked]) -> None:
    """Measure what experiments are about to be asked, so that the calls themselves find it known.

    Experiments ``on`` several tasks share their engine where heads become zero: their rows fill forwards together,
    where each by itself would run many small ones. Experiments of other kinds, and tasks for which the model writes
    texts, are left to be asked. What is counted as spent is the same.

    >>> from cs_heads.simulate import planted_world
    >>> world = planted_world("one_head", seed=0)
    >>> measure_together([Asked(world.task, world.grid.mask([])[None])])  # has no engine: nothing is done
    >>> world.task.spent
    0
    """
    engines: dict[int, list[Part]] = {}
    for each in _once(asked):
        part = _part(each)
        if part is not None:
            group = engines.setdefault(id(part.engine), [])
            # What two of them have in common may be asked by both: the second is left to be asked.
            if all(part.cached is not other.cached for other in group):
                group.append(part)
    for group in engines.values():
        measure(group)


def _once(asked: Sequence[Asked]) -> list[Asked]:
    """Each experiment asked once, in pairs of masks and examples, for all that it is asked."""
    calls: dict[tuple[int, str, np.dtype[Any]], list[Asked]] = {}
    for each in asked:
        calls.setdefault((id(each.experiment), each.response, each.masks.dtype), []).append(each)
    return [several[0] if len(several) == 1 else _joined(several) for several in calls.values()]


def _joined(several: Sequence[Asked]) -> Asked:
    masks, examples = [], []
    for each in several:
        n, every = len(each.masks), np.arange(each.experiment.n_examples)
        drawn = np.broadcast_to(every, (n, len(every))) if each.examples is None else each.examples
        masks.append(np.repeat(each.masks, drawn.shape[1], axis=0))
        examples.append(drawn.reshape(-1, 1))
    return replace(several[0], masks=np.concatenate(masks), examples=np.concatenate(examples))


def _part(asked: Asked) -> Part | None:
    part: Callable[..., Part | None] | None = getattr(asked.experiment, "part", None)
    return None if part is None else part(asked.masks, asked.examples, asked.response)


def measure(parts: Sequence[Part]) -> None:
    """Run what is missing of parts that share an engine, and keep it as it comes; other threads wait meanwhile."""
    with alone(parts[0].engine.model):
        _measure(parts)


def _measure(parts: Sequence[Part]) -> None:
    asked = requests([(part.cached, part.looked_up) for part in parts])
    may = all(part.is_intact and part.cached.trial is not None for part in parts)
    if may and left_out(sum(len(request.examples) for request in asked)):
        # What is tried is masks, which run otherwise; so that they are soon reached, every answer counts as right.
        for part, request in zip(parts, asked, strict=True):
            part.cached.keep(request, [(pair, _RIGHT) for pair in range(len(request.examples))])
            part.cached.end(request)
        return
    starts = np.cumsum([0, *(len(request.examples) for request in asked)])
    if starts[-1]:
        numbers = np.concatenate([part.first + request.examples for part, request in zip(parts, asked, strict=True)])
        known = np.concatenate([request.known for request in asked])
        several = f"{parts[0].name} and {len(parts) - 1} more" if len(parts) > 1 else parts[0].name
        with counting(several, len(numbers), parts[0].progress, int(known.sum())) as bar:
            before, n_asked = bar.n, int((~known).sum())
            ran = parts[0].engine.run(_masks(asked), numbers, known, lambda share: bar.tell(before + share * n_asked))
            for batch in ran:
                _keep(parts, asked, starts, batch)
                last, *_ = batch[-1]
                bar.at(parts[int(np.searchsorted(starts, last, side="right")) - 1].name)
                bar.add(len(batch))
                for part in parts:
                    part.show_baseline()
    for part, request in zip(parts, asked, strict=True):
        part.cached.end(request)


def _keep(
    parts: Sequence[Part],
    asked: Sequence[Request],
    starts: Int[np.ndarray, " start"],
    # Of examples with unlike numbers of continuations.
    batch: Sequence[tuple[int, np.ndarray, np.ndarray]],
) -> None:
    """Score what a forward gave, and keep it; a task that cannot be scored, or kept, loses nothing of the others."""
    done: list[list[tuple[int, Float[np.ndarray, " 3"]]]] = [[] for _ in parts]
    errors: list[Exception] = []
    for pair, logprobs, hits in batch:
        place = int(np.searchsorted(starts, pair, side="right")) - 1
        number = pair - int(starts[place])
        try:
            values = parts[place].scored(int(asked[place].examples[number]), logprobs, hits)
        except Exception as error:
            errors.append(error)
        else:
            done[place].append((number, values))
    for part, request, results in zip(parts, asked, done, strict=True):
        try:
            if results:
                part.cached.keep(request, results)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _masks(asked: Sequence[Request]) -> PairMasks:
    """The masks of all requests, each once."""
    if len(asked) == 1:
        return asked[0].masks
    place: dict[bytes, int] = {}
    masks: list[Mask] = []
    which: list[int] = []
    for request in asked:
        for row in request.rows.tolist():
            key = request.keys[row]
            if key not in place:
                place[key] = len(masks)
                masks.append(request.masks.masks[row])
            which.append(place[key])
    if len({mask.dtype for mask in masks}) > 1:
        masks = [as_gates(mask).astype(np.float32) for mask in masks]
    return PairMasks(np.stack(masks), np.array(which))
