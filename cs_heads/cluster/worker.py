"""What one worker does: it holds a model, and runs the chunks it is given."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.plan import share_memory, token_budget
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText, TextRequest
from cs_heads.lens import EncodedExample, load_model
from cs_heads.lens.casts import InDtype
from cs_heads.lens.forward import sample_logits
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.model import HookedModel, ModelInfo
from cs_heads.lens.serialization import model_info, unpacked_model, use_threads

Source = str | Path | bytes | Callable[[], Any]
"""A name or folder for ``load_model``, a model packed by ``lens.serialization``, or a function that returns a model."""


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker computes with.

    Attributes:
        device: Its kind of device.
        threads: Threads on the CPU.
        sharers: How many workers share the memory of its device.
    """

    device: str
    threads: int
    sharers: int


@dataclass(frozen=True)
class Report:
    """What a worker says once it holds its model: ``logits`` after a few tokens tell copies of a model apart.

    ``batch_tokens`` is what a probe of the model finds for a forward (``engine.plan``); ``pid`` and ``host`` say
    where the worker runs.
    """

    info: ModelInfo
    versions: dict[str, str]
    logits: Float[np.ndarray, "n vocab"]
    batch_tokens: int
    pid: int
    host: str


@dataclass(frozen=True)
class Job:
    """What the engine of an experiment is made of, on every worker alike."""

    examples: Sequence[EncodedExample]
    batch_tokens: int
    ablation: Ablation = field(default_factory=Ablation)
    compute_dtype: str | None = None


def versions() -> dict[str, str]:
    """Versions that numbers depend on, in which driver and workers must agree."""
    names = ("cs-heads", "transformer-lens", "transformers", "torch", "numpy")
    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: version(name) for name in names}}


class Worker:
    """One model, and the engines of the experiments that run on it.

    What a chunk gives depends on the chunk and its job alone, not on what ran before it or elsewhere.
    """

    model: HookedModel

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._engines: dict[str, Engine] = {}
        # Weights in another dtype, once for all jobs.
        self._casts: dict[str, InDtype | None] = {}

    def load(self, source: Source, config: WorkerConfig) -> Report:
        """Load the model; what ``load_model`` refuses raises its ``ValueError``."""
        use_threads(config.threads)
        share_memory(config.sharers)
        self._engines.clear()
        self._casts.clear()
        if isinstance(source, bytes):
            self.model = unpacked_model(source, config.device)
        elif isinstance(source, str | Path):
            self.model = load_model(source, device=config.device)
        else:
            self.model = load_model(source())
        budget = token_budget(self.model, why_not_fused(self.model) is None)
        return Report(
            model_info(self.model), versions(), sample_logits(self.model), budget, os.getpid(), platform.node()
        )

    def open(self, key: str, what: Job | TextRequest) -> None:
        """Keep what later calls name by its key."""
        self._open[key] = what

    def close(self, keys: Sequence[str]) -> None:
        """Forget what was opened, engines included."""
        for key in keys:
            self._open.pop(key, None)
            self._engines.pop(key, None)

    def prepare(self, job: str) -> Ablation:
        """Run the intact model for what ablated units give; the others are given what this returns."""
        return self._engine(job).forwards.ablation.on_cpu()

    def logprobs(self, job: str, masks: PairMasks, examples: PairExamples, known: Known = None) -> list[PairResult]:
        """The results of a chunk."""
        return [result for batch in self._engine(job).run(masks, examples, known) for result in batch]

    def generate(self, job: str, masks: PairMasks, examples: PairExamples, request: str) -> list[PairText]:
        """The texts of a chunk."""
        batches = self._engine(job).generate(self._open[request], masks, examples)
        return [text for batch in batches for text in batch]

    def _engine(self, key: str) -> Engine:
        if key not in self._engines:
            job: Job = self._open[key]
            dtype = job.compute_dtype
            engine = Engine(self.model, job.examples, job.batch_tokens, job.ablation, compute_dtype=dtype)
            if dtype is not None:
                engine.cast = self._casts.setdefault(dtype, engine.cast)
            self._engines[key] = engine
        return self._engines[key]
