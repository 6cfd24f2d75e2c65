import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads import methods
from cs_heads.experiment.cost import Cost
from cs_heads.lens import encode_example, patch
from cs_heads.methods.mediation import Mediation, indirect_effects
from cs_heads.tasks import Task
from cs_heads.tasks.pairs import PromptPair, shuffled_labels
from tests.known_heads import WORKING, own_answers, rows_run
from tests.on_model import on_model
from tests.plain import last_logprobs, z_changed

mediation = on_model(methods.mediation)

ITEMS = [("cat", "one"), ("dog", "two"), ("bird", "three"), ("king", "four"), ("run", "the")]
PAIRS = [
    PromptPair("the cat sees a big", "the dog sees a red", " bird"),
    PromptPair("one two", "a small king runs", " three"),
    PromptPair("a red dog sleeps", "two", " the"),
]


@pytest.fixture(scope="module")
def model(load):
    return load("llama")


@pytest.fixture
def plain(folders):
    return AutoModelForCausalLM.from_pretrained(folders("llama"))


def z_of(plain, prompt, position):
    kept = []
    with torch.no_grad(), z_changed(plain, lambda layer, z: kept.append(z[position]) or z):
        last_logprobs(plain, prompt)
    return torch.stack(kept)


def probability_with(plain, prompt, position, source, token):
    """Probability of a token for every head patched alone, and without a patch: ``[layer, head]`` and a number."""
    patched = np.empty(source.shape[:2])
    with torch.no_grad():
        for index in np.ndindex(patched.shape):

            def change(layer, z, index=index):
                z = z.clone()
                if layer == index[0]:
                    z[position, index[1]] = source[index]
                return z

            with z_changed(plain, change):
                patched[index] = last_logprobs(plain, prompt)[token].exp().item()
        return patched, last_logprobs(plain, prompt)[token].exp().item()


def test_indirect_effects_equal_patching_by_hand(load, backend, plain):
    """One prompt, one head at a time, in plain Hugging Face."""
    model = load("llama", backend)
    found = indirect_effects(model, PAIRS, batch_tokens=40)
    for number, pair in enumerate(PAIRS):
        clean, corrupted = (encode_example(model.tokenizer, t, [pair.target]) for t in (pair.clean, pair.corrupted))
        source = z_of(plain, clean.prompt, -1)
        patched, without = probability_with(plain, corrupted.prompt, -1, source, corrupted.continuations[0][0])
        assert found.corrupted[number] == pytest.approx(without, abs=1e-5)
        assert found.effects[number] == pytest.approx(patched - without, abs=1e-5)
    assert found.average == pytest.approx(found.effects.mean(axis=0))
    assert found.unit == "probability"


def test_the_function_vector_protocol_carries_the_mean_of_the_clean_runs(model, plain):
    pairs = shuffled_labels(ITEMS, n=3, n_shots=2, form="{item} , {label} . ", seed=1)
    found = indirect_effects(model, pairs, average_source=True)
    encoded = [
        [encode_example(model.tokenizer, text, [pair.target]) for text in (pair.clean, pair.corrupted)]
        for pair in pairs
    ]
    mean = torch.stack([z_of(plain, clean.prompt, -1) for clean, _ in encoded]).mean(dim=0)
    for number, (_, corrupted) in enumerate(encoded):
        patched, without = probability_with(plain, corrupted.prompt, -1, mean, corrupted.continuations[0][0])
        assert found.effects[number] == pytest.approx(patched - without, abs=1e-5)


def test_a_budget_takes_the_pairs_that_it_covers(model):
    with rows_run(model) as rows:
        found = indirect_effects(model, PAIRS, budget=41)
    assert len(found.effects) == 2
    assert sum(rows) == found.cost.spent == found.ranking().spent == 2 * (12 + 2)
    with rows_run(model) as rows, pytest.raises(ValueError, match=r"budget must be 28 or more .*got 27"):
        indirect_effects(model, PAIRS, budget=27)
    assert rows == []


# Significance


