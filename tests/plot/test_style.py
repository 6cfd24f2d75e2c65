import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from cs_heads.methods import METHODS
from cs_heads.plot.head_markers import HEAD_COLORS, head_look, head_looks, same_looks
from cs_heads.plot.skills import FEW_SKILLS, MANY_SKILLS
from cs_heads.plot.style import COLORS, ROLES, line_look, new_figure, save
from cs_heads.units import Grid, Head

# How the cones of the two common kinds of color-blind people see linear RGB (Viénot, Brettel and Mollon, 1999).
SEEN_BY = {
    "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


def outline_of(marker: str) -> bytes:
    style = MarkerStyle(marker)
    return style.get_transform().transform_path(style.get_path()).vertices.round(6).tobytes()


def test_heads_near_each_other_look_different():
    grid = Grid(4, 4)
    looks = [(head_look(head).color, head_look(head).marker) for head in grid]
    assert len(set(looks)) >= 14
    for head in grid:
        for near in (Head(head.layer + 1, head.head), Head(head.layer, head.head + 1)):
            assert head_look(head).color != head_look(near).color
            assert head_look(head).marker != head_look(near).marker


def test_twelve_heads_of_a_picture_have_twelve_markers_and_more_have_looks_all_the_same():
    heads = list(Grid(4, 5))
    with same_looks(heads[::-1], heads[::2]):
        assert len({outline_of(look.marker) for look in head_looks(heads[:12]).values()}) == 12
        assert head_looks(heads).keys() == {*heads}


def test_a_head_looks_the_same_in_all_pictures_of_a_page():
    first, second, third = Head(0, 1), Head(1, 0), Head(2, 9)  # all want the same marker
    with same_looks([first, second], [second, third]):
        looks = head_looks([first, second])
        assert head_looks([second, third])[second] == looks[second]
        assert len({look.marker for look in looks.values()}) == 2
    assert head_looks([second, third])[second] == head_look(second) != looks[second]


def test_the_looks_of_lines_differ_without_colors():
    looks = [line_look(place) for place in range(len(METHODS))]
    assert len({outline_of(look["marker"]) for look in looks}) == len(METHODS)


@pytest.mark.parametrize("kind", SEEN_BY)
@pytest.mark.parametrize(
    "colors",
    [HEAD_COLORS, COLORS, [color for color, *_ in ROLES.values()], FEW_SKILLS, MANY_SKILLS],
    ids=["heads", "lines", "roles", "few skills", "many skills"],
)
def test_colors_are_told_apart_by_the_color_blind(colors, kind):
    linear = np.array([to_rgb(color) for color in colors]) ** 2.2
    seen = np.clip(linear @ np.array(SEEN_BY[kind]).T, 0, 1) ** (1 / 2.2)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert apart[~np.eye(len(colors), dtype=bool)].min() > 0.1


def test_no_line_or_bar_has_the_color_of_a_head():
    heads, lines = (np.array([to_rgb(color) for color in colors]) for colors in (HEAD_COLORS, COLORS))
    assert np.linalg.norm(heads[:, None] - lines[None], axis=-1).min() > 0.2
    assert {line_look(number)["color"] for number in range(9)} == set(COLORS)
    assert {head_look(head).color for head in Grid(8, 8)} == set(HEAD_COLORS)


@pytest.fixture
def picture():
    ax = new_figure(3.3, 2.0).subplots()
    ax.plot([0, 1], [1, 2], label="one")
    ax.set_xlabel("heads")
    return ax


def test_a_picture_is_written_in_every_format(picture, tmp_path):
    written = save(picture, tmp_path / "a.b")
    assert [path.name for path in written] == ["a.b.png", "a.b.svg", "a.b.pdf"]
    assert plt.imread(written[0]).shape[:2] == (600, 990)
    assert b"<svg" in written[1].read_bytes()
    assert b"/Type3" not in written[2].read_bytes()
    assert b"/FontFile2" in written[2].read_bytes()


@pytest.mark.parametrize("name", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_file(picture, tmp_path, name):
    first, second = (save(picture, tmp_path / f"{number}.{name}")[0] for number in (1, 2))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("formats", [[], ["png", "jpg"]])
def test_an_unknown_format_is_refused_before_anything_is_written(picture, tmp_path, formats):
    with pytest.raises(ValueError, match="formats must be of png, svg, pdf, got"):
        save(picture, tmp_path / "a", formats)
    assert list(tmp_path.iterdir()) == []
