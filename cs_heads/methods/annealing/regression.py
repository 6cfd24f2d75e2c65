"""Regressions of what rows lost on the heads off in them, with a z for each head: of the task, its controls, and both.

What each head takes from the task beyond what it takes from the controls is the **contrast**. All effects are losses.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.methods.annealing.measurements import Flat, PerRow, Rows
from cs_heads.methods.losses import BothEffects

# A penalty of so many standard errors: what noise alone reaches in one head of twenty is left at zero.
PENALTY = 2.0
N_ROUNDS = 3
# What a head takes from the controls counts where it exceeds so many standard errors, and so much of them.
DOUBT = 2.0
# Share of the score by which gradients may miss what rows measure, one standard deviation: they are of probabilities,
# which hardly move where an answer is far from turning.
GRADIENT_MISFIT = 0.1


@dataclass(frozen=True, eq=False)
class Fit:
    """The loss that each head takes from the rows it is off in, and the same in standard errors.

    Both are 0 for a head that was never off, or always off.
    """

    effect: Flat
    z: Flat

    @classmethod
    def none(cls, n_heads: int) -> Fit:
        """The fit of no rows."""
        return cls(np.zeros(n_heads), np.zeros(n_heads))

    @property
    def error(self) -> Flat:
        """The standard error of each effect; 0 for a head that was never off."""
        return np.abs(np.divide(self.effect, self.z, out=np.zeros_like(self.z), where=self.z != 0))

    @property
    def estimates(self) -> tuple[Flat, Flat]:
        """Effects and their standard errors, infinite for a head of which nothing is known."""
        error = self.error
        return self.effect, np.where(error > 0, error, np.inf)

    @property
    def beyond_doubt(self) -> Flat:
        """The part of each effect above two standard errors; 0 for effects below."""
        return np.maximum(self.effect - DOUBT * self.error, 0)


@dataclass(frozen=True, eq=False)
class ContrastFit:
    """The effect of each head on the task and on its controls, and the contrast of both.

    ``lost`` is what the rows of the task lost, less the control variate. ``contrast`` is the loss of the task less what
    is sure of the controls' (without controls the loss of the task), and ``z`` the same in standard errors of the
    task's effect.
    """

    task: Fit
    controls: Fit
    lost: PerRow
    contrast: Flat
    z: Flat

    @classmethod
    def of(cls, task: Fit, controls: Fit, lost: PerRow, weight: float = 1.0, more: float = 0.0) -> ContrastFit:
        """The contrast of both sides.

        Args:
            task: What heads take from the task.
            controls: The same of the controls.
            lost: What the rows lost.
            weight: What is sure of the controls' losses counts so many times.
            more: What the task's standard errors do not know of.
        """
        contrast, error = task.effect - weight * controls.beyond_doubt, np.hypot(task.error, more)
        z = np.divide(contrast, error, out=np.zeros_like(contrast), where=error > 0)
        return cls(task, controls, lost, contrast, z)

    def both(self, head: int) -> BothEffects:
        """The effects of one head on the task and on its controls."""
        sides = (self.task, self.controls)
        return BothEffects(*(float(each[head]) for side in sides for each in (side.effect, side.error)))


def regress(off: sparse.csr_array, lost: PerRow, group: Int[np.ndarray, " row"]) -> Fit:
    """Regress what rows lost on the heads off, with a free intercept for each group of rows.

    The penalty of a head is twice the standard error that its score has when no head matters,
    estimated three times anew from the residuals (as in the scaled Lasso: Sun and Zhang 2012). The
    debiasing step adds to each coefficient the regression of the residuals on its own column (Zhang
    and Zhang 2014, with a diagonal precision: columns of a random design hardly correlate).
    """
    fit, ablated = Fit.none(off.shape[1]), sparse.csc_array(off)
    if not len(lost):
        return fit
    _, group = np.unique(group, return_inverse=True)
    sizes = np.bincount(group)
    times_off = (membership(group) @ ablated).toarray()
    spread = times_off * (1 - times_off / sizes[:, None])  # sum of squares within each group
    total = spread.sum(axis=0)
    known = np.flatnonzero(total > 1e-9)
    if not len(known):
        return fit
    columns, spread, total = ablated[:, known], spread[:, known], total[known]
    harm = residual = lost - group_means(lost, group)
    for _ in range(N_ROUNDS):
        coefficients = _lasso(columns, harm, PENALTY * _noise(residual, group, spread))
        residual = harm - columns @ coefficients
        # The intercepts again, now that the heads are known better.
        shift = group_means(residual, group)
        harm, residual = harm - shift, residual - shift
    fit.effect[known] = coefficients + (columns.T @ residual) / total
    fit.z[known] = fit.effect[known] * total / _noise(residual, group, spread)
    return fit


def _lasso(columns: sparse.csc_array, harm: PerRow, penalty: Flat) -> Flat:
    """The Lasso with a penalty for each column, on half the sum of squares."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso

    data = columns.data / np.repeat(penalty, np.diff(columns.indptr))
    # scikit-learn's sparse solver takes 32-bit indices alone.
    indices, starts = columns.indices.astype(np.int32), columns.indptr.astype(np.int32)
    scaled = sparse.csc_array((data, indices, starts), shape=columns.shape)
    # scikit-learn divides the squares by the number of rows, so the common penalty is divided too.
    lasso = Lasso(alpha=1 / len(harm), tol=1e-3, max_iter=10_000)
    with warnings.catch_warnings():
        # Few rows make columns alike, and the last digits of an optimum are not what counts here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        lasso.fit(scaled, harm)
    return np.asarray(lasso.coef_ / penalty)


