"""What one worker does: it holds a model, and runs the chunks it is given."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.cluster.session import ray_module
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.plan import share_memory, token_budget
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText
from cs_heads.lens import EncodedExample, load_model
from cs_heads.lens.casts import InDtype
from cs_heads.lens.forward import sample_logits
from cs_heads.lens.model import HookedModel, ModelInfo
from cs_heads.lens.serialization import model_info, unpacked_model, use_threads

Source = str | Path | bytes | Callable[[], Any]
"""A name or folder for ``load_model``, a model packed by ``lens.serialization``, or a function that returns a model."""

# Experiments whose engines a worker keeps: those that it ran last.
_ENGINES = 4


@dataclass(frozen=True)
class Report:
    """What a worker says once it holds its model: ``logits`` after a few tokens tell copies of a model apart.

    ``batch_tokens`` is what a forward takes (``engine.plan``); ``pid`` is that of its process.
    """

    info: ModelInfo
    versions: dict[str, str]
    logits: Float[np.ndarray, "n vocab"]
    batch_tokens: int
    pid: int


@dataclass(frozen=True, eq=False)
class Job:
    """What the engine of an experiment is made of, on every worker alike; ``weights`` is the model's fingerprint."""

    examples: list[EncodedExample]
    batch_tokens: int
    weights: str
    ablation: Ablation = field(default_factory=Ablation)
    compute_dtype: str | None = None


@dataclass(frozen=True)
class Sent:
    """Something in Ray's store, until nobody has this any more: inside an object it is not fetched unasked."""

    reference: Any

    def get(self) -> Any:
        """Fetch it."""
        return ray_module().get(self.reference)


def versions() -> dict[str, str]:
    """Versions that numbers depend on, in which driver and workers must agree."""
    names = ("cs-heads", "transformer-lens", "transformers", "torch", "numpy")
    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: version(name) for name in names}}


class Worker:
    """One model, loaded when it is first asked for, and the engines of the experiments that run on it.

    What a chunk gives depends on the chunk and its job alone, not on what ran before it or elsewhere.

    Args:
        source: The model.
        device: Its kind of device.
        threads: Threads on the CPU.
        sharers: How many workers share the memory of its device.
    """

    def __init__(self, source: Source, device: str, threads: int, sharers: int) -> None:
        self._source, self._device, self._threads, self._sharers = source, device, threads, sharers
        self._engines: dict[Any, Engine] = {}
        # Weights in another dtype, once for all jobs.
        self._casts: dict[str, InDtype | None] = {}

    @cached_property
    def model(self) -> HookedModel:
        """The model; what ``load_model`` refuses raises its ``ValueError``."""
        use_threads(self._threads)
        share_memory(self._sharers)
        source, device = self._source, self._device
        if isinstance(source, bytes):
            return unpacked_model(source, device)
        return load_model(source, device=device) if isinstance(source, str | Path) else load_model(source())

    @cached_property
    def _info(self) -> ModelInfo:
        return model_info(self.model)

    def report(self) -> Report:
        """Load the model and say what it is."""
        return Report(self._info, versions(), sample_logits(self.model), token_budget(self.model), os.getpid())

    def prepare(self, job: Sent) -> Ablation:
        """Run the intact model for what ablated units give; the others are given what this returns."""
        return self._engine(job).forwards.ablation.on_cpu()

    def run(
        self, job: Sent, masks: PairMasks, examples: PairExamples, known: Known, request: Sent | None
    ) -> list[PairResult] | list[PairText]:
        """The results of a chunk, or with a request its texts."""
        engine = self._engine(job)
        if request is None:
            return [result for batch in engine.run(masks, examples, known) for result in batch]
        return [text for batch in engine.generate(request.get(), masks, examples) for text in batch]

    def _engine(self, sent: Sent) -> Engine:
        engine = self._engines.pop(sent.reference, None)
        if engine is None:
            job: Job = sent.get()
            # A worker in the place of one that was lost has loaded the model anew.
            if self._info.fingerprint != job.weights:
                raise ValueError("a worker must hold the same weights as the others, these are others by now")
            dtype = job.compute_dtype
            engine = Engine(self.model, job.examples, job.batch_tokens, job.ablation, compute_dtype=dtype)
            if dtype is not None:
                engine.cast = self._casts.setdefault(dtype, engine.cast)
        self._engines = dict([*self._engines.items(), (sent.reference, engine)][-_ENGINES:])
        return engine
