"""How far rankings agree: which heads they have in common, whether chance explains it, and the order of heads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from cs_heads.analysis.found_heads import Found, check_states, heads_of
from cs_heads.analysis.random_heads import Mask
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_mapping, check_one_of, check_seed
from cs_heads.drawable import Drawable
from cs_heads.ranking import HeadRanking
from cs_heads.record import Record
from cs_heads.units import Grid, Unit, check_grid


@dataclass(frozen=True)
class PairOverlap(Record):
    """What two sets of heads share: heads, and groups of heads with keys and values in common.

    ``expected_heads`` is what chance gives on average and ``p_heads`` the chance of at least as many, exactly;
    ``p_groups`` comes from permutations. Groups are None where every head has keys and values of its own.
    """

    first: str
    second: str
    heads: int
    expected_heads: float
    p_heads: float
    q_heads: float = float("nan")
    groups: int | None = None
    expected_groups: float | None = None
    p_groups: float | None = None
    q_groups: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(Result, Drawable, picture="overlap"):
    """The heads several rankings name, pair by pair.

    Attributes:
        heads: By the name of a ranking the heads compared.
        pairs: What each two of them share; q are p-values after Benjamini and Hochberg, over all pairs.
        n_groups: Groups of heads with keys and values in common (None: every head has its own, or it is not known).
        provenance: Grid, seed, and that of each ranking.
        spent, notes: Of every result; nothing is measured.
    """

    heads: dict[str, tuple[Unit, ...]]
    pairs: tuple[PairOverlap, ...]
    n_groups: int | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per pair: shared heads and groups, what chance gives, p and q."""
        frame = pd.DataFrame([vars(pair) for pair in self.pairs])
        return frame if self.n_groups else frame[[c for c in frame if "groups" not in str(c)]]

    def matrix(self, value: str = "heads") -> pd.DataFrame:
        """A property of each pair as a symmetric table; the diagonal is the number of heads (or NaN for p and q).

        Args:
            value: Which: a field of ``PairOverlap``, as ``"heads"``, ``"expected_heads"``, ``"q_heads"`` or
                ``"groups"``.

        Raises:
            ValueError: No number of a ``PairOverlap``.
        """
        numbers = [each.name for each in fields(PairOverlap) if each.name not in ("first", "second")]
        check_one_of("value", value, numbers)
        names = list(self.heads)
        own = [len(heads) if value == "heads" else np.nan for heads in self.heads.values()]
        table = pd.DataFrame(np.diag(np.array(own, dtype=float)), index=names, columns=names)
        for pair in self.pairs:
            found = getattr(pair, value)
            table.loc[pair.first, pair.second] = table.loc[pair.second, pair.first] = np.nan if found is None else found
        return table


def head_overlap(
    found: Mapping[str, Found],
    *,
    k: int | None = None,
    seed: int = 0,
    grid: Grid | None = None,
    n_key_value_heads: int | None = None,
    n_permutations: int = 9999,
) -> Overlap:
    """Compare the heads of several tasks or methods, two by two, with what chance would give.

    The null distribution puts both sets elsewhere in the same layers, so that two tasks that both live in late layers
    do not pass for alike. The number of heads in common is then a sum of hypergeometric draws,
    whose probabilities are exact; the number of groups in common is taken from pairs of random sets. Which ranking is
    named first changes neither.

    Args:
        found: Rankings or lists of heads by name.
        k: Heads taken of a ranking (None: as many as it was searched for).
        seed: Draws the random sets.
        grid: The grid of lists of heads (None: that of the rankings).
        n_key_value_heads: Key-value heads of a layer (None: what the rankings know of their model). Groups of heads
            that share keys and values are counted, too: head h is in group ``h // (n_heads / n_key_value_heads)`` of
            its layer.
        n_permutations: Pairs of random sets.

    Returns:
        For each two sets the heads in common, the number expected by chance, p, and q (p after Benjamini and Hochberg
        over all pairs).

    Raises:
        ValueError: Fewer than two sets, sets of different grids, or key-value heads that do not divide the heads.

    >>> from cs_heads.units import Grid
    >>> grid = Grid(4, 4)
    >>> head_overlap({"a": ["L0H1", "L2H3"], "b": ["L0H1", "L2H3"]}, grid=grid).pairs[0].p_heads
    0.0625
    """
    from scipy.stats import false_discovery_control

    check_seed(seed)
    check_mapping("found", found, "rankings or lists of heads by name")
    check_integer("n_permutations", n_permutations, 1)
    rankings = {name: each for name, each in found.items() if isinstance(each, HeadRanking)}
    if grid is None and not rankings:
        raise ValueError("grid must be given where found holds no ranking")
    grid = check_grid(next(iter(rankings.values())).grid if grid is None else grid)
    heads = {name: heads_of(grid, each, k, f"found[{name!r}]", beside_off=True) for name, each in found.items()}
    check_states("found", rankings)
    if len(heads) < 2:
        raise ValueError(f"found must hold two rankings or more, got {len(heads)}")
    if n_key_value_heads is None and grid.kind == "heads":
        known = [ranking.provenance.get("model", {}).get("key_value_heads") for ranking in rankings.values()]
        n_key_value_heads = next((n for n in known if n is not None), None)
    n_groups = grid.n_units if n_key_value_heads is None else check_integer("n_key_value_heads", n_key_value_heads, 1)
    if grid.n_units % n_groups:
        raise ValueError(f"n_key_value_heads must divide the {grid.n_units} heads of a layer, got {n_groups}")
    grouped = n_groups < grid.n_units
    rng = np.random.default_rng(seed)
    pairs: list[dict[str, Any]] = []
    for (first, a), (second, b) in combinations(heads.items(), 2):
        one, other = grid.mask(a), grid.mask(b)
        chances, shared = _chances(one, other), int((one & other).sum())
        expected, p = float(chances @ np.arange(len(chances))), min(1.0, float(chances[shared:].sum()))
        pair = {"first": first, "second": second, "heads": shared, "expected_heads": expected, "p_heads": p}
        if grouped:
            pair |= _shared_groups([_drawn(side, n_permutations, rng) for side in (one, other)], n_groups)
        pairs.append(pair)
    for kind in ("heads", "groups") if grouped else ("heads",):
        for pair, q in zip(pairs, false_discovery_control([pair[f"p_{kind}"] for pair in pairs]), strict=True):
            pair[f"q_{kind}"] = float(q)
    origins = {name: ranking.provenance for name, ranking in rankings.items()}
    return Overlap(
        heads=heads,
        pairs=tuple(PairOverlap(**pair) for pair in pairs),
        n_groups=grid.n_layers * n_groups if grouped else None,
        provenance={"grid": list(grid.shape), "seed": seed, "found": origins},
    )


