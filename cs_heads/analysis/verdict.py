"""What a proof comes to: the verdict, what it rests on, and whether it is close.

The verdicts, from measurements on unseen examples; a *loss* is the share of the score above chance that is lost:

- **baseline too low**: the intact model does not beat chance, or answers fewer than 20 examples right; nothing could
  be seen to be lost. Scores on a scorer's own scale are not counted: their mean must beat that with the answers
  exchanged between examples, or chance.
- **not localized**: the heads do not do clearly more harm than random heads of the same layers. Localized in the wide
  sense (``Confirmation.localized``) are heads with p < .01 over sets of heads and over examples
  (``cs_heads.analysis.random_comparison``) and whose loss is larger by .10 or more. Where a grid has too few
  other sets for p < .01, or fewer are asked for, none of them may do as much harm. The three verdicts that are left
  are the kinds of this:
- **specific**: the controls lose little. Their mean loss is at most a third of the task's own, the 95 % interval
  of own loss minus mean control loss lies above .10, and no control by its interval loses more than half of the own
  loss. *Specific but for* one or two such controls it is where these share a form with the task: both ask after worked
  examples, or they have half of the words and marks that most of their questions have.
- **template-bound**: it would be specific or localized, but one of the kin of the task, which ask for the same in other
  words, by its interval loses less than half of what the task loses: the heads serve this wording, and not the skill.
- **shared**: the controls lose as much, or too much for *specific*: more than a third of the own loss on average, or
  one of them more than half of it. Where that is larger the average is that of the controls in the form of the task, if
  there are several (``tasks.worked_examples``): heads that read worked examples carry all of these. Where a control
  that loses too much gives the answers that the task gives, it may be kin in words that cannot be compared: then the
  heads decide. What they take from it makes them *shared*, and *close* where they would be specific without it.
- **localized**: whether it is the one or the other is not known. The controls lose little, and the interval of the
  difference reaches down to .10: a weak effect, or few examples. Or there is no control, or none that can tell: a
  control does not count that is not clearly above chance or has fewer than 20 right answers, and none does where the
  task itself is not clearly above chance. Or the controls are the default ones, and fewer than three of them count.

Controls that the caller gives are chosen to tell something, and one is enough. The default ones are skills that the
model may not have: what is left of them by chance, one or two, is no sample of what else the model does, so *specific*
is not said by it. Those that do not count are told in one note.

A verdict is **close** where another one is compatible with the 95 % intervals: that of the loss beyond random heads
(whose mean is taken as known), that of a third of the own loss minus the mean control loss, that of own loss
minus mean control loss, that of half the own loss minus the loss of each kin, and where a control seems to lose more
than half and may not. Of a control that seems to lose less it is not asked: of many some interval always reaches so
far, and the largest of them is told. So it is where the first of these lies above .10 and a p alone speaks against
*localized*, and where there are so few random sets that p over sets cannot be below .01.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import ndtri

from cs_heads.analysis.losses import MAX_CONTROL, SHARED, Loss, Specificity, TaskDrop, loss_of, weighted_sum
from cs_heads.analysis.random_comparison import MAX_P, MIN_MARGIN, RandomComparison
from cs_heads.tasks.controls import MIN_DEFAULTS, NO_CONTROLS

Verdict = Literal["specific", "template-bound", "shared", "localized", "not localized", "baseline too low"]

MAX_BUT = 2
"""Controls of the task's form that may lose more than half of the own loss, for *specific*."""
MIN_DIFFERENCE = 0.10
"""What the interval of own loss minus mean control loss lies above, for *specific*."""

_NEXT: dict[Verdict, str] = {
    "specific": "see what each of these heads does (cs.explain; cs-heads explain)",
    "template-bound": "give examples in several wordings, and search again",
    "shared": "prove these heads one by one (cs.confirm with a list of one): one may be specific where all are not; or "
    "search with a larger budget",
    "localized": "prove them on more unseen examples, or beside controls that the model does well",
    "not localized": "search with a larger budget, more examples or other units (units=): or many heads carry the task",
}

