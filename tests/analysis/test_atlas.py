"""The head atlas: on a tiny model, and on atlases made by hand whose answers can be told."""

import json
from dataclasses import fields, replace
from importlib import import_module

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import prove
from cs_heads.analysis.drops import measure_drops
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.annealing import annealed_jointly
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task
from cs_heads.tasks.controls import family_of
from cs_heads.units import Grid, Head
from tests.known_heads import hopeless_records, own_answers, rows_run
from tests.methods.planted import Planted

NAMES = ("a", "b", "c")
SMALL = {"budget": 1500, "k": 1, "n": 20, "n_random": 1, "progress": False}


@pytest.fixture(scope="module")
def model():
    return cs.load_model("demo")


@pytest.fixture(scope="module")
def tiny(load_known):
    return load_known()


@pytest.fixture(scope="module")
def tiny_skills(tiny):
    records = own_answers(tiny, 135)
    return [Task.from_records(records[place::3], name).split(25)[0] for place, name in enumerate(NAMES)]


@pytest.fixture(scope="module")
def found(tiny, tiny_skills):
    return cs.atlas(tiny, tiny_skills, **SMALL)


# On a tiny model


def test_the_matrix_holds_what_the_heads_of_each_skill_take_from_each(found, tiny, tiny_skills):
    matrix = found.matrix()
    assert tuple(matrix.index) == tuple(matrix.columns) == NAMES
    # One cell by itself: the heads of b on the unseen examples of a.
    unseen = Experiment(tiny, tiny_skills[0].held_out.take(20), progress=False)
    off = np.stack([unseen.grid.mask([]), unseen.grid.mask(found.heads["b"])])
    intact, without = unseen(off).mean(axis=1)
    chance = tiny_skills[0].chance
    assert matrix.loc["b", "a"] == pytest.approx((intact - without) / (intact - chance))


def test_kin_alone_make_no_atlas(model):
    capitals, code = (cs.load_task(name, n=40) for name in ("demo/capitals", "demo/code"))
    kin = [capitals, replace(code, name="other/capitals", held_out=replace(code.held_out, name="other/capitals"))]
    message = "tasks must ask for two skills or more, got demo/capitals, other/capitals"
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        cs.atlas(model, kin, n=20, progress=False)
    assert rows == []


def test_tables_have_a_line_for_every_skill_and_head(found):
    frame, heads = found.to_frame(), found.heads_frame()
    assert frame["skill"].tolist() == list(NAMES)
    assert frame["own loss"].tolist() == pytest.approx(np.diag(found.matrix()).tolist())
    assert len(heads) == 3 * found.losses[0].size
    line = heads.iloc[7]
    head = Head.parse(line["head"])
    place = NAMES.index(line["skill"])
    assert line["loss"] == found.losses[place, head.layer, head.index]
    assert line["low"] == found.interval[place, head.layer, head.index, 0]
    assert set(heads["kind"]) <= {"universal", "shared", ""}
    assert "Atlas(3 skills: own loss" in repr(found)
    assert "universal heads: " in found._repr_html_()


def test_a_saved_atlas_comes_back_as_it_was(found, tmp_path):
    found.save(tmp_path / "atlas.json")
    again = Atlas.load(tmp_path / "atlas.json")
    assert again == found
    assert {each.name for each in fields(Atlas)} <= set(found.to_dict())
    for name in ("losses", "errors"):
        assert getattr(again, name).tobytes() == getattr(found, name).tobytes()
    assert again.heads == found.heads
    assert again.linkage().tobytes() == found.linkage().tobytes()
    assert again.to_frame().equals(found.to_frame())


def test_a_skill_that_the_model_cannot_do_is_left_out_with_the_reason(tiny, tiny_skills):
    hopeless = Task.from_records(hopeless_records(45), "hopeless").split(25)[0]
    left = cs.atlas(tiny, [*tiny_skills[:2], hopeless], **SMALL)
    assert left.skills == NAMES[:2]
    assert "fewer than 20" in left.left_out["hopeless"] or "no better than chance" in left.left_out["hopeless"]
    assert "hopeless is left out: " in left._repr_html_()
    assert len(left.losses) == 2


# By hand

