"""Sets of the best heads, measured as sets: what several heads take together is not the sum of what each takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.blame import Blame
from cs_heads.methods.annealing.rows import PerRow, Planned, Rows, Sensor, measure, sparse_rows
from cs_heads.methods.annealing.search import Search
from cs_heads.progress import step

# How much wider than their standard errors the priors may be: what heads do together may differ.
_WIDER = (1.0, 1.5, 2.0, 3.0, 5.0)
_NOISE = (0.3, 0.5, 0.7, 0.9)
# What sets are drawn with before any is measured.
_FIRST = 2.0
# A head replaces one of a better rank where it is better by so many standard errors of the difference.
_CLEARLY = 4.0
_N_ROUNDS = 6
# By how many standard errors the challenger must win.
_WON = 1.0


@dataclass(frozen=True, eq=False)
class Known:
    """Mean and covariance of what each candidate adds to a set."""

    mean: Float[np.ndarray, " head"]
    covariance: Float[np.ndarray, "head head"]

    def draw(self, n: int, rng: np.random.Generator) -> Float[np.ndarray, "draw head"]:
        """``n`` draws."""
        return rng.multivariate_normal(self.mean, self.covariance, size=n, method="cholesky")


class Sets(ABC):
    """Measures sets of ``k`` candidates, which are given in their current order, and finds the best."""

    duel: ClassVar[int] = 0
    """Rounds that are left to hold two sets against each other."""

    def __init__(
        self, sensor: Sensor, candidates: Int[np.ndarray, " head"], blame: Blame, k: int, weight: float = 1.0
    ) -> None:
        self.sensor, self.candidates, self.k, self.weight = sensor, candidates, k, weight
        self.rows = Rows.none(sensor.grid.size, sensor.per_row, sensor.of_controls)
        self.begin(blame)

    @abstractmethod
    def begin(self, blame: Blame) -> None:
        """Take what is known before any set is measured."""

    @abstractmethod
    def plan(self, n: int, rng: np.random.Generator) -> Planned:
        """``n`` sets, each the best under a draw from the posterior (Thompson sampling)."""

    @abstractmethod
    def fit(self, members: Float[np.ndarray, "row candidate"]) -> None:
        """Fit all rows, in which these candidates were off."""

    @abstractmethod
    def best(self) -> Int[np.ndarray, " k"]:
        """The best set, its best head first."""

    def add(self, rows: Rows) -> None:
        """Take rows that were planned and measured."""
        self.rows += rows
        self.fit(self.rows.off[:, self.candidates].toarray())

    def plan_duel(self, n: int) -> list[Planned]:  # noqa: ARG002
        """Two sets on ``n`` rows each, on the same examples; nothing where there is no duel."""
        return []

    def winner(self, duel: Sequence[Rows]) -> Int[np.ndarray, " k"]:  # noqa: ARG002
        """The best set, by the rows of ``plan_duel``, too."""
        return self.best()

    def _planned(self, sets: list[Int[np.ndarray, " k"]], beside: Planned | None = None) -> Planned:
        off = sparse_rows(sets, self.sensor.grid.size)
        return self.sensor.plan(off, np.zeros(len(sets), dtype=int), beside=beside)


class SummingSets(Sets):
    """Sets in which heads take a sum: estimates the contrast of each."""

    duel: ClassVar[int] = 2

    def begin(self, blame: Blame) -> None:
        """Take the contrast of each candidate."""
        self.contrast, self.error = blame.contrast[self.candidates], blame.error[self.candidates]
        self.known = Known(self.contrast, np.diag((_FIRST * self.error) ** 2))

    def plan(self, n: int, rng: np.random.Generator) -> Planned:
        """``n`` sets, each the best under a draw from the posterior (Thompson sampling)."""
        sets = np.argsort(-self.known.draw(n, rng), axis=1, kind="stable")[:, : self.k]
        return self._planned([np.sort(self.candidates[places]) for places in sets])

    def fit(self, members: Float[np.ndarray, "row candidate"]) -> None:
        """Fit all rows, in which these candidates were off."""
        self.known = posterior(members, self._lost(self.rows), self.contrast, self.error)

    def plan_duel(self, n: int) -> list[Planned]:
        """The set of ``best`` on ``n`` rows, and the likeliest one on the same examples; nothing where they are one."""
        first, challenger = self.best(), self.best(clearly=0.0)
        if n < 2 or set(first) == set(challenger):
            return []
        one = self._planned([np.sort(first)] * n)
        return [one, self._planned([np.sort(challenger)] * n, beside=one)]

    def winner(self, duel: Sequence[Rows]) -> Int[np.ndarray, " k"]:
        """The set of ``best``, or the likeliest one where that proves better in the rows of ``plan_duel``."""
        if not duel:
            return self.best()
        n, gain = len(duel[0]), self._lost(duel[0] + duel[1])
        gain = gain[n:] - gain[:n]
        return self.best(clearly=0.0 if gain.mean() > _WON * gain.std(ddof=1) / np.sqrt(n) else _CLEARLY)

    def _lost(self, rows: Rows) -> PerRow:
        """The loss of the task minus the loss of the controls, for each row."""
        return -rows.response() / self.sensor.task.above_guess - self.weight * rows.control_response()

    def best(self, clearly: float = _CLEARLY) -> Int[np.ndarray, " k"]:
        """The first ``k`` candidates, each replaced where another is ``clearly`` better in the sets; the best first."""
        places, mean, variance = list(range(len(self.candidates))), self.known.mean, np.diag(self.known.covariance)
        chosen, others = places[: self.k], places[self.k :]
        while others:
            gain = mean[others][:, None] - mean[chosen][None]
            both = self.known.covariance[np.ix_(others, chosen)]
            error = np.sqrt(np.maximum(variance[others][:, None] + variance[chosen][None] - 2 * both, 1e-12))
            better, worse = np.unravel_index(np.argmax(gain / error), gain.shape)
            if gain[better, worse] <= clearly * error[better, worse]:
                break
            chosen[worse], others[better] = others[better], chosen[worse]
        return self.candidates[np.array(sorted(chosen, key=lambda place: -mean[place]))]


def best_sets(searches: Sequence[Search], k: int, kind: type[Sets] = SummingSets) -> list[Int[np.ndarray, " k"] | None]:
    """The set of ``k`` candidates of each search with the largest contrast; spends the budget of each.

    None where there are no more of them than that, or nothing is left to measure sets with. Searches measure their
    sets together, round by round.
    """
    sets = [_sets(search, k, kind) for search in searches]
    some = [(search, each) for search, each in zip(searches, sets, strict=True) if each is not None]
    # Where no duel follows, nothing is left but what is kept here.
    kept = [0 if kind.duel else search.kept for search, _ in some]
    for round_ in range(_N_ROUNDS - kind.duel):
        step(f"sets of {k}, round {round_ + 1}/{_N_ROUNDS}")
        planned = {}
        for place, (search, each) in enumerate(some):
            n = (search.sensor.budget.left - kept[place]) // search.sensor.cost // (_N_ROUNDS - round_)
            if n > 0:
                planned[place] = each.plan(n, search.rng)
        for place, rows in zip(planned, measure([*planned.values()]), strict=True):
            some[place][1].add(rows)
    some = [(search, each) for search, each in some if len(each.rows)]
    duels = []
    for search, each in some:
        left = search.sensor.budget.left - search.kept
        duels.append(each.plan_duel(left // search.sensor.cost // 2))
    measured = iter(measure([planned for duel in duels for planned in duel]))
    chosen = {
        id(each): each.winner([next(measured) for _ in duel]) for (_, each), duel in zip(some, duels, strict=True)
    }
    return [chosen.get(id(each)) for each in sets]


def _sets(search: Search, k: int, kind: type[Sets]) -> Sets | None:
    order = np.argsort(-search.merit, kind="stable")
    fit = np.isin(order, search.candidates) & np.isfinite(search.merit[order]) & (search.blame.error[order] > 0)
    return None if fit.sum() <= k else kind(search.sensor, order[fit], search.blame, k, search.weight)


def posterior(
    members: Float[np.ndarray, "row head"],
    contrast: PerRow,
    mean: Float[np.ndarray, " head"],
    error: Float[np.ndarray, " head"],
) -> Known:
    """The posterior of heads with a prior mean and standard error each, given sets: Bayesian linear regression.

    Noise, and how much wider the priors are than the errors say, are those under which the sets are likeliest
    (empirical Bayes): sets that go as foreseen leave the priors as they are.
    """
    members, contrast = members - members.mean(axis=0), contrast - contrast.mean()
    surprise = contrast - members @ mean
    best, wider, noise = -np.inf, 1.0, 1.0
    for factor in _WIDER:
        spread = (members * (factor * error) ** 2) @ members.T
        for share in _NOISE:
            variance = share * max(float(contrast.var()), 0.01)
            half = np.linalg.cholesky(spread + variance * np.eye(len(contrast)))
            white = np.linalg.solve(half, surprise)
            evidence = -0.5 * white @ white - np.log(np.diag(half)).sum()
            if evidence > best:
                best, wider, noise = evidence, factor, variance
    precision = 1 / (wider * error) ** 2
    covariance = np.linalg.inv(members.T @ members / noise + np.diag(precision))
    return Known(covariance @ (members.T @ contrast / noise + precision * mean), covariance)
