"""Models that are trained, and whose heads are known because training forces them: strict interchange interventions.

    python -m benchmarks.truth.trained --out models/truth
    python -m benchmarks.truth.run --trained models/truth --out benchmarks/truth/models.csv

A model has two programs. Their heads are drawn as in the suite, and in place of writing their weights a GPT-2 is
trained until each of these heads carries its variable and no other head carries anything (Geiger et al., arXiv
2112.00826; Gupta et al., arXiv 2407.14494). Half of a batch are sources. In the other half the answers must be right,

- with what one of the heads writes taken from a source, as the program says with its variable from there;
- with that head off, as the program says without the variable;
- with any of the other heads taken from a source or off.

In some, linear probes also read the variable of each head from what it writes in sources; they are thrown away. Each
model takes a minute or a few on one core. Those that are there are not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

from cs_heads.units import Head

from .builder import N_TOKENS, NONE, HeadOp, variables
from .compiler import SAID_NONE
from .gating import faults
from .programs import after, back, chain, extreme, induction, place
from .suite import LENGTH, Draft, Spec, TrueModel, draft

D_HEAD = 8
"""Directions of a head: few, so the variables of a model are in superposition."""
PROGRAMS = (
    ((back(2), place(3)), 6, 12, 500, True),
    ((chain(2), extreme(False)), 8, 8, 1000, False),
    ((after(3), back(1)), 16, 8, 700, True),
    ((induction(), extreme(True)), 8, 8, 1400, True),
    ((place(5), chain(3)), 8, 8, 1000, False),
)
"""The task and its control, layers, heads of a layer, steps of training, and whether there are probes, of each model.