def _chances(one: Mask, other: Mask) -> np.ndarray:
    """Probability of 0, 1, ... heads in common where the second set lies at random: sums of hypergeometric draws."""
    from scipy.stats import hypergeom

    chances = np.ones(1)
    for a, b in zip(one, other, strict=True):
        drawn = hypergeom(a.size, a.sum(), b.sum()).pmf(np.arange(min(a.sum(), b.sum()) + 1))
        chances = np.convolve(chances, drawn)
    return chances


def _drawn(mask: Mask, n: int, rng: np.random.Generator) -> Bool[np.ndarray, "draw layer head"]:
    """The set as it is, and ``n`` times with its heads drawn at random."""
    drawn = rng.permuted(np.repeat(mask[None], n, axis=0), axis=2)
    return np.concatenate([mask[None], drawn])


def _shared_groups(drawn: Sequence[Bool[np.ndarray, "draw layer head"]], n_groups: int) -> dict[str, Any]:
    """The groups that a pair of sets shares; the sets as they are count as one of the draws.

    Both are drawn: how many groups a set holds depends on where its heads lie, and neither comes first.
    """
    one, other = (side.reshape(*side.shape[:2], n_groups, -1).any(axis=3) for side in drawn)
    shared, *random = (one & other).sum(axis=(1, 2)).tolist()
    p = float(np.mean([shared, *random] >= np.array(shared)))
    return {"groups": shared, "expected_groups": float(np.mean(random)), "p_groups": p}


def rank_biased_overlap(first: Sequence[Hashable], second: Sequence[Hashable], persistence: float = 0.9) -> float:
    """Rank-biased overlap of two lists of one length without repeats, in [0, 1], extrapolated past their end.

    The mean overlap at depths 1, 2, ..., of which depth d weighs ``persistence ** (d - 1)``; beyond the lists the
    overlap at their end is taken to hold (Webber, Moffat and Zobel, *A Similarity Measure for Indefinite Rankings*,
    2010, equation 30).

    >>> rank_biased_overlap("abc", "abc"), rank_biased_overlap("abc", "xyz")
    (1.0, 0.0)
    >>> round(rank_biased_overlap("ab", "ba", persistence=0.5), 3)
    0.5
    """
    depths = range(1, len(first) + 1)
    shared = np.array([len({*first[:depth]} & {*second[:depth]}) / depth for depth in depths])
    weighed = (1 - persistence) / persistence * (shared * persistence ** np.array(depths)).sum()
    return float(weighed + shared[-1] * persistence ** len(first))


def spearman(first: HeadRanking, second: HeadRanking) -> float:
    """Spearman's correlation of importance over the heads to which both rankings give one beyond ±1e-5.

    Below that lies what only breaks ties. Heads that the annealed method does not rank enter by importance, too.
    NaN where these are fewer than three, or all alike in one ranking: there is no order to compare.
    """
    from scipy.stats import spearmanr

    shared = (np.abs(first.importance) > 1e-5) & (np.abs(second.importance) > 1e-5)
    a, b = first.importance[shared], second.importance[shared]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)
