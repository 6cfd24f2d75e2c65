"""Several tasks in forwards that they share: the numbers are those of each task by itself, and cost what they cost."""

import numpy as np
import pytest

from cs_heads import Experiment, Task
from cs_heads.engine.forwards import Forwards
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.store import stored_observations
from tests.tiny import N_HEADS, N_LAYERS, completion_records

pytestmark = pytest.mark.lens
N_TASKS, N_EXAMPLES = 3, 6


def tasks():
    records = completion_records(np.random.default_rng(0), N_TASKS * N_EXAMPLES)
    return [Task.from_records(records[place::N_TASKS], name=f"task {place}") for place in range(N_TASKS)]


def experiments(model, **settings):
    first, *others = tasks()
    experiment = Experiment(model, first, progress=False, **settings)
    return [experiment, *map(experiment.on, others)]


def calls(made):
    """Other masks and other examples for each task; one mask is everybody's."""
    rng = np.random.default_rng(1)
    masks = rng.random((N_TASKS, 3, N_LAYERS, N_HEADS)) < 0.3
    masks[:, 0] = masks[0, 0]
    drawn = np.array([[rng.permutation(N_EXAMPLES)[:4] for _ in range(3)] for _ in range(N_TASKS)])
    return [Call(each, masks[place], drawn[place]) for place, each in enumerate(made)]


def answers(asked):
    return np.stack([each.experiment(each.masks, each.examples) for each in asked])


def details(asked):
    """Margins, which differ in the last bits where batches do."""
    return np.stack([each.experiment.respond(each.masks, each.examples, "margin") for each in asked])


@pytest.fixture
def forwards(monkeypatch):
    """Counts forwards."""
    count, inner = [], Forwards._forward
    monkeypatch.setattr(Forwards, "_forward", lambda self, *given: count.append(1) or inner(self, *given))
    return count


def test_tasks_measured_together_have_the_scores_of_each_by_itself(load, backend, forwards):
    model = load("llama", backend)
    apart, together = calls(experiments(model)), calls(experiments(model))
    scores, margins, n_apart = answers(apart), details(apart), len(forwards)
    measure_together(together)
    n_together = len(forwards) - n_apart
    np.testing.assert_array_equal(answers(together), scores)
    np.testing.assert_allclose(details(together), margins, atol=1e-4)
    assert len(forwards) == n_apart + n_together
    assert n_together < n_apart
    assert [each.experiment.spent for each in together] == [each.experiment.spent for each in apart]


def test_heads_that_are_off_throughout_are_off_in_what_is_measured_together(load, backend, forwards):
    model, off = load("llama", backend), ["L0H1"]
    asked = [Call(WithHeadsOff(each, off), nothing) for each in experiments(model) for nothing in [no_mask()]]
    measure_together(asked)
    n = len(forwards)
    scores = answers(asked)
    assert len(forwards) == n
    np.testing.assert_array_equal(scores, answers([Call(WithHeadsOff(e, off), no_mask()) for e in experiments(model)]))


def no_mask():
    return np.zeros((1, N_LAYERS, N_HEADS), dtype=bool)


def test_masks_and_gates_are_measured_together(load, backend):
    model = load("llama", backend)
    made, alone = experiments(model), experiments(model)
    gates = np.full((1, N_LAYERS, N_HEADS), 0.5, dtype=np.float32)
    mask = no_mask()
    mask[0, 0, 0] = True
    asked = [Call(made[0], gates), Call(made[1], mask)]
    measure_together(asked)
    assert [each.ran for each in made[:2]] == [N_EXAMPLES] * 2
    for each, other in zip(asked, alone, strict=False):
        margins = each.experiment.respond(each.masks, None, "margin")
        np.testing.assert_allclose(margins, other.respond(each.masks, None, "margin"), atol=1e-4)


def test_what_one_experiment_is_asked_twice_is_measured_once(load, backend):
    model = load("llama", backend)
    first, second, _ = experiments(model)
    masks = np.concatenate([no_mask(), ~no_mask()])
    asked = [Call(first, masks), Call(second, masks), Call(first, masks[:1], np.array([[0, 1]]))]
    measure_together(asked)
    assert [each.ran for each in (first, second)] == [2 * N_EXAMPLES] * 2
    np.testing.assert_array_equal(first(masks), experiments(model)[0](masks))


@pytest.mark.parametrize(
    "how",
    [
        {"positions": "last"},
        {"ablation": "mean"},
        pytest.param({"positions": "prompt"}, marks=pytest.mark.slow),
        pytest.param({"ablation": "resample"}, marks=pytest.mark.slow),
    ],
    ids=lambda how: "-".join(how.values()),
)
def test_wherever_heads_are_off_and_whatever_they_give_each_task_has_its_own_numbers(load, backend, how):
    made = calls(experiments(load("llama", backend), **how))
    measure_together(made)
    alone = [Experiment(load("llama", backend), task, progress=False, **how) for task in tasks()]
    np.testing.assert_allclose(details(made), details(calls(alone)), atol=1e-4)


@pytest.mark.parametrize("n_batches", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_call_for_several_tasks_that_was_cut_short_goes_on_bit_for_bit(load, tmp_path, monkeypatch, n_batches):
    model, settings = load("llama", "bridge"), {"batch_tokens": 40}
    whole = calls(experiments(model, store=tmp_path / "whole.sqlite", **settings))
    measure_together(whole)
    made = calls(experiments(model, store=tmp_path / "cut.sqlite", **settings))
    engine, done = made[0].experiment._engine, []
    run = engine.run

    def cut_short(*given):
        for batch in run(*given):
            if len(done) == n_batches:
                raise KeyboardInterrupt
            done.append(batch)
            yield batch

    monkeypatch.setattr(engine, "run", cut_short)
    with pytest.raises(KeyboardInterrupt):
        measure_together(made)
    again = calls(experiments(model, store=tmp_path / "cut.sqlite", **settings))
    measure_together(again)
    ran = sum(each.experiment.ran for each in again)
    assert 0 < ran < sum(each.experiment.ran for each in whole)
    np.testing.assert_array_equal(details(again), details(whole))
    assert [each.experiment.spent for each in again] == [each.experiment.spent for each in whole]
    assert again[0].experiment.store.query("SELECT COUNT(*) FROM calls") == [(0,)]


def test_a_call_for_several_tasks_is_none_for_others(load, tmp_path):
    """Its plan holds which results of which task each pair is of, not the examples alone."""
    made = experiments(load("llama", "bridge"), store=tmp_path / "run.sqlite")
    scores, others, thirds = (each._observed.stored for each in made)

    def begun(*parts):
        asked = [(stored, [b"\x00"] * 2, np.arange(2), np.ones(2, dtype=bool)) for stored in parts]
        [number] = {plan.number for plan in stored_observations.begin_together(asked)}
        return number

    assert begun(scores, others) == begun(scores, others)
    assert len({begun(scores, others), begun(scores, thirds), begun(scores)}) == 3
