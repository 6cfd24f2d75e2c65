"""How pictures look: sizes, colors for the color-blind, letters, figures, and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from jaxtyping import Float

from cs_heads.arguments import check_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Numbers = Float[np.ndarray, "_"]
P = ParamSpec("P")
R = TypeVar("R")

# Width of one column of a paper, inches.
COLUMN = 3.3
# Width of a page of two columns, inches.
PAGE = 6.9
# Points of the smallest letters that can be read in print.
SMALL = 7.0
FORMATS = ("png", "svg", "pdf")

# Tol, "Colour Schemes" (2021), "muted", for any kind of color vision, without its two that are too light on white.
# Colors of lines and bars (methods, tasks, models, sets of heads); black is seen best on the first ones.
COLORS = ("#AA4499", "#999933", "#44AA99", "#CC6677", "#332288", "#117733", "#882255")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
# The shapes of markers, in order.
MARKERS = "osD^vP*X<>dph"
# The gray of random heads, in every picture.
RANDOM = "0.45"
ROLES = {
    "facilitation": ("#0072B2", "P", "-"),
    "interference": ("#E69F00", "X", "--"),
    "irrelevance": ("0.55", ".", ":"),
}
"""Color, marker and line of what heads do: in every picture blue facilitates and orange interferes; legible in gray."""


def line_look(number: int) -> dict[str, Any]:
    """Color, marker and line style of the first, second, ... line of a picture; they differ without colors too."""
    looks = {"color": COLORS, "marker": MARKERS, "linestyle": LINES}
    return {name: several[number % len(several)] for name, several in looks.items()}


def edged(width: float) -> list[Any]:
    """Path effects: a white edge, with which what is drawn is seen on any color."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground="white")]


def random_look() -> dict[str, Any]:
    """The look of the line of random heads in every picture: dashed, and seen where it lies on another line."""
    return {"color": RANDOM, "linestyle": "--", "linewidth": 1.5, "path_effects": edged(3.5), "zorder": 2.5}


@cache
def signed_colors() -> Colormap:
    """The colors of importance and of roles: blue facilitates, orange interferes, white does neither."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [ROLES["interference"][0], "white", ROLES["facilitation"][0]]
    return LinearSegmentedColormap.from_list("cs-heads", ends)


def letter_on(color: Any) -> str:
    """White on dark colors of matplotlib, else black, by relative luminance (Rec. 709)."""
    from matplotlib.colors import to_rgb

    return "white" if np.dot(to_rgb(color), (0.2126, 0.7152, 0.0722)) < 0.5 else "black"


def safe_text(text: str, max_letters: int = 40) -> str:
    r"""A user's text for matplotlib: no mathematics, no letters that the font lacks, shortened in the middle.

    Args:
        text: any text.
        max_letters: the longest text that is not shortened.

    >>> safe_text("costs $5 and $6")
    'costs \\$5 and \\$6'
    >>> safe_text("determiner noun agreement", max_letters=11)
    'deter…ement'
    """
    if len(text) > max_letters:
        text = f"{text[: max_letters // 2]}…{text[len(text) - (max_letters - 1) // 2 :]}"
    has = _characters()
    kept = "".join(letter if ord(letter) in has else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return kept.replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(settings()["font.family"][0])).get_charmap())


# Figures


_OFFSCREEN: ContextVar[bool] = ContextVar("offscreen", default=False)


@contextmanager
def offscreen() -> Iterator[None]:
    """Inside the ``with`` block pyplot does not know new figures: no window opens, and nothing has to be closed."""
    token = _OFFSCREEN.set(True)
    try:
        yield
    finally:
        _OFFSCREEN.reset(token)


@cache
def settings() -> dict[Any, Any]:
    """The letters, lines and sizes of all pictures, for ``matplotlib.rc_context``."""
    from matplotlib import rc_params_from_file

    return dict(rc_params_from_file(Path(__file__).with_name("cs-heads.mplstyle"), use_default_template=False))


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Run a drawing function with the letters, lines and sizes of ``settings``; the caller's stay."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        if not _OFFSCREEN.get():
            from matplotlib import pyplot as plt

            # Jupyter's backend turns interactive when it is first loaded: in the context that would be undone at its
            # end, and all pictures after the first would stay hidden.
            plt.draw_if_interactive()
        with mpl.rc_context(settings()):
            return draw(*args, **kwargs)

    return drawn


@styled
def new_figure(width: float = COLUMN, height: float = 2.2) -> Figure:
    """A new figure of pyplot, sharp in a notebook, or inside ``offscreen`` one that pyplot does not know.

    Args:
        width: in inches.
        height: in inches.
    """
    if _OFFSCREEN.get():
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), layout="constrained")
    from matplotlib import pyplot as plt

    from cs_heads.plot.notebook import shown_sharply

    return plt.figure(figsize=(width, height), layout="constrained", FigureClass=shown_sharply())


@styled
def new_axes(width: float = COLUMN, height: float = 2.2, projection: str | None = None) -> Axes:
    """Axes of a new figure with its labels inside.

    Args:
        width: in inches.
        height: in inches.
        projection: of matplotlib, such as ``"polar"``.
    """
    return new_figure(width, height).add_subplot(projection=projection)


def width_for(needed: float) -> float:
    """The width of a picture that needs so many inches: one column if that is enough, else a page.

    Printed at that width, letters keep their size.
    """
    return COLUMN if needed <= COLUMN else PAGE


def figure_of(drawn: Any) -> Figure:
    """The figure of what a drawing function returns: a figure, axes, or several axes of one figure."""
    if hasattr(drawn, "savefig"):
        return drawn
    axes = drawn if hasattr(drawn, "get_figure") else next(iter(drawn))
    figure: Figure = axes.get_figure(root=True)
    return figure


@styled
def save(picture: Axes | Figure, path: str | Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write a picture for print: letters embedded, sizes kept, 300 dots per inch.

    The same picture gives the same file.

    Args:
        picture: a figure, or axes of it.
        path: a path that ends in ``.png``, ``.svg`` or ``.pdf`` is the file; others get the ending of each format.
        formats: of ``png``, ``svg`` and ``pdf``, where ``path`` has no such ending.

    Returns:
        The files written.

    Raises:
        ValueError: for an unknown format or none, before anything is written.
    """
    path = check_path("path", path)
    formats = [formats] if isinstance(formats, str) else list(formats)
    if path.suffix[1:] in FORMATS:
        paths = [path]
    elif formats and set(formats) <= set(FORMATS):
        paths = [path.with_name(f"{path.name}.{name}") for name in formats]
    else:
        raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {formats!r}")
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    for one in paths:
        figure_of(picture).savefig(one, metadata=dates.get(one.suffix))
    return paths


def draw_to(path: Path, plot: Callable[..., Any], *arguments: Any, **options: Any) -> list[Path]:
    """Draw ``plot(*arguments, **options)`` and write it; no window opens, and no figure is left open.

    Args:
        path: a path without ending gets a PNG for screens and an SVG for print.
        plot: returns a figure, axes, or several axes of one figure.
        arguments: of ``plot``.
        options: of ``plot``.

    Returns:
        The files written.
    """
    with offscreen():
        return save(figure_of(plot(*arguments, **options)), path, ["png", "svg"])
