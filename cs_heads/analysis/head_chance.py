"""What is chance for a found head: what random heads take, and what other heads of the model have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

# Random heads, or sets of them, below which nothing says what is chance.
LEAST_RANDOM = 4
# Where the tail of other heads begins; and the least mean excess over that: smaller differences say nothing.
_TAIL, _UNIT = 0.9, 0.01


def reached_by_random(means: Float[np.ndarray, " random"], outside: float) -> float:
    """What a further random head, or set, exceeds in so large a share of draws, in absolute numbers.

    By Student's t about zero; NaN where too few are known.

    Args:
        means: What each random one takes.
        outside: The share.
    """
    from scipy.stats import t

    if len(means) < LEAST_RANDOM:
        return np.nan
    return float(t.ppf(1 - outside / 2, len(means)) * np.sqrt((means**2).mean() * (1 + 1 / len(means))))


def bounds_of_others(
    others: Mapping[str, Float[np.ndarray, " head"]], least: Mapping[str, float], outside: float
) -> dict[str, float]:
    """By figure what must be exceeded, so that one more head like the others exceeds any in so large a share of draws.

    Bounds are corrected for all figures together: of each other head the figure counts in which it is farthest out
    (a maximum of statistics, as in Westfall and Young, *Resampling-based Multiple Testing*, 1993). How far is measured
    from the .9 quantile of the other heads, by the mean excess over it: ranks would be used up by the heads that come
    first in one figure each. Of too few heads the bound is the farthest of all.

    Args:
        others: By figure the absolute numbers of the other heads.
        least: By figure what must be exceeded anyway.
        outside: The share.
    """
    values = np.stack([*others.values()])
    floors = np.array([[least.get(name, 0.0)] for name in others])
    if not (n := values.shape[1]):
        return {}
    most = np.quantile(values, _TAIL, axis=1, method="inverted_cdf", keepdims=True)
    above = np.maximum(values - most, 0.0)
    unit = np.maximum(above.sum(axis=1, keepdims=True) / np.maximum(1, (above > 0).sum(axis=1, keepdims=True)), _UNIT)
    far = np.where(values > floors, (values - most) / unit, 0.0).max(axis=0)
    enough = np.quantile(far, min(1.0, (1 - outside) * (1 + 1 / n)), method="inverted_cdf")
    return dict(zip(others, np.maximum(floors, most + enough * unit).ravel().tolist(), strict=True))
