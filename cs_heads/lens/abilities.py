"""Which shortcuts are exact on a given model, found by trying them on a few random tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.cache import Extension
from cs_heads.lens.captured import REPLAYS, CapturedStep, why_not_capturable
from cs_heads.lens.forward import Resumed, logits_at, pad, recorded
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.gates import gate_hooks
from cs_heads.lens.model import HookedModel, context_length, dtype_of, evaluating
from cs_heads.trial import is_tried
from cs_heads.units import Grid

_log = logging.getLogger(__name__)

# Largest difference of a logit allowed, as a share of the largest logit.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5}
_HALF_TOLERANCE = 3e-2


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference of a logit that rounding makes in a dtype, as a share of the largest."""
    return _TOLERANCE.get(dtype, _HALF_TOLERANCE)


@dataclass(frozen=True)
class Abilities:
    """What a model can be run with, with the numbers of the plain forward.

    ``fused`` attention (``lens.fused``), ``extend`` from stored keys and values (``lens.cache``),
    ``resume`` at a later layer (``lens.forward``); on a GPU, where it is faster, ``graphs`` of steps of decoding
    (``lens.captured``).
    """

    fused: bool = True
    extend: bool = True
    resume: bool = True
    graphs: bool = False


PLAIN = Abilities(fused=False, extend=False, resume=False)
"""Every forward runs whole, as the model's own code runs it."""

_EVERY = Abilities(graphs=True)

# Steps of one token that are compared and timed, captured and not.
_STEPS = 3

# What calls that are tried, and whose results are no use, found of a model: a command tries several on the same.
_TRIED: WeakKeyDictionary[HookedModel, dict[tuple[Abilities, torch.dtype], Abilities]] = WeakKeyDictionary()


def abilities(model: HookedModel, wanted: Abilities | None = None) -> Abilities:
    """The shortcuts among ``wanted`` (all by default, graphs too) whose logits equal those of the plain forward.

    Three rows of up to nine random tokens (fewer where the context is shorter), padded, with random heads off, run
    with and without each. A shortcut that fails or differs is left out, and the log says so.
    """
    wanted = wanted or _EVERY
    if not is_tried():
        return _exact(model, wanted)
    known, key = _TRIED.setdefault(model, {}), (wanted, dtype_of(model))
    if key not in known:
        known[key] = _exact(model, wanted)
    return known[key]


def _exact(model: HookedModel, wanted: Abilities) -> Abilities:
    trial = _Trial(model)
    with evaluating(model):
        reason = why_not_fused(model)
        if wanted.fused and reason is not None:
            _log.info("fused attention is not used on %s: %s", model.cfg.model_name, reason)
        fused = wanted.fused and reason is None
        can_resume = wanted.resume and model.cfg.n_layers > 1
        # What is recorded before a layer and resumed at it has run fused attention in all of them.
        both = fused and can_resume and trial.agrees("resuming with fused attention", lambda: trial.resumed(fused=True))
        fused = both or (fused and trial.agrees("fused attention", lambda: trial.logits(gates=trial.gates, fused=True)))
        resume = both or (
            can_resume and not fused and trial.agrees("resuming at a later layer", lambda: trial.resumed(fused=False))
        )
        extend = (
            wanted.extend and trial.width > 1 and trial.agrees("stored keys and values", lambda: trial.extended(fused))
        )
        against = why_no_graphs(model, fused) if extend and wanted.graphs else None
        if against is not None:
            _log.info("graphs are not used on %s: %s", model.cfg.model_name, against)
        return Abilities(
            fused=fused,
            extend=extend,
            graphs=extend and wanted.graphs and against is None,
            resume=resume,
        )


def why_no_graphs(model: HookedModel, fused: bool) -> str | None:
    """Why steps of decoding are not captured on a model (``lens.captured``); None where that is exact and faster.

    Three rows are given three tokens each, by steps as they are and by captured ones with as much room as in decoding.

    Args:
        model: The model, which can be extended from stored keys and values.
        fused: Whether attention runs through the fused kernel.
    """
    reason = why_not_capturable(model)
    if reason is not None:
        return reason
    trial = _Trial(model)
    if trial.width <= _STEPS:
        return f"its context has {trial.width} tokens"
    with evaluating(model):
        plain, plain_seconds = trial.steps(fused)
        try:
            found, seconds = trial.steps(fused, captured=True)
        except Exception as error:
            return repr(error)
    difference = float((found - plain).abs().max() / plain.abs().max())
    if not difference <= tolerance(dtype_of(model)):
        return f"logits differ by {difference:.1e}"
    if seconds >= plain_seconds:
        return f"a step takes {seconds / plain_seconds:.2f} times as long"
    return None


