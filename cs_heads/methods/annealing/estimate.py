"""What each head takes from the intact model: one estimate and one error, and z, interval and claims of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.stats import t

from cs_heads.methods.annealing.blame import BothEffects, standard_error
from cs_heads.methods.annealing.inference import Taken, taken_by
from cs_heads.methods.annealing.regression import Fit
from cs_heads.methods.annealing.rows import Rows
from cs_heads.methods.contrast import PLENTY

# What a head does among many others that are off may differ from what it does alone by this share of itself (one
# standard deviation), and among the few of the last phase by this.
MISFIT, LAST_MISFIT = 0.6, 0.15
# Standard error of what does not vary at all, which keeps z finite.
EXACT = 1e-6
# Halvings of a bracket: beyond what floats tell apart.
_N_HALVINGS = 60


@dataclass(frozen=True, eq=False)
class Estimates:
    """The effect of each head, in points of response, from the rows before the last phase and from those of it.

    Each value that an effect may have is held against both, weighted by their precision. ``effect`` and ``error`` are
    of the earlier rows, among many other heads that are off: there a head of effect v does what it does alone but for
    an error of ``MISFIT`` v. The finalists were chosen by these rows, for a z of more than ``passed``: what chance
    alone lifts so high has an error ``passed`` times as large beside its own. The ``last`` phase, of few heads off and
    measured after the choice, has one of ``LAST_MISFIT`` v.
    """

    effect: Float[np.ndarray, " flat"]
    error: Float[np.ndarray, " flat"]
    passed: float
    last: Taken | None

    def sure_of_more_than(
        self, value: Float[np.ndarray, " flat"] | float, error: float = 0.0
    ) -> Float[np.ndarray, " flat"]:
        """By how many standard errors each effect exceeds a value, which has an error of its own; 0 if never off."""
        before, now, late = self._precisions(np.broadcast_to(value, self.effect.shape), error)
        sum_ = before * (self.effect - value) + now * (late - value)
        precision = before + now
        return np.divide(sum_, np.sqrt(precision), out=np.zeros_like(sum_), where=precision > 0)

    @property
    def estimate(self) -> Float[np.ndarray, " flat"]:
        """The value that exceeds and falls short of what was measured as much."""
        late = self._precisions(self.effect)[2]
        return self._where(0.0, np.minimum(self.effect, late), np.maximum(self.effect, late))

    @property
    def interval(self) -> Float[np.ndarray, "flat bound"]:
        """95 %: the values that an effect does not surely exceed or fall short of; NaN without a last phase."""
        bounds = np.full((len(self.effect), 2), np.nan)
        if self.last is None:
            return bounds
        # With one degree of freedom no value would be far enough away.
        middle, reach = self.estimate, float(t.ppf(0.975, max(2, self.last.dof)))
        before, now, _ = self._precisions(middle)
        heads = np.flatnonzero(now > 0)
        step = np.zeros_like(middle)
        step[heads] = reach * (before + now)[heads] ** -0.5
        for side, sign in enumerate((-1.0, 1.0)):
            far = middle + sign * step
            while (short := np.abs(self.sure_of_more_than(far)[heads]) < reach).any():
                far[heads[short]] += sign * step[heads[short]]
                step[heads[short]] *= 2
            low, high = (far, middle) if sign < 0 else (middle, far)
            bounds[heads, side] = self._where(-sign * reach, low, high)[heads]
            step[heads] = reach * (before + now)[heads] ** -0.5
        return bounds

    def claims(
        self,
        finalists: Int[np.ndarray, " finalist"],
        decoys: Int[np.ndarray, " decoy"],
        beyond: float = 0.02,
        level: float = 0.05,
    ) -> Bool[np.ndarray, " finalist"]:
        """Finalists that take more than ``beyond`` more than the mean decoy; without decoys, more than ``beyond``.

        Any claim is wrong with probability ``level`` (Holm 1979).
        """
        assert self.last is not None
        harmless, error = self.last.mean(decoys)
        exceeds = self.sure_of_more_than(max(harmless, 0.0) + beyond, error)[finalists]
        p = t.sf(exceeds, self.last.dof)
        order = np.argsort(p, kind="stable")
        passed = p[order] <= level / np.arange(len(p), 0, -1)
        claimed = np.zeros(len(p), dtype=bool)
        claimed[order[: int(np.argmin(passed)) if not passed.all() else len(p)]] = True
        return claimed

    def _precisions(
        self, value: Float[np.ndarray, " flat"], error: float = 0.0
    ) -> tuple[Float[np.ndarray, " flat"], Float[np.ndarray, " flat"], Float[np.ndarray, " flat"]]:
        """Of the earlier rows and of the last phase, were this the effect; and the effect in the last phase."""
        before = 1 / (self.error**2 * (1 + self.passed**2) + (MISFIT * value) ** 2 + error**2)
        now, late = np.zeros_like(before), self.effect.copy()
        if self.last is not None:
            heads = self.last.heads
            late[heads] = self.last.estimate
            now[heads] = 1 / (
                np.maximum(self.last.error, EXACT) ** 2 + (LAST_MISFIT * np.asarray(value)[heads]) ** 2 + error**2
            )
        return before, now, late

    def _where(
        self, exceeded: float, low: Float[np.ndarray, " flat"], high: Float[np.ndarray, " flat"]
    ) -> Float[np.ndarray, " flat"]:
        """The values between two bounds that the effects exceed by so many standard errors, by bisection."""
        for _ in range(_N_HALVINGS):
            middle = (low + high) / 2
            more = self.sure_of_more_than(middle) > exceeded
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return np.asarray((low + high) / 2)


def both_effects(task: Taken | None, controls: Taken | None, above_guess: float) -> dict[int, BothEffects] | None:
    """What heads take from the task (points) and from the controls (losses), as losses; None where either is."""
    if task is None or controls is None:
        return None
    reach = float(t.ppf(0.975, min(task.dof, controls.dof)))
    own, others = (np.maximum(side.error, EXACT) for side in (task, controls))
    effects = task.estimate / above_guess, own / above_guess, controls.estimate, others
    return {
        int(head): BothEffects(float(lost), float(error), float(theirs), float(their_error), reach)
        for head, lost, error, theirs, their_error in zip(task.heads, *effects, strict=True)
    }


def anchored(
    rows: Rows,
    fit: Fit,
    lost: Float[np.ndarray, " row"],
    singles: tuple[sparse.csr_array, np.ndarray, np.ndarray],
) -> tuple[Float[np.ndarray, " flat"], Float[np.ndarray, " flat"], bool]:
    """Effects against the intact model, and their errors; 0 and infinite for heads that were never off.

    A fit with free intercepts says how heads differ. Where there are rows enough, least squares of the ``singles``
    (what single answers lost) say what each takes; else all effects are raised by what a head off costs in the mean
    beyond them. The third says which.
    """
    every = taken_by(*singles, rows_a_head=PLENTY) if singles[1].size else None
    effect, error = fit.effect.copy(), standard_error(fit)
    tried = np.asarray(rows.off.sum(axis=0)).ravel() > 0
    if every is not None:
        effect[every.heads], error[every.heads] = every.estimate, every.error
    elif len(rows):
        times = np.asarray(rows.off.sum(axis=1)).ravel()
        effect[tried] += float(times @ (lost - rows.off @ effect) / max(times @ times, 1e-12))
    return effect, np.where(tried, np.maximum(error, EXACT), np.inf), every is not None
