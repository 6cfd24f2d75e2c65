"""An experiment whose truth is known: which heads matter, and what each takes from the score."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.tiny import WORDS

OPTIONS = {
    "annealed": {"n_bootstraps": 0},
    "css": {"n_masks": 24, "density": 0.17},
    "csb": {"n_masks": 24, "density": 0.17},
    "chg": {"steps": 20, "batch_size": 3},
    "contrastive": {"steps": 20, "batch_size": 2},
    "mediation": {"n_pairs": 10},
}
"""Less than the default of each method on a tiny grid, where that takes long."""


def options_of(method: str, task: Task) -> dict[str, object]:
    """What a method is given on a task of the known model; what is to be forgotten is answers by lot."""
    words = [f" {word}" for word in WORDS if word.isalpha()]
    by_lot = [{"prompt": e.prompt, "target": words[i % len(words)]} for i, e in enumerate(task.examples)]
    return OPTIONS.get(method, {}) | ({"forget": Task.from_records(by_lot)} if method == "contrastive" else {})


class Planted(ExperimentLike):
    """Answers as a model would whose score is ``baseline`` less the drop of every planted head that is off.

    ``groups`` are heads of which each can go, and all together take so much more.
    Example ``i`` of ``n`` is right while the score exceeds ``(i + 1/2) / n``, so the mean over all
    examples is the score to within ``1 / (2 n)``. With ``noise`` the examples are coins instead,
    thrown once for each mask. ``spent`` counts the (mask, example) pairs answered.
    """

    def __init__(
        self,
        grid: Grid,
        drops: Mapping[Head, float],
        *,
        groups: Mapping[tuple[Head, ...], float] | None = None,
        n_examples: int = 100,
        baseline: float = 0.9,
        noise: bool = False,
    ) -> None:
        self.grid = grid
        self.n_examples = n_examples
        self.baseline = baseline
        self.noise = noise
        self.spent = 0
        self.drops = np.zeros(grid.shape)
        for head, drop in drops.items():
            self.drops[head.layer, head.head] = drop
        self.groups = [(grid.mask(heads), drop) for heads, drop in (groups or {}).items()]

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        if examples is None:
            examples = np.tile(np.arange(self.n_examples), (len(masks), 1))
        self.spent += examples.size
        scores = self.baseline - (masks * self.drops).sum(axis=(1, 2))
        for group, drop in self.groups:
            scores = scores - drop * masks[:, group].all(axis=1)
        return (self._thresholds(masks) < scores[:, None])[np.arange(len(masks))[:, None], examples].astype(float)

    def _thresholds(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        if not self.noise:
            return np.tile((np.arange(self.n_examples) + 0.5) / self.n_examples, (len(masks), 1))
        return np.stack([np.random.default_rng(list(np.packbits(mask))).random(self.n_examples) for mask in masks])
