"""Which of the heads given are proved: the fewest that do nine tenths of their harm together."""

import numpy as np
import pytest

from cs_heads.analysis.confirm import prove
from cs_heads.analysis.least_set import MOST_OF, halves, least_set, most_of_least_set
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.ranking import HeadRanking
from cs_heads.report import write_report
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(8, 8)
GIVEN = [Head(5, 5), Head(0, 1), Head(6, 6), Head(3, 2), Head(7, 7)]
CONTROL = [Planted(GRID, {})]


def chosen(task, heads):
    """The least set where random heads take nothing."""
    intact, ablated = task(np.stack([task.grid.mask([]), task.grid.mask(heads)]))
    return least_set(task, heads, intact, ablated, random=intact, known={})


def proved(task, heads=GIVEN, **more):
    return prove(task, heads, controls=CONTROL, **more)


def test_passengers_are_named_and_not_proved():
    proof = proved(Planted(GRID, {Head(0, 1): 0.6, Head(3, 2): 0.25}))
    assert proof.verdict == "specific"
    assert proof.heads == (Head(0, 1), Head(3, 2))
    assert proof.passengers == (Head(5, 5), Head(6, 6), Head(7, 7))
    assert proof.reasons[0] == (
        "L0H1, L3H2 do all the harm of the 5 heads given; passengers, left out of the proof: L5H5, L6H6, L7H7"
    )
    # What is said of the heads is said of these alone.
    assert proof.result.drop == pytest.approx(0.85)
    assert "random heads of the same layers (as many as the 5 given) to 0.9" in proof.reasons[1]


def test_of_heads_that_do_no_more_harm_than_random_ones_none_is_said_to_be_needed():
    like_all = proved(Planted(GRID, {GRID.unit(place): 0.05 for place in range(GRID.size)}))
    assert like_all.verdict == "not localized"
    assert like_all.least.told not in like_all.reasons
    # Every other head takes as much as two of them: one random set in six has as many.
    every_other = {GRID.unit(place): 0.2 for place in range(1, GRID.size, 2)}
    proof = proved(Planted(GRID, every_other | dict.fromkeys(GIVEN, 0.0) | dict.fromkeys(GIVEN[:4], 0.2)))
    assert proof.verdict == "not localized"
    assert proof.least.told not in proof.reasons
    assert proof.reasons[0] == f"measured without passengers: {', '.join(map(str, proof.passengers))}"


def test_fillers_are_not_needed_for_what_any_heads_take():
    """Every head takes a little: four of them take a sixth of what the five do together, and none is proved."""
    proof = proved(Planted(GRID, {GRID.unit(place): 0.03 for place in range(GRID.size)} | {Head(3, 2): 0.6}))
    assert proof.heads == (Head(3, 2),)
    assert proof.least.share == pytest.approx(1, abs=0.02)


def test_one_head_that_gives_the_whole_loss_is_the_least_set_wherever_it_ranks():
    proof = proved(Planted(GRID, {Head(7, 7): 0.8}))
    assert proof.heads == (Head(7, 7),)
    assert "L7H7 does all the harm" in proof.reasons[0]


def test_of_heads_that_each_do_all_the_harm_one_is_proved_and_no_passenger():
    proof = proved(Planted(GRID, {Head(0, 1): 1.0, Head(3, 2): 1.0}))
    assert proof.heads == (Head(0, 1),)
    assert proof.passengers == (Head(5, 5), Head(6, 6), Head(3, 2), Head(7, 7))


def test_what_does_harm_where_the_others_are_on_is_no_passenger():
    """The score is at its floor without the others, and a passenger adds nothing to that."""
    proof = proved(Planted(GRID, dict.fromkeys(GIVEN[:4], 0.5)))
    assert len(proof.heads) == 2
    assert proof.least.rest > 0.85
    assert (
        "left out of the proof, as not needed beside these: L6H6, L3H2, L7H7 (by themselves they do "
        in proof.reasons[0]
    )


def test_heads_that_stand_in_for_each_other_are_kept_together():
    """Neither is missed while the other is off: what they do together is seen."""
    found, _ = chosen(Planted(GRID, {Head(6, 6): 0.1}, groups={(Head(0, 1), Head(3, 2)): 0.7}), GIVEN)
    assert {*found.heads} >= {Head(0, 1), Head(3, 2)}
    assert found.first[len(found.heads) - 1] >= MOST_OF * found.drop


