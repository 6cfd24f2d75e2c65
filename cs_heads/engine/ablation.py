"""What is ablated, and what it gives then: zero, its mean over the task, or what it gives on another example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.arguments import check_one_of
from cs_heads.engine.layout import Place
from cs_heads.lens import EncodedExample
from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.forward import pad
from cs_heads.lens.gates import by_unit, reading
from cs_heads.lens.logprobs import ANY_READ, token_logprobs
from cs_heads.lens.model import HookedModel, hook_names
from cs_heads.settings import ABLATIONS
from cs_heads.units import Grid, Positions, Units


class Ablation:
    """Units of a kind, where they are off, and what they give then.

    Mean and resample are of the intact model on every example with its right answer: ``mean`` over all positions of all
    examples. ``resample`` takes what the unit gives on one other example, drawn with ``seed`` and the same under every
    mask, at the position that lies as far from the end of the (first) prompt; its first or last position is taken for
    those it does not have. ``spent`` counts the example-evaluations of ``prepare``.
    """

    def __init__(
        self,
        kind: str = "zero",
        answers: Sequence[int] = (),
        seed: int = 0,
        units: Units = "heads",
        positions: Positions = "all",
    ) -> None:
        check_one_of("ablation", kind, ABLATIONS)
        if kind == "resample" and len(answers) < 2:
            raise ValueError(f"ablation 'resample' needs two examples or more, the task has {len(answers)}")
        self.kind, self.answers, self.units, self.positions = kind, answers, units, positions
        self.partner = _derangement(len(answers), seed)
        self.spent = 0
        self._z: dict[int, Tensor] = {}
        self._sum: dict[int, Any] = {}

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare; zero needs nothing."""
        return self.kind == "zero" or self.spent > 0

    @property
    def shares_examples(self) -> bool:
        """Whether examples with the same beginning are the same there under a mask, too."""
        return self.kind != "resample"

    def on_cpu(self) -> Ablation:
        """The same, all of it in main memory: what other processes can be sent."""
        self._sum = {layer: total.cpu() for layer, total in self._sum.items()}
        return self

    def prepare(self, model: HookedModel, examples: Sequence[EncodedExample], batch_tokens: int, fused: bool) -> None:
        """Run the intact model over the examples and keep what units give, its mean, or all of it (in main memory)."""
        texts = [example.inputs_of(answer) for example, answer in zip(examples, self.answers, strict=True)]
        self._prompt = np.array([len(e.prompt_of(a)) for e, a in zip(examples, self.answers, strict=True)])
        self._length = np.array([len(text) for text in texts])
        self._first = np.cumsum([0, *self._length[:-1]])

        def run(batch: Int[np.ndarray, " n"]) -> None:
            self._keep(model, [texts[i] for i in batch], self._first[batch], fused)

        run_in_batches(self._length.tolist(), TokenBudget(batch_tokens), run)
        self.spent = len(texts)

    def replacement(
        self,
        gates: Float[np.ndarray, "batch layer unit"],
        places: Sequence[Place],
        prompts: Sequence[int],
        width: int,
    ) -> Mapping[int, Tensor] | None:
        """What an ablated unit gives in each row.

        Args:
            gates: The gates of each row.
            places: Where the tokens of each row are in its example.
            prompts: The tokens of each row's prompt, from the end of which positions are counted.
            width: Tokens of a padded row.

        Returns:
            By layer that the gates touch: ``[batch or 1, pos or 1, unit, width]``; None is zero.
        """
        if self.kind == "zero":
            return None
        touched = [int(layer) for layer in np.flatnonzero((gates != 1).any(axis=(0, 2)))]
        if self.kind == "mean":
            return {layer: self._sum[layer][None, None] / self._length.sum() for layer in touched}
        ids = np.zeros((len(places), width), dtype=np.int64)
        for row, (((example, _), start, n), prompt) in enumerate(zip(places, prompts, strict=True)):
            partner = self.partner[example]
            there = np.arange(start, start + n) - prompt + self._prompt[partner]
            ids[row, :n] = self._first[partner] + there.clip(0, self._length[partner] - 1)
        return {layer: self._z[layer][torch.from_numpy(ids)] for layer in touched}

    def _keep(
        self, model: HookedModel, texts: list[tuple[int, ...]], first: Int[np.ndarray, " n"], fused: bool
    ) -> None:
        tokens, attention_mask = pad(texts)
        row, position = attention_mask.nonzero(as_tuple=True)
        ids = torch.from_numpy(first)[row] + position

        n_units = Grid.from_model(model, self.units).n_units

        def keep(layer: int, value: Tensor) -> None:
            z = by_unit(value, n_units)
            tokens_of_z = z[row.to(z.device), position.to(z.device)]
            if self.kind == "mean":
                self._sum[layer] = self._sum.get(layer, 0) + tokens_of_z.float().sum(dim=0)
            else:
                if layer not in self._z:
                    self._z[layer] = torch.empty(int(self._length.sum()), *z.shape[2:], dtype=z.dtype)
                self._z[layer][ids] = tokens_of_z.cpu()

        with reading(model, keep, dict(enumerate(hook_names(model, self.units)))):
            token_logprobs(model, tokens, attention_mask, ANY_READ, fused=fused)


def _derangement(n: int, seed: int) -> np.ndarray:
    """Another example for each example."""
    order = np.random.default_rng(seed).permutation(n)
    partner = np.empty(n, dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return partner
