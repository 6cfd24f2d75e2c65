"""Pictures of a head atlas: the map of heads by skill, the tree of skills, and what their heads take from each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.atlas_result import Atlas
from cs_heads.lens.model import without_place
from cs_heads.plot import guides, style
from cs_heads.plot.head_markers import points_per_square
from cs_heads.plot.heatmap import drop_matrix
from cs_heads.plot.skills import NOTHING, UNIVERSAL, SkillLook, common_folder, letter_look, skill_looks, tinted
from cs_heads.units import Grid, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Standard errors from which on a head takes more from one skill than from skills in the mean.
CLEAR = 4.0
# Share of the full color that the first heads of a skill have at least.
FAINTEST = 0.35
_LETTER = 8.0  # points of a square that holds a letter
_OVER = 6.0  # points of a square that a letter may stand over
# Colors of a square of several skills.
SPLITS = 4


@style.styled
def atlas(found: Atlas, ax: Axes | None = None) -> Axes:
    """Draw which head serves which skill, layers down and heads across: the color is the skill, its depth how much.

    A head has the color of the skill that it takes most from, beyond what it takes from all skills in the mean, where
    that is more than four standard errors; others are near white. The color is full from the loss on that the first
    head of the middle skill causes. The first heads of each skill are framed and carry its letter; others carry it in
    thin type. Letters and colors go along the tree of skills, so that those near each other share heads. Heads of
    several skills are split in their colors and carry the number of these skills; universal heads are dark gray, in a
    ring, with a U, also where they are among the first of a skill. Squares below six points have no letters.

    Args:
        found: as ``cs.atlas`` gives it.
        ax: axes to draw on; None: those of a new figure, a column wide or a page.

    Returns:
        The axes.

    Raises:
        ValueError: for no atlas.
    """
    _check(found)
    grid = found.grid
    looks = skill_looks(found.skills, found.linkage())
    # Each is worked out anew when it is asked for.
    universal, shared = found.universal, found.shared
    excess, clear = _beyond(found)
    limit = _limit(found, excess)
    first = {head: name for name, heads in found.heads.items() for head in heads}
    handles = _legend_handles(looks, bool(universal), shared)
    ax = _new_map(grid, [str(handle.get_label()) for handle in handles]) if ax is None else ax
    most = np.where(clear, excess, -np.inf).argmax(axis=0)

    colors = np.empty((*grid.shape, 3))
    colors[:] = tinted(NOTHING, 0.0)
    for layer, index in np.argwhere(clear.any(axis=0)):
        place = most[layer, index]
        colors[layer, index] = tinted(looks[found.skills[place]].color, excess[place, layer, index] / limit)
    for head, name in first.items():
        strength = excess[found.skills.index(name), head.layer, head.index] / limit
        colors[head.layer, head.index] = tinted(looks[name].color, max(strength, FAINTEST))
    for head in universal:  # a disc, not a square
        colors[head.layer, head.index] = tinted(NOTHING, 0.0)
    wide = grid.n_units > 16 * grid.n_layers
    ax.imshow(colors, aspect="auto" if wide else "equal", interpolation="none")
    square = points_per_square(ax, grid)
    _draw_gaps(ax, grid, square)
    for head, names in shared.items():
        losses = {name: found.losses[found.skills.index(name), head.layer, head.index] for name in names}
        _draw_split(ax, head, losses, looks, limit)
    for head in first.keys() - {*universal}:
        _draw_frame(ax, head, square)
    letters = {head: looks[name].letter for head, name in first.items()}
    letters |= {head: str(len(names)) for head, names in shared.items()} | dict.fromkeys(universal, "U")
    # Without them gray squares would be of no skill in particular.
    thin = [head for head in grid if clear[:, head.layer, head.index].any() and head not in letters]
    letters |= {head: looks[found.skills[most[head.layer, head.index]]].letter for head in thin}
    lettered = square >= _OVER
    for head, letter in letters.items() if lettered else ():
        split = head in shared or square < _LETTER
        on = UNIVERSAL if head in universal else None if split else colors[head.layer, head.index]
        weight = "normal" if head in thin else "bold"
        ax.text(head.index, head.layer, letter, **letter_look(on) | {"fontweight": weight}, zorder=5)
    for head in universal:
        _draw_ring(ax, head)
    _draw_bar(ax, [look.color for look in looks.values()], limit, bool(excess.max() > limit))
    ticks = {"xticks": guides.some_of(grid.n_units, 16), "yticks": guides.some_of(grid.n_layers, 16)}
    ax.set(**ticks, xlabel=grid.word, ylabel="layer", title=_title(found))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=2)
    framed = f"framed{', with a letter' if lettered else ''}: the heads of a skill"
    if lettered and thin:
        framed = "framed: the heads of a skill; thin letter: others"
    return guides.add_legend(ax, handles=handles, handletextpad=0.4, labelspacing=0.55, title=framed)


@style.styled
def skill_tree(found: Atlas, ax: Axes | None = None) -> Axes:
    """Draw the tree of skills by the heads they need: the further right two branches meet, the fewer heads they share.

    Letters, colors and order are those of the map of the atlas.

    Args:
        found: as ``cs.atlas`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for no atlas.
    """
    from matplotlib.collections import LineCollection

    _check(found)
    tree = found.linkage()
    looks = skill_looks(found.skills, tree)
    order = list(looks)
    ax = style.new_axes(height=0.85 + 0.2 * len(order)) if ax is None else ax
    # Where each node is, and the lines to the two that meet there.
    nodes = [(0.0, float(order.index(name))) for name in found.skills]
    lines, colors = [], []
    for first, second, distance, _ in tree:
        ends = [int(first), int(second)]
        for end in ends:
            x, y = nodes[end]
            lines.append([(x, y), (float(distance), y)])
            colors.append(looks[found.skills[end]].color if end < len(order) else "0.4")
        lines.append([(float(distance), nodes[end][1]) for end in ends])
        colors.append("0.4")
        nodes.append((float(distance), (nodes[ends[0]][1] + nodes[ends[1]][1]) / 2))
    ax.add_collection(LineCollection(lines, colors=colors, linewidths=1.6, capstyle="round"))
    for row, look in enumerate(looks.values()):
        ax.plot(0, row, marker="s", markersize=9, color=look.color, clip_on=False, zorder=4)
        ax.text(0, row, look.letter, **letter_look(look.color), zorder=5)
    prefix = common_folder(order)
    guides.names_down(ax, [style.safe_text(name[len(prefix) :], 24) for name in order])
    ax.tick_params(axis="y", length=0, pad=7)
    ax.spines["left"].set_visible(False)
    ax.set(xlim=(0, 1.02), xticks=[0, 0.5, 1], xlabel="distance: 0 need the same heads,\n1 need none in common")
    return ax


@style.styled
def skill_matrix(found: Atlas, ax: Axes | None = None) -> Axes:
    """Draw what the first heads of each skill take from every skill on unseen examples, in the order of the tree.

    It is ``drop_matrix`` of ``found.drops``, as shares of each score above chance, with the letters and the order of
    the map of the atlas. Skills that are kin, and so no controls of each other, are framed with dashes.

    Args:
        found: as ``cs.atlas`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for no atlas.
    """
    _check(found)
    looks = skill_looks(found.skills, found.linkage())
    ax = drop_matrix(found.drops, ax, order=list(looks))
    for axis in (ax.xaxis, ax.yaxis):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        axis.set_ticklabels([f"{label} {look.letter}" for label, look in zip(labels, looks.values(), strict=True)])
    order = list(looks)
    kin = [(order.index(name), order.index(other)) for name, others in found.kin.items() for other in others]
    for row, column in kin:
        guides.frame_square(ax, row, column, linewidth=0.9, linestyle=(0, (2, 1.5)))
    if kin:
        ax.set_xlabel(ax.get_xlabel().replace(" (framed: their own", "\n(framed: their own; dashed: kin"))
    return ax


def _check(found: Any) -> None:
    if not isinstance(found, Atlas):
        raise ValueError(f"found must be an Atlas, as cs.atlas gives, got {found!r:.80}")


def _beyond(found: Atlas) -> tuple[Float[np.ndarray, "skill layer head"], np.ndarray]:
    """What each head takes from each skill beyond what it takes from all in the mean, and where that is clear."""
    n = len(found.losses)
    excess = found.losses - found.losses.mean(axis=0)
    squares = np.square(found.errors)
    # A skill is part of the mean that it is compared with.
    error = np.sqrt((1 - 2 / n) * squares + squares.sum(axis=0) / n**2)
    return excess, (excess > CLEAR * error) & (excess > 0)


def _limit(found: Atlas, excess: Float[np.ndarray, "skill layer head"]) -> float:
    """From where on colors are full: what the first head of a skill causes, of the middle skill.

    Where one skill falls much more steeply than others, these stay seen.
    """
    own = excess[:, ~found.grid.mask(found.universal)]
    return float(np.median(own.max(axis=1, initial=0))) or 1.0


def _new_map(grid: Grid, labels: list[str]) -> Axes:
    """Axes of a figure with room for squares that hold a letter, a column wide or a page, and for the legend."""
    n_layers, n_units = grid.shape
    room = 1.15
    width = style.COLUMN if (style.COLUMN - room) / n_units * 72 >= _LETTER else style.PAGE
    square = min(0.3, max(4.4 / n_layers, 0.125))
    across = square if n_units > 16 * n_layers else min(square, (width - room) / n_units)
    lines = -(-len(labels) // guides.legend_columns(labels, 0.95 * width))
    return style.new_axes(width, min(9.2, max(1.1, n_layers * across) + 0.9 + 0.17 * lines))


def _draw_gaps(ax: Axes, grid: Grid, square: float) -> None:
    """White lines between the squares, so that each is seen where neighbors are alike."""
    look: dict[str, Any] = {"color": "white", "linewidth": min(0.8, 0.08 * square), "zorder": 1.5}
    ax.hlines(np.arange(1, grid.n_layers) - 0.5, -0.5, grid.n_units - 0.5, **look)
    ax.vlines(np.arange(1, grid.n_units) - 0.5, -0.5, grid.n_layers - 0.5, **look)


def _draw_split(ax: Axes, head: Unit, losses: dict[str, float], looks: dict[str, SkillLook], limit: float) -> None:
    """A square in the colors of the skills that it serves, side by side; of many those that lose most."""
    from matplotlib.patches import Rectangle

    kept = sorted(losses, key=lambda name: -losses[name])[:SPLITS]
    for number, name in enumerate(name for name in looks if name in kept):
        at = (head.index - 0.5 + number / len(kept), head.layer - 0.5)
        color = tinted(looks[name].color, max(losses[name] / limit, FAINTEST))
        ax.add_patch(Rectangle(at, 1 / len(kept), 1, facecolor=color, edgecolor="none", zorder=2))


def _draw_frame(ax: Axes, head: Unit, square: float) -> None:
    from matplotlib.patches import Rectangle

    at, width = (head.index - 0.46, head.layer - 0.46), min(1.0, 0.1 * square)
    ax.add_patch(Rectangle(at, 0.92, 0.92, fill=False, edgecolor="black", linewidth=width, zorder=3))


def _draw_ring(ax: Axes, head: Unit) -> None:
    from matplotlib.patches import Circle

    # The white between the disc and its ring keeps both apart from dark neighbors.
    for radius, inside, edge in ((0.64, "white", "black"), (0.52, UNIVERSAL, "none")):
        disc = Circle((head.index, head.layer), radius, facecolor=inside, edgecolor=edge, linewidth=0.9)
        ax.add_patch(disc).set(zorder=4, clip_on=False)


def _draw_bar(ax: Axes, colors: list[str], limit: float, more: bool) -> None:
    """The bar beside the map, in the colors of all skills."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shades = np.stack([[tinted(color, step) for color in colors] for step in np.linspace(0, 1, 64)])
    bar = guides.color_bar(ax, ScalarMappable(Normalize(0, limit)), "loss above the mean of skills")
    bar.ax.imshow(shades, aspect="auto", origin="lower", extent=(0, 1, 0, limit), interpolation="none", zorder=2)
    bar.set_ticks([0, limit / 2, limit], labels=["0", f"{limit / 2:.2f}", f"{'≥ ' if more else ''}{limit:.2f}"])


def _legend_handles(looks: dict[str, SkillLook], universal: bool, shared: dict[Unit, tuple[str, ...]]) -> list[Line2D]:
    """What the legend shows, each with its letter: the skills, and the other marks that are there."""
    from matplotlib.lines import Line2D

    square: dict[str, Any] = {"linestyle": "none", "marker": "s", "markersize": 8, "markeredgecolor": "black"}
    prefix = common_folder(looks)
    handles = [
        Line2D([], [], **square, color=look.color, label=f"{look.letter}  {style.safe_text(name[len(prefix) :], 24)}")
        for name, look in looks.items()
    ]
    if shared:
        fewest, most = (pick(map(len, shared.values())) for pick in (min, max))
        number = f"{fewest}–{most}" if most > fewest else str(fewest)
        handles.append(Line2D([], [], **square, color="0.75", label=f"{number}  skills share it"))
    if universal:
        handles.append(Line2D([], [], **square | {"marker": "o"}, color=UNIVERSAL, label="U  universal"))
    return handles


def _title(found: Atlas) -> str:
    name = found.provenance.get("model", {}).get("name")
    skills = f"heads of {len(found.skills)} skills"
    return style.safe_text(skills if name is None else f"{without_place(name)}: {skills}")
