"""Which heads a set of rows blames: a Lasso whose penalties are noise levels, then one step of debiasing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from sklearn.linear_model import Lasso

# A penalty of so many standard errors: what noise alone reaches in one head of twenty is left at zero.
PENALTY = 2.0
N_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Fit:
    """Points of score that each head takes from the rows it is off in, and the same in standard errors.

    Both are 0 for a head that was never off, or always off.
    """

    effect: Float[np.ndarray, " flat"]
    z: Float[np.ndarray, " flat"]


def regress(off: sparse.csr_array, response: Float[np.ndarray, " row"], group: Int[np.ndarray, " row"]) -> Fit:
    """Regress a response on the heads off, with a free intercept for each group of rows.

    The penalty of a head is twice the standard error that its score has when no head matters,
    estimated three times anew from the residuals (as in the scaled Lasso: Sun and Zhang 2012). The
    debiasing step adds to each coefficient the regression of the residuals on its own column (Zhang
    and Zhang 2014, with a diagonal precision: columns of a random design hardly correlate).
    """
    ablated = sparse.csc_array(off)
    _, group = np.unique(group, return_inverse=True)
    sizes = np.bincount(group)
    membership = sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))
    times_off = (membership @ ablated).toarray()
    spread = times_off * (1 - times_off / sizes[:, None])  # sum of squares within each group
    total = spread.sum(axis=0)
    known = np.flatnonzero(total > 1e-9)
    effect, z = np.zeros(off.shape[1]), np.zeros(off.shape[1])
    if not len(known):
        return Fit(effect, z)
    columns, spread, total = ablated[:, known], spread[:, known], total[known]
    harm = -(response - _means(response, group)[group])
    coefficients = np.zeros(len(known))
    residual = harm
    for _ in range(N_ROUNDS):
        noise = np.sqrt(np.maximum(_variances(residual, group) @ spread, 1e-12))
        coefficients = _lasso(columns, harm, PENALTY * noise)
        residual = harm - columns @ coefficients
        # The intercepts again, now that the heads are known better.
        shift = _means(residual, group)[group]
        harm, residual = harm - shift, residual - shift
    noise = np.sqrt(np.maximum(_variances(residual, group) @ spread, 1e-12))
    effect[known] = coefficients + (columns.T @ residual) / total
    z[known] = effect[known] * total / noise
    return Fit(effect, z)


def _lasso(
    columns: sparse.csc_array, harm: Float[np.ndarray, " row"], penalty: Float[np.ndarray, " flat"]
) -> Float[np.ndarray, " flat"]:
    """The Lasso with a penalty a column, on half the sum of squares."""
    data = columns.data / np.repeat(penalty, np.diff(columns.indptr))
    # scikit-learn's sparse solver takes 32-bit indices alone.
    indices, starts = columns.indices.astype(np.int32), columns.indptr.astype(np.int32)
    scaled = sparse.csc_array((data, indices, starts), shape=columns.shape)
    # scikit-learn divides the squares by the number of rows, so the common penalty is divided too.
    lasso = Lasso(alpha=1 / len(harm), tol=1e-3, max_iter=10_000).fit(scaled, harm)
    return np.asarray(lasso.coef_ / penalty)


def _means(values: Float[np.ndarray, " row"], group: Int[np.ndarray, " row"]) -> Float[np.ndarray, " group"]:
    return np.asarray(np.bincount(group, values) / np.bincount(group))


def _variances(values: Float[np.ndarray, " row"], group: Int[np.ndarray, " row"]) -> Float[np.ndarray, " group"]:
    """Within each group; a group of one row or two tells little and takes the variance of all."""
    sizes = np.bincount(group)
    squares = np.bincount(group, (values - _means(values, group)[group]) ** 2)
    overall = squares.sum() / max(len(values) - len(sizes), 1)
    return np.where(sizes > 2, squares / np.maximum(sizes - 1, 1), overall)
