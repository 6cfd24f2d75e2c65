"""What each head takes from the task beyond what it takes from the controls: the contrast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cs_heads.methods.annealing.measurements import Flat, PerRow, Rows
from cs_heads.methods.annealing.regression import Fit, beyond_doubt, group_means, pooled, regress, standard_error
from cs_heads.methods.losses import BothEffects


@dataclass(frozen=True, eq=False)
class ContrastFit:
    """The effect of each head on the task (response lost) and on its controls (losses), and the contrast of both.

    ``response`` is that of the rows, less the control variate. ``contrast`` is the loss of the task less what is sure
    of the controls' (without controls the loss of the task), and ``z`` the same in standard errors of the task's
    effect.
    """

    task: Fit
    controls: Fit
    response: PerRow
    above_guess: float
    contrast: Flat
    z: Flat

    @classmethod
    def none(cls, n_heads: int) -> ContrastFit:
        """The result of no rows."""
        zero = np.zeros(n_heads)
        return cls(Fit.none(n_heads), Fit.none(n_heads), np.zeros(0), 1.0, zero, zero)

    @property
    def error(self) -> Flat:
        """Standard error of the task's and the controls' effects together; 0 for a head that was never off."""
        return np.hypot(standard_error(self.task) / self.above_guess, standard_error(self.controls))

    def both(self, head: int) -> BothEffects:
        """The effects of one head on the task and on its controls."""
        errors = standard_error(self.task)[head] / self.above_guess, standard_error(self.controls)[head]
        effects = self.task.effect[head] / self.above_guess, self.controls.effect[head]
        return BothEffects(float(effects[0]), float(errors[0]), float(effects[1]), float(errors[1]))


def fit_controls(rows: Rows, before: Fit | None = None) -> tuple[Fit, PerRow]:
    """What each head takes from the controls that rows have examples of, and what rows do to these beyond that.

    Args:
        rows: The rows; without examples of controls nothing is taken.
        before: What was known before.
    """
    if not rows.drawn.shape[1]:
        return Fit.none(rows.off.shape[1]), np.zeros(len(rows))
    lost = rows.control_response()
    fit = regress(rows.off, -lost, rows.group)
    fit = fit if before is None else pooled(before, fit)
    return fit, lost - rows.off @ beyond_doubt(fit)


def fit_contrast(
    rows: Rows,
    controls: Fit,
    left: PerRow,
    above_guess: float,
    *,
    weight: float = 1.0,
    before: ContrastFit | None = None,
) -> ContrastFit:
    """Fit the task of the rows, where the controls' effects are known, and hold what was known ``before`` beside it.

    Most heads take nothing from the controls, and noise in what they seem to take must not spread into the order of
    heads: of the controls' effects the part beyond two standard errors is subtracted, ``weight`` times. What is
    ``left``, what rows do to the controls beyond the effects of their heads (a group of heads that matter only
    together), tells of the task's losses too, as far as both have gone together over all rows: that part is subtracted
    from these (a control variate).
    """
    response = rows.response()
    _, group = np.unique(rows.group, return_inverse=True)
    left, kept = (each - group_means(each, group) for each in (left, response))
    together = float(np.clip(-(kept @ left) / max(left @ left, 1e-12), 0, above_guess))
    response = response + together * left
    task = regress(rows.off, response, rows.group)
    task = task if before is None else pooled(before.task, task, above_guess)
    return combined(task, controls, response, above_guess, weight)


def combined(task: Fit, controls: Fit, response: PerRow, above_guess: float, weight: float = 1.0) -> ContrastFit:
    """The contrast of both sides; what is sure of the controls' losses counts ``weight`` times."""
    contrast = task.effect / above_guess - weight * beyond_doubt(controls)
    error = standard_error(task) / above_guess
    z = np.divide(contrast, error, out=np.zeros_like(contrast), where=error > 0)
    return ContrastFit(task, controls, response, above_guess, contrast, z)
