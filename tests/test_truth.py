"""Models whose heads are known: they compute their programs, exactly those heads matter, and a search finds them."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from tests.waiting import run_program

if not (Path(__file__).parents[1] / "benchmarks" / "truth").is_dir():
    pytest.skip("the tests of benchmarks need a checkout", allow_module_level=True)

from benchmarks.truth.gating import faults, right
from benchmarks.truth.run import loaded
from benchmarks.truth.suite import build, specs

SEARCHED = ("separate-9", "separate-12", "shared-3", "same-0", "early-3", "decoys-0")
TEN = (*SEARCHED, "separate-6", "separate-0", "redundant-0", "none-0")
made = cache(lambda name: build(next(spec for spec in specs() if spec.name == name)))


def searched(out, names, *options):
    """What the benchmark says of models: in a process of its own, where shapes are not checked at every call."""
    program = [sys.executable, "-m", "benchmarks.truth.run", "--out", out, "--models", *names, *options]
    done = run_program(program, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    return pd.read_csv(out)


def check(lines):
    """The known heads are found, none else is said to be one, and what no head of its own carries is not specific."""
    assert lines.recall.mean() >= 0.9
    assert lines.model[(lines.wrong > 0) | (lines.wrong_claims > 0)].tolist() == []
    for line in lines.itertuples():
        assert line.verdict in line.right_verdict.split(" or "), line


def test_a_hundred_models_have_64_heads_or_more_and_a_third_of_them_twice_as_many():
    sizes = [spec.layers * spec.heads for spec in specs()]
    assert len({spec.name for spec in specs()}) == len(sizes) > 100
    assert min(sizes) >= 64
    assert sum(size >= 128 for size in sizes) * 3 >= len(sizes)


@pytest.mark.parametrize("name", TEN)
def test_programs_are_computed_and_exactly_the_known_heads_matter(name):
    assert faults(made(name), n=60, n_sets=0) == []


@pytest.mark.slow
def test_that_is_so_of_every_model():
    assert {spec.name: found for spec in specs() if (found := faults(build(spec)))} == {}


def test_a_sixth_of_the_default_cost_finds_the_known_heads_and_says_nothing_wrong(tmp_path):
    lines = searched(tmp_path / "six.csv", SEARCHED, "--budget", "1400", "--examples", "60")
    check(lines)
    assert lines.shared_wrong.sum() == 0


@pytest.mark.slow
def test_the_default_search_finds_the_known_heads_and_says_nothing_wrong(tmp_path):
    lines = searched(tmp_path / "ten.csv", TEN)
    check(lines)
    assert lines.shared_wrong.sum() == 0


def test_a_model_is_the_same_again():
    one, other = made("shared-3"), build(made("shared-3").spec)
    assert one.heads == other.heads
    assert one.shared
    for name, weights in one.model.state_dict().items():
        assert (weights == other.model.state_dict()[name]).all()


def test_masks_take_the_answers_that_plain_hugging_face_loses(backend):
    model, task = made("redundant-0"), made("redundant-0").task(n=40)
    off = [(), model.known[:1], model.twins[:1], model.twins, model.decoys]
    experiment = cs.Experiment(loaded(model, backend), task)
    scores = experiment(cs.designs.explicit(experiment.grid, off))
    for heads, each in zip(off, scores, strict=True):
        np.testing.assert_array_equal(each, right(model, 0, heads, n=80, seed=model.spec.seed)[:40])
    assert scores.mean(axis=1).tolist()[::2] == [1, 1, 1]
    assert scores[1].mean() < 0.5
    assert scores[3].mean() < 0.5
