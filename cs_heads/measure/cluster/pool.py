"""Calls handed to Ray actors: to whoever is idle, again where a worker is lost, twice where the last is slow."""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cs_heads.measure.cluster.session import ray_module
from cs_heads.measure.cluster.worker import Home, Report, Source, Worker

# A worker is started again so often; a call that so many workers were lost with is given up.
_RESTARTS = 3
_LOSSES = 3

# The last calls are handed out a second time when they take so many times what a call took in the middle.
_SLOW = 3.0


class WorkersLostError(RuntimeError):
    """No worker is left, or a chunk takes along every worker that it is given to; what was measured is kept."""


@dataclass(frozen=True)
class Call:
    """A method of ``Worker``, what it is given, and the keys of what must be open for it."""

    method: str
    arguments: tuple[Any, ...]
    needs: tuple[str, ...] = ()


@dataclass
class _Member:
    """One worker as the driver sees it: its actor, what is open there, and how often it was lost."""

    number: int
    actor: Any
    opened: set[str] = field(default_factory=set)
    losses: int = 0
    gone: bool = False


@dataclass(frozen=True)
class _Running:
    """A call under way: by whom, since when, in which run; ``index`` None is a worker that loads its model."""

    member: _Member
    run: int
    index: int | None
    since: float


class Pool:
    """Workers with one model each; calls are run by whoever is idle, and their results yielded as they come."""

    def __init__(self, source: Source, n: int, home: Home, num_cpus: float, num_gpus: float) -> None:
        self.home = home
        self._ray = ray = ray_module()
        self._source = ray.put(source)
        actor = ray.remote(Worker).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=_RESTARTS, scheduling_strategy="SPREAD"
        )
        self.members = [_Member(number, actor.remote()) for number in range(n)]
        self._opened: dict[str, Any] = {}
        self._forgotten: set[str] = set()
        self._busy: dict[Any, _Running] = {}
        self._run = 0
        try:
            self.reports: list[Report] = self._load_all()
        except BaseException:
            self.close()
            raise

    def _load_all(self) -> list[Report]:
        refs = [self._load(member) for member in self.members]
        try:
            return self._ray.get(refs)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except self._ray.exceptions.RayError as error:
            raise WorkersLostError(f"a worker was lost while it loaded the model: {_line(error)}") from error

    def _load(self, member: _Member) -> Any:
        member.opened.clear()
        return member.actor.load.remote(self._source, self.home)

    def open(self, key: str, what: Any) -> None:
        """Put something where every worker can get it, once, for calls that need ``key``."""
        self._opened[key] = self._ray.put(what)

    def forget(self, key: str) -> None:
        """Let the workers drop what was opened, at the next opportunity; may be called while garbage is collected."""
        self._forgotten.add(key)

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the call, its result) as results come; the first of two answers to a call counts.

        What a worker raises is raised here. A call whose worker is lost is done again by another, and the worker
        started again a few times; ``WorkersLostError`` is raised when none is left.
        """
        self._run += 1
        for key in self._forgotten & self._opened.keys():
            del self._opened[key]
        todo, answered = deque(range(len(calls))), set[int]()
        losses, took = Counter[int](), list[float]()
        while len(answered) < len(calls):
            if all(member.gone for member in self.members):
                raise WorkersLostError(
                    f"all {len(self.members)} workers are lost; what was measured before is kept, and the same call "
                    "on new workers measures the rest"
                )
            self._hand_out(calls, todo, answered, took)
            # While somebody is idle, look from time to time whether the others have become slow.
            patience = 0.5 if self._idle() and not todo else None
            ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=patience)
            for ref in ready:
                done = self._busy.pop(ref)
                ours = done.index is not None and done.run == self._run
                try:
                    result = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:
                    if done.index is None:
                        self._part_with(done.member, f"it could not load its model again: {_cause(error)}")
                    elif ours and done.index not in answered:
                        raise _cause(error) from error
                except self._ray.exceptions.RayError as error:
                    if ours:
                        losses[done.index] += 1
                    self._lost(done, error)
                    if ours and done.index not in answered:
                        if losses[done.index] >= _LOSSES:
                            raise WorkersLostError(
                                f"{_LOSSES} workers were lost with the same chunk, which may not fit into memory (a "
                                f"smaller batch_tokens would tell): {_line(error)}; what was measured before is kept"
                            ) from error
                        if not self._running(done.index):
                            todo.appendleft(done.index)
                else:
                    if ours and done.index not in answered:
                        took.append(time.monotonic() - done.since)
                        answered.add(done.index)
                        yield done.index, result

    def close(self) -> None:
        """Stop the workers."""
        if self._ray.is_initialized():
            for member in self.members:
                self._ray.kill(member.actor)
        self.members.clear()
        self._busy.clear()

    def _idle(self) -> list[_Member]:
        busy = {running.member.number for running in self._busy.values()}
        return [member for member in self.members if not member.gone and member.number not in busy]

    def _running(self, index: int | None) -> list[_Running]:
        return [running for running in self._busy.values() if running.run == self._run and running.index == index]

    def _hand_out(self, calls: Sequence[Call], todo: deque[int], answered: set[int], took: list[float]) -> None:
        for member in self._idle():
            index = todo.popleft() if todo else self._slowest(answered, took)
            if index is None:
                return
            call = calls[index]
            if stale := member.opened & self._forgotten:
                member.actor.close.remote(sorted(stale))
                member.opened -= stale
            for key in call.needs:
                if key not in member.opened:
                    member.actor.open.remote(key, self._opened[key])
                    member.opened.add(key)
            ref = getattr(member.actor, call.method).remote(*call.arguments)
            self._busy[ref] = _Running(member, self._run, index, time.monotonic())

    def _slowest(self, answered: set[int], took: list[float]) -> int | None:
        """The call that has taken longest, where it is slow beside the others and nobody else runs it, too."""
        if not took:
            return None
        late = time.monotonic() - _SLOW * max(float(np.median(took)), 0.5)
        ours = [r for r in self._busy.values() if r.run == self._run and r.index is not None and r.since < late]
        slow = [r for r in ours if r.index not in answered and len(self._running(r.index)) == 1]
        return min(slow, key=lambda running: running.since).index if slow else None

    def _lost(self, done: _Running, error: Exception) -> None:
        member = done.member
        member.losses += 1
        if member.losses > _RESTARTS:
            self._part_with(member, _line(error))
            return
        self._busy[self._load(member)] = _Running(member, self._run, None, time.monotonic())
        warnings.warn(
            f"worker {member.number + 1} of {len(self.members)} was lost ({_line(error)}); it is started again, and "
            "its chunk is done again",
            stacklevel=3,
        )

    def _part_with(self, member: _Member, reason: str) -> None:
        member.gone = True
        self._ray.kill(member.actor)
        left = sum(not other.gone for other in self.members)
        warnings.warn(f"worker {member.number + 1} is given up, {left} are left: {reason}", stacklevel=3)


def _cause(error: Any) -> Exception:
    """What was raised on the worker, whose traceback stands in ``error``."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else RuntimeError(str(error))


def _line(error: BaseException) -> str:
    """The first line of an error of Ray's, whose messages are long."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
