import pandas as pd
import pytest
from matplotlib.figure import Figure

from cs_heads import plot

# Method, size asked for, evaluations spent, recall of each world.
MEASURED = [
    ("annealed", 50, 48, (0.8, 1.0)),
    ("annealed", 100, 96, (1.0, 1.0)),
    ("css", 100, 101, (0.6, 0.8)),
    ("one-shot", 509, 509, (0.9,)),
]
WORLDS = pd.DataFrame(
    {"n_heads": n_heads, "method": method, "size": size, "spent": spent, "recall": recall}
    for n_heads in (512, 1024, 16_384)
    for method, size, spent, recalls in MEASURED
    for recall in recalls
)


def test_a_line_is_the_mean_over_worlds_at_what_was_spent():
    ax = plot.recall(WORLDS[WORLDS.n_heads == 512], Figure().subplots())
    lines = {bars.get_label(): bars.lines[0] for bars in ax.containers}
    assert lines["annealed"].get_xdata().tolist() == [48, 96]
    assert lines["annealed"].get_ydata().tolist() == pytest.approx([0.9, 1.0])
    assert lines["css"].get_ydata().tolist() == pytest.approx([0.7])
    assert len({line.get_marker() for line in lines.values()}) == 3


def test_bars_are_standard_errors_over_worlds_and_none_where_there_is_one():
    ax = plot.recall(WORLDS[WORLDS.n_heads == 512], Figure().subplots())
    ends = {bars.get_label(): bars.lines[2][0].get_segments()[0][:, 1].tolist() for bars in ax.containers}
    assert ends["css"] == pytest.approx([0.6, 0.8])  # sd .141 / sqrt 2 = .1
    assert ends["one-shot"] == pytest.approx([0.9, 0.9])


def test_what_has_no_recall_is_refused():
    with pytest.raises(ValueError, match=r"worlds must have one row per world and columns .*; missing: \['recall'\]"):
        plot.recall(WORLDS.drop(columns="recall"))
    with pytest.raises(ValueError, match=r"by must be a column of worlds \(n_heads, .*\), got 'layers'"):
        plot.recalls(WORLDS, by="layers")
