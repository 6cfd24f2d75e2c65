"""Format heads and knowledge heads, planted."""

from types import SimpleNamespace

import pytest

from cs_heads.analysis.drops import Column
from cs_heads.analysis.formats import format_heads, measure_formats
from cs_heads.heads import Head, HeadGrid
from tests.known_heads import IDLE, WORKING, choice_of_own_answers
from tests.methods.planted import Planted

GRID = HeadGrid(4, 4)
FORMAT, KNOWS, FULL, SOME, ALL, IDLES, WEAK = (
    Head(layer, head) for layer in range(2) for head in range(4) if (layer, head) != (1, 3)
)


def four(drops):
    """Questions of four choices, which no head can take below chance."""
    made = Planted(GRID, drops, baseline=0.9)
    made.task = SimpleNamespace(chance=0.25)
    return made


def study():
    letters = [
        Column("biology", "control", (four({FORMAT: 0.6, KNOWS: 0.4, SOME: 0.5, ALL: 0.6, WEAK: 0.05}),)),
        Column("chemistry", "control", (four({FORMAT: 0.5, ALL: 0.6, WEAK: 0.05}),)),
    ]
    full = [Column("stories", "control", (four({KNOWS: 0.3, FULL: 0.5, ALL: 0.5}),))]
    controls = [Column("code", "control", (Planted(GRID, {ALL: 0.8}),))]
    return letters, full, controls


def test_each_head_is_named_by_what_it_breaks():
    letters, full, controls = study()
    heads = {str(h): [h] for h in (FORMAT, KNOWS, FULL, SOME, ALL, IDLES, WEAK)}
    found = measure_formats(letters, full, heads, controls)
    kinds = ["format", "knowledge", "full form", "some letters", "universal", "none", "none"]
    assert [found.kind(name) for name in heads] == kinds
    assert found.broken(str(KNOWS), "letters") == ("biology",)
    assert found.drops.drops[str(FORMAT)]["biology"].share_lost == pytest.approx(0.6 / 0.65, abs=0.02)
    frame = found.to_frame()
    assert len(frame) == 7 * 4
    assert set(frame["form"]) == {"letters", "full", "control"}
    assert found.to_dict()["kinds"][str(FORMAT)] == "format"
    assert found.spent == 8 * 4 * 100


def test_heads_of_a_model_break_both_forms_where_they_carry_everything(load_known):
    model = load_known()
    first, second = (choice_of_own_answers(model, 50, name, seed) for name, seed in (("a", 1), ("b", 2)))
    found = format_heads(model, [first], [second], {"working": WORKING, "idle": [IDLE[0]]}, n=25)
    assert found.drops.drops["idle"]["a"].drop == 0
    assert found.kind("idle") == "none"
    assert found.kind("working") == "knowledge"


@pytest.mark.parametrize(
    ("letters", "full", "candidates", "message"),
    [
        (0, 1, [FORMAT], "letters and full must hold one set of questions or more, got 0 and 1"),
        (1, 1, [], "candidates must name one head or more"),
    ],
)
def test_a_missing_form_or_head_is_refused(load_known, letters, full, candidates, message):
    model = load_known()
    tasks = [choice_of_own_answers(model, 42, name, seed) for name, seed in (("a", 1), ("b", 2))]
    with pytest.raises(ValueError, match=message):
        format_heads(model, tasks[:letters], tasks[1 : 1 + full], candidates)
