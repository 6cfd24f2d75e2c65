"""What heads take from the intact response: least squares, standard errors, intervals, claims and bootstraps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.special import stdtr, stdtrit

from cs_heads.methods.annealing.contrast_fit import ContrastFit
from cs_heads.methods.annealing.measurements import Flat, PerRow, Rows
from cs_heads.methods.annealing.regression import Fit, membership, pooled, regress, standard_error
from cs_heads.methods.annealing.schedule import ROWS_A_HEAD
from cs_heads.methods.losses import EXACT, PLENTY, BothEffects

# What z must exceed to say anything: rounding is no sign of harm.
NO_HARM = 1e-6
# Values that losses take whose answers are right or wrong: of the task, or of controls with chances of their own.
_FEW_VALUES = 5
# Heads a bootstrap may select: the best by merit; the others are beyond its reach.
_CANDIDATES = 256


@dataclass(frozen=True, eq=False)
class Taken:
    """What heads take from the intact response, by least squares, with standard errors.

    ``covariance`` has the errors of every pair of heads; ``dof`` are the degrees of freedom of all.
    """

    heads: Int[np.ndarray, " head"]
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


def taken_by(
    off: sparse.csr_array,
    lost: Float[np.ndarray, "row k"],
    examples: Int[np.ndarray, "row k"],
    rows_a_head: int = ROWS_A_HEAD,
) -> Taken | None:
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


def selection_frequency(
    rows: Rows,
    known: ContrastFit,
    merit: Flat,
    *,
    lost: PerRow | None = None,
    resampled: Callable[[], Fit] | None = None,
    k: int,
    n_bootstraps: int,
    rng: np.random.Generator,
) -> Flat:
    """Share of bootstraps over rows that find a head harmful and among the ``k`` best.

    What the controls take off its z stays as it is for all rows. With what rows ``lost`` against
    the intact model, of which there are enough for least squares, these select. ``resampled`` gives what was known
    before the rows, by a bootstrap of its own.
    """
    candidates = np.sort(np.argsort(-merit, kind="stable")[:_CANDIDATES])
    candidates = candidates[np.isfinite(merit[candidates])]
    off, response = sparse.csr_array(rows.off[:, candidates]), known.response
    beside = (known.z - known.task.z)[candidates]
    error = standard_error(known.task)[candidates]
    error[error == 0] = np.inf
    frequency = np.zeros(len(merit))
    for _ in range(n_bootstraps):
        drawn = rng.integers(len(rows), size=len(rows))
        if lost is None:
            fit = regress(off[drawn], response[drawn], rows.group[drawn])
            if resampled is not None:
                before = resampled()
                fit = pooled(Fit(before.effect[candidates], before.z[candidates]), fit, known.above_guess)
            z = fit.z
        else:
            z = np.linalg.lstsq(off[drawn].toarray(), lost[drawn], rcond=None)[0] / error
        best = np.argsort(-(z + beside), kind="stable")[:k]
        frequency[candidates[best[z[best] > NO_HARM]]] += 1 / n_bootstraps
    return np.minimum(frequency, 1.0)


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
# Halvings of a bracket: beyond what floats tell apart.
_N_HALVINGS = 60
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
        bounds = np.full((len(self.effect), 2), np.nan)
        if self.last is None:
            return bounds
        # With one degree of freedom no value would be far enough away.
        middle, reach = self.estimate, float(stdtrit(max(2, self.last.dof), 0.975))
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
        self, finalists: Int[np.ndarray, " finalist"], decoys: Int[np.ndarray, " decoy"], beyond: float = 0.02
    ) -> Bool[np.ndarray, " finalist"]:
        """Finalists that take more than ``beyond`` more than the mean decoy; without decoys, more than ``beyond``.

        Any claim is wrong with a probability of 5 % (Holm 1979).
        """
        assert self.last is not None
        harmless, error = self.last.mean(decoys)
        exceeds = self.sure_of_more_than(max(harmless, 0.0) + beyond, error)[finalists]
        return holm(stdtr(self.last.dof, -exceeds))

    def interfering(self, heads: Int[np.ndarray, " head"], dof: int) -> Bool[np.ndarray, " head"]:
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
            now[heads] = 1 / (
                np.maximum(self.last.error, EXACT) ** 2 + (LAST_MISFIT * np.asarray(value)[heads]) ** 2 + error**2
            )
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
    order = np.argsort(p, kind="stable")
    passed = p[order] <= _LEVEL / np.arange(len(p), 0, -1)
    rejected = np.zeros(len(p), dtype=bool)
    rejected[order[: int(np.argmin(passed)) if not passed.all() else len(p)]] = True
    return rejected


def both_effects(task: Taken | None, controls: Taken | None, above_guess: float) -> dict[int, BothEffects] | None:
    """Effects on the task (response lost) and on the controls (losses), both as losses; None where either is None."""
    if task is None or controls is None:
        return None
    reach = float(stdtrit(min(task.dof, controls.dof), 0.975))
    own, others = (np.maximum(side.error, EXACT) for side in (task, controls))
    effects = task.estimate / above_guess, own / above_guess, controls.estimate, others
    return {
        int(head): BothEffects(float(lost), float(error), float(theirs), float(their_error), reach)
        for head, lost, error, theirs, their_error in zip(task.heads, *effects, strict=True)
    }


def anchored(
    rows: Rows, fit: Fit, lost: PerRow, singles: tuple[sparse.csr_array, np.ndarray, np.ndarray]
) -> tuple[Flat, Flat, bool]:
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
