"""Calls handed to Ray actors: to idle ones, again where a worker is lost, twice where the last is slow."""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cs_heads.cluster.session import ray_module
from cs_heads.cluster.worker import Report, Source, Worker, WorkerConfig
from cs_heads.text import first_line

# How often a worker is started again, and how many workers may be lost with the same call.
_RESTARTS = 3
_LOSSES = 3

# The last calls are handed out a second time when they take this many times the median call.
_SLOW = 3.0

# Seconds between two looks at the slow.
_PATIENCE = 0.5

# Seconds that a worker may take to begin, without a word: Ray waits for room without end.
_SILENCE = 60.0

_LOADING = -1


class WorkersLostError(ConnectionError):
    """No worker is left, or a chunk takes along every worker that it is given to; what was measured is kept."""


@dataclass(frozen=True)
class WorkerCall:
    """A method of ``Worker``, what it is given, and the keys of what must be open for it."""

    method: str
    arguments: tuple[Any, ...]
    needs: tuple[str, ...] = ()


@dataclass
class _Member:
    """One worker as the driver sees it: its actor, what is open there, and how often it was lost.

    ``begun`` is answered when the actor, asked for at ``since``, has begun; None once that is known or was told of.
    """

    number: int
    actor: Any = None
    begun: Any = None
    since: float = 0.0
    pid: int | None = None
    opened: set[str] = field(default_factory=set)
    losses: int = 0
    gone: bool = False


@dataclass(frozen=True)
class _Running:
    """A call under way: by whom, since when, in which run; ``index`` -1 is a worker that loads its model."""

    member: _Member
    run: int
    index: int
    since: float


@dataclass
class _Run:
    """What is left to do of some calls, and how long those took that are done (seconds)."""

    number: int
    calls: Sequence[WorkerCall]
    todo: deque[int] = field(init=False)
    answered: set[int] = field(default_factory=set)
    losses: Counter[int] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.todo = deque(range(len(self.calls)))

    def lost(self, index: int, error: BaseException, again: bool) -> None:
        """A worker was lost with a call, which is to be done ``again``, but not without end."""
        self.losses[index] += 1
        if self.losses[index] >= _LOSSES:
            raise WorkersLostError(
                f"{_LOSSES} workers were lost with the same chunk, which may not fit into memory (a smaller "
                f"batch_tokens would tell): {first_line(error)}; what was measured before is kept"
            ) from error
        if again:
            self.todo.appendleft(index)


