"""Annealed sensing on planted truths: what it finds, what it says, what it costs."""

import inspect
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.annealing import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.simulate import PlantedExperiment, planted_world
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(16, 16)


def world(scenario="main", seed=0, **more):
    return planted_world(scenario, GRID, seed=seed, **more)


class Counting(ExperimentLike):
    """An experiment that counts what it is asked for, and notes the masks."""

    def __init__(self, experiment, chance=0.0):
        self.experiment, self.grid, self.n_examples = experiment, experiment.grid, experiment.n_examples
        self.asked, self.rows, self.chance = 0, [], chance

    def __call__(self, masks, examples=None):
        scores = self.experiment(masks, examples)
        self.asked += scores.size
        self.rows += [*masks]
        return scores


class Additive(ExperimentLike):
    """Every head costs as much whatever else is off; all examples are alike."""

    def __init__(self, grid, costs, n_examples=60):
        self.grid, self.costs, self.n_examples = grid, costs, n_examples

    def __call__(self, masks, examples=None):
        scores = 0.75 - masks.reshape(len(masks), -1) @ self.costs
        return np.repeat(scores[:, None], self.n_examples if examples is None else examples.shape[1], axis=1)


def signed_costs(size, seed):
    """Costs of either sign, none near zero, that keep every score between 0 and 1."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.3, 1.0, size) * rng.choice([1, 1, -1], size) * 0.24 / size


# What it finds


@settings(max_examples=3)
@given(shape=st.tuples(st.integers(1, 6), st.integers(2, 6)), seed=st.integers(0, 9))
def test_importances_have_the_sign_of_what_heads_cost_on_every_small_grid(shape, seed):
    grid = Grid(*shape)
    costs = signed_costs(grid.size, seed)
    world = Additive(grid, costs)
    sparse_sensing = [
        compressed_sensing(world, design=design, n_masks=4 * grid.size + 40, density=max(0.15, 1 / grid.size))
        for design in ("stratified", "bernoulli")
    ]
    for found in (annealed(world, k=1, n_bootstraps=0), *sparse_sensing):
        assert (np.sign(found.importance.ravel()) == np.sign(costs)).all()
        assert found.importance.ravel() == pytest.approx(costs, abs=0.01)


@pytest.mark.parametrize(("shape", "n_controls"), [((1, 2), 1), ((3, 3), 0), ((6, 8), 0)], ids=str)
def test_every_sign_is_right_by_default_or_it_is_said_that_some_may_not_be(shape, n_controls):
    """With what nobody chose: as many rows and masks as there are by default."""
    grid = Grid(*shape)
    costs = signed_costs(grid.size, 1)
    controls = [Additive(grid, np.zeros(grid.size)) for _ in range(n_controls)]
    density = max(0.05, 1 / grid.size)
    methods = [partial(annealed, k=1, controls=controls, n_bootstraps=0)]
    if not n_controls:
        methods += [
            partial(compressed_sensing, design=design, density=density) for design in ("stratified", "bernoulli")
        ]
    for method in methods:
        found = method(Additive(grid, costs))
        right = (np.sign(found.importance.ravel()) == np.sign(costs)).all()
        assert right or any("may have the wrong sign" in note for note in found.notes)
        assert right or grid.size > 9


def test_what_a_shared_head_takes_is_told_against_the_intact_model():
    """Three heads that the control rests on as much: each against the others they would take nothing."""
    grid, costs = Grid(2, 2), [0.3, 0.3, 0.3, 0.05]
    universal = np.array(costs) > 0.2
    control = Additive(grid, np.where(universal, costs, 0.0))
    found = annealed(Additive(grid, np.array(costs)), controls=[control], k=1, n_bootstraps=0)
    assert set(found.shared) == {grid.unit(int(index)) for index in np.flatnonzero(universal)}
    assert found.importance.ravel() == pytest.approx(costs, abs=0.01)
    low, high = found.interval.reshape(-1, 2)[universal].T
    assert ((low <= np.array(costs)[universal]) & (np.array(costs)[universal] <= high)).all()
    for effects in found.shared_effects:
        assert effects["task"] == pytest.approx(effects["controls"])


def test_planted_and_universal_heads_are_found_and_controls_that_the_model_cannot_do_are_left_out():
    made, hopeless = world(), PlantedExperiment(GRID, np.linspace(-1, 0.05, 100), np.zeros((GRID.size, 100)))
    hopeless.name = "hopeless"
    controls = [made.control, hopeless]
    found = annealed(made.task, controls=controls, budget=6000, n_bootstraps=0)
    assert len({*found.top(5)} & {*made.planted}) >= 3
    assert found.unit == "score lost"
    assert any(note.startswith("control 'hopeless' is left out: ") for note in found.notes)
    assert found.provenance["controls"] == ["control"]
    assert "fewer than" in found.provenance["controls_left_out"]["hopeless"]
    assert hopeless.spent == 100
    assert set(found.shared) == set(made.universal)
    assert not set(found.top(5)) & set(made.universal)
    assert set(found.order[-3:]) == set(made.universal)
    assert found.order[: len(found.chosen)] == list(found.chosen)


def without_sets(monkeypatch):
    """All of the budget goes to rows of the search."""
    monkeypatch.setattr(
        import_module("cs_heads.methods.annealing.search_loop"), "best_sets", lambda searches, k: [None]
    )


def test_rows_with_a_shared_head_off_that_takes_much_are_left_out(monkeypatch):
    without_sets(monkeypatch)
    made = world(seed=1)
    counted = Counting(made.task)
    found = annealed(counted, controls=[made.control], budget=6000, seed=1, n_bootstraps=0)
    assert len(found.shared) == 3
    off = np.array(counted.rows[1:])
    kept = ~off[:, made.grid.mask(found.shared)].any(axis=1)
    assert found.provenance["n_rows"] == kept.sum() < len(kept)


def test_rows_with_a_shared_head_off_that_takes_little_are_kept(monkeypatch):
    """Twenty-two of a hundred on both sides."""
    without_sets(monkeypatch)
    small = Head(3, 3)
    task = Counting(Planted(GRID, {small: 0.2, Head(5, 5): 0.3}, noise=True))
    found = annealed(task, controls=[Planted(GRID, {small: 0.2})], budget=6000, n_bootstraps=0)
    assert found.shared == (small,)
    assert found.top(1) == [Head(5, 5)]
    alone = sum(bool((mask == GRID.mask([small])).all()) for mask in task.rows)
    assert found.provenance["n_rows"] == len(task.rows) - 1 - alone
    assert alone >= 4


def test_without_controls_heads_of_every_task_are_ranked_and_the_notes_say_so():
    made = world(seed=1)
    found = annealed(made.task, budget=5000, seed=1, n_bootstraps=0)
    assert found.shared == found.chosen == ()
    assert found.control_importance is None
    assert set(made.universal) <= set(found.top(5))
    said = "no controls: heads of this task cannot be distinguished from task-general (universal) heads"
    assert found.notes[0].startswith(said)
    (note,) = [note for note in found.notes if note.startswith("heads that take half of the score by themselves")]
    assert all(str(head) in note for head in made.universal)


def test_of_a_shared_head_it_is_told_what_it_takes_from_both_sides_and_from_which_control_most():
    shared = Head(3, 3)
    task = Planted(GRID, {shared: 0.6, Head(5, 5): 0.3}, noise=True)
    controls = [Planted(GRID, {shared: drop}, noise=True) for drop in (0.2, 0.8)]
    for control, name in zip(controls, ("spared", "broken"), strict=True):
        control.name = name
    found = annealed(task, controls=controls, budget=6000, n_bootstraps=0)
    assert found.shared == (shared,)
    (told,) = found.shared_effects
    assert (told["head"], told["most"]) == ("L3H3", "broken")
    for side in ("task", "controls"):
        low, high = told[f"{side}_interval"]
        assert low < told[side] < high
    assert found.importance[3, 3] == pytest.approx(told["task"] * found.provenance["n_used"] / 100)
    assert found.control_importance[3, 3] == told["controls"]


def test_of_many_controls_each_is_measured_in_turn():
    made = world(n_controls=4)
    task, *controls = (Counting(experiment) for experiment in (made.task, *made.controls))
    found = annealed(task, controls=controls, budget=4000, n_bootstraps=0)
    assert found.spent == task.asked + sum(control.asked for control in controls) <= 4000
    asked = [control.asked - 60 for control in controls]
    assert min(asked) > 0.9 * max(asked)
    assert len(found.provenance["controls"]) == 4


def shuffled(n=80, n_right=56):
    """A head that the task rests on, and one that mends as many answers as it breaks."""
    rng = np.random.default_rng(0)
    margins = np.where(np.arange(n) < n_right, 0.5, -0.5)
    damage = np.zeros((GRID.size, n))
    damage[GRID.index(Head(4, 4)), rng.permutation(n_right)[:10]] = 1.0
    shuffler = damage[GRID.index(Head(8, 8))]
    shuffler[rng.permutation(n_right)[:16]] = 1.0
    shuffler[n_right + rng.permutation(n - n_right)[:16]] = -1.0
    return PlantedExperiment(GRID, margins, damage)


def test_with_two_choices_a_head_that_mends_as_much_as_it_breaks_is_no_head_of_the_task():
    """On the right answers alone it takes more of them than the head that matters."""
    found = annealed(Counting(shuffled(), chance=0.5), budget=4000, k=2, n_bootstraps=0)
    assert found.top(1) == [Head(4, 4)]
    assert found.importance[4, 4] == pytest.approx(10 / 80, abs=0.05)
    assert found.importance[8, 8] == pytest.approx(0, abs=0.05)
    assert Head(8, 8) not in found.claims
    assert annealed(shuffled(), budget=4000, k=2, n_bootstraps=0).top(1) == [Head(8, 8)]


def test_where_no_head_matters_nothing_is_ranked_or_selected():
    found = annealed(Planted(GRID, {}, baseline=1.0), budget=1500, n_bootstraps=2)
    assert "every row scored the same (1.000): nothing can be ranked" in found.notes
    assert not found.frequency.any()
    assert not found.claims


# What it costs


def test_every_setting_is_in_the_provenance():
    known = annealed(Planted(GRID, {Head(0, 0): 0.3}), budget=1000, n_bootstraps=1).provenance
    settings = set(inspect.signature(annealed).parameters) - {"experiment", "controls"}
    assert set(known["design"]) == settings
    assert {"controls", "controls_left_out"} <= set(known)


@pytest.mark.parametrize(
    ("grid", "for_masks", "n_examples"),
    [(Grid(4, 8), 8000, 500), pytest.param(Grid(30, 30), 9000, 50, marks=pytest.mark.slow)],
)
def test_by_default_ten_a_head_and_eight_thousand_at_least_go_to_masks_however_many_examples(
    grid, for_masks, n_examples
):
    task = Planted(grid, {Head(0, 0): 0.3}, n_examples=n_examples)
    found = annealed(task, n_bootstraps=0)
    assert found.provenance["design"]["budget"] == n_examples + for_masks
    assert 0 <= n_examples + for_masks - found.spent < 8
    control = Planted(grid, {}, n_examples=30)
    found = annealed(task, controls=[control], n_bootstraps=0)
    assert found.provenance["design"]["budget"] == n_examples + 30 + for_masks
    # What a comparison of two sets would have cost is left where there is no other set to compare with.
    assert 0.9 * for_masks < found.spent <= n_examples + 30 + for_masks


# What it says of its certainty


def test_claims_intervals_and_frequencies_fit_the_truth():
    drops = {Head(1, 1): 0.3, Head(4, 4): 0.2, Head(9, 9): 0.15}
    found = annealed(Planted(GRID, drops, noise=True), budget=6000, k=3)
    assert set(found.claims) == set(drops)
    for head, drop in drops.items():
        low, high = found.interval[head.layer, head.head]
        assert low < found.importance[head.layer, head.head] < high
        assert low - 0.05 < drop < high + 0.05
        assert found.frequency[head.layer, head.head] >= 0.9
    assert np.isfinite(found.interval[..., 0]).sum() == 20
    assert found.frequency.sum() == pytest.approx(3)


def test_heads_that_help_when_they_are_off_are_reported_the_most_harmful_first():
    """Without noise all of them, of no other head."""
    grid = Grid(4, 6)
    costs = signed_costs(grid.size, seed=3)
    found = annealed(Additive(grid, costs), budget=4000, k=3)
    helpful = np.flatnonzero(costs < 0)
    assert [grid.index(head) for head in found.interfering] == sorted(helpful, key=lambda index: costs[index])
    assert not {*found.interfering} & {*found.top()}
    assert all(found.importance[head.layer, head.head] < 0 for head in found.interfering)


@pytest.mark.parametrize(("budget", "per_row"), [(548, 8), (9000, 100)])
def test_few_rows_in_the_last_phase_give_no_intervals_and_no_claims(budget, per_row):
    found = annealed(world("no_structure").task, budget=budget, examples_per_mask=per_row, n_bootstraps=0)
    assert found.claims == ()
    assert not np.isfinite(found.interval).any()
    assert any(note.startswith("no intervals and no claims: the last phase has ") for note in found.notes)


@pytest.mark.parametrize(
    ("baseline", "chance", "said"),
    [
        (0.19, 0.0, "answers 19 of 100 examples right, fewer than 20"),
        (0.52, 0.5, r"scores 0\.520 on 100 examples, no better than chance \(0\.500\)"),
    ],
)
def test_a_baseline_too_low_ends_the_search_after_the_intact_run(baseline, chance, said):
    task = Counting(Planted(GRID, {Head(0, 0): 0.1}, baseline=baseline), chance=chance)
    with pytest.raises(BaselineTooLowError, match=said):
        annealed(task)
    assert task.asked == 100


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"budget": 500},
            r"budget must be 548 or more example-evaluations \(14 batches of 4 rows, after the intact run\), got 500",
        ),
        ({"k": 0}, r"k must be an integer in 1\.\.128, half of the 256 heads of the grid, .*; got 0"),
        ({"examples_per_mask": 0}, "examples_per_mask must be an integer of 1 or more, got 0"),
        ({"n_batches": 3}, "n_batches must be an integer of 4 or more, got 3"),
        ({"n_bootstraps": -1}, "n_bootstraps must be an integer of 0 or more, got -1"),
        ({"controls": ["x"]}, "controls must be experiments on other tasks, got 'x'"),
        ({"controls": [Planted(Grid(2, 2), {})]}, "controls must have the grid of the experiment, .*16.*, got .*2"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_measured(wrong, message):
    task = Counting(Planted(GRID, {Head(0, 0): 0.3}))
    with pytest.raises(ValueError, match=message):
        annealed(task, **wrong)
    assert task.asked == 0
