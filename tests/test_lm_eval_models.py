"""lm-eval tasks on models: against lm-eval's own run of the same model, at chance, and the main job."""

import csv
import io
import json
import re
import zipfile
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

pytest.importorskip("lm_eval", reason="lm-eval is an extra")

from cs_heads.cli import main
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import load_model
from cs_heads.methods.find import find_heads
from cs_heads.tasks import Task, load_task
from cs_heads.tasks.lm_eval import harness, whole
from tests.tasks.test_lm_eval import own_run as own_run_of
from tests.tasks.test_lm_eval import own_runs, scored, write

own_run = partial(own_run_of, simple=True)

NOTHING = np.zeros((1, 5, 8), dtype=bool)

AGREEMENT = "blimp_determiner_noun_agreement_1"


@pytest.fixture(scope="module")
def folder(real):
    return real / "models" / "stories260K"


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def read(real):
    """The first lines of a JSON-lines file of the real data."""

    def lines(name: str, n: int | None = None) -> list[dict]:
        text = (real / "data" / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()[:n]]

    return lines


# The intact model scores as in lm-eval's own run


@pytest.fixture(scope="module")
def lm_evals_own(folder):
    """lm-eval's own model: Hugging Face in float32, by itself."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device="cpu", batch_size=8, dtype="float32")


def hub_form_of_arc(row: dict) -> dict:
    choices = row["question"]["choices"]
    listed = {key: [choice[key] for choice in choices] for key in ("text", "label")}
    return {"question": row["question"]["stem"], "choices": listed, "answerKey": row["answerKey"]}


def hellaswag_by_hand(lines: list[str]) -> dict:
    activity, context = lines[0].split(": ", 1)
    begun = context.rsplit(". ", 1)
    unfinished = len(begun) == 2 and begun[1][:1].islower()
    first, second = (f"{begun[0]}.", begun[1]) if unfinished else (context, "")
    return {"activity_label": activity, "ctx_a": first, "ctx_b": second, "label": lines[1], "endings": lines[2:]}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["acc", "acc_norm"])
def test_arc_scores_as_in_lm_evals_own_run(model, lm_evals_own, read, real, tmp_path, metric):
    rows = read("arc/ARC-Challenge-Test.jsonl", 200)
    files = {"test": write(tmp_path / "hub.jsonl", [hub_form_of_arc(row) for row in rows])}
    own = scored(own_run("arc_challenge", files, tmp_path, lm_evals_own, test_split="test"), metric)
    task = whole("arc_challenge", data_files=write(tmp_path / "arc.jsonl", rows), metric=metric)
    assert Experiment(model, task).baseline().tolist() == own
    assert 20 < sum(own) < 80


@pytest.mark.slow
def test_hellaswag_scores_as_in_lm_evals_own_run(model, lm_evals_own, real, tmp_path):
    import bz2

    text = bz2.decompress((real / "data" / "hellaswag" / "hellaswag_val_full.txt.bz2").read_bytes()).decode()
    lines = text.split("\n")[: 6 * 200]
    rows = [hellaswag_by_hand(lines[i : i + 6]) for i in range(0, len(lines), 6)]
    files = {"validation": write(tmp_path / "hub.jsonl", rows)}
    own = own_run("hellaswag", files, tmp_path, lm_evals_own, validation_split="validation")
    (tmp_path / "hellaswag.txt").write_text("\n".join(lines), encoding="utf-8")
    task = whole("hellaswag", data_files=tmp_path / "hellaswag.txt", metric="acc_norm")
    assert Experiment(model, task).baseline().tolist() == scored(own, "acc_norm")
    assert 20 < sum(scored(own, "acc_norm")) < 100


def test_blimp_scores_as_in_lm_evals_own_run(model, lm_evals_own, real, tmp_path):
    source = real / "data" / "blimp" / "determiner_noun_agreement_1.jsonl"
    file = write(tmp_path / "pairs.jsonl", [json.loads(line) for line in source.read_text().splitlines()[:300]])
    own = scored(own_run(AGREEMENT, {"train": file}, tmp_path, lm_evals_own, validation_split="train"), "acc")
    assert Experiment(model, whole(AGREEMENT, data_files=file)).baseline().tolist() == own
    assert len(own) == 300
    assert 180 < sum(own) < 240


@pytest.mark.slow
def test_last_words_of_stories_score_as_in_lm_evals_own_run(model, lm_evals_own, real, tmp_path):
    stories = (real / "data" / "text" / "tinystories_1000.txt").read_text(encoding="utf-8").splitlines()
    rows = [{"text": ". ".join(story.split(". ")[:2])} for story in stories[:300] if len(story) > 200]
    file = write(tmp_path / "lambada.jsonl", rows)
    own = scored(own_run("lambada_openai", {"test": file}, tmp_path, lm_evals_own, test_split="test"), "acc")
    assert Experiment(model, whole("lambada_openai", data_files=file)).baseline().tolist() == own
    assert 20 < sum(own) < len(own) - 20


@pytest.fixture(scope="module")
def writer(folder, tmp_path_factory):
    """A model of random weights that likes digits, as a solver of sums does: ours, and lm-eval's own."""
    from lm_eval.models.huggingface import HFLM

    config = AutoConfig.from_pretrained(folder)
    config.update({"tie_word_embeddings": False, "max_position_embeddings": 2048})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(3)
    random_model = LlamaForCausalLM(config)
    digits = [tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"]
    with torch.no_grad():
        for parameter in random_model.parameters():
            parameter.normal_(std=0.6)
        random_model.lm_head.weight[digits] *= 1.5
    path = tmp_path_factory.mktemp("writer")
    random_model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    theirs = HFLM(pretrained=str(path), device="cpu", batch_size=8, dtype="float32")
    return load_model(path, device="cpu"), theirs


def test_arithmetic_scores_as_in_lm_evals_own_run(writer, read, tmp_path):
    """The real questions; half of them with what the model writes for the answer, since its own sums are all wrong."""
    model, theirs = writer
    rows = read("arithmetic/two_digit_addition.jsonl", 40)
    asked = whole("arithmetic_2da", data_files=write(tmp_path / "asked.jsonl", rows))
    said = Experiment(model, asked, progress=False).generate(NOTHING, max_new_tokens=2)[0]
    made = [{**row, "completion": text} if i % 2 else row for i, (row, text) in enumerate(zip(rows, said, strict=True))]
    file = write(tmp_path / "sums.jsonl", made)
    samples = own_run_of("arithmetic_2da", {"validation": file}, tmp_path, theirs, validation_split="validation")
    own = scored(samples, "acc")
    assert Experiment(model, whole("arithmetic_2da", data_files=file), progress=False).baseline().tolist() == own
    assert 0 < sum(own) < len(own) == 40


def test_commonsense_qa_scores_as_in_lm_evals_own_run(model, lm_evals_own, read, tmp_path):
    rows = read("commonsenseqa/commonsense_qa.jsonl", 30)
    hub = [
        {
            "question": row["question"],
            "choices": {"label": list("ABCDE"), "text": row["choices"]},
            "answerKey": "ABCDE"[row["answer"]],
        }
        for row in rows
    ]
    files = {"validation": write(tmp_path / "hub.jsonl", hub)}
    samples = own_run_of("commonsense_qa", files, tmp_path, lm_evals_own, validation_split="validation")
    own = scored(samples, "acc")
    task = whole("commonsense_qa", data_files=write(tmp_path / "commonsense_qa.jsonl", rows))
    assert Experiment(model, task, progress=False).baseline().tolist() == own
    assert 0 < sum(own) < len(own) == 30


def test_a_group_of_mmlu_scores_as_in_lm_evals_own_run(model, lm_evals_own, real, tmp_path):
    """Five short questions of each of the twelve social sciences."""
    subjects = {member.name.removeprefix("mmlu_"): member.name for member in harness.members("mmlu_social_sciences")}
    files, folder = {}, tmp_path / "csv"
    folder.mkdir()
    for subject, member in subjects.items():
        with zipfile.ZipFile(real / "data" / "mmlu" / "mmlu.zip") as archive:
            text = archive.read(f"data/test/{subject}_test.csv").decode()
        rows = [row for row in csv.reader(io.StringIO(text)) if len("".join(row)) < 200][:5]
        with (folder / f"{subject}_test.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        hub = [{"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in rows]
        files[member] = {"test": write(tmp_path / f"{subject}.jsonl", hub)}
    runs = own_runs(files, tmp_path, lm_evals_own, test_split="test", fewshot_split=None)
    own = [score for member in files for score in scored(runs[member], "acc")]
    task = whole("mmlu_social_sciences", data_files=folder)
    assert [json.loads(example.reference)["task"] for example in task.examples[::5]] == list(files)
    assert Experiment(model, task, progress=False).baseline().tolist() == own
    assert 0 < sum(own) < len(own) == 60


def test_texts_and_scores_of_gsm8k_are_those_of_lm_evals_own_run(writer, read, tmp_path):
    """The real questions, a third with the number that the model writes, a third with what no number counts as."""
    model, theirs = writer
    short = sorted(read("gsm8k/test.jsonl"), key=lambda row: len(row["question"]))[:24]
    shown = write(tmp_path / "train.jsonl", [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(9)])
    given = {"few_shot": 2, "max_new_tokens": 12}
    asked = whole("gsm8k", data_files={"test": write(tmp_path / "asked.jsonl", short), "train": shown}, **given)
    said = Experiment(model, asked, progress=False).generate(NOTHING)[0]
    rows = []
    for i, (row, text) in enumerate(zip(short, said, strict=True)):
        numbers = re.findall(r"-?[$0-9.,]{2,}|-?[0-9]+", text)
        answers = (numbers[-1] if numbers else "7", "[invalid]", "12345")
        rows.append({"question": row["question"], "answer": f"So it is.\n#### {answers[i % 3]}"})
    files = {"test": write(tmp_path / "test.jsonl", rows), "train": shown}
    settings = {
        "test_split": "test",
        "training_split": "train",
        "num_fewshot": 2,
        "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], "max_gen_toks": 12, "do_sample": False},
    }
    samples = own_run_of("gsm8k", files, tmp_path, theirs, **settings)
    assert said.tolist() == [sample["resps"][0][0] for sample in samples if sample["filter"] == "strict-match"]
    assert len(set(said)) > 10
    for chosen in ("strict-match", "flexible-extract"):
        own = scored(samples, "exact_match", chosen)
        task = whole("gsm8k", data_files=files, filter=chosen, **given)
        assert Experiment(model, task, progress=False).baseline().tolist() == own
        assert 0 < sum(own) < len(own) == 24


# Random weights are at chance


@pytest.fixture(scope="module")
def guessers(folder, tmp_path_factory):
    """Models of random weights, large enough that what they answer depends on what they are asked."""
    models = []
    for seed in range(6):
        config = AutoConfig.from_pretrained(folder)
        config.update({"num_hidden_layers": 2, "max_position_embeddings": 4096})
        torch.manual_seed(seed)
        random_model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in random_model.parameters():
                parameter.normal_(std=0.6)
        path = tmp_path_factory.mktemp(f"guesser{seed}")
        random_model.save_pretrained(path)
        AutoTokenizer.from_pretrained(folder).save_pretrained(path)
        models.append(load_model(path, device="cpu"))
    return models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("boolq", "boolq/dev.jsonl"),
        ("hellaswag", "hellaswag/hellaswag_val_full.txt.bz2"),
        ("arc_challenge", "arc"),
        ("mmlu", "mmlu/mmlu.zip"),
        ("commonsense_qa", "commonsenseqa/commonsense_qa.jsonl"),
        (f"lm-eval/{AGREEMENT}", "blimp"),
        ("lm-eval/arithmetic_2da", "arithmetic"),
    ],
)
def test_random_weights_are_at_chance(guessers, real, name, files):
    check_chance(guessers, load_task(name, n=480, data_files=real / "data" / files))


