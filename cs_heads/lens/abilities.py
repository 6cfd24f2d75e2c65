"""Which shortcuts are exact on a given model, found by trying them on a few random tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.casts import InDtype
from cs_heads.lens.differentiate import differentiable
from cs_heads.lens.fingerprint import configurations_of
from cs_heads.lens.forward import Resumed, logits_at, pad, recorded
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.gates import gated
from cs_heads.lens.model import HALF, HookedModel, backend_of, context_length, device_of, dtype_of, evaluating
from cs_heads.lens.state import ModelState
from cs_heads.text import first_line
from cs_heads.units import Grid

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Largest difference of a logit allowed, as a share of the largest logit: in half precision, and in others.
_HALF_TOLERANCE, _TOLERANCE = 3e-2, 1e-5

# How many times ``tolerance`` a difference is that is a fault, and no rounding; in half precision float32 tells.
_FAULT = 100

_FAULTS = {
    "later tokens": "a later token moves an earlier logit",
    "padding": "a text beside longer ones has other logits than alone",
    "batch": "a text among others has other logits than alone",
}


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference of a logit that rounding makes in a dtype, as a share of the largest."""
    return _HALF_TOLERANCE if dtype in HALF else _TOLERANCE


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a share of the largest number that is wanted."""
    found, wanted = found.detach().float(), wanted.detach().float()
    return float((found - wanted).abs().max() / wanted.abs().max())


@dataclass(frozen=True)
class Abilities:
    """What a model can be run with, with the numbers of the plain forward.

    ``fused`` attention (``lens.fused``), ``extend`` from stored keys and values (``lens.cache``), ``resume`` at a later
    layer (``lens.forward``). ``why_not`` says why not of what was tried in vain.
    """

    fused: bool = True
    extend: bool = True
    resume: bool = True
    why_not: Mapping[str, str] = field(default_factory=dict, compare=False)


# By model, its state, and what was found of it then.
_FOUND: WeakKeyDictionary[Any, tuple[ModelState, dict[Hashable, Any]]] = WeakKeyDictionary()

PLAIN = Abilities(fused=False, extend=False, resume=False)
"""Every forward runs whole, as the model's own code runs it."""


def abilities(model: HookedModel, wanted: Abilities | None = None) -> Abilities:
    """The shortcuts among ``wanted`` (all by default) whose logits equal those of the plain forward.

    Three rows of up to nine random tokens (fewer where the context is shorter), padded, with random heads off, run
    with and without each, in every way in which it is used. A shortcut that fails or differs is left out, and the log
    says so. A model that is what it was, with the same configuration, is not tried again.

    Raises:
        ValueError: The plain forward is not the model: see ``check_forward``.
    """
    wanted, reason = wanted or Abilities(), why_not_fused(model)
    return _once(model, (wanted, reason), lambda trial: _tried(trial, wanted, reason))


def _once(model: HookedModel, what: Hashable, find: Callable[[_Trial], Result]) -> Result:
    """What is found of a model by a trial; found anew where it is not what it was, or hooks of others stand on it.

    What rests on an error is not kept: memory may suffice the next time.
    """
    attention = getattr(getattr(getattr(model, "original_model", None), "config", None), "_attn_implementation", None)
    state, name = ModelState.of(model), (what, attention, json.dumps(configurations_of(model), sort_keys=True))
    known, found = _FOUND.get(model, (state, {}))
    if state.hooks or known.changed(state):
        found = {}
    if name in found:
        return cast(Result, found[name])
    trial = _Trial(model)
    with evaluating(model):
        result = find(trial)
    # Hooks may hold the model, which must not hold itself.
    if not state.hooks and not trial.failed:
        _FOUND[model] = state, {**found, name: result}
    return result


def _tried(trial: _Trial, wanted: Abilities, reason: str | None) -> Abilities:
    model = trial.model
    trial.check()
    if wanted.fused and reason is not None:
        trial.leave_out("fused attention", reason)
    fused = wanted.fused and reason is None and trial.agrees("fused attention", lambda: trial.logits(fused=True))
    resume = (wanted.resume and model.cfg.n_layers > 1) and trial.agrees(
        "resuming at a later layer", lambda: trial.resumed(fused)
    )
    extend = (wanted.extend and trial.width > 1) and trial.agrees(
        "stored keys and values", lambda: trial.extended(fused)
    )
    if resume and extend:
        # Both are used together, too.
        both = "resuming from stored keys and values"
        resume = trial.agrees(both, lambda: trial.extended(fused, resumed=True))
    return Abilities(fused, extend, resume, trial.why_not)


