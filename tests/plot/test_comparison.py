from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from cs_heads import plot
from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.gating import score_of_heads
from cs_heads.units import Grid
from tests.analysis.test_gating import made_gates
from tests.known_heads import WORKING
from tests.plot.studies import made_comparison


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture
def comparison() -> Comparison:
    return made_comparison()


def test_every_method_is_a_line_of_its_drops_and_random_heads_another(comparison, ax):
    plot.drops(comparison, ax)
    lines = {line.get_label(): line.get_ydata().tolist() for line in ax.get_lines()}
    assert lines == {
        "random heads (2 sets)": pytest.approx([0.0, 0.05, 0.15]),
        "css (10,100)": pytest.approx([0.3, 0.5, 0.6]),
        "greedy (63,100)": pytest.approx([0.3, 0.6, 0.7]),
    }
    assert ax.get_title() == "capitals: drop on unseen examples"
    assert {line.get_marker() for line in ax.get_lines()[1:]} == {"o", "s"}


def test_the_interval_of_each_drop_is_a_band(comparison, ax):
    plot.drops(comparison, ax)
    _, css, greedy = (band.get_paths()[0].vertices for band in ax.collections)
    assert (css[:, 1].min(), css[:, 1].max()) == pytest.approx((0.22, 0.68))
    assert (greedy[:, 1].min(), greedy[:, 1].max()) == pytest.approx((0.22, 0.78))


@pytest.mark.parametrize("draw", [plot.drops, plot.cost])
def test_random_heads_that_take_nothing_are_seen(comparison, ax, draw):
    """The line lies inside the axes and above those of the methods."""
    comparison.random_drops[:] = 0
    draw(comparison, ax)
    [random] = [line for line in ax.get_lines() if line.get_label().startswith("random heads")]
    assert set(random.get_ydata()) == {0}
    assert ax.get_ylim()[0] < -0.01
    others = [line for line in ax.get_lines() if line is not random]
    assert random.get_zorder() > max(line.get_zorder() for line in others)
    assert random.get_linewidth() > 1.4


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_among_other_axes_the_legend_is_inside(comparison, layout):
    figure = Figure(figsize=(9, 3), layout=layout)
    ax = figure.subplots(1, 2)[0]
    plot.drops(comparison, ax)
    figure.draw_without_rendering()
    box, inside = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert inside.x0 <= box.x0 < box.x1 <= inside.x1
    assert inside.y0 <= box.y0 < box.y1 <= inside.y1
    assert not figure.legends


def test_agreement_is_a_symmetric_table_with_its_numbers(comparison, ax):
    plot.agreement(comparison, ax)
    assert ax.images[0].get_array().tolist() == [[1, 1], [1, 1]]
    assert [text.get_text() for text in ax.texts] == ["1.00"] * 4
    assert [label.get_text() for label in ax.get_yticklabels()] == ["css", "greedy"]


def test_cost_is_drawn_against_what_the_heads_take(comparison, ax):
    plot.cost(comparison, ax)
    points = {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()[:2]}
    assert points == {"css": [[10_100, pytest.approx(0.5)]], "greedy": [[63_100, pytest.approx(0.6)]]}
    ends = [lines.get_segments()[0][:, 1].tolist() for lines in ax.collections]
    assert ends == [pytest.approx([0.42, 0.58]), pytest.approx([0.52, 0.68])]
    assert {line.get_marker() for line in ax.get_lines()[:2]} == {"o", "s"}


# Gates


def test_every_gate_is_a_line_in_each_phase():
    axes = plot.trajectories(made_gates(), seed=1)
    assert [len(ax.get_lines()) for ax in axes] == [12, 12 + 3, 12]
    assert [ax.get_title() for ax in axes] == ["no penalty", "pushed open (G⁺)", "pushed shut (G⁻)"]


def test_gates_of_other_units_have_their_names():
    gates = replace(made_gates(), grid=Grid(*made_gates().free.shape[1:], "kv"))
    assert {text.get_text() for ax in plot.trajectories(gates, heads=["L1KV0"]) for text in ax.texts} == {"L1KV0"}
    assert {ax.get_xlabel() for ax in plot.gate_maps(gates)} == {"key/value group"}


@pytest.mark.parametrize("over", ["mean", "any"])
def test_a_group_is_drawn_beside_all_others_as_it_was_tested(ax, over):
    test = score_of_heads(made_gates(), WORKING, over=over)
    plot.group(test, ax)
    drawn = [points.get_offsets()[:, 1].tolist() for points in ax.collections if len(points.get_offsets()) > 1]
    assert drawn == [test.scores.tolist(), test.others.tolist()]
    assert ax.get_title() == f"t = {test.t:.2f}, p = {test.p:.2g}"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2 heads", "other 10"]
    assert ax.get_ylabel() == f"facilitation ({'largest' if over == 'any' else 'mean'} over seeds)"
