"""A real pretrained model on real benchmark sentences: stories260K on BLiMP."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.cli import main
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import load_model
from cs_heads.tasks import Task
from cs_heads.units import Head, HeadGrid

# Sets on which this small model beats chance.
SETS = (
    "anaphor_gender_agreement",
    "determiner_noun_agreement_1",
    "existential_there_quantifiers_1",
    "irregular_past_participle_verbs",
    "principle_A_case_1",
    "principle_A_domain_1",
    "regular_plural_subject_verb_agreement_1",
    "sentential_negation_npi_licensor_present",
)
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


@pytest.fixture
def find(folder, tmp_path, capsys):
    """Runs ``cs-heads find --json`` on records and gives the result."""

    def run(records: list[dict], *more: str) -> dict:
        task = tmp_path / "task.jsonl"
        task.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        arguments = ["find", "--model", str(folder), "--task", str(task), "--device", "cpu", "--json", *more]
        arguments += ["--method", "css"] if "--n-masks" in more else []
        status = main(arguments)
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return json.loads(out)

    return run


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


def test_the_grid_counts_query_heads_not_key_value_heads(model):
    assert HeadGrid.from_model(model) == HeadGrid(5, 8)


def test_the_baseline_of_whole_sentences_is_that_of_plain_hugging_face(model, plain, pairs):
    records = whole_sentences(pairs(AGREEMENT)[:60])
    expected = [float(plain(good) > plain(bad)) for good, bad in (record["choices"] for record in records)]
    assert Experiment(model, Task.from_records(records)).baseline().tolist() == expected
    assert 0.5 < sum(expected) / 60 < 1


def test_the_baseline_of_last_words_is_that_of_plain_hugging_face(model, plain, pairs):
    records = last_words(pairs(AGREEMENT)[:60])
    task = Task.from_records(records)
    experiment = Experiment(model, task)
    expected = []
    for record in records:
        bad, good = (plain(record["prompt"] + choice, after=record["prompt"]) for choice in record["choices"])
        expected.append(float(good > bad))
    assert experiment.baseline().tolist() == expected
    assert 0.5 < sum(expected) / 60 < 1


def test_from_sentences_to_proved_heads_through_the_command_line(find, pairs, tmp_path):
    options = ["--n", "100", "--n-masks", "40", "--k", "3", "--density", "0.1", "--no-curve", "--out", str(tmp_path)]
    result = find(whole_sentences(pairs(AGREEMENT)[:220]), *options)
    assert 0.55 < result["baseline"] < 0.8
    assert result["spent"] == 100 * 41
    heads = [Head.parse(row["head"]) for row in result["heads"]]
    assert all(head in HeadGrid(5, 8) for head in heads)
    assert [row["importance"] for row in result["heads"]] == sorted(
        (row["importance"] for row in result["heads"]), reverse=True
    )
    proof = result["confirm"]
    assert proof["verdict"] in ("localized", "not localized")
    assert proof["drop"] > proof["random_drop"]
    controls = sum(2 * control["n_examples"] for control in proof["controls"])
    assert 2 * 100 < proof["spent"] - controls <= 22 * 100
    assert proof["provenance"]["task"]["n_examples"] == 100
    assert (tmp_path / "heads.png").stat().st_size > 1000


def test_he_or_she_by_margin_claims_one_head_that_takes_a_tenth_alone(model):
    task = cs.load_task("everyday/he_she")
    found = cs.find_heads(model, task, response="margin", budget=3000, controls=None, progress=False)
    assert found.top(1) == [Head(4, 2)]
    assert Head(4, 2) in found.claims
    proof = cs.confirm(model, task, [Head(4, 2)], n=400, n_random=4, controls=None, progress=False)
    assert (proof.n_as_harmful, proof.close) == (0, True)
    assert proof.p_examples < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_set_runs_from_end_to_end(find, pairs, name):
    options = ["--n", "100", "--n-masks", "25", "--k", "3", "--density", "0.1"]
    result = find(whole_sentences(pairs(name)[:200]), *options)
    assert result["baseline"] > 0.55
    assert len(result["heads"]) == 3
    assert result["confirm"]["verdict"] in ("localized", "not localized")


@pytest.mark.slow
def test_agreement_rests_on_few_heads_of_this_model(find, pairs):
    result = find(
        whole_sentences(pairs(AGREEMENT)[:250]), "--n", "150", "--n-masks", "80", "--k", "3", "--density", "0.1"
    )
    assert result["confirm"]["verdict"] == "localized"
    assert result["confirm"]["drop"] > 0.1


@pytest.mark.slow
def test_annealed_sensing_finds_what_css_finds_for_half_of_its_cost(model, pairs):
    """Over twelve pairs of searches in docs/benchmarks/real-models.md; here in one, within a standard error of .03."""
    task, _ = Task.from_records(whole_sentences(pairs("anaphor_gender_agreement"))).split(150, seed=0)
    css = cs.find_heads(model, task, method="css", n_masks=100, seed=0, progress=False)
    ours = cs.find_heads(model, task, budget=css.spent // 2, seed=0, progress=False, controls=None)
    assert ours.spent <= css.spent // 2
    theirs, own = (
        cs.confirm(model, task, found.top(5), n=300, seed=0, progress=False, controls=None) for found in (css, ours)
    )
    assert own.drop >= theirs.drop - 0.03 > 0
