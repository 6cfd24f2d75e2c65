"""Where the time of a measurement goes on a model, and how near that is to what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cs_heads.arguments import check_seed
from cs_heads.designs import bernoulli
from cs_heads.engine.plan import example_length
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import load_model
from cs_heads.lens.batches import default_tokens
from cs_heads.lens.model import device_of, dtype_of, tokenizer_of, vocabularies
from cs_heads.lens.timing import matrix_rate, operation_seconds
from cs_heads.tasks import Task, load_task

N_EXAMPLES = 20
MIN_MASKS = 20
DENSITY = 0.05
SHOWN = 10


@dataclass(frozen=True)
class Profile:
    """Seconds of a measurement by operation, and the speed of a large matrix product beside it.

    Attributes:
        model: Name of the model.
        device: Its kind of device.
        dtype: Its dtype.
        task: Name of the task.
        n_masks: Masks measured.
        n_examples: Examples that each was measured on.
        seconds: By operation of PyTorch, each without those inside it, the slowest first.
        flops: FLOPs of matrix products.
        matrix_rate: FLOP/s of a large matrix product in this dtype on this device.
    """

    model: str
    device: str
    dtype: str
    task: str
    n_masks: int
    n_examples: int
    seconds: dict[str, float]
    flops: int
    matrix_rate: float

    @property
    def total(self) -> float:
        """Seconds of all operations."""
        return sum(self.seconds.values())

    @property
    def share_of_matrix_rate(self) -> float:
        """FLOP/s of the whole as a share of ``matrix_rate``."""
        return self.flops / self.total / self.matrix_rate

    def __str__(self) -> str:
        slowest = dict(list(self.seconds.items())[:SHOWN])
        others = {f"{len(self.seconds) - SHOWN} others": self.total - sum(slowest.values())}
        rows = [*(slowest | others if len(self.seconds) > SHOWN else slowest).items(), ("all", self.total)]
        rate = f"{self.matrix_rate / 1e9:,.0f} GFLOP/s ({self.dtype}, {self.device})"
        return "\n".join(
            [
                f"{self.n_masks} random masks on {self.n_examples} examples of {self.task}",
                *(
                    f"{name.removeprefix('aten::'):<46}{seconds:>9.3f} s{seconds / self.total:>8.1%}"
                    for name, seconds in rows
                ),
                f"matrix rate {rate}; the model: {self.share_of_matrix_rate:.1%} of it",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, and what follows of them."""
        return {**vars(self), **{name: getattr(self, name) for name in ("total", "share_of_matrix_rate")}}


def profile_model(model: Any, task: Task | None = None, *, seed: int = 0) -> Profile:
    """Measure random masks on a task, and say where the time goes.

    The intact model runs first and is not timed. PyTorch's profiler watches every operation, which costs some speed.

    Args:
        model: A name, folder or GGUF file that ``load_model`` takes, or your own TransformerLens model.
        task: What is measured, 20 of its examples at most; by default indirect objects in everyday English (of the demo
            model its capitals, of a model without a tokenizer random tokens).
        seed: Draws the masks: each head is off in one of twenty, and there are 20 masks, or as many as fill a
            forward.

    Returns:
        Seconds by operation, and the speed of a large matrix product on the same device (FLOP/s).

    Raises:
        ValueError: No such model, or a task that it cannot be measured on.
    """
    seed = check_seed(seed)
    model = load_model(model)
    chosen = _task(model) if task is None else task
    experiment = Experiment(model, chosen.take(N_EXAMPLES), progress=False)
    experiment.baseline()
    n_tokens = sum(len(example.prompt) for example in experiment.encoded)
    n_masks = max(MIN_MASKS, -(-default_tokens(model, "scoring") // n_tokens))
    masks = bernoulli(experiment.grid, n_masks, max(DENSITY, 1 / experiment.grid.size), seed)
    seconds, flops = operation_seconds(lambda: experiment(masks), device_of(model))
    described = experiment.provenance()["model"]
    return Profile(
        model=described["name"],
        device=device_of(model).type,
        dtype=described["dtype"],
        task=chosen.name,
        n_masks=n_masks,
        n_examples=experiment.n_examples,
        seconds=dict(sorted(seconds.items(), key=lambda item: -item[1])),
        flops=flops,
        matrix_rate=matrix_rate(device_of(model), dtype_of(model)),
    )


def _task(model: Any) -> Task:
    if tokenizer_of(model) is not None:
        name = "demo/capitals" if model.cfg.model_name == "demo" else "everyday/indirect_object"
        return load_task(name, N_EXAMPLES)
    n_in, n_out = vocabularies(model)
    rng = np.random.default_rng(0)
    length = max(1, example_length(model) - 1)
    rows = [(rng.integers(n_in, size=length).tolist(), [int(rng.integers(n_out))]) for _ in range(N_EXAMPLES)]
    return Task.from_records([{"prompt": prompt, "target": target} for prompt, target in rows], "random tokens")
