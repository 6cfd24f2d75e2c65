"""Pictures that are drawn when they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cs_heads.plot.style import offscreen, save_picture


def drawing(plot: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[Path], list[Path]]:
    """A function that draws ``plot(*arguments, **options)`` and writes it: no window, no figure left open.

    ``plot`` returns axes, or several of one figure. A path without ending gets a PNG for screens and an SVG for print;
    the files are returned.
    """

    def write(path: Path) -> list[Path]:
        with offscreen():
            drawn = plot(*arguments, **options)
        return save_picture(drawn if hasattr(drawn, "get_figure") else next(iter(drawn)), path, ["png", "svg"])

    return write
