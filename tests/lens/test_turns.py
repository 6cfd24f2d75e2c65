"""Threads take turns on a model."""

import threading

import pytest
import torch

from cs_heads.lens import turns
from cs_heads.lens.turns import alone


class Other(threading.Thread):
    """A thread that enters the block of some models, one in the other, and then waits to be told to leave."""

    def __init__(self, *models, between=None):
        super().__init__(daemon=True)
        self.models, self.between = models, between
        self.inside, self.leave, self.errors = [threading.Event() for _ in models], threading.Event(), []

    def run(self):
        try:
            self._enter(0)
        except RuntimeError as error:
            self.errors.append(error)

    def _enter(self, place):
        if place == len(self.models):
            self.leave.wait(30)
            return
        if place and self.between is not None:
            self.between.wait(30)
        with alone(self.models[place]):
            self.inside[place].set()
            self._enter(place + 1)


def test_another_thread_waits_for_the_end_of_the_outermost_block():
    model, free = torch.nn.Identity(), torch.nn.Identity()
    with alone(model):
        with alone(model):
            other, elsewhere = Other(model), Other(free)
            other.start()
            elsewhere.start()
            assert elsewhere.inside[0].wait(30)
        assert not other.inside[0].wait(0.05)
    assert other.inside[0].wait(30)
    for thread in (other, elsewhere):
        thread.leave.set()
        thread.join(30)
    with alone(model):
        pass


def test_an_exception_ends_a_block():
    model = torch.nn.Identity()
    with pytest.raises(ZeroDivisionError), alone(model):
        _ = 1 / 0
    other = Other(model)
    other.leave.set()
    other.start()
    assert other.inside[0].wait(30)


def test_two_threads_that_wait_for_each_other_are_told():
    first, second = torch.nn.Identity(), torch.nn.Identity()
    with alone(first):
        other = Other(second, first)
        other.start()
        assert other.inside[0].wait(30)
        # The other waits for the first, or is about to.
        while not other.errors and other.ident not in _waiting():
            pass
        with pytest.raises(RuntimeError, match="take the models in the same order"), alone(second):
            pass
    assert other.inside[1].wait(30)
    other.leave.set()
    other.join(30)
    assert not other.errors


def _waiting():
    from cs_heads.lens import turns

    return turns._AWAITED


def test_two_bridges_of_one_model_take_turns(folders, load):
    bridge = load("llama", "bridge")
    inside = bridge.original_model
    other = Other(inside)
    with alone(bridge):
        other.start()
        assert not other.inside[0].wait(0.05)
    assert other.inside[0].wait(30)
    other.leave.set()
    other.join(30)


def test_a_thread_that_waits_long_says_so_once(monkeypatch):
    monkeypatch.setattr(turns, "_PATIENCE", 0.01)
    model, said = torch.nn.Identity(), threading.Event()
    warned = []
    monkeypatch.setattr(turns.warnings, "warn", lambda text, **_: (warned.append(text), said.set()))
    with alone(model):
        other = Other(model)
        other.start()
        assert said.wait(30)
        assert not other.inside[0].wait(0.05)
    assert other.inside[0].wait(30)
    other.leave.set()
    other.join(30)
    (text,) = warned
    assert text.startswith("waiting for a model that another thread holds: a thread that is joined inside a with block")
