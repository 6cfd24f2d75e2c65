"""Format heads and knowledge heads, planted."""

import pytest

from cs_heads.analysis.formats import format_heads
from cs_heads.units import Grid, Head
from tests.known_heads import IDLE, WORKING, choice_of_own_answers
from tests.methods.planted import Planted

GRID = Grid(4, 4)
FORMAT, KNOWS, FULL, SOME, ALL, IDLES, WEAK = (
    Head(layer, head) for layer in range(2) for head in range(4) if (layer, head) != (1, 3)
)


def made(name, drops, chance=0.25, **more):
    """Questions of four choices, which no head can take below chance."""
    experiment = Planted(GRID, drops, **more)
    experiment.name, experiment.chance = name, chance
    return experiment


def study(heads):
    biology = made("biology", {FORMAT: 0.6, KNOWS: 0.4, SOME: 0.5, ALL: 0.6, WEAK: 0.05})
    chemistry = made("chemistry", {FORMAT: 0.5, ALL: 0.6, WEAK: 0.05})
    stories = made("stories", {KNOWS: 0.3, FULL: 0.5, ALL: 0.5})
    code = made("code", {ALL: 0.8}, chance=0.0)
    return format_heads(None, [biology, chemistry], [stories], heads, controls=[code])


def test_each_head_is_named_by_what_it_breaks():
    heads = {str(h): [h] for h in (FORMAT, KNOWS, FULL, SOME, ALL, IDLES, WEAK)}
    found = study(heads)
    kinds = ["format", "knowledge", "full form", "some letters", "universal", "none", "none"]
    assert [found.kind(name) for name in heads] == kinds
    assert found.broken(str(KNOWS), "letters") == ("biology",)
    assert found.drops.drops[str(FORMAT)]["biology"].loss == pytest.approx(0.6 / 0.65, abs=0.02)
    frame = found.to_frame()
    assert len(frame) == 7 * 4
    assert set(frame["form"]) == {"letters", "full", "control"}
    assert found.to_dict()["kinds"][str(FORMAT)] == "format"
    assert found.spent == 8 * 4 * 100
    # Candidates belong to none of the sets.
    assert found.drops.own == {}
    assert found.drops.roles == {"biology": "letters", "chemistry": "letters", "stories": "full", "code": "control"}


def test_heads_of_a_model_break_both_forms_where_they_carry_everything(load_known):
    model = load_known()
    first, second = (choice_of_own_answers(model, 50, name, seed) for name, seed in (("a", 1), ("b", 2)))
    found = format_heads(model, [first], [second], {"working": WORKING, "idle": [IDLE[0]]}, n=25)
    assert found.drops.drops["idle"]["a"].drop == 0
    # Nothing changed on 25 examples of two choices: what is lost may be a quarter all the same.
    assert found.kind("idle") == "unclear"
    # No control tells heads of both forms from heads of everything.
    assert found.broken("working", "letters") == ("a",)
    assert found.kind("working") == "unclear"


def kind_of(letters, full, controls):
    """The kind of one head, by what it takes from each set: the drop, and the baseline where it is not .9."""

    sets = [
        [
            made(f"{form} {n}", {FORMAT: one.get("drop", 0.0)}, baseline=one.get("baseline", 0.9), n_examples=200)
            for n, one in enumerate(each)
        ]
        for form, each in (("letters", letters), ("full", full), ("control", controls))
    ]
    return format_heads(None, *sets[:2], {"head": [FORMAT]}, controls=sets[2]).kind("head")


BROKEN, SPARED, HALF, FAILED = {"drop": 0.6}, {}, {"drop": 0.15}, {"baseline": 0.26}


@pytest.mark.parametrize(
    ("letters", "full", "controls", "kind"),
    [
        ([BROKEN, BROKEN], [SPARED], [SPARED], "format"),
        ([BROKEN, BROKEN], [SPARED], [], "format"),
        # What cannot be shown to be spared is not.
        ([BROKEN, BROKEN], [FAILED], [SPARED], "unclear"),
        ([BROKEN, BROKEN], [HALF], [SPARED], "unclear"),
        ([BROKEN, FAILED], [SPARED], [SPARED], "unclear"),
        ([BROKEN, FAILED], [BROKEN], [SPARED], "knowledge"),
        # A control that breaks decides before the form does.
        ([BROKEN, BROKEN], [SPARED], [BROKEN], "universal"),
        ([BROKEN, SPARED], [SPARED], [BROKEN], "control"),
        ([SPARED, SPARED], [SPARED], [BROKEN], "control"),
        ([BROKEN, BROKEN], [BROKEN], [BROKEN], "universal"),
        ([BROKEN, BROKEN], [BROKEN], [FAILED], "unclear"),
        ([BROKEN, BROKEN], [BROKEN], [], "unclear"),
        ([SPARED, SPARED], [SPARED], [SPARED], "none"),
        ([SPARED, SPARED], [SPARED], [], "none"),
        ([FAILED, SPARED], [SPARED], [SPARED], "unclear"),
    ],
)
def test_a_kind_is_claimed_only_where_it_was_tested(letters, full, controls, kind):
    assert kind_of(letters, full, controls) == kind
