"""Pictures that are drawn when they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cs_heads.views.style import save_picture


def drawing(plot: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[Path], list[Path]]:
    """A function that draws ``plot(*arguments, **options)``, writes it to a path without ending, and closes it.

    ``plot`` returns axes, or several of one figure. PNG for screens and SVG for print; the files are returned.
    """

    def write(path: Path) -> list[Path]:
        from matplotlib import pyplot as plt

        drawn = plot(*arguments, **options)
        axes = drawn if hasattr(drawn, "get_figure") else next(iter(drawn))
        try:
            return save_picture(axes, path, ["png", "svg"])
        finally:
            plt.close(axes.get_figure(root=True))

    return write
