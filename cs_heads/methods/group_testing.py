"""Adaptive group testing: heads and pairs of heads that carry a task together, though none does alone.

A regression on random masks sees what each head does by itself. Of two heads that are fully redundant (backups),
neither does anything until both are off, as they are in few masks. But a mask that has both off shows it at once: it
breaks the task and leaves the controls whole. So random masks are *screened* on a few examples each (a sequential
probability ratio test, Wald 1945), and the few that break the task are *bisected*: parts of them are measured until one
head or one pair is left that explains all answers (noisy adaptive group testing, after Dorfman 1943).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from cs_heads.experiment.cost import Budget, check_budget
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.controls import Contrast, Controls, controls_notes
from cs_heads.methods.losses import BothEffects, TaskLoss
from cs_heads.methods.ranking_method import RankingSteps, ranking_method
from cs_heads.progress import step
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid

Losses: TypeAlias = Float[np.ndarray, "row k"]
Heads: TypeAlias = Int[np.ndarray, " head"]
Sets: TypeAlias = Bool[np.ndarray, "set head"]

# A group is shared where its controls lose half as much as the task and more than this.
_SHARED = 0.25
# Nothing is lost or kept for sure.
LEAST = 0.02


@dataclass
class Side:
    """A task, or its controls: the score that masks keep, and the score expected under masks of ``n`` heads.

    What is kept is the response above guessing as a share of the intact one, clipped to 0..1; ``floor`` is what an
    answer that is guessed keeps on average after the clip. Masks of ``n`` heads keep ``exp(-n / scale)``.
    """

    grid: Grid
    losses: TaskLoss | Controls
    scale: float
    budget: Budget
    rng: np.random.Generator = field(repr=False)
    seen: list[tuple[int, float, int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        # A guessed answer keeps all or nothing after the clip, whatever it would have lost; a probability hardly does.
        self.floor = self.losses.guess

    def losses_of(self, off: Sequence[Heads], n: int, *, same: bool = False) -> Losses:
        """The loss of ``n`` random examples with each row's heads off; ``same`` takes the same examples in all rows."""
        n = min(n, self.losses.n_examples)
        self.budget.pay(n * len(off))
        masks = np.stack([np.isin(np.arange(self.grid.size), heads) for heads in off])
        places = self.rng.random((1 if same else len(off), self.losses.n_examples)).argsort(axis=1)[:, :n]
        return self.losses(masks.reshape(-1, *self.grid.shape), np.broadcast_to(places, (len(off), n)).copy())

    def keep(self, off: Sequence[Heads], n: int) -> Losses:
        """What each of ``n`` random examples keeps with each row's heads off, within 0..1."""
        return np.clip(1 - self.losses_of(off, n), 0, 1)

    def error_of(self, losses: Float[np.ndarray, " k"]) -> float:
        """The standard error of a mean loss, with half an example added that went the other way.

        None lost of a few is no proof that none is.
        """
        one = 1 / (1 - self.floor)
        return float(np.sqrt((losses.var() * len(losses) + one**2 / 2) / len(losses) / (len(losses) + 1)))

    def rule(self, n: Any, effect: Any = 0.0) -> Any:
        """The share kept on average with ``n`` random heads off, and further heads with this ``effect``."""
        kept = self.floor + (1 - self.floor) * np.exp(-np.asarray(n) / self.scale) * (1 - effect)
        return np.clip(kept, LEAST, 1 - LEAST)

    def learn(self, n: int, kept: Float[np.ndarray, "row k"]) -> None:
        """Update the expected score from random masks of ``n`` heads; only the last eight waves count."""
        self.seen = [*self.seen[-7:], (n, float(kept.mean()), kept.size)]
        sizes, means, times = np.array(self.seen).T
        above = (np.average(means, weights=times) - self.floor) / (1 - self.floor)
        self.scale = float(np.average(sizes, weights=times) / -np.log(np.clip(above, 0.1, 0.97)))

    def evidence(self, n: int, kept: Float[np.ndarray, "*row k"]) -> Float[np.ndarray, "*row"]:
        """Log likelihood ratio of the answers: half of what masks of ``n`` heads keep is lost, against nothing lost."""
        clean, broken = self.rule(n), self.rule(n, 0.5)
        return np.asarray((kept * np.log(broken / clean) + (1 - kept) * np.log((1 - broken) / (1 - clean))).sum(-1))


