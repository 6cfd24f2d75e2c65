from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs_heads import plot
from cs_heads.analysis.confirm import Confirmation, TaskDrop
from cs_heads.units import Head
from tests.plot.looking import clipped, overlapping, smallest

TASKS = ["capitals", "arithmetic", "code", "multiple choice"]


def drops(broken: int) -> pd.DataFrame:
    baseline, drop = np.array([1.0, 0.8, 0.5, 0.9]), np.array([0.02, -0.01, 0.0, 0.05])
    drop[broken] = 0.4
    frame = pd.DataFrame({"task": TASKS, "baseline": baseline, "drop": drop, "low": drop - 0.1, "high": drop + 0.05})
    # Wider than the interval of the drop: the baseline is not known either.
    return frame.assign(relative_low=drop / baseline - 0.2, relative_high=drop / baseline + 0.1)


def lengths(ax) -> list[float]:
    return [bar.get_width() for bar in ax.patches]


def test_a_bar_is_the_share_of_the_baseline_that_is_lost():
    ax = plot.confirmation(drops(1), Figure().subplots())
    assert lengths(ax) == pytest.approx([0.02, 0.5, 0.0, 0.05 / 0.9])
    assert [label.get_text() for label in ax.get_yticklabels()] == TASKS


def test_drops_are_drawn_as_score_lost_on_request():
    ax = plot.confirmation(drops(1), Figure().subplots(), relative=False, random=0.03)
    assert lengths(ax) == pytest.approx([0.02, 0.4, 0.0, 0.05])
    assert [line.get_xdata()[0] for line in ax.get_lines() if line.get_label() == "random heads"] == [0.03]


@pytest.mark.parametrize(("relative", "ends"), [(True, [0.5 - 0.2, 0.5 + 0.1]), (False, [0.3, 0.45])])
def test_intervals_are_drawn_about_each_bar(relative, ends):
    ax = plot.confirmation(drops(1), Figure().subplots(), relative=relative)
    drawn = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    assert drawn[1] == pytest.approx(ends)


def test_a_share_whose_interval_is_not_known_is_drawn_without():
    """The drop over the baseline would pass for one that knows of the baseline's uncertainty."""
    ax = plot.confirmation(drops(1).drop(columns=["relative_low", "relative_high"]), Figure().subplots())
    assert lengths(ax)[1] == pytest.approx(0.5)
    assert all(np.ptp(segment[:, 0]) == 0 for segment in ax.collections[0].get_segments())


def test_a_task_that_can_show_nothing_says_so_in_place_of_a_bar():
    frame = drops(1).assign(too_low=[None, None, "the intact model answers 2 of 60 examples right", None])
    ax = plot.confirmation(frame, Figure().subplots())
    assert np.isnan(lengths(ax)).tolist() == [False, False, True, False]
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == [("baseline too low", 2)]


def test_the_sets_of_heads_of_one_result_stand_beside_each_other():
    both = pd.concat([drops(0).assign(found="first"), drops(2).assign(found="second")])
    ax = plot.confirmation(both, Figure().subplots())
    places = [round(bar.get_y() + bar.get_height() / 2, 3) for bar in ax.patches]
    assert len(set(places)) == len(places) == 8
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["first", "second"]


def test_random_heads_are_marked_at_the_task_they_were_measured_on():
    ax = plot.confirmation(drops(1), Figure().subplots(), random=0.03)
    (line,) = [line for line in ax.get_lines() if line.get_label() == "random heads"]
    assert max(line.get_ydata()) < 0.5
    [zero] = [other for other in ax.get_lines() if other.get_color() == "0.7"]
    assert line.get_zorder() > max(zero.get_zorder(), *(bar.get_zorder() for bar in ax.patches))
    assert line.get_linewidth() > 2 * zero.get_linewidth()


def test_a_confirmation_is_drawn_as_it_is():
    result = TaskDrop("capitals", 100, 0.0, 1.0, 0.04, (0.92, 0.99))
    control = TaskDrop("code", 100, 0.0, 0.97, 0.97, (0.0, 0.0))
    proof = Confirmation((Head(0, 0),), result, 0.02, (0.01, 0.03), 0.004, 0.0001, 0, "localized", (), (control,), 400)
    ax = plot.confirmation(proof, Figure().subplots())
    assert ax.get_title() == "localized"
    assert plot.confirmation(replace(proof, close_because="."), Figure().subplots()).get_title() == "localized (close)"
    assert lengths(ax) == pytest.approx([0.96, 0.0])
    assert [line.get_xdata()[0] for line in ax.get_lines() if line.get_label() == "random heads"] == [0.02]


def test_several_sets_of_heads_are_told_apart_without_colors():
    ax = plot.confirmation({"capitals' heads": drops(0), "code's heads": drops(2)}, Figure().subplots())
    assert len(ax.patches) == 8
    assert {bar.get_hatch() for bar in ax.patches[:4]} != {bar.get_hatch() for bar in ax.patches[4:]}


@pytest.mark.parametrize("series", [{"": drops(0)}, {"capitals' five heads": drops(0), "the heads of code": drops(2)}])
def test_drops_are_legible_at_the_width_of_a_column(series):
    ax = plot.confirmation(series, random=0.03)
    assert ax.figure.get_size_inches()[0] == pytest.approx(3.3)
    assert clipped(ax.figure) == []
    assert overlapping(ax.figure) == []
    assert smallest(ax.figure) >= 7
    plt.close(ax.figure)


@pytest.mark.parametrize("given", [drops(0).drop(columns="low"), drops(0)[:0]])
def test_what_cannot_be_drawn_is_refused(given):
    with pytest.raises(ValueError, match="proof must have one row per task and columns task, baseline, drop"):
        plot.confirmation(given)
    assert plt.get_fignums() == []


def test_kin_are_told_from_controls():
    roles = ["task", "kin", "control", "control"]
    ax = plot.confirmation(drops(1).assign(role=roles), Figure().subplots())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["capitals", "arithmetic (kin)", *TASKS[2:]]
