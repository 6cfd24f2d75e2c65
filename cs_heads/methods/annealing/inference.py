"""How sure one may be: least squares against the intact model, and how often resampled rows select a head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.methods.annealing.blame import Blame, standard_error
from cs_heads.methods.annealing.regression import regress
from cs_heads.methods.annealing.rows import Rows

# Rows of the last phase for each head in its fit, below which errors come out far too small.
ROWS_A_HEAD = 2
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
        """Of these heads, as far as they were off, and its standard error; none take nothing."""
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
    known: Blame,
    prior: Float[np.ndarray, " flat"],
    merit: Float[np.ndarray, " flat"],
    lost: Float[np.ndarray, " row"] | None = None,
    *,
    k: int,
    n_bootstraps: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " flat"]:
    """Share of bootstraps over rows that find a head harmful and among the ``k`` best.

    What the controls take off its z, and the prior adds, stays as it is for all rows. With what rows ``lost`` against
    the intact model, of which there are enough for least squares, these select.
    """
    candidates = np.sort(np.argsort(-merit, kind="stable")[:_CANDIDATES])
    candidates = candidates[np.isfinite(merit[candidates])]
    off, response = sparse.csr_array(rows.off[:, candidates]), known.response
    beside = (prior + known.z - known.task.z)[candidates]
    error = standard_error(known.task)[candidates]
    error[error == 0] = np.inf
    frequency = np.zeros(len(merit))
    for _ in range(n_bootstraps):
        drawn = rng.integers(len(rows), size=len(rows))
        if lost is None:
            z = regress(off[drawn], response[drawn], rows.group[drawn]).z
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
    sums = _sums(scores, cluster)
    return np.asarray(sums.T @ sums * len(sums) / (len(sums) - 1))


def _sums(values: Float[np.ndarray, "pair column"], group: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "g column"]:
    """Sums within groups, which are numbered from 0 without gaps."""
    membership = sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))
    return np.asarray(membership @ values)
