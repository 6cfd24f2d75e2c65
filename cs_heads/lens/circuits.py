"""What heads make of single tokens, and of places in a prompt: OV and QK circuits, logits written, one place ablated.

Circuits are not read from weights but seen: every block is given a token's embedding by itself, so that its own norms,
shared key/value groups and biases are applied as they are. From the second block on it is the embedding with what the
first MLP adds (Wang et al., arXiv 2211.00593, read name movers so): in many models that MLP does the rest of embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cs_heads.lens.abilities import abilities
from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.direct import HeldNorm, at_the_end, head_outputs, readout
from cs_heads.lens.forward import Resumed, Tokens, last_logits, logits_at, pad, recorded
from cs_heads.lens.gates import hooked
from cs_heads.lens.model import HookedModel, dtype_of, evaluating, hook_name
from cs_heads.units import Grid, Unit, kind_of


@dataclass(frozen=True)
class Circuits:
    """What heads make of tokens read by themselves, in arbitrary units: only its order within a head means something.

    Attributes:
        tokens: The tokens.
        z: What each of some heads makes of every token.
        moves: By token read how much the head raises the logit of each of the first tokens; means are taken off.
        matches: By query and key how well they match, without position.
        copying: Of all heads the sum of the eigenvalues of ``moves`` by the sum of their sizes: 1 where all are
            positive, as of a head that raises what it reads (Elhage et al., 2021).
    """

    tokens: tuple[int, ...]
    z: Float[np.ndarray, "chosen token d_head"]
    moves: Float[np.ndarray, "chosen word word"]
    matches: Float[np.ndarray, "chosen token token"]
    copying: Float[np.ndarray, "layer head"]

    def agreement(
        self,
        place: int,
        rows: Sequence[Sequence[int]],
        patterns: Sequence[Float[np.ndarray, " key"]],
        z: Float[np.ndarray, "row d_head"],
    ) -> tuple[float, float]:
        """How well they say what a head does on prompts (correlation): what it writes, and where it looks.

        NaN where fewer than two prompts have no other tokens.

        Args:
            place: Its place among the heads.
            rows: Tokens of each prompt.
            patterns: Its attention from the last one.
            z: What it makes there.
        """
        at = {token: i for i, token in enumerate(self.tokens)}
        known = [i for i, row in enumerate(rows) if {*row} <= {*at}]
        if len(known) < 2:
            return np.nan, np.nan
        read = {i: [at[token] for token in rows[i]] for i in known}
        made = np.stack([patterns[i] @ self.z[place, read[i]] for i in known])
        written = _correlation(made - made.mean(axis=0), z[known] - z[known].mean(axis=0))
        # The first key is what many heads rest on.
        scores = [self.matches[place, ids[-1], ids[1:]] for ids in read.values() if ids[1:]]
        seen = [np.log(patterns[i][1:] + 1e-9) for i, ids in read.items() if ids[1:]]
        centered = [[one - one.mean() for one in each] for each in (scores, seen)]
        return written, _correlation(*map(np.concatenate, centered)) if scores else np.nan


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Of numbers whose means are off."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0


def token_circuits(model: HookedModel, tokens: Sequence[int], n_words: int, heads: Sequence[Unit]) -> Circuits:
    """Read tokens one by one, in one forward.

    Args:
        model: The model.
        tokens: Different tokens.
        n_words: How many of them, the first, are compared as what is written; two or more.
        heads: Heads whose circuits are returned.
    """
    grid, seen = Grid.from_model(model), dict[str, Tensor]()
    z: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    queries: dict[int, Tensor] = {}
    keys: dict[int, Tensor] = {}

    def keep(into: dict[int, Tensor], layer: int, value: Tensor, hook: Any) -> Tensor:
        into[layer] = value[:, 0].float()
        # What the first attention adds is no part of a token by itself.
        return value * 0 if into is outputs and layer == 0 else value

    def embed(value: Tensor, hook: Any) -> Tensor:
        seen["token"] = value
        return value

    def enter(layer: int, value: Tensor, hook: Any) -> Tensor:
        if layer == 1:
            seen["token"] = value
        return seen["token"].to(value)

    hooks: dict[str, Callable[..., Tensor]] = {"hook_embed": embed}
    for layer in range(grid.n_layers):
        hooks[f"blocks.{layer}.hook_resid_pre"] = partial(enter, layer)
        hooks[hook_name(layer)] = partial(keep, z, layer)
        hooks[hook_name(layer, "attn")] = partial(keep, outputs, layer)
        for name, into in (("q", queries), ("k", keys)):
            turned = f"blocks.{layer}.attn.hook_rot_{name}"
            hooks[turned if turned in model.hook_dict else f"blocks.{layer}.attn.hook_{name}"] = partial(
                keep, into, layer
            )
    rows: list[Tokens] = [[token] for token in tokens]
    moves = {}
    with evaluating(model):
        with hooked(model, hooks):
            last_logits(model, rows)
        last = at_the_end(model, rows[:1]).ends["last"]
        directions = _directions(model, tokens[:n_words], last)
        for layer in range(grid.n_layers):
            each, _ = head_outputs(model, layer, z[layer][:n_words], outputs[layer][:n_words])
            of_layer = einsum(each, directions.to(each.device), "read head d, word d -> head read word")
            of_layer = of_layer - of_layer.mean(dim=1, keepdim=True)
            of_layer = of_layer - of_layer.mean(dim=2, keepdim=True)
            moves[layer] = of_layer.double().cpu().numpy()
    copying = np.zeros(grid.shape)
    for layer in range(grid.n_layers):
        eigenvalues = np.linalg.eigvals(moves[layer])
        copying[layer] = eigenvalues.real.sum(axis=1) / np.maximum(np.abs(eigenvalues).sum(axis=1), 1e-30)

    def match(head: Unit) -> np.ndarray:
        query, key = queries[head.layer], keys[head.layer]
        group = key[:, head.index * key.shape[1] // query.shape[1]]
        return (query[:, head.index] @ group.T).cpu().numpy()

    return Circuits(
        tokens=tuple(tokens),
        z=np.stack([z[head.layer][:, head.index].cpu().numpy() for head in heads]),
        moves=np.stack([moves[head.layer][head.index] for head in heads]),
        matches=np.stack([match(head) for head in heads]),
        copying=copying,
    )


def _directions(model: HookedModel, words: Sequence[int], last: Float[Tensor, "1 d"]) -> Float[Tensor, "word d"]:
    """Of each word the direction of its logit less the first word's, before the final norm, whose scale is held."""
    final = HeldNorm(model, model.ln_final, last.expand(len(words), -1))
    answers = torch.tensor([[word, words[0]] for word in words])
    read, _ = readout(model, final.of(last.expand(len(words), -1)), answers)
    return final.back(read)


