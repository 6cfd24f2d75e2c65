"""The same study on several models: indices by hand, depths that sum to one, studies read from a folder."""

import json
from itertools import pairwise

import numpy as np
import pytest

from cs_heads.analysis.drops import Column
from cs_heads.analysis.proof import prove
from cs_heads.analysis.scale import Study, scale_study
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.heads import Head, HeadGrid
from cs_heads.ranking import HeadRanking
from tests.methods.planted import Planted

GRID = HeadGrid(8, 4)
DROPS = {Head(1, 0): 0.4, Head(6, 3): 0.2}


def ranking(drops=DROPS, **more):
    importance = np.zeros(GRID.shape)
    for head, drop in drops.items():
        importance[head.layer, head.head] = drop
    return HeadRanking("css", importance, spent=10, **more)


def test_the_index_is_the_relative_drop_beyond_random_heads():
    experiment = Planted(GRID, DROPS)
    proof = prove(experiment, list(DROPS))
    curve = measure_sparsity([Column("own", "own", (experiment,))], list(DROPS))
    (model,) = scale_study({"small": Study(ranking(), proof, curve)}).models
    assert model.localisation == pytest.approx((proof.drop - proof.random_drop) / proof.result.baseline)
    assert model.interval[0] < model.localisation < model.interval[1]
    assert (model.half, model.n_ablated, model.verdict) == (2, 2, "localized")


def test_depth_is_weighted_by_importance():
    (model,) = scale_study({"small": ranking()}).models
    weights = np.array([2 / 3, 1 / 3])
    depths = np.array([1.5, 6.5]) / 8
    assert model.mean_depth == pytest.approx(weights @ depths)
    assert model.spread == pytest.approx(np.sqrt(weights @ (depths - weights @ depths) ** 2))
    assert model.effective == pytest.approx(0.6**2 / (0.16 + 0.04))
    assert model.profile.sum() == pytest.approx(1)
    assert model.localisation is None


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


def test_heads_that_interfere_or_are_universal_have_no_part_in_the_profile():
    with_others = ranking({**DROPS, Head(0, 0): 5.0, Head(3, 0): -2.0}, universal=(Head(0, 0),))
    plain, other = scale_study({"plain": ranking(), "others": with_others}).models
    assert other.profile == pytest.approx(plain.profile)


def test_only_the_top_heads_count_where_asked():
    (model,) = scale_study({"small": ranking()}, k=1).models
    assert model.profile[1] == 1
    assert model.effective == 1


def test_a_folder_is_read_as_the_command_line_writes_it(tmp_path):
    proof = prove(Planted(GRID, DROPS), list(DROPS))
    found = ranking(provenance={"task": {"name": "sums"}})
    found.save(tmp_path / "ranking.json")
    (tmp_path / "result.json").write_text(json.dumps({"confirm": proof.to_dict()}))
    by_folder, by_hand = (scale_study({"m": study}).to_frame() for study in (tmp_path, Study(found, proof)))
    assert by_folder.drop(columns=["heads for half"]).equals(by_hand.drop(columns=["heads for half"]))
    assert by_folder["task"].item() == "sums"


def test_the_result_is_json_with_one_row_a_model_and_part():
    found = scale_study({"a": ranking(), "b": ranking()})
    assert len(json.loads(json.dumps(found.to_dict()))["models"]) == 2
    assert len(found.profiles()) == 16
    assert found.profiles(4).groupby("model")["share"].sum().tolist() == pytest.approx([1, 1])


def test_what_is_no_study_is_refused(tmp_path):
    for studies, more, message in (
        ({}, {}, "studies must hold one study or more"),
        ({"a": tmp_path}, {}, "holds no ranking.json"),
        ({"a": ranking({Head(0, 0): -1.0})}, {}, "study 'a' has no head of positive importance"),
        ({"a": ranking()}, {"k": 33}, r"k must be in 1\.\.32, the heads of 'a'; got 33"),
    ):
        with pytest.raises(ValueError, match=message):
            scale_study(studies, **more)
