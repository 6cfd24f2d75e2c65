"""Adam on the logits of many sets of gates at once; each set has its own examples and its own penalty."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.arguments import check_integer
from cs_heads.cluster import local_model
from cs_heads.experiment.cost import Cost, check_budget
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens.model import dtype_of
from cs_heads.progress import counting
from cs_heads.store.kept_work import KeptWork, State

CLIP = 4.0
"""Beyond this a gate's logit is not pushed any further by the penalty."""
MAX_NORM = 1.0
"""Norm at which the gradient of one fit is clipped, as the authors' public code does."""
FREE_RATES, SIGNED_RATES = (0.1, 0.01), (0.5, 0.1)
"""Learning rates at the first and the last step, linear between: without and with a penalty."""
MAX_GAIN = 5.0
"""Nats at which the contrastive objective of a pair of examples is clipped."""
MIN_STEPS = 20
_POINTS = 50

Gates = Float[Tensor, "fit layer head"]
Objective = Callable[[Gates, Int[np.ndarray, "fit row"]], tuple[Float[Tensor, " fit"], Gates]]
"""From gates and the examples of each fit to its loss, and the gradient of the loss in its gates."""


@dataclass(frozen=True)
class Plan:
    """A fit: seeds, steps of each phase, examples of a step, penalty, options, phases, and tasks run in a step."""

    n_seeds: int = 1
    steps: int = 500
    batch_size: int = 64
    strength: float = 0.1
    max_norm: float | None = MAX_NORM
    start_inside: bool = False
    phases: int = 3
    sides: int = 1

    def __post_init__(self) -> None:
        for name, least in (("n_seeds", 1), ("steps", MIN_STEPS), ("batch_size", 1)):
            check_integer(name, getattr(self, name), least)
        for name in ("strength", "max_norm"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def within(self, budget: int | None, sizes: Sequence[int]) -> tuple[Plan, tuple[str, ...], int]:
        """The plan with its steps cut to the budget of fits to tasks of so many examples each.

        Returns:
            The plan, a note where it was cut, and what all fits cost.
        """
        # A forward and a backward pass of every row; the intact runs come first.
        intact = sum(sizes)
        a_step = 2 * self.phases * self.sides * self.n_seeds * sum(self.on(n).batch_size for n in sizes)
        fits = f" of {len(sizes)} fits" if len(sizes) > 1 else ""
        least, each = intact + MIN_STEPS * a_step, f"each of {self.phases} phases{fits}: {MIN_STEPS * a_step:,}"
        limit = check_budget(budget, least, f"the intact model: {intact}; {MIN_STEPS} steps in {each}")
        steps = min(self.steps, (limit - intact) // a_step)
        note = f"the budget covers {steps} of {self.steps} steps in each phase: gates may not have settled"
        notes = (note,) if steps < self.steps else ()
        return replace(self, steps=steps), notes, intact + steps * a_step

    def on(self, n_examples: int) -> Plan:
        """The plan with batches no larger than the task."""
        return replace(self, batch_size=min(self.batch_size, n_examples))

    def cost(self, n_examples: int) -> Cost:
        """What the whole fit costs, the intact run of ``n_examples`` included."""
        rows = self.phases * self.sides * self.n_seeds * self.steps * self.batch_size
        return Cost(forwards=n_examples + rows, backwards=rows)

    def provenance(self, experiment: Experiment, seed: int) -> dict[str, Any]:
        """The experiment's, with this plan."""
        baseline = float(experiment.baseline().mean())
        return {**experiment.provenance(), "baseline": baseline, "gating": asdict(self), "seed": seed}


@dataclass(frozen=True, eq=False)
class Path:
    """The result of one phase, by fit: logits, losses and trajectory."""

    logits: Gates
    losses: Float[np.ndarray, "fit step"]
    trajectory: Float[np.ndarray, "fit point layer head"]
    at: Int[np.ndarray, " point"]

    @property
    def gates(self) -> Float[np.ndarray, "fit layer head"]:
        """The last gates."""
        return self.trajectory[:, -1]


class Descent:
    """Fits gates phase after phase; every seed draws its examples from its own generator.

    With ``kept`` each phase is resumed from its saved state, bit for bit as if it had not been interrupted.
    """

    def __init__(
        self, experiment: Experiment, objective: Objective, plan: Plan, seed: int, kept: KeptWork | None
    ) -> None:
        self.experiment, self.objective, self.plan = experiment, objective, plan
        self.seeds = [np.random.default_rng(seed + number) for number in range(plan.n_seeds)]
        self.at = np.unique(np.linspace(0, plan.steps, _POINTS + 1).round().astype(int))
        self.kept, self._phase = kept, 0

    def start(self) -> Gates:
        """The logits of gates uniform in (0, 1), one set a seed; float32, or float64 where the weights are.

        They are few, and an experiment takes gates and gives gradients in main memory: so they stay there, and a device
        is waited for by its batches alone.
        """
        shape = self.experiment.grid.shape
        gates = np.stack([rng.uniform(1e-6, 1 - 1e-6, size=shape) for rng in self.seeds])
        model = local_model(self.experiment.source)
        dtype = torch.promote_types(dtype_of(model), torch.float32)
        return torch.from_numpy(np.log(gates / (1 - gates))).to(dtype)

    @torch.enable_grad()  # The caller may have gradients off.
    def __call__(self, logits: Gates, rates: tuple[float, float], penalties: Sequence[float]) -> Path:
        """Descend from ``logits``, the seeds' fits under the first penalty first, then those under the next.

        The loss of a fit is its objective less its penalty times the mean over heads of the clipped
        logits. Fits under different penalties see the same examples at the same step. A gate beyond ±4 is moved by the
        loss alone, unless ``start_inside`` takes every start back to it.
        """
        steps, blocks = self.plan.steps, len(penalties)
        logits = (logits.clamp(-CLIP, CLIP) if self.plan.start_inside else logits.clone()).requires_grad_()
        penalty = torch.tensor(penalties).repeat_interleave(len(self.seeds)).to(logits)
        adam = torch.optim.Adam([logits])
        losses = np.empty((len(logits), steps))
        trajectory = [_gates(logits)]
        phase, self._phase = self._phase, self._phase + 1
        begun = 0
        if self.kept is not None and (kept := self.kept.load(phase)) is not None:
            begun, trajectory = self._restore(kept, logits, adam, losses), list(kept["trajectory"])
            done = 2 * self.plan.sides * begun * len(logits) * self.plan.batch_size
            with counting("gates", done, self.experiment.settings.progress, done):
                pass
        for step, rate in list(enumerate(np.linspace(*rates, steps)))[begun:]:
            orders = [rng.permutation(self.experiment.n_examples) for rng in self.seeds]
            drawn = np.stack(orders)[:, : self.plan.batch_size]
            gates = logits.sigmoid()
            loss, gradient = self.objective(gates.detach(), repeat(drawn, "fit row -> (block fit) row", block=blocks))
            pull = (penalty * logits.clamp(-CLIP, CLIP).mean(dim=(1, 2))).sum()
            adam.param_groups[0]["lr"] = float(rate)
            adam.zero_grad()
            ((gates * gradient).sum() - pull).backward()
            self._clip(logits)
            adam.step()
            losses[:, step] = loss.numpy()
            if step + 1 in self.at:
                trajectory.append(_gates(logits))
            if self.kept is not None and (self.kept.due or step + 1 == steps):
                self.kept.save(phase, self._state(step + 1, logits, adam, losses, trajectory))
        return Path(logits.detach(), losses, np.stack(trajectory, axis=1), self.at)

    def _clip(self, logits: Gates) -> None:
        """Scale the gradient of every fit down to the norm ``max_norm``, each by itself."""
        if self.plan.max_norm is not None and logits.grad is not None:
            norms = logits.grad.flatten(1).norm(dim=1)
            scale = (self.plan.max_norm / (norms + 1e-6)).clamp(max=1.0)  # as torch clips
            logits.grad *= rearrange(scale, "fit -> fit 1 1")

    def _state(
        self, step: int, logits: Gates, adam: torch.optim.Adam, losses: np.ndarray, trajectory: list[np.ndarray]
    ) -> State:
        """The state after ``step``, which is all that later steps depend on."""
        moments = adam.state[logits]
        return {
            "step": np.array(step),
            "logits": logits.detach().numpy(),
            "mean": moments["exp_avg"].numpy(),
            "square": moments["exp_avg_sq"].numpy(),
            "losses": losses[:, :step],
            "trajectory": np.stack(trajectory),
            "seeds": np.array([json.dumps(seed.bit_generator.state) for seed in self.seeds]),
        }

    def _restore(self, kept: State, logits: Gates, adam: torch.optim.Adam, losses: np.ndarray) -> int:
        """Restore a saved state; returns the number of its steps."""
        step = int(kept["step"])
        with torch.no_grad():
            logits.copy_(torch.from_numpy(kept["logits"]))
        adam.state[logits] = {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.from_numpy(kept["mean"]).to(logits),
            "exp_avg_sq": torch.from_numpy(kept["square"]).to(logits),
        }
        losses[:, :step] = kept["losses"]
        for seed, state in zip(self.seeds, kept["seeds"], strict=True):
            seed.bit_generator.state = json.loads(str(state))
        return step


def objective_of(experiment: Experiment, forgotten: Experiment | None = None) -> Objective:
    """The mean over a fit's examples of the target's negative log-probability, nats per token.

    With a task to be forgotten it is less that of its target, pair by pair: log P(forgotten) - log P(retained), from -5
    nats up; flat below.
    """

    def objective(gates: Gates, examples: Int[np.ndarray, "fit row"]) -> tuple[Float[Tensor, " fit"], Gates]:
        nll, gradient = _losses(experiment, gates, examples)
        if forgotten is not None:
            lost, lost_gradient = _losses(forgotten, gates, examples)
            nll = nll - lost
            gradient = (gradient - lost_gradient) * rearrange(nll > -MAX_GAIN, "fit row -> fit row 1 1")
            nll = nll.clamp(min=-MAX_GAIN)
        return nll.mean(dim=1), gradient.mean(dim=1)

    return objective


def _losses(
    experiment: Experiment, gates: Gates, examples: Int[np.ndarray, "fit row"]
) -> tuple[Float[Tensor, "fit row"], Float[Tensor, "fit row layer head"]]:
    """Loss and gradient of each example of each fit."""
    n = examples.shape[1]
    rows = repeat(gates, "fit layer head -> (fit row) layer head", row=n).numpy()
    nll, gradient = (torch.from_numpy(each).to(gates) for each in experiment.gradients(rows, examples.ravel()))
    return rearrange(nll, "(fit row) -> fit row", row=n), rearrange(gradient, "(fit row) l h -> fit row l h", row=n)


def _gates(logits: Gates) -> Float[np.ndarray, "fit layer head"]:
    return logits.detach().sigmoid().double().numpy()
