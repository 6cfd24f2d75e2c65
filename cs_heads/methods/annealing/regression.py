"""Regressions of what rows lost on the heads off in them, with a z for each head; what gradients say beside them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.methods.annealing.measurements import Flat, PerRow

# A penalty of so many standard errors: what noise alone reaches in one head of twenty is left at zero.
PENALTY = 2.0
N_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Fit:
    """The response that each head takes from the rows it is off in, and the same in standard errors.

    Both are 0 for a head that was never off, or always off.
    """

    effect: Flat
    z: Flat

    @classmethod
    def none(cls, n_heads: int) -> Fit:
        """The fit of no rows."""
        return cls(np.zeros(n_heads), np.zeros(n_heads))


def regress(off: sparse.csr_array, response: PerRow, group: Int[np.ndarray, " row"]) -> Fit:
    """Regress a response on the heads off, with a free intercept for each group of rows.

    The penalty of a head is twice the standard error that its score has when no head matters,
    estimated three times anew from the residuals (as in the scaled Lasso: Sun and Zhang 2012). The
    debiasing step adds to each coefficient the regression of the residuals on its own column (Zhang
    and Zhang 2014, with a diagonal precision: columns of a random design hardly correlate).
    """
    ablated = sparse.csc_array(off)
    _, group = np.unique(group, return_inverse=True)
    sizes = np.bincount(group)
    times_off = (membership(group) @ ablated).toarray()
    spread = times_off * (1 - times_off / sizes[:, None])  # sum of squares within each group
    total = spread.sum(axis=0)
    known = np.flatnonzero(total > 1e-9)
    effect, z = np.zeros(off.shape[1]), np.zeros(off.shape[1])
    if not len(known):
        return Fit(effect, z)
    columns, spread, total = ablated[:, known], spread[:, known], total[known]
    harm = -(response - group_means(response, group))
    coefficients = np.zeros(len(known))
    residual = harm
    for _ in range(N_ROUNDS):
        noise = np.sqrt(np.maximum(_variances(residual, group) @ spread, 1e-12))
        coefficients = _lasso(columns, harm, PENALTY * noise)
        residual = harm - columns @ coefficients
        # The intercepts again, now that the heads are known better.
        shift = group_means(residual, group)
        harm, residual = harm - shift, residual - shift
    noise = np.sqrt(np.maximum(_variances(residual, group) @ spread, 1e-12))
    effect[known] = coefficients + (columns.T @ residual) / total
    z[known] = effect[known] * total / noise
    return Fit(effect, z)


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


def _variances(values: PerRow, group: Int[np.ndarray, " row"]) -> Float[np.ndarray, " group"]:
    """The variance within each group; a group of one or two rows is given that of all rows."""
    sizes = np.bincount(group)
    squares = np.bincount(group, (values - group_means(values, group)) ** 2)
    overall = squares.sum() / max(len(values) - len(sizes), 1)
    return np.where(sizes > 2, squares / np.maximum(sizes - 1, 1), overall)


# What a head takes from the controls counts where it exceeds so many standard errors, and so much of them.
DOUBT = 2.0


# Share of the score by which gradients may miss what rows measure, one standard deviation: they are of probabilities,
# which hardly move where an answer is far from turning.
GRADIENT_MISFIT = 0.1


def pooled(gradients: Fit, rows: Fit, scale: float = 1.0) -> Fit:
    """What gradients and rows say of each head, weighted by their precision; gradients alone where it was never off.

    Beside rows, gradients count as uncertain by ``GRADIENT_MISFIT`` more.

    Args:
        gradients: Of all heads.
        rows: Of those that were off in some.
        scale: What a share of 1 is in both.

    >>> both = pooled(Fit(np.array([0.2, 0.1]), np.array([2.0, 1.0])), Fit(np.array([0.5, 0.0]), np.array([5.0, 0.0])))
    >>> both.effect.round(2).tolist()
    [0.4, 0.1]
    """
    known, errors = rows.z != 0, [standard_error(fit) for fit in (gradients, rows)]
    errors[0] = np.where(known & (errors[0] > 0), np.hypot(errors[0], GRADIENT_MISFIT * scale), errors[0])
    effect, total = weighted((gradients.effect, rows.effect), errors)
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
    error = np.sqrt(np.square([standard_error(fit) for fit in fits]).sum(axis=0)) / len(fits)
    return Fit(effect, np.divide(effect, error, out=np.zeros_like(effect), where=error > 0))


def standard_error(fit: Fit) -> Flat:
    """The standard error of each effect; 0 for a head that was never off."""
    return np.abs(np.divide(fit.effect, fit.z, out=np.zeros_like(fit.z), where=fit.z != 0))


def with_errors(fit: Fit) -> tuple[Flat, Flat]:
    """Effects and their standard errors, infinite for a head of which nothing is known."""
    error = standard_error(fit)
    return fit.effect, np.where(error > 0, error, np.inf)


def beyond_doubt(fit: Fit) -> Flat:
    """The part of each effect above two standard errors; 0 for effects below."""
    return np.maximum(fit.effect - DOUBT * standard_error(fit), 0)
