"""Gradients in the gates of a frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches, token_budget_for
from cs_heads.lens.cache import Extension
from cs_heads.lens.forward import Tokens, logits_at, pad
from cs_heads.lens.gates import by_unit, gated, hooked, per_token, tokens_gated
from cs_heads.lens.logprobs import check_numbers, row_of, with_targets
from cs_heads.lens.model import HookedModel, device_of, evaluating, hook_names
from cs_heads.lens.tokens import EncodedExample
from cs_heads.lens.transfer import Shared, to_device
from cs_heads.units import Positions, Units


@contextmanager
def differentiable(model: HookedModel) -> Iterator[None]:
    """Run the model without dropout, its weights frozen and gradients on; all is as before at the end."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack, evaluating(model), torch.enable_grad():
        for parameter in trained:
            stack.callback(parameter.requires_grad_, True)
            parameter.requires_grad_(False)
        yield


def gate_gradients(
    model: HookedModel,
    prompts: Sequence[Tokens],
    targets: Sequence[Tokens],
    gates: Float[Tensor | np.ndarray, "batch layer head"],
    batch_tokens: int | TokenBudget | None = None,
    *,
    done: Callable[[int], Any] = lambda _: None,
    measured: Float[Tensor | np.ndarray, "batch layer head"] | None = None,
    positions: Sequence[Tokens] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch layer head"]]:
    """Per row: the mean negative log-probability of the target (nats per token), and its gradient in the row's gates.

    Gates may be float32 where the weights are bfloat16: what is gated is then multiplied in float32. Rows are
    independent, so one backward pass gives every row its own gradient. Both results lie where ``gates`` lie.

    Args:
        model: The model.
        prompts: The prompt of each row.
        targets: The target of each row.
        gates: The gates of each row.
        batch_tokens: Tokens of one pass at most; calls that share a ``TokenBudget`` find out once what fits.
        done: Called with the number of rows done.
        measured: Gradients that an earlier call left, NaN where it did not get to, filled in place: a batch of which
            every row is known is not run, and its loss is NaN.
        positions: Those of ``with_targets``.
        units: The kind of unit that is gated.
        off_at: Where units are gated.

    Raises:
        ValueError: An empty prompt or target.
        NotFiniteError: A loss or gradient is NaN or infinite.
    """
    for name, rows in (("prompts", prompts), ("targets", targets)):
        if len(rows) != len(gates) or not all(map(len, rows)):
            raise ValueError(f"{name} must hold one or more tokens for each of {len(gates)} rows of gates")
    gates = torch.as_tensor(gates)
    nll = gates.new_full((len(gates),), torch.nan)
    gradient = torch.full_like(gates, torch.nan) if measured is None else torch.as_tensor(measured)
    unknown = np.ones(len(gates), dtype=bool) if measured is None else gradient.isnan().any(dim=(1, 2)).cpu().numpy()
    device = device_of(model)
    room = token_budget_for(model, batch_tokens, "gradient")

    def run(batch: Int[np.ndarray, " n"]) -> None:
        new = int(unknown[batch].sum())
        if not new:
            return
        leaf = to_device(gates[batch].detach(), device).requires_grad_()
        ends, width = [len(prompts[i]) for i in batch], max(lengths[i] for i in batch)
        where = tokens_gated(off_at, [0] * len(batch), ends, width)
        with hooked(model, gate_hooks(model, leaf, units, where)):
            read_at = None if positions is None else [positions[i] for i in batch]
            loss = target_nll(model, [prompts[i] for i in batch], [targets[i] for i in batch], read_at)
        slopes = torch.autograd.grad(loss.sum(), leaf)[0]
        # In one transfer, for which the device is waited for once.
        both = torch.cat([loss.detach().to(slopes.device)[:, None], slopes.flatten(1)], dim=1).to(gates.device)
        check_numbers(model, both, lambda i: row_of(model, gates[batch[i]], prompts[batch[i]], int(batch[i]), units))
        nll[batch], gradient[batch] = both[:, 0].to(nll), both[:, 1:].reshape(slopes.shape).to(gradient)
        done(new)

    lengths = _lengths(prompts, targets, positions)
    with differentiable(model):
        run_in_batches(lengths, room, run)
    return nll, gradient


@dataclass(frozen=True)
class Asked:
    """An example whose answer's probability is differentiated.

    Attributes:
        tokens: Its tokens.
        answer: Which continuation is right.
        scales: What the log-probability of each continuation is multiplied by before they are compared.
    """

    tokens: EncodedExample
    answer: int
    scales: tuple[float, ...]


def probability_gradients(
    model: HookedModel,
    asked: Sequence[Sequence[Asked]],
    gates: Float[Tensor | np.ndarray, "row layer unit"],
    batch_tokens: int | TokenBudget | None = None,
    *,
    extend: bool = True,
    done: Callable[[int], Any] = lambda _: None,
    measured: Float[np.ndarray, "row layer unit"] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> Float[np.ndarray, "row layer unit"]:
    """The gradient of the mean probability of a row's answers in the row's gates.

    The probability is that of the right choice among the choices (a softmax over their scaled log-probabilities), of a
    single continuation that of all of it. What the texts of a row begin with alike runs once for all of them.

    Args:
        model: The model.
        asked: The examples of each row.
        gates: The gates of each row.
        batch_tokens: Tokens of one pass at most.
        extend: Whether the model continues stored keys and values exactly (``lens.abilities``).
        done: Called with the number of rows done.
        measured: Gradients that an earlier call left, NaN where it did not get to, filled in place; what is known is
            not run.
        units: The kind of unit that is gated.
        off_at: Where units are gated.

    Returns:
        The gradients.

    Raises:
        NotFiniteError: A gradient is NaN or infinite.
    """
    gates = torch.as_tensor(gates)
    gradient = np.full(tuple(gates.shape), np.nan, dtype=np.float32) if measured is None else measured
    unknown = np.asarray(np.isnan(gradient).any(axis=(1, 2)))
    device = device_of(model)
    texts = [_Texts.of(row, extend) for row in asked]

    def run(batch: Int[np.ndarray, " n"]) -> None:
        batch = batch[unknown[batch]]
        if not len(batch):
            return
        leaf = to_device(gates[batch], device).requires_grad_()
        mean = _mean_probability(model, [texts[i] for i in batch], leaf, units, off_at)
        slopes = torch.autograd.grad(mean, leaf)[0].float().cpu().numpy()
        check_numbers(model, slopes, lambda i: row_of(model, gates[batch[i]], texts[batch[i]].texts[0], None, units))
        gradient[batch] = slopes
        done(len(batch))

    with differentiable(model):
        run_in_batches([each.n_tokens for each in texts], token_budget_for(model, batch_tokens, "gradient"), run)
    return gradient


@dataclass(frozen=True)
class _Texts:
    """The texts of a row, each once; the tokens that they begin with alike; and what is read in them.

    ``reads`` has a line for each token read: its text, its position, the token, and its continuation;
    ``continuations`` one for each continuation: its example, its scale, and whether it is the answer.
    """

    prefix: int
    texts: list[tuple[int, ...]]
    prompts: list[int]
    reads: Int[np.ndarray, "read 4"]
    continuations: Float[np.ndarray, "continuation 3"]

    @classmethod
    def of(cls, asked: Sequence[Asked], extend: bool) -> _Texts:
        # Where its prompt ends says which tokens of a text are gated.
        places: dict[tuple[tuple[int, ...], int], int] = {}
        reads = []
        continuations: list[tuple[int, float, bool]] = []
        for number, one in enumerate(asked):
            for which, tokens in enumerate(one.tokens.continuations):
                text = one.tokens.inputs_of(which), len(one.tokens.prompt_of(which))
                place = places.setdefault(text, len(places))
                at = one.tokens.positions_of(which)
                reads += [(place, where, token, len(continuations)) for where, token in zip(at, tokens, strict=True)]
                continuations.append((number, one.scales[which], which == one.answer))
        texts, first = [tokens for tokens, _ in places], min(where for _, where, _, _ in reads)
        alike = next((i for i, column in enumerate(zip(*texts, strict=False)) if len(set(column)) > 1), first)
        prefix = min(alike, first) if extend and len(texts) > 1 else 0
        return cls(prefix, texts, [n for _, n in places], np.array(reads), np.array(continuations, dtype=float))

    @property
    def n_tokens(self) -> int:
        """Padded tokens that are run."""
        return self.prefix + len(self.texts) * (max(map(len, self.texts)) - self.prefix)


def _mean_probability(
    model: HookedModel, rows: Sequence[_Texts], gates: Float[Tensor, "row layer unit"], units: Units, off_at: Positions
) -> Float[Tensor, ""]:
    """The mean probability of the answers of each row, summed over the rows, differentiable in the gates."""
    stored = None
    prefixes = [row.prefix for row in rows] if all(row.prefix for row in rows) else [0] * len(rows)
    if prefixes[0]:
        tokens, attention_mask = pad([row.texts[0][: row.prefix] for row in rows])
        extension = Extension(attention_mask, keep=True)
        where = tokens_gated(off_at, [0] * len(rows), [row.prompts[0] for row in rows], tokens.shape[1])
        nothing = torch.zeros(1, dtype=torch.long)
        with hooked(model, gate_hooks(model, gates, units, where)):
            logits_at(model, tokens, attention_mask, row=nothing, position=nothing, extension=extension)
        stored = extension.finish()
        stored.compact()
    of = np.repeat(np.arange(len(rows)), [len(row.texts) for row in rows])
    tokens, attention_mask = pad([text[prefixes[i] :] for i, row in enumerate(rows) for text in row.texts])
    parents = torch.from_numpy(of)
    continued = None if stored is None else Extension(attention_mask, stored, parents)
    starts, ends = [prefixes[i] for i in of], [n for row in rows for n in row.prompts]
    where = tokens_gated(off_at, starts, ends, tokens.shape[1])
    texts_before = np.cumsum([0, *(len(row.texts) for row in rows)])
    continuations_before = np.cumsum([0, *(len(row.continuations) for row in rows)])
    reads = np.concatenate(
        [
            row.reads + np.array([texts_before[i], -prefixes[i], 0, continuations_before[i]])
            for i, row in enumerate(rows)
        ]
    )
    text, position, token, continuation = torch.from_numpy(reads).T
    each = gates[to_device(parents, gates.device)]
    with hooked(model, gate_hooks(model, each, units, where)):
        logits = logits_at(model, tokens, attention_mask, row=text, position=position, extension=continued)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = to_device(token, logits.device)
    logprob = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(dim=1)
    summed = logprob.new_zeros(int(continuations_before[-1])).index_add(
        0, to_device(continuation, logits.device), logprob
    )
    n_examples = [int(row.continuations[-1, 0]) + 1 for row in rows]
    before = np.cumsum([0, *n_examples])
    example = np.concatenate([row.continuations[:, 0] + before[i] for i, row in enumerate(rows)]).astype(np.int64)
    table = np.concatenate([row.continuations for row in rows])
    compared = summed * to_device(torch.from_numpy(table[:, 1]).to(summed), logits.device)
    right = np.flatnonzero(table[:, 2])
    share = np.repeat([1 / n for n in n_examples], n_examples)
    at = to_device(torch.from_numpy(example), logits.device)
    alone = np.bincount(example) == 1
    top = compared.new_full((len(right),), -torch.inf).scatter_reduce(0, at, compared.detach(), "amax")
    mass = compared.new_zeros(len(right)).index_add(0, at, (compared - top[at]).exp())
    answer = compared[to_device(torch.from_numpy(right), logits.device)]
    alone_ = to_device(torch.from_numpy(alone), logits.device)
    probability = torch.where(alone_, answer, answer - top - mass.log()).exp()
    return (probability * to_device(torch.from_numpy(share).to(probability), logits.device)).sum()


def replacement_gradients(
    model: HookedModel,
    prompts: Sequence[Tokens],
    targets: Sequence[Tokens],
    gates: Float[Tensor, "batch layer unit"],
    constants: Mapping[int, Float[Tensor, "unit width"]],
    *,
    room: TokenBudget,
    positions: Sequence[Tokens] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> dict[int, Float[Tensor, "unit width"]]:
    """The gradient of the mean negative log-probability of targets in what units give where they are off.

    Args:
        model: The model.
        prompts: The prompt of each row.
        targets: The target of each row.
        gates: The gates of each row.
        constants: By layer, what each unit gives.
        room: Tokens of one pass at most.
        positions: Those of ``with_targets``.
        units: The kind of unit.
        off_at: Where units are off.

    Returns:
        By layer; the mean over the rows.
    """
    gradients = {layer: torch.zeros_like(constant) for layer, constant in constants.items()}

    def run(batch: Int[np.ndarray, " n"]) -> None:
        leaves = {layer: constant.clone().requires_grad_() for layer, constant in constants.items()}
        given = {layer: leaf[None, None] for layer, leaf in leaves.items()}
        width = max(lengths[i] for i in batch)
        where = tokens_gated(off_at, [0] * len(batch), [len(prompts[i]) for i in batch], width)
        read_at = None if positions is None else [positions[i] for i in batch]
        with gated(model, gates[batch], given, units, where):
            loss = target_nll(model, [prompts[i] for i in batch], [targets[i] for i in batch], read_at)
        check_numbers(model, loss.detach(), lambda i: row_of(model, gates[batch[i]], prompts[batch[i]], None, units))
        found = torch.autograd.grad(loss.sum() / len(prompts), list(leaves.values()), allow_unused=True)
        for layer, gradient in zip(leaves, found, strict=True):
            # A layer in which no row has a unit off has none.
            if gradient is not None:
                gradients[layer] += gradient

    lengths = _lengths(prompts, targets, positions)
    with differentiable(model):
        run_in_batches(lengths, room, run)
    return gradients


def _lengths(prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None) -> list[int]:
    """Tokens of each row: the prompt alone where the target is read inside it."""
    inside = [()] * len(prompts) if positions is None else positions
    return [
        len(prompt) if len(places) else len(prompt) + len(target) - 1
        for prompt, target, places in zip(prompts, targets, inside, strict=True)
    ]


def gate_hooks(
    model: HookedModel,
    gates: Float[Tensor, "batch layer unit"],
    units: Units = "heads",
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Callable[..., Tensor]]:
    """Hooks on the units of every layer, also where all gates are 1: such a gate has a gradient too."""
    at = None if where is None else Shared(where)

    def gate(layer: int, value: Tensor, hook: Any) -> Tensor:
        # Half-precision z and float32 gates multiply in float32; a layer may lie on another device.
        z = by_unit(value, gates.shape[2], len(gates), units)
        mixed = z * per_token(gates[:, layer].to(z.device), None if at is None else at.on(z.device))
        return mixed.to(z.dtype).reshape(value.shape)

    return {name: partial(gate, layer) for layer, name in enumerate(hook_names(model, units))}


def target_nll(
    model: HookedModel, prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None = None
) -> Float[Tensor, " batch"]:
    """Mean negative log-probability of each row's target (nats per token), in float32, one forward."""
    tokens, attention_mask, reads = with_targets(prompts, targets, positions)
    row = torch.from_numpy(reads.row)
    logits = logits_at(model, tokens, attention_mask, row=row, position=torch.from_numpy(reads.position))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = to_device(torch.from_numpy(reads.token), logits.device)
    nll = logits.logsumexp(dim=1) - logits.gather(1, wanted[:, None])[:, 0]
    summed = nll.new_zeros(len(targets)).index_add(0, to_device(row, logits.device), nll)
    return summed / to_device(torch.tensor([len(target) for target in targets]), logits.device)
