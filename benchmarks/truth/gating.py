"""What heads do, by hand: plain Hugging Face, heads zeroed before the output matrix of their layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from cs_heads.units import Head

from .builder import NO, YES
from .suite import TrueModel


@contextmanager
def zeroed(model: Any, heads: Collection[Head]) -> Iterator[None]:
    """Heads of a GPT-2 or Llama write nothing inside the block; biases stay."""
    with ExitStack() as stack:
        for layer in {head.layer for head in heads}:
            if hasattr(model, "transformer"):
                attention = model.transformer.h[layer].attn
                output = attention.c_proj
            else:
                attention = model.model.layers[layer].self_attn
                output = attention.o_proj
            off = [head.index for head in heads if head.layer == layer]

            def zero(module: Any, given: tuple[Any, ...], off: list[int] = off, d: int = attention.head_dim) -> Any:
                z = given[0].unflatten(-1, (-1, d)).clone()
                z[:, :, off] = 0
                return (z.flatten(-2),)

            stack.callback(output.register_forward_pre_hook(zero).remove)
        yield


def right(made: TrueModel, program: int, off: Collection[Head] = (), n: int = 100, seed: int = 1) -> np.ndarray:
    """Which prompts of a program the model answers right with heads off.

    Args:
        made: The model.
        program: The program's number.
        off: Heads that are off.
        n: Prompts.
        seed: Draws them.
    """
    prompts, answers = made.prompts(program, n, seed)
    # No token sees what fills up shorter prompts after it.
    filled = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    with torch.no_grad(), zeroed(made.model, off):
        every = made.model(filled, use_cache=False).logits
    logits = every[torch.arange(n), torch.tensor([len(prompt) - 1 for prompt in prompts])]
    said = logits[:, [YES, NO]] if made.programs[program].choice else logits
    return np.asarray(said.argmax(dim=-1)) == np.array(answers)


def faults(made: TrueModel, n: int = 100, n_sets: int = 4) -> list[str]:
    """What contradicts that exactly the known heads matter; empty where nothing does.

    Every program is computed on all prompts, also with all decoys off, with random halves of the decoys off, and with
    all heads off but its own. With one of its heads off it fails in a twentieth of them or more, or with both of twins.
    What is trained may fail in a fiftieth of them, and without one of its heads it fails in nine of ten. The demo model
    may fail in a twentieth, and is not whole without many of its decoys.
    """
    found, rng = [], np.random.default_rng(0)
    least, most = {"trained": (0.98, 0.1), "demo": (0.95, 0.95)}.get(made.spec.kind, (1.0, 0.95))
    every = {*made.decoys, *(head for heads in made.heads for head in heads)} - {*made.slight}
    for i, own in enumerate(made.heads):
        halves = [[head for head in made.decoys if rng.random() < 0.5] for _ in range(n_sets)]
        for off in ([], made.decoys, every - {*own}, *halves)[: 1 if made.spec.kind == "demo" else None]:
            if (score := right(made, i, off, n).mean()) < least:
                found.append(f"{made.programs[i].name}: {score:.2f} with {len(off)} heads off that it does not need")
        for head in own:
            needed = head not in made.twins or i > 0
            if needed and (score := right(made, i, [head], n).mean()) > most:
                found.append(f"{made.programs[i].name}: {score:.2f} without {head}, which it needs")
            if not needed and (score := right(made, i, [head], n).mean()) < 1:
                found.append(f"{made.programs[i].name}: {score:.2f} without {head}, a twin")
        if i == 0 and made.twins and (score := right(made, 0, made.twins, n).mean()) > 0.95:
            found.append(f"{made.programs[i].name}: {score:.2f} without its twins")
    return found
