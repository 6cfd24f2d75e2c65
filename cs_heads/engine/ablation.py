"""What is ablated, and what it gives then: zero, its mean over the task, or what it gives on another example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.arguments import check_one_of
from cs_heads.engine.layout import Place
from cs_heads.lens import EncodedExample
from cs_heads.lens.batches import TokenBudget, default_tokens, run_in_batches
from cs_heads.lens.differentiate import replacement_gradients
from cs_heads.lens.forward import pad
from cs_heads.lens.gates import by_unit, reading
from cs_heads.lens.logprobs import ANY_READ, check_numbers, token_logprobs
from cs_heads.lens.model import HookedModel, hook_names
from cs_heads.lens.transfer import Shared
from cs_heads.settings import ABLATIONS
from cs_heads.units import Grid, Positions, Units

# Learning of optimal constants: steps of Adam on so many examples, in units of the spread of what a layer gives.
_STEPS, _BATCH, _RATE = 100, 32, 0.1


class Ablation:
    """Units of a kind, where they are off, and what they give then.

    All but zero is of the intact model on every example with its right answer. ``mean`` is over all positions of all
    examples, ``position_mean`` at each position by itself, as far from the end of the (first) prompt. ``resample``
    takes what the unit gives on one other example, drawn by lot and the same under every mask, at the position
    that lies as far from the end of the prompt; its first or last position is taken for those it does not have.
    ``optimal`` is one constant a unit, with which the right answers are most likely, learned from the mean on while
    random groups of units are off (after Li & Janson, arXiv 2409.09951, section 2, who learn it for one unit or one
    group). ``spent`` counts the example-evaluations of ``prepare``.
    """

    def __init__(
        self,
        kind: str = "zero",
        answers: Sequence[int] = (),
        units: Units = "heads",
        positions: Positions = "all",
    ) -> None:
        check_one_of("ablation", kind, ABLATIONS)
        if kind == "resample" and len(answers) < 2:
            raise ValueError(f"ablation 'resample' needs two examples or more, the task has {len(answers)}")
        self.kind, self.answers, self.units, self.positions = kind, answers, units, positions
        self.partner = _derangement(len(answers))
        self.spent = 0
        # By layer what units give: [unit, width], after the place or token that it is of where there are several.
        self._given: dict[int, Tensor] = {}

    @property
    def preparation(self) -> int:
        """Example-evaluations before the first mask."""
        n = len(self.answers)
        learning = 2 * _STEPS * min(_BATCH, n) if self.kind == "optimal" else 0
        return 0 if self.kind == "zero" else n + learning

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare; zero needs nothing."""
        return self.kind == "zero" or self.spent > 0

    @property
    def shares_examples(self) -> bool:
        """Whether examples with the same beginning are the same there under a mask, too."""
        return self.kind in ("zero", "mean", "optimal")

    @property
    def constants(self) -> dict[int, Tensor]:
        """By layer what each unit gives where it is off, ``[unit, width]``: its mean, or the optimal constant."""
        return dict(self._given)

    def on_cpu(self) -> Ablation:
        """The same, all of it in main memory: what other processes can be sent."""
        self._given = {layer: given.cpu() for layer, given in self._given.items()}
        return self

    def prepare(self, model: HookedModel, examples: Sequence[EncodedExample], batch_tokens: int, fused: bool) -> None:
        """Run the intact model over the examples and keep what units give, its mean, or all of it (in main memory)."""
        n_units = Grid.from_model(model, self.units).n_units
        self._given = {}
        texts = [example.inputs_of(answer) for example, answer in zip(examples, self.answers, strict=True)]
        self._prompt = np.array([len(e.prompt_of(a)) for e, a in zip(examples, self.answers, strict=True)])
        self._length = np.array([len(text) for text in texts])
        self._first = np.cumsum([0, *self._length[:-1]])
        if self.kind == "position_mean":
            # Every text has its last prompt token, so the places that any text has follow one another.
            self._lowest, highest = -int(self._prompt.max()), int((self._length - self._prompt).max())
            places = [np.arange(n) - prompt for n, prompt in zip(self._length, self._prompt, strict=True)]
            counts = np.bincount(np.concatenate(places) - self._lowest, minlength=highest - self._lowest)
            self._n_tokens = torch.from_numpy(counts)[:, None, None]
        else:
            self._n_tokens = torch.tensor(self._length.sum())
        squares: Counter[int] = Counter()

        def run(batch: Int[np.ndarray, " n"]) -> None:
            tokens, attention_mask = pad([texts[i] for i in batch])
            row, position = attention_mask.nonzero(as_tuple=True)
            at = Shared(torch.stack([row, position]))
            summed, squared = dict[int, Tensor](), dict[int, Tensor]()
            if self.kind == "position_mean":
                places = Shared(position - torch.from_numpy(self._prompt[batch])[row] - self._lowest)

            def read(layer: int, value: Tensor) -> None:
                z = by_unit(value, n_units, len(batch), self.units)[tuple(at.on(value.device))]
                if self.kind == "resample":
                    ids = torch.from_numpy(self._first[batch])[row] + position
                    self._given.setdefault(layer, torch.empty(int(self._length.sum()), *z.shape[1:], dtype=z.dtype))
                    self._given[layer][ids] = z.cpu()
                elif self.kind == "position_mean":
                    summed[layer] = z.new_zeros((len(self._n_tokens), *z.shape[1:]), dtype=torch.float32)
                    summed[layer].index_add_(0, places.on(z.device), z.float())
                else:
                    summed[layer] = z.float().sum(dim=0)
                    if self.kind == "optimal":
                        squared[layer] = z.float().square().sum()

            with reading(model, read, dict(enumerate(hook_names(model, self.units)))):
                token_logprobs(model, tokens, attention_mask, ANY_READ, fused=fused)
            # Only now: a batch that did not fit begins again, in halves.
            for layer, total in summed.items():
                self._given[layer] = self._given[layer] + total if layer in self._given else total
            squares.update({layer: float(total) for layer, total in squared.items()})

        run_in_batches(self._length.tolist(), TokenBudget(batch_tokens), run)
        if self.kind != "resample":
            self._given = {layer: total / self._n_tokens.to(total.device) for layer, total in self._given.items()}
        if self.kind == "optimal":
            self._learn(model, examples, batch_tokens, squares)
        layers = list(self._given)
        largest = np.array([float(given.abs().max()) for given in self._given.values()])
        check_numbers(model, largest, lambda i: f"in what {self.units} of layer {layers[i]} give when intact")
        self.spent = self.preparation

    def replacement(
        self, gates: Float[np.ndarray, "batch layer unit"], places: Sequence[Place], prompts: Sequence[int], width: int
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
        if self.kind in ("mean", "optimal"):
            return {layer: self._given[layer][None, None] for layer in touched}
        ids = np.zeros((len(places), width), dtype=np.int64)
        for row, (((example, _), start, n), prompt) in enumerate(zip(places, prompts, strict=True)):
            from_end = np.arange(start, start + n) - prompt
            if self.kind == "position_mean":
                ids[row, :n] = (from_end - self._lowest).clip(0, len(self._n_tokens) - 1)
            else:
                partner = self.partner[example]
                there = (from_end + self._prompt[partner]).clip(0, self._length[partner] - 1)
                ids[row, :n] = self._first[partner] + there
        chosen = Shared(torch.from_numpy(ids))
        return {layer: self._given[layer][chosen.on(self._given[layer].device)] for layer in touched}

    def _learn(
        self, model: HookedModel, examples: Sequence[EncodedExample], batch_tokens: int, squares: Mapping[int, float]
    ) -> None:
        """Make the constants optimal, in place of the means they start from; ``squares`` are summed over tokens."""
        rng, shape = np.random.default_rng(0), Grid.from_model(model, self.units).shape
        means = self.constants
        spread = {
            layer: max(squares[layer] / (int(self._n_tokens) * mean.numel()) - float(mean.square().mean()), 0.0) ** 0.5
            for layer, mean in means.items()
        }
        moved = {layer: torch.zeros_like(mean, requires_grad=True) for layer, mean in means.items()}
        adam = torch.optim.Adam(moved.values(), lr=_RATE)
        decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, _STEPS)
        # As gradients take more room than forwards do.
        room, n = TokenBudget(min(batch_tokens, default_tokens(model, "gradient"))), len(examples)
        for _ in range(_STEPS):
            chosen = rng.choice(n, min(_BATCH, n), replace=False)
            # From one unit to half of them off, all sizes alike.
            density = np.exp(rng.uniform(np.log(1 / (shape[0] * shape[1])), np.log(0.5), (len(chosen), 1, 1)))
            masks = rng.random((len(chosen), *shape)) < density
            gradients = replacement_gradients(
                model,
                [examples[i].answered(self.answers[i]) for i in chosen],
                torch.from_numpy(~masks).float(),
                {layer: means[layer] + spread[layer] * shift.detach() for layer, shift in moved.items()},
                room=room,
                units=self.units,
                off_at=self.positions,
            )
            for layer, shift in moved.items():
                shift.grad = gradients[layer] * spread[layer]
            adam.step()
            decay.step()
        self._given = {layer: means[layer] + spread[layer] * shift.detach() for layer, shift in moved.items()}


def _derangement(n: int) -> np.ndarray:
    """Another example for each example."""
    order = np.random.default_rng(0).permutation(n)
    partner = np.empty(n, dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return partner
