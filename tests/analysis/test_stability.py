"""How often heads and the verdict come again: by the resamples of a search, and by whole searches with other seeds."""

from dataclasses import replace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.stability import search_of
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head
from tests.known_heads import own_answers

SEARCH = {"method": "css", "n_masks": 20, "density": 0.2}


@pytest.fixture(scope="module")
def task(model):
    return cs.Task.from_records(own_answers(model, 50), "own").split(25)[0]


@pytest.fixture(scope="module")
def found(model, task):
    return cs.find_heads(model, task, k=2, seed=4, controls=None, **SEARCH)


def test_a_repeat_is_the_search_and_the_proof_of_the_next_seed(model, task, found):
    once = cs.confirm(model, task, found, seed=4, controls=None)
    proof = cs.confirm(model, task, found, seed=4, controls=None, repeats=2)
    again = [cs.find_heads(model, task, k=2, seed=seed, controls=None, **SEARCH) for seed in (5, 6)]
    proofs = [cs.confirm(model, task, each, seed=s, controls=None) for each, s in zip(again, (5, 6), strict=True)]
    assert proof.stability.heads == tuple(each.heads for each in proofs)
    assert proof.stability.verdicts == tuple(each.verdict for each in proofs)
    assert proof.stability.spent == sum(each.spent for each in (*again, *proofs)), "the cost is stated"
    assert proof.spent == once.spent + proof.stability.spent
    assert (proof.heads, proof.verdict, proof.reasons) == (
        once.heads,
        once.verdict,
        (*once.reasons, proof.stability.told),
    )
    assert "searched and proved again with other seeds: 2 " in str(proof)
    assert Confirmation.from_dict(proof.to_dict()) == proof


def test_a_repeat_has_the_seed_after_that_of_the_search_and_its_controls(model, task, found):
    """With the seed of the search, which is not that of the proof, it would find the same again."""
    rhyme, code = (cs.load_task(f"demo/{name}", n=40, seed=0) for name in ("rhyme", "code"))
    told = replace(found.search, controls_from="given", controls=("demo/code",))
    search = search_of(replace(found, search=told), [rhyme, code])
    assert (search["seed"], search["controls"], search["n_masks"]) == (4, [code], 20)
    assert search_of(replace(found, search=replace(told, controls_from="auto")), ())["controls"] == "auto"
    with pytest.raises(ValueError, match="repeats must be 0 where controls lack one of the search: demo/code"):
        cs.confirm(model, task, replace(found, search=told), controls=[rhyme], repeats=1)


def test_heads_are_counted_over_the_repeats():
    told = cs.analysis.Stability(
        heads=((Head(0, 1),), (Head(0, 1), Head(2, 0))), verdicts=("specific", "shared"), spent=9
    )
    assert told.frequency == {Head(0, 1): 1.0, Head(2, 0): 0.5}
    assert (
        told.told
        == "searched and proved again with other seeds: 1 specific, 1 shared; proved there: L0H1 in 2, L2H0 in 1"
    )


def test_what_no_search_found_or_can_find_again_is_refused_before_the_model_runs(model, task, found):
    def refused(heads):
        with pytest.raises(ValueError, match="repeats must be 0") as told:
            cs.confirm(model, task, heads, repeats=2)
        return str(told.value)

    bare = HeadRanking("css", np.zeros(found.grid.shape), spent=0)
    assert "that find_heads did not find" in refused(["L0H1"])
    assert "that find_heads did not find" in refused(bare)
    unkept = replace(found, search=replace(found.search, options={"forget": None}))
    assert refused(unkept) == "repeats must be 0 for a search with forget, which the ranking does not keep"
