"""Which heads a set of rows blames: a Lasso whose penalties are noise levels, on the task and on its controls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from sklearn.linear_model import Lasso

from cs_heads.methods.annealing.rows import Rows

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


# What a head takes from the controls counts where it exceeds so many standard errors, and so much of them.
DOUBT = 2.0


# How clear an effect on both sides must be, and how large that on the controls beside the task's, for a head to be
# shared; and from where on its rows tell of no other head.
CLEAR, SHARED, LARGE = 4.0, 0.5, 0.4


@dataclass(frozen=True)
class BothEffects:
    """What a head takes from the task and from its controls, as losses, each with a standard error.

    A 95 % interval reaches ``reach`` of these to both sides.
    """

    task: float
    task_error: float
    controls: float
    controls_error: float
    reach: float = 1.96

    @property
    def are_shared(self) -> bool:
        """Whether the head surely takes something from both, and from the controls more than half of the task's."""
        clear = self.task > CLEAR * self.task_error > 0 and self.controls > CLEAR * self.controls_error > 0
        return clear and self.controls > SHARED * self.task

    @property
    def are_large(self) -> bool:
        """Whether it takes so much that rows in which it is off tell of no other head."""
        return min(self.task, self.controls) > LARGE

    @property
    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """95 % intervals of both."""
        own, others = self.reach * self.task_error, self.reach * self.controls_error
        return (self.task - own, self.task + own), (self.controls - others, self.controls + others)


@dataclass(frozen=True, eq=False)
class Blame:
    """The effect of each head on the task (points of response) and on its controls (losses), and the contrast of both.

    ``response`` is that of the rows, less the control variate. ``contrast`` is the loss of the task less what is sure
    of the controls' (without controls the loss of the task), and ``z`` the same in standard errors of the task's
    effect.
    """

    task: Fit
    controls: Fit
    response: Float[np.ndarray, " row"]
    above_guess: float
    contrast: Float[np.ndarray, " flat"]
    z: Float[np.ndarray, " flat"]

    @classmethod
    def none(cls, n_heads: int) -> Blame:
        """Of no rows."""
        zero = np.zeros(n_heads)
        return cls(Fit(zero, zero), Fit(zero, zero), np.zeros(0), 1.0, zero, zero)

    @property
    def error(self) -> Float[np.ndarray, " flat"]:
        """Standard error of the contrast; 0 for a head that was never off."""
        return np.hypot(standard_error(self.task) / self.above_guess, standard_error(self.controls))

    def both(self, head: int) -> BothEffects:
        """What one head takes from both sides."""
        errors = standard_error(self.task)[head] / self.above_guess, standard_error(self.controls)[head]
        effects = self.task.effect[head] / self.above_guess, self.controls.effect[head]
        return BothEffects(float(effects[0]), float(errors[0]), float(effects[1]), float(errors[1]))


def blame(rows: Rows, above_guess: float) -> Blame:
    """Fit both sides of the rows.

    Most heads take nothing from the controls, and noise in what they seem to take must not spread into the order of
    heads: of the controls' effects the part beyond two standard errors is subtracted. What rows do to the controls
    beyond the effects of their heads (a group of heads that matter only together) tells of the task's losses too, as
    far as both have gone together over all rows: that part is subtracted from these (a control variate).
    """
    response = rows.response()
    if not rows.drawn.shape[1]:
        task = regress(rows.off, response, rows.group)
        nothing = Fit(np.zeros_like(task.z), np.zeros_like(task.z))
        return Blame(task, nothing, response, above_guess, task.effect / above_guess, task.z)
    lost = rows.control_response()
    controls = regress(rows.off, -lost, rows.group)
    sure = beyond_doubt(controls)
    left = _less_mean(lost - rows.off @ sure, rows.group)
    together = float(np.clip(-(_less_mean(response, rows.group) @ left) / max(left @ left, 1e-12), 0, above_guess))
    response = response + together * left
    task = regress(rows.off, response, rows.group)
    contrast = task.effect / above_guess - sure
    error = standard_error(task) / above_guess
    z = np.divide(contrast, error, out=np.zeros_like(contrast), where=error > 0)
    return Blame(task, controls, response, above_guess, contrast, z)


def standard_error(fit: Fit) -> Float[np.ndarray, " flat"]:
    """Of each effect; 0 for a head that was never off."""
    return np.abs(np.divide(fit.effect, fit.z, out=np.zeros_like(fit.z), where=fit.z != 0))


def beyond_doubt(fit: Fit) -> Float[np.ndarray, " flat"]:
    """What heads surely take: the part of each effect above two standard errors, 0 for those below."""
    return np.maximum(fit.effect - DOUBT * standard_error(fit), 0)


def _less_mean(values: Float[np.ndarray, " row"], group: Int[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """Less the mean of the row's group."""
    _, group = np.unique(group, return_inverse=True)
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])
