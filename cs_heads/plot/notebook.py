"""Figures that are sharp in a notebook: two dots for each one of the screen, at the same size."""

from __future__ import annotations

import sys
from functools import partial

from matplotlib.figure import Figure


class SharpFigure(Figure):
    """A figure that a notebook shows at its size with twice the dots; other figures are shown as the user has set."""


def shown_sharply() -> type[Figure]:
    """The class of new figures, which the notebook that runs here, if one does, is told how to show."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and getattr(shell, "display_formatter", None) is not None:
        from IPython.core.pylabtools import retina_figure

        sharp = partial(retina_figure, base64=True, bbox_inches=None)
        shell.display_formatter.formatters["image/png"].for_type(SharpFigure, sharp)
    return SharpFigure
