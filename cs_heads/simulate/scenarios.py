"""Planted worlds by name: how many heads matter, how much, and what stands in the way of finding them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cs_heads.arguments import check_integer

Pair = tuple[int, int, float]
"""Two planted heads, by place, and what they do to each other: see ``Scenario.pairs``."""


@dataclass(frozen=True)
class Scenario:
    """What a planted world is made of; all drops are score lost, from 0 to 1, on the whole task.

    Attributes:
        baseline: The score of the intact model.
        chance: That of guessing, which is what an example scores whose margin is gone.
        drops: The single drops of the planted heads.
        weak: Those of further heads too small to be sought; a negative one interferes.
        universal: Number of heads that break the task and every other task.
        groups: Number of universal groups: three neighbors of one layer, as heads that share a key/value head are. Each
            of them alone is harmless; any two cost the task and every other task ``two_of_three`` of the score above
            chance (in SmolLM2-135M L1H3 to L1H5: .3 to .8), and all three break them. None is ``universal`` or planted.
            A random mask of density .03 has two or more of a group off once in 380 times, one of .12 once in 25; once
            fewer heads are left to draw from, more often.
        two_of_three: Share of the score above chance that any two heads of a group cost, 0 to .99.
        pairs: ``(a, b, c)``: with both planted heads off, ``c`` times the smaller of their two damages comes on top.
            ``c > 0`` is redundancy (each stands in for the other in part), ``c = -1`` a serial pair (the second breaks
            nothing more).
        hidden: The drops of pairs of heads that are fully redundant: either alone does nothing of its own. Their heads
            count as planted.
        flips: Number of heads of the whole grid that an example needs for itself alone, on average.
        diffuse: The damage of all heads together, in standard deviations of the intact margins; a mask of density d
            does about ``d * diffuse``.
        spread: How much that differs from example to example: ``sqrt(d)`` times it is the standard deviation over masks
            of density d.
        uneven: How much it differs from head to head, likewise; the same heads for the task and its controls. Heads of
            a grid below 1,024 are as uneven as those of 1,024, no more.
        noise: Standard deviation of a margin's part that is drawn anew for each mask and example.

    Raises:
        ValueError: A baseline, a drop or a share out of range, a negative number, or pairs of heads that are not
            planted.
    """

    baseline: float = 0.9
    chance: float = 0.0
    drops: tuple[float, ...] = (0.27, 0.14, 0.10, 0.07, 0.07)
    weak: tuple[float, ...] = (0.03, 0.03, 0.02, 0.02, -0.02, -0.03)
    universal: int = 3
    groups: int = 0
    two_of_three: float = 0.6
    pairs: tuple[Pair, ...] = ((2, 4, 0.5), (0, 1, -1.0))
    hidden: tuple[float, ...] = ()
    flips: float = 3.0
    diffuse: float = 9.0
    spread: float = 1.0
    uneven: float = 0.7
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.chance < self.baseline < 1:
            raise ValueError(
                f"baseline must lie between chance and 1, got baseline={self.baseline}, chance={self.chance}"
            )
        for drop in (*self.drops, *self.weak, *self.hidden):
            least, most = 0.99 * (self.baseline - 1), 0.99 * (self.baseline - self.chance)
            if not least < drop < most:
                raise ValueError(
                    f"drops must lie between {least:.3g} and {most:.3g}, .99 of what can be lost or gained; got {drop}"
                )
        check_integer("groups", self.groups, 0)
        if not 0 <= self.two_of_three <= 0.99:
            raise ValueError(f"two_of_three must be in 0..0.99, a share of the score; got {self.two_of_three}")
        for name in ("universal", "flips", "diffuse", "spread", "uneven", "noise"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        for a, b, _ in self.pairs:
            if a == b or not {a, b} <= set(range(len(self.drops))):
                raise ValueError(f"pairs must name two of {len(self.drops)} planted heads by place, got {a} and {b}")


_MAIN = Scenario()
_NONE = replace(_MAIN, drops=(), weak=(), pairs=())

SCENARIOS: dict[str, Scenario] = {
    "main": _MAIN,
    "ceiling": replace(_MAIN, baseline=0.99, weak=(0.03, 0.03, 0.02, 0.02)),
    "floor": replace(_MAIN, baseline=0.12, drops=(0.06, 0.04, 0.03, 0.02, 0.02), weak=()),
    "low_baseline": replace(_MAIN, baseline=0.5, drops=(0.2, 0.12, 0.09, 0.07, 0.07)),
    "chance25": replace(_MAIN, baseline=0.8, chance=0.25, drops=(0.24, 0.13, 0.09, 0.07, 0.07)),
    "chance50": replace(_MAIN, baseline=0.85, chance=0.5, drops=(0.2, 0.11, 0.08, 0.06, 0.06)),
    "noisy": replace(_MAIN, flips=8.0, spread=2.5, noise=0.5),
    "fragile": replace(_MAIN, flips=20.0, diffuse=20.0),
    "even": replace(_MAIN, drops=(0.12, 0.12, 0.12, 0.12, 0.12)),
    "one_head": replace(_MAIN, drops=(0.4,), pairs=()),
    "redundant": replace(_MAIN, pairs=((0, 1, 1.0), (2, 4, 1.0), (1, 3, 0.5))),
    "hidden_pair": replace(_MAIN, drops=(0.27, 0.14, 0.10), pairs=(), hidden=(0.2,)),
    "hidden_pairs": replace(_MAIN, drops=(0.27, 0.14, 0.10), pairs=(), hidden=(0.4, 0.3)),
    "universal_groups": replace(_MAIN, groups=3),
    # Three of a few hundred heads, for each of a hundred examples, would be drops as large as those planted.
    "universal_groups_small": replace(_MAIN, groups=3, flips=1.0),
    "serial": replace(_MAIN, pairs=((0, 1, -1.0), (2, 3, -1.0))),
    "many_universal": replace(_MAIN, universal=8),
    "no_universal": replace(_MAIN, universal=0),
    "no_structure": _NONE,
    "no_structure_fragile": replace(_NONE, flips=20.0, diffuse=20.0),
    "no_structure_chance50": replace(_NONE, baseline=0.85, chance=0.5),
}
"""Scenarios by name; ``main`` is that of the benchmarks."""
