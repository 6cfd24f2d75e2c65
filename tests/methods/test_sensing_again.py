"""Sensing again with heads off: what carries a task when those that carried it are gone."""

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.methods.annealing import annealed
from cs_heads.simulate import planted_world
from cs_heads.units import Grid

TASK = cs.load_task("demo/capitals", n=60, seed=0)


def test_heads_that_are_off_are_off_under_every_mask():
    made = planted_world("main", seed=1)
    first, second = made.planted[:2]
    without = WithHeadsOff(made.task, [first])
    both = made.task(made.grid.mask([first, second])[None])
    assert np.array_equal(without(made.grid.mask([second])[None]), both)
    assert np.array_equal(without.baseline(), made.task(made.grid.mask([first])[None])[0])
    margins = without.respond(made.grid.mask([second])[None], None, "margin")
    assert np.array_equal(margins, made.task.respond(made.grid.mask([first, second])[None], None, "margin"))
    assert without.provenance()["off"] == [str(first)]
    assert (without.name, without.chance) == ("task", 0.0)


@pytest.mark.parametrize("n_worlds", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_the_backup_of_a_head_is_found_once_the_head_is_off(n_worlds):
    """Pairs of heads that are fully redundant: the partners of those off come first, two in each world."""
    found = 0
    for seed in range(40, 40 + n_worlds):
        made = planted_world("hidden_pairs", Grid(16, 16), seed=seed)
        off, partners = made.planted[3::2], set(made.planted[4::2])
        again = annealed(
            WithHeadsOff(made.task, off),
            controls=[WithHeadsOff(made.control, off)],
            budget=8000,
            seed=seed,
            n_bootstraps=0,
        )
        found += len(partners & {*again.top(5)})
        assert not {*off} & {*again.top(5)}
    assert found >= 2 * n_worlds - 1


def test_what_is_proved_is_what_carries_the_task_without_the_heads_off():
    model = cs.load_model("demo")
    proof = cs.confirm(model, TASK, ["L2H6"], off=["L1H11"], controls=None, n=20, n_random=1, progress=False)
    both = cs.confirm(model, TASK, ["L1H11", "L2H6"], controls=None, n=20, n_random=1, progress=False)
    alone = cs.confirm(model, TASK, ["L1H11"], controls=None, n=20, n_random=1, progress=False)
    assert proof.result.baseline == pytest.approx(alone.result.score)
    assert proof.result.score == pytest.approx(both.result.score)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: cs.find_heads(model, TASK, off=["L0H0"], method="gradient"), "off must be left out for method"),
        (lambda model: cs.find_heads(model, TASK, off=["L99H0"]), "L99H0"),
        (lambda model: cs.confirm(model, TASK, ["L0H0"], off=["L0H0"], controls=None), "others than those off already"),
    ],
)
def test_heads_that_cannot_be_off_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call(cs.load_model("demo"))
