"""lm-eval's tasks as tasks of ours: against lm-eval itself, and against what is known of the data."""

import json
import pickle
import random
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.known_heads import write_records as write
from tests.waiting import run_program

pytest.importorskip("lm_eval", reason="lm-eval is an extra")

import lm_eval
from lm_eval.api.model import LM

from cs_heads.tasks import letter_form, load_task
from cs_heads.tasks.lm_eval import harness, scoring, whole
from cs_heads.tasks.lm_eval.requests import _right
from cs_heads.tasks.papers import PROTOCOL
from tests.scores import response_of

SUMS = [
    {"question": f"What is {i} plus {i + 1}?", "answer": f"It is {2 * i + 1}.\n#### {2 * i + 1}"} for i in range(40)
]
SHOWN = [{"question": f"What is {i} minus 1?", "answer": f"Easy.\n#### {i - 1}"} for i in range(5, 25)]
SCHOOL = [
    {
        "id": str(i),
        "question": f"Which thing is number {i}?",
        "choices": {"text": ["a stone", "the sun", f"thing {i}", "nothing at all"], "label": list("ABCD")},
        "answerKey": "ABCD"[i % 4],
    }
    for i in range(40)
]
PAIRS = [{"sentence_good": f"The {i} cats sleep.", "sentence_bad": f"The {i} cats sleeps."} for i in range(40)]
PRODUCTS = [{"context": f"\n\nQ: What is {i} times 2?\n\nA:", "completion": f" {2 * i}"} for i in range(40)]
STORIES = [{"text": f"Tom had {i} red apples and a dog"} for i in range(40)]

GAPS = [
    {
        "sentence": f"Ann gave Bob {i} cats since _ was kind.",
        "option1": "Ann",
        "option2": "Bob",
        "answer": str(1 + i % 2),
    }
    for i in range(40)
]
PRONOUNS = [
    {
        "text": (text := f"Ann gave Bob {i} cats since she was kind."),
        "pronoun": "she",
        "pronoun_loc": text.index("she"),
        "quote": "she was kind",
        "quote_loc": text.index("she"),
        "options": ["Ann", "Bob"],
        "label": i % 2,
        "source": "own",
    }
    for i in range(40)
]


@pytest.fixture
def file(tmp_path):
    """Writes rows to a file of this name."""
    return lambda rows, name="rows.jsonl": write(tmp_path / name, rows)


