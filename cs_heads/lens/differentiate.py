"""Gradients in the gates of a frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.cache import Extension
from cs_heads.lens.forward import logits_at, pad
from cs_heads.lens.gates import tokens_gated
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, context_length, device_of, evaluating
from cs_heads.lens.tokens import EncodedExample
from cs_heads.lens.transfer import to_device
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


@dataclass(frozen=True)
class GradientExample:
    """An example whose answer is differentiated.

    Attributes:
        tokens: Its tokens.
        answer: Which continuation is right.
        scales: What the log-probability of each continuation is multiplied by before they are compared.
    """

    tokens: EncodedExample
    answer: int
    scales: tuple[float, ...]


def gate_gradients(
    model: HookedModel,
    asked: Sequence[Sequence[GradientExample]],
    gates: Float[np.ndarray, "row layer unit"],
    room: TokenBudget,
    *,
    of: Literal["probability", "loss"] = "probability",
    extend: bool = True,
    done: Callable[[int], Any] = lambda _: None,
    measured: Float[np.ndarray, "row layer unit"] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row layer unit"]]:
    """Per row: the mean probability, or the loss, of its answers, and its gradient in the row's gates.

    The probability is that of the right choice among the choices (a softmax over their scaled log-probabilities), of a
    single continuation that of all of it. The loss is the mean negative log-probability of the tokens of a single
    continuation (nats). What the texts of a row begin with alike runs once for all of them. Rows are independent, so
    one backward pass gives every row its own gradient.

    Args:
        model: The model.
        asked: The examples of each row; for the loss one, with one continuation.
        gates: The gates of each row; float32 where the weights are bfloat16 multiplies in float32.
        room: Tokens of one pass at most.
        of: What is differentiated.
        extend: Whether the model continues stored keys and values exactly (``lens.abilities``).
        done: Called with the number of rows done.
        measured: Gradients that an earlier call left, NaN where it did not get to, filled in place; what is known is
            not run.
        units: The kind of unit that is gated.
        off_at: Where units are gated.

    Returns:
        The values, NaN of rows known before, and the gradients.

    Raises:
        NotFiniteError: A value or gradient is NaN or infinite.
    """
    values = np.full(len(gates), np.nan, dtype=gates.dtype)
    gradient = np.full_like(gates, np.nan) if measured is None else measured
    unknown = np.asarray(np.isnan(gradient).any(axis=(1, 2)))
    texts = [_Texts.of(row, extend) for row in asked]
    value_of = _mean_probability if of == "probability" else _mean_nll

    def run(batch: Int[np.ndarray, " n"]) -> None:
        batch = batch[unknown[batch]]
        rows = [texts[i] for i in batch]
        leaf = to_device(torch.from_numpy(gates[batch]), device_of(model)).requires_grad_()
        value = value_of(rows, _summed_logprobs(model, rows, leaf, units, off_at))
        slopes = torch.autograd.grad(value.sum(), leaf)[0]
        # In one transfer, for which the device is waited for once.
        both = torch.cat([value.detach().to(slopes.device)[:, None], slopes.flatten(1)], dim=1).cpu().numpy()
        check_numbers(model, both, lambda i: row_of(model, gates[batch[i]], rows[i].texts[0], None, units))
        values[batch], gradient[batch] = both[:, 0], both[:, 1:].reshape(slopes.shape)

    with differentiable(model):
        run_in_batches([each.n_tokens for each in texts], room, run, unknown, done)
    return values, gradient


@dataclass(frozen=True)
class _Texts:
    """The texts of a row, each once; the tokens that they begin with alike; and what is read in them.

    ``reads`` has a line for each token read: its text, its position, the token, and its continuation;
    ``choices`` one for each continuation: its example, and its place there; ``answers`` one for each example.
    """

    prefix: int
    texts: list[tuple[int, ...]]
    prompts: list[int]
    reads: Int[np.ndarray, "read 4"]
    choices: Int[np.ndarray, "continuation 2"]
    scales: Float[np.ndarray, " continuation"]
    answers: list[int]

    @classmethod
    def of(cls, asked: Sequence[GradientExample], extend: bool) -> _Texts:
        # Where its prompt ends says which tokens of a text are gated.
        places: dict[tuple[tuple[int, ...], int], int] = {}
        reads, choices = [], list[tuple[int, int]]()
        for number, one in enumerate(asked):
            for which, tokens in enumerate(one.tokens.continuations):
                text = one.tokens.inputs_of(which), len(one.tokens.prompt_of(which))
                place = places.setdefault(text, len(places))
                at = one.tokens.positions_of(which)
                reads += [(place, where, token, len(choices)) for where, token in zip(at, tokens, strict=True)]
                choices.append((number, which))
        texts, first = [tokens for tokens, _ in places], min(where for _, where, _, _ in reads)
        alike = next((i for i, column in enumerate(zip(*texts, strict=False)) if len(set(column)) > 1), first)
        prefix = min(alike, first) if extend and len(texts) > 1 else 0
        scales, answers = np.concatenate([one.scales for one in asked]), [one.answer for one in asked]
        return cls(prefix, texts, [n for _, n in places], np.array(reads), np.array(choices), scales, answers)

    @property
    def n_tokens(self) -> int:
        """Padded tokens that are run."""
        return self.prefix + len(self.texts) * (max(map(len, self.texts)) - self.prefix)


def _summed_logprobs(
    model: HookedModel,
    rows: Sequence[_Texts],
    gates: Float[Tensor, "row layer unit"],
    units: Units,
    off_at: Positions,
    *,
    replacement: Mapping[int, Tensor] | None = None,
) -> Float[Tensor, " continuation"]:
    """The log-probability of each continuation of all rows, one row after another, in float32 or finer."""
    stored, prefixes = None, np.array([row.prefix for row in rows])
    width = max(len(text) - row.prefix for row in rows for text in row.texts)
    if prefixes.max() + width > (context_length(model) or np.inf):
        # Padding is numbered onwards, and must have a place in the table, too.
        prefixes[:] = prefixes.min()
    if prefixes.all():
        tokens, attention_mask = pad([row.texts[0][:prefix] for prefix, row in zip(prefixes, rows, strict=True)])
        extension = Extension(attention_mask, keep=True)
        where = tokens_gated(off_at, [0] * len(rows), [row.prompts[0] for row in rows], tokens.shape[1])
        first = torch.zeros(1, dtype=torch.long)
        options: dict[str, Any] = {"units": units, "where": where, "extension": extension}
        logits_at(model, tokens, attention_mask, (first, first), gates=gates, **options)
        stored = extension.finish()
    else:
        prefixes[:] = 0
    # The row of each text.
    of = np.repeat(np.arange(len(rows)), [len(row.texts) for row in rows])
    tokens, attention_mask = pad(
        [text[start:] for start, row in zip(prefixes, rows, strict=True) for text in row.texts]
    )
    parents = torch.from_numpy(of)
    where = tokens_gated(off_at, prefixes[of].tolist(), [n for row in rows for n in row.prompts], tokens.shape[1])
    texts, continuations = _before([row.texts for row in rows]), _before([row.scales for row in rows])
    shifts = np.stack([texts, -prefixes, np.zeros_like(texts), continuations], axis=1)
    reads = np.concatenate([row.reads + shift for row, shift in zip(rows, shifts, strict=True)])
    text, position, token, continuation = torch.from_numpy(reads).T
    logits = logits_at(
        model,
        tokens,
        attention_mask,
        (text, position),
        gates=gates[to_device(parents, gates.device)],
        replacement=replacement,
        units=units,
        where=where,
        extension=None if stored is None else Extension(attention_mask, stored, parents),
    )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprob = logits.gather(1, to_device(token, logits.device)[:, None])[:, 0] - logits.logsumexp(dim=1)
    summed = logprob.new_zeros(sum(len(row.scales) for row in rows))
    return summed.index_add(0, to_device(continuation, logprob.device), logprob)


def _mean_nll(rows: Sequence[_Texts], summed: Float[Tensor, " continuation"]) -> Float[Tensor, " row"]:
    """The mean negative log-probability of the tokens of each row's continuation."""
    return -summed / to_device(torch.tensor([len(row.reads) for row in rows]), summed.device)