def planted(effects) -> Mediation:
    return Mediation(np.asarray(effects, dtype=float), np.zeros(len(effects)), Cost(0), "nats")


def test_heads_with_an_effect_are_significant_and_others_rarely():
    rng = np.random.default_rng(1)
    effects = rng.normal(0, 1, (40, 10, 20))
    effects[:, 2, 3] += 1.5
    effects[:, 7, 0] += 2.0
    effects[:, 4, 4] -= 2.0
    found = planted(effects)
    assert found.heads()[:2] == [(h := found.ranking().order)[0], h[1]]
    assert {str(head) for head in found.heads()} >= {"L2H3", "L7H0"}
    assert "L4H4" not in map(str, found.heads())
    assert found.significant().sum() <= 4
    frame = found.to_frame()
    assert frame["head"].tolist()[:2] == ["L7H0", "L2H3"]
    assert frame["significant"].sum() == found.significant().sum()


# From a task


def test_heads_that_carry_the_answer_of_an_example_are_found(load_known):
    task = Task.from_records(own_answers(load_known(), 60), "own answers")
    ranking = mediation(load_known(), task, n_pairs=15, seed=2)
    assert set(ranking.top(2)) == set(WORKING)
    assert ranking.importance[1, 1] == 0
    assert ranking.spent == 60 + 15 * 14
    assert ranking.provenance["pairs"] == 15


# A store


@pytest.fixture
def stop_at(monkeypatch):
    """Ctrl-C at some forward without or with a patch, none for 0; the rows of those that ran, each kept at once."""
    monkeypatch.setattr("cs_heads.store.kept_work._EVERY", 0.0)
    measure = patch._logprobs

    def stops(number):
        ran = []

        def counted(model, points):
            if len(ran) + 1 == number:
                raise KeyboardInterrupt
            ran.append(len(points))
            return measure(model, points)

        monkeypatch.setattr(patch, "_logprobs", counted)
        return ran

    return stops


def test_a_search_that_was_cut_short_goes_on_bit_for_bit(load_known, stop_at, tmp_path):
    """In the first layer and in a later one: no patched run is made twice, and at the end none is left to make."""
    task = Task.from_records(own_answers(load_known(), 60), "own answers")
    options = {"n_pairs": 5, "seed": 2, "batch_tokens": 20}
    whole = mediation(load_known(), task, **options)
    ran = []
    for number in (4, 9, 0):
        some = stop_at(number)
        if number:
            with pytest.raises(KeyboardInterrupt):
                mediation(load_known(), task, store=tmp_path / "run.sqlite", **options)
        else:
            found = mediation(load_known(), task, store=tmp_path / "run.sqlite", **options)
        ran += some
    assert sum(ran) == 5 * (12 + 1)
    np.testing.assert_array_equal(found.importance, whole.importance)
    np.testing.assert_array_equal(found.interval, whole.interval)
    assert (found.spent, found.provenance, found.notes) == (whole.spent, whole.provenance, whole.notes)
    ran = stop_at(0)
    with rows_run(load_known()) as rows:
        again = mediation(load_known(), task, store=tmp_path / "run.sqlite", **options)
    assert ran == rows == []
    np.testing.assert_array_equal(again.importance, whole.importance)
    # Other pairs are not answered by what is kept.
    mediation(load_known(), task, store=tmp_path / "run.sqlite", **options | {"seed": 3})
    assert sum(ran) == 5 * (12 + 1)


# What is refused, before the model runs


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (PAIRS[:1], "pairs must hold 2 or more, got 1"),
        ([PAIRS[0], PromptPair("a", "the", " cat", " dog")], "must all name what is said instead or none"),
        ([PAIRS[0], PromptPair("the cat", "a dog", " cat", None, (5,), (5,))], "the same number of places"),
        ([PromptPair("the cat", "a dog", " cat", None, (5,), (5,))] * 2, "pair 0: place 5 .* lies inside a token"),
        ([PromptPair("the", "a", " cat dog", " cat sees")] * 2, "pair 0: answers .* begin with the same token"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(model, pairs, message):
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        indirect_effects(model, pairs)
    assert rows == []