GRID = Grid(4, 4)
EVERY, TWO, ONE, OTHER = Head(0, 0), Head(1, 1), Head(2, 2), Head(3, 3)


def by_hand(drops, kin=None, k=2, error=0.01):
    """An atlas of planted skills whose losses are the planted ones, with an error of all."""
    tasks = {name: Planted(GRID, planted, n_examples=50, baseline=1.0) for name, planted in drops.items()}
    losses = np.zeros((len(drops), *GRID.shape))
    for place, planted in enumerate(drops.values()):
        for head, drop in planted.items():
            losses[place, head.layer, head.index] = drop
    rankings = {name: HeadRanking("by hand", of, spent=0, z=of / error) for name, of in zip(drops, losses, strict=True)}
    heads = {name: tuple(ranking.top(k)) for name, ranking in rankings.items()}
    columns = [Column(name, "own", (task,)) for name, task in tasks.items()]
    return Atlas(
        rankings=rankings,
        losses=losses,
        errors=np.full(losses.shape, error),
        drops=measure_drops(columns, heads, {name: name for name in drops}),
        proofs={name: prove(task, heads[name], n_random=2, least=False) for name, task in tasks.items()},
        k=k,
        left_out={"hopeless": "why"},
        spent=7,
        kin={} if kin is None else kin,
    )


SKILLS = {
    "a": {EVERY: 0.5, TWO: 0.14, ONE: 0.2},
    "b": {EVERY: 0.4, TWO: 0.14},
    "c": {EVERY: 0.6, OTHER: 0.3},
    "d": {EVERY: 0.5, Head(3, 0): 0.4},
}


def test_heads_that_most_skills_need_are_universal():
    assert by_hand(SKILLS).universal == (EVERY,)
    # Three of four do, the fourth does not.
    assert by_hand({**SKILLS, "d": {Head(3, 0): 0.4}}).universal == (EVERY,)
    # One or two of four, however much they lose, are not most.
    assert by_hand({**SKILLS, "c": {OTHER: 0.6}, "d": {OTHER: 0.6}}).universal == ()


def test_kin_have_one_voice_in_what_most_skills_need():
    skills = {"a": {EVERY: 0.5}, "b": {EVERY: 0.4}, "c": {OTHER: 0.6}}
    assert by_hand(skills).universal == (EVERY,)
    assert by_hand(skills, kin={"a": ("b",), "b": ("a",)}).universal == ()


def test_intervals_of_what_heads_take_alone_are_wider_than_the_errors_among_others():
    atlas = by_hand(SKILLS, error=0.01)
    low, high = atlas.interval[0, EVERY.layer, EVERY.head]
    assert (low, high) == pytest.approx((0.5 - 1.96 * np.hypot(0.01, 0.3), 0.5 + 1.96 * np.hypot(0.01, 0.3)))


def test_shared_heads_are_of_two_skills_or_more_and_not_universal():
    """Of the first two heads of a skill, or with a loss of a tenth that is clear."""
    atlas = by_hand(SKILLS)
    assert (atlas.heads["a"], atlas.heads["b"]) == ((EVERY, ONE), (EVERY, TWO))
    assert atlas.shared == {TWO: ("a", "b")}
    more = by_hand({**SKILLS, "d": {EVERY: 0.5, Head(3, 0): 0.3, ONE: 0.12, OTHER: 0.09}})
    assert more.shared == {TWO: ("a", "b"), ONE: ("a", "d")}
    unclear = by_hand(SKILLS, error=0.04)
    assert unclear.shared == {}


def test_means_are_of_own_and_other_losses_between_nothing_and_all():
    atlas = by_hand({"a": {ONE: 0.8, TWO: 0.2}, "b": {OTHER: 0.5, EVERY: 0.1}, "c": {ONE: 0.4, Head(3, 0): 0.2}})
    matrix = atlas.matrix()
    assert np.diag(matrix) == pytest.approx([1.0, 0.6, 0.6], abs=0.011)
    assert (matrix.loc["a", "c"], matrix.loc["c", "a"]) == pytest.approx((0.4, 0.8), abs=0.011)
    own, others = atlas.means()
    assert own == pytest.approx(2.2 / 3, abs=0.011)
    assert others == pytest.approx((0.4 + 0.8) / 6, abs=0.011)


