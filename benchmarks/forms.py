"""Skills that share a form: does a search tell what a skill needs from what all skills of its form need?

    python benchmarks/forms.py --seeds 60

Each world is 270 heads (30 × 9) and nineteen tasks. The task has eight heads of its own; four heads serve it, four
controls and three further tasks of its form, and four others serve every task. Eleven controls are of other forms.
Gradients are those of the margins' sigmoid, and wrong by a
factor of each head. The search is the default one, five heads for 4,000 example-evaluations, beside controls that are
said to be in the form of the task (``Task.matched``), and beside the same ones when nothing is said.

A *loss* is the share of the score that is lost: on unseen examples of the task, on the three further tasks, which the
search does not see, and on the examples of the controls of other forms.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit
from tqdm import tqdm

from cs_heads.experiment.protocol import GradientExperiment
from cs_heads.methods import METHODS
from cs_heads.simulate import PlantedExperiment
from cs_heads.tasks import Task
from cs_heads.tasks.task import with_fields
from cs_heads.units import Grid

GRID, BUDGET, K = Grid(30, 9), 4000, 5
# What one head takes of the score: of a task's own, the form's, those of all tasks, and a control's own.
OWN, FORM = (0.35, 0.18, 0.14, 0.1, 0.08, 0.07, 0.07, 0.06), (0.42, 0.3, 0.15, 0.1)
UNIVERSAL, OF_CONTROL = (0.5, 0.35, 0.25, 0.15), (0.4, 0.2, 0.15, 0.1, 0.1)
# The task needs its form more than others do. Gradients are wrong by a factor exp(normal · .5).
MORE_OF_FORM, MISFIT, TEMPERATURE, MARGIN = 1.6, 0.5, 0.35, 1.28
ROWS = {True: "told which controls are in the form of the task", False: "not told"}
COLUMNS = "own loss", "others of the form", "other controls", "own heads", "heads of the form", "named shared"


class Skill(PlantedExperiment, GradientExperiment):
    """A planted task with gradients, whose probabilities are the sigmoid of its margins."""

    has_gradients = True

    def __init__(self, *args: Any, misfit: Float[np.ndarray, " flat"], matched: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.misfit = misfit
        self.task = with_fields(Task.from_records([{"prompt": "a", "target": " b"}]), matched=matched)

    def respond(self, masks: Any, examples: Any = None, response: str = "probability") -> Any:
        """As the planted experiment's, but for the probability."""
        of_margin = response == "probability"
        answer = super().respond(masks, examples, "margin" if of_margin else response)
        return expit(answer / TEMPERATURE) if of_margin else answer

    def probability_gradients(self, gates: Any, examples: Any, **_: Any) -> Any:
        """Of each row's mean probability in its gates, each wrong by the factor of its head."""
        shut = 1 - gates.reshape(len(gates), -1).astype(float)
        damage = self.damage[:, examples]
        margins = self.margins[examples] - np.einsum("rf,frk->rk", shut, damage)
        p = expit(margins / TEMPERATURE)
        slopes = (p * (1 - p) / TEMPERATURE)[None] * damage
        return (slopes.mean(axis=2).T * self.misfit).reshape(gates.shape)

    def provenance(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class World:
    """The tasks of one seed."""

    def __init__(self, seed: int, *, told: bool) -> None:
        self.seed, self.rng = seed, np.random.default_rng([7, seed])
        order = self.rng.permutation(GRID.size)
        self.own, self.form, self.universal, self.pool = np.split(order, np.cumsum([len(OWN), len(FORM), 4]))
        self.misfit = np.exp(MISFIT * self.rng.standard_normal(GRID.size))
        self.uneven = 0.02 * self.rng.standard_normal((GRID.size, 1))
        own = np.array(OWN) * self.rng.uniform(0.7, 1.2, len(OWN))
        form = self._of_form(MORE_OF_FORM)
        self.task = self._skill("task", self.own, own, form, 100)
        self.unseen = self._skill("unseen", self.own, own, form, 300)
        self.of_form = [self._other(f"form {place}", self._of_form(), told) for place in range(4)]
        self.rest = [self._other(f"rest {place}", np.zeros(len(FORM)), matched=False) for place in range(11)]
        self.further = [self._other(f"further {place}", self._of_form(), matched=False) for place in range(3)]

    def _of_form(self, more: float = 1.0) -> Float[np.ndarray, " head"]:
        return np.array(FORM) * more * np.exp(0.4 * self.rng.standard_normal(len(FORM)))

    def _other(self, name: str, form: Float[np.ndarray, " head"], matched: bool) -> Skill:
        heads, self.pool = np.split(self.pool, [len(OF_CONTROL)])
        drops = np.array(OF_CONTROL) * self.rng.uniform(0.6, 1.3, len(OF_CONTROL))
        return self._skill(name, heads, drops, form, 100, matched=matched)

    def _skill(
        self,
        name: str,
        heads: Int[np.ndarray, " head"],
        drops: Float[np.ndarray, " head"],
        form: Float[np.ndarray, " head"],
        n: int,
        *,
        matched: bool = False,
    ) -> Skill:
        damage = self.uneven + 0.01 * self.rng.standard_normal((GRID.size, n))
        each = np.concatenate([heads, self.form, self.universal]), np.concatenate([drops, form, UNIVERSAL])
        for head, drop in zip(*each, strict=True):
            if drop > 0:
                damage[head] = _scale(min(drop, 0.85)) * self.rng.standard_exponential(n)
        margins = MARGIN + self.rng.standard_normal(n)
        return Skill(GRID, margins, damage, seed=self.seed, name=name, misfit=self.misfit, matched=matched)


@cache
def _ratios() -> Float[np.ndarray, " draw"]:
    rng = np.random.default_rng(0)
    margins, damage = MARGIN + rng.standard_normal(20_000), rng.standard_exponential(20_000)
    return margins[margins > 0] / damage[margins > 0]


def _scale(drop: float) -> float:
    """The mean exponential damage that turns such a share of the right answers wrong, by a draw of many margins."""
    # An answer turns wrong where its margin is below the scale times its damage.
    return float(np.quantile(_ratios(), drop))


def measure(seed: int, *, told: bool) -> list[float]:
    """The losses and counts of ``COLUMNS`` for one world."""
    world = World(seed, told=told)
    found = METHODS["annealed"].run(world.task, k=K, controls=[*world.of_form, *world.rest], budget=BUDGET, seed=seed)
    heads = found.top(K)
    masks = np.stack([GRID.mask([]), GRID.mask(heads)])

    def lost(*skills: Skill) -> float:
        scores = [skill(masks).mean(axis=1) for skill in skills]
        return float(np.mean([1 - off / intact for intact, off in scores]))

    def of(units: Any, flat: Int[np.ndarray, " head"]) -> float:
        return float(len({*units} & {GRID.unit(int(head)) for head in flat}))

    losses = lost(world.unseen), lost(*world.further), lost(*world.rest)
    return [*losses, of(heads, world.own), of(heads, world.form), of(found.shared, world.form)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60, help="worlds")
    options = parser.parse_args()
    print("| the search is | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
    for told, name in ROWS.items():
        means = np.mean([measure(seed, told=told) for seed in tqdm(range(options.seeds))], axis=0)
        print(f"| {name} | " + " | ".join(f"{mean + 0.0:.2f}" for mean in means.round(2)) + " |", flush=True)


if __name__ == "__main__":
    main()
