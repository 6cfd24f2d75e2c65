import importlib
import pkgutil

import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import cs_heads
from cs_heads import plot
from cs_heads.drawable import Drawable
from tests.plot.studies import made_attention, made_comparison, made_ranking


@pytest.mark.parametrize("make", [made_ranking, made_attention, made_comparison])
def test_a_result_draws_its_usual_picture(make):
    drawn = make().plot()
    assert plt.get_fignums() == [getattr(drawn, "figure", drawn).number]


def test_options_go_to_the_picture():
    ax = Figure().subplots()
    assert made_ranking().plot(k=1, ax=ax) is ax
    assert [text.get_text() for text in ax.texts if text.get_text().isdigit()] == ["1"]


def test_every_result_names_a_picture_that_there_is():
    for room in ("analysis", "methods.gating"):
        package = importlib.import_module(f"cs_heads.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    kinds = {kind.__name__: kind._picture for kind in Drawable.__subclasses__()}
    assert {"HeadRanking", "Confirmation", "Comparison", "SparsityCurve", "TaskDrops"} <= set(kinds)
    assert all(callable(getattr(plot, name)) for name in kinds.values())
    assert cs_heads.HeadRanking.plot is Drawable.plot
