"""How calls are handed to workers, on workers of this process whose time is made up."""

from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cs_heads.cluster import pool
from cs_heads.cluster.pool import WorkerPool, WorkersLostError
from cs_heads.cluster.worker import Report


class TaskError(Exception):
    """As Ray's, raised for what a worker raises."""


class ActorDiedError(Exception):
    """As Ray's, raised where a worker is lost."""


@dataclass
class Fake:
    """As much of Ray as a pool uses: worker ``i`` takes ``seconds(i, what)`` for a call, None being lost with it.

    An actor has a place after ``full`` seconds by its number, at once where it has none there.
    """

    seconds: object
    full: dict = field(default_factory=dict)
    now: float = 0.0
    done: list = field(default_factory=list)
    ends: dict = field(default_factory=dict)
    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=ActorDiedError)

    def __post_init__(self):
        self.numbers, self.refs = count(), count()

    def put(self, what):
        return what

    def remote(self, _):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: Actor(self, next(self.numbers))))

    def kill(self, actor):
        actor.alive = False

    def cluster_resources(self):
        return {"CPU": 4.0, "GPU": 2.0}

    def available_resources(self):
        return {"CPU": 3.0}

    def is_initialized(self):
        return True

    def begin(self, actor, seconds, answer):
        ref, start = f"ref {next(self.refs)}", max(self.now, actor.free)
        actor.free = start + (0.0 if seconds is None else seconds)
        self.ends[ref] = actor.free, actor, answer, seconds is None
        return ref

    def wait(self, refs, num_returns, timeout):
        first = min(refs, key=lambda ref: self.ends[ref][0])
        end = self.ends[first][0]
        if timeout is not None and end > self.now + timeout:
            self.now += timeout
            return [], refs
        self.now = max(self.now, end)
        return [first], [ref for ref in refs if ref != first]

    def get(self, ref):
        if isinstance(ref, list):
            return [self.get(one) for one in ref]
        end, actor, answer, lost = self.ends.pop(ref)
        self.now = max(self.now, end)
        if lost or not actor.alive:
            raise ActorDiedError("the worker died")
        return answer


def report_of(number):
    """All that is asked of a report here."""
    report = object.__new__(Report)
    object.__setattr__(report, "pid", number)
    return report


class Actor:
    """A worker that doubles what it is given, and loads in ``loading`` seconds."""

    loading = 0.0

    def __init__(self, fake, number):
        self.fake, self.number, self.alive, self.free = fake, number, True, fake.now + fake.full.get(number, 0.0)
        self.__ray_ready__ = SimpleNamespace(remote=lambda: fake.begin(self, 0.0, None))
        self.report = SimpleNamespace(remote=lambda: fake.begin(self, self.loading, report_of(number)))
        self.double = SimpleNamespace(remote=self._double)

    def _double(self, what):
        self.fake.done.append((self.number, what))
        return self.fake.begin(self, self.fake.seconds(self.number, what), 2 * what)


@pytest.fixture
def pool_of(monkeypatch):
    """A pool of ``n`` workers that take ``seconds(number, what)``, and the Ray it runs on."""

    def make(n, seconds, full=None):
        fake = Fake(seconds, full or {})
        monkeypatch.setattr(pool, "ray_module", lambda: fake)
        workers = WorkerPool("a model", n, ("cpu", 1, n), 1.0, 0.5)
        assert len(workers.reports) == n
        return workers, fake

    return make


def doubling(n, first=0):
    return [("double", (what,)) for what in range(first, first + n)]


def test_work_goes_to_whoever_is_idle(pool_of):
    workers, fake = pool_of(2, lambda worker, _: (1.0, 3.0)[worker])
    assert [report.pid for report in workers.reports] == [0, 1]
    assert dict(workers.run(doubling(8))) == {what: 2 * what for what in range(8)}
    assert [sum(worker == each for worker, _ in fake.done) for each in range(2)] == [6, 2]
    assert fake.now == 6.0


def test_what_an_interrupted_run_left_is_not_taken_for_an_answer_of_the_next(pool_of):
    workers, _ = pool_of(2, lambda worker, what: 30.0 if (worker, what) == (1, 1) else 1.0)
    interrupted = workers.run(doubling(4))
    assert next(interrupted) == (0, 0)
    interrupted.close()
    assert dict(workers.run(doubling(60, 100))) == {index: 2 * (100 + index) for index in range(60)}


def test_a_lost_workers_chunk_is_done_again_by_another(pool_of):
    workers, fake = pool_of(2, lambda worker, what: None if (worker, what) == (1, 1) else 1.0)
    with pytest.warns(UserWarning, match=r"worker 2 of 2 was lost \(the worker died\); another is started"):
        answers = dict(workers.run(doubling(9)))
    assert answers == {what: 2 * what for what in range(9)}
    assert sum(what == 1 for _, what in fake.done) == 2
    assert {worker for worker, _ in fake.done} == {0, 1, 2}


def test_a_chunk_that_takes_every_worker_along_is_given_up(pool_of):
    workers, _ = pool_of(2, lambda _, what: None if what == 1 else 1.0)
    with pytest.warns(UserWarning, match="was lost"), pytest.raises(WorkersLostError, match="the same chunk"):
        list(workers.run(doubling(4)))


def test_what_a_worker_raises_is_raised_here(pool_of):
    workers, fake = pool_of(1, lambda *_: 1.0)
    raised = TaskError()
    raised.cause = MemoryError("example 3 does not fit into memory by itself")
    fake.get = Mock(side_effect=raised)
    with pytest.raises(MemoryError, match="example 3 does not fit"):
        list(workers.run(doubling(1)))


ROOM = (
    "of 2 workers have not begun for 60 s: each takes 1 CPU and 0.5 GPU of one machine, and the Ray cluster has "
    "3 of 4 CPU and 0 of 2 GPU free; Ray waits for room"
)


def test_workers_that_wait_for_room_are_told_of_and_begin_when_there_is_some(pool_of):
    with pytest.warns(UserWarning, match="have not begun") as told:
        workers, fake = pool_of(2, lambda *_: 1.0, full={1: 300.0})
    assert {str(each.message) for each in told} == {f"1 {ROOM}"}
    assert fake.now >= 300.0
    assert dict(workers.run(doubling(4))) == {what: 2 * what for what in range(4)}
    assert {worker for worker, _ in fake.done} == {0, 1}


def test_a_model_that_is_long_in_loading_is_not_said_to_wait_for_room(pool_of, monkeypatch):
    monkeypatch.setattr(Actor, "loading", 300.0)
    _, fake = pool_of(2, lambda *_: 1.0)
    assert fake.now == 300.0
