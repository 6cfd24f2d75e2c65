from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from cs_heads import plot
from cs_heads.analysis.losses import TaskDrop
from cs_heads.analysis.random_comparison import RandomComparison
from tests.plot.studies import made_proof

OWN = TaskDrop("capitals", 100, 0.2, 1.0, 0.6, (0.3, 0.45), loss_interval=(0.35, 0.6))
KIN = TaskDrop("the same", 100, 0.0, 0.5, 0.5, (-0.1, 0.1), loss_interval=(-0.2, 0.2))
UNKNOWN = TaskDrop("code", 100, 0.0, 0.9, 0.85, (0.0, 0.1))
LOW = TaskDrop("sums", 100, 0.0, 0.1, 0.1, (0.0, 0.0), too_low="the intact model answers 2 of 60 examples right")


@pytest.fixture
def ax():
    proof = replace(
        made_proof(),
        result=OWN,
        kin=(KIN,),
        controls=(UNKNOWN, LOW),
        random=RandomComparison((0.04,), 0.04, 0, 0.001, 0.001),
    )
    return plot.confirmation(proof, Figure().subplots())


def test_a_bar_is_the_share_of_the_score_above_chance_that_is_lost_with_its_interval(ax):
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.5, 0.0, 0.05 / 0.9, float("nan")], nan_ok=True)
    ends = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()[:3]]
    assert ends == [pytest.approx([0.35, 0.6]), pytest.approx([-0.2, 0.2]), pytest.approx([0.05 / 0.9] * 2)]


def test_tasks_that_can_show_nothing_and_kin_are_told_in_words(ax):
    assert [(text.get_text(), text.get_position()[1]) for text in ax.texts] == [("baseline too low", 3)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["capitals", "the same (kin)", "code", "sums"]


def test_random_heads_are_marked_at_the_task_they_were_measured_on_above_its_bar(ax):
    (line,) = [line for line in ax.get_lines() if line.get_label() == "random heads"]
    assert line.get_xdata()[0] == pytest.approx(0.05)
    assert max(line.get_ydata()) < 0.5
    assert line.get_zorder() > max(bar.get_zorder() for bar in ax.patches)


def test_the_title_is_the_verdict():
    assert plot.confirmation(made_proof(), Figure().subplots()).get_title() == "localized"
    close = replace(made_proof("shared"), close_because="it may be specific")
    assert plot.confirmation(close, Figure().subplots()).get_title() == "shared (close)"
