import pytest
from matplotlib import pyplot as plt

from cs_heads import plot
from cs_heads.plot.style import draw_to
from tests.analysis.test_gating import made_gates
from tests.plot.studies import made_comparison


@pytest.mark.parametrize(
    ("draw", "given"),
    [(plot.drops, made_comparison), (plot.comparison, made_comparison), (plot.trajectories, made_gates)],
    ids=["axes", "figure", "several axes"],
)
def test_what_is_drawn_is_written_and_no_figure_is_left_open(draw, given, tmp_path):
    files = draw_to(tmp_path / "drawn", draw, given())
    assert [file.name for file in files] == ["drawn.png", "drawn.svg"]
    assert plt.imread(files[0]).ndim == 3
    assert plt.get_fignums() == []


def test_an_ending_is_the_one_that_is_written(tmp_path):
    assert draw_to(tmp_path / "drops.png", plot.drops, made_comparison()) == [tmp_path / "drops.png"]
