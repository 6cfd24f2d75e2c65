"""Results and models meet where their weights are the same; heads of another model are given as a list."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cs_heads as cs
from cs_heads.analysis.scale_study import Study
from cs_heads.experiment.controls import found_on
from cs_heads.experiment.cost import Cost
from cs_heads.lens import load_model
from cs_heads.methods.gating import HeadGates
from tests.known_heads import WORKING, own_answers

OTHER_WEIGHTS = (
    r"must be of the same weights, got {} of '.*' and {} of '.*': .*give a list of them, as found\.top\(5\)$"
)
FEW = {"controls": None, "n": 20, "n_random": 2}


def changed(folder):
    """The model of a folder with some weights moved a little: another model of the same name."""
    model = load_model(folder, device="cpu")
    with torch.no_grad():
        model.blocks[0].attn.o.original_component.weight.mul_(1.001)
    return model


def ranking(model, task):
    importance = cs.Experiment(model, task).grid.mask(WORKING).astype(float)
    return cs.HeadRanking("by hand", importance, 1, k=2, provenance=dict(cs.Experiment(model, task).provenance()))


def gates_of(model, task):
    """Gates as a fit to a task would give them, all open."""
    experiment = cs.Experiment(model, task)
    gates = np.full((1, *experiment.grid.shape), 0.9)
    losses, trajectory = np.zeros((3, 1, 1)), np.stack([gates] * 3)[:, :, None]
    return HeadGates(
        *(gates, gates, gates, losses, trajectory, np.zeros(1, dtype=int), Cost(0)),
        provenance=experiment.provenance(),
        examples=found_on(experiment),
    )


@pytest.fixture(scope="module")
def met(load_known, known_folder):
    """A model, another of its name with other weights, a task of both, a ranking and a proof on each."""
    model, other = load_known(), changed(known_folder)
    task = cs.Task.from_records(own_answers(model, 100), "own answers").split()[0]
    both = [ranking(each, task) for each in (model, other)]
    proofs = [cs.confirm(each, task, list(WORKING), **FEW) for each in (model, other)]
    return SimpleNamespace(model=model, other=other, task=task, found=both[0], foreign=both[1], proofs=proofs)


def weights_of(result):
    return result.provenance["model"]["weights"]


USES = {
    "confirm": lambda met, found: cs.confirm(met.model, met.task, found, **FEW),
    "specificity": lambda met, found: cs.specificity(met.model, met.task, found, n=20),
    "several": lambda met, found: cs.specificity(met.model, met.task, {"one": found}, n=20),
    "sparsity_curve": lambda met, found: cs.sparsity_curve(met.model, met.task, found, max_heads=2, n=20),
    "failures": lambda met, found: cs.failures(met.model, met.task, found, n=20, max_new_tokens=1),
    "format_heads": lambda met, found: cs.format_heads(met.model, [met.task], [replace(met.task, name="full")], found),
    "habits": lambda met, found: cs.habits(met.model, found, n=1),
    "attention": lambda met, found: cs.attention(met.model, ["the cat"], found),
    "bake": lambda met, found: cs.bake(met.model, found),
    "ablated": lambda met, found: cs.ablated(met.model, found).__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_a_ranking_of_other_weights_is_refused_and_its_heads_as_a_list_are_taken(met, use, monkeypatch):
    said = OTHER_WEIGHTS.format(weights_of(met.foreign), weights_of(met.found))
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", lambda *_: pytest.fail("the model ran"))
        with pytest.raises(ValueError, match=f"^heads and the model {said}"):
            USES[use](met, met.foreign)
    if use != "ablated":
        USES[use](met, met.found)
        USES[use](met, met.foreign.top(2))


def test_a_ranking_of_another_dtype_is_taken_and_that_its_weights_are_not_compared_is_said(met, known_folder):
    cast = load_model(known_folder, device="cpu", dtype="bfloat16")
    notes = [cs.confirm(model, met.task, met.found, **FEW).notes for model in (cast, met.model)]
    said = "found on a TransformerBridge float32, proved on a TransformerBridge bfloat16: that their weights are the "
    assert [any(note.startswith(said) for note in each) for each in notes] == [True, False]


def test_a_report_takes_no_proof_of_the_same_name_and_other_weights(met, tmp_path):
    own, foreign = met.proofs
    assert own.provenance["model"]["name"] == foreign.provenance["model"]["name"]
    cs.write_report(met.found, tmp_path / "own.html", proof=own)
    with pytest.raises(ValueError, match=r"^parts of a report must be of the same weights"):
        cs.write_report(met.found, tmp_path / "foreign.html", proof=foreign)
    attention = cs.attention(met.other, ["the cat"], list(WORKING))
    with pytest.raises(ValueError, match=r"^parts of a report must be of the same weights"):
        cs.write_report(met.found, tmp_path / "foreign.html", proof=own, attention=attention)
    assert not (tmp_path / "foreign.html").exists()


def test_a_study_is_of_one_model(met):
    own, foreign = met.proofs
    cs.scale_study({"tiny": Study(met.found, own)})
    with pytest.raises(ValueError, match=r"^parts of a study must be of the same weights"):
        cs.scale_study({"tiny": Study(met.found, foreign)})


def test_heads_of_two_models_are_compared_and_those_of_two_states_of_one_are_not(met):
    with pytest.raises(ValueError, match=r"^found\['a'\] and found\['b'\] must be of the same weights"):
        cs.head_overlap({"a": met.found, "b": met.foreign})
    tuned = {**met.foreign.provenance, "model": {**met.foreign.provenance["model"], "name": "tuned"}}
    assert cs.head_overlap({"a": met.found, "b": replace(met.foreign, provenance=tuned)}).pairs[0].heads == 2
    assert cs.head_overlap({"a": met.found, "b": met.foreign.top(2)}).pairs[0].heads == 2


def test_results_with_another_head_off_say_that_hooks_stood(met):
    off = "L0H3"
    with cs.ablated(met.model, [off]):
        found = cs.find_heads(met.model, met.task, method="css", n_masks=30, density=0.2, controls=None)
        judged = [
            cs.confirm(met.model, met.task, found, **FEW),
            cs.specificity(met.model, met.task, found, siblings=[replace(met.task, name="again")], n=20),
            cs.sparsity_curve(met.model, met.task, found, max_heads=1, n=20),
            cs.faithfulness(met.model, met.task, found, shares=[0.5], n_random=0, n=20),
            cs.failures(met.model, met.task, found, n=20, max_new_tokens=1),
        ]
    for result in (found, *judged):
        assert result.provenance["model"]["hooks"] == ["blocks.0.attn.hook_z"]
        assert result.notes.count("the model was measured with hooks of yours on it: blocks.0.attn.hook_z") == 1
    without = cs.confirm(met.model, met.task, found, **FEW)
    assert "hooks" not in without.provenance["model"]


def test_gates_meet_experiments_and_gates_of_the_same_weights_alone(met):
    unseen = cs.Experiment(met.model, met.task).held_out
    own, foreign = (gates_of(each, met.task) for each in (met.model, met.other))
    cs.toggle_curves(unseen, own, max_heads=1)
    with pytest.raises(ValueError, match=r"^gates and the model must be of the same weights"):
        cs.toggle_curves(unseen, foreign, max_heads=1)
    own.ranking(controls=[own])
    with pytest.raises(ValueError, match=r"^gates and those of controls must be of the same weights"):
        own.ranking(controls=[foreign])
    with pytest.raises(ValueError, match=r"^fits\['a'\] and fits\['b'\] must be of the same weights"):
        cs.taxonomy({"a": own, "b": foreign})


def test_curves_of_gates_leave_out_unseen_examples_that_these_were_fitted_to(met):
    held_out = met.task.held_out
    mixed = replace(met.task, examples=(*met.task.examples[:5], *held_out.examples[:3]), held_out=None)
    gates = gates_of(met.model, mixed)
    curve = cs.toggle_curves(cs.Experiment(met.model, held_out), gates, max_heads=1)[0]
    assert curve.notes[0].startswith(f"3 of {len(held_out)} unseen examples")
    rest = replace(held_out, examples=held_out.examples[3:])
    assert repr(cs.toggle_curves(cs.Experiment(met.model, rest), gates, max_heads=1)[0]) == repr(curve)
    # On the examples of the fit, as in the paper.
    (note,) = cs.toggle_curves(cs.Experiment(met.model, met.task), gates, max_heads=1)[0].notes
    assert note == f"5 of {len(met.task)} examples are those that the gates were fitted to"
