"""Pictures of the analyses: what they show is what was measured, and all of it can be read."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cs_heads import plot
from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import prove
from cs_heads.analysis.contrasts import HeldOutContrasts, HeldOutScore
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.failures import FailureModes, Share
from cs_heads.analysis.faithfulness import faithfulness
from cs_heads.analysis.formats import FormatHeads
from cs_heads.analysis.gating import ToggleCurve, taxonomy
from cs_heads.analysis.overlap import head_overlap
from cs_heads.analysis.scale_study import Study, scale_study
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.analysis.universal import universal_heads
from cs_heads.plot.style import COLUMN, PAGE, ROLES
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Head
from tests.analysis.test_gating import gates_of, made_gates
from tests.methods.planted import Planted
from tests.plot.looking import unread

GRID = Grid(4, 4)
A, B = Head(0, 1), Head(2, 2)


def columns():
    drops = {"sums": {A: 0.5}, "a task of a rather long name": {B: 0.6}, "$code$_with_signs": {}}
    return [
        Column(name, "own" if n < 2 else "control", (Planted(GRID, d),)) for n, (name, d) in enumerate(drops.items())
    ]


@pytest.fixture(scope="module")
def drops():
    sets = {"sums": [A], "a task of a rather long name": [B, A]}
    return measure_drops(columns(), sets, {name: name for name in sets})


@pytest.fixture(scope="module")
def scale():
    importance = np.zeros((4, 4))
    importance[0, 1], importance[2, 2] = 0.5, 0.4
    ranking = HeadRanking("css", importance, spent=0)
    proven = prove(Planted(GRID, {A: 0.5}), [A])
    return scale_study(
        {"small": Study(ranking, proven), "a larger model": Study(ranking, prove(Planted(GRID, {}), [A]))}
    )


@pytest.fixture(scope="module")
def formats():
    sets = [replace(column, role=role) for column, role in zip(columns(), ("letters", "full", "control"), strict=True)]
    for column in sets[:2]:
        column.parts[0].chance = 0.25
    return FormatHeads(measure_drops(sets, {"L0H1": [A], "L2H2": [B]}, {}))


@pytest.fixture(scope="module")
def failures():
    kinds = {"wrong": Share(3, 30), "choices unlikely": Share(0, 30), "same place": Share(12, 30)}
    off = {**kinds, "wrong": Share(25, 30)}
    return FailureModes({"top heads": (A,)}, {"intact": kinds, "top heads": off})


@pytest.fixture(scope="module")
def contrasts():
    seen = {True: (0.9, (0.8, 0.95)), False: (0.1, (0.05, 0.2))}
    scores = [
        HeldOutScore(held, kept, measured, 0.95, *seen[kept == measured])
        for held in ("antonym", "capitalize")
        for kept in ("few_shot", "instruction")
        for measured in ("few_shot", "instruction")
    ]
    return HeldOutContrasts(tuple(scores), {}, spent=0)


@pytest.fixture(scope="module")
def overlap():
    return head_overlap({"sums": [A, B], "code": [A, B], "rhyme": ["L3H3"]}, grid=GRID, n_key_value_heads=2)


@pytest.fixture(scope="module")
def toggles():
    points = np.array([1, 5, 9])
    return [
        ToggleCurve(by, points, np.array([[v, v, 2 * v]])) for by, v in (("facilitation", -1.0), ("interference", 0.2))
    ]


@pytest.fixture(scope="module")
def universal():
    tasks = {name: Planted(GRID, {A: 0.8}) for name in ("sums", "code")}
    return universal_heads(tasks, [A, B], Planted(GRID, {A: 0.8}))


MEDIATED = pd.DataFrame({"sigmas": [0.1, -0.4, 0.3, 5.0], "facilitation_any": [0.2, 0.9, 0.1, 1.0]})

# What a demo model's tasks are called where they stand in for a paper's.
LONG = ["demo/word_problems (gsm8k)", "demo/word_problems (arithmetic)", "demo/code", "demo/multiple_choice (mmlu)"]
LONG += ["demo/swearing", "demo/copying", "demo/agreement", "demo/rhyme"]
TEN = ["arithmetic", "code", "rhyme", "capitals", "swearing", "copying", "few shots", "translation", "MMLU", "WMDP"]


@pytest.fixture(scope="module")
def ten_tasks():
    columns = [
        Column(name, "own" if n < 2 else "control", (Planted(GRID, {GRID.unit(n): 0.5}),)) for n, name in enumerate(TEN)
    ]
    sets = {name: [GRID.unit(n), GRID.unit(n + 1)] for n, name in enumerate(TEN[:2])}
    return measure_drops(columns, sets, {name: name for name in sets})


@pytest.fixture(scope="module")
def long_names():
    columns = [Column(name, "control", (Planted(GRID, {}),)) for name in LONG]
    return measure_drops(columns, {"math": [A]}, {"math": LONG[0]})


@pytest.fixture
def picture(request):
    """The axes that one drawing makes for itself."""
    draw, name, more = request.param
    found = request.getfixturevalue(name) if isinstance(name, str) else name()
    return draw(found, **more)


ALL = [
    (plot.specificity, "drops", {}),
    (plot.radar, "drops", {}),
    (plot.drop_matrix, "drops", {}),
    (plot.sparsity, lambda: measure_sparsity(columns(), [A, B]), {}),
    (plot.faithfulness, "faithful", {}),
    (plot.overlap, "overlap", {}),
    (plot.overlap, "overlap", {"value": "groups"}),
    (plot.universal, "universal", {}),
    (plot.failures, "failures", {}),
    (plot.format_heads, "formats", {}),
    (plot.scale_study, "scale", {}),
    (plot.depth_profiles, "scale", {}),
    (plot.taxonomy, lambda: taxonomy({"sums": made_gates(), "code": made_gates()}), {}),
    (plot.score_ecdf, made_gates, {}),
    (plot.gate_plane, made_gates, {}),
    (plot.mediating, lambda: MEDIATED, {"sigmas": 3.0}),
    (plot.toggle_curves, "toggles", {}),
    (plot.contrasts, "contrasts", {}),
]


@pytest.mark.parametrize("picture", ALL, indirect=True, ids=lambda one: one[0].__name__)
def test_everything_written_can_be_read_at_the_width_of_a_column(picture):
    figure = picture.figure
    assert unread(figure) == {}
    assert figure.get_size_inches()[0] == pytest.approx(COLUMN)


LARGE = [
    (plot.radar, "ten_tasks", COLUMN),
    (plot.radar, "long_names", COLUMN),
    (plot.specificity, "ten_tasks", PAGE),
    (plot.drop_matrix, "ten_tasks", PAGE),
]


@pytest.mark.parametrize(("draw", "name", "width"), LARGE, ids=lambda one: getattr(one, "__name__", None))
def test_ten_tasks_can_be_read_at_the_width_of_a_column_or_a_page(request, draw, name, width):
    figure = draw(request.getfixturevalue(name)).figure
    assert unread(figure) == {}
    assert figure.get_size_inches()[0] == pytest.approx(width)


def test_maps_of_gates_have_a_channel_for_each_score_and_are_dark_where_both_are_high():
    # The first head facilitates in both seeds, the second interferes in one, the third does each in one.
    plus, minus = [[[1, 0, 1]], [[1, 1, 0]]], [[[1, 0, 1]], [[1, 0, 0]]]
    always, anywhere = (np.asarray(ax.images[0].get_array()[0]) for ax in plot.gate_maps(gates_of(plus, minus)))
    blue, orange = (np.array(to_rgb(ROLES[name][0])) for name in ("facilitation", "interference"))
    assert always == pytest.approx(np.array([blue, np.ones(3), np.ones(3)]))
    assert anywhere == pytest.approx(np.array([blue, orange, np.clip(blue + orange - 1, 0, 1)]))
    plt.close("all")


def test_bars_are_as_high_as_the_scores(drops):
    ax = plot.specificity(drops, Figure().subplots())
    heights = [bar.get_height() for container in ax.containers for bar in getattr(container, "patches", ())]
    rows = [drops.drops[name] for name in drops.drops]
    expected = [d.baseline for d in rows[0].values()] + [d.score for row in rows for d in row.values()]
    assert heights == pytest.approx(expected)
    assert ax.get_xticklabels()[0].get_text() == "sums (own)"


def test_what_guessing_scores_is_a_line_that_the_key_names():
    reading, sums = (Planted(GRID, {A: 0.5}) for _ in range(2))
    reading.chance = 0.5
    columns = [Column("reading", "own", (reading,)), Column("sums", "control", (sums,))]
    ax = plot.specificity(measure_drops(columns, {"reading": [A]}, {"reading": "reading"}))
    [line] = [lines for lines in ax.collections if lines.get_label() == "guessing"]
    assert line.get_segments()[0][:, 1].tolist() == [0.5, 0.5]
    assert "guessing" in [text.get_text() for text in ax.figure.legends[0].get_texts()]
    plt.close(ax.figure)


def test_rings_go_through_the_scores(drops):
    ax = plot.radar(drops, Figure().add_subplot(projection="polar"))
    intact, sums, _ = ax.get_lines()
    assert intact.get_ydata()[:-1] == pytest.approx([d.baseline for d in drops.drops["sums"].values()])
    assert sums.get_ydata()[:-1] == pytest.approx([d.score for d in drops.drops["sums"].values()])


def test_the_matrix_frames_the_own_task(drops):
    ax = plot.drop_matrix(drops, Figure().subplots())
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(drops.matrix().to_numpy())
    assert [round(frame.get_x() + 0.48) for frame in ax.patches] == [0, 1]
    # Black within white: on light, dark and gray squares alike.
    assert {frame.get_edgecolor() for frame in ax.patches} == {(0.0, 0.0, 0.0, 1.0)}
    assert all(frame.get_path_effects() for frame in ax.patches)
    assert ax.get_xlabel() == "measured on (framed: their own)"


@pytest.mark.parametrize(("chance", "last"), [(0.0, "1.0"), (0.6, "≥ 1.0")])
def test_the_bar_says_where_a_loss_is_beyond_its_end(chance, last):
    reading = Planted(GRID, {A: 0.5})
    reading.chance = chance
    drops = measure_drops([Column("reading", "own", (reading,))], {"reading": [A]}, {"reading": "reading"})
    ax = plot.drop_matrix(drops, value="loss")
    ax.figure.draw_without_rendering()
    lost = drops.drops["reading"]["reading"].loss
    assert (lost > 1) == (chance > 0)
    assert [text.get_text() for text in ax.texts] == [f"{lost:.1f}↓" if lost > 1 else f"{lost:.2f}"]
    assert ("↓: falls below chance" in ax.get_xlabel()) == (lost > 1)
    bar = ax.images[0].colorbar
    assert [label.get_text() for label in bar.ax.get_yticklabels()][-1] in (last, f"{last}0")
    assert bar.ax.get_ylabel() == "loss"
    plt.close(ax.figure)


def test_what_chance_does_not_explain_carries_an_asterisk():
    grid = Grid(16, 16)
    same = [grid.unit(i) for i in (3, 40, 77, 140)]
    found = head_overlap({"a": same, "b": same, "c": [grid.unit(9)]}, grid=grid)
    ax = plot.overlap(found, Figure().subplots())
    assert [text.get_text() for text in ax.texts] == ["4", "4*", "0", "4*", "4", "0", "0", "0", "1"]
    assert ax.get_xlabel() == "* more than chance explains (q < 0.05)"


def test_a_model_that_is_not_localized_is_hollow(scale):
    ax = plot.scale_study(scale, Figure().subplots())
    fills = [line.get_markerfacecolor() for line in ax.get_lines() if line.get_marker() == "o"]
    assert [fill == "white" for fill in fills] == [False, True]
    assert ax.get_xlabel() == "localization index\n(hollow: not localized)"


def test_what_cannot_be_drawn_is_refused(drops, overlap, scale):
    with pytest.raises(ValueError, match="ax must be polar axes, got rectilinear"):
        plot.radar(drops, Figure().subplots())
    with pytest.raises(
        ValueError, match="value must be 'heads', or 'groups' where heads share keys and values; got 'p'"
    ):
        plot.overlap(overlap, value="p")
    with pytest.raises(ValueError, match="study must hold a model with a proof on unseen examples"):
        plot.scale_study(scale_study({"a": scale.models[0].study.ranking}))


@pytest.fixture(scope="module")
def faithful():
    rng, rankings = np.random.default_rng(0), {}
    for name in ("annealed", "a $method$ with a rather long name, and more of it", "gradient"):
        importance = rng.normal(size=(4, 4))
        importance[0, 1] = importance[2, 2] = 5
        rankings[name] = HeadRanking("css", importance, spent=0)
    experiment = Planted(GRID, {A: 0.4, B: 0.3, Head(3, 3): 0.1})
    return faithfulness(None, experiment, rankings, n_random=3)


def test_faithfulness_is_a_line_for_each_ranking_with_random_orders_in_gray_and_the_model_at_one(faithful):
    ax = plot.faithfulness(faithful, Figure().subplots())
    model, random, *lines = ax.get_lines()
    assert set(model.get_ydata()) == {1}
    assert random.get_label() == "random orders of heads (3)"
    assert random.get_ydata() == pytest.approx(faithful.random.mean(axis=0))
    for line, curve in zip(lines, faithful.curves.values(), strict=True):
        assert line.get_xdata() == pytest.approx(faithful.shares)
        assert line.get_ydata() == pytest.approx(curve.faithfulness)
        assert line.get_label().endswith(f"(CPR {curve.cpr:.2f}, CMD {curve.cmd:.2f})")
    assert ax.get_xscale() == "symlog"
    assert ax.get_xlabel() == "share of heads kept, all others ablated"