# Verdicts that heads which do not take the kin of their task turn into template-bound.
_BINDABLE = ("specific", "localized")
# Draws of all losses that say how often a verdict comes again.
_DRAWS = 200

_NONE_COUNTS = "no control counts, so heads of this task cannot be distinguished from task-general (universal) heads"
_FEW_DEFAULTS = (
    f"fewer than {MIN_DEFAULTS} default controls count, too few to call heads specific: give controls of your own that "
    "the model can do (controls=[...]; --control)"
)
_MEAN_OPEN = "the mean control loss may be above or below a third of the own loss"
_OWN_UNKNOWN = (
    "the task's own baseline is too near to chance to say what share of it is lost, so heads of this task cannot be "
    "distinguished from task-general (universal) heads"
)


@dataclass(frozen=True, eq=False, repr=False)
class Judgment:
    """A verdict with its ``reasons``; ``close_because`` says why another one fits the intervals, or is None.

    ``specificity`` has the losses that it was compared with, where there are any; ``notes`` say what weakens it.
    Where it is *specific* but for controls of the task's form, these are ``but_for``. ``again`` is how often the
    verdict is the same where losses are drawn anew from their intervals, as on other examples; NaN where it is not
    localized.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    close_because: str | None = None
    specificity: Specificity | None = None
    notes: tuple[str, ...] = ()
    but_for: tuple[str, ...] = ()
    again: float = float("nan")


def judge(
    result: TaskDrop,
    random: RandomComparison,
    controls: Sequence[TaskDrop],
    defaults: Sequence[str] | None = None,
    *,
    kin: Sequence[TaskDrop] = (),
    alike: Collection[str] = (),
    matched: Collection[str] = (),
    doubtful: Collection[str] = (),
    seed: int = 0,
) -> Judgment:
    """The verdict on heads from what they and random heads take from their task, and what they take from controls.

    Args:
        result: What the heads take from their task.
        random: The heads beside random ones.
        controls: What the heads take from each control.
        defaults: Names of the default controls, also of those that could not be measured; None where ``controls`` were
            chosen by the caller. Where it is empty, as for a model that reads no text, the caller says why.
        kin: What the heads take from tasks that ask for the same in other words.
        alike: Names of the controls that share a form with the task.
        matched: Names of the controls that are asked in its form.
        doubtful: Names of the controls that give the answers of the task, and may be kin.
        seed: Draws the losses of ``Judgment.again``.
    """
    found, notes = Specificity.of(result, controls, matched), _uncounted(controls, defaults)
    if np.isnan(result.loss):
        near = f"the intact model scores {result.baseline:.3f}, no better than chance ({result.chance:.3f})"
        return Judgment("baseline too low", (result.too_low or near,), notes=tuple(notes))
    # As in every difference, no loss counts beyond 0..1.
    lost, by_random = (min(max(loss, 0.0), 1.0) for loss in (result.loss, random.drop / result.above_chance))
    margin = round(lost - by_random, 12)
    localized = random.is_beyond_sets and random.p_examples < MAX_P and margin >= MIN_MARGIN
    reasons = [
        f"on {result.n_examples} unseen examples the score falls from {result.baseline:.3f} to {result.score:.3f}, "
        f"with random heads{random.like} to {result.baseline - random.drop:.3f} on average",
        _over_sets(random),
        f"{_told_p(random.p_examples)} over examples ({'below' if random.p_examples < MAX_P else 'not below'} {MAX_P})",
        f"loss {margin:+.2f} beyond that of random heads ({'at least' if margin >= MIN_MARGIN else 'less than'} "
        f"{MIN_MARGIN:.2f})",
    ]
    low, high = (bound - result.loss + margin for bound in result.loss_interval)
    close = []
    if np.isnan([low, high]).any():
        close.append("the interval of the loss is not known")
    beyond = f"the loss beyond that of random heads ({low:+.2f} to {high:+.2f})"
    if low < MIN_MARGIN and (localized or high >= MIN_MARGIN):
        close.append(f"{beyond} may be above or below {MIN_MARGIN:.2f}")
    elif low >= MIN_MARGIN and not localized:
        by_examples = random.is_beyond_sets or random.stopped
        over, p = ("examples", random.p_examples) if by_examples else ("sets of heads", random.p_sets)
        close.append(f"{beyond} lies above {MIN_MARGIN:.2f}, but p = {p:.4f} over {over} is not below {MAX_P}")
    if localized and random.p_sets >= MAX_P:
        close.append(
            f"with so few random sets ({len(random.drops)}) p = {random.p_sets:.4f} over sets is not below {MAX_P}"
        )
    verdict: Verdict = "localized" if localized else "not localized"
    but_for: tuple[str, ...] = ()
    own, again = loss_of(result), float("nan")
    kind = partial(_kind, by_default=defaults is not None, alike=alike)
    carried = {one.task: loss for one in kin if (loss := loss_of(one)) is not None}
    if localized and found is not None:
        verdict, but_for, open_ = kind(found)
        without = partial(_without, found, kind=kind, kin=carried)
        reasons += [*_told(found, but_for), *_but_for_few(found, without, verdict)]
        close += [*open_, *_in_doubt(found, doubtful, without)]
        if _are_few(found, by_default=defaults is not None) and verdict == "localized":
            notes.append(_FEW_DEFAULTS)
    elif localized and (defaults is None or len(defaults)):
        notes.append(NO_CONTROLS if not controls else _OWN_UNKNOWN if own is None else _NONE_COUNTS)
    if localized and own is not None:
        said, open_ = _carried(own, carried, [one.task for one in kin if one.task not in carried])
        reasons += said
        bound = _bound(verdict, own, carried)
        close += open_ if verdict in _BINDABLE and bound == verdict else []
        verdict = bound
        but_for = but_for if verdict == "specific" else ()
        losses = found or Specificity(own, {})
        again = _again(verdict, losses, carried, kind=kind, spare=margin - MIN_MARGIN, seed=seed)
    return Judgment(verdict, tuple(reasons), "; ".join(close) or None, found, tuple(notes), but_for, again)


def next_step(verdict: Verdict, n_heads: int, random: RandomComparison) -> str:
    """What to do after a verdict on so many heads; where a baseline is too low ``remedy`` says it."""
    if verdict == "not localized" and random.p_examples < MAX_P and not random.is_beyond_sets:
        # They do more harm than random heads on average: it is single sets that speak against them.
        untold = "prove them on more unseen examples (n=), which tell more random sets from them"
        return untold if random.n_untold else "see which other heads do as much harm, as some random sets do"
    one = verdict == "shared" and n_heads == 1
    return "see what the controls that lose have in common with the task" if one else _NEXT[verdict]


def _bound(verdict: Verdict, own: Loss, kin: Mapping[str, Loss]) -> Verdict:
    bound = any(Specificity(own, kin).beyond_half(one).high < 0 for one in kin.values())
    return "template-bound" if bound and verdict in _BINDABLE else verdict


def _carried(own: Loss, kin: Mapping[str, Loss], left_out: Sequence[str]) -> tuple[list[str], list[str]]:
    """In words what each kin loses, and whether that is less than half of the own loss where it is open."""
    said = [f"kin of the task that the intact model does not do well enough: {', '.join(left_out)}"] if left_out else []
    open_ = []
    for name, one in kin.items():
        more = Specificity(own, kin).beyond_half(one)
        half = "less than half" if more.loss < 0 else "half or more"
        said.append(f"the same in other words ({name}) loses {one}: {half} of what the task loses")
        if more.low <= 0 <= more.high:
            open_.append(f"whether {name} loses half of what the task loses is not certain")
    return said, open_


_Kind = Callable[[Specificity], tuple[Verdict, tuple[str, ...], list[str]]]
_Without = Callable[[Collection[str]], Verdict | None]


def _but_for_few(found: Specificity, without: _Without, verdict: Verdict) -> list[str]:
    """Whether heads are shared for the sake of one or two controls alone, in words."""
    much = found.shared_with
    alone = verdict == "shared" and 0 < len(much) <= MAX_BUT and without(much) == "specific"
    has = "it has" if len(much) == 1 else "they have"
    said = f"without {' and '.join(much)} they would be specific: see what {has} in common with the task"
    return [said] if alone else []


def _without(found: Specificity, left_out: Collection[str], *, kind: _Kind, kin: Mapping[str, Loss]) -> Verdict | None:
    """The verdict without some controls; None where no other is left."""
    others = {name: one for name, one in found.controls.items() if name not in left_out}
    return _bound(kind(replace(found, controls=others))[0], found.own, kin) if others else None


def _in_doubt(found: Specificity, doubtful: Collection[str], without: _Without) -> list[str]:
    """Whether heads are shared only with controls that give the answers of the task, in words."""
    same = [name for name in found.shared_with if name in doubtful]
    if not same or without(same) != "specific":
        return []
    gives, is_ = ("gives", "it is") if len(same) == 1 else ("give", "they are")
    named = ", ".join(same)
    return [f"{named} {gives} the answers of the task: if {is_} the same skill in other words, the heads are specific"]


def _again(
    verdict: Verdict,
    found: Specificity,
    kin: Mapping[str, Loss],
    *,
    kind: _Kind,
    spare: float,
    seed: int,
) -> float:
    """The share of draws in which the verdict is the same, and the own loss not smaller by more than it can spare."""
    rng, same = np.random.default_rng(seed), 0
    for _ in range(_DRAWS):
        own = _redrawn(found.own, rng)
        others, beside = ({name: _redrawn(one, rng) for name, one in each.items()} for each in (found.controls, kin))
        drawn = replace(found, own=own, controls=others)
        came = _bound(kind(drawn)[0] if others else "localized", own, beside)
        same += came == verdict and found.own.within.loss - own.within.loss <= spare
    return same / _DRAWS


def _redrawn(one: Loss, rng: np.random.Generator) -> Loss:
    """A loss as other examples might give it: as far off as its interval reaches, which moves with it."""
    z = float(rng.normal() / ndtri(0.975))
    moved = z * (one.high - one.loss if z > 0 else one.loss - one.low)
    return Loss(one.loss + moved, one.low + moved, one.high + moved)


def _told_p(p: float) -> str:
    return f"p = {p:.4f}" if p >= 1e-4 else "p < 0.0001"


def _over_sets(random: RandomComparison) -> str:
    n, k = len(random.drops), random.n_as_harmful
    if random.stopped:
        return f"the {n} random sets were not told apart one by one, since what follows speaks against the heads"
    less = f"{n - k} of {n}" if k else f"all {n}"
    said = f"{less} random sets seem to do less harm" if n > 1 or k else "the random set seems to do less harm"
    if random.p_sets > (1 + k) / (1 + n):
        said += " on a few examples each, which p allows for"
    if random.n_untold:
        said += f" ({random.n_untold} of the others may, but the evaluations allowed did not tell: more examples would)"
    is_below = random.p_sets < MAX_P
    least = "" if k else f", the smallest that so {'many' if is_below else 'few'} allow"
    told = f"{_told_p(random.p_sets)} over sets of heads, {'below' if is_below else 'not below'} {MAX_P}{least}"
    return f"{told}: {said}; of all such sets at most {100 * random.most_as_harmful:.1f} % do as much"


def _uncounted(controls: Sequence[TaskDrop], defaults: Sequence[str] | None) -> list[str]:
    """A note for each control that does not count; the default ones share a note."""
    counted = [control.task for control in controls if loss_of(control) is not None]
    if defaults is not None:
        return [*default_note(defaults, counted)]
    near = "its baseline of {0.baseline:.3f} may be no better than chance ({0.chance:.3f})"
    left_out = [one for one in controls if one.task not in counted]
    return [f"control {one.task} does not count: {one.too_low or near.format(one)}" for one in left_out]


def default_note(defaults: Sequence[str], counted: Collection[str]) -> tuple[str, ...]:
    """How many of the default controls count, and which do not; nothing where all do.

    >>> default_note(["everyday/sums", "everyday/past"], ["everyday/past"])
    ('1 of 2 default controls count; the intact model does not do the others well enough: everyday/sums',)
    """
    others = [name for name in defaults if name not in counted]
    counts = f"{len(defaults) - len(others)} of {len(defaults)} default controls count"
    return (f"{counts}; the intact model does not do the others well enough: {', '.join(others)}",) if others else ()


def _are_few(found: Specificity, by_default: bool) -> bool:
    """Whether too few default controls count to call heads specific, whatever the intervals."""
    return by_default and len(found.controls) < MIN_DEFAULTS


def _kind(found: Specificity, by_default: bool, alike: Collection[str]) -> tuple[Verdict, tuple[str, ...], list[str]]:
    """Specific, shared or localized, what it is specific but for, and in words what the intervals leave open."""
    few = _are_few(found, by_default)
    heavier, much = found.by_form, found.shared_with
    difference, mean_little = heavier.difference, heavier.is_mean_little
    spare = weighted_sum([found.own.within, heavier.mean], [MAX_CONTROL, -1.0])
    few_of_form = len(much) <= MAX_BUT and {*much} <= {*alike}
    little = mean_little and few_of_form
    specific = not few and little and difference.low > MIN_DIFFERENCE
    open_ = []
    # On the one side of the third they are shared, on the other specific or localized.
    if spare.low < 0 <= spare.high and few_of_form:
        open_.append(_MEAN_OPEN)
    if not few and little and spare.high >= 0 and difference.low <= MIN_DIFFERENCE < difference.high:
        open_.append(f"own loss minus mean control loss may be above or below {MIN_DIFFERENCE:.2f}")
    more = [name for name, one in found.controls.items() if one.loss > SHARED * found.own.within.loss > 0]
    if little and (seem := [name for name in more if name not in much]):
        open_.append(f"{', '.join(seem)} may lose more than half of the own loss")
    return "specific" if specific else "localized" if little else "shared", much if specific else (), open_


def _told(found: Specificity, but_for: Sequence[str]) -> list[str]:
    """What specificity rests on."""
    many = len(found.controls) > 1
    controls = f"its {len(found.controls)} controls {found.mean} on average" if many else f"its control {found.mean}"
    heavier, third = found.by_form, {True: "at most a third of that", False: "more than a third of that"}
    little = third[found.is_mean_little]
    reasons = [f"of the score above chance the task loses {found.own_counted}, {controls}: {little}"]
    if heavier is not found:
        little = third[heavier.is_mean_little]
        reasons.append(f"its {len(heavier.controls)} controls in its form lose {heavier.mean} on average: {little}")
    if many:
        worst = found.worst
        most = f"the control that loses most, {found.worst_control}, loses {worst.loss:.2f}"
        reasons.append(f"{most}; the largest loss of any control lies in {worst.low:+.2f} to {worst.high:+.2f}")
    above = "above" if heavier.difference.low > MIN_DIFFERENCE else "not clearly above"
    less = "mean control loss" if heavier is found else "what those in its form lose"
    reasons.append(f"own loss minus {less} {heavier.difference}: {above} {MIN_DIFFERENCE:.2f}")
    if found.worst.loss > 1:
        reasons.append("a loss above 1.00 falls below chance, and counts as 1.00")
    if found.shared_with:
        form = ", of the same form" if but_for else ""
        beyond = {name: found.beyond_half(found.controls[name]) for name in found.shared_with}
        named = ", ".join(f"{name} (beyond half {one})" for name, one in beyond.items())
        reasons.append(f"more than half of the own loss is lost by {named}{form}")
    return reasons
