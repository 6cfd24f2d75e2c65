"""What fitted gates say: counts by hand, groups of heads, heads toggled, contrasts on what was held out."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

from cs_heads.analysis.contrasts import HeldOutContrasts, held_out_contrasts
from cs_heads.analysis.gating import score_distribution, score_of_heads, seed_agreement, taxonomy, toggle_curves
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.gating import HeadGates
from cs_heads.record import json_text
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.known_heads import WORKING, own_answers

GRID = Grid(3, 4)
HARMFUL = Head(1, 1)


def gates_of(plus, minus) -> HeadGates:
    plus, minus = np.asarray(plus, dtype=float), np.asarray(minus, dtype=float)
    points = np.stack([plus, plus, minus])[:, :, None]
    return HeadGates(plus, plus, minus, np.zeros((3, len(plus), 1)), points, np.zeros(1, dtype=int), Cost(0))


def made_gates(n_seeds: int = 2) -> HeadGates:
    """Gates as they come out for the known model, with one head that would interfere."""
    rng = np.random.default_rng(0)
    minus = rng.uniform(0, 0.1, (n_seeds, *GRID.shape))
    plus = rng.uniform(0.9, 1, (n_seeds, *GRID.shape))
    for rank, head in enumerate(WORKING):
        minus[:, head.layer, head.head] = 0.95 - 0.05 * rank
    plus[:, HARMFUL.layer, HARMFUL.head] = 0.03
    return gates_of(plus, minus)


def test_the_distribution_counts_every_head_of_every_seed():
    reached = score_distribution(made_gates(), bins=10)
    assert reached.iloc[-1].tolist() == [1, 1, 1]
    assert reached["facilitation"].iloc[[0, 1, 8]].tolist() == pytest.approx([0, 10 / 12, 10 / 12])
    assert reached["interference"].iloc[9] == pytest.approx(11 / 12)
    assert reached.index.tolist() == pytest.approx(np.arange(11) / 10)


def test_the_test_of_a_group_is_welchs():
    gates = made_gates()
    found = score_of_heads(gates, ["L0H1", "L2H3"])
    assert score_of_heads(gates, WORKING, by="irrelevance").p > 0.9
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


def test_a_score_over_what_is_no_choice_is_refused():
    with pytest.raises(ValueError, match="over must be one of mean, any, got 'always'"):
        score_of_heads.__wrapped__(made_gates(), WORKING, over="always")


@pytest.fixture(scope="module")
def experiment(load_known):
    return Experiment(load_known(), Task.from_records(own_answers(load_known(), 25)))


def test_heads_are_counted_in_every_seed_in_any_and_on_average():
    # Facilitation by seed: head 0 in both, head 1 in one, the others in none; head 2 interferes in one.
    plus = [[[1, 1, 0, 1]], [[1, 1, 1, 1]]]
    minus = [[[1, 1, 0, 0]], [[1, 0, 0, 0]]]
    found = taxonomy({"task": gates_of(plus, minus)})
    frame = found.set_index("heads").loc[["always", "mean", "any"]]
    assert frame["facilitation"].tolist() == [0.25, 0.375, 0.5]
    assert frame["interference"].tolist() == [0, 0.125, 0.25]
    assert frame["irrelevance"].tolist() == [0.25, 0.5, 0.75]
    assert frame["active"].tolist() == pytest.approx([np.nan, np.nan, 0.75], nan_ok=True)
    assert found[["fit", "model", "seeds", "heads"]].to_numpy().tolist()[0] == ["task", None, 2, "mean"]


def test_seeds_that_agree_have_their_heads_in_common():
    same = gates_of(np.ones((2, 1, 4)), [[[1, 0, 0, 1]]] * 2)
    apart = gates_of(np.ones((2, 1, 4)), [[[1, 0, 0, 0]], [[0, 1, 0, 0]]])
    assert seed_agreement(same).set_index("score").loc["facilitation"].tolist() == [pytest.approx(1), 1]
    assert seed_agreement(apart).set_index("score").loc["facilitation", "in common"] == 0
    assert seed_agreement(apart).set_index("score").loc["interference"].isna().all()


def test_a_head_that_facilitates_in_one_seed_alone_counts_by_its_largest_score():
    minus = np.random.default_rng(0).uniform(0, 0.1, (2, 3, 4))
    minus[:, [0, 2], [1, 3]] = [[1.0, 0.0], [0.2, 0.9]]
    gates = gates_of(np.ones((2, 3, 4)), minus)
    assert score_of_heads(gates, WORKING).inside == pytest.approx((0.6 + 0.45) / 2)
    assert score_of_heads(gates, WORKING, over="any").inside == pytest.approx(0.95)


def test_heads_are_toggled_with_all_others_at_their_gates(experiment):
    gates = made_gates()
    facilitation, irrelevance, _ = toggle_curves(experiment, gates, max_heads=3, n_points=3)
    order = np.argsort(-gates.minus[1].ravel(), kind="stable")
    for point, n in enumerate((1, 2, 3)):
        rows = []
        for value in (0.0, 1.0):
            toggled = gates.plus[1].ravel().copy()
            toggled[order[:n]] = value
            rows.append(toggled.reshape(3, 4))
        off, on = experiment.logprob(np.stack(rows)).mean(axis=1)
        assert facilitation.difference[1, point] == pytest.approx(off - on, abs=1e-6)
    assert facilitation.difference[:, 1].max() < -1
    assert np.abs(irrelevance.difference).max() < 1e-4
    assert facilitation.spent == 2 * 2 * 3 * 25
    assert facilitation.to_frame()["n_heads"].tolist() == [1, 2, 3]


def formats(model, second_names=("a", "b")):
    """Two formats of two tasks: the same words asked for, after the prompt and after the prompt said twice."""
    made = {"once": {}, "twice": {}}
    for seed, (name, second) in enumerate(zip(("a", "b"), second_names, strict=True)):
        records = own_answers(model, 90, seed)
        again = [{**r, "prompt": f"{r['prompt']} . {r['prompt']}"} for r in records]
        made["once"][name] = Task.from_records(records, name).split(50)[0]
        made["twice"][second] = Task.from_records(again, second).split(50)[0]
    return made


def test_what_was_held_out_is_measured_under_the_gates_fitted_to_the_others(load_known):
    model = load_known()
    tasks = formats(model)
    found = held_out_contrasts(model, tasks, held_out=["b"], n=25, steps=20, batch_size=4)
    assert set(found.gates) == {("b", "once"), ("b", "twice")}
    assert len(found.scores) == 4
    for score in found.scores:
        unseen = Experiment(model, tasks[score.measured]["b"].held_out.take(25))
        gated = unseen(found.gates["b", score.retained][None])
        assert score.score == pytest.approx(gated.mean())
        assert score.baseline == unseen.baseline().mean()
    assert found.to_frame()["kept"].tolist() == [True, False, False, True]
    named = replace(found, gates={("b c", "d"): found.gates["b", "once"], ("b", "c d"): found.gates["b", "twice"]})
    again = HeldOutContrasts.from_dict(json.loads(json_text(named)))
    assert again == named
    assert again.gates.keys() == named.gates.keys()
