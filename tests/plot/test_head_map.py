import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from cs_heads import plot
from cs_heads.plot.head_map import heads_caption
from cs_heads.plot.style import ROLES
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head
from tests.plot.looking import overlapping

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


def test_the_number_beside_a_head_is_its_rank_in_the_table_though_the_most_important_comes_first(ax):
    ranking = HeadRanking("annealed", IMPORTANCE, spent=800, chosen=(Head(1, 0), Head(0, 1)))
    plot.heads(ranking, 2, ax)
    assert marked(ax) == ranking.listed(2) == [Head(0, 1), Head(1, 0)]
    ranks = ranking.to_frame().set_index("head")["rank"]
    assert numbers(ax) == {str(ranks[str(head)]): (head.head, head.layer) for head in marked(ax)}
    told = [text.get_text() for text in ax.figure.legends[0].get_texts()]
    assert [line.split()[:2] for line in told] == [["2", "L0H1"], ["1", "L1H0"]]


def test_shared_heads_are_marked_and_do_not_set_the_scale(ax):
    plot.heads(HeadRanking("annealed", IMPORTANCE, spent=800, shared=(Head(0, 2),)), 2, ax)
    assert ax.images[0].get_clim() == (-0.4, 0.4)
    assert [text.xy for text in ax.texts if text.get_text() == "S"] == [(2, 0)]
    assert marked(ax) == [Head(0, 1), Head(1, 0)]


def test_every_head_is_drawn_at_its_layer_and_number_in_colors_that_are_symmetric_about_zero(ax):
    plot.heads(RANKING, ax=ax)
    image = ax.images[0]
    assert np.array_equal(image.get_array(), IMPORTANCE)
    assert (image.origin, ax.get_xlabel(), ax.get_ylabel()) == ("upper", "head", "layer")
    assert image.get_clim() == (-0.6, 0.6)
    assert image.to_rgba(0.6)[:3] == pytest.approx(to_rgb(ROLES["facilitation"][0]))
    assert image.to_rgba(-0.6)[:3] == pytest.approx(to_rgb(ROLES["interference"][0]))
    assert image.to_rgba(0.0)[:3] == pytest.approx((1, 1, 1), abs=0.05)


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


SHAPES = [(3, 4, 2), (12, 12, None), (80, 64, 8)]


def test_claimed_heads_are_filled_and_others_hollow(ax):
    ranking = large(*SHAPES[1])
    plot.heads(ranking, 5, ax)
    points = [line for line in ax.get_lines() if line.get_linestyle() == "None"]
    hollow = [line.get_markerfacecolor() == "white" for line in points]
    assert hollow == [head not in ranking.claims for head in marked(ax)] == [False] * 3 + [True] * 2
    handles = ax.figure.legends[0].legend_handles
    assert [handle.get_markerfacecolor() == "white" for handle in handles] == hollow


def test_the_caption_says_what_is_drawn(ax):
    ranking = large(*SHAPES[0])
    assert heads_caption(ranking) == (
        "Importance of every head: blue facilitates the task, orange interferes (a minus where clearly so). "
        "Marked, with their rank: the first heads; ✓ claimed; hollow not claimed; S shared."
    )
    plot.heads(ranking, 5, ax)
    assert ax.figure.legends[0].get_title().get_text() == "✓ claimed; hollow not claimed; S shared"
    assert "hollow" not in heads_caption(RANKING)
    assert heads_caption(RANKING, 1).endswith("Marked, with their rank: the first heads.")


def with_heads(shape, heads) -> HeadRanking:
    importance = np.zeros(shape)
    for rank, head in enumerate(heads):
        importance[head.layer, head.head] = 1 / (rank + 2)
    return HeadRanking("css", importance, spent=0, provenance={"model": {"key_value_heads": 8}})


CROWDS = [
    [Head(0, 30), Head(0, 31), Head(1, 31), Head(1, 30)],
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


@pytest.mark.parametrize("key_value_heads", [3, 0])
def test_groups_that_do_not_divide_the_heads_are_refused(ax, key_value_heads):
    with pytest.raises(ValueError, match=f"key_value_heads must divide the 4 heads of a layer, got {key_value_heads}"):
        plot.heads(RANKING, ax=ax, key_value_heads=key_value_heads)
