import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cs_heads import confirm as confirm_least
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.least_set import most_of_proof
from cs_heads.experiment.experiment import Experiment
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.known_heads import IDLE, WORKING, hopeless_records, own_answers, rows_run

# Of least sets there are tests in test_least_set.py.
confirm = partial(confirm_least, least=False)

# The random sets of the same layers hold the other working head one time in three.
WITH_ONE_WORKING = (Head(0, 0), WORKING[1])


@pytest.fixture(scope="module")
def whole(model):
    return Task.from_records(own_answers(model, 200), "own answers")


@pytest.fixture(scope="module")
def task(whole):
    return whole.split()[0]


@pytest.fixture
def measured(monkeypatch):
    """The masks and scores of every call of an experiment, as they pass."""
    calls = []
    call = Experiment.__call__

    def recorded(self, masks, examples=None):
        scores = call(self, masks, examples)
        calls.append((masks, scores, examples))
        return scores

    monkeypatch.setattr(Experiment, "__call__", recorded)
    return calls


def ablating(*heads: Head) -> np.ndarray:
    return Grid(3, 4).mask(heads)


def random_masks(measured) -> list[np.ndarray]:
    """Those of the first round, which follow upon the intact model and the heads."""
    return list(measured[1][0])


def in_layers(mask) -> list[int]:
    return mask.sum(axis=1).tolist()


# The verdict


def test_a_capability_is_localized_in_the_heads_that_it_rests_on(model, task):
    proof = confirm(model, task, WORKING, controls=None)
    assert proof.verdict == "localized"
    assert proof.heads == WORKING
    assert proof.result.baseline == 1.0
    assert proof.drop > 0.8
    assert proof.random.drop == pytest.approx(0)
    # A grid of twelve heads has no more than 45 other pairs.
    assert len(proof.random.drops) == 45
    assert proof.random.n_as_harmful == 0
    assert 1 / 46 <= proof.random.p_sets <= 1 / 46 / 0.8
    assert proof.random.p_examples < 1e-6
    assert proof.p == proof.random.p_sets
    said = (
        "all 45 random sets seem to do less harm on a few examples each, which p allows for; of all such sets at most"
    )
    assert said in proof.reasons[1]
    assert proof.close_because == f"with so few random sets (45) p = {proof.p:.4f} over sets is not below 0.01"
    assert "not below 0.01, the smallest that so few allow: all" in proof.reasons[1]


def test_a_capability_is_not_localized_in_heads_without_effect(model, task):
    proof = confirm(model, task, IDLE, controls=None)
    assert proof.verdict == "not localized"
    assert proof.drop == 0
    assert proof.p > 0.5


def test_a_small_certain_drop_is_not_localized(model):
    """Significant is not enough: of 100 examples 8 fall with the head, and none with random heads."""
    right = own_answers(model, 300, seed=3)
    without = Experiment(model, Task.from_records(right))(ablating(WORKING[1])[None])[0]
    falls = [record for record, score in zip(right, without, strict=True) if not score]
    stays = [record for record, score in zip(right, without, strict=True) if score]
    unseen = replace(Task.from_records(falls[:9] + stays[:91]), role="confirming")
    proof = confirm(model, unseen, [WORKING[1]], n_random=3, controls=None)
    assert proof.drop == pytest.approx(0.09)
    assert proof.random.p_examples < 0.01
    assert proof.verdict == "not localized"
    assert "less than 0.10" in proof.reasons[-1]


# The random sets


def test_random_sets_have_as_many_heads_in_each_layer_and_none_that_was_found(model, task, measured):
    proof = confirm(model, task, WORKING, n=20, n_random=9, controls=None)
    intact, found = measured[0][0]
    assert not intact.any()
    assert np.argwhere(found).tolist() == [[head.layer, head.head] for head in WORKING]
    # Three other heads in each of the two layers: every pair there is.
    random = np.unique(random_masks(measured), axis=0)
    assert len(random) == len(proof.random.drops) == 9
    for mask in random:
        assert in_layers(mask) == in_layers(found)
        assert not (mask & found).any()


def test_the_random_drops_are_those_of_the_random_sets(model, task, measured):
    """In the first round each set has as many examples, and each example as many sets."""
    proof = confirm(model, task, IDLE, n=40, n_random=20, controls=None)
    baseline, ablated = measured[0][1]
    random, examples = (each.reshape(20, -1) for each in measured[1][1:])
    assert proof.random.drops == pytest.approx((baseline[examples] - random).mean(axis=1))
    assert np.ptp(np.bincount(examples.ravel(), minlength=40)) == 0
    assert all(len({*row}) == len(row) for row in examples.tolist())
    assert proof.random.drop == pytest.approx(np.mean(proof.random.drops))
    assert proof.random.drop > 0
    assert proof.drop == pytest.approx((baseline - ablated).mean())
    assert f"loss {(proof.drop - proof.random.drop) / baseline.mean():+.2f} beyond" in proof.reasons[-1]


# Controls


def test_controls_show_what_the_heads_do_to_other_tasks_and_count_in_the_verdict(model, task):
    other = Task.from_records(own_answers(model, 120, seed=8), "others").split()[0]
    coins = Task.from_records(hopeless_records(60), "coins")
    proof = confirm(model, task, WORKING, controls=[other, coins])
    assert [control.task for control in proof.controls] == ["others", "coins"]
    # Of a task that is split the unseen side, of a whole one the half that no search uses.
    assert [control.n_examples for control in proof.controls] == [60, 30]
    assert [control.too_low is None for control in proof.controls] == [True, False]
    unseen = Experiment(model, other.held_out)
    intact, ablated = unseen(np.stack([ablating(), ablating(*WORKING)])).mean(axis=1)
    assert (proof.controls[0].baseline, proof.controls[0].score) == (intact, ablated)
    assert proof.controls[0].loss == pytest.approx((intact - ablated) / intact)
    assert proof.controls[1].chance == 0.5
    # Every answer of this model hangs on these heads; the coins cannot tell.
    assert proof.verdict == "shared"
    assert proof.specificity.shared_with == ("others",)
    note, *_, unknown = proof.notes
    assert note.startswith("control coins does not count: the intact model")
    assert unknown.startswith("it is not known which examples these heads were found on")


