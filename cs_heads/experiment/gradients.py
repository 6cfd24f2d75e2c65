"""Gradients in gates of what a model says of one task: one forward and one backward pass a row, kept in the store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cs_heads.cluster import Cluster, local_model
from cs_heads.engine import Engine
from cs_heads.engine.protocol import EngineLike
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.inputs import Answers
from cs_heads.experiment.protocol import check_examples
from cs_heads.experiment.setup import Setup
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import check_forward, why_no_gradients
from cs_heads.lens.batches import TokenBudget, default_tokens
from cs_heads.lens.differentiate import Asked, gate_gradients
from cs_heads.lens.quantized import quantization_of
from cs_heads.progress import counting
from cs_heads.store.kept_work import KeptWork, filled
from cs_heads.tasks import Task
from cs_heads.units import Grid


class Gradients:
    """Gradients in gates of the answers of a task; the model runs in this process. ``cost`` is what they took.

    Args:
        setup: The model, and how it is measured.
        task: The task.
        encoded: Its examples as tokens.
        engine: What runs its forwards.
    """

    def __init__(self, setup: Setup, task: Task, encoded: Sequence[EncodedExample], engine: EngineLike) -> None:
        self.setup, self.task, self.encoded, self.engine = setup, task, encoded, engine
        self.cost, self.ran = Cost(0), 0

    @property
    def of_probabilities_exist(self) -> bool:
        """Whether there are gradients of probabilities (``Experiment.has_gradients``)."""
        setup = self.setup
        if setup.settings.ablation != "zero" or self.task.scorer is not None or isinstance(setup.source, Cluster):
            return False
        packed = quantization_of(getattr(setup.model, "original_model", None)) is not None
        return not packed and all(weight.is_floating_point() for weight in setup.model.parameters())

    def of_targets(
        self, gates: Float[np.ndarray, "row layer head"], examples: Int[np.ndarray, " row"], keep: str | None
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row layer head"]]:
        """Loss of each row's example under the row's gates, and its gradient (``Experiment.gradients``)."""
        settings = self.setup.settings
        if settings.ablation != "zero":
            raise ValueError(f"ablation must be 'zero' for gradients in gates, got {settings.ablation!r}")
        self._check(gates, len(examples))
        _ = self.answers  # refuses an example without a target
        answers = [self.encoded[i].answered(self.task.examples[i].answer) for i in examples]
        asked = [[Asked(answer, 0, (1.0,))] for answer in answers]
        found = np.full_like(gates, np.nan)
        kept = None if keep is None else self._kept(keep, {"examples": examples.tolist()})
        passes = counting(self.task.name, 2 * len(examples), settings.progress)
        measuring = self.setup.state.kept(self.setup.model)
        with measuring, passes as bar, filled(kept, 0, found, lambda more: bar.add(2 * more)) as done:
            nll, _ = gate_gradients(
                local_model(self.setup.source),
                asked,
                gates,
                self._tokens,
                of="loss",
                done=done,
                measured=found,
                units=settings.units,
                off_at=settings.positions,
            )
        self.cost += Cost(forwards=len(gates), backwards=len(gates))
        self.ran += 2 * int((~np.isnan(nll)).sum())
        return nll, found

    def of_probabilities(
        self, gates: Float[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"], keep: str
    ) -> Float[np.ndarray, "row layer head"]:
        """The gradient of the mean probability of each row's answers (``Experiment.probability_gradients``)."""
        self._check(gates, len(examples))
        if not self.of_probabilities_exist:
            raise ValueError(f"task {self.task.name!r} has no gradients here: see has_gradients")
        setup, examples = self.setup, check_examples(len(self.task), len(gates), examples)
        k = examples.shape[1]
        asked = [[self._asked(int(example)) for example in row] for row in examples]
        found = np.full(gates.shape, np.nan, dtype=np.float32)
        engine = self.engine if isinstance(self.engine, Engine) else None
        # Gradients in float16 would vanish: there is no scale of the loss.
        in_dtype = engine.cast if engine is not None and setup.compute_dtype == "bfloat16" else None
        dtype = {} if in_dtype is None else {"compute_dtype": setup.compute_dtype}
        digest = hashlib.sha256(gates.astype("<f4").tobytes()).hexdigest()
        kept = self._kept(keep, {"examples": examples.tolist(), "gates": digest, **dtype})
        passes, ran = counting(self.task.name, 2 * examples.size, setup.settings.progress), 0
        measuring = setup.state.kept(setup.model)
        with measuring, passes as bar, filled(kept, 0, found, lambda rows: bar.add(2 * rows * k)) as done:
            ran = int(np.isnan(found).any(axis=(1, 2)).sum())
            with in_dtype or nullcontext():
                gate_gradients(
                    local_model(setup.source),
                    asked,
                    gates,
                    self._tokens,
                    done=done,
                    measured=found,
                    extend=engine is not None and engine.forwards.able.extend and self._through_stored_keys,
                    units=setup.settings.units,
                    off_at=setup.settings.positions,
                )
        self.cost += Cost(forwards=examples.size, backwards=examples.size)
        self.ran += 2 * ran * k
        return found

    def _check(self, gates: np.ndarray, n_rows: int) -> None:
        wanted = (n_rows, *Grid.from_model(self.setup.model, self.setup.settings.units).shape)
        if gates.shape != wanted:
            raise ValueError(f"gates must be [row, layer, head] = {wanted}, got shape {gates.shape}")

    def _kept(self, kind: str, work: Mapping[str, Any]) -> KeptWork | None:
        return kept_work(self.setup, kind, work, self.answers)

    def _asked(self, example: int) -> Asked:
        one, tokens = self.task.examples[example], self.encoded[example]
        scales = np.ones(len(tokens.continuations))
        if self.task.kind == "completion" and self.task.accuracy == "token":
            scales = scales / len(one.target)
        elif self.task.length_normalized:
            scales = scales / self.task.characters[example, : len(scales)]
        return Asked(tokens, one.answer, tuple(scales.tolist()))

    @cached_property
    def answers(self) -> Answers:
        """The right answers as tokens; a task without targets raises ``ValueError``."""
        return Answers.of(self.task, self.encoded)

    @cached_property
    def _tokens(self) -> TokenBudget:
        # Of all calls: what does not fit into memory is found out once, and whether the model is run rightly.
        model = local_model(self.setup.source)
        check_forward(model)
        return TokenBudget(self.setup.settings.batch_tokens or default_tokens(model, "gradient"))

    @cached_property
    def _through_stored_keys(self) -> bool:
        """Whether gradients are taken through stored keys and values."""
        return why_no_gradients(self.setup.model) is None


def kept_work(setup: Setup, kind: str, work: Mapping[str, Any], *answers: Answers) -> KeptWork | None:
    """Where work on right answers is kept; None without a store.

    Args:
        setup: What it is done with.
        kind: The method, for people who ask what a store holds.
        work: All else that the work depends on, JSON-ready.
        answers: The answers of each task.

    Returns:
        What loads and saves the arrays of each phase of the work.
    """
    if setup.store is None:
        return None
    asked = [[each.prompts, each.targets, each.positions] for each in answers]
    return KeptWork(setup.store, kind, {**work, "answers": asked})
