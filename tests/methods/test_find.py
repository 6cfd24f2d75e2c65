from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cs_heads.analysis.confirm import confirm
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import METHODS, Method
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, controls, search_control
from cs_heads.units import Head
from tests.known_heads import WORKING, hopeless_records, own_answers, rows_run
from tests.methods.planted import OPTIONS, options_of
from tests.tiny import WORDS

FEW = {"method": "css", **OPTIONS["css"]}
OTHER = Task.from_records([{"prompt": f"{word} is", "target": " one"} for word in WORDS], "other")


@pytest.fixture(scope="module")
def answered(model):
    """A task of which the known model gets every example right."""
    return Task.from_records(own_answers(model, 130), "own answers")


# Each goes the way of another method here: css, chg, gradient.
LIKE_ANOTHER = ("csb", "contrastive", "attribution")


@pytest.mark.parametrize(
    ("method", "more"),
    [*((name, {}) for name in METHODS), *((name, {"ablation": "mean"}) for name in ("css", "greedy"))],
)
@pytest.mark.usefixtures("no_short_cuts", "few_steps")
def test_every_method_keeps_to_its_budget_and_names_the_least(model, answered, method, more):
    """The rows the model runs, forward, and as many again backward, are never more. So is what an ablation needs."""
    finding = answered.split(40)[0]
    options = options_of(method, finding) | ({"n_masks": None} if method in ("css", "csb") else {})
    search = partial(find_heads, model, finding, k=2, method=method, controls=None, **options, **more)
    with rows_run(model) as rows, pytest.raises(ValueError, match=r"budget must be [\d,]+ or more") as refused:
        search(budget=41)
    assert rows == []
    least = int(str(refused.value).split("be ")[1].split(" ")[0].replace(",", ""))
    with rows_run(model) as rows:
        ranking = search(budget=least)
    # What masks have in common is measured once, and counted once.
    assert sum(rows) + ranking.backwards <= ranking.spent <= least
    with pytest.raises(ValueError, match=f"budget must be {least:,} or more"):
        search(budget=least - 1)
    with pytest.raises(ValueError, match=f"budget must be {least:,} or more .*, got 0"):
        search(budget=0)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_ANOTHER)) for name in METHODS]
)
def test_every_method_finds_the_working_heads_alike_for_a_seed_and_says_what_it_did(
    model, answered, method, bars, capsys, few_steps
):
    """With a bar and without. Gradients with their sign, and gates of so few steps, find others beside."""
    finding = answered.split(40)[0]
    budget = {"annealed": 1200, "group-testing": 1600}.get(method)
    given = {"k": 2, "method": method, "seed": 3, "controls": None, "budget": budget, **options_of(method, finding)}
    given |= {"steps": few_steps} if "steps" in given else {}
    shown = find_heads(model, finding, progress=True, **given)
    capsys.readouterr()
    quiet = find_heads(model, finding, progress=False, **given)

    # One bar, with its name, the baseline and all that it spends; none where none is asked for.
    assert capsys.readouterr() == ("", "")
    [bar] = bars
    assert all(line.startswith(method) for line in bar.said)
    assert any("baseline 1.00" in line for line in bar.said)
    assert bar.n == bar.total == shown.spent
    # What is to do is known from the start, but for random masks that come again on so small a grid, and cost nothing.
    assert shown.spent <= bar.first
    assert method in ("annealed", "csb", "group-testing") or bar.first <= 1.3 * shown.spent

    # The same ranking for the same seed.
    assert shown.importance.tobytes() == quiet.importance.tobytes()
    assert shown.to_dict() == quiet.to_dict()

    assert method in ("attribution", "chg", "contrastive") or {*shown.top(2)} == {*WORKING}
    assert shown.method == method
    assert {"model", "task", "baseline"} <= shown.provenance.keys()
    assert (shown.search.seed, shown.k) == (3, 2)