def why_no_gradients(model: HookedModel) -> str | None:
    """Why gradients are not taken through stored keys and values (``lens.differentiate``); None where that is exact.

    Attention is then not fused, whatever it is where nothing is differentiated.
    """
    name = "gradients through stored keys and values"

    def find(trial: _Trial) -> str | None:
        if trial.width == 1:
            return "its context has 1 token"
        trial.agrees(name, lambda: trial.gradients(extended=True), trial.gradients)
        return trial.why_not.get(name)

    return _once(model, name, find)


def beside_others(model: HookedModel) -> dict[str, tuple[Float[Tensor, "n vocab"], Float[Tensor, "n vocab"]]]:
    """Pairs of logits that are equal where our own call, in which texts stand beside others, is the model.

    ``"later tokens"``: at the first tokens of some texts, which go on in two ways. ``"padding"``: of a text beside
    longer ones, and of the model called on it alone, without an attention mask. ``"batch"``: so of the longest text.
    """
    with evaluating(model):
        return _Trial(model).beside_others()


def check_forward(model: HookedModel) -> None:
    """Raise ``ValueError`` where our own call is not the model.

    A later token moves an earlier logit, or a text has other logits beside others, padded, than it has alone: by more
    than rounding does. In half precision a difference counts where it is there in float32, too.
    """
    _once(model, "forward", lambda trial: trial.check())


