"""An experiment whose truth is known: examples with margins, and what each head takes from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt64
from scipy import sparse
from scipy.special import expit
from scipy.stats import norm

from cs_heads.arguments import check_seed
from cs_heads.designs import check_masks
from cs_heads.experiment.protocol import ExperimentLike, check_examples, check_response
from cs_heads.units import Grid, check_grid

# Margin of a guess that is right.
_GUESSED = 1e-3


class PlantedExperiment(ExperimentLike):
    """Answers as a model would in which the given heads do the given damage; scores are 0 or 1.

    ``spent`` counts the example-evaluations asked for. The arguments but ``seed`` are attributes, too.

    Args:
        grid: Layers × heads.
        margins: Margin of each example with no head off; it is right where what is left is above zero.
        damage: What each head takes from each margin.
        groups: Flat indices of two heads or more, and what they take from each margin on top when all of them are off.
        chance: Probability that an example without a margin is right, drawn once for each mask and example.
        noise: Standard deviation of what is added to a margin, drawn alike.
        seed: Seeds both.
        name: That of the task.

    Raises:
        ValueError: A grid that is none, margins or damage that are no arrays, damage of another shape, or a seed out of
            range.
    """

    def __init__(
        self,
        grid: Grid,
        margins: Float[np.ndarray, " example"],
        damage: Float[np.ndarray, "flat example"],
        *,
        groups: Sequence[tuple[Sequence[int], Float[np.ndarray, " example"]]] = (),
        chance: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        name: str = "planted",
    ) -> None:
        check_seed(seed)
        check_grid(grid)
        given: dict[str, Any] = {"margins": margins, "damage": damage}
        for argument, value in given.items():
            if not isinstance(value, np.ndarray):
                raise ValueError(f"{argument} must be an array, got {value!r:.80}")
        if damage.shape != (grid.size, len(margins)):
            raise ValueError(f"damage must be [flat, example] = {(grid.size, len(margins))}, got {damage.shape}")
        self.grid = grid
        self.margins = margins
        self.damage = damage
        self.groups = groups
        self.chance = chance
        self.noise = noise
        self.name = name
        self.n_examples = len(margins)
        self.responses = ("score", "probability", "margin")
        self.spent = 0
        rng = np.random.default_rng([seed, 1])
        self._head_keys = rng.integers(2**64, size=grid.size, dtype=np.uint64)
        self._example_keys = rng.integers(2**64, size=len(margins), dtype=np.uint64)

    def __call__(
        self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Scores of each row's examples with the row's heads off.

        Args:
            masks: ``[row, layer, head]``, or one alone: masks (bool, True = ablated), or gates (float, 0 to 1), each of
                which takes the share of its head's damage by which it is shut.
            examples: Each row's own example indices; None: all of them in every row.

        Raises:
            ValueError: Masks of another grid, or indices outside the task.
        """
        return (self.respond(masks, examples, "margin") > 0).astype(float)

    def respond(
        self,
        masks: Shaped[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        response: str = "probability",
    ) -> Float[np.ndarray, "row k"]:
        """How near the answers are to flipping: a margin above zero, or a probability above .5, is a score of 1.

        A margin is that of the world, noise included, in units of its own and not in nats; a guess that is right is
        just above zero. A probability is the sigmoid of a margin.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.
            response: ``"probability"``, ``"margin"`` or ``"score"``.

        Returns:
            For each row's examples ``[row, k]`` a probability or score in [0, 1], or a margin of any size.

        Raises:
            ValueError: Another response, or what ``__call__`` refuses.
        """
        check_response(response, self.responses)
        if response != "margin":
            return self(masks, examples) if response == "score" else expit(self.respond(masks, examples, "margin"))
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        # A gate takes the share of a head's damage by which it is shut.
        flat = masks.reshape(len(masks), -1)
        flat = flat if flat.dtype == np.bool_ else 1 - flat
        off = _sparse(flat)
        margins = self.margins[examples] - np.take_along_axis(off @ self.damage, examples, axis=1)
        for heads, damage in self.groups:
            together = np.prod([flat[:, head] for head in heads], axis=0, dtype=float)
            margins -= together[:, None] * damage[examples]
        self.spent += examples.size
        if not self.noise and not self.chance:
            return margins
        keys = self._mask_keys(off)[:, None] ^ self._example_keys[examples]
        if self.noise:
            margins += self.noise * norm.ppf(_uniform(keys, 1))
        return np.where((margins <= 0) & (_uniform(keys, 2) < self.chance), _GUESSED, margins)

    def _mask_keys(self, off: sparse.csr_array) -> UInt64[np.ndarray, " row"]:
        """One number a mask, the same whenever the same heads are off."""
        keys = np.zeros(off.shape[0], dtype=np.uint64)
        some = np.diff(off.indptr) > 0
        if some.any():
            keys[some] = np.bitwise_xor.reduceat(self._head_keys[off.indices], off.indptr[:-1][some])
        return keys


def _sparse(flat: Shaped[np.ndarray, "row flat"]) -> sparse.csr_array:
    """The same as numbers; NumPy finds what is not zero in a line many times faster than in a table."""
    places = np.flatnonzero(flat)
    row, column = np.divmod(places, flat.shape[1])
    ends = np.cumsum(np.bincount(row, minlength=len(flat)))
    return sparse.csr_array((flat.ravel()[places].astype(np.float32), column, np.append(0, ends)), shape=flat.shape)


def _uniform(keys: UInt64[np.ndarray, "row k"], stream: int) -> Float[np.ndarray, "row k"]:
    """Numbers in (0, 1) that depend on the keys alone (SplitMix64: Steele, Lea and Flood 2014)."""
    mixed = keys + np.uint64(stream * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(float) / 2**53 + 2.0**-54
