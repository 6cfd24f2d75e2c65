"""How sure one may be: intervals against decoys, claims, and how often resampled rows select a head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.stats import t

from cs_heads.methods.annealing.blame import Blame
from cs_heads.methods.annealing.regression import regress
from cs_heads.methods.annealing.rows import Rows

# Rows of the last phase for each head in its fit, below which errors come out far too small.
ROWS_A_HEAD = 2
# What z must exceed to say anything: rounding is no sign of harm.
NO_HARM = 1e-6
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
        weights = np.array(
            [np.isin(self.heads, head) - np.isin(self.heads, decoys) / max(1, len(decoys)) for head in finalists]
        )
        estimate = weights @ self.estimate
        error = np.sqrt(np.maximum(np.einsum("fi,ij,fj->f", weights, self.covariance, weights), 1e-24))
        p = t.sf((estimate - beyond) / error, self.dof)
        order = np.argsort(p, kind="stable")
        passed = p[order] <= level / np.arange(len(p), 0, -1)
        claimed = np.zeros(len(p), dtype=bool)
        claimed[order[: int(np.argmin(passed)) if not passed.all() else len(p)]] = True
        return claimed


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
    share its mask, and an example that hangs on a head does so in every row.
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
    narrow = np.sqrt(np.maximum(np.diag(one_way[0]), 1e-24))
    covariance = one_way[0] * np.outer(widest / narrow, widest / narrow)
    return Taken(heads, estimate, covariance, min(dof, int(example.max())))


def selection_frequency(
    rows: Rows,
    known: Blame,
    prior: Float[np.ndarray, " flat"],
    merit: Float[np.ndarray, " flat"],
    *,
    k: int,
    n_bootstraps: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " flat"]:
    """Share of bootstraps over rows that find a head harmful and among the ``k`` best.

    What the controls take off its z, and the prior adds, stays as it is for all rows.
    """
    candidates = np.sort(np.argsort(-merit, kind="stable")[:_CANDIDATES])
    candidates = candidates[np.isfinite(merit[candidates])]
    off, response = sparse.csr_array(rows.off[:, candidates]), known.response
    beside = (prior + known.z - known.task.z)[candidates]
    frequency = np.zeros(len(merit))
    for _ in range(n_bootstraps):
        drawn = rng.integers(len(rows), size=len(rows))
        z = regress(off[drawn], response[drawn], rows.group[drawn]).z
        best = np.argsort(-(z + beside), kind="stable")[:k]
        frequency[candidates[best[z[best] > NO_HARM]]] += 1 / n_bootstraps
    return np.minimum(frequency, 1.0)


def _meat(scores: Float[np.ndarray, "pair head"], cluster: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "head head"]:
    sums = _sums(scores, cluster)
    return np.asarray(sums.T @ sums * len(sums) / (len(sums) - 1))


def _sums(values: Float[np.ndarray, "pair column"], group: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "g column"]:
    """Sums within groups, which are numbered from 0 without gaps."""
    membership = sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))
    return np.asarray(membership @ values)
