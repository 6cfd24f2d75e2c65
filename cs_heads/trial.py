"""Calls that are tried: they begin, and end once they have measured for long enough to say what they would take."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter


@dataclass
class Trial:
    """A call that ends once it has measured for ``most`` seconds.

    What is measured ``apart`` takes other seconds than the rest, and is tried half as long by itself; ``each`` are the
    seconds of an example-evaluation where it ended.
    """

    most: float
    cost: int | None = None
    apart: Trial | None = None
    each: float | None = None
    opened: float | None = None
    first: tuple[float, float] | None = None
    done: float = 0.0
    left_out: int = 0

    @property
    def seconds_left_out(self) -> float:
        """What was left out takes as long as what ran, by now."""
        if self.opened is None or not self.done:
            return 0.0
        return self.left_out * (perf_counter() - self.opened) / self.done

    def seconds(self, start: float, enough: EnoughError | None) -> float:
        """What the call takes from its ``start``, by now or by why it ended."""
        beside = 0.0 if self.apart is None else self.apart.left_out * (self.apart.each or 0.0)
        if enough is None:
            return perf_counter() - start + beside + self.seconds_left_out
        to_come = (self.cost or 0) - (0 if self.apart is None else self.apart.cost or 0)
        return enough.begun - start + beside + enough.each * max(to_come, 0)

    def open(self) -> None:
        """The first measurement is asked for."""
        if self.opened is None:
            self.opened = perf_counter()

    def reach(self, done: float) -> None:
        """So many example-evaluations are done by now; what came before the first time also paid for preparations."""
        # What is begun counts before it is done.
        now, self.done = perf_counter(), max(done, self.done)
        if self.first is None:
            self.first = now, done
            return
        begun, before = self.first
        if self.done > before and now - begun >= self.most:
            raise EnoughError(begun, (now - begun) / (self.done - before))


class EnoughError(Exception):
    """A call has measured for long enough: when it began to, and the seconds of an example-evaluation."""

    def __init__(self, begun: float, each: float) -> None:
        super().__init__(begun, each)
        self.begun, self.each = begun, each


TRIAL: ContextVar[Trial | None] = ContextVar("trial", default=None)
"""The call in progress, where it is tried."""


def tried(run: Callable[[], object], most: float) -> tuple[int, float]:
    """What a call says that it costs at most, and the seconds that it takes, by how its beginning goes.

    It runs, and ends once it has measured for ``most`` seconds. Right answers of the intact model are made up, so that
    masks are soon reached, in experiments alone that the call makes, and that have no store.

    Args:
        run: The call.
        most: Seconds of measuring, about; half as many more of what is measured ``apart``.

    Returns:
        Example-evaluations, and seconds; of a call that ended before the time was up those that it took.
    """
    trial, start = Trial(most), perf_counter()
    token = TRIAL.set(trial)
    try:
        run()
    except EnoughError as enough:
        return trial.cost or 0, trial.seconds(start, enough)
    finally:
        TRIAL.reset(token)
    return trial.cost or 0, trial.seconds(start, None)


def is_tried() -> bool:
    """Whether the call in progress is ``tried``, its results no use."""
    return TRIAL.get() is not None


def left_out(n: int) -> bool:
    """Whether so many example-evaluations need not be run: the call in progress is ``tried``, its results no use."""
    trial = TRIAL.get()
    if trial is not None:
        trial.left_out += n
    return trial is not None
