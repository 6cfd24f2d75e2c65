"""The waist of the library: what a method may ask, and nothing else."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.heads import HeadGrid


@runtime_checkable
class ExperimentLike(Protocol):
    """Anything that says how examples go with heads off: a model, a planted truth, a remote service.

    ``masks`` are True where a head is ablated; ``examples`` are each row's own example indices, or
    None for all examples in every row; the scores returned lie in [0, 1], one an example of a row.
    """

    @property
    def grid(self) -> HeadGrid:
        """Layers × heads."""

    @property
    def n_examples(self) -> int:
        """Number of examples."""

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Scores of each row's examples with the row's heads off."""
