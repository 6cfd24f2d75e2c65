"""How often heads and a verdict come again where the search and its proof are repeated with other seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cs_heads.ranking import HeadRanking
from cs_heads.record import Record
from cs_heads.tasks import Task
from cs_heads.units import Unit


@dataclass(frozen=True)
class Stability(Record):
    """What was proved in each repeat of a search.

    Attributes:
        heads: The heads proved, by repeat.
        verdicts: The verdict, with what it holds but for, by repeat.
        spent: Example-evaluations.
    """

    heads: tuple[tuple[Unit, ...], ...]
    verdicts: tuple[str, ...]
    spent: int

    @property
    def frequency(self) -> dict[Unit, float]:
        """The share of the repeats that prove a head, the most frequent first."""
        counted = Counter(head for heads in self.heads for head in sorted(heads))
        return {head: times / len(self.heads) for head, times in counted.most_common()}

    @property
    def told(self) -> str:
        """The repeats in words."""
        verdicts = ", ".join(f"{times} {verdict}" for verdict, times in Counter(self.verdicts).most_common())
        heads = ", ".join(f"{head} in {share * len(self.heads):.0f}" for head, share in self.frequency.items())
        return f"searched and proved again with other seeds: {verdicts}; proved there: {heads}"


def search_of(found: Any, controls: Sequence[Task] | None) -> dict[str, Any]:
    """The arguments of ``find_heads`` that a ranking was made with, but for model, task and settings.

    Args:
        found: The ranking.
        controls: The tasks among which those that were given to the search are.

    Raises:
        ValueError: It is none that ``find_heads`` made, or had an option that a ranking does not keep, or other
            controls.
    """
    made = found.search if isinstance(found, HeadRanking) else None
    if made is None:
        raise ValueError("repeats must be 0 for heads that find_heads did not find: there is no search to repeat")
    if lost := [name for name, value in made.options.items() if value is None]:
        raise ValueError(f"repeats must be 0 for a search with {lost[0]}, which the ranking does not keep")
    used: Any = made.controls_from
    if used == "given":
        used = [task for task in controls or () if task.name in made.controls]
        if lost := [name for name in made.controls if name not in {task.name for task in used}]:
            raise ValueError(f"repeats must be 0 where controls lack one of the search: {', '.join(lost)}")
    given = {"method": found.method, "k": found.k, "controls": used, "budget": made.budget, "seed": made.seed}
    return {**given, **made.options}
