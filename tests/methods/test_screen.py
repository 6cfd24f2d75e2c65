"""The screen of all heads by gradients, on planted worlds that have them and on models."""

import sqlite3
from contextlib import closing
from itertools import product

import numpy as np
import pytest
from scipy.special import expit

from cs_heads import Experiment, find_heads
from cs_heads.experiment.protocol import GradientExperiment, check_examples
from cs_heads.methods.annealing import annealed, annealed_jointly
from cs_heads.methods.annealing.gradient_screen import RowSlopes, Screening
from cs_heads.methods.annealing.intervals import universal_of
from cs_heads.methods.losses import TaskLoss
from cs_heads.simulate import PlantedExperiment, planted_world
from cs_heads.tasks import Task
from cs_heads.tasks.scorer import ExactMatch
from cs_heads.units import Grid
from tests.known_heads import WORKING, own_answers, rows_run

GRID = Grid(16, 16)


class Sloped(PlantedExperiment, GradientExperiment):
    """A planted experiment with the slopes of its probabilities, noise left out."""

    has_gradients = True

    @classmethod
    def of(cls, made, seed=0):
        return cls(
            made.grid, made.margins, made.damage, groups=made.groups, chance=made.chance, noise=made.noise, seed=seed
        )

    def probability_gradients(self, gates, examples, *, keep):
        assert keep
        examples = check_examples(self.n_examples, len(gates), examples)
        shut = 1 - gates.reshape(len(gates), -1)
        slopes = np.zeros(shut.shape)
        for row, some in enumerate(examples):
            damage = self.damage[:, some].copy()
            margin = self.margins[some] - shut[row] @ damage
            for heads, together in self.groups:
                margin -= np.prod(shut[row, list(heads)]) * together[some]
                for head in heads:
                    others = [other for other in heads if other != head]
                    damage[head] += np.prod(shut[row, others]) * together[some]
            p = expit(margin)
            slopes[row] = (damage * p * (1 - p)).mean(axis=1)
        self.spent += 2 * examples.size
        return slopes.reshape(gates.shape).astype(np.float32)


def sloped(name, seed, n_controls=1):
    made = planted_world(name, GRID, n_controls=n_controls, seed=seed)
    return made, Sloped.of(made.task), [Sloped.of(control, seed=1 + i) for i, control in enumerate(made.controls)]


def recall(made, found):
    return len({*made.planted} & {*found.top(len(made.planted))}) / len(made.planted)


@pytest.mark.parametrize(
    ("name", "n_worlds"), [("main", 1), *(pytest.param(name, 3, marks=pytest.mark.slow) for name in ("main", "noisy"))]
)
def test_planted_heads_are_found_as_often_for_the_same_budget(name, n_worlds):
    """The universal heads are not ranked, by either screen."""
    by = {"gradients": [], "masks": []}
    for seed, screen in product(range(n_worlds), by):
        made, task, controls = sloped(name, seed)
        found = annealed(task, controls=controls, screen=screen, budget=4000, seed=seed, n_bootstraps=0)
        by[screen].append(recall(made, found))
        assert not {*made.universal} & {*found.top()}
    assert np.mean(by["gradients"]) >= np.mean(by["masks"]) - 0.1


def test_a_pair_of_redundant_heads_is_seen_where_both_are_in_the_masks():
    """At the intact model itself neither has a slope."""
    rng = np.random.default_rng(0)
    margins, damage = np.full(100, 1.0), np.zeros((GRID.size, 100))
    made = Sloped(GRID, margins, damage, groups=[((40, 200), np.full(100, 4.0))])
    at_intact = made.probability_gradients(np.ones((1, 16, 16), np.float32), np.arange(8)[None], keep="x")
    assert not at_intact.any()
    task = TaskLoss.of(made)
    effect = RowSlopes.of(task, 200, 8, rng).fit().effect
    assert {*np.argsort(-effect)[:2]} == {40, 200}


def test_over_a_mask_the_gradients_sum_up_to_what_it_takes():
    """Each row is at a random place of the way to the mask: the mean over ways is the loss (completeness)."""
    rng = np.random.default_rng(0)
    margins, damage = 1 + rng.random(50), np.abs(rng.standard_normal((GRID.size, 50))) / 20
    made = Sloped(GRID, margins, damage)
    task = TaskLoss.of(made)
    found = RowSlopes.of(task, 1500, 8, rng)
    level = made.respond(GRID.mask([])[None])[0].mean()
    summed = (found.taken * found.inside).sum(axis=1).mean()
    masks = found.inside[:400].reshape(-1, *GRID.shape)
    lost = 1 - made.respond(masks).mean() / level
    assert summed == pytest.approx(lost, rel=0.03)


