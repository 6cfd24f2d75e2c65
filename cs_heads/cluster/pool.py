"""Calls handed to Ray actors: to idle ones, and again where a worker is lost."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from cs_heads.cluster.session import ray_module
from cs_heads.cluster.worker import Report, Sent, Source, Worker
from cs_heads.text import first_line

# How many workers may be lost with the same call.
_LOSSES = 3

# Seconds that a worker may take to begin, without a word: Ray waits for room without end.
_SILENCE = 60.0


class WorkersLostError(ConnectionError):
    """A chunk takes along every worker that it is given to; what was measured is kept."""


class WorkerPool:
    """Workers with one model each; calls are run by idle workers, and their results yielded as they come."""

    def __init__(self, source: Source, n: int, config: tuple[str, int, int], num_cpus: float, num_gpus: float) -> None:
        self._ray = ray = ray_module()
        self._needs = {name: amount for name, amount in (("CPU", num_cpus), ("GPU", num_gpus)) if amount}
        # A new worker in place of a lost one is made here: while Ray restarts one by itself, calls to it fail.
        actors = ray.remote(Worker).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._make = partial(actors.remote, ray.put(source), *config)
        self.workers = [self._make() for _ in range(n)]
        # What is answered when a worker has begun, with its place.
        self._beginning = {worker.__ray_ready__.remote(): place for place, worker in enumerate(self.workers)}

    @cached_property
    def reports(self) -> list[Report]:
        """What each says once it holds its model, for which this waits."""
        try:
            while self._beginning:
                for ref in self._next(self._beginning):
                    del self._beginning[ref]
            return list(self._ray.get([worker.report.remote() for worker in self.workers]))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise WorkersLostError(f"a worker was lost while it loaded the model: {first_line(error)}") from error

    def send(self, what: Any) -> Sent:
        """Put something where every worker can get it, once."""
        return Sent(self._ray.put(what))

    def run(self, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the call, its result) as results come; a call is a ``Worker``'s method and its arguments.

        What a worker raises is raised here. A call whose worker is lost is done again, and another worker started in
        its place; ``WorkersLostError`` is raised for a call that several were lost with.
        """
        if not self.workers:
            raise WorkersLostError("the cluster is closed: its workers are gone; what was measured before is kept")
        todo, losses = deque(range(len(calls))), Counter[int]()
        running: dict[Any, tuple[int, int]] = {}
        while todo or running:
            busy = {*self._beginning.values(), *(place for place, _ in running.values())}
            for place, worker in enumerate(self.workers):
                if todo and place not in busy:
                    method, arguments = calls[todo[0]]
                    running[getattr(worker, method).remote(*arguments)] = place, todo.popleft()
            for ref in self._next([*running, *self._beginning]):
                if self._beginning.pop(ref, None) is not None:
                    continue
                place, index = running.pop(ref)
                try:
                    result = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except self._ray.exceptions.RayError as error:
                    self._replace(place, error)
                    losses[index] += 1
                    if losses[index] == _LOSSES:
                        raise WorkersLostError(
                            f"{_LOSSES} workers were lost with the same chunk, which may not fit into memory (a "
                            f"smaller batch_tokens would tell): {first_line(error)}; what was measured before is kept"
                        ) from error
                    todo.appendleft(index)
                else:
                    yield index, result

    def close(self) -> None:
        """Stop the workers."""
        if self._ray.is_initialized():
            for worker in self.workers:
                self._ray.kill(worker)
        self.workers.clear()

    def _replace(self, place: int, error: Exception) -> None:
        self._ray.kill(self.workers[place])
        self.workers[place] = self._make()
        self._beginning[self.workers[place].__ray_ready__.remote()] = place
        warnings.warn(
            f"worker {place + 1} of {len(self.workers)} was lost ({first_line(error)}); another is started in its "
            "place, and its chunk is done again",
            stacklevel=3,
        )

    def _next(self, refs: Any) -> list[Any]:
        """The next of some answers, or none after a long silence; of workers that wait for room it is warned then."""
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=_SILENCE)
        if not ready and self._beginning and self._needs:
            free, there = self._ray.available_resources(), self._ray.cluster_resources()
            takes = " and ".join(f"{amount:g} {name}" for name, amount in self._needs.items())
            has = " and ".join(f"{free.get(name, 0):g} of {there.get(name, 0):g} {name}" for name in self._needs)
            warnings.warn(
                f"{len(self._beginning)} of {len(self.workers)} workers have not begun for {_SILENCE:.0f} s: each "
                f"takes {takes} of one machine, and the Ray cluster has {has} free; Ray waits for room",
                stacklevel=3,
            )
        return list(ready)
