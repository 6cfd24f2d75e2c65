import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs_heads.measure.cost import Cost
from cs_heads.methods.gating.result import HeadGates
from cs_heads.views.roles import plot_roles
from tests.views.looking import clipped, overlapping, smallest


def made(plus, minus) -> HeadGates:
    plus, minus = np.array([plus], dtype=float), np.array([minus], dtype=float)
    return HeadGates(
        free=plus,
        plus=plus,
        minus=minus,
        losses=np.ones((3, 1, 2)),
        trajectory=np.ones((3, 1, 2, *plus.shape[1:])),
        at=np.arange(2),
        cost=Cost(1, 1),
        provenance={"task": {"name": "capitals"}},
    )


# L0H0 facilitates (kept open even when pushed shut), L0H1 interferes (shut even when pushed open), L1H0 does neither.
GATES = made(plus=[[1, 0], [1, 1]], minus=[[1, 0], [0, 0.3]])


@pytest.fixture
def ax():
    return plot_roles(GATES, Figure().subplots())


def test_green_facilitates_red_interferes_and_white_does_neither(ax):
    (green, red), (white, pale) = ax.images[0].get_array()
    assert green[1] > green[0]
    assert green[1] > green[2]
    assert red[0] > red[1]
    assert red[0] > red[2]
    assert white.tolist() == [1, 1, 1]
    assert green[0] < pale[0] < 1


def test_clear_roles_carry_signs_so_that_nobody_needs_the_colours(ax):
    signs = {line.get_marker(): line.get_xydata().tolist() for line in ax.get_lines()}
    assert signs == {"P": [[0, 0]], "X": [[1, 0]]}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "facilitation of 0.5 or more",
        "interference of 0.5 or more",
    ]


def test_the_threshold_of_signs_can_be_moved():
    ax = plot_roles(GATES, Figure().subplots(), marked=0.25)
    assert ax.get_lines()[0].get_xydata().tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("shape", [(2, 2), (8, 16), (32, 32), (80, 64)])
def test_a_map_of_roles_is_legible_at_the_width_of_a_column(shape):
    rng = np.random.default_rng(0)
    figure = plot_roles(made(rng.random(shape), rng.random(shape) / 2)).figure
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    assert (clipped(figure), overlapping(figure)) == ([], [])
    assert smallest(figure) >= 7
    plt.close(figure)
