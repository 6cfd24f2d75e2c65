"""Verdicts on planted truths: heads of one task, heads that several tasks need, and what cannot be told."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cs_heads.analysis.confirm import Confirmation, prove
from cs_heads.analysis.losses import TaskDrop, task_drop
from cs_heads.analysis.random_comparison import RandomComparison
from cs_heads.analysis.verdict import judge, next_step
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.simulate import planted_world
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(8, 8)
A, B, C = FOUND = (Head(1, 2), Head(1, 5), Head(4, 0))
OWN = Planted(GRID, {A: 0.3, B: 0.3})
APART = Planted(GRID, {Head(6, 6): 0.5})


def verdict_on(*controls: Planted, own: Planted = OWN, heads=(A, B)) -> Confirmation:
    for number, control in enumerate(controls, 1):
        control.name = f"task {number}"
    return prove(own, heads, controls=controls)


def made(right: int, left: int, *, n: int = 100, chance: float = 0.0, name: str = "own") -> TaskDrop:
    """A task of n examples, so many right without and with the heads off; those right with are right without."""
    intact, off = ((np.arange(n) < count).astype(float) for count in (right, left))
    return task_drop(name, chance, [(intact, off)])


def beside(drop: float = 0.0, p: float = 0.0001, n_as_harmful: int = 0) -> RandomComparison:
    """Random sets with a mean drop; p is that over examples."""
    return RandomComparison((drop,) * 125, drop, n_as_harmful, (1 + n_as_harmful) / 126, p)


def judged(own: TaskDrop, *controls: TaskDrop, **more):
    return judge(own, beside(), controls, **more)


def test_what_falls_below_chance_is_all_lost_in_the_words_too():
    below, idle = made(100, 0, chance=0.5), [made(100, 100, name=name) for name in "abc"]
    found = judged(below, *idle, kin=[made(100, 5, name="kin")])
    assert found.verdict == "specific"
    assert any("kin" in line and line.endswith("half or more of what the task loses") for line in found.reasons)
    shared = judged(below, made(100, 60, name="past"))
    assert shared.verdict == "shared"
    assert any("loses 2.00" in line and "counted as 1.00, its control 0.40" in line for line in shared.reasons)
    open_ = judged(below, *idle, made(20, 9, n=20, name="past"))
    assert open_.close_because == "past may lose more than half of the own loss"


def test_heads_that_controls_in_the_form_of_the_task_need_are_shared_whatever_others_lose():
    apart = [made(100, 100, name=name) for name in "abcdefgh"]
    for left, verdict in ((90, "specific"), (60, "shared")):
        matched = [made(100, left, name=name) for name in ("past", "plural")]
        found = judged(made(100, 0), *apart, *matched, matched=["past", "plural"])
        assert (found.verdict, found.close_because) == (verdict, None)
        assert any("its 2 controls in its form lose" in line for line in found.reasons)
        # One of them is one of many.
        assert judged(made(100, 0), *apart, matched[0], matched=["past"]).verdict == "specific"


def test_a_control_is_in_the_form_of_the_task_by_its_field_whatever_its_name():
    names = ["matched/past", "matched/plural"]
    for matched in (True, False):
        controls = [Planted(GRID, {A: 0.2, B: 0.2}), Planted(GRID, {A: 0.2, B: 0.2})]
        for control, name in zip(controls, names, strict=True):
            record = {"prompt": name, "target": name}
            control.name, control.task = name, replace(Task.from_records([record], name), matched=matched)
        proof = prove(OWN, [A, B], controls=controls)
        assert proof.specificity.matched == (tuple(names) if matched else ())


# What each verdict means


@pytest.mark.parametrize("seed", range(3))
def test_heads_that_the_control_needs_as_much_are_shared_and_the_control_is_named(seed):
    world = planted_world("main", Grid(16, 16), seed=seed)
    proof = prove(world.unseen, world.universal, controls=[world.control])
    assert (proof.verdict, proof.localized, proof.close) == ("shared", True, False)
    assert proof.specificity.shared_with == ("control",)
    assert "more than half of the own loss is lost by control (beyond half 0." in " ".join(proof.reasons)


def test_a_group_that_every_task_needs_is_shared_though_no_head_of_it_does_harm_alone():
    """Three heads that stand in for each other, lethal together: what single heads do says nothing of it."""
    own, other = (Planted(GRID, {}, groups={FOUND: 0.85}) for _ in range(2))
    for head in FOUND:
        assert verdict_on(other, own=own, heads=[head]).drop == 0
    proof = verdict_on(other, own=own, heads=FOUND)
    assert (proof.verdict, proof.specificity.shared_with) == ("shared", ("task 1",))
    assert proof.specificity.own.loss > 0.9 < proof.specificity.mean.loss
    # The same group is one task's alone where the control does without.
    assert verdict_on(APART, own=own, heads=FOUND).verdict == "specific"


# Which controls count, and how


def test_a_control_that_the_model_cannot_do_does_not_count_and_is_named():
    few = Planted(GRID, {A: 0.1, B: 0.05}, baseline=0.15)
    proof = verdict_on(few)
    assert (proof.verdict, proof.specificity) == ("localized", None)
    first, second, *_ = proof.notes
    assert first.startswith("control task 1 does not count: the intact model answers 15 of 100 examples right, fewer")
    assert second.startswith(
        "no control counts, so heads of this task cannot be distinguished from task-general (universal) heads"
    )
    # Beside one that counts it changes nothing.
    both, alone = verdict_on(few, APART), verdict_on(APART)
    assert both.verdict == alone.verdict == "specific"
    assert [*both.specificity.controls] == ["task 2"]
    assert both.specificity.mean == alone.specificity.mean
    assert both.notes[0] == first


@pytest.mark.parametrize("right", [30, 33])
def test_a_control_that_may_be_at_chance_does_not_count(right):
    """30 of 100 are no better than a quarter; 33 are, but their interval reaches down to it."""
    weak = made(right, right, chance=0.25, name="weak")
    found = judged(made(90, 20), weak)
    assert (found.verdict, found.specificity) == ("localized", None)
    assert found.notes[0].startswith("control weak does not count: ")
    assert "no better than chance (0.250)" in found.notes[0]


def test_a_task_that_may_be_at_chance_cannot_be_held_against_controls():
    found = judged(made(33, 3, chance=0.25), made(90, 90, name="other"))
    assert (found.verdict, found.specificity) == ("localized", None)
    assert found.notes[0].startswith("the task's own baseline is too near to chance to say what share of it is lost")


def test_losses_are_shares_of_the_score_above_chance():
    """A task of four choices that falls to chance has lost all; of two choices .08 is a fifth of what lies above it."""
    found = judged(
        made(100, 25, chance=0.25), made(90, 82, chance=0.5, name="two"), made(100, 96, name="free")
    ).specificity
    assert found.own.loss == pytest.approx(1)
    assert found.controls["two"].loss == pytest.approx(0.08 / 0.4)
    assert found.controls["free"].loss == pytest.approx(0.04)
    assert found.mean.loss == pytest.approx((0.2 + 0.04) / 2)
    assert found.difference.loss == pytest.approx(1 - 0.12)
    assert (found.worst_control, found.worst.loss) == ("two", pytest.approx(0.2))


def test_every_control_weighs_the_same_however_many_examples_it_has():
    found = judged(made(100, 20), made(400, 400, n=400, name="large"), made(40, 20, n=40, name="small")).specificity
    assert found.mean.loss == pytest.approx(0.25)


OTHERS = [made(100, 100, name=f"other {number}") for number in range(5)]


def test_one_control_that_loses_as_much_makes_heads_shared_though_the_mean_is_little():
    """Heads of code that take .76 of it and .81 of another skill are no heads of code."""
    found = judged(made(100, 10), made(100, 30, name="neighbor"), *OTHERS)
    assert (found.verdict, found.close_because) == ("shared", None)
    assert found.specificity.shared_with == ("neighbor",)
    assert "the control that loses most, neighbor, loses 0.70; the largest loss of any" in " ".join(found.reasons)
    said = "more than half of the own loss is lost by neighbor (beyond half 0.25 (+0.15 to +0.34))"
    # It is neighbor alone.
    without = "without neighbor they would be specific: see what it has in common with the task"
    assert found.reasons[-2:] == (said, without)


def test_what_is_said_of_a_verdict_without_a_control_is_the_verdict_without_it():
    own, neighbor, kept = made(100, 10), made(100, 30, name="neighbor"), made(60, 56, n=60, name="kin")
    # Without neighbor they would serve the wording alone, and of three default controls two would be too few.
    for more in ({"kin": [kept]}, {"defaults": ["neighbor", "other 0", "other 1"]}):
        others = OTHERS[:2] if "defaults" in more else OTHERS
        found = judged(own, neighbor, *others, doubtful=["neighbor"], **more)
        without = judged(own, *others, **more)
        assert (found.verdict, without.verdict in ("template-bound", "localized")) == ("shared", True)
        assert "they would be specific" not in " ".join(found.reasons)
        assert found.close_because is None


def test_heads_are_specific_but_for_one_or_two_controls_of_the_tasks_form():
    near = [made(100, 30, name=name) for name in ("one", "two", "three")]
    for n, verdict in ((1, "specific"), (2, "specific"), (3, "shared")):
        found = judged(made(100, 10), *near[:n], *OTHERS, *OTHERS[:0], alike=["one", "two", "three"])
        assert found.verdict == verdict
        assert found.but_for == (("one", "two")[:n] if verdict == "specific" else ())
    # One of another form is too many.
    assert judged(made(100, 10), *near[:2], *OTHERS, alike=["one"]).verdict == "shared"


def test_a_control_that_only_seems_to_lose_more_than_half_leaves_the_verdict_close():
    found = judged(made(100, 10), made(40, 20, n=40, name="small"), *OTHERS)
    assert found.verdict == "specific"
    assert found.close_because == "small may lose more than half of the own loss"


def test_a_gain_hides_no_loss():
    """Losses of .3 and -.3 are .15 on average, and below chance no more than all is lost."""
    gains, loses = made(70, 91, name="gains"), made(100, 70, name="loses")
    found = judged(made(100, 10), gains, loses).specificity
    assert found.controls["gains"].loss == pytest.approx(-0.3)
    assert found.mean.loss == pytest.approx(0.15)
    below = judged(made(100, 0, chance=0.5), gains, loses).specificity
    assert (below.own.loss, below.difference.loss) == (pytest.approx(2), pytest.approx(0.85))


# Kin


def test_heads_that_take_a_wording_and_not_the_skill_are_template_bound():
    own = made(100, 4)
    kept, lost, half = made(60, 56, n=60, name="kin"), made(60, 10, n=60, name="kin"), made(60, 31, n=60, name="kin")
    found = judged(own, *OTHERS, kin=[kept])
    assert (found.verdict, found.close_because) == ("template-bound", None)
    assert "the same in other words (kin) loses 0.07" in " ".join(found.reasons)
    assert judged(own, *OTHERS, kin=[lost]).verdict == "specific"
    between = judged(own, *OTHERS, kin=[half])
    assert (between.verdict, between.close_because) == (
        "specific",
        "whether kin loses half of what the task loses is not certain",
    )
    # Each wording is judged by itself: one that is kept is not made up for by another.
    several = judged(own, *OTHERS, kin=[replace(lost, task="first"), replace(kept, task="second")])
    assert several.verdict == "template-bound"
    assert [line.rpartition(": ")[2] for line in several.reasons if line.startswith("the same in other words")] == [
        "half or more of what the task loses",
        "less than half of what the task loses",
    ]
    # Heads that other skills need are shared, whatever the wording.
    assert judged(own, made(100, 10, name="neighbor"), kin=[kept]).verdict == "shared"


def test_a_kin_that_can_change_nothing_leaves_no_verdict_close():
    half, kept = made(60, 31, n=60, name="open"), made(60, 56, n=60, name="kin")
    assert judged(made(100, 4), made(100, 10, name="neighbor"), kin=[half]).close_because is None
    bound = judged(made(100, 4), *OTHERS, kin=[kept, half])
    assert (bound.verdict, bound.close_because) == ("template-bound", None)


def test_the_mean_leaves_nothing_close_where_too_many_controls_surely_lose_more_than_half():
    lost, idle = ([made(200, left, n=200, name=f"{left}{i}") for i in range(n)] for left, n in ((90, 3), (200, 5)))
    found = judged(made(100, 40), *lost, *idle)
    assert (found.verdict, found.close_because) == ("shared", None)


@pytest.mark.parametrize("n", [100, 130, 270])
def test_exactly_a_tenth_is_a_tenth(n):
    found = judged(made(n, n - n // 10, n=n), *OTHERS)
    assert "loss +0.10 beyond that of random heads (at least 0.10)" in found.reasons


def test_random_sets_that_the_evaluations_allowed_did_not_tell_apart_are_said_to_be_so():
    untold = replace(beside(n_as_harmful=40), n_untold=38, p_sets=0.4)
    said = judge(made(100, 40), untold, []).reasons[1]
    assert "which p allows for (38 of the others may, but the evaluations allowed did not tell" in said
    assert next_step("not localized", 5, untold).startswith("prove them on more unseen examples")
    assert next_step("not localized", 5, replace(untold, n_untold=0)).startswith("see which other heads do as much")
    assert next_step("not localized", 5, beside(0.0, 0.02)).startswith("search with a larger budget")


def test_heads_shared_with_what_gives_the_same_answers_may_be_specific():
    own, same = made(100, 4), made(100, 10, name="neighbor")
    assert judged(own, same, *OTHERS).close_because is None
    found = judged(own, same, *OTHERS, doubtful=["neighbor", "other 1"])
    assert (found.verdict, found.close_because) == (
        "shared",
        "neighbor gives the answers of the task: if it is the same skill in other words, the heads are specific",
    )
    # Not where another control loses as much, nor where it loses nothing.
    worse = judged(own, same, made(100, 10, name="past"), *OTHERS, doubtful=["neighbor"])
    assert (worse.verdict, worse.close_because) == ("shared", None)
    assert judged(own, *OTHERS, doubtful=["other 1"]).close_because is None


def test_planted_heads_of_one_wording_are_template_bound_and_those_of_the_skill_are_not():
    world = planted_world("main", Grid(16, 16), n_controls=2)
    control, elsewhere = world.controls
    elsewhere.name = "other words"
    options = {"controls": [control], "exclude": world.universal}
    bound = prove(world.unseen, world.planted[:5], kin=[elsewhere], **options)
    assert bound.verdict == "template-bound"
    assert "less than half of what the task loses" in " ".join(bound.reasons)
    (same,) = replace(world, others=(world.own,)).controls
    same.name = "other words"
    assert prove(world.unseen, world.planted[:5], kin=[same], **options).verdict == "specific"


# How often a verdict comes again


def test_a_clear_verdict_comes_again_on_other_examples_and_a_close_one_half_the_time():
    clear, close = judged(made(100, 4), *OTHERS), judged(made(100, 10), made(100, 70, name="edge"))
    assert (clear.verdict, clear.again) == ("specific", 1.0)
    assert close.verdict == "specific"
    assert 0.3 < close.again < 0.7
    assert np.isnan(judge(made(100, 98), beside(), OTHERS).again)
    # All is lost, below chance more than that: to lose a part of it less is still to lose all.
    assert judged(made(100, 0, chance=0.5), *OTHERS).again == 1.0


def test_what_comes_again_is_what_other_samples_give():
    """Verdicts on samples drawn from the same two rates, counted, against what one sample near the mean says."""
    rng = np.random.default_rng(0)
    came = [
        judged(made(100, rng.binomial(100, 0.1)), made(100, rng.binomial(100, 0.78), name="other")).verdict
        for _ in range(60)
    ]
    said = judged(made(100, 10), made(100, 78, name="other"))
    assert abs(said.again - came.count(said.verdict) / 60) < 0.15


# Default controls


def by_default(own: TaskDrop, *controls: TaskDrop, unread: tuple[str, ...] = ()):
    return judge(own, beside(), controls, [*(control.task for control in controls), *unread])


@pytest.mark.parametrize(("n", "verdict"), [(2, "localized"), (3, "specific")])
def test_fewer_than_three_default_controls_that_count_make_nothing_specific(n, verdict):
    controls = [made(100, 98, name=f"skill {number}") for number in range(n)]
    found = by_default(made(100, 10), *controls)
    assert found.verdict == verdict
    assert any("fewer than 3 default controls count" in note for note in found.notes) == (verdict == "localized")
    # Of one's own one is enough.
    assert judged(made(100, 10), controls[0]).verdict == "specific"


def test_two_default_controls_are_close_where_they_may_lose_more_than_a_third():
    near, far = (by_default(made(100, 10), *(made(100, n, name=name) for name in "ab")) for n in (72, 100))
    assert (near.verdict, near.close_because) == (
        "localized",
        "the mean control loss may be above or below a third of the own loss",
    )
    assert (far.verdict, far.close_because) == ("localized", None)


def test_default_controls_that_do_not_count_share_one_note():
    weak = [made(12, 0, name="sums"), made(15, 0, name="past")]
    able = [made(90, 90, name=name) for name in "abc"]
    found = by_default(made(100, 10), *weak, *able, unread=("code",))
    assert found.verdict == "specific"
    assert found.notes == (
        "3 of 6 default controls count; the intact model does not do the others well enough: sums, past, code",
    )
    none = by_default(made(100, 10), *weak)
    assert (none.verdict, none.specificity, len(none.notes)) == ("localized", None, 2)
    assert none.notes[0].startswith("0 of 2 default controls count")
    assert none.notes[1].startswith("no control counts, so heads of this task cannot be distinguished")
    assert by_default(made(100, 10), *able).notes == ()


# The border


@pytest.mark.parametrize(
    ("left", "other", "verdict", "close"),
    [
        (10, 100, "specific", False),  # .90 and .00
        (10, 90, "specific", False),  # .90 and .10
        (10, 74, "specific", True),  # .90 and .26: a third is .30
        (10, 70, "specific", True),  # .90 and .30: a third exactly
        (10, 66, "shared", True),  # .90 and .34
        (10, 40, "shared", False),  # .90 and .60
        (60, 60, "shared", False),  # .40 and .40
        (60, 100, "specific", False),  # .40 and .00
        (83, 100, "localized", True),  # .17 and .00: .10 apart is not certain
        (83, 70, "shared", False),  # .17 and .30
    ],
)
def test_a_verdict_is_close_where_the_intervals_allow_another(left, other, verdict, close):
    found = judged(made(100, left), made(100, other, name="other"))
    assert (found.verdict, found.close_because is not None) == (verdict, close)


def test_random_heads_are_held_against_the_task_as_shares_of_its_score_above_chance():
    """Of .50 the heads take .10, a fifth, and random heads .06, an eighth: .08 apart, though .14 of unlike numbers."""
    result = made(50, 40)
    assert judge(result, beside(0.06, 0.001), []).verdict == "not localized"
    assert judge(result, beside(0.04, 0.001), []).verdict == "localized"
    # Above a chance of .25 it is .16 that they are apart.
    guessed = replace(result, chance=0.25)
    assert judge(guessed, beside(0.06, 0.001), []).verdict == "localized"


def settled(name: str, lost: float, reach: float) -> TaskDrop:
    """A task that the intact model always does, its loss known to within so much."""
    interval = lost - reach, lost + reach
    return TaskDrop(name, 4000, 0.0, 1.0, 1 - lost, interval, None, interval)


@pytest.mark.parametrize(
    ("lost", "verdict", "close"),
    [(0.0415, "shared", True), (0.0385, "localized", True), (0.06, "shared", False), (0.03, "localized", False)],
)
def test_a_weak_effect_is_close_where_shared_or_localized_hangs_on_an_interval(lost, verdict, close):
    """A third of .12 is .04; the difference lies below .10 throughout, so none is specific."""
    found = judged(settled("own", 0.12, 0.005), settled("other", lost, 0.002))
    assert found.specificity.difference.high < 0.1
    assert (found.verdict, found.close_because is not None) == (verdict, close)
    if close:
        assert found.close_because == "the mean control loss may be above or below a third of the own loss"


def test_what_is_not_localized_for_its_p_alone_says_so():
    found = judge(made(100, 70), beside(0.0, 0.02), [])
    assert found.verdict == "not localized"
    assert found.close_because.startswith("the loss beyond that of random heads (+0.2")
    assert found.close_because.endswith("lies above 0.10, but p = 0.0200 over examples is not below 0.01")
    found = judge(made(100, 70), beside(n_as_harmful=1), [])
    assert found.verdict == "not localized"
    assert found.close_because.endswith("lies above 0.10, but p = 0.0159 over sets of heads is not below 0.01")
    assert (
        "not below 0.01: 124 of 125 random sets seem to do less harm; of all such sets at most 3.7 % do as much"
        in found.reasons[1]
    )


def test_so_few_random_sets_that_luck_may_explain_them_leave_the_verdict_close():
    few = RandomComparison((0.0,) * 40, 0.0, 0, 1 / 41, 0.0001)
    found = judge(made(100, 10), few, OTHERS)
    assert found.verdict == "specific"
    assert found.close_because == "with so few random sets (40) p = 0.0244 over sets is not below 0.01"
    assert judge(made(100, 10), beside(), OTHERS).close_because is None


def test_where_examples_speak_against_heads_nothing_is_said_of_single_sets():
    """No set is told apart then, which is no evidence that all do as much."""
    random = replace(beside(0.0, 0.02, n_as_harmful=125), stopped=True)
    found = judge(made(100, 70), random, [])
    assert found.verdict == "not localized"
    assert "the 125 random sets were not told apart one by one" in found.reasons[1]
    assert found.close_because.endswith("but p = 0.0200 over examples is not below 0.01")


def test_heads_that_seem_to_do_little_are_close_where_few_examples_hide_more():
    """None of 20 lost leaves a tenth possible; none of 100 does not."""
    few, many = (judge(made(n, n, n=n), beside(0.0, 1.0), []) for n in (20, 100))
    assert (few.verdict, many.verdict) == ("not localized", "not localized")
    assert few.close_because.endswith("may be above or below 0.10")
    assert many.close_because is None


def test_a_proof_says_that_it_is_close():
    proof = verdict_on(Planted(GRID, {A: 0.1, B: 0.07}))
    assert (proof.verdict, proof.close) == ("specific", True)
    assert f"close: {proof.close_because}" in str(proof)
    assert proof.close_because in proof._repr_html_()
    assert not verdict_on(APART).close


# The record


def test_the_same_seed_gives_the_same_verdict_with_the_same_figures():
    def again(seed: int) -> dict:
        world = planted_world("main", Grid(16, 16), seed=3)
        controls = [world.control, Soft(world.control)]
        return prove(Soft(world.unseen), world.planted, controls=controls, seed=seed).to_dict()

    assert again(1) == again(1)
    assert again(1)["specificity"] != again(2)["specificity"]


class Soft(ExperimentLike):
    """The same experiment with scores that are neither right nor wrong, whose intervals are drawn."""

    def __init__(self, experiment):
        self.experiment, self.grid, self.n_examples = experiment, experiment.grid, experiment.n_examples
        self.name = f"soft {experiment.name}"

    def __call__(self, masks, examples=None):
        return 0.9 * self.experiment(masks, examples)


def test_a_record_has_every_figure_and_is_read_as_it_was_written():
    proof = verdict_on(APART, Planted(GRID, {A: 0.5}))
    record = json.loads(json.dumps(proof.to_dict()))
    assert (record["verdict"], record["localized"], record["close"]) == (proof.verdict, True, proof.close)
    found = record["specificity"]
    assert found["worst"] == {"control": "task 2", **proof.specificity.worst.to_dict()}
    assert found["shared_with"] == ["task 2"]
    for name in ("own", "mean", "worst", "difference"):
        assert found[name]["low"] < found[name]["loss"] < found[name]["high"]
    assert Confirmation.from_dict(record) == proof
