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
from cs_heads.lens.timing import PARTS, Part, clocked, matrix_rate
from cs_heads.tasks import Task, load_task

N_EXAMPLES = 20
MIN_MASKS = 20
DENSITY = 0.05


@dataclass(frozen=True)
class Profile:
    """Seconds of a measurement by part, what it ran, and the speed of a large matrix product beside it.

    Attributes:
        model: Name of the model.
        device: Its kind of device.
        dtype: Its dtype.
        task: Name of the task.
        n_masks: Masks measured.
        n_examples: Examples that each was measured on.
        seconds: By part (``lens.timing.PARTS``); their sum is the time from the first line to the last.
        forwards: Forwards.
        tokens: Tokens that were run, without padding; one that several examples begin with counts once for a mask.
        padded_tokens: Tokens with padding.
        flops: What ``tokens`` need: twice the weights of attention and MLPs for each layer that a token runs through,
            and twice those of the unembedding for each position that is read. None for a mixture of experts, where a
            token needs some of the weights.
        matrix_rate: FLOP/s of a large matrix product in this dtype on this device.
    """

    model: str
    device: str
    dtype: str
    task: str
    n_masks: int
    n_examples: int
    seconds: dict[Part, float]
    forwards: int
    tokens: int
    padded_tokens: int
    flops: int | None
    matrix_rate: float

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    @property
    def padding(self) -> float:
        """Tokens with padding for each without: 1 where nothing is wasted."""
        return self.padded_tokens / self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Tokens without padding, in a second of the whole."""
        return self.tokens / self.total

    @property
    def share_of_matrix_rate(self) -> float | None:
        """FLOP/s of the whole as a share of ``matrix_rate``."""
        return None if self.flops is None else self.flops / self.total / self.matrix_rate

    def __str__(self) -> str:
        rows = [*self.seconds.items(), ("all", self.total)]
        share, ran = self.share_of_matrix_rate, f"{self.tokens:,} in {self.forwards:,} forwards"
        against = "no share of it is known for a mixture of experts" if share is None else f"{share:.1%} of it"
        rate = f"{self.matrix_rate / 1e9:,.0f} GFLOP/s"
        return "\n".join(
            [
                f"{self.n_masks} random masks on {self.n_examples} examples of {self.task}",
                *(f"{name:<18}{seconds:>9.3f} s{seconds / self.total:>8.1%}" for name, seconds in rows),
                f"tokens      {ran}; with padding {self.padding:.2f} times as many",
                f"speed       {self.tokens_per_second:,.0f} tokens a second",
                f"matrix rate {rate} ({self.dtype}, {self.device}); the model: {against}",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the fields, and what follows of them."""
        derived = ("total", "padding", "tokens_per_second", "share_of_matrix_rate")
        return {**vars(self), **{name: getattr(self, name) for name in derived}}


def profile_model(model: Any, task: Task | None = None, *, seed: int = 0) -> Profile:
    """Measure random masks on a task, and say where the time goes.

    The intact model runs first and is not timed. At the bounds of parts a GPU is waited for, which costs some speed.

    Args:
        model: A name, folder or GGUF file that ``load_model`` takes, or your own TransformerLens model.
        task: What is measured, 20 of its examples at most; by default indirect objects in everyday English (of the demo
            model its capitals, of a model without a tokenizer random tokens).
        seed: Draws the masks: each head is off in one of twenty, and there are 20 masks, or as many as fill a
            forward.

    Returns:
        Seconds by part, forwards and tokens run, and the speed of a large matrix product on the same device (FLOP/s).

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
    with clocked(model) as clock:
        experiment(masks)
    described = experiment.provenance()["model"]
    return Profile(
        model=described["name"],
        device=device_of(model).type,
        dtype=described["dtype"],
        task=chosen.name,
        n_masks=n_masks,
        n_examples=experiment.n_examples,
        seconds={part: clock.seconds[part] for part in PARTS},
        forwards=clock.forwards,
        tokens=clock.tokens,
        padded_tokens=clock.padded,
        flops=None if getattr(model.cfg, "num_experts", None) else clock.flops,
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
