"""What one worker does: it holds a model, and runs the chunks it is given."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.lens import EncodedExample, load_model
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.outline import Outline
from cs_heads.lens.ship import outline_of, sample_logits, unpacked, use_threads
from cs_heads.measure.engine import Engine
from cs_heads.measure.engine.ablation import Ablation
from cs_heads.measure.engine.ends import Ends
from cs_heads.measure.engine.plan import share_memory, token_budget
from cs_heads.measure.engine.protocol import PairResult, PairText, Text

Source = str | Path | bytes | Callable[[], Any]
"""A name or folder for ``load_model``, a model packed by ``lens.ship``, or a function that returns a model."""


@dataclass(frozen=True)
class Home:
    """How a worker lives: its kind of device, its threads, and how many share its device with it."""

    device: str
    threads: int
    sharers: int


@dataclass(frozen=True)
class Report:
    """What a worker says once it holds its model: ``logits`` of a few tokens tell copies of a model apart."""

    outline: Outline
    versions: dict[str, str]
    logits: Float[np.ndarray, "n vocab"]
    batch_tokens: int


@dataclass(frozen=True)
class Job:
    """What an experiment's engine is made of, on every worker alike."""

    examples: Sequence[EncodedExample]
    batch_tokens: int
    ablation: Ablation | None = None


def versions() -> dict[str, str]:
    """Versions that numbers depend on; workers and driver must agree in them."""
    names = ("cs-heads", "transformer-lens", "transformers", "torch", "numpy")
    return {"python": ".".join(platform.python_version_tuple()[:2]), **{name: version(name) for name in names}}


class Worker:
    """One model and the engines of the experiments that run on it.

    A chunk's results do not depend on what ran before it: each engine plans with the token budget it was given.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self._engines: dict[str, Engine] = {}

    def load(self, source: Source, home: Home) -> Report:
        """Load the model; what ``load_model`` refuses is refused."""
        use_threads(home.threads)
        share_memory(home.sharers)
        self._engines.clear()
        if isinstance(source, bytes):
            self.model = unpacked(source, home.device)
        elif isinstance(source, str | Path):
            self.model = load_model(source, device=home.device)
        else:
            self.model = load_model(source())
        fused = why_not_fused(self.model) is None
        return Report(
            outline_of(self.model), versions(), sample_logits(self.model), token_budget(self.model, fused)
        )

    def prepare(self, key: str, job: Job) -> Ablation:
        """Run the intact model for what heads become, and hand it out; the job then goes to all workers with it."""
        assert job.ablation is not None
        self._engine(key, job).forwards  # noqa: B018: made, and the ablation prepared with it
        del self._engines[key]
        return job.ablation.at_home()

    def score(
        self,
        key: str,
        job: Job,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
    ) -> list[PairResult]:
        """The results of a chunk."""
        return [result for batch in self._engine(key, job).run(masks, examples, False) for result in batch]

    def generate(
        self,
        key: str,
        job: Job,
        prompts: Mapping[int, Text],
        ends: Ends,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        drafts: Mapping[int, Text],
    ) -> list[PairText]:
        """The texts of a chunk."""
        batches = self._engine(key, job).generate(prompts, ends, masks, examples, drafts, False)
        return [text for batch in batches for text in batch]

    def _engine(self, key: str, job: Job) -> Engine:
        if key not in self._engines:
            self._engines[key] = Engine(self.model, job.examples, job.batch_tokens, job.ablation)
        return self._engines[key]
