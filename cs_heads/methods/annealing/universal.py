"""Heads that most of several tasks need, and what a head takes alone by what it takes among others."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from cs_heads.methods.annealing.intervals import MISFIT
from cs_heads.methods.losses import CLEAR

# What a universal head takes from more than this share of the tasks, and in the mean.
_SOME, _MOST, _MUCH = 0.05, 0.5, 0.1
# Tasks below which nothing can be called universal.
_FEWEST = 2


def universal_of(
    losses: Float[np.ndarray, "task flat"],
    errors: Float[np.ndarray, "task flat"],
    kin: Collection[tuple[int, int]] = (),
) -> Int[np.ndarray, " universal"]:
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
