"""Pictures that a paper prints: everything that is written in them can be read, a column or a page wide."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from cs_heads import plot
from cs_heads.analysis.attention import HABITS, HeadAttention, PromptAttention
from cs_heads.plot.style import COLUMN, PAGE, draw_to, figure_of
from cs_heads.units import Head
from tests.analysis.test_gating import made_gates as known_gates
from tests.plot.looking import unread
from tests.plot.studies import made_atlas, made_attention, made_cards, made_comparison, made_proof
from tests.plot.test_head_map import SHAPES, large
from tests.plot.test_recall import WORLDS
from tests.plot.test_roles import made as made_gates


def roles_of(shape):
    rng = np.random.default_rng(0)
    return made_gates(rng.random(shape), rng.random(shape) / 2)


def attention_of(n_heads, tokens):
    rng, n = np.random.default_rng(0), len(tokens)
    heads = tuple(Head(number, number) for number in range(n_heads))
    raw = np.tril(rng.random((2, n_heads, n, n)))
    return HeadAttention(heads, heads, (PromptAttention("", tuple(tokens), tuple(range(n)), *raw),))


WORDS = [f" word{number}" for number in range(60)]
ODD = ["a $5 b $6", "↵\n", "né", "x" * 12, "", "word"]
PICTURES = [
    *((plot.heads, large(*shape), COLUMN) for shape in SHAPES),
    *((plot.roles, roles_of(shape), COLUMN) for shape in ((2, 2), (80, 64))),
    *((plot.atlas, made_atlas(*shape), COLUMN) for shape in ((30, 9, 15), (3, 4, 2), (90, 2, 15))),
    (plot.atlas, made_atlas(16, 32, 15), PAGE),
    *((draw, made_atlas(30, 9, n), None) for draw in (plot.skill_tree, plot.skill_matrix) for n in (15,)),
    *((draw, made_comparison(), COLUMN) for draw in (plot.drops, plot.agreement, plot.cost)),
    (plot.comparison, made_comparison(), PAGE),
    (plot.confirmation, made_proof(), COLUMN),
    (plot.recall, WORLDS[WORLDS.n_heads == 512], COLUMN),
    (plot.recalls, WORLDS, PAGE),
    (plot.trajectories, known_gates(), PAGE),
    *((plot.attention, attention_of(n, WORDS[:size]), width) for n, size, width in ((1, 60, COLUMN), (8, 10, PAGE))),
    *((plot.last_token, attention_of(3, tokens), COLUMN) for tokens in (WORDS[:1], WORDS[:40], ODD)),
    *((plot.head_cards, made_cards(*size), PAGE) for size in ((1, 1), (2, 12), (6, 32))),
    (plot.habits, pd.DataFrame({"head": ["L0H1", "L2H2"], **dict.fromkeys(HABITS, 0.5)}), COLUMN),
]


@pytest.mark.parametrize(("draw", "given", "width"), PICTURES, ids=lambda each: getattr(each, "__name__", ""))
def test_everything_written_can_be_read(draw, given, width):
    drawn = draw(given)
    figure = figure_of(drawn.flat[0] if draw is plot.attention else drawn)
    assert plt.get_fignums() == [figure.number]
    assert unread(figure) == {}
    assert width is None or figure.get_size_inches()[0] == pytest.approx(width)


@pytest.mark.parametrize(
    ("draw", "given"), [(plot.drops, made_comparison()), (plot.comparison, made_comparison()), (plot.recalls, WORLDS)]
)
def test_what_is_drawn_is_written_and_no_figure_is_left_open(draw, given, tmp_path):
    assert draw_to(tmp_path / "one.png", draw, given) == [tmp_path / "one.png"]
    files = draw_to(tmp_path / "drawn", draw, given)
    assert [file.name for file in files] == ["drawn.png", "drawn.svg"]
    assert plt.imread(files[0]).ndim == 3
    assert plt.get_fignums() == []


def test_the_picture_of_a_view_has_two_dots_for_each_of_the_screen():
    png, size = plot.show_attention(made_attention())._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == pytest.approx(2 * size["width"], abs=2)
    assert plt.get_fignums() == []
