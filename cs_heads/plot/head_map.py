"""Heads of one ranking: maps of layers × heads, of their importance or their roles, and the first heads one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from cs_heads.arguments import check_integer
from cs_heads.methods.gating.result import HeadGates
from cs_heads.plot import guides, style
from cs_heads.plot.head_markers import head_handle, head_looks, mark_heads, points_per_square, write_on
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

# Share of the scale from which a head that interferes carries a minus, which is legible in gray too.
CLEARLY = 0.2
# Points that a square needs to hold a sign.
SIGNS = 4.0


@style.styled
def heads(
    ranking: HeadRanking,
    k: int = 5,
    ax: Axes | None = None,
    *,
    key_value_heads: int | None = None,
    verdict: str | None = None,
) -> Axes:
    """Draw the importance of every head, layers down and heads across, with the rank of the first ``k``.

    Blue heads facilitate the task, orange ones interfere (a minus where they clearly do), white ones do not matter; the
    scale is symmetric about zero. Each of the first heads has a marker of its own, the same in every picture of these
    heads, and its rank beside it. The legend names it, with its importance and interval, or says that there are no
    intervals; a tick says that the head is claimed, a hollow marker that it is not, where the method claims heads.
    Shared heads are marked S and do not set the scale. Heads whose importance is not above zero are not marked.

    Args:
        ranking: as ``find_heads`` gives it.
        k: how many heads are marked, of the first in the ranking's order.
        ax: axes to draw on; None: those of a new figure.
        key_value_heads: how many groups of query heads share keys and values, drawn between lines with their numbers
            above; None: what the ranking knows of its model.
        verdict: joins the title, as in ``proof.verdict``.

    Returns:
        The axes.

    Raises:
        ValueError: for no ranking, or groups that do not divide the heads of a layer.

    >>> from matplotlib.figure import Figure
    >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
    >>> heads(ranking, k=1, ax=Figure().subplots()).texts[0].get_text()
    '1'
    """
    if not isinstance(ranking, HeadRanking):
        raise ValueError(f"ranking must be a HeadRanking, as find_heads gives, got {ranking!r:.80}")
    grid = ranking.grid
    check_integer("k", k, 0)
    if key_value_heads is None and grid.kind == "heads":
        key_value_heads = ranking.provenance.get("model", {}).get("key_value_heads")
    if key_value_heads is not None and (key_value_heads < 1 or grid.n_units % key_value_heads):
        raise ValueError(f"key_value_heads must divide the {grid.n_units} heads of a layer, got {key_value_heads}")
    limit, top = _limit(ranking), _shown(ranking, k)
    label = guides.importance_label(ranking.unit, 26)
    ax, image, _ = draw_map(ax, grid, ranking.importance, limit, label=label, n_lines=len(top))
    if key_value_heads not in (None, 1, grid.n_units):
        _draw_groups(ax, grid, key_value_heads)
    opposed = np.argwhere(ranking.importance < -CLEARLY * limit)
    ax.scatter(
        opposed[:, 1],
        opposed[:, 0],
        marker="_",
        s=min(points_per_square(ax, grid) * 0.7, 5) ** 2,
        linewidths=0.7,
        color=[style.letter_on(image.to_rgba(ranking.importance[tuple(at)])) for at in opposed],
    )
    hollow = _not_claimed(ranking, top)
    mark_heads(ax, grid, top, hollow=hollow, avoid=ranking.shared)
    for head in ranking.shared:
        write_on(ax, (head.index, head.layer), "S")
    ax.set_title(style.safe_text(": ".join(filter(None, [_title(ranking.provenance, ranking.method), verdict]))))

    def told(head: Unit) -> str:
        known = _interval(ranking, head)
        bounds = "" if known is None else " ({:+.2f} to {:+.2f})".format(*known)
        claimed = " ✓" if head in ranking.claims else ""
        return f"{head}{claimed}  {ranking.importance[head.layer, head.index]:+.2f}{bounds}"

    columns, meaning = 2 if ranking.interval is None else 1, [*_marks(ranking, top), *_unknown(ranking, top)]
    _draw_legend(ax, top, told, hollow, ncols=columns, title="; ".join(meaning) or None)
    return ax


@style.styled
def roles(gates: HeadGates, ax: Axes | None = None, *, threshold: float = 0.5, k: int = 5) -> Axes:
    """Draw the role of each head, layers down and heads across: blue facilitates, orange interferes, white neither.

    The color is the larger of the two scores, mean over seeds, as in the map of ``heads`` (figure 3b of Nam et al.,
    arXiv 2505.13737, is in red and green). The first heads of the gates' ranking carry their own markers, which the
    legend names. Where squares are large enough, a clear head among the others carries a sign: a plus where it
    facilitates, a cross where it interferes, both where it does one in some seed and the other in another.

    Args:
        gates: as ``causal_head_gating`` fits them.
        ax: axes to draw on; None: those of a new figure.
        threshold: the score from which a head carries a sign, in [0, 1].
        k: how many of the first heads are marked.

    Returns:
        The axes.
    """
    facilitation, interference = (gates.score(name).mean(axis=0) for name in ("facilitation", "interference"))
    values = np.where(facilitation >= interference, facilitation, -interference)
    ranking = gates.ranking()
    grid = ranking.grid
    first = enumerate(ranking.top(min(k, grid.size)) if k else (), start=1)
    top = {head: rank for rank, head in first if values[head.layer, head.index] > 0}
    ax, _, bar = draw_map(ax, grid, values, 1.0, label="interferes ← score → facilitates", n_lines=len(top) + 1)
    bar.set_ticks([-1, -0.5, 0, 0.5, 1], labels=["1", "0.5", "0", "0.5", "1"])
    ax.set_title(style.safe_text(_title(gates.provenance, "causal head gating"), 50))
    signs = _draw_signs(ax, gates, threshold, grid.mask([*top]))
    mark_heads(ax, grid, top)
    _draw_legend(ax, top, lambda head: f"{head}  {values[head.layer, head.index]:.2f}", others=signs, ncols=2)
    return ax


@style.styled
def importance(ranking: HeadRanking, k: int = 5, ax: Axes | None = None) -> Axes:
    """Draw the importance of the first heads with their intervals, each with its own marker, down the axis.

    Where the method gives no intervals the axis says so.

    Args:
        ranking: as ``find_heads`` gives it.
        k: how many heads.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    top = ranking.top(min(k, ranking.grid.size))
    top.sort(key=lambda head: -ranking.importance[head.layer, head.index])
    ax = style.new_axes(height=0.7 + 0.2 * len(top)) if ax is None else ax
    for row, (head, look) in enumerate(head_looks(top).items()):
        interval = _interval(ranking, head)
        if interval is not None:
            ax.hlines(row, *interval, color=look.color, linewidth=1.4)
        ax.plot(ranking.importance[head.layer, head.index], row, marker=look.marker, color=look.color, markersize=6)
    ax.axvline(0, color=style.RANDOM, linewidth=0.6)
    guides.names_down(ax, map(str, top))
    ax.set_xlabel("\n".join([guides.importance_label(ranking.unit), *_unknown(ranking, top)]))
    return ax