def logits_written(
    model: HookedModel, rows: Sequence[Tokens], heads: Sequence[Unit], room: TokenBudget
) -> tuple[Float[np.ndarray, "row chosen d_head"], Float[np.ndarray, "chosen vocab"]]:
    """Of heads their z at each row's last token, and the mean logits that they write there, final norm's scale held.

    Args:
        model: The model.
        rows: Tokens of each row.
        heads: The heads.
        room: Tokens of one forward.
    """
    z = np.zeros((len(rows), len(heads), model.cfg.d_head))
    added = torch.zeros(len(rows), len(heads), model.cfg.d_model)

    def run(batch: Int[np.ndarray, " n"]) -> None:
        seen = at_the_end(model, [rows[i] for i in batch])
        final = HeldNorm(model, model.ln_final, seen.ends["last"])
        for place, head in enumerate(heads):
            layer = head.layer
            each, _ = head_outputs(model, layer, seen.z[layer], seen.attention[layer])
            z[batch, place] = seen.z[layer][:, head.index].cpu().numpy()
            added[batch, place] = final.part(each[:, head.index].to(seen.ends["last"].device)).cpu()

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
        return z, as_logits(model, added.mean(dim=0).numpy())


def as_logits(model: HookedModel, written: Float[np.ndarray, "chosen d_model"]) -> Float[np.ndarray, "chosen vocab"]:
    """The logits that something written behind the final norm makes, less their mean.

    Args:
        model: The model.
        written: What is written.
    """
    with evaluating(model):
        given = torch.from_numpy(np.concatenate([written, 0 * written[:1]]))
        device = next(iter(model.unembed.parameters())).device
        logits = model.unembed(given.to(device, dtype_of(model))[None])[0].float().cpu()
    logits = logits[:-1] - logits[-1]
    return (logits - logits.mean(dim=1, keepdim=True)).numpy()


