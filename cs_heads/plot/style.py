"""How pictures look: sizes, colours for the colour-blind, one look for each head, and how they are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from cs_heads.arguments import check_path
from cs_heads.units import Head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

P = ParamSpec("P")
R = TypeVar("R")

COLUMN = 3.3
"""Width of one column of a paper, inches."""
PAGE = 6.9
"""Width of a page of two columns, inches."""
SMALL = 7.0
"""Points of the smallest letters: what is still read in print."""
FORMATS = ("png", "svg", "pdf")

# Okabe and Ito, "Color Universal Design" (2008), for any kind of colour vision; yellow is too light on white.
HEAD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""The colours of heads, which no line or bar of a method, task or model has; roles share two of them."""
# Tol, "Colour Schemes" (2021), "muted", for any kind of colour vision, without its two that are too light on white.
COLOURS = ("#AA4499", "#999933", "#44AA99", "#CC6677", "#332288", "#117733", "#882255")
"""The colours of lines and bars (methods, tasks, models, sets of heads), those first on which black is seen."""
MARKERS = "osD^vP*X<>"
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
RANDOM = "0.45"
"""The grey of random heads, in every picture."""
ROLES = {
    "facilitation": ("#0072B2", "P", "-"),
    "interference": ("#E69F00", "X", "--"),
    "irrelevance": ("0.55", ".", ":"),
}
"""Colour, marker and line of what heads do: blue facilitates, orange interferes in every picture; read in grey too."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.dpi": 130,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # letters stay letters, embedded as TrueType: journals refuse type 3
    "svg.fonttype": "path",  # no font is needed to show it
    "svg.hashsalt": "cs-heads",  # the same picture is the same file
}


@dataclass(frozen=True)
class HeadLook:
    """The colour and marker of one head.

    >>> head_look(Head(2, 6))
    HeadLook(colour='#D55E00', marker='<')
    """

    colour: str
    marker: str


def head_look(head: Head) -> HeadLook:
    """What a head looks like: a function of its layer and number alone, so the same in every picture and report.

    Seventy looks; heads near each other differ. Their names tell apart those that share one.
    """
    colour, marker = 2 * head.layer + 3 * head.head, head.layer + head.head
    return HeadLook(HEAD_COLOURS[colour % len(HEAD_COLOURS)], MARKERS[marker % len(MARKERS)])


@cache
def signed_map() -> Colormap:
    """The colours of importance and of roles: blue facilitates, orange interferes, white does neither."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [ROLES["interference"][0], "white", ROLES["facilitation"][0]]
    return LinearSegmentedColormap.from_list("cs-heads", ends)


def colour_bar(ax: Axes, image: AxesImage, shrink: float = 0.8) -> Colorbar:
    """The bar beside a picture that says what its colours mean."""
    bar = ax.figure.colorbar(image, ax=ax, shrink=shrink, pad=0.03, aspect=25)
    bar.outline.set_linewidth(0.4)
    return bar


def ink(image: AxesImage, value: float) -> str:
    """The colour of letters on the square of a value: white on dark squares, by relative luminance (Rec. 709)."""
    red, green, blue, _ = image.to_rgba(np.array([value]))[0]
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else "black"


def round_ticks(ax: Axes, values: Iterable[float | int]) -> None:
    """A logarithmic axis across, with round numbers written out."""
    seen = list(values)
    low, high = min(seen), max(seen)
    ax.set_xscale("log")
    ticks = [step * 10**power for power in range(9) for step in (1, 2, 5)]
    near = [tick for tick in ticks if low / 2 <= tick <= high * 2] or [low]
    every = -(-len(near) // 6)
    ax.set_xticks(near[::every], [f"{tick:,g}" if tick < 1000 else f"{tick / 1000:g}k" for tick in near[::every]])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low / 1.5, high * 1.5)


