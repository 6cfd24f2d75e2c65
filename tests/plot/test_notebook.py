import base64
from io import BytesIO

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs_heads import plot
from tests.plot.studies import made_ranking


@pytest.fixture
def shell():
    """What a notebook runs in, which shows figures as PNG."""
    made = InteractiveShell.instance()
    select_figure_formats(made, {"png"}, bbox_inches=None)
    yield made
    InteractiveShell.clear_instance()


def shown(shell, figure) -> tuple[dict, dict]:
    return shell.display_formatter.format(figure)


def size(picture) -> tuple[int, int]:
    raw = picture if isinstance(picture, bytes) else base64.b64decode(picture)
    return plt.imread(BytesIO(raw), format="png").shape[1::-1]


def test_a_notebook_shows_twice_the_dots_at_the_same_size(shell):
    figure = made_ranking().plot().figure
    data, told = shown(shell, figure)
    width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
    assert size(data["image/png"]) == pytest.approx((2 * width, 2 * height), abs=2)
    assert (told["image/png"]["width"], told["image/png"]["height"]) == pytest.approx((width, height), abs=1)


def test_figures_of_the_user_are_shown_as_before(shell):
    plot.heads(made_ranking())  # tells the notebook about its own figures
    figure = Figure(figsize=(3, 2), dpi=100)
    figure.subplots().plot([0, 1])
    data, told = shown(shell, figure)
    assert size(data["image/png"]) == (300, 200)
    assert not told.get("image/png")