class WorkerPool:
    """Workers with one model each; calls are run by idle workers, and their results yielded as they come."""

    def __init__(self, source: Source, n: int, config: WorkerConfig, num_cpus: float, num_gpus: float) -> None:
        self.config = config
        self._needs = {"CPU": num_cpus, "GPU": num_gpus}
        self._ray = ray = ray_module()
        self._source = ray.put(source)
        # A worker that was lost is followed by a new one, made here: Ray's own restarts would come without a model.
        self._actors = ray.remote(Worker).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self.members = [_Member(number) for number in range(n)]
        # Raises ValueError for a worker that does not hold what the others do; set by who knows what that is.
        self.check: Callable[[int, Report], None] = lambda *_: None
        self._opened: dict[str, Any] = {}
        self._forgotten: set[str] = set()
        self._busy: dict[Any, _Running] = {}
        self._n_runs = 0
        try:
            self.reports: list[Report] = self._load_all()
        except BaseException:
            self.close()
            raise

    def _load_all(self) -> list[Report]:
        refs = [self._load(member) for member in self.members]
        reports: dict[Any, Report] = {}
        try:
            while left := [ref for ref in refs if ref not in reports]:
                ready, _ = self._ray.wait(left, num_returns=1, timeout=_SILENCE)
                reports.update(zip(ready, self._ray.get(ready), strict=True))
                self._tell_of_waiting()
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except self._ray.exceptions.RayError as error:
            raise WorkersLostError(f"a worker was lost while it loaded the model: {first_line(error)}") from error
        for member, ref in zip(self.members, refs, strict=True):
            member.pid = reports[ref].pid
        return [reports[ref] for ref in refs]

    def _load(self, member: _Member) -> Any:
        member.actor = self._actors.remote()
        member.begun, member.since = member.actor.__ray_ready__.remote(), time.monotonic()
        member.opened.clear()
        return member.actor.load.remote(self._source, self.config)

    def _tell_of_waiting(self) -> None:
        """Warn, once for each, of workers that have long not begun; where there is no room, somebody may make some."""
        needs = {name: amount for name, amount in self._needs.items() if amount}
        late = [m for m in self.members if m.begun is not None and time.monotonic() - m.since >= _SILENCE]
        waiting = sum(bool(self._ray.wait([member.begun], num_returns=1, timeout=0)[1]) for member in late)
        for member in late:
            member.begun = None
        if waiting and needs:
            free, there = self._ray.available_resources(), self._ray.cluster_resources()
            takes = " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
            has = " and ".join(f"{free.get(name, 0):g} of {there.get(name, 0):g} {name}" for name in needs)
            warnings.warn(
                f"{waiting} of {len(self.members)} workers have not begun for {_SILENCE:.0f} s: each takes {takes} of "
                f"one machine, and the Ray cluster has {has} free; Ray waits for room",
                stacklevel=3,
            )

    def open(self, key: str, what: Any) -> None:
        """Put something where every worker can get it, once, for calls that need ``key``."""
        self._opened[key] = self._ray.put(what)

    def forget(self, key: str) -> None:
        """Let the workers drop what was opened, at the next opportunity; may be called while garbage is collected."""
        self._forgotten.add(key)

    def run(self, calls: Sequence[WorkerCall]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the call, its result) as results come; the first of two answers to a call counts.

        What a worker raises is raised here. A call whose worker is lost is done again by another, and the worker
        started again a few times; ``WorkersLostError`` is raised when none is left.
        """
        for key in self._forgotten & self._opened.keys():
            del self._opened[key]
        self._n_runs += 1
        run = _Run(self._n_runs, calls)
        while len(run.answered) < len(calls):
            if all(member.gone for member in self.members):
                raise WorkersLostError(
                    f"all {len(self.members)} workers are lost; what was measured before is kept, and the same call "
                    "on new workers measures the rest"
                )
            self._hand_out(run)
            # While a worker is idle, look from time to time whether the others have become slow.
            patience = _PATIENCE if self._idle() and not run.todo else _SILENCE
            ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=patience)
            self._tell_of_waiting()
            for ref in ready:
                done = self._busy.pop(ref)
                wanted = done.run == run.number and done.index not in run.answered
                try:
                    result = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:
                    if wanted:
                        raise _cause(error) from error
                    if done.index == _LOADING:
                        self._part_with(done.member, f"it could not load its model again: {_cause(error)}")
                except self._ray.exceptions.RayError as error:
                    self._lost(done, error)
                    if wanted:
                        run.lost(done.index, error, again=not self._running(run, done.index))
                else:
                    if done.index == _LOADING:
                        self._begin_again(done.member, result)
                    if wanted:
                        run.took.append(time.monotonic() - done.since)
                        run.answered.add(done.index)
                        yield done.index, result

    def close(self) -> None:
        """Stop the workers."""
        if self._ray.is_initialized():
            for member in self.members:
                if member.actor is not None:
                    self._ray.kill(member.actor)
        self.members.clear()
        self._busy.clear()

    def _idle(self) -> list[_Member]:
        busy = {running.member.number for running in self._busy.values()}
        return [member for member in self.members if not member.gone and member.number not in busy]

    def _running(self, run: _Run, index: int) -> list[_Running]:
        return [running for running in self._busy.values() if running.run == run.number and running.index == index]

    def _hand_out(self, run: _Run) -> None:
        for member in self._idle():
            index = run.todo.popleft() if run.todo else self._slowest(run)
            if index is None:
                return
            call = run.calls[index]
            if stale := member.opened & self._forgotten:
                member.actor.close.remote(sorted(stale))
                member.opened -= stale
            for key in call.needs:
                if key not in member.opened:
                    member.actor.open.remote(key, self._opened[key])
                    member.opened.add(key)
            ref = getattr(member.actor, call.method).remote(*call.arguments)
            self._busy[ref] = _Running(member, run.number, index, time.monotonic())

    def _slowest(self, run: _Run) -> int | None:
        """The call that has taken longest, where it is slow beside the others and no second worker runs it."""
        if not run.took:
            return None
        late = time.monotonic() - _SLOW * max(float(np.median(run.took)), _PATIENCE)
        ours = [r for r in self._busy.values() if r.run == run.number and r.since < late]
        slow = [r for r in ours if r.index not in run.answered and len(self._running(run, r.index)) == 1]
        return min(slow, key=lambda running: running.since).index if slow else None

    def _lost(self, done: _Running, error: Exception) -> None:
        member = done.member
        member.losses += 1
        self._ray.kill(member.actor)
        if member.losses > _RESTARTS:
            self._part_with(member, first_line(error))
            return
        self._busy[self._load(member)] = _Running(member, 0, _LOADING, time.monotonic())
        warnings.warn(
            f"worker {member.number + 1} of {len(self.members)} was lost ({first_line(error)}); it is started again, "
            "and its chunk is done again",
            stacklevel=3,
        )

    def _begin_again(self, member: _Member, report: Report) -> None:
        """A worker that was lost has loaded its model, which may have become another since."""
        member.pid = report.pid
        try:
            self.check(member.number + 1, report)
        except ValueError as error:
            self._part_with(member, str(error))

    def _part_with(self, member: _Member, reason: str) -> None:
        member.gone = True
        self._ray.kill(member.actor)
        left = sum(not other.gone for other in self.members)
        warnings.warn(f"worker {member.number + 1} is given up, {left} are left: {reason}", stacklevel=3)


def _cause(error: Any) -> Exception:
    """What was raised on the worker; its traceback is in ``error``."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else RuntimeError(str(error))
