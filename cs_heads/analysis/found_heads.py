"""The heads that rankings and lists stand for, and whether they are of the model that they are ablated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from cs_heads.arguments import check_integer
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.lens import check_weights
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, HeadLike, Unit, as_heads

Found = HeadRanking | Sequence[HeadLike]
"""Heads to ablate: a list of them, or a ranking whose top heads are meant."""


def heads_of(
    grid: Grid,
    found: HeadRanking | Iterable[HeadLike],
    k: int | None = None,
    name: str = "heads",
    model: Mapping[str, Any] | None = None,
    *,
    beside_off: bool = False,
) -> tuple[Unit, ...]:
    """The heads that a ranking or a list stands for.

    Args:
        grid: The grid of the model.
        found: A ranking, or a list of heads.
        k: Heads taken of a ranking (None: as many as it was searched for).
        name: Of the argument, for errors.
        model: What the heads are ablated on: the model's part of a provenance (None: not known).
        beside_off: Whether a ranking that was found with other heads off may be given: what it says is of another
            model.

    Raises:
        ValueError: No head, one named twice or outside the grid, or a ranking of another grid or other weights, or one
            that was found with other heads off.
    """
    if k is not None:
        check_integer("k", k, 1, grid.size, "the heads of the grid")
    if isinstance(found, HeadRanking):
        if not beside_off:
            check_none_off(name, found)
        if found.grid != grid:
            other = f": give units={found.grid.kind!r}" if found.grid.kind != grid.kind else ""
            raise ValueError(f"{name} must be ranked on the grid of the model, {grid}, got {found.grid}{other}")
        check_weights(f"{name} and the model", found.provenance.get("model"), model)
        return tuple(found.top(k))
    if isinstance(found, str | Unit) or not isinstance(found, Iterable):
        raise ValueError(f"{name} must be a ranking or a list of heads, got {type(found).__name__}")
    heads = tuple(grid.resolve(head) for head in as_heads(name, found))
    if not heads or len({*heads}) < len(heads):
        raise ValueError(f"{name} must be one head or more, none twice; got {', '.join(map(str, heads)) or 'none'}")
    return heads


def check_none_off(name: str, found: HeadRanking) -> None:
    """Raise ``ValueError`` for a ranking that was found with other heads off: what it says is of another model."""
    if found.off:
        raise ValueError(f"{name} must be found with no others off, got a ranking with {found.off[0]} off throughout")


def sets_of(experiment: Any, found: Mapping[str, Found], k: int | None = None) -> dict[str, tuple[Unit, ...]]:
    """The heads of each set by its name, on the grid and the model of an experiment."""
    model = model_of(experiment)
    return {name: heads_of(experiment.grid, each, k, model=model) for name, each in found.items()}


def check_states(name: str, found: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where two results by name are of two states of one model, which is a mistake."""
    for names in combinations(found, 2):
        origins = [found[each].provenance.get("model", {}) for each in names]
        if len({(origin.get("name"), origin.get("revision")) for origin in origins}) == 1:
            check_weights(" and ".join(f"{name}[{each!r}]" for each in names), *origins)


def model_of(experiment: ExperimentLike) -> Mapping[str, Any] | None:
    """The model's part of an experiment's provenance; None where it says none."""
    return experiment.provenance().get("model")


def cast_note(heads: Any, experiment: ExperimentLike) -> tuple[str, ...]:
    """Whether a ranking is of weights of another dtype or class, which cannot be told from others, as a note."""
    model = model_of(experiment) or {}
    told = heads.provenance.get("model", {}) if isinstance(heads, HeadRanking) else {}
    kinds = [" ".join(str(each[name]) for name in ("class", "dtype")) for each in (told, model) if "weights" in each]
    if len({*kinds}) < 2:
        return ()
    return (f"found on a {kinds[0]}, proved on a {kinds[1]}: that their weights are the same could not be checked",)
