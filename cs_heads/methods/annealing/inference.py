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
class Contrasts:
    """Points of score that each finalist takes beyond the mean of the decoys, and its standard error."""

    estimate: Float[np.ndarray, " finalist"]
    error: Float[np.ndarray, " finalist"]
    dof: int

    def interval(self, level: float = 0.95) -> Float[np.ndarray, "finalist bound"]:
        """Two-sided t intervals, finalist by finalist."""
        reach = t.ppf(0.5 + level / 2, self.dof) * self.error
        return np.stack([self.estimate - reach, self.estimate + reach], axis=1)

    def claims(self, beyond: float = 0.02, level: float = 0.05) -> Bool[np.ndarray, " finalist"]:
        """Finalists with an effect above ``beyond``; any claim is wrong with probability ``level`` (Holm 1979)."""
        p = t.sf((self.estimate - beyond) / np.maximum(self.error, 1e-12), self.dof)
        order = np.argsort(p, kind="stable")
        passed = p[order] <= level / np.arange(len(p), 0, -1)
        claimed = np.zeros(len(p), dtype=bool)
        claimed[order[: int(np.argmin(passed)) if not passed.all() else len(p)]] = True
        return claimed


def contrasts(
    rows: Rows, finalists: Int[np.ndarray, " finalist"], decoys: Int[np.ndarray, " decoy"]
) -> Contrasts | None:
    """Least squares of single scores on the heads off, with example fixed effects.

    None without decoys, or with fewer than two rows for each head in the fit. Standard errors are clustered on
    rows and on examples (Cameron, Gelbach and Miller 2011): the examples of a row share its mask, and an
    example that hangs on a head does so in every row. The heads take degrees of freedom from the rows, which
    tell them apart, and none from the examples.
    """
    n_rows, k = rows.examples.shape
    examples = np.unique(rows.examples)
    heads = np.concatenate([finalists, decoys])
    if not len(decoys) or n_rows < ROWS_A_HEAD * len(heads) or len(examples) < 2:
        return None
    dof = max(1, n_rows - 1 - len(heads))
    row = np.repeat(np.arange(n_rows), k)
    example = np.searchsorted(examples, rows.examples.ravel())
    X = _less_mean(rows.off[:, heads].toarray()[row], example)
    harm = _less_mean(-rows.scores.ravel()[:, None], example)
    bread = np.linalg.pinv(X.T @ X, hermitian=True)
    coefficients = bread @ (X.T @ harm)[:, 0]
    scores = X * (harm[:, 0] - X @ coefficients)[:, None]
    # A fit of many heads on few rows leaves residuals smaller than the noise.
    by_row, by_example = _meat(scores, row) * (n_rows - 1) / dof, _meat(scores, example)
    alone = scores.T @ scores
    weights = np.eye(len(finalists), len(heads))
    weights[:, len(finalists) :] = -1 / len(decoys)
    half = weights @ bread

    def variance(meat: Float[np.ndarray, "head head"]) -> Float[np.ndarray, " finalist"]:
        return np.einsum("fi,ij,fj->f", half, meat, half)

    # The two-way variance may come out below either one-way variance, or below 0.
    both = np.maximum.reduce([variance(by_row + by_example - alone), variance(by_row), variance(by_example)])
    return Contrasts(weights @ coefficients, np.sqrt(np.maximum(both, 0)), min(dof, len(examples) - 1))


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


def _less_mean(values: Float[np.ndarray, "pair column"], group: Int[np.ndarray, " pair"]) -> np.ndarray:
    return np.asarray(values - _sums(values, group)[group] / np.bincount(group)[group, None])


def _meat(scores: Float[np.ndarray, "pair head"], cluster: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "head head"]:
    sums = _sums(scores, cluster)
    return np.asarray(sums.T @ sums * len(sums) / (len(sums) - 1))


def _sums(values: Float[np.ndarray, "pair column"], group: Int[np.ndarray, " pair"]) -> Float[np.ndarray, "g column"]:
    """Sums within groups, which are numbered from 0 without gaps."""
    membership = sparse.csr_array((np.ones(len(group)), (group, np.arange(len(group)))))
    return np.asarray(membership @ values)
