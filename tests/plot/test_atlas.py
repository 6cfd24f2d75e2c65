"""Pictures of an atlas: every head has the color and letter of its skill, and all of it can be read."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from cs_heads import plot
from cs_heads.plot.skills import NOTHING, UNIVERSAL, skill_looks, tinted
from cs_heads.units import Head
from tests.plot.looking import clipped
from tests.plot.studies import made_atlas

ATLAS = made_atlas()
LOOKS = skill_looks(ATLAS.skills, ATLAS.linkage())
NEAR_WHITE = pytest.approx(to_rgb(NOTHING))


@pytest.fixture
def ax():
    return Figure(figsize=(5, 4)).subplots()


def color_of(ax, head) -> tuple[float, ...]:
    return tuple(ax.images[0].get_array()[head.layer, head.index])


def letters(ax) -> dict[Head, str]:
    """What is written on each head."""
    return {Head(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in ax.texts}


def framed(ax) -> set[Head]:
    frames = [patch for patch in ax.patches if not patch.get_fill()]
    return {Head(round(frame.get_y() + 0.46), round(frame.get_x() + 0.46)) for frame in frames}


def halves(ax, head) -> list[tuple[float, ...]]:
    """The colors of a square that is split, from left to right."""
    filled = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_fill()]
    drawn = [patch for patch in filled if round(patch.get_y() + 0.5) == head.layer]
    inside = [patch for patch in drawn if head.index - 0.5 <= patch.get_x() < head.index + 0.5]
    return [patch.get_facecolor()[:3] for patch in sorted(inside, key=Rectangle.get_x)]


def discs(ax) -> list[Circle]:
    return [patch for patch in ax.patches if isinstance(patch, Circle)]


def rings(ax) -> set[Head]:
    return {Head(disc.center[1], disc.center[0]) for disc in discs(ax)}


def test_the_first_heads_of_each_skill_are_framed_and_carry_its_letter(ax):
    plot.atlas(ATLAS, ax)
    for name, heads in ATLAS.heads.items():
        own = [head for head in heads if head not in ATLAS.shared]
        assert own
        assert {letters(ax)[head] for head in own} == {LOOKS[name].letter}
    assert framed(ax) == {head for heads in ATLAS.heads.values() for head in heads}


def test_a_head_has_the_color_of_its_skill_the_fuller_the_more_it_takes(ax):
    plot.atlas(ATLAS, ax)
    strong, weak = Head(3, 0), Head(3, 1)
    look = LOOKS[ATLAS.skills[2]]
    # 0.8 and 0.4 of one skill of five are 0.64 and 0.32 above the mean, and 0.64 is the loss of the middle skill.
    assert color_of(ax, strong) == pytest.approx(to_rgb(look.color))
    assert color_of(ax, weak) == pytest.approx(tinted(look.color, 0.5))


@pytest.mark.parametrize(("loss", "seen"), [(0.03, False), (0.1, True)])
def test_a_head_beyond_the_first_has_a_color_where_its_loss_is_clear(ax, loss, seen):
    losses = ATLAS.losses.copy()
    losses[2, 7, 15] = loss  # errors are 0.01
    plot.atlas(replace(ATLAS, losses=losses), ax)
    assert (color_of(ax, Head(7, 15)) != NEAR_WHITE) == seen
    assert Head(7, 15) not in framed(ax)
    assert (letters(ax).get(Head(7, 15)) == LOOKS[ATLAS.skills[2]].letter) == seen
    thin = {text.get_text() for text in ax.texts if text.get_fontweight() == "normal"}
    assert (LOOKS[ATLAS.skills[2]].letter in thin) == seen
    title = ax.get_legend().get_title().get_text() if ax.get_legend() else ax.figure.legends[0].get_title().get_text()
    assert ("thin letter: others" in title) == seen


def test_the_bar_shows_the_colors_of_all_skills(ax):
    plot.atlas(ATLAS, ax)
    [bar] = [each for each in ax.figure.axes if each.get_label() == "<colorbar>"]
    shades = bar.images[0].get_array()
    assert [tuple(shade) for shade in shades[-1]] == [pytest.approx(to_rgb(look.color)) for look in LOOKS.values()]
    assert all(tuple(shade) == NEAR_WHITE for shade in shades[0])
    assert bar.get_ylabel() == "loss above the mean of skills"


def test_universal_heads_are_discs_in_a_ring_with_a_u(ax):
    plot.atlas(ATLAS, ax)
    assert ATLAS.universal == (Head(0, 0),)
    assert rings(ax) == {Head(0, 0)}
    ring, disc = discs(ax)
    assert (ring.get_edgecolor()[:3], disc.get_facecolor()[:3]) == (to_rgb("black"), to_rgb(UNIVERSAL))
    assert 1 > ring.radius > disc.radius > 0.5
    assert {head for head, letter in letters(ax).items() if letter == "U"} == {Head(0, 0)}


def test_a_shared_head_is_split_in_the_colors_of_its_skills_and_carries_their_number(ax):
    plot.atlas(ATLAS, ax)
    assert ATLAS.shared == {Head(0, 1): ATLAS.skills[:2]}
    expected = [tinted(look.color, 0.5 / 0.64) for name, look in LOOKS.items() if name in ATLAS.skills[:2]]
    assert halves(ax, Head(0, 1)) == [pytest.approx(tuple(color)) for color in expected]
    assert letters(ax)[Head(0, 1)] == "2"


def test_the_legend_gives_each_skill_its_letter_and_color_without_the_common_folder():
    [legend] = plot.atlas(ATLAS).figure.legends
    shown = {
        text.get_text(): handle.get_color() for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    skills = {f"{look.letter}  {name.removeprefix('everyday/')}": look.color for name, look in LOOKS.items()}
    assert shown == {**skills, "2  skills share it": "0.75", "U  universal": UNIVERSAL}
    assert legend.get_title().get_text() == "framed, with a letter: the heads of a skill"


def test_the_title_names_the_model_and_not_where_it_lies(ax):
    found = replace(ATLAS, provenance={"model": {"name": "/somewhere/models/tiny/"}})
    assert plot.atlas(found, ax).get_title() == "tiny: heads of 5 skills"


def test_small_squares_have_frames_and_no_letters():
    ax = plot.atlas(made_atlas(48, 64, 3, shared=False))
    assert not ax.texts
    assert len(framed(ax)) == 6
    assert rings(ax) == {Head(0, 0)}
    assert ax.figure.legends[0].get_title().get_text() == "framed: the heads of a skill"
    assert clipped(ax.figure) == []
    assert ax.figure.get_size_inches()[1] <= 9.2
    plt.close(ax.figure)


# The looks of skills


@pytest.mark.parametrize("n", [9, 15])
def test_up_to_fifteen_skills_have_colors_of_their_own(n):
    found = made_atlas(16, 16, n)
    looks = skill_looks(found.skills, found.linkage())
    assert looks.keys() == {*found.skills}
    assert len({look.color for look in looks.values()}) == n
    assert [look.letter for look in looks.values()] == list("ABCDEFGHIJKLMNO"[:n])


# The tree and the matrix


def test_the_tree_joins_the_skills_where_they_are_as_far_apart_as_it_says(ax):
    plot.skill_tree(ATLAS, ax)
    tree = ATLAS.linkage()
    lines = ax.collections[0].get_segments()
    upright = [line for line in lines if line[0][0] == line[1][0] and line[0][1] != line[1][1]]
    assert [line[0][0] for line in upright] == pytest.approx(tree[:, 2])
    near = {LOOKS[name].letter for name in ATLAS.skills[:2]}
    rows = {text.get_position()[1]: text.get_text() for text in ax.texts}
    assert {rows[end] for end in upright[0][:, 1]} == near
    assert tree[0, 2] < 0.9 < tree[1, 2]


def test_the_matrix_of_skills_is_in_the_order_of_the_tree(ax):
    plot.skill_matrix(ATLAS, ax)
    order = list(LOOKS)
    expected = ATLAS.matrix().loc[order, order].to_numpy()
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(expected)
    names = [f"{name.removeprefix('everyday/')} {look.letter}" for name, look in LOOKS.items()]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert [label.get_text() for label in ax.get_xticklabels()] == names


def test_the_matrix_frames_skills_that_are_kin_with_dashes(ax):
    plot.skill_matrix(ATLAS, ax)
    dashed = [patch for patch in ax.patches if patch.get_linestyle() not in ("-", "solid")]
    at = {(round(patch.get_y() + 0.46), round(patch.get_x() + 0.46)) for patch in dashed}
    first, second = (list(LOOKS).index(name) for name in ATLAS.skills[:2])
    assert at == {(first, second), (second, first)}
    assert ax.get_xlabel() == "measured on everyday/\n(framed: their own; dashed: kin; ↓: falls below chance)"
