"""Sets of heads that each take a share of what the others leave: where they take all, one more gains nothing."""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.blame import Blame
from cs_heads.methods.annealing.fit import beyond_doubt, standard_error
from cs_heads.methods.annealing.rows import PerRow, Planned
from cs_heads.methods.annealing.sets import Known, Sets, posterior

# How much wider than their standard errors the priors may be.
_WIDER = (1.0, 1.5, 2.0, 3.0, 5.0)
# How many times as much of the task heads may take in sets as among the heads that were off before.
_MORE = (1.0, 1.4, 2.0)
# Standard deviations of what the task loses in a row; a task barely above guessing loses many times itself.
_NOISE = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
# What sets are drawn with before any is measured, and the least standard error of a prior, a loss.
_FIRST, _LEAST = 2.0, 0.01
# Shares of all there is to lose that a head gives or takes by its prior at most.
_SHARES = -0.3, 0.9
# A head replaces one of a better rank where it is better by so many standard errors of the difference.
_CLEARLY = 1.0
_N_DRAWS = 300
# Steps of Newton's method at most, and the largest of one head.
_N_STEPS, _LARGEST = 25, 0.5
# What a head takes from the task counts so much beside what it takes from the controls, where a set takes most of the
# task and where it takes nothing yet.
_RATES = np.geomspace(0.003, 1.0, 25)

Candidates: TypeAlias = Float[np.ndarray, " candidate"]
"""A number for each candidate."""


class SaturatingSets(Sets):
    """Measures sets of ``k`` candidates, and estimates what each takes of the task and of the controls.

    Each head of a set takes a share of what the others leave of the task: where these take all of it, it gains nothing.
    From the controls heads take a sum. ``shares`` has -log(1 - share) of each candidate, which add up in a set.
    """

    def begin(self, blame: Blame) -> None:
        """Take what each candidate takes from the task and from the controls."""
        self.most, candidates = self.sensor.task.most, self.candidates
        task = (
            blame.task.effect[candidates] / blame.above_guess,
            standard_error(blame.task)[candidates] / blame.above_guess,
        )
        left = 1 - np.clip(task[0] / self.most, *_SHARES)
        self._priors = (
            (-np.log(left), np.maximum(task[1], _LEAST) / self.most / left),
            (beyond_doubt(blame.controls)[candidates], np.maximum(standard_error(blame.controls)[candidates], _LEAST)),
        )
        self.shares, self.losses = (Known(mean, np.diag((_FIRST * error) ** 2)) for mean, error in self._priors)

    def plan(self, n: int, rng: np.random.Generator) -> Planned:
        """``n`` sets, each the best under a draw from the posterior (Thompson sampling)."""
        drawn = zip(self.shares.draw(n, rng), self.losses.draw(n, rng), strict=True)
        return self._planned([np.sort(self.candidates[self._best_by(*each)]) for each in drawn])

    def fit(self, members: Float[np.ndarray, "row candidate"]) -> None:
        """Fit all rows, in which these candidates were off."""
        (of_task, of_controls), task = self._priors, self.sensor.task
        lost = (task.level - self.rows.response()) / task.above_guess
        self.shares = posterior_of_shares(members, lost, *of_task, self.most)
        self.losses = posterior(members, self.rows.control_response(), *of_controls)

    def best(self, clearly: float = _CLEARLY) -> Int[np.ndarray, " k"]:
        """The first ``k`` candidates, each replaced where another is ``clearly`` better in the sets; the best first."""
        # By the same draws always.
        rng = np.random.default_rng(0)
        drawn = self.shares.draw(_N_DRAWS, rng), self.losses.draw(_N_DRAWS, rng)
        chosen, others = list(range(self.k)), list(range(self.k, len(self.candidates)))
        while others:
            now = [each[:, chosen].sum(axis=1)[:, None, None] for each in drawn]
            then = [
                total - each[:, chosen][:, :, None] + each[:, others][:, None]
                for total, each in zip(now, drawn, strict=True)
            ]
            gain = self._contrast(*then) - self._contrast(*now)
            mean, error = gain.mean(axis=0), gain.std(axis=0)
            worse, better = np.unravel_index(np.argmax(mean - clearly * error), mean.shape)
            if mean[worse, better] <= clearly * error[worse, better]:
                break
            chosen[worse], others[better] = others[better], chosen[worse]
        alone = self._contrast(self.shares.mean, self.losses.mean)
        return self.candidates[np.array(sorted(chosen, key=lambda place: -alone[place]))]

    def _best_by(self, shares: Candidates, losses: Candidates) -> Int[np.ndarray, " k"]:
        """The places of the best set, of those that are best at some rate of the one against the other."""
        merits = self.most * _RATES[:, None] * shares - self.weight * losses
        sets = np.argsort(-merits, axis=1, kind="stable")[:, : self.k]
        return sets[np.argmax(self._contrast(shares[sets].sum(axis=1), losses[sets].sum(axis=1)))]

    def _contrast(
        self, shares: Float[np.ndarray, "*sets"], losses: Float[np.ndarray, "*sets"]
    ) -> Float[np.ndarray, "*sets"]:
        """The loss of the task minus that of the controls, of the sums over a set."""
        return -self.most * np.expm1(-shares) - self.weight * losses


def posterior_of_shares(
    members: Float[np.ndarray, "row candidate"], lost: PerRow, mean: Candidates, error: Candidates, most: float
) -> Known:
    """The posterior of what heads take of a task, -log of the share that each leaves, given what sets lose.

    A set loses ``most`` times what its heads do not leave together. The mode, and the curvature there (Laplace), with
    that noise, width of the priors and multiple of their means under which the sets are likeliest.
    """
    best, known = -np.inf, Known(mean, np.diag(error**2))
    for more, wider, noise in product(_MORE, _WIDER, _NOISE):
        precision = 1 / (more * wider * error) ** 2
        shares = more * mean
        for step in range(_N_STEPS + 1):
            left = np.exp(-np.clip(members @ shares, -1, 20))
            surprise, slope = lost - most * (1 - left), most * left[:, None] * members
            distance = shares - more * mean
            curvature = slope.T @ slope / noise**2 + np.diag(precision)
            change = np.linalg.solve(curvature, slope.T @ surprise / noise**2 - precision * distance)
            largest = np.abs(change).max()
            if largest < 1e-3 or step == _N_STEPS:
                break
            shares = shares + change * min(1.0, _LARGEST / largest)
        fit = (surprise @ surprise) / noise**2 + distance @ (precision * distance)
        size = 2 * len(lost) * np.log(noise) + np.linalg.slogdet(curvature)[1] - np.log(precision).sum()
        if -fit - size > best:
            best, known = -fit - size, Known(shares, np.linalg.inv(curvature))
    return known
