import inspect
import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy import stats

from cs_heads.ranking import HeadRanking, SearchCall, normal_interval
from cs_heads.units import Head

IMPORTANCE = np.array([[0.0, 0.4, -0.2], [0.1, 0.4, 0.0]])


def ranking(**more) -> HeadRanking:
    return HeadRanking("css", IMPORTANCE, spent=800, **more)


def test_the_most_important_heads_come_first_and_of_equals_the_lower_index():
    assert ranking().top(4) == [Head(0, 1), Head(1, 1), Head(1, 0), Head(0, 0)]


def test_the_normal_interval_of_a_mean_is_scipys():
    each = np.random.default_rng(0).normal(size=(30, 2, 3))
    low, high = stats.norm.interval(0.95, loc=each.mean(axis=0), scale=stats.sem(each))
    np.testing.assert_allclose(normal_interval(each), np.stack([low, high], axis=-1), atol=1e-4)


def test_k_is_at_most_the_heads_of_the_grid():
    with pytest.raises(ValueError, match=r"k must be an integer in 1\.\.6, the heads of the grid; got 7"):
        ranking().top(7)


def test_a_frame_has_one_row_a_head_in_order():
    frame = ranking().to_frame()
    first = frame[["head", "rank", "layer", "index"]].head(3).to_numpy().tolist()
    assert first == [["L0H1", 1, 0, 1], ["L1H1", 2, 1, 4], ["L1H0", 3, 1, 3]]
    assert frame["importance"].tolist() == sorted(IMPORTANCE.ravel(), reverse=True)
    assert not {"low", "high", "frequency"} & set(frame.columns)


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    saved = HeadRanking(
        "csb",
        rng.normal(size=(3, 4)),
        spent=12,
        interval=np.sort(rng.normal(size=(3, 4, 2)), axis=-1),
        frequency=rng.random((3, 4)),
        z=rng.normal(size=(3, 4)),
        claims=(Head(0, 1),),
        shared=(Head(2, 2), Head(2, 3)),
        chosen=(Head(1, 3), Head(0, 2)),
        control_importance=rng.normal(size=(3, 4)),
        provenance={"model": {"name": "Größe", "grid": [3, 4]}, "r2_out_of_sample": None},
        notes=("one", "zwei · R²"),
        k=4,
        interfering=(Head(0, 0),),
        shared_effects=({"head": "L2H3", "among_others": {"task": 0.5, "controls": 0.25}, "most": "a"},),
        search=SearchCall(3, None, ("a", "b"), "given", {"n_masks": 40, "prior": None}),
    )
    saved.save(tmp_path / "ranking.json")
    loaded = HeadRanking.load(tmp_path / "ranking.json")
    for field in fields(HeadRanking):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(saved, field.name), err_msg=field.name)
    assert loaded.order == saved.order
    assert (loaded, hash(loaded)) == (saved, hash(saved))
    assert loaded != replace(saved, spent=13) != "a ranking"


def test_evidence_outranks_luck():
    """A head with a big importance and a small z comes after one whose importance is certain."""
    z = np.array([[0.0, 1.5, -1.0], [6.0, 1.0, 0.5]])
    assert ranking(z=z).top(3) == [Head(1, 0), Head(0, 1), Head(1, 1)]


def test_no_more_heads_are_found_than_are_neither_shared_nor_off():
    ranking = HeadRanking("annealed", np.ones((2, 4)), spent=0, shared=(Head(0, 0), Head(0, 1)), off=(Head(1, 0),), k=6)
    assert ranking.k == 5
    assert not {*ranking} & {*ranking.shared, *ranking.off}
    every = replace(ranking, shared=tuple(ranking.grid), off=(), k=3)
    assert every.top() == [Head(0, 0)]
    assert Head(0, 0) not in every.proved(["L0H0"]).shared, "it is proved, whatever the search said"


def test_heads_may_be_given_by_name_and_numbers_as_integers(tmp_path):
    importance = np.array([[3, 1, 2]])
    ranking = object.__new__(HeadRanking)
    inspect.unwrap(HeadRanking.__init__)(ranking, "mine", importance, spent=0, claims=["L0H1"], shared=["L0H0"])
    assert ranking == HeadRanking("mine", importance * 1.0, spent=0, claims=(Head(0, 1),), shared=(Head(0, 0),))
    frame = ranking.to_frame().set_index("head")
    assert frame.loc[["L0H1", "L0H2", "L0H0"], ["claimed", "shared"]].to_numpy().tolist() == [
        *([True, False], [False, False], [False, True])
    ]
    ranking.save(tmp_path / "mine.json")
    assert HeadRanking.load(tmp_path / "mine.json") == ranking