def test_by_default_everyday_skills_are_the_controls(model, task, measured, few_skills):
    """A model of twenty words does none of them, so nothing is specific."""
    proof = confirm(model, task, WORKING, n=60, n_random=1)
    assert proof.default_controls
    assert [control.task for control in proof.controls] == few_skills[1:]
    assert {control.n_examples for control in proof.controls} == {30}
    assert proof.spent == 60 * 3 + 2 * 30 * len(proof.controls)
    assert (proof.verdict, proof.specificity) == ("localized", None)
    assert proof.notes[0].startswith("0 of 4 default controls count; the intact model does not do the others well")
    again = Confirmation.from_dict(json.loads(json.dumps(proof.to_dict())))
    assert (again.default_controls, again.to_dict()["default_controls"]) == (True, True)
    alone = confirm(model, task, WORKING, n=60, n_random=1, controls=None)
    assert (alone.default_controls, alone.controls) == (False, ())
    assert alone.notes[0].startswith("no controls: ")


# What it costs and what it says of itself


def test_a_proof_by_default_costs_half_more_than_one_beside_eight_random_sets_at_most():
    controls = [50] * 14
    beside_eight = (2 + 8) * 100 + 2 * sum(controls)
    assert most_of_proof(5, 100, controls) == 1.5 * beside_eight


@pytest.mark.usefixtures("no_short_cuts")
def test_the_cost_is_every_pair_of_mask_and_example_that_was_run(model, task, measured):
    other = Task.from_records(own_answers(model, 80, seed=8), "others")
    with rows_run(model) as rows:
        proof = confirm(model, task, WORKING, controls=[other], n=30)
    of_sets = sum(scores.size for masks, scores, _ in measured if masks.any(axis=(1, 2)).all())
    assert proof.spent == sum(rows) == 2 * 30 + of_sets + 2 * 30
    assert of_sets == len(proof.random.drops) * 3 < 8 * 30


@pytest.mark.usefixtures("no_short_cuts")
def test_what_an_ablation_runs_beforehand_is_part_of_the_cost(model, task):
    other = Task.from_records(own_answers(model, 80, seed=8), "others")
    plain = confirm(model, task, WORKING, controls=[other], n=30)
    with rows_run(model) as rows:
        proof = confirm(model, task, WORKING, controls=[other], n=30, ablation="mean")
    assert proof.spent == sum(rows) == plain.spent + 2 * 30


def test_a_notebook_shows_five_columns_and_says_what_each_is(model, task):
    other = Task.from_records(own_answers(model, 40, seed=9), "others")
    proof = confirm(model, task, WORKING, controls=[other], n=30, n_random=2)
    table = proof._table()
    assert list(table) == ["off", "task", "intact", "without", "loss (95 % interval)"]
    assert table["off"].tolist() == ["heads found", "random heads", "heads found, control"]
    assert table["without"].tolist() == pytest.approx(
        [proof.result.score, proof.result.baseline - proof.random.drop, proof.controls[0].score]
    )
    low, high = proof.result.loss_interval
    assert table[table.columns[-1]][0] == f"{proof.result.loss:.2f} ({low:+.2f} to {high:+.2f})"
    (said,) = proof._remarks()
    assert "random heads: the mean of 2 sets like these" in said
    assert all(f"{word}:" in said for word in ("off", "intact, without", "loss"))
    assert said.replace("<", "&lt;") in proof._repr_html_()


# What is refused before the model runs


@pytest.mark.parametrize(
    ("heads", "more", "message"),
    [
        (["L3H0"], {}, r"head L3H0 is not in the grid: layers 0\.\.2, heads 0\.\.3"),
        (["3.0"], {}, "'3.0' is no head"),
        (["L0H1", (0, 1)], {}, "heads must be one head or more, none twice"),
        ([], {}, "heads must be one head or more, none twice; got none"),
        (
            [(layer, head) for layer in (0, 1) for head in range(4)],
            {},
            r"k must be an integer in 1\.\.6, half of .* got 8",
        ),
        (["L0H1"], {"n": 19}, "n must be an integer of 20 or more, got 19"),
        (["L0H1"], {"n_random": 0}, "n_random must be an integer of 1 or more, got 0"),
    ],
)
def test_wrong_heads_or_numbers_are_refused_before_the_model_runs(model, task, heads, more, message):
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        confirm(model, task, heads, **more, controls=None)
    assert rows == []


@pytest.mark.parametrize("side", ["finding", "unseen"])
def test_a_control_that_is_the_task_is_refused_before_the_model_runs(model, task, whole, side):
    judged = task if side == "finding" else task.held_out
    message = (
        rf"control 'copy' shares {len(judged) * (1 + (side == 'finding'))} of its 200 examples with task 'own answers'"
    )
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        confirm(model, judged, WORKING, controls=[replace(whole, name="copy")])
    assert rows == []


def test_a_whole_task_is_refused_with_the_remedy(model, whole):
    """Its examples may have found the heads: nobody could tell."""
    with pytest.raises(ValueError, match=r"is not split .*: give task\.split\(seed=0\)\[0\]"):
        confirm(model, whole, WORKING, controls=None)
