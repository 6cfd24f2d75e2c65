"""A task on a model, and gradients in gates of what is said of it: one forward and one backward pass a row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from cs_heads.cluster import Cluster, local_model
from cs_heads.engine import Engine
from cs_heads.engine.encoding import encode_task
from cs_heads.engine.protocol import EngineLike
from cs_heads.experiment.protocol import Gates, GradientExperiment, check_examples
from cs_heads.experiment.setup import Setup
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import check_forward, why_no_gradients
from cs_heads.lens.batches import TokenBudget, default_tokens
from cs_heads.lens.casts import InDtype
from cs_heads.lens.differentiate import GradientExample, gate_gradients
from cs_heads.lens.quantized import quantization_of
from cs_heads.progress import counting
from cs_heads.store.kept_work import KeptWork, filled
from cs_heads.tasks import Task
from cs_heads.tasks.responses import RESPONSES
from cs_heads.units import Grid


class Gradients(GradientExperiment):
    """A task on a model, with gradients in gates; the model runs in this process. Base of ``Experiment``.

    Args:
        setup: The model, and how it is measured.
        task: The task.
    """

    task: Task

    def __init__(self, setup: Setup, task: Task) -> None:
        self.setup, self.settings, self.source, self.model = setup, setup.settings, setup.source, setup.model
        self.store, self._state = setup.store, setup.state
        self.task, self.name, self.chance, self.n_examples = task, task.name, task.chance, len(task)
        self.grid = Grid.from_model(setup.model, setup.settings.units)
        self.responses = tuple(RESPONSES) if task.scorer is None else ("score",)
        self.encoded: Sequence[EncodedExample] = encode_task(setup.model, task, setup.settings.prepend_bos)
        # Backward passes, each beside a forward one, and passes of both kinds that were run here.
        self._backwards = self._differentiated = 0

    @property
    def _engine(self) -> EngineLike:
        """What runs its forwards."""
        raise NotImplementedError

    def gradients(
        self, gates: Gates, examples: Int[np.ndarray, " row"], *, keep: str | None = None
    ) -> tuple[Float[np.ndarray, " row"], Gates]:
        """Loss of each row's example under the row's gates, and its gradient in them, by one backward pass a batch.

        The weights are frozen, and each row has a gradient of its own. Runs in this process, also where the
        experiment's model is on workers, and counts one forward and one backward pass a row.

        Args:
            gates: What each head's z is multiplied by; zero ablation alone has gates.
            examples: The example of each row.
            keep: A name under which gradients at gates of 1 are kept in the store every few seconds.

        Returns:
            The mean negative log-probability of the target (nats per token; NaN where the store had the gradient), and
            the gradients.

        Raises:
            ValueError: Another ablation than zero, an example without a target, or gates of another grid.
        """
        if self.settings.ablation != "zero":
            raise ValueError(f"ablation must be 'zero' for gradients in gates, got {self.settings.ablation!r}")
        asked = [[GradientExample(self.answers[example], 0, (1.0,))] for example in examples]
        kept = None if keep is None else self.kept_work(keep, {"examples": examples.tolist()})
        found = np.full_like(gates, np.nan)
        return self._slopes(asked, gates, kept, found, of="loss"), found

    @property
    def has_gradients(self) -> bool:
        """Whether ``probability_gradients`` can be asked for.

        It can where heads become zero, no scorer judges the answers, and the model is in this process and not
        quantized: what multiplies packed weights need not have a gradient.
        """
        if self.settings.ablation != "zero" or self.task.scorer is not None or isinstance(self.source, Cluster):
            return False
        packed = quantization_of(getattr(self.model, "original_model", None)) is not None
        return not packed and all(weight.is_floating_point() for weight in self.model.parameters())

    def probability_gradients(self, gates: Gates, examples: Int[np.ndarray, "row k"], *, keep: str) -> Gates:
        """The gradient of the mean probability of each row's answers (``respond``) in the row's gates.

        Counts one forward and one backward pass an example; what a row's prompts begin with alike runs once. Both
        passes are in bfloat16 where that is the compute dtype, else in the dtype of the weights.

        Args:
            gates: What each head's z is multiplied by.
            examples: The examples of each row.
            keep: A name under which gradients are kept in the store every few seconds.

        Returns:
            The gradients, in probability for each unit of a gate.

        Raises:
            ValueError: Gates of another grid or number of rows, or an experiment without gradients (``has_gradients``).
        """
        if not self.has_gradients:
            raise ValueError(f"task {self.task.name!r} has no gradients here: see has_gradients")
        examples = check_examples(len(self.task), len(gates), examples)
        asked = [[self._asked(int(example)) for example in row] for row in examples]
        # Gradients in float16 would vanish: there is no scale of the loss.
        half = self.setup.compute_dtype == "bfloat16"
        in_dtype = self._engine.cast if half and isinstance(self._engine, Engine) else None
        dtype = {} if in_dtype is None else {"compute_dtype": self.setup.compute_dtype}
        digest = hashlib.sha256(gates.astype("<f4").tobytes()).hexdigest()
        differentiated = [[astuple(one) for one in row] for row in asked]
        kept = self.kept_work(keep, {"asked": differentiated, "gates": digest, **dtype})
        found = np.full(gates.shape, np.nan, dtype=np.float32)
        self._slopes(asked, gates, kept, found, in_dtype)
        return found

    @cached_property
    def answers(self) -> list[EncodedExample]:
        """Each example with its right answer alone; a task without targets raises ``ValueError``."""
        for example in self.task.examples:
            _ = example.target
        return [tokens.answered(one.answer) for tokens, one in zip(self.encoded, self.task.examples, strict=True)]

    def kept_work(self, kind: str, work: Mapping[str, Any], *others: Gradients) -> KeptWork | None:
        """Where work on the right answers of this experiment, and of others, is kept; None without a store.

        Args:
            kind: The method, for people who ask what a store holds.
            work: All else that the work depends on, JSON-ready.
            others: Experiments whose answers it depends on, too.

        Returns:
            What loads and saves the arrays of each phase of the work.
        """
        if self.store is None:
            return None
        answers = [[astuple(answer) for answer in each.answers] for each in (self, *others)]
        return KeptWork(self.store, kind, {**work, "answers": answers})

    def _slopes(
        self,
        asked: Sequence[Sequence[GradientExample]],
        gates: Gates,
        kept: KeptWork | None,
        found: Gates,
        in_dtype: InDtype | None = None,
        *,
        of: Literal["loss", "probability"] = "probability",
    ) -> Float[np.ndarray, " row"]:
        """Fill ``found`` with gradients, from the store as far as it has them, and count them; the values they are of.

        Each row is asked for as many examples.
        """
        wanted = (len(asked), *self.grid.shape)
        if gates.shape != wanted:
            raise ValueError(f"gates must be [row, layer, head] = {wanted}, got shape {gates.shape}")
        k = len(asked[0])
        passes = counting(self.task.name, 2 * k * len(found), self.settings.progress)
        with (
            self._state.kept(self.model),
            passes as bar,
            filled(kept, 0, found, lambda rows: bar.add(2 * k * rows)) as done,
            in_dtype or nullcontext(),
        ):
            missing = int(np.isnan(found).any(axis=(1, 2)).sum())
            values, _ = gate_gradients(
                local_model(self.source),
                asked,
                gates,
                self._tokens,
                done=done,
                measured=found,
                units=self.settings.units,
                off_at=self.settings.positions,
                of=of,
                extend=of == "loss" or self._extends,
            )
        self._backwards += k * len(found)
        self._differentiated += 2 * k * missing
        return values

    def _asked(self, example: int) -> GradientExample:
        one, tokens = self.task.examples[example], self.encoded[example]
        scales = np.ones(len(tokens.continuations))
        if self.task.kind == "completion" and self.task.accuracy == "token":
            scales = scales / len(one.target)
        elif self.task.length_normalized:
            scales = scales / self.task.characters[example, : len(scales)]
        return GradientExample(tokens, one.answer, tuple(scales.tolist()))

    @cached_property
    def _tokens(self) -> TokenBudget:
        # Of all calls: what does not fit into memory is found out once, and whether the model is run rightly.
        model = local_model(self.source)
        check_forward(model)
        return TokenBudget(self.settings.batch_tokens or default_tokens(model, "gradient"))

    @property
    def _extends(self) -> bool:
        """Whether forwards, and gradients through them, go on from stored keys and values."""
        engine = self._engine
        return isinstance(engine, Engine) and engine.forwards.able.extend and why_no_gradients(self.model) is None