def test_kin_are_no_others():
    drops = {"a": {ONE: 0.8, TWO: 0.2}, "b": {OTHER: 0.5, EVERY: 0.1}, "c": {ONE: 0.4, Head(3, 0): 0.2}}
    atlas = by_hand(drops, kin={"a": ("c",), "c": ("a",)})
    assert atlas.kin == {"a": ("c",), "c": ("a",)}
    assert atlas.means()[1] == pytest.approx(0.0, abs=0.011)
    frame = atlas.to_frame().set_index("skill")
    assert frame.loc["a", "loses most"] is None
    assert frame.loc["a", "others' mean loss"] == pytest.approx(0.0, abs=0.011)
    assert by_hand(drops).to_frame().set_index("skill").loc["a", "loses most"] == "c"


def test_skills_of_the_same_heads_are_near_in_the_tree_and_others_far():
    drops = {
        "a": {ONE: 0.5, TWO: 0.3},
        "b": {ONE: 0.45, TWO: 0.35},
        "c": {OTHER: 0.5, Head(3, 0): 0.3},
        "d": {OTHER: 0.5, Head(3, 0): 0.35},
        "e": {Head(0, 2): 0.6},
    }
    atlas = by_hand(drops)
    tree = atlas.linkage()
    assert tree.shape == (4, 4)
    assert atlas.clusters(0.5) == [("a", "b"), ("c", "d"), ("e",)]
    assert (tree[:2, 2] < 0.05).all()
    assert tree[2:, 2] == pytest.approx(1.0)
    assert atlas.clusters(1.1) == [("a", "b", "c", "d", "e")]


def test_a_distance_is_one_less_the_cosine_of_what_heads_of_skills_take_beyond_the_mean():
    """However uncertain: after gradients most errors are large. Universal heads bring none together."""
    every = {EVERY: 0.5}
    drops = {
        "a": {ONE: 0.6, TWO: 0.3, **every},
        "b": {ONE: 0.6, OTHER: 0.3, EVERY: 0.6},
        "c": {Head(0, 2): 0.3, **every},
        "d": {Head(0, 3): 0.3, **every},
    }
    for error in (0.02, 0.1):
        atlas = by_hand(drops, k=3, error=error)
        assert atlas.universal == (EVERY,)
        # Less the mean: ONE .6 − .3, TWO and OTHER .3 − .075.
        a, b = np.array([0.3, 0.225, 0.0]), np.array([0.3, 0.0, 0.225])
        cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        assert atlas.linkage()[0, 2] == pytest.approx(1 - cosine)


def test_heads_that_were_never_off_have_no_bound_and_come_back_from_a_file(tmp_path):
    atlas = by_hand(SKILLS)
    errors = atlas.errors.copy()
    errors[:, 3, 1] = np.inf
    atlas = replace(atlas, errors=errors)
    assert np.isnan(atlas.interval[:, 3, 1]).all()
    assert Head(3, 1) not in atlas.universal
    assert np.isfinite(atlas.linkage()).all()
    atlas.save(tmp_path / "atlas.json")
    text = (tmp_path / "atlas.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    again = Atlas.load(tmp_path / "atlas.json")
    assert again == atlas
    assert np.array_equal(again.errors, np.where(np.isinf(errors), np.nan, errors), equal_nan=True)
    assert (again.universal, again.shared) == (atlas.universal, atlas.shared)


# What is refused, before the model runs


def test_by_default_the_demo_model_is_asked_its_own_skills(model, monkeypatch):
    """None is measured here: what the search is given is looked at."""
    asked = []

    class EnoughError(Exception):
        pass

    def noted(experiments, **given):
        asked.extend(experiments)
        assert (given["seed"], given["control_weight"]) == (4, 1.5)
        raise EnoughError

    monkeypatch.setattr(import_module("cs_heads.analysis.atlas"), "annealed_jointly", noted)
    with pytest.raises(EnoughError):
        cs.atlas(model, seed=4, control_weight=1.5, progress=False)
    assert annealed_jointly is not noted
    assert [each.task.name for each in asked] == [task.name for task in family_of("demo", 4)]
    assert len(asked) >= 4
