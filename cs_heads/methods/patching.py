"""Pairs of prompts: what carrying a head's z from the clean one into the corrupted one does to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from typing_extensions import Unpack

from cs_heads.cluster import ModelLike, local_model
from cs_heads.experiment.cost import check_budget
from cs_heads.experiment.setup import Setup
from cs_heads.lens import check_ablatable
from cs_heads.lens.abilities import check_forward
from cs_heads.lens.batches import TokenBudget, default_tokens
from cs_heads.lens.model import tokenizer_of
from cs_heads.lens.patch import PatchPoint, encode_point, patch_gradients, patched_effects, record_z
from cs_heads.progress import counting, step
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.kept_work import KeptWork, filled
from cs_heads.tasks.pairs import PromptPair
from cs_heads.units import Grid

_SETTINGS = ("prepend_bos", "dtype", "batch_tokens", "progress", "store")


@contextmanager
def patching(
    model: ModelLike,
    pairs: Sequence[PromptPair],
    *,
    least: int = 2,
    budget: int | None = None,
    **settings: Unpack[SettingsArguments],
) -> Iterator[PatchingExperiment]:
    """An experiment on pairs of prompts; a store that it opens is closed with the block.

    Args:
        model: Your own TransformerLens model, a name that ``load_model`` takes, or a ``Cluster``, whose model in this
            process is run.
        pairs: Clean and corrupted prompts.
        least: Pairs that there must be.
        budget: Example-evaluations that ``effects`` may cost; takes the first pairs that it covers.
        settings: Those of ``Experiment``; ablation is zero here, and there are no workers.

    Raises:
        ValueError: Fewer pairs, or pairs of two kinds.
    """
    with closing(Setup.of(local_model(model), Settings.of(settings, _SETTINGS))) as setup:
        yield PatchingExperiment(setup, pairs, least=least, budget=budget)


class PatchingExperiment:
    """Measures pairs of prompts with a head's z carried from the clean prompt into the corrupted one.

    The measure of a pair is the probability of its target, or, where it names what is said ``instead``, the nats
    between the two.

    Args:
        setup: The model, and how it is measured; of one on workers its own in this process is run.
        pairs: Clean and corrupted prompts.
        least: Pairs that there must be.
        budget: Example-evaluations that ``effects`` may cost; takes the first pairs that it covers.

    Raises:
        ValueError: Fewer pairs, pairs of two kinds, or an ablation other than zero.
    """

    def __init__(self, setup: Setup, pairs: Sequence[PromptPair], *, least: int = 2, budget: int | None = None) -> None:
        Settings.of(vars(setup.settings), _SETTINGS)
        self.model: Any = local_model(setup.source)
        check_ablatable(self.model)
        if self.model is not setup.model:
            setup = Setup.of(self.model, replace(setup.settings, store=setup.store))
        self.setup, self.settings = setup, setup.settings
        self.grid = Grid.from_model(self.model)
        each = self.grid.size + 2
        check_budget(budget, least * each, f"{least} pairs of {each:,} runs")
        chosen = pairs if budget is None else pairs[: budget // each]
        self.clean, self.corrupted = _points_of(self.model, chosen, self.settings.prepend_bos, least)

    @property
    def unit(self) -> str:
        """What is measured."""
        return "nats" if len(self.clean[0].answers) == 2 else "probability"

    def effects(
        self, average_source: bool = False
    ) -> tuple[Float[np.ndarray, "pair layer head"], Float[np.ndarray, " pair"]]:
        """How far carrying each head over moves the measure, and the measure with none carried over.

        One clean and one corrupted run a pair, and one run a head, many in one forward; kept in the store every few
        seconds. ``average_source`` carries over the mean z of all clean prompts in place of each pair's own.
        """
        clean, corrupted = ([*map(astuple, side)] for side in (self.clean, self.corrupted))
        work = {"clean": clean, "corrupted": corrupted, "average_source": average_source}
        kept = None if self.setup.store is None else KeptWork(self.setup.store, "mediation", work)
        grid, n = self.grid, len(self.clean)

        def measure(
            phase: int, bar: Any, pair: Int[np.ndarray, " row"], strength: Float[np.ndarray, "row layer head"]
        ) -> Float[np.ndarray, " row"]:
            found = np.full(len(pair), np.nan)
            with filled(kept, phase, found, bar.add) as done:
                if np.isnan(found).any():
                    if "_source" not in vars(self):
                        bar.add(n)
                    z = self._source
                    source = z.mean(dim=0, keepdim=True).expand_as(z) if average_source else z
                    runs = self.model, self.corrupted, source, pair, strength
                    patched_effects(*runs, room=self._tokens, done=done, measured=found)
            return found

        effects = np.empty((n, *grid.shape))
        counted = counting("patching", n * (grid.size + 2), self.settings.progress)
        with self.setup.state.kept(self.model), counted as bar:
            without = measure(grid.n_layers, bar, np.arange(n), np.zeros((n, *grid.shape), dtype=np.float32))
            pair, head = np.repeat(np.arange(n), grid.n_units), np.tile(np.arange(grid.n_units), n)
            # A layer at a time: all other layers go without a hook.
            for layer in range(grid.n_layers):
                step(f"layer {layer + 1}/{grid.n_layers}")
                strength = np.zeros((len(pair), *grid.shape), dtype=np.float32)
                strength[np.arange(len(pair)), layer, head] = 1.0
                effects[:, layer] = measure(layer, bar, pair, strength).reshape(n, -1) - without[:, None]
        return effects, without

    def gradients(self) -> Float[np.ndarray, "pair layer head"]:
        """First-order estimate of each effect: two forwards and one backward pass a pair."""
        passes = 3 * len(self.clean)
        counted = counting("attribution patching", passes, self.settings.progress)
        with self.setup.state.kept(self.model), counted as bar:
            found = patch_gradients(self.model, self.corrupted, self._source, self._tokens).double().numpy()
            bar.add(passes)
        return found

    def provenance(self) -> dict[str, Any]:
        """Of what model, and how many pairs; JSON-ready."""
        return {"model": self.setup.description.copy(), "pairs": len(self.clean)}

    @cached_property
    def _tokens(self) -> TokenBudget:
        # Of all runs: what does not fit into memory is found out once, and whether the model is run rightly.
        check_forward(self.model)
        return TokenBudget(self.settings.batch_tokens or default_tokens(self.model, "patching"))

    @cached_property
    def _source(self) -> Any:
        """Z of the clean prompts, ``[pair point layer head d_head]``."""
        return record_z(self.model, self.clean, self._tokens)


def _points_of(
    model: Any, pairs: Sequence[PromptPair], prepend_bos: bool | None, least: int = 2
) -> tuple[list[PatchPoint], list[PatchPoint]]:
    """Clean and corrupted prompts as tokens; fewer than ``least``, or pairs of two kinds, raise ``ValueError``."""
    if len(pairs) < least:
        raise ValueError(f"pairs must hold {least} or more, got {len(pairs)}")
    if len({(pair.instead is None, len(pair.clean_ends)) for pair in pairs}) > 1:
        raise ValueError("pairs must all name what is said instead or none, and have the same number of places")
    clean, corrupted, tokenizer = list[PatchPoint](), list[PatchPoint](), tokenizer_of(model)
    for number, pair in enumerate(pairs):
        answers = [pair.target] if pair.instead is None else [pair.target, pair.instead]
        try:
            clean.append(encode_point(tokenizer, pair.clean, answers, pair.clean_ends, prepend_bos))
            corrupted.append(encode_point(tokenizer, pair.corrupted, answers, pair.corrupted_ends, prepend_bos))
        except ValueError as error:
            raise ValueError(f"pair {number}: {error}") from error
    return clean, corrupted