def check_chance(guessers, task):
    """Six models on 80 questions each; a model's answers hang together, so that the interval is over models."""
    rates = []
    for i, guesser in enumerate(guessers):
        asked = replace(task, examples=task.examples[80 * i : 80 * (i + 1)])
        rates.append(float(Experiment(guesser, asked, progress=False).baseline().mean()))
    if task.kind == "completion":
        assert max(rates) <= 0.05
        return
    low, high = stats.t.interval(0.99, len(rates) - 1, loc=np.mean(rates), scale=stats.sem(rates))
    assert low <= task.chance <= high, rates
    assert high - low < 0.3


# The main job


def test_heads_are_found_on_a_blimp_set_of_lm_eval(model, real):
    task = load_task(f"lm-eval/{AGREEMENT}", n=60, seed=0, data_files=real / "data" / "blimp")
    found = find_heads(model, task, method="css", n_masks=20, density=0.1, seed=0, progress=False)
    assert len(found.top(3)) == 3
    assert found.provenance["task"]["scorer"] == f"lm-eval {version('lm_eval')}: acc"


@pytest.mark.slow
def test_the_shell_finds_heads_on_a_blimp_set_of_lm_eval(folder, real, capsys):
    arguments = ["find", "--model", str(folder), "--device", "cpu", "--task", f"lm-eval/{AGREEMENT}", "--n", "60"]
    method = ["--method", "css", "--n-masks", "20", "--density", "0.1", "--k", "3", "--json"]
    assert main([*arguments, "--task-option", f"data_files={real / 'data' / 'blimp'}", *method]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == f"lm-eval/{AGREEMENT}"
    assert len((*found["heads"], *found["passengers"])) == 3
    assert 0.6 < found["baseline"] < 0.9
    assert found["confirm"]["verdict"] in {"localized", "not localized"}


@pytest.mark.slow
def test_a_mask_scores_what_plain_records_of_the_same_choices_score(model, real):
    task = load_task(f"lm-eval/{AGREEMENT}", n=50, seed=0, data_files=real / "data" / "blimp")
    records = [{"prompt": e.prompt, "choices": list(e.continuations), "answer": e.answer} for e in task.examples]
    masks = np.random.default_rng(0).random((8, 5, 8)) < 0.2
    ours, plain = (Experiment(model, each, progress=False)(masks) for each in (task, Task.from_records(records)))
    assert (ours == plain).all()


# Choices that follow prompts of their own


@pytest.mark.slow
def test_winogrande_scores_as_in_lm_evals_own_run(model, lm_evals_own, read, tmp_path):
    """Sentences of BLiMP with a gap for their one word that differs."""
    pairs = [
        (row["sentence_good"].split(), row["sentence_bad"].split())
        for row in read("blimp/determiner_noun_agreement_1.jsonl", 200)
    ]
    rows = []
    for good, bad in pairs:
        (at,) = (i for i, (one, other) in enumerate(zip(good, bad, strict=True)) if one != other)
        gap = " ".join([*good[:at], "_", *good[at + 1 :], "And so it went on."])
        options = [good[at], bad[at]][:: 1 if len(rows) % 2 else -1]
        rows.append(
            {
                "sentence": gap,
                "option1": options[0].strip("."),
                "option2": options[1].strip("."),
                "answer": str(1 + options.index(good[at])),
            }
        )
    file = write(tmp_path / "gaps.jsonl", rows)
    own = scored(own_run("winogrande", {"test": file}, tmp_path, lm_evals_own, validation_split="test"), "acc")
    task = whole("winogrande", data_files=file, few_shot=0)
    assert Experiment(model, task).baseline().tolist() == own
    assert 20 < sum(own) < 180


# Prompts longer than the context


@pytest.mark.slow
def test_long_passages_are_cut_and_score_as_in_lm_evals_own_run(model, lm_evals_own, read, tmp_path):
    """The first 40 BoolQ questions and the longest: "yes" and "no" have one length, as lm-eval's cut needs."""
    rows = read("boolq/dev.jsonl")
    longest = max(rows, key=lambda row: len(row["passage"]))
    rows = [*rows[:40], longest]
    hub = [{"question": r["question"], "passage": r["passage"], "label": int(r["answer"])} for r in rows]
    files = {"validation": write(tmp_path / "hub.jsonl", hub)}
    own = scored(own_run("boolq", files, tmp_path, lm_evals_own, validation_split="validation"), "acc")
    task = whole("boolq", data_files=write(tmp_path / "boolq.jsonl", rows))
    with pytest.raises(ValueError, match=r"do not fit into the model's context of 512; load_task\(\.\.\., too_long="):
        Experiment(model, task)
    assert Experiment(model, task.with_truncation()).baseline().tolist() == own
    assert 0 < sum(own) < len(own)


@pytest.mark.slow
def test_long_prompts_are_cut_for_each_choice_as_in_lm_evals_own_run(model, lm_evals_own, read, tmp_path):
    """ARC's choices differ in length: a shorter one is shown more of the worked examples."""
    file = write(tmp_path / "hub.jsonl", [hub_form_of_arc(row) for row in read("arc/ARC-Challenge-Test.jsonl", 60)])
    splits = {"test_split": "test", "fewshot_split": "test"}
    own = own_run("arc_challenge", {"test": file}, tmp_path, lm_evals_own, num_fewshot=12, **splits)
    task = whole("arc_challenge", data_files=file, few_shot=12, metric="acc_norm").with_truncation()
    experiment = Experiment(model, task)
    assert experiment.baseline().tolist() == scored(own, "acc_norm")
    assert 5 < sum(scored(own, "acc_norm")) < 55
    lengths = [{len(e.prompt_of(i)) for i in range(len(e.continuations))} for e in experiment._engine.examples]
    assert sum(len(different) > 1 for different in lengths) > 30
