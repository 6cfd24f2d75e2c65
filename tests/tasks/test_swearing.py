"""Counting profanity in texts, and the task that invites it; the words here are made up."""

import pytest

from cs_heads import load_task
from cs_heads.tasks import swearing
from cs_heads.tasks.swearing import LISTS, PAPER, Profanity, Swearing, SwearingScorer

MILD, SEVERE = 1.0, 2.8
LIST = Profanity(
    {"flark": MILD, "zorn": 2.0, "son of a drabble": SEVERE, "drabble": MILD, "@sshat": 1.4, "bl*rp": 1.2, "z***": 2.0}
)
CSV = "text,canonical_form_1,severity_rating\nflarking,flark,1.6\nfl4rk,flark,1.2\nson of a zorn,zorn,2.8\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("What the flark!", 1),
        ('"FLARK," he said, (zorn) and **flark**.', 3),
        ("1. Flark\n2. Zorn\n3. *Drabble*\n", 3),
        ("flark/zorn - flark, zorn;flark", 5),
        ("unflarked flarks", 0),
        ("an @sshat, a BL*RP", 2),
        ("z*** it, Z!", 1),
        ("", 0),
        ("...", 0),
    ],
)
def test_words_of_the_list_are_counted_whatever_stands_round_them(text, count):
    assert LIST.judge(text).count == count


def test_a_phrase_counts_once_and_its_words_by_themselves():
    assert LIST.judge("You son of a\ndrabble") == Swearing(1, SEVERE)
    assert LIST.judge("a drabble, a son of a") == Swearing(1, MILD)


# Lists


def test_a_csv_list_has_its_words_and_what_they_are_forms_of(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(CSV, encoding="utf-8")
    listed = Profanity.load(path)
    assert listed.severities == {"flarking": 1.6, "fl4rk": 1.2, "flark": 1.2, "son of a zorn": 2.8, "zorn": 2.8}


def test_the_package_brings_a_list():
    pytest.importorskip("better_profanity", reason="better-profanity is an extra")
    listed = Profanity.load()
    assert len(listed.severities) > 500
    found = [listed.judge(f'They said: "{entry}".') for entry in listed.severities]
    assert all(judged == Swearing(1, 1.0) for judged in found)


def test_the_entries_of_the_real_list_are_found_in_a_sentence(real):
    listed = Profanity.load(real / "data" / "profanity" / "profanity_en.csv")
    assert len(listed.severities) >= 1598
    missed = [entry for entry in listed.severities if listed.judge(f'The word is "{entry}".').count != 1]
    # Entries with a slash or a space between signs.
    assert len(missed) <= 2
    judged = listed.judge("\n".join(listed.severities))
    assert 1 < judged.severity < 3


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("list.csv", "word,severity_rating\nflark,1\n", "has no column text"),
        (
            "list.csv",
            "text,severity_rating\nflark,high\n",
            "line 2: must have a text and a severity_rating of 0 or more, got 'flark' and 'high'",
        ),
        ("list.csv", "text,severity_rating\nflark,nan\n", "of 0 or more, got 'flark' and 'nan'"),
        ("list.csv", "text,severity_rating\nflark,-1\n", "of 0 or more, got 'flark' and '-1'"),
        ("list.csv", "text,severity_rating\n,1\n", "line 2: must have a text .*, got '' and '1'"),
        ("list.csv", "text,severity_rating\n", "must hold one word or more, got none"),
        ("list.txt", "\n\n", "must hold one word or more, got none"),
    ],
)
def test_a_malformed_list_is_named(tmp_path, name, content, fault):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        load_task("swearing", data_files=tmp_path / name)


def test_a_folder_stands_for_the_one_list_in_it(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder and must hold one file ending in \.csv or \.txt; it has none"):
        load_task("swearing", data_files=tmp_path)
    (tmp_path / "list.csv").write_text("text,severity_rating\nflark,1\n", encoding="utf-8")
    (tmp_path / "LICENSE").write_text("free", encoding="utf-8")
    assert load_task("swearing", data_files=tmp_path) == load_task("swearing", data_files=tmp_path / "list.csv")
    (tmp_path / "more.txt").write_text("drabble\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"it has list\.csv, more\.txt: name one of them"):
        load_task("swearing", data_files=tmp_path)


def test_without_any_list_the_task_says_what_to_do(monkeypatch):
    monkeypatch.setattr(swearing, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"a file by data_files=\.\.\., or the package better-profanity \(pip install"):
        load_task("swearing")


# Scores


def test_a_text_scores_by_what_is_left_of_the_intact_models_swearing():
    scorer = SwearingScorer(LIST)
    intact = ["flark zorn flark zorn"] * 4 + ["good morning"] * 2
    texts = ["flark zorn flark zorn", "zorn", "", "flark " * 9, "flark", ""]
    assert scorer.against([], texts, intact) == [1.0, 0.25, 0.0, 1.0, 0.0, 0.0]


def test_the_task_invites_swearing_in_the_chat_of_the_model(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(CSV, encoding="utf-8")
    task = load_task("swearing", n=60, seed=3, data_files=str(path), max_new_tokens=50)
    assert (task.kind, task.relative, task.chat, task.max_new_tokens) == ("generation", True, "auto", 50)
    assert len(task) == 60
    assert len(task) + len(task.held_out) == len(set(LISTS["all"])) == 204
    assert task == load_task("swearing", n=60, seed=3, data_files=str(path), max_new_tokens=50)
    assert task.examples != load_task("swearing", n=60, seed=4, data_files=str(path)).examples
    assert task.scorer.profanity.severities == Profanity.load(path).severities


def test_texts_are_not_scored_without_the_intact_models(tmp_path):
    (tmp_path / "list.txt").write_text("flark\n", encoding="utf-8")
    task = load_task("swearing", data_files=tmp_path / "list.txt")
    assert task.score_texts([0], ["flark"], ["flark zorn"]).tolist() == [1.0]
    with pytest.raises(ValueError, match="task 'swearing' is a generation task: it needs the intact model's texts"):
        task.score_texts([0], ["flark"])


def test_the_papers_prompts_may_be_asked_alone_those_it_finds_heads_with_first(tmp_path):
    (tmp_path / "list.txt").write_text("flark\n", encoding="utf-8")
    task = load_task("swearing", seed=4, prompts="paper", data_files=tmp_path / "list.txt")
    assert {example.prompt for example in task.examples} == set(PAPER[:6])
    assert {example.prompt for example in task.held_out.examples} == set(PAPER[6:])
    own = load_task("swearing", prompts="own", data_files=tmp_path / "list.txt")
    asked = {example.prompt for side in (own, own.held_out) for example in side.examples}
    assert asked == set(LISTS["own"])
    assert not asked & {*PAPER}


def test_prompts_may_come_from_a_file(tmp_path):
    (tmp_path / "list.txt").write_text("flark\n", encoding="utf-8")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Curse!\n\n Swear!\nCurse!\n", encoding="utf-8")
    task = load_task("swearing", prompts=prompts, data_files=tmp_path / "list.txt")
    assert {task.examples[0].prompt, task.held_out.examples[0].prompt} == {"Curse!", "Swear!"}
    prompts.write_text("Curse!\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"file of prompts '.*prompts\.txt' must hold two prompts or more, got 1"):
        load_task("swearing", prompts=prompts, data_files=tmp_path / "list.txt")
