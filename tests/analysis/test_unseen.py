"""Examples that were searched prove nothing, and a question asked twice counts once."""

from dataclasses import replace

import numpy as np
import pytest

from cs_heads import Experiment
from cs_heads.analysis.confirm import confirm, prove
from cs_heads.analysis.drops import specificity
from cs_heads.analysis.failures import failures
from cs_heads.analysis.faithfulness import faithfulness
from cs_heads.analysis.sparsity import sparsity_curve
from cs_heads.experiment.inputs import tokens_of
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import METHODS
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task
from tests.known_heads import WORKING, own_answers, rows_run
from tests.methods.planted import options_of

SEARCH = {"method": "css", "k": 2, "n_masks": 5, "density": 0.17, "progress": False}
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def whole(model):
    return Task.from_records(own_answers(model, 120), "own answers")


@pytest.fixture(scope="module")
def other(model):
    return Task.from_records(own_answers(model, 80, seed=5), "other answers")


@pytest.fixture(scope="module")
def found(model, whole):
    return find_heads(model, whole.split(60, seed=0)[0], controls=None, **SEARCH)


@pytest.fixture(scope="module")
def again(whole):
    """The same examples, split by another seed."""
    return whole.split(60, seed=1)[0]


@pytest.fixture(scope="module")
def seen(whole, again):
    """How many of the unseen examples were searched, by their prompts."""
    searched = {example.prompt for example in whole.split(60, seed=0)[0].examples}
    n = sum(example.prompt in searched for example in again.held_out.examples)
    assert 20 < n < 40
    return n


def read(experiment):
    """Hashes of the tokens of an experiment."""
    return {key for keys in tokens_of(experiment.model, experiment.task, experiment.encoded) for key in keys}


def left_out(n: int, of: int, name: str) -> str:
    return f"{n} of {of} unseen examples of task '{name}' are left out: heads were found on them"


# What proves leaves out what was searched


def test_examples_that_a_ranking_was_found_on_by_another_seed_are_no_proof(model, whole, again, found, seen, tmp_path):
    found.save(tmp_path / "ranking.json")
    for ranking in (found, HeadRanking.load(tmp_path / "ranking.json")):
        proof = confirm(model, again, ranking, controls=None, n_random=1, **QUIET)
        assert proof.result.n_examples == 60 - seen
        assert left_out(seen, 60, "own answers") in proof.notes
    searched = {example.prompt for example in whole.split(60, seed=0)[0].examples}
    unseen = tuple(example for example in again.held_out.examples if example.prompt not in searched)
    assert proof.provenance["task"]["identity"] == replace(again.held_out, examples=unseen).identity


def test_a_list_of_heads_carries_no_examples_and_the_proof_says_so(model, again, found):
    proof = confirm(model, again, found.top(2), controls=None, n_random=1, **QUIET)
    assert proof.result.n_examples == 60
    assert "it is not known which examples these heads were found on" in " ".join(proof.notes)


@pytest.mark.parametrize(
    "judge",
    [
        lambda model, task, found: specificity(model, task, found, **QUIET),
        lambda model, task, found: specificity(model, [task], {"own answers": found}, **QUIET),
        lambda model, task, found: sparsity_curve(model, task, found, max_heads=2, n_random=1, **QUIET),
        lambda model, task, found: faithfulness(model, task, found, shares=[0.5], n_random=0, **QUIET),
        lambda model, task, found: failures(model, task, found, n=100, **QUIET),
        lambda model, task, found: confirm(None, Experiment(model, task.held_out, **QUIET), found, n_random=1),
        lambda model, task, found: specificity(None, Experiment(model, task.held_out, **QUIET), found),
    ],
    ids=["specificity", "matrix", "curve", "faithfulness", "failures", "proof", "of an experiment"],
)
def test_every_analysis_of_a_ranking_leaves_out_what_it_was_found_on(model, again, found, seen, judge):
    result = judge(model, again, found)
    assert left_out(seen, 60, "own answers") in result.notes
    assert result.provenance.get("task", {}).get("n_examples") == 60 - seen


