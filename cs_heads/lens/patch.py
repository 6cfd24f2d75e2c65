"""Recording z at chosen positions of one prompt, and mixing it into another prompt's run; which token then answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.differentiate import differentiable
from cs_heads.lens.forward import last_logits
from cs_heads.lens.gates import hooked, reading
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, device_of, evaluating, hook_names
from cs_heads.lens.tokens import encode_example, leading_tokens
from cs_heads.lens.transfer import Shared, to_device
from cs_heads.text import Text
from cs_heads.units import Grid


@dataclass(frozen=True)
class PatchPoint:
    """A prompt, the positions in it where z is recorded or replaced, and the tokens that may answer it.

    One answer: the effect is measured on its probability. Two: on the log-probability of the first
    minus that of the second (nats), which is the difference of their logits.
    """

    prompt: tuple[int, ...]
    positions: tuple[int, ...]
    answers: tuple[int, ...]


def encode_point(
    tokenizer: Any, prompt: Text, answers: Sequence[Text], ends: Sequence[int] = (), prepend_bos: bool | None = None
) -> PatchPoint:
    """Tokenize a prompt and the first token of each answer; ``ends`` are places as numbers of characters, or token ids.

    A place is the last token of the text up to there; without any it is the last token of the prompt.
    Raises ``ValueError`` where answers begin with the same token, or where a place lies inside a token.
    """
    encoded = encode_example(tokenizer, prompt, answers, prepend_bos)
    first = tuple(continuation[0] for continuation in encoded.continuations)
    if len(set(first)) < len(first):
        raise ValueError(f"answers {', '.join(map(repr, answers))} begin with the same token")
    if not ends:
        return PatchPoint(encoded.prompt, (len(encoded.prompt) - 1,), first)
    return PatchPoint(encoded.prompt, tuple(_place(tokenizer, prompt, end, encoded.prompt) for end in ends), first)


def record_z(
    model: HookedModel, points: Sequence[PatchPoint], room: TokenBudget
) -> Float[Tensor, "pair point layer head d_head"]:
    """Each head's z at the positions of each prompt. One forward a prompt, within a budget of tokens."""
    found: dict[int, Tensor] = {}

    def run(batch: Int[np.ndarray, " n"]) -> None:
        chosen, kept = [points[i] for i in batch], list[Tensor]()
        places = _places(chosen)

        def keep(layer: int, z: Float[Tensor, "batch pos head d_head"]) -> None:
            kept.append(z[tuple(places.on(z.device))].clone().to(device_of(model)))

        with reading(model, keep):
            last_logits(model, [point.prompt for point in chosen])
        found.update(zip(batch.tolist(), torch.stack(kept, dim=2), strict=True))

    with evaluating(model):
        run_in_batches([len(point.prompt) for point in points], room, run)
    return torch.stack([found[place] for place in range(len(points))])


def patched_effects(
    model: HookedModel,
    points: Sequence[PatchPoint],
    source: Float[Tensor, "pair point layer head d_head"],
    pair: Int[np.ndarray, " row"],
    strength: Float[np.ndarray, "row layer head"],
    *,
    room: TokenBudget,
    done: Callable[[int], Any] = lambda _: None,
    measured: Float[np.ndarray, " row"] | None = None,
) -> Float[np.ndarray, " row"]:
    """The measure of each row's answers (see ``PatchPoint``) with z moved towards ``source`` in some heads.

    Row r runs the prompt of ``points[pair[r]]``; at its positions each head's z becomes
    ``z + strength * (source - z)``: strength 1 patches the head, 0 leaves it. One forward a row;
    ``done`` is called with the number of rows done. What an earlier call left in ``measured``, NaN where it did not get
    to, is filled in place: a batch of which every row is known is not run.
    """
    measured = np.full(len(pair), np.nan) if measured is None else measured
    unknown = np.isnan(measured)

    def run(batch: Int[np.ndarray, " n"]) -> None:
        chosen = [points[i] for i in pair[batch]]
        taken = source[to_device(torch.from_numpy(pair[batch]), source.device)]
        with _patched(model, chosen, taken, torch.from_numpy(strength[batch])):
            logprobs = _logprobs(model, chosen).cpu()
        left = 1 - strength[batch]
        check_numbers(
            model, logprobs, lambda i: row_of(model, left[i], chosen[i].prompt, int(pair[batch[i]]), how="patched")
        )
        measured[batch] = _measure(logprobs)

    with evaluating(model):
        run_in_batches([len(points[i].prompt) for i in pair], room, run, unknown, done)
    return measured


