"""Sets of the best heads, measured as sets: what several heads take together is not the sum of what each takes.

Each head of a set takes a share of what the others leave of the task: where these take all of it, one more gains
nothing. From the controls heads take a sum. What they take from controls in the form of the task counts by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.measurements import PerRow, Planned, Rows, measure, sparse_rows
from cs_heads.methods.annealing.regression import DOUBT
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.losses import BothEffects
from cs_heads.progress import step

# How much wider than their standard errors the priors may be: what heads do together may differ.
_WIDER = (1.0, 1.5, 2.0, 3.0, 5.0)
# How many times as much of the task heads may take in sets as among the heads that were off before.
_MORE = (1.0, 1.4, 2.0)
# Standard deviations of what the task loses in a row; a task barely above guessing loses many times itself. The same
# of the controls, as shares of the variance that was seen.
_NOISE, _SHARES_OF_NOISE = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (0.3, 0.5, 0.7, 0.9)
# What sets are drawn with before any is measured, and the least standard error of a prior, a loss.
_FIRST, _LEAST = 2.0, 0.01
# Shares of all there is to lose that a head gives or takes by its prior at most.
_SHARES = -0.3, 0.9
# A head replaces one of a better rank where it is better by so many standard errors of the difference.
_CLEARLY = 1.0
_N_ROUNDS, _N_DRAWS = 6, 300
# Steps of Newton's method at most, and the largest of one head.
_N_STEPS, _LARGEST = 25, 0.5
# A set that leaves the form of the task takes so much of it, or it is no answer to what the task rests on.
_LEAST_OF_TASK = 0.25
# What a head takes from the task counts so much beside what it takes from the controls, where a set takes most of the
# task and where it takes nothing yet.
_RATES = np.geomspace(0.003, 1.0, 25)

OfSets: TypeAlias = Float[np.ndarray, "*sets"]
Members: TypeAlias = Float[np.ndarray, "row candidate"]
Draws: TypeAlias = Float[np.ndarray, "draw candidate"]
Candidates: TypeAlias = Float[np.ndarray, " candidate"]
"""A number for each candidate."""
OfSides: TypeAlias = Float[np.ndarray, " side"]
"""A number for each side of the controls."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean and covariance of what each candidate adds to a set."""

    mean: Candidates
    covariance: Float[np.ndarray, "candidate candidate"]

    def draw(self, n: int, rng: np.random.Generator) -> Draws:
        """``n`` draws."""
        return rng.multivariate_normal(self.mean, self.covariance, size=n, method="cholesky")


def best_sets(searches: Sequence[TaskSearch], k: int) -> list[Int[np.ndarray, " k"] | None]:
    """The set of ``k`` candidates of each search with the largest contrast; spends the budget of each.

    None where there are no more of them than that, or nothing is left to measure sets with. Searches measure their
    sets together, round by round.
    """
    sets = [HeadSets(search, k) for search in searches]
    kept = [search.kept for search in searches]
    for round_ in range(_N_ROUNDS):
        step(f"sets of {k}, round {round_ + 1}/{_N_ROUNDS}")
        planned = {}
        for place, search in enumerate(searches):
            cost = search.sensor.per_row + search.sensor.of_controls_in_sets
            n = (search.sensor.budget.left - kept[place]) // cost // (_N_ROUNDS - round_)
            if n > 0 and len(sets[place].candidates) > k:
                planned[place] = sets[place].plan(n)
        for place, rows in zip(planned, measure([*planned.values()]), strict=True):
            sets[place].add(rows)
    best = list[Int[np.ndarray, " k"] | None]()
    for search, each in zip(searches, sets, strict=True):
        best.append(each.best() if len(each.rows) else None)
        search.of_form = {} if best[-1] is None else each.of_form(best[-1])
    return best


