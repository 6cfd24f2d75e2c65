"""What heads take from the intact model: least squares, standard errors, intervals, claims, and universal heads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import stdtr, stdtrit

from cs_heads.methods.annealing.measurements import Flat, PerRow, Rows
from cs_heads.methods.annealing.regression import Fit, membership
from cs_heads.methods.annealing.schedule import ROWS_A_HEAD
from cs_heads.methods.losses import CLEAR, EXACT, PLENTY, BothEffects, Places

# What z must exceed to say anything: rounding is no sign of harm.
NO_HARM = 1e-6
# Values that losses take whose answers are right or wrong: of the task, or of controls with chances of their own.
_FEW_VALUES = 5


Heads = Int[np.ndarray, " head"]
OfTasks = Float[np.ndarray, "task flat"]
Finalists = Int[np.ndarray, " finalist"]
OfAnswers = Float[np.ndarray, "row k"]


@dataclass(frozen=True, eq=False)
class Taken:
    """What heads take from the intact response, by least squares, with standard errors.

    ``covariance`` has the errors of every pair of heads; ``dof`` are the degrees of freedom of all.
    """

    heads: Heads
    estimate: Float[np.ndarray, " head"]
    covariance: Float[np.ndarray, "head head"]
    dof: int

    @property
    def error(self) -> Float[np.ndarray, " head"]:
        """Standard error of each estimate."""
        return np.sqrt(np.diag(self.covariance))

    def mean(self, heads: Int[np.ndarray, " some"]) -> tuple[float, float]:
        """The mean estimate of these heads, of those that were off, and its standard error; 0 where none was."""
        among = np.isin(self.heads, heads)
        if not among.any():
            return 0.0, 0.0
        weights = among / among.sum()
        return float(weights @ self.estimate), float(np.sqrt(max(weights @ self.covariance @ weights, 0.0)))


def taken_by(off: sparse.csr_array, lost: OfAnswers, examples: Places, rows_a_head: int = ROWS_A_HEAD) -> Taken | None:
    """Least squares of what single answers lost against the intact model on the heads off, with no intercept.

    With nothing off nothing is lost: that is the intact run's place in the regression, and it fixes the level of all
    heads, also where every row has as many off. None with fewer than ``rows_a_head`` rows for each head that was ever
    off. Standard errors are clustered on rows and on examples (Cameron, Gelbach and Miller 2011): the examples of a row
    share its mask, and an example that hangs on a head does so in every row. Answers that all go alike are no proof
    that others would: where they can take few values, errors are at least those of a share of which so many answers
    show nothing (Agresti and Coull 1998).
    """
    n_rows, k = examples.shape
    heads = np.flatnonzero(np.asarray(off.sum(axis=0)).ravel())
    if not len(heads) or n_rows < rows_a_head * len(heads) or len(np.unique(examples)) < 2:
        return None
    dof = max(1, n_rows - len(heads))
    row = np.repeat(np.arange(n_rows), k)
    example = np.unique(examples, return_inverse=True)[1].ravel()
    X, y = off[:, heads].toarray()[row], lost.ravel()
    bread = np.linalg.pinv(X.T @ X, hermitian=True)
    estimate = bread @ (X.T @ y)
    scores = X * (y - X @ estimate)[:, None]
    # A fit of many heads on few rows leaves residuals smaller than the noise.
    by_row, by_example = _meat(scores, row) * (n_rows - 1) / dof, _meat(scores, example)
    both = bread @ (by_row + by_example - scores.T @ scores) @ bread
    # The two-way variance may come out below either one-way variance, or below 0.
    one_way = [bread @ meat @ bread for meat in (by_row, by_example)]
    widest = np.sqrt(np.maximum.reduce([np.diag(each) for each in (both, *one_way)]))
    widest = np.maximum(widest, _when_alike(X.sum(axis=0), y))
    narrow = np.sqrt(np.maximum(np.diag(one_way[0]), 1e-24))
    correlation = one_way[0] / np.outer(narrow, narrow)
    np.fill_diagonal(correlation, 1.0)
    covariance = correlation * np.outer(widest, widest)
    return Taken(heads, estimate, covariance, min(dof, int(example.max())))


def _when_alike(n: Float[np.ndarray, " head"], lost: Float[np.ndarray, " answer"]) -> Float[np.ndarray, " head"]:
    """Standard error of the share of answers that are lost, where none of ``n`` is; 0 for answers on a fine scale."""
    values = np.unique(np.abs(lost))
    share = 2 / (n + 4)
    largest = (values.max() or 1.0) if len(values) <= _FEW_VALUES else 0.0
    return np.asarray(largest * np.sqrt(share * (1 - share) / (n + 4)))


def _meat(scores: Float[np.ndarray, "pair head"], cluster: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "head head"]:
    sums = membership(cluster) @ scores
    return np.asarray(sums.T @ sums * len(sums) / (len(sums) - 1))


# What a head does among many others that are off may differ from what it does alone by this share of itself (one
# standard deviation), and among the few of the last phase by this.
MISFIT, LAST_MISFIT = 0.6, 0.15
# Halvings of a bracket of ``_FAR`` standard errors: beyond what floats tell apart.
_N_HALVINGS, _FAR = 80, 2.0**20
# The family-wise error rate of claims.
_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Estimates:
    """The effect of each head, as response lost, from the rows before the last phase and from those of it.

    Each value that an effect may have is held against both, weighted by their precision. ``effect`` and ``error`` are
    of the earlier rows, among many other heads that are off: there a head of effect v does what it does alone but for
    an error of ``MISFIT`` v. The finalists were chosen by these rows, for a z of more than ``passed``: what chance
    alone lifts so high has an error ``passed`` times as large beside its own. The ``last`` phase, of few heads off and
    measured after the choice, has one of ``LAST_MISFIT`` v.
    """

    effect: Flat
    error: Flat
    passed: float
    last: Taken | None

    def sure_of_more_than(self, value: Flat | float, error: float = 0.0) -> Flat:
        """By how many standard errors each effect exceeds a value, which has an error of its own; 0 if never off."""
        before, now, late = self._precisions(np.broadcast_to(value, self.effect.shape), error)
        sum_ = before * (self.effect - value) + now * (late - value)
        precision = before + now
        return np.divide(sum_, np.sqrt(precision), out=np.zeros_like(sum_), where=precision > 0)

    @property
    def estimate(self) -> Flat:
        """The value that is exceeded by 0 standard errors."""
        late = self._precisions(self.effect)[2]
        return self._where(0.0, np.minimum(self.effect, late), np.maximum(self.effect, late))

    @property
    def interval(self) -> Float[np.ndarray, "flat bound"]:
        """The 95 % interval of each effect, by inverting the test; NaN without a last phase."""
        if self.last is None:
            return np.full((len(self.effect), 2), np.nan)
        # With one degree of freedom no value would be far enough away.
        middle, reach = self.estimate, float(stdtrit(max(2, self.last.dof), 0.975))
        before, now, _ = self._precisions(middle)
        far = np.divide(_FAR * reach, np.sqrt(before + now), out=np.zeros_like(middle), where=now > 0)
        low, high = self._where(reach, middle - far, middle), self._where(-reach, middle, middle + far)
        return np.where(now[:, None] > 0, np.stack([low, high], axis=-1), np.nan)

    def claims(self, finalists: Finalists, decoys: Heads, beyond: float = 0.02) -> Bool[np.ndarray, " finalist"]:
        """Finalists that take more than ``beyond`` more than the mean decoy; without decoys, more than ``beyond``.

        Any claim is wrong with a probability of 5 % (Holm 1979).
        """
        assert self.last is not None
        harmless, error = self.last.mean(decoys)
        exceeds = self.sure_of_more_than(max(harmless, 0.0) + beyond, error)[finalists]
        return holm(stdtr(self.last.dof, -exceeds))

    def interfering(self, heads: Heads, dof: int) -> Bool[np.ndarray, " head"]:
        """Heads from which the task gains when they are off, by the earlier rows, which chose none of them for that.

        Any is wrong with a probability of 5 % (Holm 1979).

        Args:
            heads: Heads that are tried.
            dof: Degrees of freedom of the errors.
        """
        return holm(stdtr(max(1, dof), self.effect[heads] / np.maximum(self.error[heads], EXACT)))

    def _precisions(self, value: Flat, error: float = 0.0) -> tuple[Flat, Flat, Flat]:
        """The precision of the earlier rows and of the last phase at this effect, and the effect in the last phase."""
        before = 1 / (self.error**2 * (1 + self.passed**2) + (MISFIT * value) ** 2 + error**2)
        now, late = np.zeros_like(before), self.effect.copy()
        if self.last is not None:
            heads = self.last.heads
            late[heads] = self.last.estimate
            differing = LAST_MISFIT * np.asarray(value)[heads]
            now[heads] = 1 / (np.maximum(self.last.error, EXACT) ** 2 + differing**2 + error**2)
        return before, now, late

    def _where(self, exceeded: float, low: Flat, high: Flat) -> Flat:
        """The values between two bounds that the effects exceed by this many standard errors, by bisection."""
        for _ in range(_N_HALVINGS):
            middle = (low + high) / 2
            more = self.sure_of_more_than(middle) > exceeded
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return np.asarray((low + high) / 2)


def holm(p: Float[np.ndarray, " test"]) -> Bool[np.ndarray, " test"]:
    """Tests that reject, any of them wrongly with a probability of 5 % (Holm 1979).

    >>> holm(np.array([0.04, 0.001, 0.02])).tolist(), holm(np.array([0.04, 0.001, 0.03])).tolist()
    ([True, True, True], [False, True, False])
    """
    order, rejected = np.argsort(p, kind="stable"), np.zeros(len(p), dtype=bool)
    rejected[order] = np.logical_and.accumulate(p[order] <= _LEVEL / np.arange(len(p), 0, -1))
    return rejected


def both_effects(task: Taken | None, controls: Taken | None) -> dict[int, BothEffects] | None:
    """What each head takes from the task and from the controls; None where either is not known."""
    if task is None or controls is None:
        return None
    reach = float(stdtrit(min(task.dof, controls.dof), 0.975))
    sides = [(each.estimate.tolist(), np.maximum(each.error, EXACT).tolist()) for each in (task, controls)]
    rows = zip(*sides[0], *sides[1], strict=True)
    return {head: BothEffects(*row, reach) for head, row in zip(task.heads.tolist(), rows, strict=True)}


def anchored(
    rows: Rows, fit: Fit, lost: PerRow, singles: tuple[sparse.csr_array, OfAnswers, Places]
) -> tuple[Flat, Flat, bool]:
    """Effects against the intact model, and their errors; 0 and infinite for heads that were never off.

    A fit with free intercepts says how heads differ. Where there are rows enough, least squares of the ``singles``
    (what single answers lost) say what each takes; else all effects are raised by what a head off costs in the mean
    beyond them. The third says which.
    """
    every = taken_by(*singles, rows_a_head=PLENTY)
    effect, error = fit.effect.copy(), fit.error
    tried = np.asarray(rows.off.sum(axis=0)).ravel() > 0
    if every is not None:
        effect[every.heads], error[every.heads] = every.estimate, every.error
    elif len(rows):
        times = np.asarray(rows.off.sum(axis=1)).ravel()
        effect[tried] += float(times @ (lost - rows.off @ effect) / max(times @ times, 1e-12))
    return effect, np.where(tried, np.maximum(error, EXACT), np.inf), every is not None


# What a universal head takes from more than this share of the tasks, and in the mean.
_SOME, _MOST, _MUCH = 0.05, 0.5, 0.1
# Tasks below which nothing can be called universal.
_FEWEST = 2


def universal_of(losses: OfTasks, errors: OfTasks, kin: Collection[tuple[int, int]] = ()) -> Heads:
    """The heads that most tasks need: more than half of them lose, a tenth and more in the mean, and not one alone.

    The mean loss must be clear also without the task that loses most.
    Tasks that are ``kin``, pairs of their places, count as one, which loses their mean.

    >>> universal_of(np.array([[0.3, 0.4, 0.0], [0.2, 0.0, 0.0], [0.2, 0.0, 0.1]]), np.full((3, 3), 0.02))
    array([0])
    """
    first, second = np.array([*kin], dtype=int).reshape(-1, 2).T
    pairs = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(len(losses), len(losses)))
    n, family = connected_components(pairs, directed=False)
    groups = [family == each for each in range(n)]
    losses = np.stack([losses[group].mean(axis=0) for group in groups])
    errors = np.stack([np.sqrt(np.square(errors[group]).sum(axis=0)) / group.sum() for group in groups])
    if n < _FEWEST:
        return np.zeros(0, dtype=int)
    mean, most = losses.mean(axis=0), (losses > _SOME + errors).mean(axis=0) > _MOST
    # Without the task that loses most, whose own head it may be.
    without = np.argsort(losses, axis=0, kind="stable")[:-1]
    rest, error = (np.take_along_axis(each, without, axis=0) for each in (losses, errors))
    clear = rest.mean(axis=0) > CLEAR * np.sqrt(np.square(error).sum(axis=0)) / (n - 1)
    found = np.flatnonzero(most & clear & (mean > _MUCH))
    return found[np.argsort(-mean[found], kind="stable")]


def alone_intervals(
    losses: Float[np.ndarray, "*heads"], errors: Float[np.ndarray, "*heads"]
) -> Float[np.ndarray, "*heads 2"]:
    """The 95 % intervals of what heads take alone, from what they take among others that are off.

    That may differ by more than half of itself (``MISFIT``), beside its standard error.

    >>> alone_intervals(np.array([0.0, 0.5]), np.array([0.1, 0.0])).round(2).tolist()
    [[-0.2, 0.2], [-0.09, 1.09]]
    """
    reach = 1.96 * np.hypot(errors, MISFIT * losses)
    return np.stack([losses - reach, losses + reach], axis=-1)
