"""The same study on several models: indices by hand, depths that sum to one, studies read from a folder."""

import json
from itertools import pairwise

import numpy as np
import pytest

from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import Confirmation, prove
from cs_heads.analysis.losses import task_drop
from cs_heads.analysis.random_comparison import RandomComparison
from cs_heads.analysis.scale_study import Study, scale_study
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(8, 4)
DROPS = {Head(1, 0): 0.4, Head(6, 3): 0.2}


def ranking(drops=DROPS, **more):
    importance = np.zeros(GRID.shape)
    for head, drop in drops.items():
        importance[head.layer, head.head] = drop
    return HeadRanking("css", importance, spent=10, **more)


@pytest.fixture(scope="module")
def study():
    experiment = Planted(GRID, DROPS)
    curve = measure_sparsity([Column("own", "own", (experiment,))], list(DROPS))
    return Study(ranking(provenance={"task": {"name": "sums"}}), prove(experiment, list(DROPS)), curve)


def test_the_index_is_the_loss_beyond_random_heads(study):
    (model,), proof = scale_study({"small": study}).models, study.proof
    assert model.localization == pytest.approx((proof.drop - proof.random.drop) / proof.result.baseline)
    assert model.interval[0] < model.localization < model.interval[1]
    assert (model.half, model.localized) == (2, True)


def proof_of(right: int, left: int, *, n: int = 100, chance: float = 0.25, random=(0.0, 0.0)) -> Confirmation:
    """A proof on n examples, of which so many are right without and with the heads off."""
    intact, off = (np.arange(n) < count for count in (right, left))
    drop = task_drop("choice", chance, [(intact.astype(float), off.astype(float))])
    beside = RandomComparison(random, float(np.mean(random)), 0, 0.001, 0.001)
    return Confirmation(heads=(Head(1, 0),), result=drop, random=beside, verdict="localized", reasons=(), controls=())


def index_of(proof):
    (model,) = scale_study({"m": Study(ranking(), proof)}).models
    return model.localization, model.interval


def test_what_falls_below_chance_counts_as_all_and_what_random_heads_gain_as_nothing():
    index, (low, high) = index_of(proof_of(80, 10, chance=0.5, random=(-0.1, -0.1)))
    assert index == 1
    assert low < 1 < high


def test_the_interval_of_the_index_knows_that_baseline_and_random_heads_are_samples():
    proof = proof_of(90, 40)
    index, (low, high) = index_of(proof)
    assert (low, high) == pytest.approx(proof.result.loss_interval)
    _, (wider_low, wider_high) = index_of(proof_of(90, 40, random=(-0.02, 0.02)))
    # By hand: Student's half-width for two sets is 12.706 standard errors of their mean.
    apart = 12.7062 * 0.02 / 0.65
    assert index - wider_low == pytest.approx(np.hypot(index - low, apart), rel=1e-4)
    assert wider_high - index == pytest.approx(np.hypot(high - index, apart), rel=1e-4)


def test_depth_is_weighted_by_importance():
    (model,) = scale_study({"small": ranking()}).models
    weights = np.array([2 / 3, 1 / 3])
    depths = np.array([1.5, 6.5]) / 8
    assert model.mean_depth == pytest.approx(weights @ depths)
    assert model.spread == pytest.approx(np.sqrt(weights @ (depths - weights @ depths) ** 2))
    assert model.effective == pytest.approx(0.6**2 / (0.16 + 0.04))
    assert model.profile.sum() == pytest.approx(1)
    assert np.isnan(model.localization)


@pytest.mark.parametrize("bins", [1, 3, 8, 16])
def test_profiles_of_models_of_unlike_depth_fit_the_same_parts(bins):
    (model,) = scale_study({"small": ranking()}).models
    shares = model.shares(bins)
    assert shares.sum() == pytest.approx(1)
    # By hand: what of each layer's stretch of depth lies in each part.
    edges = np.linspace(0, 1, bins + 1)
    expected = [
        sum(p * max(0, min(high, (i + 1) / 8) - max(low, i / 8)) * 8 for i, p in enumerate(model.profile))
        for low, high in pairwise(edges)
    ]
    assert shares == pytest.approx(np.array(expected))


def test_a_folder_is_read_as_the_command_line_writes_it(study, tmp_path):
    study.ranking.save(tmp_path / "ranking.json")
    record = {"confirm": study.proof.to_dict()}
    (tmp_path / "result.json").write_text(json.dumps(record))
    (tmp_path / "curve.json").write_text(json.dumps(study.curve.to_dict()))
    by_folder, by_hand = (scale_study({"m": each}).to_frame() for each in (tmp_path, study))
    assert by_folder.equals(by_hand)
    assert by_folder["task"].item() == "sums"
    assert by_folder["heads for half"].item() == 2
    # Without a curve, and with a broken proof.
    (tmp_path / "curve.json").unlink()
    found = scale_study({"m": tmp_path})
    assert (found.models[0].half, found.to_frame()["ablated"].item()) == (None, 2)
    record["confirm"]["result"]["baseline"] = 7
    (tmp_path / "result.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"result\.json': result: baseline must be a number in 0\.\.1, got 7"):
        scale_study({"m": tmp_path})


def test_the_result_is_json_with_one_row_a_model_and_part():
    found = scale_study({"a": ranking(provenance={"seed": 3}), "b": ranking()})
    assert found.to_dict()["provenance"] == {"a": {"seed": 3}, "b": {}}
    assert len(json.loads(json.dumps(found.to_dict()))["models"]) == 2
    assert len(found.profiles()) == 16
    assert found.profiles().groupby("model")["share"].sum().tolist() == pytest.approx([1, 1])
