import pytest
from matplotlib import pyplot as plt

from cs_heads.plot.comparison import plot_comparison, plot_drops
from cs_heads.plot.drawing import drawing
from cs_heads.plot.gating import plot_trajectories
from tests.analysis.test_taxonomy import known_gates
from tests.plot.studies import made_comparison


@pytest.mark.parametrize(
    ("plot", "given"),
    [(plot_drops, made_comparison), (plot_comparison, made_comparison), (plot_trajectories, known_gates)],
    ids=["axes", "figure", "several axes"],
)
def test_what_is_drawn_is_written_and_no_figure_is_left_open(plot, given, tmp_path):
    files = drawing(plot, given())(tmp_path / "drawn")
    assert [file.name for file in files] == ["drawn.png", "drawn.svg"]
    assert plt.imread(files[0]).ndim == 3
    assert plt.get_fignums() == []


def test_an_ending_is_the_one_that_is_written(tmp_path):
    assert drawing(plot_drops, made_comparison())(tmp_path / "drops.png") == [tmp_path / "drops.png"]