def line_look(number: int) -> dict[str, Any]:
    """Colour, marker and line of the first, second, ... line of a picture, told apart without colours."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
    }


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function with the letters, lines and sizes of ``STYLE``; the caller's settings stay."""

    @wraps(draw)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        if not _OFFSCREEN.get():
            from matplotlib import pyplot as plt

            # Jupyter's backend turns interactive when it is first loaded: in the context that would be undone at its
            # end, and all pictures after the first would stay hidden.
            plt.draw_if_interactive()
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawing


def written(text: str, most: int = 40) -> str:
    r"""A user's text as matplotlib writes it: no mathematics, no letters that the font lacks, not over ``most`` long.

    >>> written("costs $5 and $6")
    'costs \\$5 and \\$6'
    >>> written("determiner noun agreement", most=11)
    'deter…ement'
    """
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"
    has = _characters()
    kept = "".join(letter if ord(letter) in has else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return kept.replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(STYLE["font.family"])).get_charmap())


_OFFSCREEN: ContextVar[bool] = ContextVar("offscreen", default=False)


@contextmanager
def offscreen() -> Iterator[None]:
    """Inside the ``with`` block new pictures are no figures of pyplot's: no window, nothing to close."""
    token = _OFFSCREEN.set(True)
    try:
        yield
    finally:
        _OFFSCREEN.reset(token)


def column_or_page(needed: float) -> float:
    """The width of a picture that needs so many inches: one column if that is enough, else a page.

    Set in print at that width, its letters keep their size.
    """
    return COLUMN if needed <= COLUMN else PAGE


@styled
def new_axes(width: float = COLUMN, height: float = 2.2, projection: str | None = None) -> Axes:
    """Axes of a new figure, its labels inside; sizes in inches."""
    return new_figure(width, height).add_subplot(projection=projection)


@styled
def new_figure(width: float = COLUMN, height: float = 2.2) -> Figure:
    """A new figure of pyplot's, or inside ``offscreen`` one that it does not know; sizes in inches."""
    if _OFFSCREEN.get():
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), layout="constrained")
    from matplotlib import pyplot as plt

    return plt.figure(figsize=(width, height), layout="constrained")


def key_below(ax: Axes, **options: Any) -> None:
    """The key under the axes: outside them where they have the figure to themselves, else close below.

    In as many columns as fit, so that no label is cut off; ``options`` are those of matplotlib's ``legend``.
    """
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.get_figure(root=True)
    alone = [each for each in figure.axes if each.get_label() != "<colorbar>"] == [ax]
    labels = options.get("labels", ax.get_legend_handles_labels()[1])
    if not labels:
        return
    inches = figure.get_size_inches()[0] * (0.95 if alone else ax.get_position().width)
    # A letter is about .55 of its height wide; a handle takes five, with the gap before it.
    fit = int(72 * inches // ((max(map(len, labels)) + 5) * SMALL * 0.55))
    options = {"ncols": max(1, min(len(labels), fit)), "columnspacing": 1.0, **options}
    if alone and figure.get_layout_engine() is not None:
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(**{"handles": handles, "labels": labels, **options}, loc="outside lower center")
        return
    below = ax.transAxes + ScaledTranslation(0, -0.42, figure.dpi_scale_trans)
    ax.legend(**options, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, borderaxespad=0)


@styled
def save_picture(picture: Axes | Figure, path: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write a picture for print and returns its files: letters embedded, sizes kept, 300 dots an inch.

    A ``path`` that ends in ``.png``, ``.svg`` or ``.pdf`` is written as it stands; another one once for each of
    ``formats``. A format other than these raises ``ValueError`` before anything is written. The same picture
    gives the same file.
    """
    path = check_path("path", path)
    formats = [formats] if isinstance(formats, str) else list(formats)
    if path.suffix[1:] in FORMATS:
        paths = [path]
    else:
        unknown = [name for name in formats if name not in FORMATS]
        if unknown or not formats:
            raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {formats!r}")
        paths = [path.with_name(f"{path.name}.{name}") for name in formats]
    figure: Any = picture if hasattr(picture, "savefig") else picture.get_figure(root=True)
    for one in paths:
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(one, metadata=dates.get(one.suffix[1:]))
    return paths
