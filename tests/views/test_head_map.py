import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cs_heads.heads import Head
from cs_heads.ranking import HeadRanking
from cs_heads.views.head_map import plot_heads, save_head_map

IMPORTANCE = np.array([[0.0, 0.4, -0.6, 0.1], [0.3, 0.0, 0.05, 0.0], [0.0, 0.2, 0.0, -0.1]])
RANKING = HeadRanking("css", IMPORTANCE, spent=800, provenance={"task": {"name": "capitals"}})


@pytest.fixture
def ax():
    return Figure().subplots()


def framed(ax) -> list[Head]:
    """The heads whose square is framed, in the order they were framed."""
    frames = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert all((frame.get_width(), frame.get_height()) == (1, 1) for frame in frames)
    return [Head(round(frame.get_y() + 0.5), round(frame.get_x() + 0.5)) for frame in frames]


@pytest.mark.parametrize("k", [1, 3])
def test_the_top_heads_are_framed_and_numbered(ax, k):
    plot_heads(RANKING, k, ax)
    assert framed(ax) == RANKING.top(k)
    numbers = {text.get_text(): text.get_position() for text in ax.texts}
    assert numbers == {str(i + 1): (head.head, head.layer) for i, head in enumerate(RANKING.top(k))}


def test_heads_without_importance_are_not_framed(ax):
    plot_heads(RANKING, 12, ax)
    assert framed(ax) == RANKING.top(5)


def test_universal_heads_are_marked_and_do_not_set_the_scale(ax):
    plot_heads(HeadRanking("annealed", IMPORTANCE, spent=800, universal=(Head(0, 2),)), 2, ax)
    assert ax.images[0].get_clim() == (-0.4, 0.4)
    assert {text.get_text(): text.get_position() for text in ax.texts}["U"] == (2, 0)
    assert framed(ax) == [Head(0, 1), Head(1, 0)]


def test_every_head_is_drawn_at_its_layer_and_number(ax):
    plot_heads(RANKING, ax=ax)
    assert np.array_equal(ax.images[0].get_array(), IMPORTANCE)
    assert ax.images[0].origin == "upper"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_the_colours_are_symmetric_about_zero_and_red_is_important(ax):
    plot_heads(RANKING, ax=ax)
    image = ax.images[0]
    assert image.get_clim() == (-0.6, 0.6)
    red, _, blue, _ = image.to_rgba(0.6)
    assert red > blue
    assert image.to_rgba(0.0)[:3] == pytest.approx((1, 1, 1), abs=0.05)


def test_a_ranking_of_zeros_is_drawn_white(ax):
    plot_heads(HeadRanking("css", np.zeros((2, 3)), spent=0), ax=ax)
    assert ax.images[0].get_clim() == (-1, 1)
    assert framed(ax) == []


def test_the_title_names_task_and_method(ax):
    assert plot_heads(RANKING, ax=ax).get_title() == "capitals (css)"
    assert plot_heads(HeadRanking("csb", IMPORTANCE, spent=0), ax=ax).get_title() == "csb"


def test_the_axes_given_are_drawn_on_and_returned(ax):
    assert plot_heads(RANKING, ax=ax) is ax
    assert plt.get_fignums() == []


def test_without_axes_a_new_figure_is_made():
    made = plot_heads(RANKING)
    assert plt.get_fignums() == [made.figure.number]
    plt.close(made.figure)


def test_a_large_model_has_a_picture_of_bounded_size_and_readable_ticks():
    made = plot_heads(HeadRanking("css", np.zeros((80, 64)), spent=0))
    width, height = made.figure.get_size_inches()
    assert max(width, height) <= 14
    assert max(len(made.get_xticks()), len(made.get_yticks())) <= 32
    plt.close(made.figure)


def test_a_saved_map_is_a_picture_and_leaves_no_figure_open(tmp_path):
    save_head_map(RANKING, tmp_path / "heads.png", k=3)
    assert plt.imread(tmp_path / "heads.png").ndim == 3
    assert plt.get_fignums() == []