def heads_caption(ranking: HeadRanking, k: int = 5) -> str:
    """The caption of the picture ``heads``: what its colors and marks mean, for those that are there.

    Args:
        ranking: the ranking that is drawn.
        k: how many heads are marked.

    >>> heads_caption(HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800))
    'Importance of every head: blue facilitates the task, orange interferes. Marked, with their rank: the first heads.'
    """
    opposed = bool((ranking.importance < -CLEARLY * _limit(ranking)).any())
    text = "Importance of every head: blue facilitates the task, orange interferes"
    text += " (a minus where clearly so)." if opposed else "."
    top = _shown(ranking, k)
    marks = [*(["Marked, with their rank: the first heads"] if top else []), *_marks(ranking, top)]
    return f"{text} {'; '.join(marks)}." if marks else text


def draw_map(
    ax: Axes | None, grid: Grid, values: Float[np.ndarray, "layer head"], limit: float, *, label: str, n_lines: int
) -> tuple[Axes, AxesImage, Colorbar]:
    """Draw the squares of a map with their color bar.

    Args:
        ax: axes to draw on; None: those of a new figure that has room for ``n_lines`` in the legend.
        grid: of the map.
        values: of each head, signed.
        limit: the value of the strongest color.
        label: of the color bar.
        n_lines: lines of the legend.

    Returns:
        The axes, the squares and their color bar.
    """
    n_layers, n_units = grid.shape
    # Neurons are too many for squares.
    wide = n_units > 16 * n_layers
    if ax is None:
        # A column wide, a page for many units; as high as squares and the legend need, a page at most.
        width = style.COLUMN if n_units <= 64 else 2 * style.COLUMN
        square = min(0.5, 5 / n_layers) if wide else min(0.5, 5 / n_layers, (width - 1.25) / n_units)
        ax = style.new_axes(width, min(9.0, max(1.1, square * n_layers) + 1.34 + 0.14 * n_lines))
    drawn: dict[str, Any] = {"aspect": "auto", "interpolation": "none"} if wide else {"aspect": "equal"}
    image = ax.imshow(values, cmap=style.signed_colors(), vmin=-limit, vmax=limit, **drawn)
    bar = guides.color_bar(ax, image, label)
    ax.set(xticks=guides.some_of(n_units, 12), yticks=guides.some_of(n_layers, 16), xlabel=grid.word, ylabel="layer")
    return ax, image, bar


