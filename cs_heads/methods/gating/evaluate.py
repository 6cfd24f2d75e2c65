"""A task under gates that are neither open nor shut."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import score_tokens
from cs_heads.lens.batches import TokenBudget, run_in_batches

BATCH_TOKENS = 4096
"""Padded tokens of one forward pass, unless others are asked for."""


def under_gates(
    experiment: Experiment, gates: Float[np.ndarray, "row layer head"], batch_tokens: int | None = None
) -> tuple[Float[np.ndarray, "row example"], Float[np.ndarray, "row example"]]:
    """Score, and mean log-probability of the target (nats per token), of every example under each row of gates.

    A gate multiplies a head's z: 1 leaves it, 0 is zero ablation. Costs ``rows × examples`` example-evaluations, which
    the experiment does not count. Gates of another grid or outside [0, 1], and a generation task, raise ``ValueError``.
    """
    task, shape = experiment.task, experiment.grid.shape
    if gates.ndim != 3 or gates.shape[1:] != shape or not ((gates >= 0) & (gates <= 1)).all():
        raise ValueError(f"gates must be [row, layer, head] of the grid {shape} in 0..1, got shape {gates.shape}")
    if task.kind == "generation":
        raise ValueError(f"task {task.name!r} is a generation task: gates are held against targets alone")
    encoded = experiment.encoded
    asked = [(i, c) for i, tokens in enumerate(encoded) for c in range(len(tokens.continuations))]
    pairs = [(row, i, c) for row in range(len(gates)) for i, c in asked]
    prompts = [encoded[i].prompt_of(c) for _, i, c in pairs]
    targets = [encoded[i].continuations[c] for _, i, c in pairs]
    summed, hits = np.zeros((2, len(pairs)))

    def run(batch: Int[np.ndarray, " n"]) -> None:
        rows = torch.from_numpy(gates[[pairs[i][0] for i in batch]]).float()
        read_at = [encoded[pairs[i][1]].positions for i in batch]
        some = [prompts[i] for i in batch], [targets[i] for i in batch]
        scored = score_tokens(experiment.model, *some, rows, read_at)
        summed[batch], hits[batch] = scored.logprob, scored.hits

    lengths = [len(encoded[i].inputs_of(c)) for _, i, c in pairs]
    run_in_batches(lengths, TokenBudget(batch_tokens or BATCH_TOKENS), run)
    ends = np.cumsum([len(tokens.continuations) for tokens in encoded])[:-1]
    scores, logprobs = np.zeros((len(gates), len(task))), np.zeros((len(gates), len(task)))
    for row in range(len(gates)):
        part = slice(row * len(asked), (row + 1) * len(asked))
        for i, (each, said) in enumerate(zip(np.split(summed[part], ends), np.split(hits[part], ends), strict=True)):
            answer = task.examples[i].answer
            scores[row, i] = task.score(i, each, said.tolist())
            logprobs[row, i] = each[answer] / len(encoded[i].continuations[answer])
    return scores, logprobs