def group_means(values: PerRow, group: Int[np.ndarray, " row"]) -> PerRow:
    """The mean of each row's group; groups are numbered from 0 without gaps."""
    return np.asarray((np.bincount(group, values) / np.bincount(group))[group])


def membership(group: Int[np.ndarray, " row"]) -> sparse.csr_array:
    """The matrix that sums rows within groups, which are numbered from 0 without gaps."""
    return sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))


def _noise(values: PerRow, group: Int[np.ndarray, " row"], spread: Float[np.ndarray, "group head"]) -> Flat:
    """The null standard error of each head's score, by the variance within each group.

    A group of one or two rows is given the variance of all rows.
    """
    sizes = np.bincount(group)
    squares = np.bincount(group, (values - group_means(values, group)) ** 2)
    overall = squares.sum() / max(len(values) - len(sizes), 1)
    variances = np.where(sizes > 2, squares / np.maximum(sizes - 1, 1), overall)
    return np.sqrt(np.maximum(variances @ spread, 1e-12))


def fit_controls(rows: Rows, before: Fit | None = None) -> tuple[Fit, PerRow]:
    """What each head takes from the controls that rows have examples of, and what rows do to these beyond that.

    Args:
        rows: The rows; without examples of controls nothing is taken.
        before: What was known before.
    """
    if not rows.drawn.shape[1]:
        return Fit.none(rows.off.shape[1]), np.zeros(len(rows))
    lost = rows.control_response()
    fit = regress(rows.off, lost, rows.group)
    fit = fit if before is None else pooled(before, fit)
    return fit, lost - rows.off @ fit.beyond_doubt


def fit_contrast(
    rows: Rows, lost: PerRow, controls: Fit, left: PerRow, *, weight: float = 1.0, before: ContrastFit | None = None
) -> ContrastFit:
    """Fit what rows ``lost`` of the task, where the controls' effects are known, and what was known ``before``.

    Most heads take nothing from the controls, and noise in what they seem to take must not spread into the order of
    heads: of the controls' effects the part beyond two standard errors is subtracted, ``weight`` times. What is
    ``left``, what rows do to the controls beyond the effects of their heads (a group of heads that matter only
    together), tells of the task's losses too, as far as both have gone together over all rows: that part is subtracted
    from these (a control variate).
    """
    _, group = np.unique(rows.group, return_inverse=True)
    left, taken = (each - group_means(each, group) for each in (left, lost))
    lost = lost - float(np.clip(taken @ left / max(left @ left, 1e-12), 0, 1)) * left
    task = regress(rows.off, lost, rows.group)
    return ContrastFit.of(task if before is None else pooled(before.task, task), controls, lost, weight)


def pooled(gradients: Fit, rows: Fit) -> Fit:
    """What gradients and rows say of each head, weighted by their precision; gradients alone where it was never off.

    Beside rows, gradients count as uncertain by ``GRADIENT_MISFIT`` more.

    >>> both = pooled(Fit(np.array([0.2, 0.1]), np.array([2.0, 1.0])), Fit(np.array([0.5, 0.0]), np.array([5.0, 0.0])))
    >>> both.effect.round(2).tolist()
    [0.4, 0.1]
    """
    error = gradients.error
    error = np.where((rows.z != 0) & (error > 0), np.hypot(error, GRADIENT_MISFIT), error)
    effect, total = weighted((gradients.effect, rows.effect), (error, rows.error))
    return Fit(effect, effect * np.sqrt(total))


def weighted(estimates: Sequence[Flat], errors: Sequence[Flat]) -> tuple[Flat, Flat]:
    """The mean of estimates weighted by their precision, and its precision; 0 where all errors are 0, for unknown.

    >>> [each.tolist() for each in weighted([np.array([0.0, 1.0]), np.array([1.0, 2.0])], [np.array([1.0, 0.0])] * 2)]
    [[0.5, 0.0], [2.0, 0.0]]
    """
    weights = [np.divide(1.0, error**2, out=np.zeros_like(error), where=error > 0) for error in errors]
    total = np.sum(weights, axis=0)
    summed = np.sum([weight * each for weight, each in zip(weights, estimates, strict=True)], axis=0)
    return np.divide(summed, total, out=np.zeros_like(total), where=total > 0), total


def mean_fit(fits: Sequence[Fit]) -> Fit:
    """The mean effect of each head over several tasks, which are independent."""
    effect = np.mean([fit.effect for fit in fits], axis=0)
    error = np.sqrt(np.square([fit.error for fit in fits]).sum(axis=0)) / len(fits)
    return Fit(effect, np.divide(effect, error, out=np.zeros_like(effect), where=error > 0))