def _mean_probability(rows: Sequence[_Texts], summed: Float[Tensor, " continuation"]) -> Float[Tensor, " row"]:
    """The mean probability of the answers of each row."""

    def at_hand(values: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(values), summed.device)

    first = _before([row.answers for row in rows])
    choices = np.concatenate([row.choices + np.array([n, 0]) for row, n in zip(rows, first, strict=True)])
    scales = np.concatenate([row.scales for row in rows]).astype(np.float32)
    answers = np.array([answer for row in rows for answer in row.answers])
    of = np.repeat(np.arange(len(rows)), [len(row.answers) for row in rows])
    share = np.array([1 / len(rows[row].answers) for row in of.tolist()], dtype=np.float32)
    grid = summed.new_full((len(answers), int(choices[:, 1].max()) + 1), -torch.inf)
    grid = grid.index_put(tuple(at_hand(choices.T)), summed * at_hand(scales))
    # A single continuation is compared with nothing.
    alone = at_hand(np.bincount(choices[:, 0]) == 1)
    compared = torch.where(alone[:, None], grid, grid.log_softmax(dim=1))
    right = compared.gather(1, at_hand(answers)[:, None])[:, 0].exp() * at_hand(share)
    return right.new_zeros(len(rows)).index_add(0, at_hand(of), right)