class HeadSets:
    """Measures sets of ``k`` candidates of a search, and estimates what each takes of the task and of the controls.

    ``shares`` has -log(1 - share) of each candidate, which add up in a set, ``losses`` what it takes from each side of
    the controls.
    """

    def __init__(self, search: TaskSearch, k: int) -> None:
        self.sensor, self.k, self.weight, self.sides = search.sensor, k, search.weight, search.sides
        fit, order = search.fit, np.argsort(-search.merit, kind="stable")
        known = np.isin(order, search.candidates) & np.isfinite(search.merit[order])
        known &= (fit.task.error + fit.controls.error)[order] > 0
        # In their order.
        self.candidates = candidates = order[known]
        self.rows = Rows.none(self.sensor.grid.size, self.sensor.per_row, self.sensor.of_controls_in_sets)
        self.most = self.sensor.task.most
        rest, *form = search.of_sides()
        error, *errors = [np.maximum(side.error[candidates], _LEAST) for side in (fit.task, rest, *form)]
        left = 1 - np.clip(fit.task.effect[candidates] / self.most, *_SHARES)
        # What heads seem to take from the form of the task is suspected, from other controls only what is sure.
        means = [side[candidates] for side in (rest.beyond_doubt, *(side.effect for side in form))]
        self._of_task, self._of_sides = (-np.log(left), error / self.most / left), [*zip(means, errors, strict=True)]
        priors = [Posterior(mean, np.diag((_FIRST * error) ** 2)) for mean, error in (self._of_task, *self._of_sides)]
        self.shares, self.losses = priors[0], priors[1:]
        # What the mean loss of each side counts: as much as that of the other, or as its controls are many.
        sizes = np.array([*map(len, self.sides)])
        self._counts = [np.ones(len(form) + 1), *([sizes / sizes.sum()] if form else [])]

    def plan(self, n: int) -> Planned:
        """``n`` sets, each the best under a draw from the posterior (Thompson sampling)."""
        drawn = zip(*(side.draw(n, self.sensor.rng) for side in (self.shares, *self.losses)), strict=True)
        off = sparse_rows([np.sort(self.candidates[self._best_by(*each)[0]]) for each in drawn], self.sensor.grid.size)
        return self.sensor.plan(off, np.zeros(n, dtype=int), in_sets=True)

    def add(self, rows: Rows) -> None:
        """Take rows that were planned and measured, and fit all."""
        self.rows += rows
        members = self.rows.off[:, self.candidates].toarray()
        self.shares = posterior_of_shares(members, self.sensor.lost(self.rows), *self._of_task, self.most)
        for place, (side, prior) in enumerate(zip(self.sides, self._of_sides, strict=True)):
            rows, lost = self.sensor.controls_lost(self.rows, side)
            if len(rows):
                members = rows.off[:, self.candidates].toarray()
                self.losses[place] = posterior_of_losses(members, lost, *prior, levels=len(self.sides) > 1)

    def best(self) -> Int[np.ndarray, " k"]:
        """The first ``k`` candidates, or others in their place that are clearly better in the sets; the best first.

        Others one by one, or all at once: heads that do most by themselves may be in the way of a better set. Beside
        controls in the form of the task, which their order does not count by itself, all at once where that is better.
        """
        # By the same draws always.
        rng = np.random.default_rng(0)
        # No control gains by a head.
        drawn = self.shares.draw(_N_DRAWS, rng), *(np.maximum(side.draw(_N_DRAWS, rng), 0) for side in self.losses)
        means = self.shares.mean, *(np.maximum(side.mean, 0) for side in self.losses)
        start, counts = self._best_by(*means)
        kept, other = (self._improved(list(each), drawn, counts) for each in (range(self.k), start.tolist()))
        before, after = (
            self._contrast(*(each[:, places].sum(axis=1) for each in drawn), counts=counts) for places in (kept, other)
        )
        clearly = _CLEARLY if len(self.sides) == 1 else 0.0
        chosen = other if np.mean(after - before) > clearly * np.std(after - before) else kept
        alone = self._contrast(*means, counts=counts)
        return self.candidates[np.array(sorted(chosen, key=lambda place: -alone[place]))]

    def of_form(self, chosen: Int[np.ndarray, " k"]) -> dict[int, BothEffects]:
        """Heads left out of the set that seem to take from the form more than half of what they take from the task.

        With both losses, two standard errors above zero each.
        """
        if len(self.sides) == 1:
            return {}
        taken = self._taken(self.shares.mean)
        errors = [np.sqrt(np.diag(side.covariance)) for side in (self.shares, self.losses[-1])]
        effects = zip(taken, (self.most - taken) * errors[0], self.losses[-1].mean, errors[1], strict=True)
        both = {int(head): BothEffects(*map(float, each)) for head, each in zip(self.candidates, effects, strict=True)}
        return {head: each for head, each in both.items() if head not in chosen and each.are_shared(clear=DOUBT)}

    def _improved(self, chosen: list[int], drawn: Sequence[Draws], counts: OfSides) -> list[int]:
        """A set in which each head is replaced where another is clearly better."""
        others = [place for place in range(len(self.candidates)) if place not in chosen]
        while others:
            now = [each[:, chosen].sum(axis=1)[:, None, None] for each in drawn]
            pairs = zip(now, drawn, strict=True)
            then = [total - each[:, chosen][:, :, None] + each[:, others][:, None] for total, each in pairs]
            gain = self._contrast(*then, counts=counts) - self._contrast(*now, counts=counts)
            mean, error = gain.mean(axis=0), gain.std(axis=0)
            worse, better = np.unravel_index(np.argmax(mean - _CLEARLY * error), mean.shape)
            if mean[worse, better] <= _CLEARLY * error[worse, better]:
                break
            chosen[worse], others[better] = others[better], chosen[worse]
        return chosen

    def _best_by(self, shares: Candidates, *losses: Candidates) -> tuple[Int[np.ndarray, " k"], OfSides]:
        """The places of the best set, of those that are best at some rate of the one against the other.

        Where no set takes the task and leaves its form, the form counts as one control of many. Also what each side
        counts.
        """
        for counts in self._counts:
            merits = self.most * _RATES[:, None] * shares - self._lost(losses, counts)
            sets = np.argsort(-merits, axis=1, kind="stable")[:, : self.k]
            sums = [side[sets].sum(axis=1) for side in (shares, *losses)]
            best = np.argmax(self._contrast(*sums, counts=counts))
            if self._taken(sums[0])[best] >= _LEAST_OF_TASK:
                break
        return sets[best], counts

    def _contrast(self, shares: OfSets, *losses: OfSets, counts: OfSides) -> OfSets:
        """The loss of the task minus those of the sides of the controls, of the sums over a set."""
        return self._taken(shares) - self._lost(losses, counts)

    def _taken(self, shares: OfSets) -> OfSets:
        return -self.most * np.expm1(-shares)

    def _lost(self, losses: Sequence[OfSets], counts: OfSides) -> OfSets:
        return self.weight * sum(count * side for count, side in zip(counts, losses, strict=True))


