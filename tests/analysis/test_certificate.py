"""What a certificate says of a cut is what the baked model does."""

import inspect
import json

import numpy as np
import pytest
import torch

import cs_heads as cs
from cs_heads import Task
from cs_heads.analysis import Certificate, TextChange
from tests.known_heads import IDLE, WORKING, own_answers, rows_run

TEXTS = ["the cat sees a dog .", "one two three four", "a king runs , the bird sleeps .", "red small big"]

# Without the checks of types that tests make.
untyped = inspect.unwrap


@pytest.fixture(scope="module")
def tasks(load_known):
    given = {name: own_answers(load_known(), 60, seed=seed) for name, seed in (("own", 0), ("others", 8))}
    return [Task.from_records(records, name).split(30)[0] for name, records in given.items()]


@pytest.fixture(scope="module")
def prove(load_known, tasks):
    def proof(heads=WORKING, **settings):
        given = {"controls": [tasks[1]], "n": 20, "n_random": 3, "least": False} | settings
        return cs.confirm(load_known(), tasks[0], heads, **given)

    return proof


@pytest.fixture(scope="module")
def proof(prove):
    return prove()


def log_probabilities(model, text):
    with torch.no_grad():
        return model(torch.tensor([model.tokenizer(text)["input_ids"]]))[0].log_softmax(dim=-1)


def test_text_is_read_as_plain_forwards_of_the_baked_model_read_it(load_known, proof, backend):
    model = load_known(backend)
    found, baked = cs.certify(model, proof, TEXTS).text, cs.bake(model, proof.heads)
    sums, values = np.zeros(4), []
    for text in TEXTS:
        before, after = (log_probabilities(each, text)[:-1].double() for each in (model, baked))
        wanted = torch.tensor(model.tokenizer(text)["input_ids"])[1:, None]
        kl = (before.exp() * (before - after)).sum()
        values.append(float(kl) / len(wanted))
        sums += [len(wanted), kl, -before.gather(1, wanted).sum(), -after.gather(1, wanted).sum()]
    assert (found.n_texts, found.n_tokens) == (4, sums[0])
    assert found.kl == pytest.approx(sums[1] / sums[0], rel=1e-4)
    assert found.kl > 0.01
    assert found.kl_interval[0] < found.kl < found.kl_interval[1]
    perplexities = np.exp(sums[2:] / sums[0])
    assert [found.perplexity, found.perplexity_without] == pytest.approx(list(perplexities), rel=1e-4)


def test_a_folder_has_the_certificate_beside_the_weights(load_known, proof, tmp_path):
    model = load_known()
    certificate = cs.certify(model, proof, TEXTS)
    baked = cs.bake(model, certificate, tmp_path / "out")
    assert torch.equal(log_probabilities(baked, TEXTS[0]), log_probabilities(cs.bake(model, WORKING), TEXTS[0]))
    file = tmp_path / "out" / "certificate.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    assert Certificate.load(file) == certificate
    assert said["heads"] == list(map(str, WORKING))
    assert said["verdict"] == proof.headline
    assert said["own"] == proof.result.to_dict()
    assert said["controls"] == [proof.controls[0].to_dict()]
    assert said["worst"] == proof.to_dict()["specificity"]["worst"]
    assert said["worst"]["control"] == "others"
    assert said["text"] | {"n_texts": 4, "n_tokens": 21} == said["text"]
    assert said["provenance"]["model"]["weights"] == cs.lens.fingerprint(model)
    assert list(certificate.to_frame().task) == ["own", "others"]


def test_heads_without_effect_move_no_text(load_known, prove):
    text = cs.certify(load_known(), prove(IDLE), TEXTS).text
    assert text.kl == pytest.approx(0, abs=1e-6)
    assert text.perplexity == pytest.approx(text.perplexity_without)


def test_the_interval_over_a_few_texts_holds_the_mean_of_many():
    """Texts of two lengths, of one token each, which says how far the text moves."""
    rng, still, last = np.random.default_rng(0), torch.zeros(100), torch.eye(100)[-1]

    def moved(text):
        return (still + last * text[0] / 10).expand(len(text), 100)

    def drawn(n):
        moves = rng.integers(100, size=n).tolist()
        return [(move,) * length for move, length in zip(moves, rng.choice([4, 10], n).tolist(), strict=True)]

    def kl(texts):
        return TextChange.of(texts, lambda text: still.expand(len(text), 100), moved)

    mean = kl(drawn(4000)).kl
    found = [kl(drawn(60)).kl_interval for _ in range(150)]
    assert np.mean([low <= mean <= high for low, high in found]) == pytest.approx(0.95, abs=0.04)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("the cat", "texts must be a list of two texts or more, got 'the cat'"),
        (["the cat"], "texts must be two or more texts or lists of token ids, none twice, got"),
        (["the cat", "the cat"], "texts must be two or more texts or lists of token ids, none twice, got"),
        (["the cat", 5], "texts must be two or more texts or lists of token ids, none twice, got"),
        (["the cat", (4,)], r"texts must have 2 to 64 tokens each, got 1 in \(4,\)"),
        (["the cat", "cat " * 64], "texts must have 2 to 64 tokens each, got 65 in 'cat cat"),
    ],
)
def test_texts_are_refused_before_the_model_runs(load_known, proof, texts, message):
    model = load_known()
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        untyped(cs.certify)(model, proof, texts)
    assert rows == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ablation": "mean"}, "proof must be with ablation='zero', as weights without the heads are, got 'mean'"),
        ({"positions": "last"}, "proof must be with positions='all', as .*, got 'last'"),
        ({"off": ["L0H3"]}, r"proof must be with off=None, as .*, got \['L0H3'\]"),
    ],
)
def test_a_proof_must_be_of_what_the_weights_will_compute(load_known, prove, settings, message):
    proof, model = prove(**settings), load_known()
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        cs.certify(model, proof, TEXTS)
    assert rows == []


def test_a_certificate_is_of_the_model_that_was_proved(load_known, load, proof, tmp_path):
    model, other = load_known(), load("llama")
    with pytest.raises(ValueError, match="proof and model must be of the same weights"):
        cs.certify(other, proof, TEXTS)
    certificate = cs.certify(model, proof, TEXTS)
    with pytest.raises(ValueError, match="heads and model must be of the same weights"):
        cs.bake(other, certificate, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with (
        cs.ablated(model, "L1H0"),
        pytest.raises(ValueError, match=r"model must have no hooks.* got some on blocks\.1"),
    ):
        cs.certify(model, proof, TEXTS)
    world = cs.simulate.planted_world("one_head", seed=0)
    planted = cs.confirm(None, world.task, world.planted, n_random=3, controls=None)
    with pytest.raises(ValueError, match="proof must be of a model, got one of an experiment that has none"):
        cs.certify(model, planted, TEXTS)
    with pytest.raises(ValueError, match="proof must be a Confirmation, got"):
        untyped(cs.certify)(model, proof.heads, TEXTS)