@pytest.mark.usefixtures("no_short_cuts")
def test_the_backward_passes_of_a_search_by_gradients_are_counted_and_told_apart(model, answered):
    control = Task.from_records(own_answers(model, 40, seed=8), "others")
    given = {"controls": [control], "k": 2, "budget": 900, "screen": "gradients", "n_bootstraps": 0}
    with rows_run(model) as rows:
        ranking = find_heads(model, answered.split()[0], **given)
    rows_of_gradients = ranking.provenance["design"]["screen"]
    backwards = rows_of_gradients["per_row"] * (rows_of_gradients["rows"] + rows_of_gradients["control_rows"])
    assert (ranking.spent, ranking.backwards) == (sum(rows) + backwards, backwards)
    assert ranking.spent == sum(rows) + backwards <= 900


# Which controls there are


def test_by_default_annealed_has_everyday_skills_as_controls_and_counts_them(model, answered, few_skills):
    """A model of twenty words does none of them, and asking costs."""
    with rows_run(model) as rows:
        found = find_heads(model, answered.split(40)[0], k=2, n_bootstraps=0, budget=1100)
    assert found.provenance["controls"] == []
    assert list(found.provenance["controls_left_out"]) == few_skills[1:]
    assert found.search.controls_from == "auto"
    assert any(note.startswith("the model can do 0 of the default controls, fewer than") for note in found.notes)
    assert sum(rows) <= found.spent <= 1100
    # Its choices are one and the same token to this model.
    assert "default controls that the model cannot read: everyday/agreement" in found.notes


def test_of_the_controls_given_each_is_used_by_its_finding_side(model, answered):
    """A method that takes controls gets an experiment on each, with the settings of the task's own."""
    first, second = (Task.from_records(own_answers(model, 40, seed=seed), f"other {seed}") for seed in (8, 9))
    seen = []

    def curious(experiment, budget=None, seed=0, *, controls=()):
        seen.extend(controls)
        for one in (experiment, *controls):
            one(np.zeros((1, 3, 4), dtype=bool))
        return HeadRanking("curious", np.zeros((3, 4)), spent=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "curious", Method(curious))
        finding = second.split(20)[0]
        settings = {"k": 2, "method": "curious", "seed": 3, "ablation": "mean"}
        ranking = find_heads(model, answered.split(40)[0], controls=[first, finding], **settings)
    assert [one.experiment.task.identity for one in seen] == [search_control(first, 3).identity, finding.identity]
    assert [one.experiment.settings.ablation for one in seen] == ["mean", "mean"]
    assert ranking.spent == 2 * (40 + 20 + 20)
    assert (ranking.search.controls, ranking.search.controls_from) == (("other 8", "other 9"), "given")


def test_a_default_control_that_is_the_task_under_another_name_is_left_out_with_a_note(model, answered, monkeypatch):
    others = Task.from_records(own_answers(model, 40, seed=8), "others")
    skills = [replace(answered, name="everyday/copy"), others]
    asking = tuple(controls._Asking(skill.split(20)[0]) for skill in skills)
    monkeypatch.setattr(controls, "_skills_of", lambda family, seed: asking)
    found = find_heads(model, answered.split()[0], k=2, budget=1000)
    assert found.provenance["controls"] == ["others"]
    assert "not used as controls, since they ask for the same as the task: everyday/copy" in found.notes


@pytest.mark.parametrize("method", ["one-shot", "annealed"])
def test_a_ranking_says_where_heads_of_every_task_were_not_looked_for(model, answered, method):
    said = "no controls: heads of this task cannot be distinguished from task-general (universal) heads"
    settings = {"method": method, "budget": 1000, "progress": False}
    ranking = find_heads(model, answered.split(40)[0], k=2, controls=None, **settings)
    assert (ranking.shared, ranking.search.controls, ranking.search.controls_from) == ((), (), None)
    assert sum(said in note for note in ranking.notes) == 1