def patch_gradients(
    model: HookedModel,
    points: Sequence[PatchPoint],
    source: Float[Tensor, "pair point layer head d_head"],
    room: TokenBudget,
) -> Float[Tensor, "pair layer head"]:
    """Derivative of each pair's measure in the strength of every head's patch, where nothing is patched.

    One forward and one backward pass a pair: the first-order estimate of patching each head by itself.
    """
    gradient = torch.zeros(len(points), *Grid.from_model(model).shape)

    def run(batch: Int[np.ndarray, " n"]) -> None:
        chosen = [points[i] for i in batch]
        strength = torch.zeros(len(batch), *gradient.shape[1:], device=device_of(model), requires_grad=True)
        with _patched(model, chosen, source[to_device(torch.from_numpy(batch), source.device)], strength):
            total = _measure(_logprobs(model, chosen)).sum()
        slopes = torch.autograd.grad(total, strength)[0].to(gradient)
        check_numbers(model, slopes, lambda i: row_of(model, None, chosen[i].prompt, int(batch[i])))
        gradient[batch] = slopes

    with differentiable(model):
        run_in_batches([len(point.prompt) for point in points], TokenBudget(room.tokens // 4), run)
    return gradient


def _places(points: Sequence[PatchPoint]) -> Shared:
    """The row and the position of each place, ``[2, batch, point]``."""
    positions = torch.tensor([point.positions for point in points])
    return Shared(torch.stack([torch.arange(len(points))[:, None].expand_as(positions), positions]))


@contextmanager
def _patched(
    model: HookedModel,
    points: Sequence[PatchPoint],
    source: Float[Tensor, "batch point layer head d_head"],
    strength: Float[Tensor, "batch layer head"],
) -> Iterator[None]:
    """Mix ``source`` into z at each row's positions inside the ``with`` block; layers of strength 0 are not hooked."""
    places, shares = _places(points), Shared(strength)
    touched = [True] * strength.shape[1] if strength.requires_grad else (strength != 0).any(dim=2).any(dim=0).tolist()

    def mix(layer: int, z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Float[Tensor, "batch pos head d_head"]:
        at = tuple(places.on(z.device))
        here = z[at]
        share = rearrange(shares.on(z.device)[:, layer], "batch head -> batch 1 head 1")
        moved = here + share * (source[:, :, layer].to(here) - here)
        return z.index_put(at, moved.to(z.dtype))

    with hooked(model, {name: partial(mix, layer) for layer, name in enumerate(hook_names(model)) if touched[layer]}):
        yield


def _logprobs(model: HookedModel, points: Sequence[PatchPoint]) -> Float[Tensor, "batch answer"]:
    """Log-probabilities of the answers."""
    logits = last_logits(model, [point.prompt for point in points])
    logprob = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=1)
    return logprob.gather(1, to_device(torch.tensor([point.answers for point in points]), logits.device))


def _measure(logprobs: Float[Tensor, "batch answer"]) -> Float[Tensor, " batch"]:
    return logprobs[:, 0].exp() if logprobs.shape[1] == 1 else logprobs[:, 0] - logprobs[:, 1]


def _place(tokenizer: Any, prompt: Text, end: int, tokens: tuple[int, ...]) -> int:
    if not isinstance(prompt, str):
        return end - 1
    until = list(tokenizer(prompt[:end], add_special_tokens=False)["input_ids"])
    # The prompt may have a beginning-of-sequence token, or what else the tokenizer prepends, before its text.
    for before in (0, 1, len(leading_tokens(tokenizer))):
        if until and list(tokens[before : before + len(until)]) == until:
            return before + len(until) - 1
    raise ValueError(f"place {end} of prompt {prompt[:60]!r} lies inside a token ({prompt[max(0, end - 10) : end]!r})")