def test_shared_heads_come_last_however_important():
    found = ranking(shared=(Head(0, 1),))
    assert found.top(2) == [Head(1, 1), Head(1, 0)]
    assert found.order[-1] == Head(0, 1)
    assert "shared: L0H1" in repr(found)
    assert "<li>shared: L0H1</li>" in found._repr_html_()
    assert found.to_frame()["shared"].tolist() == [False] * 5 + [True]


def test_chosen_heads_come_first_and_in_their_order_whatever_their_evidence():
    found = ranking(chosen=(Head(0, 2), Head(1, 0)), shared=(Head(1, 1),), z=IMPORTANCE * 10)
    assert found.order == [Head(0, 2), Head(1, 0), Head(0, 1), Head(0, 0), Head(1, 2), Head(1, 1)]
    assert found.to_frame()["head"].tolist()[:2] == ["L0H2", "L1H0"]


def test_what_heads_take_from_the_controls_stands_in_the_frame():
    taken = np.array([[0.0, 0.3, 0.1], [0.05, 0.0, 0.0]])
    frame = ranking(control_importance=taken, shared=(Head(0, 1),)).to_frame()
    assert frame["head"].tolist() == ["L1H1", "L1H0", "L0H0", "L1H2", "L0H2", "L0H1"]
    assert frame["controls"].tolist() == [0.0, 0.05, 0.0, 0.0, 0.1, 0.3]
    assert frame["shared"].tolist() == [False] * 5 + [True]
    assert ranking(control_importance=taken).to_frame()["shared"].tolist() == [False] * 6
    assert not {"controls", "shared"} & set(ranking().to_frame().columns)


def saved(path, **changed):
    """A saved ranking of which some fields were changed by hand; None leaves one out."""
    ranking().save(path)
    record = json.loads(path.read_text(encoding="utf-8")) | changed
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("version", "remedy"), [(7, "update cs-heads"), (5, "make it again"), (None, "make it again")])
def test_another_version_is_refused_with_the_remedy(tmp_path, version, remedy):
    with pytest.raises(ValueError, match=f"ranking format {version}; this version of cs-heads reads 6: {remedy}"):
        HeadRanking.load(saved(tmp_path / "ranking.json", version=version))


@pytest.mark.parametrize("text", ["not JSON", "[]", "{}", '{"format": "another"}'])
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "other.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.json' is no saved ranking"):
        HeadRanking.load(tmp_path / "other.json")


