"""One bar a call, whatever it measures in how many steps; it says what runs and counts what is spent."""

import os
import re
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tqdm.notebook

import cs_heads as cs
from cs_heads import designs, methods, progress
from cs_heads.analysis.confirm import prove
from cs_heads.cli import main
from cs_heads.progress import counting, one_bar
from cs_heads.tasks import Task
from tests.known_heads import WORKING, own_answers

CSS = {"n_masks": 24, "density": 0.17}
GATES = {"steps": 20, "batch_size": 5}


@pytest.fixture
def model(load_known):
    return load_known()


@pytest.fixture(scope="module")
def task(load_known):
    return Task.from_records(own_answers(load_known(), 50), "own").split(25)[0]


@pytest.fixture(scope="module")
def other(load_known):
    return Task.from_records(own_answers(load_known(), 50, seed=8), "other").split(25)[0]


def found_on(experiment):
    return methods.compressed_sensing(experiment, **CSS)


CALLS = {
    "annealed": lambda model, task, other: cs.find_heads(
        model, task, k=2, budget=2500, controls=[other], screen="gradients", progress=True
    ),
    "confirm": lambda model, task, other: cs.confirm(
        model, task, WORKING, controls=[other], n_random=10, progress=True
    ),
    "specificity": lambda model, task, other: cs.specificity(model, task, WORKING, controls=[other], progress=True),
    "sparsity curve": lambda model, task, other: cs.sparsity_curve(model, task, WORKING, n_random=2, progress=True),
    "faithfulness": lambda model, task, other: cs.faithfulness(
        model, task, found_on(cs.Experiment(model, task, progress=False)), n_random=2, progress=True
    ),
    "failures": lambda model, task, other: cs.failures(model, task, WORKING, n=20, max_new_tokens=2, progress=True),
    "atlas": lambda model, task, other: cs.atlas(model, [task, other], budget=1000, n=20, n_random=2, progress=True),
}
MANY = ("confirm", "atlas")  # of controls, and of a search and a proof