@dataclass(frozen=True)
class Group(BothEffects):
    """One head, or a pair, and what the task and its controls lose with it off; of a pair what each takes ``alone``."""

    heads: tuple[int, ...] = ()
    alone: tuple[float, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether the controls lose it as well."""
        return self.controls > max(_SHARED, self.task / 2)

    def named(self, grid: Grid) -> str:
        """Its heads by name."""
        return " and ".join(str(grid.unit(head)) for head in self.heads)

    def told(self, grid: Grid, *, with_controls: bool) -> dict[str, Any]:
        """What is known of it, JSON-ready."""
        unknown = {"reach"} if with_controls else {"reach", "controls", "controls_error"}
        known = {name: value for name, value in asdict(self).items() if name not in unknown}
        return known | {"heads": [str(grid.unit(head)) for head in self.heads], "alone": [*self.alone], "z": self.z}


# Masks screened at a time, of which some show what a mask does to the controls.
WAVE, ON_CONTROLS = 48, 4
# Examples a mask in turn while it is suspect, and the log likelihood ratios that end it.
STEPS, _DROP, _SUSPECT = (3, 3, 4, 6, 8), -0.7, 2.5
# Share of the score above chance that random masks leave.
_TARGET = 0.5
# Heads of a mask at most: its pairs are all held at once.
_MOST_OFF = 128
# What heads may take of a task, from the least worth finding to all.
_EFFECTS = np.array([0.3, 0.5, 0.75, 1.0])
# How far masks of one size differ: a part of a mask breaks more or less of the task than others of its size.
_SPREAD = np.array([0.75, 1.0, 1.1])
# Parts of a mask measured at a time, on so many examples each, and the most that one bisection may spend.
_PARTS, _PER_PART, BISECTION = 4, 4, 420
_SURE, _LIKELY = 0.93, 0.6
# Heads of a grid that are too few for masks.
_FEW = 3
# Examples of the task, and of its controls, on which a culprit is tried; and in the end, if it is one.
_TRIED, _PROVED = 24, 48
# What is tried is kept for the end where the task loses more than its controls by so many standard errors.
_KEPT = 1.0


@dataclass
class Search:
    """Screens wave after wave of masks, and bisects those that break something."""

    sides: list[Side]
    pool: Heads
    groups: list[Group] = field(default_factory=list)
    shared: list[Group] = field(default_factory=list)
    lost: list[tuple[Heads, float]] = field(default_factory=list, repr=False)
    n_tried: int = 0

    def __post_init__(self) -> None:
        task = self.sides[0]
        self.grid, self.budget, self.rng = task.grid, task.budget, task.rng

    @property
    def known(self) -> list[Group]:
        """The groups found so far, shared ones too."""
        return [*self.groups, *self.shared]

    @property
    def reserve(self) -> int:
        """The cost of one more bisection and test, and of the final measurement of all groups."""
        a_trial = (3 + 1 + len(self.sides)) * _TRIED
        return BISECTION + a_trial + (len(self.groups) + 1) * _PROVED * (2 + len(self.sides))

    def run(self) -> None:
        """Spend the budget, then measure the groups found once more."""
        if len(self.pool) <= _FEW:
            # Any mask is a large part of so few: each head is tried, then each pair of those that are left.
            for heads in [set_ for n in (1, 2) for set_ in combinations(self.pool.tolist(), n)]:
                known = {head for group in self.known for head in group.heads}
                if not known & {*heads} and self.budget.left > self.reserve - BISECTION:
                    self._try(self.sides[0], heads)
        while self.budget.left > self.reserve + WAVE * sum(STEPS[:2]) and len(self.pool) > _FEW:
            step(f"{self.n_tried} groups tried, {len(self.groups)} kept")
            self._wave()
        step(f"proof of {len(self.groups)} groups")
        singles = {group.heads[0] for group in self.groups if len(group.heads) == 1}
        kept = [group for group in self.groups if len(group.heads) == 1 or not singles & {*group.heads}]
        proved = {group.heads: group for group in (self._proved(group.heads) for group in kept)}
        clear = -ndtri(0.05 / max(self.n_tried, 1))
        self.groups = sorted((g for g in proved.values() if g.z > clear and not g.is_shared), key=lambda g: -g.z)

    def _wave(self) -> None:
        task = self.sides[0]
        n = max(2, min(int(-np.log(_TARGET) * task.scale), _MOST_OFF, len(self.pool) // 2))
        masks = [self._draw(n) for _ in range(WAVE)]
        for side in self.sides[1:]:
            side.learn(n, side.keep(masks[:ON_CONTROLS], ON_CONTROLS))
        suspects, evidence = np.arange(WAVE), np.zeros(WAVE)
        for turn, per_mask in enumerate(STEPS):
            if self.budget.left < self.reserve + per_mask * len(suspects):
                return
            kept = task.keep([masks[place] for place in suspects], per_mask)
            if not turn:
                task.learn(n, kept)
                lost = task.rule(n) - kept.mean(axis=1)
                self.lost += zip(masks, (lost / (1 - task.floor)).tolist(), strict=True)
            evidence[suspects] += task.evidence(n, kept)
            suspects = suspects[evidence[suspects] > _DROP]
            if not len(suspects):
                return
        for place in suspects[evidence[suspects] > _SUSPECT]:
            known = any(np.isin(group.heads, masks[place]).all() for group in self.known)
            if self.budget.left > self.reserve and not known:
                self._find(masks[place])

    def _draw(self, n: int) -> Heads:
        """Random heads, with at most one head of each known pair."""
        heads = self.rng.choice(self.pool, n, replace=False)
        for group in self.known:
            if np.isin(group.heads, heads).all():
                heads = heads[heads != self.rng.choice(group.heads)]
        return heads

    def _find(self, heads: Heads) -> None:
        """Find what breaks a mask, of the controls where these break too, and test it."""
        task, *controls = self.sides
        breaks = (side for side in controls if side.evidence(len(heads), side.keep([heads], _TRIED)[0]) > 1)
        broken = next(breaks, task)
        found = self._bisect(broken, heads)
        if found is not None:
            self._try(broken, found)

    def _try(self, broken: Side, found: tuple[int, ...]) -> None:
        """Test a head or a pair (or the one head of it that suffices), and keep it or set it aside."""
        if len(found) == 2:
            *alone, both = broken.losses_of(_parts_of(found), _TRIED, same=True).mean(axis=1)
            if max(alone) > 0.8 * both:
                found = (found[int(np.argmax(alone))],)
        self.n_tried += 1
        group = self._group(found, [], _TRIED)
        if group.is_shared:
            self.shared.append(group)
        elif group.z > _KEPT:
            self.groups.append(group)
        elif len(found) == 2:
            return
        if len(found) == 1:
            self.pool = np.setdiff1d(self.pool, found)

    def _proved(self, heads: tuple[int, ...]) -> Group:
        """A group on more examples; of a pair only the stronger head, unless both together clearly take more."""
        if len(heads) == 1:
            return self._group(heads, [], _PROVED)
        task = self.sides[0]
        *each, both = task.losses_of(_parts_of(heads), _PROVED, same=True)
        alone = tuple(float(losses.mean()) for losses in each)
        larger = int(np.argmax(alone))
        if both.mean() - alone[larger] < 2 * task.error_of(both - each[larger]):
            return self._group(heads[larger : larger + 1], [each[larger]], _PROVED)
        return replace(self._group(heads, [both], _PROVED), alone=alone)

    def _bisect(self, side: Side, heads: Heads) -> tuple[int, ...] | None:
        """The head or the pair of a mask that explains what is lost, or None.

        Parts of the mask are measured, chosen so that they hold what is sought with an even chance; the posterior is
        over all heads, all pairs, what they take, and nothing of the kind.
        """
        n = len(heads)
        sets = singles_and_pairs(n)
        size = sets.sum(axis=1)
        prior = np.where(size == 1, 0.5 / n, 0.5 / max(len(size) - n, 1)) / len(_EFFECTS)
        posterior, nothing = np.log(np.repeat(prior[:, None], len(_EFFECTS), axis=1)), 0.0
        until = self.budget.left - BISECTION
        while True:
            total = np.logaddexp(np.logaddexp.reduce(posterior, axis=None), nothing)
            shares, none = np.exp(posterior - total).sum(axis=1), float(np.exp(nothing - total))
            best = int(shares.argmax())
            if none > 0.9 or shares[best] > _SURE or self.budget.left - _PARTS * _PER_PART < until:
                return tuple(sorted(heads[sets[best]].tolist())) if shares[best] > _LIKELY else None
            parts = [self._part(sets, size, shares / max(1 - none, 1e-9)) for _ in range(_PARTS)]
            kept = side.keep([heads[part] for part in parts], _PER_PART)
            for part, of_part in zip(parts, kept, strict=True):
                held = (sets.astype(np.int32) @ part) == size
                clean = side.rule(part.sum()) * _SPREAD
                broken = side.floor + np.maximum(clean - side.floor, 0)[:, None] * (1 - _EFFECTS)
                nothing_here = _likelihood(of_part, clean)
                posterior[held] += _likelihood(of_part, broken)
                posterior[~held] += nothing_here
                nothing += float(nothing_here)

    def _part(
        self, sets: Sets, size: Int[np.ndarray, " set"], shares: Float[np.ndarray, " set"]
    ) -> Bool[np.ndarray, " head"]:
        """Of several random parts, the one whose probability of holding the culprit is nearest to one half."""
        densities = self.rng.choice([0.4, 0.6, 0.75], 24)
        parts = self.rng.random((24, sets.shape[1])) < densities[:, None]
        held = (parts.astype(np.float32) @ sets.T.astype(np.float32)) == size
        return np.asarray(parts[np.abs(held @ shares - 0.5).argmin()])

    def of_masks(self) -> Float[np.ndarray, " flat"]:
        """The mean excess loss of masks with each head off: too imprecise for an importance, but it orders heads."""
        times, total = np.zeros((2, self.grid.size))
        for heads, lost in self.lost:
            times[heads] += 1
            total[heads] += lost
        return total / np.maximum(times, 1)

    def _group(self, heads: tuple[int, ...], measured: list[Float[np.ndarray, " k"]], n: int) -> Group:
        """Measure a group on the sides that are not measured yet."""
        off = [np.array(heads)]
        losses = [*measured, *(side.losses_of(off, n)[0] for side in self.sides[len(measured) :])]
        figures = [(float(each.mean()), side.error_of(each)) for side, each in zip(self.sides, losses, strict=True)]
        (task, error), (controls, controls_error) = (*figures, (0.0, 0.0))[:2]
        return Group(task, error, controls, controls_error, heads=heads)


def _parts_of(pair: tuple[int, ...]) -> list[Heads]:
    """Each head of a pair alone, then both."""
    return [*(np.array([head]) for head in pair), np.array(pair)]


@cache
def singles_and_pairs(n: int) -> Sets:
    """Every head of ``n``, then every pair."""
    pairs = np.array(list(combinations(range(n), 2)), dtype=int).reshape(-1, 2)
    sets = np.zeros((n + len(pairs), n), dtype=bool)
    sets[np.arange(n), np.arange(n)] = True
    sets[n + np.arange(len(pairs))[:, None], pairs] = True
    return sets


def _likelihood(kept: Float[np.ndarray, " k"], levels: Float[np.ndarray, "*effect spread"]) -> Any:
    """Log likelihood of answers that keep so much on average, over how far masks of one size differ."""
    level = np.clip(levels, LEAST, 1 - LEAST)
    return np.logaddexp.reduce(kept.sum() * np.log(level) + (1 - kept).sum() * np.log(1 - level), axis=0)


# Example-evaluations for masks by default: about what it takes to have a given pair off some six times, and on a small
# grid no more than so many for each of its pairs.
_MASKS, _A_PAIR = 32_000, 12
# Importance that orders heads of which nothing was found, and passes no measured difference.
_TIE = 1e-6


@ranking_method("group testing")
def group_testing(
    experiment: ExperimentLike, *, controls: Sequence[ExperimentLike] = (), budget: int | None = None, seed: int = 0
) -> RankingSteps:
    """Find heads, and pairs of heads that are redundant, by what breaks a task and not its controls.

    Random masks, so dense that the task keeps about half of its score above chance, run on three examples of those
    that the intact model gets right, and on more while they seem to break the task. Of those that do, one head or
    pair is sought that explains it, on the task, or on the controls where these break too. What is found is tried alone
    on the task and the controls, and at the end once more on up to 48 examples of each, whose figures are reported.
    Use it to sense again (``off=`` the heads found), or in place of ``annealed`` where backups are suspected: it finds
    what no single head shows, at several times the cost, and misses small effects (less than about .3 of the score).

    Groups that take clearly more from the task than from its controls (one-sided 5 %, Bonferroni over all groups tried)
    are ``chosen`` and ``claims``, the clearest first; a pair stands together. The importance of their heads is what the
    task loses with the *group* off, as score lost; ``provenance["groups"]`` has the groups with their losses, the
    controls' and what each head of a pair takes alone. ``shared`` are heads, alone or in a pair, that the task and the
    controls lose by. Of all other heads nothing is known: their importance is 0, but for millionths that order them by
    what masks with them lost.

    Args:
        experiment: The task.
        controls: Experiments on other tasks. Without any, heads of every task are found as well.
        budget: Example-evaluations in all; by default 32,000, or 12 for each pair of a small grid, and what runs before
            the first mask. A pair is off in one of some 300 masks (density .06), so fewer find fewer.
        seed: Of all draws.

    Returns:
        The ranking, heads found first and shared ones last, with its cost, provenance and notes.

    Raises:
        ValueError: A wrong argument, before anything is measured.
        BaselineTooLowError: The intact model has fewer than 20 right answers, or is no better than chance.
    """
    grid, rng = experiment.grid, np.random.default_rng(seed)
    before = Contrast.cost(experiment, controls)
    least = before + 2 * (WAVE * (STEPS[0] + ON_CONTROLS) + BISECTION)
    check_budget(budget, least, "two waves of masks and two bisections, after the intact run")
    usual = max(least, before + min(_MASKS, _A_PAIR * (grid.size * (grid.size - 1) // 2)))
    spending = Budget(usual if budget is None else int(budget))
    yield spending.total
    spending.pay(before)
    task, known = TaskLoss.of(experiment), Controls.able(controls, seed)
    sides = [Side(grid, each, grid.size / 8, spending, rng) for each in (task, known) if each.n_examples]
    search = Search(sides, np.flatnonzero(~experiment.off.ravel()))
    search.run()
    yield _ranking(search, task, known, {"budget": spending.total, "seed": seed})


def _ranking(search: Search, task: TaskLoss, known: Controls, design: dict[str, Any]) -> HeadRanking:
    grid, groups = search.grid, search.groups
    importance, of_controls = _TIE * search.of_masks(), np.zeros(grid.size)
    # What the controls alone need breaks their masks, and is set aside, but the task does without it.
    of_both = [group for group in search.shared if group.task > _SHARED]
    singles, pairs = ([group for group in of_both if len(group.heads) == n] for n in (1, 2))
    for group in [*singles, *reversed(groups)]:
        importance[[*group.heads]], of_controls[[*group.heads]] = group.task * task.all_lost, group.controls
    chosen = list(dict.fromkeys(head for group in groups for head in group.heads))
    shared = sorted({head for group in of_both for head in group.heads} - {*chosen})
    found = f"group testing found {len(groups)} groups of heads, {len(chosen)} heads in all"
    notes = [f"{found}; it says nothing of the others (importance 0, but for what orders them)"]
    for group in groups:
        if len(group.heads) == 2:
            alone = " and ".join(f"{each:.2f}" for each in group.alone)
            redundant = f"{group.named(grid)} are redundant: together they take {group.task:.2f} of the task"
            notes.append(f"{redundant}, alone {alone}")
    for group in pairs:
        both = f"{group.task:.2f} of the task and {group.controls:.2f} of its controls"
        notes.append(f"{group.named(grid)} are shared: together they take {both}")
    with_controls = len(search.sides) > 1
    units = [tuple(grid.unit(int(head)) for head in heads) for heads in (chosen, shared)]
    return HeadRanking(
        method="group-testing",
        importance=importance.reshape(grid.shape),
        grid=grid,
        spent=search.budget.spent,
        claims=units[0],
        shared=units[1],
        shared_effects=tuple({"head": group.named(grid), **group.to_dict()} for group in singles),
        chosen=units[0],
        control_importance=of_controls.reshape(grid.shape) if with_controls else None,
        off=tuple(grid.units(task.experiment.off)),
        provenance={
            "design": design,
            "controls": known.names,
            "controls_left_out": known.left_out,
            "groups": [group.told(grid, with_controls=with_controls) for group in groups],
            "shared_pairs": [group.told(grid, with_controls=with_controls) for group in pairs],
            "n_right": task.n_right,
            "n_masks": len(search.lost),
            "n_tried": search.n_tried,
        },
        notes=(*task.notes, *controls_notes(known.left_out, known.names), *notes),
    )