def test_it_is_the_first_that_do_nine_tenths_and_costs_a_dozen_masks_on_half_of_the_examples():
    task = Planted(GRID, {Head(0, 1): 0.5, Head(3, 2): 0.3, Head(6, 6): 0.05})
    found, _ = chosen(task, GIVEN)
    assert found.order[:3] == (Head(0, 1), Head(3, 2), Head(6, 6))
    # What the others take on the half that chooses, measured by itself.
    masks = [GRID.mask([]), *(GRID.mask([each for each in GIVEN if each != head]) for head in GIVEN)]
    intact, *left_on = task(np.stack(masks))[:, halves(100)[0]].mean(axis=1)
    assert found.others == pytest.approx(intact - left_on)
    assert np.argsort(found.others).tolist()[:2] == [1, 3]
    assert found.heads == (Head(0, 1), Head(3, 2))
    # Each of five on, the first one to three, the passengers; and on the other half the set that is proved.
    assert found.spent == (5 + 3 + 1) * 50 + 50 < most_of_least_set(5, 100)


class HalfApart(ExperimentLike):
    """Two heads, of which each is all of the answers of one half of the examples: the first half chooses."""

    grid, n_examples, chance = Grid(1, 8), 100, 0.0

    def __call__(self, masks, examples=None):
        examples = np.tile(np.arange(100), (len(masks), 1)) if examples is None else examples
        off = np.where(np.isin(examples, halves(100)[1]), masks[:, 0, 1:2], masks[:, 0, :1])
        return 1.0 - off


def test_a_set_that_does_nine_tenths_by_luck_of_the_half_that_chose_it_grows_on_the_others():
    task = HalfApart()
    heads = [Head(0, 0), Head(0, 1), Head(0, 2)]
    least, scores = chosen(task, heads)
    assert least.first == (1.0, 1.0, 1.0)
    assert {*least.heads} >= {Head(0, 0), Head(0, 1)}
    assert least.share == 1
    assert scores.tolist() == [0.0] * 100


def test_heads_without_harm_have_no_least_set():
    proof = proved(Planted(GRID, {}))
    assert (proof.verdict, proof.heads, proof.least) == ("not localized", tuple(GIVEN), None)


def test_heads_without_harm_on_the_half_that_is_measured_have_no_least_set():
    class OtherHalf(ExperimentLike):
        grid, n_examples = Grid(1, 8), 40

        def __call__(self, masks, examples=None):
            examples = np.tile(np.arange(40), (len(masks), 1)) if examples is None else examples
            return 1.0 - (masks.any(axis=(1, 2))[:, None] & np.isin(examples, halves(40)[1]))

    assert prove(OtherHalf(), [Head(0, 0), Head(0, 1)]).least is None


def test_of_answers_that_take_turns_some_of_each_choose():
    """With the head off every answer is no, as every second one is."""

    class TakesTurns(ExperimentLike):
        grid, n_examples = GRID, 100

        def __call__(self, masks, examples=None):
            examples = np.tile(np.arange(100), (len(masks), 1)) if examples is None else examples
            return 1.0 - (masks[:, 0, 1][:, None] & (examples % 2 == 1))

    assert proved(TakesTurns()).heads == (Head(0, 1),)


@pytest.mark.slow
def test_the_least_set_passes_by_luck_no_more_often_than_all_heads_do():
    """One head in fifteen costs the task as much: the best of five heads taken blindly is held against random fives."""
    beyond = {True: 0, False: 0}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lethal = {head: 0.6 for head in GRID if rng.random() < 1 / 15}
        heads = [GRID.unit(int(index)) for index in rng.choice(GRID.size, 5, replace=False)]
        for least in beyond:
            task = Planted(GRID, lethal, noise=True)
            beyond[least] += prove(task, heads, controls=CONTROL, least=least, seed=seed).localized
    assert beyond[True] <= beyond[False] < 40 / 5


@pytest.mark.parametrize(("heads", "got"), [([], "none"), (["L0H1", "L0H1"], "L0H1, L0H1")])
def test_a_ranking_of_no_head_or_of_one_twice_is_refused(heads, got):
    with pytest.raises(ValueError, match=f"heads must be one or more different heads, got {got}"):
        HeadRanking("css", np.zeros(GRID.shape), 100).proved(heads)


def test_a_ranking_that_is_proved_claims_and_shows_no_passengers(tmp_path):
    importance = np.zeros(GRID.shape)
    for place, head in enumerate(GIVEN):
        importance[head.layer, head.index] = 1 - place / 10
    ranking = HeadRanking("css", importance, 100, claims=(Head(5, 5), Head(0, 1)), k=5)
    proof = proved(Planted(GRID, {Head(0, 1): 0.6, Head(3, 2): 0.25}), ranking)
    known = ranking.proved(proof.heads)
    assert (known.top(), known.claims) == ([Head(0, 1), Head(3, 2)], (Head(0, 1),))
    page = write_report(ranking, tmp_path / "page.html", proof=proof).read_text("utf-8")
    assert "passengers, left out of the proof: L5H5, L6H6, L7H7" in page