WRONG = [
    ({"importance": [[0.0, 1e308, 0.0], [0.1, 0.4, 0.0]]}, "importance[0][1] must be a number in "),
    ({"spent": None}, "spent is missing"),
    ({"importance": [0.1, 0.2]}, "importance must be numbers [layer, head], got [0.1, 0.2] of shape (2,)"),
    ({"interval": [[[0.3, 0.1]] * 3] * 2}, "interval must be a lower and an upper bound, got [0.3, 0.1]"),
    ({"frequency": [[0.0, 1.5, 0.0], [0.0, 0.0, 0.0]]}, "frequency must be a number in 0..1 for every head, got 1.5"),
    ({"spent": -5}, "spent must be an integer of 0 or more, got -5"),
    ({"chosen": ["L0H1", "L0H1"]}, "chosen must be different heads, none of them shared or off, got L0H1"),
    ({"chosen": ["L9H1"]}, "chosen must be heads of the grid (2, 3), got L9H1"),
    ({"k": 7}, "k must be an integer in 1..6, the heads of the grid; got 7"),
    ({"search": {"seed": "one"}}, "search: seed must be an integer of 0 or more, got 'one'"),
    ({"provenance": ["css"]}, "provenance must be an object, got ['css']"),
    ({"provenance": {"model": "gpt2"}}, "provenance['model'] must be a mapping, what is known of it by name, got"),
    ({"notes": [1]}, "notes[0] must be a text, got 1"),
    (
        {"grid": {"n_layers": 2, "n_units": 4, "kind": "heads"}},
        "importance must be of the grid (2, 4), got shape (2, 3)",
    ),
    ({"importances": [[1.0]]}, "'importances' is no field of it; did you mean 'importance'?"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[str(changed)[:40] for changed, _ in WRONG])
def test_a_ranking_that_cannot_be_is_refused_in_one_line_with_field_and_value(tmp_path, changed, message):
    path = saved(tmp_path / "ranking.json", **changed)
    with pytest.raises(ValueError, match=re.escape(f"path {str(path)!r} is a broken ranking: {message}")) as refused:
        HeadRanking.load(path)
    assert "\n" not in str(refused.value)


def test_bounds_that_are_infinite_are_no_interval_before_and_after_saving(tmp_path):
    """A head that was never off: nothing bounds what it does, and JSON has no infinity."""
    interval = np.stack([IMPORTANCE - 0.1, IMPORTANCE + 0.1], axis=-1)
    interval[0, 1] = [-np.inf, np.inf]
    made = ranking(interval=interval, z=IMPORTANCE * 10)
    made.save(tmp_path / "ranking.json")
    loaded = HeadRanking.load(tmp_path / "ranking.json")
    assert loaded == made
    for each in (made, loaded):
        assert np.isnan(each.interval[0, 1]).all()
        assert np.isfinite(np.delete(each.interval.reshape(-1, 2), 1, axis=0)).all()


def test_a_notebook_shows_names_and_notes_as_text_not_as_html():
    shown = ranking(
        provenance={"task": {"name": "<script>t</script>"}, "model": {"name": "a&b"}}, notes=("R² < 0",)
    )._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;t&lt;/script&gt;" in shown
    assert "a&amp;b" in shown
    assert "<li>R² &lt; 0</li>" in shown
    assert shown.index("L0H1") < shown.index("L1H1")


def test_a_notebook_explains_the_columns_that_it_shows_and_no_other():
    interval = np.zeros((2, 3, 2))
    interval[0, 0] = np.nan
    shown = ranking(interval=interval, shared=(Head(0, 1),))._repr_html_()
    assert "low, high: 95 % interval of the importance; of a gate, the range over the seeds; –: not known" in shown
    assert "shared: the controls need the head, too" in shown
    assert "standard errors" not in shown
    assert "NaN" not in shown
    assert "low, high" not in ranking()._repr_html_()


def test_a_shell_shows_method_task_model_cost_and_the_top_heads():
    shown = repr(ranking(provenance={"task": {"name": "capitals"}, "model": {"name": "tiny"}}))
    assert shown.startswith("HeadRanking(css, capitals, tiny: 6 heads, 800 example-evaluations)")
    assert "L0H1 +0.400  L1H1 +0.400  L1H0 +0.100" in shown
    shown = repr(ranking(k=1, claims=(Head(0, 1), Head(1, 0))))
    assert "\n  L0H1 +0.400\n  also claimed: L1H0 +0.100" in shown


# The heads found


def test_as_a_sequence_a_ranking_is_the_heads_found_as_many_as_were_searched_for():
    found = ranking(k=2)
    assert found.k == len(found) == 2
    assert found.heads == tuple(found) == (Head(0, 1), Head(1, 1))
    assert (found[0], found[-1], found[:1]) == (Head(0, 1), Head(1, 1), (Head(0, 1),))
    assert found.top() == [*found]
    assert ranking().k == 3  # by default five, or half of a small grid
    assert HeadRanking("css", np.zeros((4, 4)), spent=0).k == 5
    assert Head(1, 1) in found
    assert Head(1, 0) not in found
    with pytest.raises(IndexError):
        found[2]


def test_heads_whose_removal_helps_are_reported():
    found = ranking(interfering=(Head(0, 2),))
    for shown in (repr(found), found._repr_html_()):
        assert "interfering, the task gains without: L0H2 -0.200" in shown
    assert found.to_frame().set_index("head")["interfering"].to_dict()["L0H2"]
    assert found.to_frame()["interfering"].sum() == 1
    assert "interfering" not in repr(ranking())
    assert "interfering" not in ranking().to_frame()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"spent": 10**40}, r"spent must be an integer in 0\.\.1000000000000"),
        ({"backwards": 801}, r"backwards must be an integer in 0\.\.800"),
        ({"importance": np.array([[0.0, np.inf]])}, r"importance must be a number in .* for every head, got inf"),
        ({"interval": np.zeros((2, 3, 1))}, r"interval must be \[layer, head, 2\] = \(2, 3, 2\), got \(2, 3, 1\)"),
        ({"z": np.full((2, 3), np.nan)}, r"z must be a number in .* for every head, got nan"),
        ({"shared_effects": ({"head": "L0H1", "task": "abc"},)}, r"\['task'\] must be a number, got 'abc'"),
        ({"shared_effects": ({"head": "L0H1", "task": 0.5},)}, r"\['task_interval'\] must be two numbers, got None"),
        ({"shared_effects": ({"head": "L0H1", "among_others": {}},)}, r"\['among_others'\]\['task'\] must be a number"),
    ],
)
def test_what_is_read_out_of_a_ranking_later_is_checked_when_it_is_made(wrong, message):
    with pytest.raises(ValueError, match=message):
        HeadRanking(**{"method": "css", "importance": IMPORTANCE, "spent": 800, "shared": (Head(0, 1),), **wrong})
