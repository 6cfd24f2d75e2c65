"""Experiments whose truth is known: planted heads, universal heads, and what hides them.

An example of a planted world has a margin, and is right while it is above zero. Every head that is off
takes something from it:

    margin(mask, e) = margin(e) - sum of damage[head, e] over the heads off - damage of groups + noise(mask, e)

The damage of a planted head differs between examples (exponential) and is scaled so that the head alone
costs its given drop, on average over examples; any other head does a little damage, and is what a few examples
need for themselves. So the same mask on the same example gives the same score, always, and the damage of
a mask grows with its density.

>>> made = planted_world("main", Grid(16, 16), seed=0)
>>> len(made.planted), len(made.universal), made.task.n_examples
(5, 3, 100)
>>> off = np.stack([made.grid.mask([]), made.grid.mask(made.planted)])
>>> bool(np.diff(made.unseen(off).mean(axis=1))[0] < -0.3)
True
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq
from scipy.stats import norm

from cs_heads.arguments import MAX_SEED, check_integer, check_seed
from cs_heads.simulate.planted import PlantedExperiment
from cs_heads.simulate.scenarios import SCENARIOS, Scenario
from cs_heads.units import Grid, Unit, check_grid

# Damage that no margin outlives, standard deviations of the intact margins being 1.
_FATAL = 8.0
# Heads differ in a grid smaller than this as they do in one of this size: scaled further, the unevenness of a
# few hundred heads would be structure.
_EVEN = 1024
# Heads of a universal group: neighbors in one layer.
_TRIO = 3
# What is drawn from a world's seed, each part with a stream of its own; controls after the first go on from the last.
_ROLES, _TASK, _UNSEEN, _CONTROL, _UNEVEN, _GROUPS, _MORE_CONTROLS = range(7)


@dataclass(frozen=True, eq=False)
class World:
    """A planted world: which heads matter, and experiments on three sets of examples.

    ``task`` is to find heads with, ``controls`` are other tasks that share nothing with it, nor with each other, but
    the universal heads and groups and how much damage any head does on average (``uneven``), ``unseen`` further
    examples of the task, for the proof.

    Attributes:
        scenario: What the world is made of.
        grid: Layers × heads.
        planted: Heads in the order of the scenario's drops, then those of its hidden pairs.
        universal: Heads that every task needs.
        groups: Universal groups, each of three neighbors.
        n_examples: Examples of the task and of each control.
        n_unseen: Unseen examples.
        seed: Drew which heads matter, and draws all examples.
        own: Flat indices of all single heads with a part in the task, the universal ones first.
        others: The same of each control.
    """

    scenario: Scenario
    grid: Grid
    planted: tuple[Unit, ...]
    universal: tuple[Unit, ...]
    groups: tuple[tuple[Unit, ...], ...]
    n_examples: int
    n_unseen: int
    seed: int
    own: Int[np.ndarray, " role"] = field(repr=False)
    others: tuple[Int[np.ndarray, " role"], ...] = field(repr=False)

    @cached_property
    def task(self) -> PlantedExperiment:
        """Examples to find heads with."""
        return self._experiment(self.own, self.n_examples, _TASK, "task")

    @cached_property
    def unseen(self) -> PlantedExperiment:
        """Fresh examples of the same task."""
        return self._experiment(self.own, self.n_unseen, _UNSEEN, "task")

    @cached_property
    def controls(self) -> tuple[PlantedExperiment, ...]:
        """Other tasks: each has planted heads of its own; the same universal ones, and the same uneven damage."""
        return tuple(
            self._experiment(roles, self.n_examples, *_control(number)) for number, roles in enumerate(self.others)
        )

    @property
    def control(self) -> PlantedExperiment:
        """The first of the controls."""
        return self.controls[0]

    def _experiment(self, roles: Int[np.ndarray, " role"], n: int, part: int, name: str) -> PlantedExperiment:
        s, size = self.scenario, self.grid.size
        rng = np.random.default_rng([self.seed, part])
        margins = norm.ppf(_right(s)) * _deviation(s) + rng.standard_normal(n)
        damage = rng.standard_normal((size, n), dtype=np.float32)
        damage *= s.spread / np.sqrt(size)
        heads = np.random.default_rng([self.seed, _UNEVEN]).standard_normal((size, 1), dtype=np.float32)
        damage += s.diffuse / size + s.uneven / np.sqrt(max(size, _EVEN)) * heads
        needed = rng.poisson(s.flips * n)
        damage[rng.integers(size, size=needed), rng.integers(n, size=needed)] = _FATAL
        universal, planted, hidden, weak = np.split(roles, np.cumsum([s.universal, len(s.drops), 2 * len(s.hidden)]))
        damage[universal] = _FATAL / 2 * (1 + rng.random((len(universal), n)))
        for head, drop in zip((*planted, *weak), (*s.drops, *s.weak), strict=True):
            damage[head] = _scale(s, drop) * rng.standard_exponential(n)
        groups: list[tuple[tuple[int, ...], Float[np.ndarray, " example"]]] = [
            ((int(planted[a]), int(planted[b])), weight * np.minimum(damage[planted[a]], damage[planted[b]]))
            for a, b, weight in s.pairs
        ]
        for (a, b), drop in zip(hidden.reshape(-1, 2), s.hidden, strict=True):
            groups.append(((int(a), int(b)), _scale(s, drop) * rng.standard_exponential(n)))
        two = _scale(s, s.two_of_three * (s.baseline - s.chance)) if s.groups else 0.0
        for trio in self.groups:
            flat = tuple(self.grid.index(head) for head in trio)
            groups += [(both, two * rng.standard_exponential(n)) for both in combinations(flat, 2)]
            groups.append((flat, _FATAL / 2 * (1 + rng.random(n))))
        return PlantedExperiment(
            self.grid,
            margins,
            damage,
            groups=groups,
            chance=s.chance,
            noise=s.noise,
            seed=(10 * self.seed + part) % (MAX_SEED + 1),
            name=name,
        )


def planted_world(
    scenario: str | Scenario = "main",
    grid: Grid | None = None,
    *,
    n_examples: int = 100,
    n_unseen: int = 100,
    n_controls: int = 1,
    seed: int = 0,
) -> World:
    """A planted world of a scenario (see ``SCENARIOS``), on a grid of 32 × 32 heads unless another is given.

    More controls change nothing of the task nor of the controls before them.

    Args:
        scenario: Its name, or one of your own.
        grid: Layers × heads (None: 32 × 32).
        n_examples: Examples to find heads with, of the task and of each control.
        n_unseen: Examples to judge with.
        n_controls: Number of controls.
        seed: Draws which heads are planted, and all examples.

    Returns:
        The world: ``task`` and ``controls`` to find heads with, ``unseen`` to judge with, and the truth in ``planted``,
        ``universal`` and ``groups``.

    Raises:
        ValueError: An unknown scenario, a number below 1, or a grid too small for the heads of the task and of all
            controls.
    """
    if isinstance(scenario, str):
        scenario = SCENARIOS.get(scenario, scenario)
    if not isinstance(scenario, Scenario):
        raise ValueError(f"scenario must be a Scenario or one of {', '.join(SCENARIOS)}, got {scenario!r:.80}")
    for name, value in (("n_examples", n_examples), ("n_unseen", n_unseen), ("n_controls", n_controls)):
        check_integer(name, value, 1)
    check_seed(seed)
    grid = Grid(32, 32) if grid is None else check_grid(grid)
    n = scenario.universal
    n_sought = len(scenario.drops) + 2 * len(scenario.hidden)
    n_own = n_sought + len(scenario.weak)
    n_single = n + (1 + n_controls) * n_own
    needed = n_single + _TRIO * scenario.groups
    if needed > grid.size:
        raise ValueError(f"grid must have {needed} heads or more for this scenario, got {grid.size}")
    trios = _trios(grid, scenario.groups, seed)
    order = np.random.default_rng([seed, _ROLES]).permutation(grid.size)
    roles = order[~np.isin(order, trios)][:n_single]
    shared, own, *others = np.split(roles, n + n_own * np.arange(1 + n_controls))
    return World(
        scenario=scenario,
        grid=grid,
        planted=tuple(grid.unit(int(index)) for index in own[:n_sought]),
        universal=tuple(grid.unit(int(index)) for index in shared),
        groups=tuple(tuple(grid.unit(int(index)) for index in trio) for trio in trios),
        n_examples=n_examples,
        n_unseen=n_unseen,
        seed=seed,
        own=np.concatenate([shared, own]),
        others=tuple(np.concatenate([shared, other]) for other in others),
    )


def _trios(grid: Grid, n: int, seed: int) -> Int[np.ndarray, "group 3"]:
    """Flat indices of so many groups of three neighbors, none of which share a head; too many raise ``ValueError``."""
    starts = np.add.outer(grid.n_units * np.arange(grid.n_layers), _TRIO * np.arange(grid.n_units // _TRIO)).ravel()
    if n > len(starts):
        raise ValueError(
            f"grid must hold {n} groups of {_TRIO} neighbors in one layer for this scenario, "
            f"got {grid.n_layers} × {grid.n_units} heads, which hold {len(starts)}"
        )
    drawn = np.random.default_rng([seed, _GROUPS]).permutation(starts)[:n]
    return drawn[:, None] + np.arange(_TRIO)


def _control(number: int) -> tuple[int, str]:
    """The stream that a control is drawn from, and its name."""
    return (_MORE_CONTROLS + number - 1, f"control {number + 1}") if number else (_CONTROL, "control")


def _right(scenario: Scenario) -> float:
    """Share of examples that the intact model knows, rather than guesses."""
    return (scenario.baseline - scenario.chance) / (1 - scenario.chance)


@cache
def _scale(scenario: Scenario, drop: float) -> float:
    """Mean damage of a head whose single drop is given; below zero where it interferes."""
    right = _right(scenario)
    wanted = right - drop / (1 - scenario.chance)
    damages = -np.log1p(-(np.arange(2000) + 0.5) / 2000)  # quantiles of the exponential
    known = norm.ppf(right)
    return _deviation(scenario) * brentq(lambda scale: norm.cdf(known - scale * damages).mean() - wanted, -1e4, 1e4)


def _deviation(scenario: Scenario) -> float:
    """Standard deviation of the margins of the intact model, noise included."""
    return float(np.hypot(1, scenario.noise))