def _draw_legend(
    ax: Axes,
    top: Mapping[Unit, int],
    told: Callable[[Unit], str],
    hollow: Collection[Unit] = (),
    others: list[Line2D] | None = None,
    **options: Any,
) -> None:
    """Which head each rank is, and what is told of it."""
    handles = [
        head_handle(look, f"{top[head]}  {told(head)}", hollow=head in hollow) for head, look in head_looks(top).items()
    ]
    guides.add_legend(ax, handles=[*handles, *(others or [])], handletextpad=0.3, **options)


def _title(provenance: dict[str, Any], method: str) -> str:
    task = provenance.get("task", {}).get("name")
    return method if task is None else f"{task} ({method})"


def _limit(ranking: HeadRanking) -> float:
    """Where the scale ends: the largest importance of a head that is not shared."""
    return float(np.abs(ranking.importance[~ranking.grid.mask(ranking.shared)]).max(initial=0)) or 1.0


def _shown(ranking: HeadRanking, k: int) -> dict[Unit, int]:
    """The heads that are marked, the most important first, with their ranks."""
    ranks, listed = {head: rank for rank, head in enumerate(ranking.order, start=1)}, ranking.listed(k) if k else []
    return {head: ranks[head] for head in listed if ranking.importance[head.layer, head.index] > 0}


def _not_claimed(ranking: HeadRanking, top: Collection[Unit]) -> set[Unit]:
    return set() if ranking.z is None else {head for head in top if head not in ranking.claims}


def _marks(ranking: HeadRanking, top: Collection[Unit]) -> list[str]:
    """What the marks of heads mean, for those that are there."""
    marks = ["✓ claimed"] if set(top) & set(ranking.claims) else []
    marks += ["hollow not claimed"] if _not_claimed(ranking, top) else []
    return marks + (["S shared"] if ranking.shared else [])


def _interval(ranking: HeadRanking, head: Unit) -> tuple[float, float] | None:
    """The interval of a head, where the method gives one."""
    known = None if ranking.interval is None else ranking.interval[head.layer, head.index]
    return None if known is None or np.isnan(known).any() else (float(known[0]), float(known[1]))


def _unknown(ranking: HeadRanking, top: Collection[Unit]) -> list[str]:
    """What the picture of these heads would show, if the method gave it."""
    return ["no intervals"] if top and all(_interval(ranking, head) is None for head in top) else []


def _draw_groups(ax: Axes, grid: Grid, n_groups: int) -> None:
    """Lines between the heads that share keys and values, and the groups' numbers above."""
    size = grid.n_units // n_groups
    for group in range(1, n_groups):
        ax.axvline(group * size - 0.5, color="0.55", linewidth=0.4)
    above = ax.secondary_xaxis("top")
    shown = guides.some_of(n_groups, 8)
    above.set_xticks([(group + 0.5) * size - 0.5 for group in shown], list(map(str, shown)))
    above.tick_params(length=0, pad=1)
    above.set_xlabel("key/value head", labelpad=2)


def _draw_signs(ax: Axes, gates: HeadGates, threshold: float, marked: Bool[np.ndarray, "layer head"]) -> list[Line2D]:
    """Signs of clear roles on all heads but those marked; returns one line per sign that was drawn."""
    square = points_per_square(ax, gates.ranking().grid)
    if square < SIGNS:
        return []
    facilitates, interferes = (gates.any(name) >= threshold for name in ("facilitation", "interference"))
    means = {name: gates.score(name).mean(axis=0) >= threshold for name in ("facilitation", "interference")}
    mixed, both = facilitates & interferes, (8, 2, 0)
    signs: list[tuple[str, Any, Bool[np.ndarray, "layer head"]]] = [
        (f"facilitation of {threshold:g} or more", "+", means["facilitation"] & ~mixed),
        (f"interference of {threshold:g} or more", "x", means["interference"] & ~mixed),
        ("each in some seed", both, mixed),
    ]
    drawn = []
    for label, marker, where in signs:
        at = np.argwhere(where & ~marked)
        if len(at):
            look: dict[str, Any] = {"color": "black", "linestyle": "none", "markersize": min(5.0, 0.8 * square)}
            look["markeredgewidth"] = 0.5 if marker == both else 0.9
            drawn += ax.plot(at[:, 1], at[:, 0], marker=marker, label=label, **look)
    return drawn