Induction needs probes. Of a chain they make the last head look at the answer itself, past the head before.
"""
BATCH, _RATE, _WARMUP, POOL, _CLEAR = 64, 3e-3, 100, 8192, 0.25


def drafts() -> list[Draft]:
    """All models that are trained."""
    made = []
    for seed, (programs, layers, heads, *_) in enumerate(PROGRAMS):
        made.append(draft(Spec("trained", layers, heads, seed), programs, np.random.default_rng(seed)))
    return made


Probe = tuple[Head, slice, torch.nn.Linear]
"""Reads a variable from what its head writes."""


@dataclass(frozen=True)
class Batch:
    """As many sources as other prompts, and what is done to heads.

    Attributes:
        prompts: Token ids, of sources first.
        answers: What is to be said.
        defined: Where the programs say one thing.
        keep: How much of what it writes a head keeps, ``[row, layer, head]``.
        take: How much a head takes of the source, of rows that are none, ``[row, layer, head]``.
        values: The variables of sources, ``[row, place, direction]``.
    """

    prompts: torch.Tensor
    answers: torch.Tensor
    defined: torch.Tensor
    keep: torch.Tensor
    take: torch.Tensor
    values: torch.Tensor


def batch(made: Draft, pools: Sequence[np.ndarray], rng: np.random.Generator, n: int = BATCH) -> Batch:
    """Draw ``n`` sources and ``n`` other prompts of the same programs, and interventions on heads.

    In half of the rows one head of the program is taken from the source. In a quarter it is off, and right is what the
    program says without that variable, mostly nothing. Of the heads that the program does not need a share, from none
    to all, is taken from the source or off.
    """
    numbers = {
        Head(*each): i for i, op in enumerate(made.builder.ops) for each, done in made.plan.heads.items() if done is op
    }
    asked = rng.integers(len(pools), size=n)
    prompts = np.concatenate([[pools[i][rng.integers(len(pools[i]))] for i in asked] for _ in range(2)])
    grid = (n, made.spec.layers, made.spec.heads)
    swapped, take = np.zeros((n, len(made.builder.ops)), dtype=bool), np.zeros(grid, dtype=bool)
    other, keep = np.ones(grid, dtype=bool), np.ones((2 * n, *grid[1:]), dtype=bool)
    sources = variables(made.builder, prompts[:n])
    given = sources.copy()
    for row, (program, done) in enumerate(zip(asked, rng.random(n), strict=True)):
        own = made.heads[program]
        for head in own:
            other[row, head.layer, head.index] = False
        if done < 0.75:
            head = own[rng.integers(len(own))]
            swapped[row, numbers[head]], take[row, head.layer, head.index] = True, done < 0.5
            keep[n + row, head.layer, head.index] = False
            given[row] *= done < 0.5
    hit = other & (rng.random(grid) < np.clip(1.5 * rng.random((n, 1, 1)) - 0.25, 0, 1))
    off = hit & (rng.random(grid) < rng.integers(3, size=(n, 1, 1)) / 2)
    decoys = np.ones(grid[1:], dtype=bool)
    decoys[tuple(np.array([*made.plan.heads]).T)] = False
    off_in_source = decoys & (rng.random(grid) < rng.choice([0, 0.5, 1], p=[0.5, 0.25, 0.25], size=(n, 1, 1)))
    take |= hit & ~off
    keep &= np.concatenate([~off_in_source, ~hit])
    said = np.concatenate([sources, variables(made.builder, prompts[n:], given, swapped)])
    logits = said[:, -1, made.builder.logits.place]
    logits[:, NONE] += SAID_NONE
    first, second = np.sort(logits, axis=-1)[:, :-3:-1].T
    return Batch(
        torch.from_numpy(prompts),
        torch.from_numpy(logits.argmax(-1)),
        torch.from_numpy(first - second > _CLEAR),
        torch.from_numpy(keep.astype(np.float32)),
        torch.from_numpy(take.astype(np.float32)),
        torch.from_numpy(sources),
    )


@contextmanager
def patched(model: Any, done: Batch) -> Iterator[list[torch.Tensor]]:
    """Heads of a GPT-2 keep and take what a batch says, before the output matrix of their layer.

    Gives what the heads of sources write, by layer.
    """
    n, written = len(done.take), []
    with ExitStack() as stack:
        for layer, block in enumerate(model.transformer.h):

            def patch(module: Any, given: tuple[Any, ...], layer: int = layer) -> Any:
                z = given[0].unflatten(-1, (done.keep.shape[-1], -1))
                written.append(z[:n])
                kept = done.keep[:, None, layer, :, None] * z
                taken = done.take[:, None, layer, :, None] * z[:n]
                return (torch.cat([kept[:n], kept[n:] + taken]).flatten(-2),)

            stack.callback(block.attn.c_proj.register_forward_pre_hook(patch).remove)
        yield written


def loss(model: Any, done: Batch, probes: Sequence[Probe] = ()) -> tuple[torch.Tensor, float]:
    """The mean cross-entropy of a batch and the mean error of probes, and the share that is right."""
    with patched(model, done) as written:
        state = model.transformer(done.prompts, use_cache=False).last_hidden_state[:, -1]
    logits, answers = model.lm_head(state)[done.defined], done.answers[done.defined]
    right = (logits.argmax(dim=-1) == answers).float().mean()
    total = torch.nn.functional.cross_entropy(logits, answers)
    for head, variable, linear in probes:
        found = linear(written[head.layer][:, :, head.index])
        total = total + (found - done.values[..., variable]).square().sum(-1).mean()
    return total, float(right)


def drawn(true: TrueModel, n: int, seed: int) -> list[np.ndarray]:
    """``n`` prompts of each program."""
    return [np.array(true.prompts(i, n, seed)[0]) for i in range(len(true.programs))]


def train(made: Draft, steps: int, *, probed: bool) -> TrueModel:
    """Train a model of a draft from random weights, seeded by its seed."""
    spec = made.spec
    torch.manual_seed(spec.seed)
    config = GPT2Config(
        vocab_size=N_TOKENS,
        n_positions=LENGTH + 2,
        n_embd=spec.heads * D_HEAD,
        n_inner=2 * spec.heads * D_HEAD,
        n_layer=spec.layers,
        n_head=spec.heads,
        initializer_range=0.1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model, rng = GPT2LMHeadModel(config), np.random.default_rng(spec.seed)
    true = made.model(model.eval())
    pools = drawn(true, POOL, 1000 + spec.seed)
    probes = [
        (Head(*place), op.writes.place, torch.nn.Linear(D_HEAD, op.writes.width))
        for place, op in made.plan.heads.items()
        if probed and isinstance(op, HeadOp)
    ]
    learned = [*model.parameters(), *(each for *_, linear in probes for each in linear.parameters())]
    optimizer = torch.optim.AdamW(learned, lr=_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, _WARMUP, steps)
    for step in range(steps):
        value, right = loss(model, batch(made, pools, rng), probes)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{spec.name} step {step + 1}: loss {value.item():.3f}, right {right:.2f}", flush=True)
    return true
    return true


def models(folder: Path) -> dict[str, Callable[[], TrueModel]]:
    """The trained models of a folder, by name."""
    return {made.spec.name: partial(load, made, folder) for made in drafts() if (folder / made.spec.name).exists()}


def load(made: Draft, folder: Path) -> TrueModel:
    """A trained model of a folder."""
    return made.model(GPT2LMHeadModel.from_pretrained(folder / made.spec.name).eval())


def main() -> None:
    """Train what is missing, and say what contradicts what is known of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the models")
    options = parser.parse_args()
    for made, (*_, steps, probed) in zip(drafts(), PROGRAMS, strict=True):
        folder, start = options.out / made.spec.name, process_time()
        if not folder.exists():
            true = train(made, steps, probed=probed)
            seconds = process_time() - start
            true.save(folder)
            with torch.no_grad():
                right = loss(true.model, batch(made, drawn(true, 500, 1), np.random.default_rng(1), 1000))[1]
            print(
                f"{made.spec.name}: {seconds:.0f} s, interventions right: {right:.3f}, faults: {faults(true)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