class _Trial:
    """Random rows of unequal length, the plain logits at all their tokens, and other ways to the same."""

    def __init__(self, model: HookedModel) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(0)
        self.width = min(9, context_length(model) or 9)
        # Two at least, where there are, so that each row can be extended from its beginning.
        lengths = torch.tensor([min(self.width, max(2, self.width - less)) for less in (0, 3, 1)])
        self.tokens = torch.randint(model.cfg.d_vocab, (3, self.width), generator=generator)
        self.mask = (torch.arange(self.width) < lengths[:, None]).long()
        self.gates = (torch.rand(3, *Grid.from_model(model).shape, generator=generator) > 0.3).float()
        self.layer = model.cfg.n_layers // 2

    @cached_property
    def plain(self) -> Float[Tensor, "n vocab"]:
        """The plain logits."""
        return self.logits(gates=self.gates).float()

    def agrees(self, name: str, shortcut: Callable[[], Tensor]) -> bool:
        plain = self.plain  # what fails here is no fault of the shortcut
        try:
            logits = shortcut().float()
        except Exception as error:
            _log.info("%s is not used on %s: %r", name, self.model.cfg.model_name, error)
            return False
        difference = float((logits - plain).abs().max() / plain.abs().max())
        if not difference <= tolerance(dtype_of(self.model)):
            _log.info("%s is not used on %s: logits differ by %.1e", name, self.model.cfg.model_name, difference)
            return False
        return True

    def logits(self, **options: Any) -> Float[Tensor, "n vocab"]:
        """At all tokens of the rows; ``options`` are those of ``logits_at``."""
        row, position = self.mask.nonzero(as_tuple=True)
        return logits_at(self.model, self.tokens, self.mask, row=row, position=position, **options)

    def extended(self, fused: bool) -> Float[Tensor, "n vocab"]:
        """The first tokens of each row, unequally many, then the others from what was stored, rows in another order."""
        texts = [row[:n] for row, n in zip(self.tokens.tolist(), self.mask.sum(dim=1).tolist(), strict=True)]
        cuts, order = [(len(text) + 1) // 2 for text in texts], [2, 0, 1]

        def run(parts: list[list[int]], rows: list[int], **past: Any) -> tuple[Extension, list[Tensor]]:
            tokens, mask = pad(parts)
            row, position = mask.nonzero(as_tuple=True)
            extension = Extension(mask, **past)
            options: dict[str, Any] = {"gates": self.gates[rows], "extension": extension, "fused": fused}
            logits = logits_at(self.model, tokens, mask, row=row, position=position, **options)
            return extension, list(logits.split([len(part) for part in parts]))

        first, early = run([text[:cut] for text, cut in zip(texts, cuts, strict=True)], [0, 1, 2], keep=True)
        stored = first.finish()
        stored.compact()
        parents = torch.tensor(order)
        second, late = run([texts[row][cuts[row] :] for row in order], order, past=stored, parents=parents)
        if not first.n_layers_extended == second.n_layers_extended == self.model.cfg.n_layers:
            raise ValueError("not every layer stores keys and values")
        return torch.cat([part for row in range(3) for part in (early[row], late[order.index(row)])])

    def resumed(self, fused: bool) -> Float[Tensor, "n vocab"]:
        residuals: dict[int, Tensor] = {}
        with recorded(self.model, [self.layer], lambda layer, residual: residuals.update({layer: residual.clone()})):
            self.logits(gates=self.gates, fused=fused)
        return self.logits(gates=self.gates, start=Resumed(self.layer, residuals[self.layer]), fused=fused)

    def steps(self, fused: bool, captured: bool = False) -> tuple[Float[Tensor, "n vocab"], float]:
        """The logits of steps of one token after the beginnings of the rows, and the seconds of the fastest."""
        texts = [row[:n] for row, n in zip(self.tokens.tolist(), self.mask.sum(dim=1).tolist(), strict=True)]
        beginnings = [text[: max(1, len(text) - _STEPS)] for text in texts]
        tokens, mask = pad(beginnings)
        first = Extension(mask, keep=True)
        nowhere = torch.zeros(1, dtype=torch.long)
        logits_at(
            self.model, tokens, mask, row=nowhere, position=nowhere, gates=self.gates, extension=first, fused=fused
        )
        stored = first.finish()
        stored.compact()
        one = torch.ones(len(texts), 1, dtype=torch.long)
        row, position = one.nonzero(as_tuple=True)

        def plain(tokens: Tensor) -> Tensor:
            extension = Extension(one, stored)
            options: dict[str, Any] = {"gates": self.gates, "extension": extension, "fused": fused}
            logits = logits_at(self.model, tokens, one, row=row, position=position, **options)
            extension.finish()
            return logits

        run = CapturedStep(self.model, stored, gate_hooks(self.gates), fused, REPLAYS) if captured else plain
        logits, seconds = [], []
        for step in range(_STEPS):
            start = perf_counter()
            found = run(self.tokens[:, step : step + 1])
            # As decoding does, which waits for the likeliest.
            found.argmax(dim=1).cpu()
            seconds.append(perf_counter() - start)
            logits.append(found.float().clone())
        return torch.cat(logits), min(seconds)
