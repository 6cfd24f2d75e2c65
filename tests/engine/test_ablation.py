"""What units become where they are off is prepared once, and counted. Its numbers: ``test_units``."""

import numpy as np
import pytest

from cs_heads import Experiment, Task
from cs_heads.engine.ablation import Ablation
from tests.known_heads import rows_run
from tests.tiny import N_HEADS, N_LAYERS, choice_records, completion_records

SHAPE = (N_LAYERS, N_HEADS)


def test_every_example_takes_its_heads_from_another():
    for n in range(2, 40):
        partner = Ablation("resample", [0] * n).partner
        assert sorted(partner) == list(range(n))
        assert (partner != np.arange(n)).all()


@pytest.mark.parametrize("kind", ["mean", "resample"])
@pytest.mark.usefixtures("no_short_cuts")
def test_the_intact_runs_that_z_is_taken_from_are_counted_once(load, kind):
    task = Task.from_records(completion_records(np.random.default_rng(2), 6))
    model, masks = load("llama"), np.random.default_rng(3).random((3, *SHAPE)) < 0.3
    experiment = Experiment(model, task, ablation=kind)
    assert (experiment.spent, experiment.preparation) == (0, 6)
    with rows_run(model) as rows:
        experiment(masks[:2])
        experiment(masks)
    assert sum(rows) == experiment.spent == 6 + 3 * 6
    assert Experiment(model, task).preparation == 0


def test_resampling_needs_another_example(load):
    task = Task.from_records(choice_records(np.random.default_rng(2), 1))
    with pytest.raises(ValueError, match="ablation 'resample' needs two examples or more, the task has 1"):
        Experiment(load("llama"), task, ablation="resample")