def test_the_same_tokens_are_the_same_question(model, whole):
    """The tokenizer of words reads no space: the texts differ, and the model does not see it."""
    task = whole.split(60, seed=0)[0]
    wide = tuple(replace(e, prompt=e.prompt.replace(" ", "  ")) for e in task.examples[:25])
    assert all(e.prompt not in {one.prompt for one in task.examples} for e in wide)
    unseen = task.held_out
    beside = replace(
        task,
        held_out=replace(
            unseen,
            examples=(
                *unseen.examples,
                *wide,
                replace(unseen.examples[0], prompt=unseen.examples[0].prompt.replace(" ", "  ")),
            ),
        ),
    )
    found = find_heads(model, task, controls=None, **SEARCH)
    for heads in (found, found.top(2)):
        proof = confirm(model, beside, heads, controls=None, n=200, n_random=1, **QUIET)
        assert proof.result.n_examples == len(unseen)
        assert left_out(25, len(unseen) + 26, "own answers") in proof.notes
    drops = specificity(model, beside, found, n=200, **QUIET)
    assert left_out(25, len(unseen) + 26, "own answers") in drops.notes


def test_a_task_of_texts_and_the_same_as_token_ids_are_one(model, whole):
    task = whole.split(60, seed=0)[0]
    found = find_heads(model, task, controls=None, **SEARCH)
    encoded = Experiment(model, task, **QUIET).encoded
    ids = [{"prompt": list(one.prompt), "target": list(one.continuations[0])} for one in encoded]
    again = replace(Task.from_records(ids, "ids"), role="confirming")
    with pytest.raises(ValueError, match="60 of 60 unseen examples of task 'ids' are left out: heads were found on"):
        confirm(model, again, found, controls=None, n_random=1, **QUIET)


def test_examples_of_controls_that_the_search_has_used_are_left_out(model, whole, other):
    """Another seed of the proof halves a whole control otherwise."""
    task = whole.split(60, seed=0)[0]
    found = find_heads(model, task, controls=[other], seed=0, **SEARCH)
    same, differing = (confirm(model, task, found, controls=[other], seed=seed, n_random=1, **QUIET) for seed in (0, 1))
    assert same.controls[0].n_examples == 40
    n = differing.controls[0].n_examples
    assert 10 < n < 30
    assert f"{40 - n} of 40 examples of task 'other answers' are left out: heads were found on them" in differing.notes
    assert differing.result.n_examples == 60


# Rankings carry what they were found on


@pytest.mark.parametrize("name", METHODS)
def test_the_ranking_of_every_method_carries_the_examples_of_its_task_and_controls(model, whole, other, name):
    """Also where the method is called by itself."""
    method, task = METHODS[name], whole.split(30, seed=0)[0]
    experiment = Experiment(model, task, **QUIET)
    options = options_of(name, task)
    others = [options["forget"]] if "forget" in options else []
    if method.takes_controls:
        others = [other.take(30)]
        options |= {"controls": [experiment.on(others[0])]}
    ranking = method.run(experiment, **options)
    texts = {key for each in (task, *others) for keys in each.known for key in keys}
    assert {*ranking.examples} == texts.union(*map(read, [experiment, *options.get("controls", ())]))
    again = HeadRanking.from_dict(ranking.to_dict())
    assert (again.examples, again) == (ranking.examples, ranking)


# A question counts once


def repeated(questions: Task, times: int, name: str = "repeated") -> Task:
    return replace(questions, name=name, examples=questions.examples * times)


def test_four_questions_asked_twenty_times_are_no_evidence(model, whole, found):
    task = repeated(whole.take(4), 20, "four").split(40)[0]
    assert (len(task), len(task.held_out)) == (40, 40)
    message = "has 2 {} examples .*asks 2 different questions in 40 examples.*; 20 or more are needed on each side"
    with rows_run(model) as rows:
        with pytest.raises(ValueError, match=message.format("finding")):
            find_heads(model, task, controls=None, **SEARCH)
        with pytest.raises(ValueError, match=message.format("confirming")):
            confirm(model, task, WORKING, controls=None, **QUIET)
    assert rows == []
    proof = prove(Experiment(model, task.held_out, **QUIET), WORKING)
    assert (proof.verdict, proof.result.n_examples) == ("baseline too low", 2)
    assert proof.reasons == ("the intact model answers 2 of 2 examples right, fewer than 20",)


def test_intervals_and_p_values_are_those_of_the_questions_asked_once(model, whole):
    once = whole.split(60)[0]
    thrice = replace(
        once, examples=once.examples * 3, held_out=replace(once.held_out, examples=once.held_out.examples * 3)
    )
    one, three = (confirm(model, task, WORKING[:1], controls=None, n_random=2, **QUIET) for task in (once, thrice))
    assert three.result == one.result
    assert (three.p, three.verdict, three.spent) == (one.p, one.verdict, one.spent)
    ranks = [find_heads(model, task, controls=None, **SEARCH) for task in (once, thrice)]
    np.testing.assert_array_equal(ranks[0].importance, ranks[1].importance)
    assert ranks[0].examples == ranks[1].examples
