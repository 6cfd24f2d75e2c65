"""The set that does most together, measured and not inferred: sets of finalists, each drawn from what is known so far.

What heads do one by one, among random others, is not what they do together: two that stand in for each other are
worth one, and a group that every task needs is harmless head by head. So the last rows put off whole sets of as many
heads as are wanted. Each is the best by one draw from the posterior of the heads' contrasts (Thompson sampling), which
all sets measured so far have narrowed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.regression import Blame
from cs_heads.methods.annealing.rows import Rows, Sensor, sparse_rows
from cs_heads.methods.annealing.search import Search

# How much wider than their standard errors the priors may be: what heads do together may differ.
_WIDER = (1.0, 1.5, 2.0, 3.0, 5.0)
_NOISE = (0.3, 0.5, 0.7, 0.9)
# What sets are drawn with before any is measured.
_FIRST = 2.0
# A head replaces one of a better rank where it is better by so many standard errors of the difference.
_CLEARLY = 4.0
_N_ROUNDS = 6
# Rounds that are left to hold two sets against each other, and by how many standard errors the challenger must win.
_DUEL, _WON = 2, 1.0


@dataclass(frozen=True, eq=False)
class Known:
    """Mean and covariance of what each candidate adds to the contrast of a set."""

    mean: Float[np.ndarray, " head"]
    covariance: Float[np.ndarray, "head head"]


class Sets:
    """Measures sets of ``k`` of the candidates, which come in their order so far, with contrast and standard error."""

    def __init__(self, sensor: Sensor, candidates: Int[np.ndarray, " head"], blame: Blame, k: int) -> None:
        self.sensor, self.candidates, self.k = sensor, candidates, k
        self.contrast, self.error = blame.contrast[candidates], blame.error[candidates]
        self.rows = Rows.none(sensor.grid.size, sensor.per_row, sensor.of_controls)
        self.known = Known(self.contrast, np.diag((_FIRST * self.error) ** 2))

    def measure(self, n: int, rng: np.random.Generator) -> None:
        """Measure ``n`` sets, each the best by a draw from what is known."""
        drawn = rng.multivariate_normal(self.known.mean, self.known.covariance, size=n, method="cholesky")
        sets = np.argsort(-drawn, axis=1, kind="stable")[:, : self.k]
        self.rows += self._measured([np.sort(self.candidates[places]) for places in sets])
        members = self.rows.off[:, self.candidates].toarray()
        self.known = posterior(members, self._lost(self.rows), self.contrast, self.error)

    def duel(self, n: int) -> Int[np.ndarray, " k"]:
        """The set of ``best``, or the likeliest one where that proves better, ``n`` rows each of the same examples."""
        first, challenger = self.best(), self.best(clearly=0.0)
        if n < 2 or set(first) == set(challenger):
            return first
        one = self._measured([np.sort(first)] * n)
        other = self._measured([np.sort(challenger)] * n, beside=one)
        gain = self._lost(one + other)
        gain = gain[n:] - gain[:n]
        return challenger if gain.mean() > _WON * gain.std(ddof=1) / np.sqrt(n) else first

    def _measured(self, sets: list[Int[np.ndarray, " k"]], beside: Rows | None = None) -> Rows:
        off = sparse_rows(sets, self.sensor.grid.size)
        return self.sensor(off, np.zeros(len(sets), dtype=int), last=False, beside=beside)

    def _lost(self, rows: Rows) -> Float[np.ndarray, " row"]:
        """What rows lose of the task less what they lose of the controls, on the scale of losses."""
        return -rows.response() / self.sensor.above_guess - rows.control_response()

    def best(self, clearly: float = _CLEARLY) -> Int[np.ndarray, " k"]:
        """The first ``k``, each exchanged where another is ``clearly`` better in the sets measured; the best first."""
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


def best_set(search: Search, k: int) -> Int[np.ndarray, " k"] | None:
    """The ``k`` finalists that go together best; spends the purse.

    None where there are no more of them than that, or nothing is left to measure sets with.
    """
    sensor = search.sensor
    order = np.argsort(-search.merit, kind="stable")
    fit = np.isin(order, search.finalists) & np.isfinite(search.merit[order]) & (search.blame.error[order] > 0)
    if fit.sum() <= k:
        return None
    sets = Sets(sensor, order[fit], search.blame, k)
    for round_ in range(_N_ROUNDS - _DUEL):
        n = sensor.purse.left // sensor.cost // (_N_ROUNDS - round_)
        if n:
            sets.measure(n, search.rng)
    return sets.duel((sensor.purse.left - search.kept) // sensor.cost // 2) if len(sets.rows) else None


def posterior(
    members: Float[np.ndarray, "row head"],
    contrast: Float[np.ndarray, " row"],
    mean: Float[np.ndarray, " head"],
    error: Float[np.ndarray, " head"],
) -> Known:
    """What sets say of heads that are known by a mean and a standard error each: Bayesian linear regression.

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