class Answering(LM):
    """A stand-in for a model: its answers are drawn once for each request, and it remembers what it was asked."""

    def __init__(self, texts=None):
        super().__init__()
        self.texts = texts
        self.asked = {}

    def loglikelihood(self, requests):
        for request in requests:
            drawn = random.Random(str(request.args))
            self.asked[request.args] = (-10 * drawn.random(), drawn.random() < 0.5)
        return [self.asked[request.args] for request in requests]

    def generate_until(self, requests):
        for request in requests:
            self.asked[request.args[0]] = self.texts(request.doc)
        return [self.asked[request.args[0]] for request in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


def own_run(name, files, tmp_path, model, **settings):
    """lm-eval's own evaluation of a task on files in the hub's columns: what it logs of each example, in order."""
    return own_runs({name: files}, tmp_path, model, **settings)[name]


def own_runs(files, tmp_path, model, *, simple=False, num_fewshot=0, **settings):
    """lm-eval's own evaluation of tasks, each on its files by split: what it logs of each task's examples, in order.

    ``simple`` runs its ``simple_evaluate``, which looks around the machine for seconds; else its ``evaluate``.
    """
    unread = {f"{split}_split": None for split in ("training", "validation", "test")}
    members = []
    for name, splits in files.items():
        read = {
            "data_files": {split: str(path) for split, path in splits.items()},
            "cache_dir": str(tmp_path / "cache"),
        }
        data = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": read}
        members.append({"task": name, **data, **unread, **settings})
    # A name that lies in no folder of lm-eval's own makes it read all of its tasks, which takes long.
    manager = harness.index_for(next(iter(files)))
    spec = {"group": "own", "task": members}
    if simple:
        found = lm_eval.simple_evaluate(
            model, tasks=[spec], task_manager=manager, num_fewshot=num_fewshot, bootstrap_iters=0
        )
    else:
        loaded = manager.load([spec])
        for task in loaded["tasks"].values():
            task.set_config("num_fewshot", num_fewshot)
            task.set_fewshot_seed(1234)
        found = lm_eval.evaluate(model, loaded, bootstrap_iters=0)
    return {
        name: sorted(found["samples"][name], key=lambda sample: (sample["filter"], sample["doc_id"])) for name in files
    }


def scored(samples, metric, chosen="none"):
    return [float(sample[metric]) for sample in samples if sample["filter"] == chosen]


# Scores are lm-eval's own, whatever a model answers


@pytest.mark.parametrize(
    ("name", "rows", "split", "metric", "few_shot"),
    [
        ("arc_challenge", SCHOOL, "test", "acc", 0),
        ("arc_challenge", SCHOOL, "test", "acc_norm", 0),
        ("winogrande", GAPS, "validation", "acc", 0),
        ("winogrande", GAPS, "validation", "acc", 3),
        ("wsc273", PRONOUNS, "test", "acc", 0),
        ("lambada_openai", STORIES, "test", "acc", 0),
    ],
)
def test_continuations_are_asked_and_scored_as_lm_eval_does(file, tmp_path, name, rows, split, metric, few_shot):
    files = {split: file(rows), "train": file(rows[30:], "shown.jsonl")}
    splits = {f"{split}_split": split, "training_split": "train", "num_fewshot": few_shot}
    model = Answering()
    samples = own_run(name, files, tmp_path, model, **splits)
    task = whole(name, data_files=files, few_shot=few_shot, metric=metric)
    asked = [[(e.prompt_of(i), c) for i, c in enumerate(e.continuations)] for e in task.examples]
    assert [request for requests in asked for request in requests] == list(model.asked)
    answers = [[model.asked[request] for request in requests] for requests in asked]
    ours = [
        response_of(task, i, np.array([logprob for logprob, _ in answer]), [match for _, match in answer])
        for i, answer in enumerate(answers)
    ]
    assert ours == scored(samples, metric)
    assert 0 < sum(ours) < len(ours)
    assert all(e.prompt == e.prompt_of(e.answer) for e in task.examples)
    assert len({e.question for e in task.examples}) == len(task)


@pytest.mark.parametrize("chosen", ["strict-match", "flexible-extract"])
def test_texts_are_asked_and_scored_as_lm_eval_does(file, tmp_path, chosen):
    def say(doc):
        right = doc["answer"].split()[-1]
        said = [f" #### {right}", f" {right}", f" {right} or 7", " no idea", f" It is #### {right}.", " #### 3"]
        return random.Random(doc["question"]).choice(said)

    files = {"test": file(SUMS), "train": file(SHOWN, "shown.jsonl")}
    model = Answering(say)
    splits = {"test_split": "test", "training_split": "train", "num_fewshot": 3}
    samples = own_run("gsm8k", files, tmp_path, model, **splits)
    task = whole("gsm8k", data_files=files, few_shot=3, filter=chosen)
    assert [example.prompt for example in task.examples] == list(model.asked)
    assert task.stop == ("Question:", "</s>", "<|im_end|>")
    ours = task.score_texts(range(len(task)), [model.asked[example.prompt] for example in task.examples])
    assert ours.tolist() == scored(samples, "exact_match", chosen)
    assert 0 < ours.sum() < len(ours)


# What is known of the data


@pytest.mark.parametrize("n", [100, pytest.param(1319, marks=pytest.mark.slow)])
def test_every_gold_answer_of_gsm8k_scores_and_no_corrupted_one_does(real, file, n):
    lines = (real / "data" / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    for chosen in ("strict-match", "flexible-extract"):
        task = whole("gsm8k", data_files=file(map(json.loads, lines[:n])), few_shot=0, filter=chosen)
        gold = [example.target for example in task.examples]
        wrong = [re.sub(r"(\d)(\D*)$", lambda found: f"{(int(found[1]) + 1) % 10}{found[2]}", text) for text in gold]
        assert task.score_texts(range(n), gold).tolist() == [1.0] * n
        assert task.score_texts(range(n), wrong).tolist() == [0.0] * n


@pytest.mark.parametrize(
    ("name", "files", "kind", "n", "chance"),
    [
        pytest.param("boolq", "boolq/dev.jsonl", "choice", 3270, 1 / 2, marks=pytest.mark.slow),
        pytest.param("arc_challenge", "arc", "choice", 1150, 1 / 4, marks=pytest.mark.slow),
        ("commonsense_qa", "commonsenseqa/commonsense_qa.jsonl", "choice", 1211, 1 / 5),
        ("lm-eval/blimp_principle_A_case_1", "blimp", "choice", 1000, 1 / 2),
        ("lm-eval/mmlu_anatomy", "mmlu/mmlu.zip", "choice", 135, 1 / 4),
        pytest.param("lm-eval/arithmetic_2da", "arithmetic", "completion", 2000, 0, marks=pytest.mark.slow),
        pytest.param("mmlu", "mmlu/mmlu.zip", "choice", 14042, 1 / 4, marks=pytest.mark.slow),
        pytest.param("arithmetic", "arithmetic", "completion", 20000, 0, marks=pytest.mark.slow),
        pytest.param("hellaswag", "hellaswag", "choice", 10042, 1 / 4, marks=pytest.mark.slow),
    ],
)
def test_benchmarks_load_whole_from_the_files_of_their_authors(real, name, files, kind, n, chance):
    finding = load_task(name, n=40, seed=1, data_files=real / "data" / files)
    assert (finding.kind, len(finding) + len(finding.held_out)) == (kind, n)
    assert 35 <= len(finding) <= 40
    assert finding.chance == pytest.approx(chance, abs=0.02)
    if kind == "choice":
        # The right choice stands at every place.
        places = np.bincount([example.answer for example in finding.held_out.examples])
        assert name.startswith("lm-eval/blimp") or places.min() > 0.05 * len(finding.held_out)


# Worked examples


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        lambda folder: f"~/{folder.name}",
        lambda folder: [folder],
        lambda folder: {"test": folder / "test.jsonl", "train": folder / "train.jsonl"},
    ],
)
def test_worked_examples_come_from_their_own_file_or_are_none(file, tmp_path, monkeypatch, spelling):
    (tmp_path / "school").mkdir()
    file(SUMS, "school/test.jsonl")
    file(SHOWN, "school/train.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path))
    files = spelling(tmp_path / "school")
    for few_shot, shown in ((None, 5), (0, 0)):
        for example in whole("gsm8k", data_files=files, few_shot=few_shot).examples:
            assert (example.prompt.count("minus"), example.prompt.count("plus")) == (shown, 1)


def test_a_list_of_files_and_folders_leaves_no_doubt_what_is_asked(file, tmp_path):
    (tmp_path / "school").mkdir()
    file(SUMS, "school/test.jsonl")
    with pytest.raises(ValueError, match="lists files beside folders: name them by split"):
        whole("gsm8k", data_files=[tmp_path / "school", file(SHOWN)])


@pytest.mark.parametrize("spelling", [lambda file: file, lambda file: file.parent])
def test_from_one_file_no_question_is_its_own_worked_example(file, spelling):
    for example in whole("gsm8k", data_files=spelling(file(SUMS, "gsm8k.jsonl")), few_shot=4).examples:
        asked = re.findall(r"What is (\d+) plus", example.prompt)
        assert len(set(asked)) == 5


def test_all_examples_have_the_same_worked_examples(file):
    """Drawn with the seed; from one file they are not asked, and no row of their question is."""
    apart = {"test": file([*SUMS, *SHOWN[:5]]), "train": file(SHOWN, "shown.jsonl")}
    for files, n_rows in ((file([*SUMS, *SUMS], "sums.jsonl"), 80), (apart, 45)):
        task, again, other, own = (
            whole("gsm8k", data_files=files, few_shot=4, few_shot_seed=seed, shared=shared)
            for seed, shared in ((3, True), (3, True), (4, True), (3, False))
        )
        (before,) = {example.prompt.rsplit("Question: ", 1)[0] for example in task.examples}
        worked = re.findall(r"Question: (.*)\n", before)
        assert (len(worked), len(own)) == (4, n_rows)
        asked = [example.prompt.rsplit("Question: ", 1)[1].split("\n")[0] for example in task.examples]
        assert not set(asked) & set(worked)
        left = [example.prompt.rsplit("Question: ", 1)[1].split("\n")[0] for example in own.examples]
        assert asked == [question for question in left if question not in worked]
        assert task.identity == again.identity
        assert len({task.identity, other.identity, own.identity}) == 3


def test_more_worked_examples_than_there_are_rows_are_refused(file):
    """MMLU shows the first of its list, where GSM8K draws; from one file it leaves out the one in question."""
    rows = [{"question": f"{i}?", "choices": list("abcd"), "answer": i % 4} for i in range(4)]
    apart = {"test": file(SUMS, "sums.jsonl"), "train": file(SHOWN, "shown.jsonl")}
    for name, files, most in (("gsm8k", apart["test"], 39), ("gsm8k", apart, 20), ("mmlu_anatomy", file(rows), 3)):
        assert whole(name, data_files=files, few_shot=most).examples[0].prompt.count("Answer:") == most + 1
        message = f"'{name}', example 0: few_shot={most + 1} worked examples are more than its data have"
        with pytest.raises(ValueError, match=message):
            whole(name, data_files=files, few_shot=most + 1)


# Groups


def test_choices_of_a_group_are_scored_by_the_rule_of_the_example_that_has_them(file):
    """The right choice is the likelier of two as it stands, and the unlikelier for its characters."""
    easy, hard = (
        whole(name, data_files=file(SCHOOL), metric=metric)
        for name, metric in (("arc_easy", "acc"), ("arc_challenge", "acc_norm"))
    )
    both = scoring.HarnessLogprobScorer((*easy.scorer.rules, *hard.scorer.rules))
    assert hard.examples[0].continuations == (" a stone", " the sun", " thing 0", " nothing at all")
    logprobs, greedy = np.array([-2.0, -9.0, -9.0, -2.5]), [False] * 4
    scores = [both.score_logprobs(task.examples[0], logprobs, greedy) for task in (easy, hard)]
    assert scores == [task.scorer.score_logprobs(task.examples[0], logprobs, greedy) for task in (easy, hard)] == [1, 0]


def test_of_several_right_choices_the_first_counts():
    task = SimpleNamespace(
        multiple_input=False, doc_to_target=lambda doc: doc["right"], doc_to_choice=lambda doc: ["a", "b", "c"]
    )
    assert _right(task, {"right": ["b", "c"]}) == 1
    assert _right(task, {"right": [2, 0]}) == 2


def test_a_group_that_mixes_kinds_of_request_is_refused(file, monkeypatch):
    mixed = [*harness.members("arc_challenge"), *harness.members("lambada_openai")]
    monkeypatch.setattr(harness, "members", lambda name: mixed)
    rows = [{**question, **story} for question, story in zip(SCHOOL, STORIES, strict=True)]
    with pytest.raises(ValueError, match="'arc_challenge' has kind 'choice', 'lambada_openai' 'completion'"):
        whole("both", data_files=file(rows))


# Workers, and what a number depends on


def test_a_task_that_was_pickled_scores_without_the_data(file):
    task = whole("gsm8k", data_files=file(SUMS), few_shot=0)
    kept = pickle.dumps(task)
    file(SUMS).unlink()
    scoring._TASKS.clear()
    again = pickle.loads(kept)
    assert again == task
    assert again.score_texts([0, 1], [" #### 1", " #### 1"]).tolist() == [1, 0]


# What cannot be had or measured


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wikitext", {}, "'wikitext' asks for loglikelihood_rolling, the probability of whole documents"),
        ("squadv2", {}, "'squadv2' is written in Python inside lm-eval"),
        ("humaneval_plus", {}, "'humaneval_plus' runs generated code outside a sandbox; mbpp, humaneval and humane"),
        ("gsm8k", {"metric": "f1"}, "with metric 'f1': its metrics for one example are exact_match"),
        ("lambada_openai", {"metric": "perplexity"}, "'perplexity': its metrics for one example are acc"),
        ("crows_pairs_english", {}, "for one example are none; lower is better by likelihood_diff, pct_stereotype"),
        ("gsm8k", {"filter": "mine"}, "has no filter 'mine'; it has strict-match, flexible-extract"),
        ("gsm8k", {"few_shot": -1}, "few_shot must be 0 or more for lm-eval task 'gsm8k', or left out; got -1"),
        ("gsm8k", {"few_shot": 0, "shared": True}, "shared must be False where no worked examples are shown"),
        ("wmdp_bio", {"few_shot": 2}, "few_shot must be 0 for lm-eval task 'wmdp_bio', or left out; got 2"),
        ("gsm8k", {"data_files": {"dev": "x"}}, "must name the splits test, train; got dev"),
        ("gsm8k", {"data_files": "gone.jsonl"}, r"data file 'gone\.jsonl' does not exist"),
        ("gsm8k", {"data_files": []}, r"data_files must be a path, a list of paths, or these by split; got \[\]"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_read(name, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        whole(name, **options)
    assert "\n" not in str(caught.value)


def test_a_module_that_lm_evals_code_for_a_task_lacks_is_named(file, monkeypatch):
    module = "transformers.data.metrics"
    monkeypatch.setitem(sys.modules, f"{module}.squad_metrics", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(sys.modules, "lm_eval.tasks.coqa.utils", raising=False)
    with pytest.raises(ValueError, match=rf"'coqa' needs a .* module that is missing \(.*{module}") as got:
        whole("coqa", data_files=file(SUMS))
    assert "\n" not in str(got.value)


def test_a_null_or_another_type_where_a_task_does_not_read_is_no_matter_and_elsewhere_is_named(file):
    rows = [{**row, "source": None if i % 2 else "own"} for i, row in enumerate(SUMS)]
    plain = whole("gsm8k", data_files=file(SUMS))
    assert whole("gsm8k", data_files=file(rows)).identity == plain.identity
    passages = [{"passage": "p", "question": f"{i}?", "label": i % 2} for i in range(4)]
    choices = [{**row, "choices": {**row["choices"], "text": ["a stone", None, "c", "d"]}} for row in SCHOOL]
    for name, column, broken, held in (
        ("gsm8k", "answer", [*SUMS[:3], {**SUMS[3], "answer": None}], "null there"),
        ("boolq", "label", [*passages[:3], {**passages[3], "label": None}], "null there"),
        ("boolq", "passage", [*passages[:3], {**passages[3], "passage": 5}], "5 there"),
        ("arc_challenge", "choices", [*SCHOOL[:3], choices[3]], r"\{.text.: \[.a stone., null"),
    ):
        with pytest.raises(ValueError, match=f"column '{column}' is left out: record 3 of .* holds {held}") as got:
            whole(name, data_files=file(broken))
        assert "\n" not in str(got.value)


def test_columns_that_a_task_does_not_read_are_named_with_those_it_lacks(file):
    with pytest.raises(ValueError, match=r"'arc_challenge' .*'question' is undefined; test has sentence_good"):
        whole("arc_challenge", data_files=file(PAIRS))
    with pytest.raises(ValueError, match=r"'hellaswag' have not the columns .*ctx_a.*validation has sentence_good"):
        whole("hellaswag", data_files=file(PAIRS))


def test_choices_that_lm_eval_shuffles_are_shuffled_alike_each_time(file):
    wrong = {f"Incorrect Answer {i}": f"no {i}" for i in (1, 2, 3)}
    rows = file([{"Question": f"{i}?", "Correct Answer": "yes", **wrong} for i in range(20)])
    task, again = (whole("gpqa_main_zeroshot", data_files=rows, few_shot=0) for _ in range(2))
    assert task == again
    assert {example.answer for example in task.examples} == {0, 1, 2, 3}


def test_a_right_choice_that_is_none_of_the_choices_is_refused(file):
    with pytest.raises(ValueError, match="lm-eval task 'boolq', example 2: is without a right choice: 2 of "):
        whole("boolq", data_files=file([{"passage": "p", "question": "q", "label": label} for label in (0, 1, 2)]))


def test_a_group_is_made_of_the_members_that_a_folder_has_files_for(file, tmp_path):
    file(PAIRS, "anaphor_gender_agreement.jsonl")
    file(PAIRS[:10], "adjunct_island.jsonl")
    with pytest.warns(UserWarning, match=r"have files for 2 of its 67 tasks.*; left out: (blimp_\w+, ){64}blimp_\w+$"):
        task = whole("blimp", data_files=tmp_path)
    names = [json.loads(example.reference)["task"] for example in task.examples]
    assert names == ["blimp_adjunct_island"] * 10 + ["blimp_anaphor_gender_agreement"] * 40


def test_a_question_of_two_subjects_stays_on_one_side(tmp_path):
    """Whatever the heading, the worked examples and the order of the choices."""
    for subject, choices in (("anatomy", "u,v,w,x"), ("virology", "x,w,v,u")):
        lines = "".join(f"What {subject} {i}?,a,b,c,d,A\n" for i in range(10))
        shared = "".join(f"What of {i}?,{choices},A\n" for i in range(10))
        (tmp_path / f"{subject}_test.csv").write_text(lines + shared, encoding="utf-8")
        (tmp_path / f"{subject}_dev.csv").write_text(lines, encoding="utf-8")
    for few_shot in (0, 2):
        with pytest.warns(UserWarning, match="files for 2 of its 57 tasks"):
            task = load_task("mmlu", n=20, data_files=tmp_path, few_shot=few_shot)
        here, there = (
            {json.loads(example.reference)["doc"]["question"] for example in side.examples}
            for side in (task, task.held_out)
        )
        assert here.isdisjoint(there)
        assert len(here | there) == 30
        letter = letter_form(task)
        assert letter.with_holdout(letter.held_out) == letter


def test_one_file_is_not_taken_for_every_task_of_a_group(file):
    rows = [{"question": f"{i}?", "choices": list("wxyz"), "answer": i % 4} for i in range(20)]
    with pytest.raises(ValueError, match="'mmlu' have the same rows: give a file for each of the 57 tasks"):
        load_task("mmlu", n=10, data_files=file(rows), few_shot=0)


def test_a_folder_without_a_file_names_what_is_looked_for(file, tmp_path):
    file(PAIRS, "something_else.jsonl")
    for name, end in (("blimp", r"\(and so for all 67 tasks of 'blimp'\)"), ("blimp_adjunct_island", "is meant")):
        with pytest.raises(ValueError, match=rf"'blimp_adjunct_island': .* no file for split 'train'; .*{end}$"):
            whole(name, data_files=tmp_path)


def test_an_unknown_task_is_refused_with_a_near_name(monkeypatch):
    # To read all that lm-eval has takes long.
    everything = SimpleNamespace(task_index={}, all_tasks=["gsm8k", "blimp_principle_A_case_1", "gsm_plus", "blimp"])
    some = harness._manager
    monkeypatch.setattr(harness, "_manager", lambda folder: everything if folder is None else some(folder))
    with pytest.raises(ValueError, match="lm-eval has no task 'gsm9k'; did you mean 'gsm8k'"):
        load_task("lm-eval/gsm9k")
    with pytest.raises(ValueError, match="_case_3'; did you mean 'blimp_principle_A_case_1"):
        load_task("lm-eval/blimp_principle_A_case_3")


@pytest.mark.slow
def test_what_a_folder_of_lm_eval_says_is_what_all_of_it_says():
    everything = harness._manager(None).task_index
    for name in (*PROTOCOL, "commonsense_qa"):
        quick = harness.index_for(name).task_index
        assert [*harness._expand(quick, name, {})] == [*harness._expand(everything, name, {})]


def test_nothing_of_lm_eval_is_imported_until_a_task_is_loaded():
    code = "import sys; from cs_heads.tasks import builtin_tasks; builtin_tasks(); print(*sys.modules)"
    loaded = run_program([sys.executable, "-c", code]).stdout.split()
    assert "cs_heads.tasks.lm_eval" in loaded
    assert not {"lm_eval", "datasets", "torch", "pandas"} & set(loaded)
