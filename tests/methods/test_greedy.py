from importlib import import_module

import numpy as np
import pytest

from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.greedy import greedy
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(3, 4)
DROPS = {Head(1, 2): 0.25, Head(2, 3): 0.15, Head(0, 1): 0.10}


class Table(ExperimentLike):
    """Every set of heads has a score of its own, drawn by lot: nothing adds up."""

    def __init__(self, grid: Grid, n_examples: int = 40, seed: int = 0) -> None:
        self.grid, self.n_examples, self.seed, self.spent = grid, n_examples, seed, 0

    def __call__(self, masks, examples=None):
        chosen = np.tile(np.arange(self.n_examples), (len(masks), 1)) if examples is None else examples
        self.spent += chosen.size
        return np.stack([self.of(mask)[row] for mask, row in zip(masks, chosen, strict=True)])

    def of(self, mask) -> np.ndarray:
        rng = np.random.default_rng([self.seed, *np.packbits(mask)])
        level = rng.uniform(0.9, 1.0) - 0.15 * mask.sum()
        return (rng.random(self.n_examples) < level).astype(float)


def brute_force(table: Table, k: int) -> list[Head]:
    """The greedy path by looking up every set of the next size, in plain Python."""
    chosen: list[Head] = []
    alone = {head: table.of(GRID.mask([])).mean() - table.of(GRID.mask([head])).mean() for head in GRID}
    for _ in range(k):
        left = [head for head in GRID if head not in chosen]
        scores = {head: table.of(GRID.mask([*chosen, head])).mean() for head in left}
        if min(scores.values()) >= table.of(GRID.mask(chosen)).mean():
            break
        chosen.append(min(left, key=lambda head: (round(scores[head], 9), -alone[head], GRID.index(head))))
    return chosen


def test_greedy_walks_the_path_of_brute_force():
    for seed in range(8):
        table = Table(GRID, seed=seed)
        path = brute_force(table, 4)
        assert greedy(table, k=4).top(len(path)) == path


def test_heads_that_tie_come_in_the_order_in_which_they_were_chosen():
    for n in range(5, 30):
        task = Planted(GRID, {}, n_examples=n, groups={(Head(0, 3),): 0.2, (Head(1, 3),): 0.2})
        ranking = greedy(task, k=1)
        assert [each["head"] for each in ranking.provenance["chosen"]] == [*map(str, ranking)]


def test_the_importance_of_a_chosen_head_is_what_the_search_gained_from_its_round_on():
    ranking = greedy(Planted(GRID, DROPS), k=3)
    assert ranking.top() == [*DROPS], "as many as it was asked for"
    found = [ranking.importance[head.layer, head.head] for head in DROPS]
    assert found == pytest.approx([0.50, 0.25, 0.10], abs=1e-5)
    assert ranking.provenance["chosen"] == [
        {"head": "L1H2", "score": pytest.approx(0.65)},
        {"head": "L2H3", "score": pytest.approx(0.50)},
        {"head": "L0H1", "score": pytest.approx(0.40)},
    ]


def test_greedy_finds_the_second_of_a_redundant_pair_and_one_shot_does_not():
    class Pair(Planted):
        """The score falls only when both heads of the pair are off."""

        def __call__(self, masks, examples=None):
            both = masks[:, 0, 0] & masks[:, 0, 1]
            return super().__call__(masks & ~both[:, None, None], examples) * ~both[:, None]

    experiment = Pair(GRID, {Head(0, 0): 0.2})
    assert set(greedy(experiment, k=2).top(2)) == {Head(0, 0), Head(0, 1)}
    assert Head(0, 1) not in greedy(experiment, one_shot=True).top(1)


# Ties and stopping


def test_of_heads_that_tie_the_one_that_hurts_more_alone_comes_first_then_the_lower_index():
    """With L1H2 off the score is at its floor: all others tie at no further drop."""

    class Floor(Planted):
        def __call__(self, masks, examples=None):
            return super().__call__(masks, examples) * ~masks[:, 1, 2][:, None]

    experiment = Floor(GRID, {Head(1, 2): 0.5, Head(2, 1): 0.3, Head(0, 3): 0.2})
    ranking = greedy(experiment, k=4)
    # The intact model and 12 heads, then 11 on top of the one chosen.
    assert ranking.spent == experiment.spent == (1 + 12 + 11) * 100
    assert ranking.top(5) == [Head(1, 2), Head(2, 1), Head(0, 3), Head(0, 0), Head(0, 1)]
    assert ranking.notes == (
        "greedy stopped after 1 of 4 heads: no further head lowers the score; "
        "the others are ordered by their drop alone where they tie",
    )


# Cost, budget, seed


def test_the_interval_of_one_shot_is_that_of_a_mean_of_paired_differences():
    experiment = Planted(GRID, DROPS, noise=True)
    ranking = greedy(experiment, one_shot=True)
    lost = experiment(GRID.mask([])[None])[0] - experiment(GRID.mask(["L1H2"])[None])[0]
    half = 1.96 * np.sqrt(lost.var(ddof=1) / 100)
    assert ranking.interval[1, 2] == pytest.approx([lost.mean() - half, lost.mean() + half])
    assert greedy(experiment, k=2).interval is None


def test_a_sweep_in_parts_is_the_same_sweep(monkeypatch):
    whole = greedy(Table(GRID), k=3)
    table, rows = Table(GRID), []

    class Counted(Table):
        def __call__(self, masks, examples=None):
            rows.append(len(masks))
            return super().__call__(masks, examples)

    monkeypatch.setattr(import_module("cs_heads.methods.greedy"), "_MAX_ENTRIES", 5 * GRID.size)
    parted = greedy(Counted(GRID), k=3)
    assert parted.importance.tobytes() == whole.importance.tobytes()
    assert parted.spent == whole.spent == sum(rows) * table.n_examples
    assert max(rows) == 5


# The contrast with controls


def controls(**more):
    """Two other tasks: one needs L1H2, the first head of the task, the other L0H0."""
    return [Planted(GRID, {Head(1, 2): 0.9}, **more), Planted(GRID, {Head(0, 0): 0.9}, **more)]


def test_each_round_adds_the_head_that_gains_most_contrast_and_the_search_stops_where_none_does():
    alone = greedy(Planted(GRID, DROPS), one_shot=True, controls=controls()).importance
    assert [alone[1, 2], alone[2, 3], alone[0, 0]] == pytest.approx([0.25 / 0.9 - 0.5, 0.15 / 0.9, -0.5])
    ranking = greedy(Planted(GRID, DROPS), k=4, controls=controls())
    assert ranking.unit == "share of the score above chance, less that of the controls"
    assert ranking.provenance["chosen"] == [
        {"head": "L2H3", "contrast": pytest.approx(0.15 / 0.9)},
        {"head": "L0H1", "contrast": pytest.approx(0.25 / 0.9)},
    ]
    assert ranking.notes[-1].startswith(
        "greedy stopped after 2 of 4 heads: no further head lowers the score, beyond what the controls lose; "
    )


def test_what_task_and_control_lose_alike_is_no_contrast():
    """Shares that are no round numbers cancel exactly, and no head is taken for the rounding."""
    ranking = greedy(Planted(GRID, DROPS, baseline=0.87), k=3, controls=[Planted(GRID, {})], seed=1)
    alike = greedy(Planted(GRID, {Head(1, 2): 1.0}, baseline=0.87), k=3, controls=[Planted(GRID, {Head(1, 2): 1.0})])
    assert len(ranking.provenance["chosen"]) == 3
    assert alike.provenance["chosen"] == []
    assert not alike.importance.any()
