"""The result of every method: heads, how important each is, and how that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from jaxtyping import Float

from cs_heads.arguments import check_integer, check_mapping, check_type, check_within, fits, in_line
from cs_heads.drawable import Drawable
from cs_heads.record import MOST, Record, Saved, json_ready
from cs_heads.units import Grid, HeadLike, Unit, as_heads

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_K = 5
"""Heads that are found by default, on a grid of ten heads or more."""

# Fields that are arrays, and fields that list heads.
_ARRAYS = ("importance", "interval", "frequency", "z", "control_importance")
_HEADS = ("claims", "shared", "chosen", "off", "interfering")

# Heads that a shell or a notebook shows, at most, beside those that are claimed.
_SHOWN = 10

TERMS = {
    "rank": "heads chosen together first, then the clearest",
    "interval": "95 % interval of the importance; of a gate, the range over the seeds",
    "z": "importance in standard errors: how clear it is, not how large",
    "claimed": "shown to matter beyond chance, by the test of the method",
    "frequency": "share of the resamples, or of the seeds, of the search that select the head",
    "controls": "share of their score above chance that the controls lose with the head off",
    "shared": "the controls need the head, too",
    "interfering": "the task gains without the head",
}
"""What is told of a head beside its importance, in words; a table has an interval as ``low`` and ``high``."""


def normal_interval(each: Float[np.ndarray, "sample *heads"]) -> Float[np.ndarray, "*heads 2"]:
    """The 95 % normal interval of a mean over two samples or more, the first axis."""
    mean, error = each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(len(each))
    return np.stack([mean - 1.96 * error, mean + 1.96 * error], axis=-1)


@dataclass(frozen=True)
class SearchCall(Record):
    """The arguments of the ``find_heads`` that made a ranking, which a repeat of it needs, beside ``k``.

    Attributes:
        seed: The seed.
        budget: Example-evaluations at most; None by default.
        controls: Names of the controls used.
        controls_from: Whether they were ``"given"`` or chosen by the library (``"auto"``); None where there were none.
        options: Options of the method that were given; None for one that is no plain value, such as a task.
    """

    seed: int
    budget: int | None = None
    controls: tuple[str, ...] = ()
    controls_from: Literal["auto", "given"] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _check_effect(name: str, told: Any) -> None:
    """Raise ``ValueError`` where what is told of a shared head (``HeadRanking.shared_effects``) lacks a number."""
    told = json_ready(check_mapping(name, told, "what it takes from both sides"))
    alone = ("task", "controls") if {"task", "controls"} & told.keys() else ()
    if "among_others" in told:
        others = check_mapping(f"{name}['among_others']", told["among_others"], "a loss of both sides")
        for side in ("task", "controls"):
            check_type(f"{name}['among_others'][{side!r}]", others.get(side), float)
    for side in alone:
        check_type(f"{name}[{side!r}]", told.get(side), float)
        bounds = told.get(f"{side}_interval")
        if not fits(bounds, Sequence[float]) or len(bounds) != 2:
            raise ValueError(f"{name}['{side}_interval'] must be two numbers, got {in_line(bounds)}")


@dataclass(frozen=True, eq=False)
class HeadRanking(Saved, Drawable, picture="heads"):
    """Importance of every head, in ``unit``: positive = the task does worse without the head.

    As a sequence it is the heads found: ``len``, iteration and indices are of ``heads``. Rankings of which the same is
    saved are equal.

    Chosen heads come first, shared ones last but for those that were ``off`` throughout, the others by ``z``, so that
    luck does not outrank evidence, else by importance. What a method does not give is None, or empty.

    Attributes:
        method: Name of the method.
        importance: One number a head.
        spent: Example-evaluations.
        interval: A lower and an upper bound on each importance; NaN for a head that has none.
        frequency: Share of the resamples, or of the seeds, that select the head.
        z: How clear the importance is, in standard errors.
        claims: Heads shown to matter beyond chance.
        shared: Heads that the controls need, too (see the method for how much).
        chosen: Heads that proved best together, in order.
        control_importance: What each head takes from the controls, as a share of their score above chance.
        off: Heads that were off throughout.
        interfering: Heads whose removal helps the task, beyond chance among all that were tried, the most harmful
            first; on unseen examples ``specificity`` says by how much.
        provenance: How the ranking was made, JSON-ready.
        notes: What its reader should know before trusting it.
        unit: Of the importance. Score lost is from 0 to 1, as scores are; methods that measure no score name another.
        grid: Layers × heads of the model (None: that of the importance).
        examples: Hashes of the questions that the search has seen, its controls' among them; what proves the heads
            leaves these out. Empty where that is not known, as on a planted truth.
        k: How many heads were searched for (None: 5, or half of a small grid), at most those neither shared nor off.
        shared_effects: Of each shared head, under ``head``, what the method says that it takes from the task and from
            the controls: ``task`` and ``controls`` are losses with the head off alone, with ``task_interval`` and
            ``controls_interval``, where that was measured; ``among_others`` has both while others are off, too, and
            ``most`` names the control that loses most.
        search: The ``find_heads`` that made it; None for other rankings.
        backwards: Of ``spent``, backward passes.

    Raises:
        ValueError: Arrays of another shape than the grid or with impossible numbers, heads outside the grid, listed
            twice, or both chosen and shared or off, a negative ``spent``, or a ``k`` beyond the grid.

    >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
    >>> ranking.top(2), ranking[0], len(ranking)
    ([Head(0, 1), Head(1, 0)], Head(0, 1), 2)
    """

    _format, _version = "ranking", 6

    method: str
    importance: Float[np.ndarray, "layer head"]
    spent: int
    interval: Float[np.ndarray, "layer head bound"] | None = None
    frequency: Float[np.ndarray, "layer head"] | None = None
    z: Float[np.ndarray, "layer head"] | None = None
    claims: tuple[Unit, ...] = ()
    shared: tuple[Unit, ...] = ()
    chosen: tuple[Unit, ...] = ()
    control_importance: Float[np.ndarray, "layer head"] | None = None
    off: tuple[Unit, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unit: str = "score lost"
    interfering: tuple[Unit, ...] = ()
    grid: Grid = None  # type: ignore[assignment]  # by default that of the importance
    examples: tuple[str, ...] = field(default=(), repr=False)
    k: int = None  # type: ignore[assignment]  # by default what fits the grid
    shared_effects: tuple[dict[str, Any], ...] = ()
    search: SearchCall | None = None
    backwards: int = 0

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            if getattr(self, name) is not None or name == "importance":
                self._check_array(name)
        if self.grid is None:
            object.__setattr__(self, "grid", Grid(*self.importance.shape))
        if self.importance.shape != self.grid.shape:
            raise ValueError(f"importance must be of the grid {self.grid.shape}, got shape {self.importance.shape}")
        for name in _HEADS:
            heads = as_heads(name, getattr(self, name))
            object.__setattr__(self, name, heads)
            outside = [str(head) for head in heads if head not in self.grid]
            if outside:
                raise ValueError(f"{name} must be heads of the grid {self.importance.shape}, got {', '.join(outside)}")
            # The order has a place for each head.
            elsewhere = {*self.shared, *self.off} if name == "chosen" else set[Unit]()
            twice = [str(head) for head, n in Counter(heads).items() if n > 1 or head in elsewhere]
            if twice:
                apart = ", none of them shared or off" if name == "chosen" else ""
                raise ValueError(f"{name} must be different heads{apart}, got {', '.join(twice)}")
        check_within("spent", self.spent, 0, int(MOST))
        check_within("backwards", self.backwards, 0, self.spent)
        for name in ("task", "model"):
            check_mapping(f"provenance[{name!r}]", self.provenance.get(name, {}), "what is known of it by name")
        told = {effects.get("head"): effects for effects in self.shared_effects}
        for head, effects in told.items():
            _check_effect(f"shared_effects of {head}", effects)
        effects_of = tuple(told.get(str(head), {"head": str(head)}) for head in self.shared)
        object.__setattr__(self, "shared_effects", effects_of)
        if self.k is None:
            object.__setattr__(self, "k", max(1, min(DEFAULT_K, self.grid.size // 2)))
        k = check_integer("k", self.k, 1, self.grid.size, "the heads of the grid")
        free = self.grid.size - len({*self.shared, *self.off})
        object.__setattr__(self, "k", max(1, min(k, free)))

    def _check_array(self, name: str) -> None:
        values = getattr(self, name)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
            raise ValueError(f"{name} must be an array, one number a head, got {in_line(values)}")
        values = values.astype(float)
        object.__setattr__(self, name, values)
        if name == "importance" and (values.ndim != 2 or not values.size):
            raise ValueError(f"importance must be [layer, head], got shape {values.shape}")
        axes = "[layer, head, 2]" if name == "interval" else "[layer, head]"
        wanted = (*self.importance.shape, 2) if name == "interval" else self.importance.shape
        if values.shape != wanted:
            raise ValueError(f"{name} must be {axes} = {wanted}, got {values.shape}")
        if name == "interval":
            # What has no bound on one side has no interval.
            known = np.asarray(np.isfinite(values).all(axis=-1, keepdims=True))
            object.__setattr__(self, name, np.where(known, values, np.nan))
            values = values[known[..., 0]]
            if (wrong := values[values[:, 0] > values[:, 1]]).size:
                raise ValueError(f"interval must be a lower and an upper bound, got {wrong[0].tolist()}")
        least, most = (0, 1) if name == "frequency" else (-MOST, MOST)
        if (wrong := values[~((values >= least) & (values <= most))]).size:
            raise ValueError(f"{name} must be a number in {least:g}..{most:g} for every head, got {wrong[0]:g}")

    @property
    def order(self) -> list[Unit]:
        """All heads: chosen, then the clearest or most important, shared ones last; of equals the lower flat index."""
        merit = (self.importance if self.z is None else self.z).ravel()
        place = np.full(self.grid.size, len(self.chosen))
        place[[self.grid.index(head) for head in self.shared]] += 1
        place[[self.grid.index(head) for head in self.off]] += 2
        place[[self.grid.index(head) for head in self.chosen]] = np.arange(len(self.chosen))
        indices = np.lexsort((-merit, place))
        return [self.grid.unit(int(index)) for index in indices]

    @property
    def heads(self) -> tuple[Unit, ...]:
        """The heads found: the first ``k`` of the order, as many as were searched for."""
        return tuple(self.top())

    @property
    def stability(self) -> dict[Unit, float]:
        """How often resamples, or seeds, of the search select each head found; empty where the method does not say.

        How often whole searches with other seeds find it says ``Confirmation.stability`` (``cs.confirm(...,
        repeats=3)``).
        """
        if self.frequency is None:
            return {}
        return {head: float(self.frequency[head.layer, head.index]) for head in self}

    def top(self, k: int | None = None) -> list[Unit]:
        """The first heads of the order.

        Args:
            k: How many (None: as many as were searched for).

        Raises:
            ValueError: ``k`` lies outside 1..grid size.
        """
        return self.order[: self.k if k is None else check_integer("k", k, 1, self.grid.size, "the heads of the grid")]

    def proved(self, heads: Sequence[HeadLike]) -> HeadRanking:
        """The ranking of heads that were proved (``Confirmation.heads``): they come first, and no others are claimed.

        Args:
            heads: One or more of its heads.

        Raises:
            ValueError: No head, one twice, or one outside the grid.

        >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.2]]), spent=800)
        >>> ranking.proved(["L1H0"]).top()
        [Head(1, 0)]
        """
        first = tuple(self.grid.resolve(head) for head in as_heads("heads", heads))
        if not first or len({*first}) < len(first):
            raise ValueError(f"heads must be one or more different heads, got {', '.join(map(str, first)) or 'none'}")
        claims = tuple(head for head in self.claims if head in first)
        shared = tuple(head for head in self.shared if head not in first)
        return replace(self, chosen=first, claims=claims, shared=shared, k=len(first))

    def hooks(self, k: int | None = None) -> list[tuple[str, Callable[..., Any]]]:
        """Hooks that take the first ``k`` heads off, for ``model.run_with_hooks(tokens, fwd_hooks=found.hooks(5))``.

        They see how many heads a layer has, and refuse another number; of other weights or more layers they know
        nothing: ``cs.ablated(model, found)`` checks those, too.

        Args:
            k: How many (None: as many as were searched for).

        Returns:
            A hook point and a function for each layer with some of the heads, whose z becomes zero at every token.

        >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
        >>> [name for name, hook in ranking.hooks(2)]
        ['blocks.0.attn.hook_z', 'blocks.1.attn.hook_z']
        """
        # By name: the lens and rankings know nothing of each other.
        gates = import_module("cs_heads.lens.gates")
        return list(gates.hooks_of(self.grid, dict.fromkeys(self.top(k), 0.0)).items())

    def __len__(self) -> int:
        return self.k

    def __iter__(self) -> Iterator[Unit]:
        return iter(self.heads)

    @overload
    def __getitem__(self, place: int) -> Unit: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Unit, ...]: ...

    def __getitem__(self, place: int | slice) -> Unit | tuple[Unit, ...]:
        return self.heads[place]

    def listed(self, k: int) -> list[Unit]:
        """The first ``k`` heads, and others that are claimed, the most important first.

        Args:
            k: How many heads.

        >>> importance, z = np.array([[0.2, 0.4, 0.1]]), np.array([[9.0, 8.0, 1.0]])
        >>> ranking = HeadRanking("annealed", importance, spent=800, z=z)
        >>> ranking.order[:2], ranking.listed(2)
        ([Head(0, 0), Head(0, 1)], [Head(0, 1), Head(0, 0)])
        """
        heads = [*self.order[:k], *self.claimed_beyond(k)]
        return sorted(heads, key=lambda head: -self.importance[head.layer, head.index])

    def claimed_beyond(self, k: int) -> list[Unit]:
        """Claimed heads that are not among the first ``k``, in order: what is shown to matter is shown.

        Args:
            k: The number of heads.

        >>> from cs_heads.units import Head
        >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.2]]), spent=800, claims=(Head(1, 1),))
        >>> ranking.claimed_beyond(1), ranking.claimed_beyond(2)
        ([Head(1, 1)], [])
        """
        claims = set(self.claims)
        return [head for head in self.order[k:] if head in claims]

    def to_frame(self) -> pd.DataFrame:
        """One row a head, in order: rank, head, layer, index in the layer, importance and what else is known.

        Columns are there where the method tells them: ``low`` and ``high`` (the interval; NaN for heads without one),
        ``frequency``, ``z``, ``claimed``, ``controls``, ``shared``, ``interfering``. ``ranking.TERMS`` says what each
        means.
        """
        import pandas as pd

        order, claims, shared = self.order, set(self.claims), set(self.shared)
        layers, heads = [h.layer for h in order], [h.index for h in order]
        columns: dict[str, Any] = {"rank": range(1, len(order) + 1), "head": [*map(str, order)], "layer": layers}
        columns |= {"index": [*map(self.grid.index, order)], "importance": self.importance[layers, heads]}
        if self.interval is not None:
            columns["low"], columns["high"] = self.interval[layers, heads].T
        if self.frequency is not None:
            columns["frequency"] = self.frequency[layers, heads]
        if self.z is not None:
            columns["z"] = self.z[layers, heads]
        if self.z is not None or claims:
            columns["claimed"] = [head in claims for head in order]
        if self.control_importance is not None:
            columns["controls"] = self.control_importance[layers, heads]
        if self.control_importance is not None or self.shared:
            columns["shared"] = [head in shared for head in order]
        if self.interfering:
            columns["interfering"] = [head in self.interfering for head in order]
        return pd.DataFrame(columns)

    def _title(self) -> str:
        names = [self.provenance.get(of, {}).get("name") for of in ("task", "model")]
        about, n = ", ".join([self.method, *filter(None, names)]), f"{self.grid.size} {self.grid.word}s"
        return f"HeadRanking({about}: {n}, {self.spent:,} example-evaluations)"

    def __repr__(self) -> str:
        n = min(self.k, _SHOWN)
        listed, more = self.listed(n), set(self.claimed_beyond(n))
        lines = ["  ".join(self._told(head for head in listed if head not in more))]
        lines += [f"also claimed: {'  '.join(self._told(head for head in listed if head in more))}"] if more else []
        return "\n  ".join([self._title(), *lines, *self._said(), *(f"note: {note}" for note in self.notes)])

    def _told(self, heads: Iterable[Unit]) -> list[str]:
        return [f"{head} {self.importance[head.layer, head.index]:+.3f}" for head in heads]

    def _said(self) -> list[str]:
        """What is said below the heads."""
        said = [f"shared: {', '.join(map(str, self.shared))}"] if self.shared else []
        gains = self._told(self.interfering)
        return [*said, f"interfering, the task gains without: {', '.join(gains)}"] if gains else said

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        claimed = frame["head"].isin([str(head) for head in self.claimed_beyond(_SHOWN)])
        # The name of a head has its layer and its place.
        shown = frame[(frame["rank"] <= _SHOWN) | claimed].drop(columns=["layer", "index"])
        table = shown.to_html(index=False, float_format="{:+.3f}".format, na_rep="–", border=0)
        unknown = "; –: not known" if "low" in shown and shown["low"].isna().any() else ""
        terms = [f"low, high: {TERMS['interval']}{unknown}"] if "low" in shown else []
        terms += [f"{name}: {TERMS[name]}" for name in shown.columns if name in TERMS]
        notes = "".join(f"<li>{escape(note)}</li>" for note in (*self._said(), *self.notes))
        said = f"<ul>{notes}</ul>" if notes else ""
        said += f"<small>{'<br>'.join(map(escape, terms))}</small>" if terms else ""
        return f"<div><b>{escape(self._title())}</b>{table}{said}</div>"