class _Trial:
    """Random rows of unequal length, the plain logits at all their tokens, and other ways to the same."""

    def __init__(self, model: HookedModel) -> None:
        self.model, self.failed = model, False
        self.why_not: dict[str, str] = {}
        generator = torch.Generator().manual_seed(0)
        self.width = min(9, context_length(model) or 9)
        # Three at least, where there are, so that each row can be cut into a beginning, what follows, and a last token.
        self.lengths = [min(self.width, max(3, self.width - less)) for less in (0, 3, 1)]
        self.tokens = torch.randint(model.cfg.d_vocab, (3, self.width), generator=generator)
        self.mask = (torch.arange(self.width) < torch.tensor(self.lengths)[:, None]).long()
        self.gates = (torch.rand(3, *Grid.from_model(model).shape, generator=generator) > 0.3).float()
        self.layer = model.cfg.n_layers // 2
        self._residuals: dict[bool, Tensor] = {}

    @cached_property
    def plain(self) -> Float[Tensor, "n vocab"]:
        """The plain logits."""
        return self.logits().float()

    def beside_others(self) -> dict[str, tuple[Float[Tensor, "n vocab"], Float[Tensor, "n vocab"]]]:
        """See ``beside_others``."""
        half, (longest, short, _) = (min(self.lengths) + 1) // 2, self.plain.split(self.lengths)
        other = torch.cat([self.tokens[:, :half], (self.tokens[:, half:] + 1) % self.model.cfg.d_vocab], dim=1)
        early = torch.cat([torch.arange(n) < half for n in self.lengths])
        return {
            "later tokens": (self.plain[early], self.logits(tokens=other).float()[early]),
            "padding": (short, self._alone(1, len(short))),
            "batch": (longest, self._alone(0, len(longest))),
        }

    def _alone(self, row: int, n: int) -> Float[Tensor, "n vocab"]:
        """The logits of the first tokens of a row, as the model gives them to a single text."""
        tokens = self.tokens[row : row + 1, :n].to(device_of(self.model))
        # HookedTransformer may take tokens for padding unless it is told that they are none.
        on_bridge = backend_of(self.model) == "bridge"
        given = {"use_cache": False} if on_bridge else {"attention_mask": torch.ones_like(tokens)}
        with gated(self.model, self.gates[row : row + 1]):
            return self.model(tokens, **given)[0].float()

    def check(self) -> None:
        """See ``check_forward``."""
        dtype, away = dtype_of(self.model), {what: difference(*both) for what, both in self.beside_others().items()}
        # Of what is no number nothing is told here: it is refused where it is scored.
        wrong = [what for what, by in away.items() if by > tolerance(dtype) * (1 if dtype in HALF else _FAULT)]
        if not wrong:
            return
        with InDtype(self.model, torch.float32):
            if dtype_of(self.model) != dtype:
                return _Trial(self.model).check()
        raise ValueError(
            f"model {self.model.cfg.model_name} cannot be measured: {_FAULTS[wrong[0]]} (by {away[wrong[0]]:.1e} of "
            "the largest); TransformerLens, or a hook that stands on it, runs it wrongly"
        )

    def leave_out(self, name: str, why: str) -> None:
        """Say why a shortcut is not used."""
        self.why_not[name] = why
        _log.info("without %s on %s: %s", name, self.model.cfg.model_name, why)

    def agrees(self, name: str, shortcut: Callable[[], Tensor], plain: Callable[[], Tensor] | None = None) -> bool:
        """Whether a shortcut gives what the plain forward does: its logits, or what ``plain`` gives."""
        try:
            away = difference(shortcut(), self.plain if plain is None else plain())
        except Exception as error:
            self.leave_out(name, first_line(error))
            self.failed = True
            return False
        if not away <= tolerance(dtype_of(self.model)):
            self.leave_out(name, f"{'logits' if plain is None else 'they'} differ by {away:.1e}")
            return False
        return True

    def logits(self, **options: Any) -> Float[Tensor, "n vocab"]:
        """At all tokens of the rows; ``options`` are those of ``logits_at``."""
        options = {"tokens": self.tokens, "gates": self.gates} | options
        return logits_at(self.model, attention_mask=self.mask, **options)

    def extended(
        self, fused: bool, resumed: bool = False, gates: Float[Tensor, "row layer unit"] | None = None
    ) -> Float[Tensor, "n vocab"]:
        """By pieces: a beginning of each row, unequally long; what follows, rows in another order; a step of one token.

        Args:
            fused: Whether attention runs through the fused kernel.
            resumed: Whether all pieces start at a later layer, where no steps are taken.
            gates: Gates with a gradient, through which no steps are taken; None is those of the trial.
        """
        texts = [row[:n] for row, n in zip(self.tokens.tolist(), self.lengths, strict=True)]
        steps = self.width > 2 and not resumed and gates is None
        cuts = [[0, n // 2, *([n - 1] if steps else []), n] for n in self.lengths]
        residual = self._residual(fused) if resumed else None
        stored: KeyValues | None = None
        order, pieces = [0, 1, 2], dict[tuple[int, int], Tensor]()
        for piece in range(len(cuts[0]) - 1):
            parents, options = None, dict[str, Any]()
            if piece == 1:
                parents = torch.tensor([2, 0, 1])
                order = [order[parent] for parent in parents]
            at = [range(*cuts[row][piece : piece + 2]) for row in order]
            tokens, mask = pad([[texts[row][i] for i in places] for row, places in zip(order, at, strict=True)])
            if residual is not None:
                whose, where = (each.to(residual.device) for each in (torch.tensor(order)[:, None], pad(at)[0]))
                options["start"] = Resumed(self.layer, residual[whose, where])
            extension = Extension(mask, stored, parents, keep=parents is not None or stored is None)
            options |= {"gates": (self.gates if gates is None else gates)[order], "extension": extension}
            logits = logits_at(self.model, tokens, mask, fused=fused, **options)
            if extension.n_layers_extended != self.model.cfg.n_layers - (self.layer if resumed else 0):
                raise ValueError("not every layer stores keys and values")
            pieces |= {(row, piece): part for row, part in zip(order, logits.split([len(i) for i in at]), strict=True)}
            stored = extension.finish()
        return torch.cat([pieces[place] for place in sorted(pieces)])

    def gradients(self, extended: bool = False) -> Float[Tensor, "row layer unit"]:
        """Of the summed log-partition at all tokens in the gates, as ``lens.differentiate`` takes them."""
        with differentiable(self.model):
            leaf = self.gates.to(device_of(self.model)).requires_grad_()
            logits = self.extended(fused=False, gates=leaf) if extended else self.logits(gates=leaf)
            return torch.autograd.grad(logits.float().logsumexp(dim=1).sum(), leaf)[0]

    def resumed(self, fused: bool) -> Float[Tensor, "n vocab"]:
        """From what enters a later layer."""
        return self.logits(start=Resumed(self.layer, self._residual(fused)), fused=fused)

    def _residual(self, fused: bool) -> Float[Tensor, "batch pos d_model"]:
        if fused not in self._residuals:

            def keep(_: int, residual: Tensor) -> None:
                self._residuals[fused] = residual.clone()

            with recorded(self.model, [self.layer], keep):
                self.logits(fused=fused)
        return self._residuals[fused]
