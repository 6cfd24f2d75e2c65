"""Figures that are sharp in a notebook: two dots for each one of the screen, at the same size."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.figure import Figure


class SharpFigure(Figure):
    """A figure that a notebook shows at its size with twice the dots; other figures are shown as the user has set."""


def shown_sharply() -> type[Figure]:
    """The class of new figures, which the notebook that runs here, if one does, is told how to show."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and getattr(shell, "display_formatter", None) is not None:
        png = shell.display_formatter.formatters["image/png"]
        png.for_type(SharpFigure, lambda figure: _sharp(figure, png))
    return SharpFigure


def _sharp(figure: Figure, png: Any) -> tuple[Any, dict[str, Any]] | None:
    """The picture and its size in pixels of the screen, with the user's options; None where figures are no PNG."""
    from IPython.core.pylabtools import retina_figure

    try:
        usual = png.lookup_by_type(Figure)
    except KeyError:
        return None
    given = {name: value for name, value in getattr(usual, "keywords", {}).items() if name not in ("fmt", "base64")}
    found: tuple[Any, dict[str, Any]] | None = retina_figure(figure, base64=True, **given)
    return found
