"""Gates between 0 and 1 where masks are taken, and what one experiment makes of another."""

import numpy as np
import pytest

from cs_heads import Experiment, Grid, Settings, Store
from cs_heads.simulate import planted_world
from tests.tiny import N_HEADS, N_LAYERS, completion_task, some_masks

GATES = np.random.default_rng(3).random((2, N_LAYERS, N_HEADS))
[MASK] = some_masks(1)


def test_gates_of_0_and_1_are_masks(load):
    experiment = Experiment(load("llama"), completion_task(6), progress=False)
    masked = experiment.logprob(MASK)
    np.testing.assert_array_equal(experiment.logprob(1.0 - MASK), masked)
    assert experiment.spent == experiment.n_examples


def test_gates_are_kept_beside_masks_and_told_by_their_values(load, tmp_path):
    path = tmp_path / "run.sqlite"
    first = Experiment(load("llama"), completion_task(6), store=path, progress=False)
    rows = np.concatenate([GATES, 1.0 - MASK[None]])
    found = first.logprob(rows)
    again = Experiment(load("llama"), completion_task(6), store=path, progress=False)
    np.testing.assert_array_equal(again.logprob(rows[::-1]), found[::-1])
    assert (again.ran, again.spent) == (0, first.spent)
    assert np.abs(found[0] - found[1]).max() > 0
    told = Store.open(path).to_frame()["ablated"].unique()
    assert sum("×" in heads for heads in told) == 2
    assert sum("×" in heads for heads in first.to_frame()["ablated"].unique()) == 2


def test_texts_are_written_under_gates(load):
    experiment = Experiment(load("llama"), completion_task(6), progress=False)
    said = experiment.generate(np.concatenate([GATES, 1.0 - MASK[None]]), max_new_tokens=2)
    assert said.shape == (3, experiment.n_examples)
    assert (said[2] == experiment.generate(MASK, max_new_tokens=2)[0]).all()


@pytest.mark.parametrize("wrong", [1.5, -0.1, np.nan])
def test_a_gate_outside_0_to_1_is_refused(load, wrong):
    with pytest.raises(ValueError, match=r"gates must be in 0\.\.1"):
        Experiment(load("llama"), completion_task(6))(np.full((1, N_LAYERS, N_HEADS), wrong))


def test_a_planted_head_that_is_half_shut_does_half_its_damage():
    made = planted_world("one_head", Grid(8, 8), seed=0)
    head = made.grid.mask(made.planted)
    intact, off = made.task.respond(np.stack([np.zeros_like(head), head]), response="margin")
    half = made.task.respond(1 - 0.5 * head[None], response="margin")[0]
    np.testing.assert_allclose(half, (intact + off) / 2, atol=1e-5)


def test_another_experiment_has_the_same_settings_and_store(load, tmp_path):
    task = completion_task(12).split(8)[0]
    first = Experiment(load("llama"), task, ablation="mean", store=tmp_path / "run.sqlite", progress=False)
    for other in (first.on(task), first.held_out):
        assert (other.source, other.store, other.settings.ablation) == (first.source, first.store, "mean")
    assert first.held_out.task == task.held_out
    with pytest.raises(ValueError, match="is not split"):
        _ = Experiment(load("llama"), completion_task(6)).held_out


def test_what_is_no_setting_is_refused_by_name():
    with pytest.raises(TypeError, match="unexpected argument 'abblation'; the settings of a call are ablation, "):
        Settings.of({"abblation": "zero"})
