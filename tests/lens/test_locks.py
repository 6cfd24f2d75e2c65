"""Threads take turns on a model."""

import threading

import torch

from cs_heads.lens import locks
from cs_heads.lens.locks import alone


class Other(threading.Thread):
    """A thread that enters the block of a model, and waits there to be told to leave."""

    def __init__(self, model):
        super().__init__(daemon=True)
        self.model, self.inside, self.leave = model, threading.Event(), threading.Event()

    def run(self):
        with alone(self.model):
            self.inside.set()
            self.leave.wait(30)


def test_another_thread_waits_for_the_end_of_the_outermost_block():
    model, free = torch.nn.Identity(), torch.nn.Identity()
    with alone(model):
        with alone(model):
            other, elsewhere = Other(model), Other(free)
            other.start()
            elsewhere.start()
            assert elsewhere.inside.wait(30)
        assert not other.inside.wait(0.05)
    assert other.inside.wait(30)
    for thread in (other, elsewhere):
        thread.leave.set()
        thread.join(30)
    with alone(model):
        pass


def test_two_bridges_of_one_model_take_turns(folders, load):
    bridge = load("llama", "bridge")
    inside = bridge.original_model
    other = Other(inside)
    with alone(bridge):
        other.start()
        assert not other.inside.wait(0.05)
    assert other.inside.wait(30)
    other.leave.set()
    other.join(30)


def test_a_thread_that_waits_long_says_so_once(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.01)
    model, said = torch.nn.Identity(), threading.Event()
    warned = []
    monkeypatch.setattr(locks.warnings, "warn", lambda text, **_: (warned.append(text), said.set()))
    with alone(model):
        other = Other(model)
        other.start()
        assert said.wait(30)
        assert not other.inside.wait(0.05)
    assert other.inside.wait(30)
    other.leave.set()
    other.join(30)
    (text,) = warned
    assert text.startswith("waiting for a model that another thread holds: a thread that is joined inside a with block")
