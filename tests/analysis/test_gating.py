import json

import numpy as np
import pytest
from scipy.stats import t as student

from cs_heads.analysis.gating import score_distribution, score_of_heads
from cs_heads.experiment.cost import Cost
from cs_heads.methods.gating import HeadGates
from cs_heads.units import Head, HeadGrid
from tests.known_heads import WORKING

GRID = HeadGrid(3, 4)
HARMFUL = Head(1, 1)


def made_gates(n_seeds: int = 2) -> HeadGates:
    """Gates as they come out for the known model, with one head that would interfere."""
    rng = np.random.default_rng(0)
    minus = rng.uniform(0, 0.1, (n_seeds, *GRID.shape))
    plus = rng.uniform(0.9, 1, (n_seeds, *GRID.shape))
    for rank, head in enumerate(WORKING):
        minus[:, head.layer, head.head] = 0.95 - 0.05 * rank
    plus[:, HARMFUL.layer, HARMFUL.head] = 0.03
    trajectory = np.stack([plus, plus, minus])[:, :, None]
    return HeadGates(plus, plus, minus, np.zeros((3, n_seeds, 1)), trajectory, np.zeros(1, dtype=int), Cost(0))


def test_the_distribution_counts_every_head_of_every_seed():
    reached = score_distribution(made_gates(), bins=10)
    assert reached.iloc[-1].tolist() == [1, 1, 1]
    assert reached["facilitation"].iloc[[0, 1, 8]].tolist() == pytest.approx([0, 10 / 12, 10 / 12])
    assert reached["interference"].iloc[9] == pytest.approx(11 / 12)
    assert reached.index.tolist() == pytest.approx(np.arange(11) / 10)


def test_the_test_of_a_group_is_welchs():
    gates = made_gates()
    found = score_of_heads(gates, ["L0H1", "L2H3"])
    score = gates.minus.mean(axis=0)
    inside = GRID.mask(WORKING)
    a, b = score[inside], score[~inside]
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    t = (a.mean() - b.mean()) / np.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    assert (found.t, found.p) == (pytest.approx(t), pytest.approx(student.sf(t, freedom)))
    assert (len(found.scores), len(found.others)) == (2, 10)
    assert found.p < 0.05
    assert str(found).startswith("facilitation 0.925 in 2 heads, 0.0")
    assert found.heads == WORKING
    assert (found.scores.tolist(), found.others.tolist()) == (a.tolist(), b.tolist())
    [row] = found.to_frame().to_dict("records")
    assert (row["t"], row["inside"], row["over"]) == (found.t, found.inside, "mean")
    assert json.loads(json.dumps(found.to_dict()))["heads"] == ["L0H1", "L2H3"]


def test_another_score_can_be_held_against_the_heads():
    assert score_of_heads(made_gates(), WORKING, by="irrelevance").p > 0.9


@pytest.mark.parametrize("heads", [["L0H1"], [f"L{layer}H{head}" for layer in range(3) for head in range(4)][:11]])
def test_a_group_of_one_head_is_refused(heads):
    with pytest.raises(ValueError, match=rf"heads must be 2\.\.10 of the 12 of the grid, got {len(heads)}"):
        score_of_heads(made_gates(), heads)
