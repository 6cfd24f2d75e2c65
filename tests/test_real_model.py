"""A real pretrained model on real benchmark sentences: stories260K on BLiMP."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import load_model
from cs_heads.tasks import Task
from cs_heads.units import Head

AGREEMENT = "determiner_noun_agreement_1"


@pytest.fixture(scope="module")
def folder(real):
    return real / "models" / "stories260K"


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def pairs(real):
    """The minimal pairs of a BLiMP set."""

    def read(name: str) -> list[dict]:
        text = (real / "data" / "blimp" / f"{name}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    return read


def whole_sentences(pairs: list[dict]) -> list[dict]:
    """Choice records of the good against the bad sentence, after nothing."""
    return [{"prompt": "", "choices": [pair["sentence_good"], pair["sentence_bad"]], "answer": 0} for pair in pairs]


def last_words(pairs: list[dict]) -> list[dict]:
    """Choice records of the good against the bad word, after what both sentences share."""
    return [
        {
            "prompt": pair["one_prefix_prefix"],
            "choices": [f" {pair['one_prefix_word_bad']}", f" {pair['one_prefix_word_good']}"],
            "answer": 1,
        }
        for pair in pairs
    ]


@pytest.fixture(scope="module")
def plain(folder):
    """The summed log-probability of a text, by Hugging Face alone: no batch, no padding, no hooks."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def logprob(text: str, after: str = "") -> float:
        start = 1 + len(tokenizer(after, add_special_tokens=False)["input_ids"])
        tokens = torch.tensor([tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            logprobs = model(tokens[None]).logits[0, :-1].log_softmax(dim=-1)
        return float(logprobs.gather(1, tokens[1:, None])[start - 1 :].sum())

    return logprob


@pytest.mark.parametrize("made", [whole_sentences, last_words])
def test_the_baseline_is_that_of_plain_hugging_face(model, plain, pairs, made):
    records = made(pairs(AGREEMENT)[:60])
    expected = []
    for record in records:
        prompt, right = record["prompt"], record["answer"]
        scores = [plain(prompt + choice, after=prompt) for choice in record["choices"]]
        expected.append(float(scores[right] > scores[1 - right]))
    assert Experiment(model, Task.from_records(records)).baseline().tolist() == expected
    assert 0.5 < sum(expected) / 60 < 1


@pytest.mark.slow
def test_one_head_takes_a_tenth_of_he_or_she_alone(model):
    task = cs.load_task("everyday/he_she")
    proof = cs.confirm(model, task, [Head(4, 2)], n=400, n_random=4, controls=None, progress=False)
    assert (proof.random.n_as_harmful, proof.close) == (0, True)
    assert proof.random.p_examples < 0.05
