"""A call that is tried has no use for right answers: what it makes up must reach nobody."""

from dataclasses import replace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.store.store import Store
from cs_heads.trial import tried


@pytest.fixture(scope="module")
def half_wrong():
    """A task of which the demo model gets at most half right: every other target is another word."""
    task = cs.load_task("demo/capitals", n=40, seed=0)
    examples = (replace(e, continuations=(" zzz",)) if i % 2 else e for i, e in enumerate(task.examples))
    return cs.Task("half", "completion", tuple(examples))


def test_a_dry_run_makes_up_no_answer_that_is_kept(half_wrong, tmp_path):
    model, path = cs.load_model("demo"), tmp_path / "run.sqlite"
    truth = cs.Experiment(model, half_wrong, progress=False).baseline()
    assert 0 < truth.mean() <= 0.5
    made_before = cs.Experiment(model, half_wrong, progress=False)
    seen = []

    def call():
        with cs.Experiment(model, half_wrong, store=path, progress=False) as experiment:
            seen.append(experiment.baseline())
        seen.append(made_before.baseline())
        seen.append(cs.Experiment(model, half_wrong, progress=False).baseline())

    tried(call, 600.0)
    stored, before, within = seen
    assert np.array_equal(stored, truth)
    assert np.array_equal(before, truth)
    # In the trial alone, where masks are what is timed, every answer counts as right.
    assert within.mean() == 1
    assert sorted(Store.open(path).to_frame()["score"]) == sorted(truth)
    assert np.array_equal(made_before.baseline(), truth)
