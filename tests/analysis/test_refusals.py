"""What an analysis is asked wrongly is refused by its name, before the model runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.units import Grid
from tests.analysis.test_gating import formats, gates_of, made_gates
from tests.known_heads import WORKING, choice_of_own_answers, own_answers, rows_run
from tests.methods.planted import Planted

GRID = cs.Grid(3, 4)
WORLD = Planted(GRID, {})
SETS = {"a": ["L0H0"], "b": ["L0H1"]}
SHARED = r"shares .* examples with (the finding side of|task)"


@pytest.fixture(scope="module")
def of(model):
    """The model, two split tasks, a whole one, one of choices, one split in two ways, and formats of tasks."""
    records = own_answers(model, 150)
    once, again = (cs.Task.from_records(records[:90], name) for name in ("once", "again"))
    return SimpleNamespace(
        model=model,
        own=cs.Task.from_records(records[:50], "own").split(25)[0],
        sibling=cs.Task.from_records(records[50:100], "sibling").split(25)[0],
        whole=cs.Task.from_records(records[100:], "whole"),
        choices=choice_of_own_answers(model, 50, "choices").split(25)[0],
        once=once.split(45, seed=1)[0],
        again=again.split(45, seed=2)[0],
        paired=formats(model),
        unpaired=formats(model, ("a", "c")),
    )


def ranking(grid=GRID, importance=None):
    made = np.arange(grid.size).reshape(grid.shape) if importance is None else np.asarray(importance)
    return cs.HeadRanking("made", made.astype(float), spent=0, grid=grid)


def compare(of, **wrong):
    usual = {"methods": ("css", "gradient"), "k": 2, "max_heads": 4, "controls": None}
    return cs.compare(of.model, of.own, **usual | wrong)


def universal(tasks=None, heads=WORKING, **more):
    return cs.universal_heads({"a": WORLD, "b": WORLD} if tasks is None else tasks, heads, WORLD, **more)


def toggled(of, gates, **more):
    return cs.toggle_curves(cs.Experiment(of.model, of.whole), gates, **more)


def alike(of):
    """Choices whose right answers begin as the wrong ones do."""
    records = [{"prompt": e.prompt, "choices": [" cat dog", " cat bird"], "answer": 0} for e in of.whole.examples]
    return cs.Task.from_records(records).split(25)[0]


def written(of):
    records = [{"prompt": e.prompt, "reference": "cat"} for e in of.whole.examples]
    return cs.Task.from_records(records, max_new_tokens=2).split(25)[0]


WRONG = [
    # Searches side by side
    (lambda of: compare(of, methods=()), "methods must be a list of different names"),
    (lambda of: compare(of, methods=("css", "css")), "methods must be a list of different names"),
    (lambda of: compare(of, methods=("css", "guess")), "method must be one of annealed, .*, got 'guess'"),
    (lambda of: compare(of, options={"css": {"masks": 3}}), "method 'css' has no option masks"),
    (lambda of: compare(of, options={"chg": {}}), "options must be those of the methods compared, got some for chg"),
    (lambda of: compare(of, k=5), r"k must be an integer in 1\.\.4"),
    (lambda of: compare(of, max_heads=7), r"max_heads must be an integer in 1\.\.6, half of the 12 heads"),
    (lambda of: compare(of, n_random=0), "n_random must be an integer of 1 or more, got 0"),
    (lambda of: compare(of, budget=20), "budget must be 150 or more"),
    # Many skills
    (lambda of: cs.atlas(of.model, [of.own]), "tasks must be two or more of different names, got own"),
    (lambda of: cs.atlas(of.model, []), "tasks must be two or more of different names, got none"),
    (lambda of: cs.atlas(of.model, [of.own, replace(of.sibling, name="own")]), "different names, got own, own"),
    (lambda of: cs.atlas(of.model, [of.own, of.whole]), "task 'whole' is not split"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], seed=-1), "seed must"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], n=19), "n must be an integer of 20 or more"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], n_random=0), "n_random must be an integer of 1 or more"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], k=0), "k must be"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], screen="gradient"), "screen must be .*did you mean 'gradie"),
    (lambda of: cs.atlas(of.model, [of.own, of.sibling], control_weight=-1.0), "control_weight must be a finite num"),
    # Heads off
    (lambda of: cs.specificity(of.model, of.whole, WORKING), "task 'whole' is not split"),
    (lambda of: cs.specificity(of.model, of.own, WORKING, controls=[of.own.held_out]), "two or more of 'own'"),
    (lambda of: cs.specificity(of.model, of.own, WORKING, suites={"s": []}), "suite 's' must be a list of one task or"),
    (lambda of: cs.specificity(of.model, of.own, WORKING, n=5), "n must be an integer of 20 or more, got 5"),
    (lambda of: cs.specificity(of.model, of.own, ["L7H0"]), "head L7H0 is not in the grid"),
    (lambda of: cs.specificity(of.model, of.own, WORKING, k=7), r"k must be an integer in 1\.\.6"),
    (lambda of: cs.specificity(of.model, [of.own], {"others": WORKING}), "a task among own; got others"),
    (lambda of: cs.specificity(None, WORLD, WORKING).matrix("drops"), "value must be .*'drop'"),
    (lambda of: cs.sparsity_curve(of.model, of.own, WORKING, max_heads=7), r"max_heads must be an integer in 1\.\.6"),
    (lambda of: cs.failures(of.model, of.choices, {"intact": WORKING}), "heads must not be named 'intact'"),
    (lambda of: cs.failures(of.model, of.choices, WORKING, n=3), "n must be an integer of 20 or more, got 3"),
    (lambda of: cs.failures(of.model, of.choices, [], texts=True), "heads must be one head or more"),
    (lambda of: cs.failures(of.model, of.choices, WORKING, stop=["."]), "'choices' is a choice task"),
    (lambda of: cs.format_heads(of.model, [], [of.own], WORKING), "one set of questions or more, got 0 and 1"),
    (lambda of: cs.format_heads(of.model, [of.own], [of.sibling], []), "heads must be one head or more"),
    (lambda of: cs.interactions(None, WORLD, [*GRID][:7]), "heads must be 6 or fewer, got 7: L0H0, L0H1, L0H2"),
    (lambda of: universal({"a": WORLD}), "two tasks or more, none of them named 'control', got a"),
    (lambda of: universal(dict.fromkeys(("a", "b", "control"), WORLD)), "named 'control', got a, b, control"),
    (lambda of: universal({"a": WORLD, "b": Planted(cs.Grid(2, 2), {})}), "experiments must be of one grid"),
    (lambda of: universal({"a": WORLD, "b": Planted(GRID, {}, baseline=0.0)}), "baseline of task 'b' is too low"),
    (lambda of: universal(heads=[]), "heads must name one head or more"),
    (lambda of: universal(heads=["L9H9"]), "head L9H9 is not in the grid"),
    (lambda of: universal(n=0), "n must be an integer of 1 or more, got 0"),
    # What one split finds heads with, the other would judge them with
    (lambda of: cs.specificity(of.model, [of.once, of.again], {"once": WORKING}), SHARED),
    (lambda of: cs.specificity(of.model, of.again, WORKING, siblings=[of.once]), SHARED),
    (lambda of: cs.format_heads(of.model, [of.once], [of.again], WORKING), SHARED),
    (lambda of: cs.confirm(of.model, of.once, WORKING, controls=[of.again]), SHARED),
    (lambda of: cs.compare(of.model, of.once, methods=["csb"], controls=[of.again]), SHARED),
    # All others off
    (lambda of: cs.faithfulness(of.model, of.own, ranking(), shares=(0, 1.5)), r"numbers in 0\.\.1, got 1\.5"),
    (lambda of: cs.faithfulness(of.model, of.own, ranking(), shares=()), r"shares must be numbers in 0\.\.1, got none"),
    (lambda of: cs.faithfulness(of.model, of.own, ranking(), n_random=-1), "n_random must be an integer of 0 or more"),
    (lambda of: cs.faithfulness(of.model, of.own, {"random": ranking()}), "found must have other names than 'random'"),
    (lambda of: cs.faithfulness(of.model, of.own, {}), "found must be a HeadRanking, or rankings by name, got {}"),
    (
        lambda of: cs.faithfulness(of.model, of.own, ranking(Grid(3, 48, "neurons"))),
        r"found\['made'\] must be ranked .*, got 3 × 48 neurons: give units='neurons'",
    ),
    # What heads look at and write
    (lambda of: cs.attention(of.model, "the cat", WORKING), "list of one text or more, got 'the cat'"),
    (lambda of: cs.attention(of.model, [], WORKING), "prompts must be a list of one text or more"),
    (lambda of: cs.attention(of.model, ["the cat"], []), "heads must be one head or more, none twice; got none"),
    (lambda of: cs.direct_effects(of.model, written(of), WORKING), "must have one prompt an example, and answers that"),
    (lambda of: cs.direct_effects(of.model, alike(of), WORKING), "must have 20 unseen examples or more"),
    (lambda of: cs.direct_effects(of.model, of.own, ["L9H9"]), "head L9H9 is not in the grid"),
    # Of results
    (lambda of: cs.head_overlap({"a": ["L0H0"]}, grid=GRID), "found must hold two rankings or more, got 1"),
    (lambda of: cs.head_overlap(SETS | {"b": []}, grid=GRID), r"found\['b'\] must be one head or more"),
    (lambda of: cs.head_overlap(SETS | {"b": ["L0H9"]}, grid=GRID), "head L0H9 is not in the grid"),
    (lambda of: cs.head_overlap(SETS, grid=GRID, n_key_value_heads=3), "must divide the 4 heads of a layer, got 3"),
    (lambda of: cs.head_overlap(SETS, grid=GRID, n_permutations=0), "n_permutations must be an integer of 1 or more"),
    (lambda of: cs.head_overlap(SETS), "grid must be given where found holds no ranking"),
    (lambda of: cs.scale_study({}), "studies must hold one study or more"),
    (lambda of: cs.scale_study({"a": "."}), "holds no ranking.json"),
    (lambda of: cs.scale_study({"a": ranking(importance=-np.eye(3, 4))}), "has no head of positive importance"),
    (lambda of: cs.scale_study({"a": ranking()}, k=33), r"k must be an integer in 1\.\.12, the heads of 'a'; got 33"),
    # Of gates
    (lambda of: cs.analysis.score_of_heads(made_gates(), ["L0H1"]), r"heads must be 2\.\.10 of the 12 .*, got 1"),
    (lambda of: cs.analysis.score_of_heads(made_gates(), [*GRID][:11]), r"heads must be 2\.\.10 of the 12 .*, got 11"),
    (lambda of: cs.taxonomy({}), "fits must hold one fit or more"),
    (lambda of: cs.taxonomy({"a": made_gates()}, 0.0), r"threshold must lie in \(0, 1\], got 0"),
    (lambda of: cs.analysis.seed_agreement(made_gates(1)), "gates must have two seeds or more, got 1"),
    (lambda of: toggled(of, made_gates(), max_heads=7), r"max_heads must be an integer in 1\.\.6"),
    (lambda of: toggled(of, gates_of(np.ones((1, 2, 4)), np.ones((1, 2, 4)))), "gates must be of the grid"),
    (lambda of: cs.held_out_contrasts(of.model, {"once": {}}), "formats must be two, got 1"),
    (lambda of: cs.held_out_contrasts(of.model, of.unpaired), "must have the same two tasks or more"),
    (lambda of: cs.held_out_contrasts(of.model, of.paired, held_out=["c"]), "tasks among a, b, got c"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_asked_wrongly_is_refused_before_the_model_runs(of, call, message):
    with pytest.raises(ValueError, match=message), rows_run(of.model) as rows:
        call(of)
    assert rows == []