def _before(parts: Sequence[Sequence[Any] | np.ndarray]) -> Int[np.ndarray, " row"]:
    """How many come before each part."""
    return np.cumsum([0, *map(len, parts)])[:-1]


def replacement_gradients(
    model: HookedModel,
    examples: Sequence[EncodedExample],
    gates: Float[Tensor, "batch layer unit"],
    constants: Mapping[int, Float[Tensor, "unit width"]],
    *,
    room: TokenBudget,
    units: Units = "heads",
    off_at: Positions = "all",
) -> dict[int, Float[Tensor, "unit width"]]:
    """The gradient of the mean negative log-probability of targets in what units give where they are off.

    Args:
        model: The model.
        examples: The example of each row, whose target is its first continuation.
        gates: The gates of each row.
        constants: By layer, what each unit gives.
        room: Tokens of one pass at most.
        units: The kind of unit.
        off_at: Where units are off.

    Returns:
        By layer; the mean over the rows.
    """
    gradients = {layer: torch.zeros_like(constant) for layer, constant in constants.items()}
    rows = [_Texts.of([GradientExample(example, 0, (1.0,))], extend=False) for example in examples]

    def run(batch: Int[np.ndarray, " n"]) -> None:
        leaves = {layer: constant.clone().requires_grad_() for layer, constant in constants.items()}
        given = {layer: leaf[None, None] for layer, leaf in leaves.items()}
        chosen = [rows[i] for i in batch]
        loss = _mean_nll(chosen, _summed_logprobs(model, chosen, gates[batch], units, off_at, replacement=given))
        check_numbers(model, loss.detach(), lambda i: row_of(model, gates[batch[i]], chosen[i].texts[0], None, units))
        found = torch.autograd.grad(loss.sum() / len(examples), list(leaves.values()), allow_unused=True)
        for layer, gradient in zip(leaves, found, strict=True):
            # A layer in which no row has a unit off has none.
            if gradient is not None:
                gradients[layer] += gradient

    with differentiable(model):
        run_in_batches([row.n_tokens for row in rows], room, run)
    return gradients