class Margins:
    """Of each row the logit of its first answer less that of its second, before a soft cap, as one unit is off.

    Args:
        model: The model.
        rows: Tokens of each row.
        answers: Two tokens a row.
        units: The units, of one kind, that are taken off: such forwards start where the first of their layers does.
        room: Tokens of one forward.

    Attributes:
        intact: The margins with nothing off.
    """

    def __init__(
        self,
        model: HookedModel,
        rows: Sequence[Tokens],
        answers: Int[np.ndarray, "row 2"],
        units: Sequence[Unit],
        room: TokenBudget,
    ) -> None:
        self._model, self._rows, self._answers, self._room = model, rows, answers, room
        self._kind = kind_of(units[0])
        self._grid, self._able = Grid.from_model(model, self._kind), abilities(model)
        layers = sorted({unit.layer for unit in units} - {0}) if self._able.resume else []
        # What enters these layers, by row, in main memory: the budget of tokens is of forwards alone.
        self._entering: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
        self.intact = np.zeros(len(rows))

        def run(batch: Int[np.ndarray, " n"]) -> None:
            def keep(layer: int, residual: Tensor) -> None:
                for row, i in enumerate(batch):
                    self._entering[layer][i] = residual[row, : len(rows[i])].clone().cpu()

            with recorded(model, layers, keep, whole=True) if layers else nullcontext():
                self.intact[batch] = self._run(batch)

        with evaluating(model):
            run_in_batches([len(row) for row in rows], room, run)

    def lost(self, units: Sequence[Unit]) -> Float[np.ndarray, "row unit"]:
        """How much less each row has with each of the units off at all its tokens.

        Args:
            units: Some of the units.
        """
        everywhere = [np.ones(len(row), dtype=bool) for row in self._rows]
        return np.stack([self.intact - self.without(unit, everywhere) for unit in units], axis=1)

    def without(
        self, unit: Unit, where: Sequence[Bool[np.ndarray, " pos"]], rows: Sequence[int] | None = None
    ) -> Float[np.ndarray, " row"]:
        """The margins with a unit off.

        Args:
            unit: One of the units.
            where: Of each row True at the tokens where it is off.
            rows: The rows; None: all of them, in their order.
        """
        at = np.arange(len(where)) if rows is None else np.array(rows)
        found, entering = np.zeros(len(at)), self._entering.get(unit.layer)

        def run(batch: Int[np.ndarray, " n"]) -> None:
            width = max(len(self._rows[i]) for i in at[batch])
            gates, off = torch.ones(len(batch), *self._grid.shape), torch.zeros(len(batch), width, dtype=torch.bool)
            gates[:, unit.layer, unit.index] = 0
            for row, place in enumerate(batch):
                off[row, : len(where[place])] = torch.from_numpy(where[place])
            options: dict[str, Any] = {"gates": gates, "units": self._kind, "where": off}
            if entering is not None:
                start = pad_sequence([entering[i] for i in at[batch]], batch_first=True)
                options["start"] = Resumed(unit.layer, start)
            found[batch] = self._run(at[batch], **options)

        with evaluating(self._model):
            run_in_batches([len(self._rows[i]) for i in at.tolist()], self._room, run)
        return found

    def _run(self, batch: Int[np.ndarray, " n"], **options: Any) -> Float[np.ndarray, " n"]:
        tokens, attention_mask = pad([self._rows[i] for i in batch])
        at = torch.arange(len(batch)), attention_mask.sum(dim=1) - 1
        seen = list[Tensor]()
        # What the unembedding gives has no soft cap yet.
        hook = self._model.unembed.register_forward_hook(lambda *given: seen.append(given[-1]))
        try:
            logits_at(self._model, tokens, attention_mask, at, fused=self._able.fused, **options)
        finally:
            hook.remove()
        right, wrong = seen[-1][0].float().cpu().gather(1, torch.from_numpy(self._answers[batch])).unbind(dim=1)
        return (right - wrong).numpy()
