from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from cs_heads import plot
from cs_heads.plot.looks import MARKERS, is_letter
from cs_heads.plot.maps import heads_caption
from cs_heads.plot.style import ROLES
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head, HeadGrid
from tests.plot.looking import clipped, overlapping, smallest

IMPORTANCE = np.array([[0.0, 0.4, -0.6, 0.1], [0.3, 0.0, 0.05, 0.0], [0.0, 0.2, 0.0, -0.1]])
RANKING = HeadRanking("css", IMPORTANCE, spent=800, provenance={"task": {"name": "capitals"}})


@pytest.fixture
def ax():
    return Figure().subplots()


def marked(ax) -> list[Head]:
    """The heads that carry a marker, in the order they were marked."""
    points = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    assert all(len(line.get_xdata()) == 1 for line in points)
    return [Head(int(line.get_ydata()[0]), int(line.get_xdata()[0])) for line in points]


def numbers(ax) -> dict[str, tuple[int, int]]:
    """Where the head lies that each number belongs to."""
    return {text.get_text(): text.xy for text in ax.texts if text.get_text().isdigit()}


@pytest.mark.parametrize("k", [1, 3])
def test_the_top_heads_are_marked_and_numbered(ax, k):
    plot.heads(RANKING, k, ax)
    assert marked(ax) == RANKING.top(k)
    assert numbers(ax) == {str(i + 1): (head.head, head.layer) for i, head in enumerate(RANKING.top(k))}


def test_heads_without_importance_are_not_marked(ax):
    plot.heads(RANKING, 12, ax)
    assert marked(ax) == RANKING.top(5)


def test_shared_heads_are_marked_and_do_not_set_the_scale(ax):
    plot.heads(HeadRanking("annealed", IMPORTANCE, spent=800, shared=(Head(0, 2),)), 2, ax)
    assert ax.images[0].get_clim() == (-0.4, 0.4)
    assert [text.xy for text in ax.texts if text.get_text() == "S"] == [(2, 0)]
    assert marked(ax) == [Head(0, 1), Head(1, 0)]


def test_every_head_is_drawn_at_its_layer_and_number(ax):
    plot.heads(RANKING, ax=ax)
    assert np.array_equal(ax.images[0].get_array(), IMPORTANCE)
    assert ax.images[0].origin == "upper"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_the_colors_are_symmetric_about_zero_and_blue_is_important(ax):
    plot.heads(RANKING, ax=ax)
    image = ax.images[0]
    assert image.get_clim() == (-0.6, 0.6)
    assert image.to_rgba(0.6)[:3] == pytest.approx(to_rgb(ROLES["facilitation"][0]))
    assert image.to_rgba(-0.6)[:3] == pytest.approx(to_rgb(ROLES["interference"][0]))
    assert image.to_rgba(0.0)[:3] == pytest.approx((1, 1, 1), abs=0.05)


def test_a_ranking_of_zeros_is_drawn_white(ax):
    plot.heads(HeadRanking("css", np.zeros((2, 3)), spent=0), ax=ax)
    assert ax.images[0].get_clim() == (-1, 1)
    assert marked(ax) == []


def test_the_title_names_task_and_method(ax):
    assert plot.heads(RANKING, ax=ax).get_title() == "capitals (css)"
    assert plot.heads(HeadRanking("csb", IMPORTANCE, spent=0), ax=ax).get_title() == "csb"


def test_the_verdict_joins_the_title(ax):
    assert plot.heads(RANKING, ax=ax, verdict="localized").get_title() == "capitals (css): localized"


def large(n_layers, n_heads, key_value_heads=None) -> HeadRanking:
    """Five heads of falling importance among noise, one that interferes, and a shared one."""
    rng = np.random.default_rng(0)
    importance = rng.normal(0, 0.02, (n_layers, n_heads))
    chosen = rng.choice(importance.size, 6, replace=False)
    importance.ravel()[chosen] = [0.5, 0.4, 0.3, 0.25, 0.2, -0.4]
    heads = [Head(*divmod(int(index), n_heads)) for index in chosen]
    return HeadRanking(
        "annealed",
        importance,
        spent=800,
        interval=np.stack([importance - 0.1, importance + 0.1], axis=-1),
        z=importance / 0.05,
        claims=tuple(heads[:3]),
        shared=(Head(0, 0),) if Head(0, 0) not in heads else (Head(0, 1),),
        provenance={"task": {"name": "capitals"}, "model": {"key_value_heads": key_value_heads}},
    )


