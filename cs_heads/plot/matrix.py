"""A table as a picture: one square a number, written in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.plot.style import COLUMN, SMALL, colour_bar, column_or_page, ink, new_axes, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

SHARES = "Blues"
"""The map of shares: white is none, dark is much, for any kind of colour vision and in grey."""


_LETTERS = 20
"""Letters of a name that a picture of one column has room for."""


def matrix_axes(n_rows: int, n_columns: int, labels: Sequence[str], side: float = 0.27) -> Axes:
    """New axes with room for so many squares and for labels as long as these: a column wide, or a page."""
    letters = 0.058 * min(_LETTERS, max((len(label) for label in labels), default=0))
    width = column_or_page(0.9 + letters + side * n_columns)
    return new_axes(width, 0.6 + 0.75 * letters + max(1.1, side * n_rows))


def draw_matrix(
    ax: Axes,
    values: Float[np.ndarray, "row column"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    label: str,
    limits: tuple[float, float] = (0.0, 1.0),
    form: str = "{:.2f}",
    colours: str = SHARES,
) -> AxesImage:
    """Draw numbers as squares with a colour bar; NaN stays white, and a number is written in each other square."""
    image = ax.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    colour_bar(ax, image, shrink=0.9).set_label(label)
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        # Rounded first: what is nought to the last digit shown has no sign.
        text = form.format(round(float(value), 6)).replace("-0.00", "0.00")
        ax.text(column, row, text, ha="center", va="center", color=ink(image, value), fontsize=SMALL)
    figure: Any = ax.get_figure(root=True)
    most = _LETTERS if figure.get_size_inches()[0] <= COLUMN else 2 * _LETTERS
    across, down = ([written(name, most) for name in names] for names in (columns, rows))
    ax.set_xticks(range(len(columns)), across, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), down)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image