def fast(calls, names):
    """The calls, those of other names marked slow."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in calls]


@pytest.mark.parametrize("call", fast(CALLS, MANY))
def test_a_call_of_many_steps_has_one_bar_that_counts_all_that_it_spends(model, task, other, bars, call):
    found = CALLS[call](model, task, other)
    [bar] = bars
    assert all(line.startswith(call) for line in bar.said)
    assert bar.n == bar.total
    # A search that shares forwards may spend less than it counts on, but never more.
    assert bar.n == found.spent


def test_a_search_counts_on_no_more_than_its_budget(model, task, bars):
    cs.find_heads(model, task, k=2, budget=1500, controls=None, progress=True)
    assert bars[0].most == 1500


OF_EXPERIMENTS = {
    "own": lambda experiment: experiment(designs.single(experiment.grid)),
    "annealed": partial(methods.annealed, k=2, budget=1500),
    "compressed sensing": found_on,
    "greedy": partial(methods.greedy, k=2),
    "group testing": partial(methods.group_testing, budget=2500),
    "gradient": methods.gradient_importance,
    "mediation": partial(methods.mediation, n_pairs=5),
    "gates": partial(methods.fit_gates, **GATES),
    "confirm": lambda experiment: prove(experiment, WORKING, n_random=3),
}


@pytest.mark.parametrize("call", fast(OF_EXPERIMENTS, ("own", "compressed sensing", "gradient")))
def test_a_call_on_an_experiment_has_one_bar_too(model, task, bars, call):
    OF_EXPERIMENTS[call](cs.Experiment(model, task, progress=True))
    [bar] = bars
    assert bar.said[0].startswith(call)
    assert bar.n == bar.total


def test_compare_says_which_method_of_how_many_and_that_it_judges(model, task, bars):
    found = cs.compare(model, task, k=2, max_heads=4, methods=["one-shot", "gradient"], controls=None, progress=True)
    [bar] = bars
    said = list(dict.fromkeys(line.split(", baseline")[0] for line in bar.said))
    named = ["compare 1/2: one-shot: every head alone", "compare 2/2: gradient", "compare judging"]
    assert [line for line in said if line in named] == named
    searched = sum(one.ranking.spent for one in found.methods.values())
    # The intact run of the second method is known from the first.
    assert bar.n <= found.spent + searched <= bar.first


def test_what_the_store_has_counts_as_done(model, task, bars, tmp_path):
    given = {"controls": None, "method": "css", "k": 2, "store": tmp_path / "run.sqlite", "progress": True, **CSS}
    first, again = (cs.find_heads(model, task, **given) for _ in range(2))
    assert [bar.n for bar in bars] == [first.spent]
    assert again.spent == first.spent


def test_a_call_that_fails_leaves_its_bar_and_the_next_has_its_own(bars):
    @one_bar("mine")
    def fail(wrong: bool) -> None:
        with counting("part", 10, True) as bar:
            bar.add(4)
            if wrong:
                raise ValueError("wrong")
            bar.add(6)

    with pytest.raises(ValueError, match="wrong"):
        fail(True)
    fail(False)
    assert [(bar.n, bar.total) for bar in bars] == [(4, 10), (10, 10)]


@pytest.mark.parametrize("kernel", [True, False])
def test_without_a_word_a_bar_is_shown_in_notebooks_and_terminals_and_elsewhere_in_lines(
    model, task, monkeypatch, capsys, kernel
):
    shell = SimpleNamespace(kernel=True) if kernel else SimpleNamespace()
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(tqdm.notebook, "IProgress", None, raising=False)
    cs.Experiment(model, task)(np.zeros((1, 3, 4), dtype=bool))
    out, err = capsys.readouterr()
    # Text in the output of the cell, where there are no widgets, and not on the red ground of errors.
    assert ("own 100%" in out) is kernel
    # Elsewhere one at once, and one at the end.
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    assert [line[:8] for line in lines] == ([] if kernel else ["own   0%", "own 100%"])
    monkeypatch.setattr(progress, "_at_terminal", lambda: True)
    cs.Experiment(model, task)(np.zeros((1, 3, 4), dtype=bool))
    assert ("own 100%" in capsys.readouterr().err) is not kernel
    monkeypatch.setenv("TQDM_DISABLE", "1")
    cs.Experiment(model, task)(np.zeros((1, 3, 4), dtype=bool))
    assert capsys.readouterr() == ("", "")


def test_off_a_terminal_a_line_comes_each_minute(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    # However long the name is, each has a line of its own.
    with counting("own " * 30, 12, None) as bar:
        for _ in range(11):
            clock[0] += 20
            bar.add(1)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    times = [re.findall(r"\[(\d\d:\d\d)<.+\]", line) for line in lines]
    assert times == [["00:00"], ["01:00"], ["02:00"], ["03:00"], ["03:40"]]


def test_a_command_says_off_a_terminal_that_it_loads_a_model(monkeypatch, capsys):
    def load(*_, **__):
        assert capsys.readouterr().err == "loading demo ...\n"
        raise ValueError("loaded")

    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setattr(cs, "load_model", load)
    command = ["find", "--model", "demo", "--task", "demo/capitals"]
    assert main(command) == 2
    monkeypatch.setattr(progress, "_at_terminal", lambda: True)
    monkeypatch.setattr(cs, "load_model", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(command)
    assert "loading" not in capsys.readouterr().err


def test_a_terminal_that_says_it_has_no_rows_gets_lines(monkeypatch):
    """``script`` makes one, in which tqdm draws no bar."""
    screen, keyboard = os.openpty()
    monkeypatch.delenv("TQDM_DISABLE")
    with os.fdopen(screen, "rb", buffering=0) as seen, os.fdopen(keyboard, "w") as terminal:
        assert os.get_terminal_size(keyboard).lines == 0
        monkeypatch.setattr(sys, "stderr", terminal)
        with counting("own", 10, None) as bar:
            bar.add(10)
        assert b"own   0%" in seen.read(4096)
