"""What annealed sensing is given, checked before anything is measured."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from cs_heads.arguments import check_share
from cs_heads.experiment.protocol import ExperimentLike, chance_of
from cs_heads.ranking import HeadRanking

# What a standardised prior counts beside z.
PRIOR_WEIGHT = 0.5


def standardised(
    prior: HeadRanking | Float[np.ndarray, "..."] | None, shape: tuple[int, int]
) -> Float[np.ndarray, " flat"]:
    """What a prior adds to z; nothing where there is none, or where it says the same of all heads."""
    if prior is None:
        return np.zeros(shape[0] * shape[1])
    prior = np.asarray(prior.importance if isinstance(prior, HeadRanking) else prior, dtype=float)
    if prior.shape != shape or not np.isfinite(prior).all():
        raise ValueError(f"prior must be finite, one number a head [layer, head] = {shape}, got shape {prior.shape}")
    spread = prior.std()
    return np.asarray(PRIOR_WEIGHT * (prior - prior.mean()).ravel() / (spread if spread > 0 else 1.0))


def checked_chance(name: str, value: float | None, experiment: ExperimentLike | None) -> float:
    """The score of guessing, given or that of the experiment's task."""
    value = chance_of(experiment) if value is None else value
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be 0 or more and below 1, got {value}")
    return value


def check_shares(**shares: float) -> None:
    """Raise ``ValueError`` for a share outside (0, 1)."""
    for name, value in shares.items():
        check_share(name, value)