SHAPES = [(3, 4, 2), (8, 16, 8), (12, 12, None), (26, 8, 4), (32, 32, 8), (80, 64, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_claimed_heads_are_filled_and_others_hollow(ax, shape):
    ranking = large(*shape)
    plot.heads(ranking, 5, ax)
    points = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    hollow = [line.get_markerfacecolor() == "white" for line in points]
    assert hollow == [head not in ranking.claims for head in marked(ax)] == [False] * 3 + [True] * 2
    handles = ax.get_legend().legend_handles
    assert [handle.get_markerfacecolor() == "white" for handle in handles] == hollow


@pytest.mark.parametrize("shape", SHAPES)
def test_the_caption_says_what_is_drawn(ax, shape):
    assert heads_caption(large(*shape)) == (
        "Importance of every head: blue facilitates the task, orange interferes (a minus where clearly so). "
        "Marked and numbered: the first heads; ✓ claimed; hollow not claimed; S shared."
    )
    plot.heads(large(*shape), 5, ax)
    assert ax.get_legend().get_title().get_text() == "✓ claimed; hollow not claimed; S shared"
    assert "hollow" not in heads_caption(RANKING)
    assert heads_caption(RANKING, 1).endswith("Marked and numbered: the first heads.")


def with_heads(shape, heads) -> HeadRanking:
    importance = np.zeros(shape)
    for rank, head in enumerate(heads):
        importance[head.layer, head.head] = 1 / (rank + 2)
    return HeadRanking("css", importance, spent=0, provenance={"model": {"key_value_heads": 8}})


CROWDS = [
    [Head(0, 30), Head(0, 31), Head(1, 31), Head(1, 30)],
    [Head(5, 5), Head(5, 6), Head(5, 7), Head(6, 6), Head(4, 6)],
    [Head(31, 0), Head(31, 1), Head(31, 31), Head(0, 0), Head(0, 1)],
]


@pytest.mark.parametrize("heads", CROWDS, ids=str)
def test_every_number_stands_closest_to_its_own_head_or_is_joined_to_it(heads):
    ax = plot.heads(with_heads((32, 32), heads))
    figure = ax.figure
    figure.draw_without_rendering()
    places = ax.transData.transform([(head.head, head.layer) for head in heads])
    boxes = [Text.get_window_extent(text) for text in ax.texts]  # of the number, without its line
    for number, box in enumerate(boxes):
        middle = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
        closest = np.linalg.norm(places - middle, axis=1).argmin() == number
        assert closest or ax.texts[number].arrow_patch is not None
        assert not any(box.contains(*place) for place in places)
    assert overlapping(figure) == []
    plt.close(figure)


def test_markers_at_the_border_are_whole(ax):
    plot.heads(with_heads((32, 32), CROWDS[2]), ax=ax)
    assert not any(line.get_clip_on() for line in ax.get_lines() if line.get_linestyle() == "None")


def test_the_key_names_the_top_heads_with_their_intervals(ax):
    ranking = large(3, 4)
    plot.heads(ranking, 3, ax)
    first, *_, last = [text.get_text() for text in ax.get_legend().get_texts()]
    low, high = ranking.interval[ranking.top(1)[0].layer, ranking.top(1)[0].head]
    assert first == f"1  {ranking.top(1)[0]} ✓  +0.50 ({low:+.2f} to {high:+.2f})"
    assert last.startswith(f"3  {ranking.top(3)[2]} ")


def test_heads_that_interfere_carry_a_minus(ax):
    plot.heads(RANKING, ax=ax)
    [minus] = [points for points in ax.collections if len(points.get_offsets())]
    assert minus.get_offsets().tolist() == [[2, 0]]  # -0.6; the -0.1 of another is less than a fifth of it


def test_heads_that_share_keys_and_values_stand_between_lines(ax):
    plot.heads(large(3, 4, key_value_heads=2), ax=ax)
    assert [line.get_xdata()[0] for line in ax.get_lines() if line.get_linestyle() == "-"] == [1.5]
    [above] = ax.child_axes
    assert [label.get_text() for label in above.get_xticklabels()] == ["0", "1"]
    assert above.get_xticks().tolist() == [0.5, 2.5]


@pytest.mark.parametrize("key_value_heads", [None, 4, 1])
def test_without_groups_no_lines_are_drawn(ax, key_value_heads):
    plot.heads(large(3, 4), ax=ax, key_value_heads=key_value_heads)
    assert not [line for line in ax.get_lines() if line.get_linestyle() == "-"]
    assert not ax.child_axes


@pytest.mark.parametrize("key_value_heads", [3, 0, 8])
def test_groups_that_do_not_divide_the_heads_are_refused(ax, key_value_heads):
    with pytest.raises(ValueError, match=f"key_value_heads must divide the 4 heads of a layer, got {key_value_heads}"):
        plot.heads(RANKING, ax=ax, key_value_heads=key_value_heads)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_map_is_legible_at_the_width_of_a_column(shape):
    figure = plot.heads(large(*shape), verdict="localized").figure
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    assert clipped(figure) == []
    assert overlapping(figure) == []
    assert smallest(figure) >= 7
    plt.close(figure)


def test_two_maps_share_a_figure_each_with_its_own_key():
    figure = Figure(figsize=(6.9, 4), layout="constrained")
    for ax in figure.subplots(1, 2):
        plot.heads(large(8, 16, 8), ax=ax)
    assert len([ax for ax in figure.axes if ax.get_legend()]) == 2
    assert clipped(figure) == []


def test_the_key_of_a_map_does_not_reach_the_map_below():
    """In a figure without a layout of its own, as ``plt.subplots`` makes them."""
    figure = Figure(figsize=(9, 6))
    axes = figure.subplots(2, 2)
    for ax in axes.flat:
        plot.heads(large(8, 16, 8), ax=ax)
    figure.draw_without_rendering()
    for above, below in axes.T:
        assert above.get_legend().get_window_extent().y0 > below.get_window_extent().y1


def test_two_heads_that_want_one_marker_have_two(ax):
    ranking = with_heads((3, 4), [Head(0, 1), Head(1, 0), Head(0, 3), Head(1, 2), Head(2, 1)])
    plot.heads(replace(ranking, provenance={}), ax=ax)
    points = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    assert len({line.get_marker() for line in points}) == 5
    handles = ax.get_legend().legend_handles
    assert [handle.get_marker() for handle in handles] == [line.get_marker() for line in points]


def test_marks_that_are_letters_have_no_edge_that_covers_them(ax):
    plot.heads(replace(with_heads((4, 5), list(HeadGrid(4, 5))), provenance={}), k=20, ax=ax)
    points = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    assert len({line.get_marker() for line in points}) == len(points) == 20
    letters = [is_letter(line.get_marker()) for line in points]
    assert [line.get_markeredgewidth() == 0 for line in points] == letters
    assert sum(letters) == 20 - len(MARKERS)


def test_scores_are_not_called_points(ax):
    plot.heads(RANKING, ax=ax)
    assert [each.get_ylabel() for each in ax.figure.axes if each is not ax] == ["importance (score lost)"]


def test_the_axes_given_are_drawn_on_and_returned(ax):
    assert plot.heads(RANKING, ax=ax) is ax
    assert plt.get_fignums() == []


def test_without_axes_a_new_figure_is_made():
    made = plot.heads(RANKING)
    assert plt.get_fignums() == [made.figure.number]
    plt.close(made.figure)


def test_a_large_model_has_a_picture_of_bounded_size_and_readable_ticks():
    made = plot.heads(HeadRanking("css", np.zeros((80, 64)), spent=0))
    width, height = made.figure.get_size_inches()
    assert max(width, height) <= 14
    assert max(len(made.get_xticks()), len(made.get_yticks())) <= 32
    plt.close(made.figure)