def test_of_several_tasks_each_has_its_heads():
    """After gradients, by default at any budget; by masks where one task has none."""
    made, task, controls = sloped("main", 0)
    joint = annealed_jointly([task, *controls], seed=0, n_bootstraps=0)
    assert joint.control_weight == 1.5
    assert recall(made, joint.rankings[0]) >= 0.6
    for ranking in joint.rankings:
        # The finalists of a task go off beside those of one other task alone, whose rows tell of them too.
        assert np.isfinite(ranking.interval).all(axis=-1).sum() >= 20
    assert joint.rankings[0].provenance["design"]["screen"] == {"rows": 64, "control_rows": 10, "per_row": 2}
    without = PlantedExperiment(GRID, controls[0].margins, controls[0].damage)
    masks = annealed_jointly([task, without], seed=0, n_bootstraps=0)
    assert masks.rankings[0].provenance["design"]["screen"] is None
    assert masks.control_weight == 3.0
    assert joint.spent == pytest.approx(masks.spent, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_universal_heads_are_those_that_are_planted(seed):
    """Gradients, and rows with others off, say of them less than they take: rows with each off alone tell."""
    made, task, controls = sloped("many_universal", seed, n_controls=7)
    tasks = [task, *controls]
    joint = annealed_jointly(tasks, seed=seed, n_bootstraps=0, screen="gradients")
    losses, errors = (each.reshape(len(tasks), -1) for each in (joint.losses, joint.errors))
    found = {GRID.unit(int(head)) for head in universal_of(losses, errors)}
    assert found == {*made.universal}


def test_a_budget_says_how_many_rows_there_are():
    assert Screening.of(3_000, 8, 8) == Screening(64, 10, 2)
    tight = Screening.of(1_600, 8, 8)
    assert 24 <= tight.rows < 64
    assert 4 <= tight.control_rows < 10
    assert tight.cost(8) <= 0.3 * 1_600
    assert Screening.of(600, 8, 8) is None
    assert Screening.of(None, 0, 1).per_row == 1


def test_backward_passes_of_several_tasks_are_told_apart(monkeypatch):
    """One for each example of a row of gradients."""
    _, task, controls = sloped("main", 0)
    measure, run = Sloped.probability_gradients, []

    def counted(self, gates, examples, **given):
        run.append(examples.size)
        return measure(self, gates, examples, **given)

    monkeypatch.setattr(Sloped, "probability_gradients", counted)
    found = annealed_jointly([task, *controls], screen="gradients", budget=4000, n_bootstraps=0).rankings[0]
    assert found.backwards == sum(run) > 0


@pytest.mark.parametrize(("budget", "by_gradients"), [(5_000, True), (6_000, False), (None, False)])
def test_by_default_gradients_screen_where_the_budget_is_small(budget, by_gradients):
    """Below two thirds of the usual 8,000."""
    _, task, controls = sloped("one_head", 0)
    found = annealed(task, controls=controls, budget=budget, n_bootstraps=0)
    assert (found.backwards > 0) == by_gradients
    small = Sloped.of(planted_world("one_head", Grid(12, 12), seed=0).task)
    assert not annealed(small, budget=1_000, n_bootstraps=0).backwards


def test_a_head_without_which_the_task_gains_much_is_reported():
    rng = np.random.default_rng(0)
    damage = np.abs(rng.standard_normal((GRID.size, 100))) / 50
    damage[7], damage[30] = -3.0, 2.0
    found = annealed(
        Sloped(GRID, rng.standard_normal(100) + 0.3, damage), k=1, seed=0, screen="gradients", n_bootstraps=0
    )
    assert found.top(1) == [GRID.unit(30)]
    assert found.interfering == (GRID.unit(7),)
    assert found.importance[0, 7] < 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"screen": "slopes"}, "screen must be one of auto, gradients, masks, got 'slopes'"),
        ({"screen": "gradients"}, "which has no gradients .*; got 'gradients'"),
    ],
)
def test_a_wrong_screen_is_refused_before_anything_runs(given, said):
    made = planted_world("one_head", GRID, seed=0)
    with pytest.raises(ValueError, match=said):
        annealed(made.task, **given)
    assert made.task.spent == 0


# On models


def losing(model, task, head, positions):
    """Whether each example turns wrong with one head off at these positions."""
    experiment = Experiment(model, task, positions=positions)
    return experiment(experiment.grid.mask([head])[None])[0] == 0


@pytest.mark.slow
def test_a_head_that_acts_early_alone_is_found_by_either_screen(model):
    """Off at the last position it takes nothing; a search there cannot find it."""
    early = WORKING[0]
    records = own_answers(model, 1500)
    everything = Task.from_records(records, "own answers")
    only = losing(model, everything, early, "all") & ~losing(model, everything, early, "last")
    task = Task.from_records([record for record, kept in zip(records, only, strict=True) if kept], "early").split(80)[0]
    given = {"controls": None, "k": 1, "budget": 2000, "progress": False}
    for screen in ("gradients", "masks"):
        found = find_heads(model, task, screen=screen, **given)
        assert found.top(1) == [early]
        assert found.importance[early.layer, early.head] > 0.5
    blind = find_heads(model, task, screen="masks", positions="last", **given)
    assert blind.importance[early.layer, early.head] == pytest.approx(0, abs=0.05)


def test_a_text_that_a_scorer_judges_other_ablations_and_workers_have_no_gradients(model, task):
    assert Experiment(model, task).has_gradients
    assert not Experiment(model, task, ablation="mean").has_gradients
    judged = Task.from_records(own_answers(model, 20), scorer=ExactMatch(), max_new_tokens=3)
    assert not Experiment(model, judged).has_gradients
    with pytest.raises(ValueError, match="'own answers', which has no gradients"):
        find_heads(model, task, controls=None, k=2, screen="gradients", ablation="mean", budget=2000, progress=False)


def test_a_store_has_the_gradients_of_an_interrupted_search(model, task, tmp_path):
    given = {"controls": None, "k": 2, "budget": 900, "screen": "gradients", "progress": False, "n_bootstraps": 0}
    fresh = find_heads(model, task, **given)
    first = find_heads(model, task, store=tmp_path / "run.sqlite", **given)
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as store:
        assert store.execute("SELECT count(*) FROM progress WHERE identity LIKE 'screen/%'").fetchone() == (1,)
    with rows_run(model) as rows:
        second = find_heads(model, task, store=tmp_path / "run.sqlite", **given)
    assert sum(rows) <= 50  # what the abilities of the model are tried with
    assert (fresh.importance == first.importance).all()
    assert (second.importance == first.importance).all()
    assert second.spent == first.spent
