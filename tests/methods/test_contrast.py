"""Losses of a task and its controls under the same masks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.methods.controls import TOGETHER, Contrast, Controls, contrasted
from cs_heads.simulate import PlantedExperiment
from cs_heads.tasks import Task
from cs_heads.tasks.task import with_fields
from cs_heads.units import Grid

GRID = Grid(4, 4)
INTACT = np.zeros((1, 4, 4), dtype=bool)


class Named(PlantedExperiment):
    """A planted experiment with a name."""

    def __init__(
        self, name: str, n: int, needs: int | None = None, right: float = 1.0, harm: float = 9.0, **more: float
    ) -> None:
        margins = np.where(np.arange(n) < round(right * n), 1.0, -1.0)
        damage = np.zeros((GRID.size, n))
        if needs is not None:
            damage[needs] = harm
        super().__init__(GRID, margins, damage, **more)
        self.name = name

    def in_form(self, *, matched: bool) -> Named:
        """The same, asked in the form of another task, or not."""
        self.task = with_fields(Task.from_records([{"prompt": "a", "target": " b"}]), matched=matched)
        return self


def controls(*experiments: Named) -> Controls:
    """Controls drawn with one seed."""
    return Controls.able(experiments, seed=0)


def test_a_control_loses_all_of_its_score_above_chance_with_the_head_that_it_needs_off() -> None:
    found = controls(Named("a", 50, needs=3), Named("b", 50, needs=5))
    drawn = found.draw(1, 40)
    losses = found(GRID.mask(["L0H3"])[None], drawn)
    assert set(losses[found.of(drawn) == 0]) == {1.0}
    assert set(losses[found.of(drawn) == 1]) == {0.0}


def test_guessing_is_a_loss_of_one_on_average() -> None:
    found = controls(Named("a", 100, needs=3, chance=0.5))
    drawn = np.arange(found.n_examples)[None]
    assert found(GRID.mask(["L0H3"])[None], drawn).mean() == pytest.approx(1.0, abs=0.35)
    assert found(INTACT, drawn).mean() == pytest.approx(0.0)


def test_every_control_gives_as_many_examples_and_no_row_has_one_twice() -> None:
    found = controls(Named("a", 50), Named("b", 30), Named("c", 90))
    drawn = found.draw(40, 8)
    assert np.ptp(np.bincount(found.of(drawn).ravel())) <= TOGETHER
    assert all(len(set(row)) == 8 for row in drawn.tolist())
    within = np.bincount(drawn.ravel(), minlength=found.n_examples)
    assert all(np.ptp(within[found.of(np.arange(found.n_examples)) == task]) <= 1 for task in range(3))


@pytest.mark.parametrize(
    ("n", "size", "per_row", "of_form"),
    [(1, 60, 8, 4), (2, 60, 8, 4), (2, 60, 4, 2), (2, 60, 6, 3), (2, 60, 5, 2), (2, 60, 16, 8), (1, 13, 32, 13)],
)
def test_those_in_the_form_of_the_task_give_half_of_every_row_however_few_they_are(n, size, per_row, of_form) -> None:
    """Fewer only where they have fewer examples."""
    rest = [Named(f"control {number}", 60).in_form(matched=False) for number in range(5)]
    found = controls(*rest, *(Named(f"form {number}", size).in_form(matched=True) for number in range(n)))
    drawn = found.draw(20, per_row)
    assert [side.tolist() for side in found.sides] == [[0, 1, 2, 3, 4], [*range(5, 5 + n)]]
    assert set((found.of(drawn) >= 5).sum(axis=1)) == {of_form}
    assert all(len(set(row)) == per_row for row in drawn.tolist())


def test_beside_one_in_the_form_of_the_task_controls_lose_what_answers_lose_in_probability_while_still_right() -> None:
    """A head takes half of each margin of one."""
    for matched, lost in ((True, 1 - expit(0.5) / expit(1.0)), (False, 0.0)):
        pair = Named("a", 50, needs=3, harm=0.5).in_form(matched=matched), Named("b", 50, needs=3, harm=0.5)
        found = controls(*pair)
        assert found(GRID.mask(["L0H3"])[None], found.draw(1, 8)) == pytest.approx(np.full((1, 8), lost))


def test_a_control_that_the_model_cannot_do_is_left_out_and_named() -> None:
    found = controls(Named("hard", 50, right=0.1), Named("easy", 50, right=0.9))
    assert found.names == ["easy"]
    assert "hard" in found.left_out
    assert set(found(INTACT, found.draw(1, 20)).ravel()) == {0.0}


# Examples that are the same for all masks


@pytest.mark.parametrize(("n", "times"), [(9, [3, 3, 3]), (10, [4, 3, 3]), (60, [27, 10, 23]), (500, [50, 10, 23])])
def test_a_sample_is_balanced_while_every_control_has_examples(n: int, times: list[int]) -> None:
    found = controls(Named("a", 50), Named("few", 10), Named("c", 23))
    drawn = found.sample(n)
    assert np.bincount(found.of(drawn)).tolist() == times
    assert len(set(drawn.tolist())) == len(drawn) <= Controls.most([task.experiment for task in found.tasks], n)


# The contrast


def test_the_contrast_is_the_loss_of_the_task_less_the_mean_loss_of_its_controls() -> None:
    task = Named("task", 40, needs=1)
    measure = Contrast(task, [Named("a", 30, needs=1), Named("b", 60, needs=2)], np.arange(40), seed=0)
    left = measure(np.stack([GRID.mask(heads) for heads in ([], ["L0H1"], ["L0H2"], ["L0H1", "L0H2"], ["L3H3"])]))
    np.testing.assert_array_equal(measure.mean(left), [0.0, -0.5, 0.5, 0.0, 0.0])
    np.testing.assert_array_equal(measure.intact(), left[0])
    assert measure.a_mask == 40 + 40


def test_the_interval_of_a_contrast_is_that_of_means_of_independent_examples() -> None:
    rng = np.random.default_rng(0)
    task, *others = (rng.normal(size=(n, 3)) for n in (50, 20, 30))
    mean, interval = contrasted(task, others)
    assert mean == pytest.approx(task.mean(axis=0) - (others[0].mean(axis=0) + others[1].mean(axis=0)) / 2)
    own, first, second = (each.var(axis=0, ddof=1) / len(each) for each in (task, *others))
    error = np.sqrt(own + (first + second) / 4)
    assert interval is not None
    assert interval == pytest.approx(np.stack([mean - 1.96 * error, mean + 1.96 * error], axis=-1))
    assert contrasted(task, [others[0], others[1][:1]])[1] is None


def test_a_contrast_without_any_control_the_model_can_do_is_refused_and_names_them() -> None:
    hard = [Named("one", 50, right=0.1), Named("other", 50, right=0.0)]
    with pytest.raises(
        BaselineTooLowError, match=r"controls: the model can do none of them \('one': .*; 'other': .*\)"
    ):
        Contrast(Named("task", 50), hard, np.arange(50), seed=0)