def test_examples_that_find_heads_never_confirm_them(model, answered):
    twice = Task.from_records(
        [{"prompt": e.prompt, "target": e.continuations[0]} for e in answered.examples for _ in range(2)], "twice"
    )
    finding, confirming = twice.split()
    assert not set(finding.examples) & set(confirming.examples)
    ranking = find_heads(model, finding, k=2, **FEW)
    proof = confirm(model, finding, ranking, n=len(confirming), n_random=1, controls=None)
    for side, result in ((finding, ranking), (confirming, proof)):
        once = replace(side, examples=tuple(dict.fromkeys(side.examples)))
        assert result.provenance["task"]["identity"] == once.identity
        n = len(once)
        assert (
            f"task 'twice' asks {n} different questions in {2 * n} examples: one example of each counts" in result.notes
        )


# What is refused


@pytest.mark.usefixtures("no_short_cuts")
def test_a_baseline_at_chance_is_refused_before_a_mask_is_spent(model):
    task = Task.from_records(hopeless_records(200), "coins").split()[0]
    with (
        rows_run(model) as rows,
        pytest.raises(BaselineTooLowError, match=r"'coins': .* on 100 examples, no better than chance \(0\.500\)"),
    ):
        find_heads(model, task, k=2, **FEW)
    assert sum(rows) == 100 * 2


def test_heads_may_be_named_twice_among_those_that_are_off(model, answered):
    found = find_heads(model, answered.split()[0], k=2, off=["L0H0", (0, 0)], controls=None, **FEW)
    assert found.off == (Head(0, 0),)


def test_of_pairs_none_is_lost_without_its_other(model, answered):
    """Contrastive gates pair example i with example i, so no question may be left out of one side alone."""
    twice = Task.from_records(own_answers(model, 60) * 2, "twice").split(60)[0]
    with (
        rows_run(model) as rows,
        pytest.raises(ValueError, match=r"must ask no question twice, .* different questions"),
    ):
        find_heads(model, twice, k=2, method="contrastive", controls=None, forget=twice)
    assert rows == []


def test_k_is_what_the_controls_leave_and_a_note_says_so(model, answered, monkeypatch):
    def one(experiment, budget=None, seed=0):
        return HeadRanking("one", np.ones((3, 4)), spent=0, shared=tuple(experiment.grid)[1:])

    monkeypatch.setitem(METHODS, "one", Method(one))
    finding = answered.split(60)[0]
    found = find_heads(model, finding, k=2, method="one", controls=None)
    assert [*found] == [Head(0, 0)]
    assert "k is 1, not 2: the controls need all other heads, too" in found.notes
    proof = confirm(model, finding, found, k=3, controls=None, n_random=5, n=40)
    assert len([*proof.heads, *proof.passengers]) == 3, "shared heads, if asked for"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "guess"}, "method must be one of annealed, css, csb.*, got 'guess'"),
        ({"k": 2, "method": "contrastive"}, "method 'contrastive' needs the option forget"),
        ({"k": 2, "method": "greedy", "one_shot": True}, "method 'greedy' has no option one_shot"),
        ({"k": 2, "method": "chg", "ablation": "mean"}, "ablation must be 'zero' for method 'chg'"),
        ({"k": 2, "method": "css", "budget": 65}, "budget must be 390 or more"),
        ({"k": 0}, r"k must be an integer in 1\.\.6, half of the 12 heads of the grid, .*; got 0"),
        ({"k": 2, "density": 0.05}, r"density 0\.05 ablates no head: a mask of this grid has 12 heads"),
        (
            {"k": 2, "masks": 3},
            "method .css. has no option masks; it has n_masks, density, alpha; settings of every call: abl",
        ),
        ({"k": 2, "method": "annealed", "budget": 100}, r"budget must be 513 or more .*, got 100"),
        ({"controls": "everyday"}, "controls must be a list of tasks, 'auto' or None, got 'everyday'"),
        ({"method": "mediation", "controls": [OTHER]}, "method 'mediation' takes no controls; give them to confirm"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_model_runs(model, answered, wrong, message):
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        find_heads(model, answered.split()[0], **{"method": "css", "controls": None} | wrong)
    assert rows == []