def posterior_of_losses(
    members: Members, lost: PerRow, mean: Candidates, error: Candidates, *, levels: bool = False
) -> Posterior:
    """The posterior of losses with a prior mean and standard error each, given sets: Bayesian linear regression.

    With ``levels`` also what all sets lose alike tells of their heads, and not only how sets differ. Noise, and how
    much wider the priors are than the errors say, are those under which the sets are likeliest (empirical Bayes): sets
    that go as foreseen leave the priors as they are.
    """
    if not levels:
        members, lost = members - members.mean(axis=0), lost - lost.mean()
    surprise = lost - members @ mean
    best, wider, noise = -np.inf, 1.0, 1.0
    for factor in _WIDER:
        spread = (members * (factor * error) ** 2) @ members.T
        for share in _SHARES_OF_NOISE:
            variance = share * max(float(lost.var()), 0.01)
            half = np.linalg.cholesky(spread + variance * np.eye(len(lost)))
            white = np.linalg.solve(half, surprise)
            evidence = -0.5 * white @ white - np.log(np.diag(half)).sum()
            if evidence > best:
                best, wider, noise = evidence, factor, variance
    precision = 1 / (wider * error) ** 2
    covariance = np.linalg.inv(members.T @ members / noise + np.diag(precision))
    return Posterior(covariance @ (members.T @ lost / noise + precision * mean), covariance)


def posterior_of_shares(members: Members, lost: PerRow, mean: Candidates, error: Candidates, most: float) -> Posterior:
    """The posterior of what heads take of a task, -log of the share that each leaves, given what sets lose.

    A set loses ``most`` times what its heads do not leave together. The mode, and the curvature there (Laplace), with
    that noise, width of the priors and multiple of their means under which the sets are likeliest.
    """
    best, known = -np.inf, Posterior(mean, np.diag(error**2))
    for more, wider, noise in product(_MORE, _WIDER, _NOISE):
        precision = 1 / (more * wider * error) ** 2
        shares = more * mean
        for turn in range(_N_STEPS + 1):
            left = np.exp(-np.clip(members @ shares, -1, 20))
            surprise, slope = lost - most * (1 - left), most * left[:, None] * members
            distance = shares - more * mean
            curvature = slope.T @ slope / noise**2 + np.diag(precision)
            change = np.linalg.solve(curvature, slope.T @ surprise / noise**2 - precision * distance)
            largest = np.abs(change).max()
            if largest < 1e-3 or turn == _N_STEPS:
                break
            shares = shares + change * min(1.0, _LARGEST / largest)
        fit = (surprise @ surprise) / noise**2 + distance @ (precision * distance)
        size = 2 * len(lost) * np.log(noise) + np.linalg.slogdet(curvature)[1] - np.log(precision).sum()
        if -fit - size > best:
            best, known = -fit - size, Posterior(shares, np.linalg.inv(curvature))
    return known
