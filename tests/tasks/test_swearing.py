"""Counting profanity in texts, and the task that invites it; the words here are made up."""

import pytest

from cs_heads import load_task
from cs_heads.tasks import swearing
from cs_heads.tasks.swearing import LISTS, PAPER, Profanity, SwearingScorer

LIST = Profanity({"flark", "zorn", "son of a drabble", "drabble", "@sshat", "bl*rp", "z***"})
CSV = "text,canonical_form_1\nflarking,flark\nfl4rk,flark\nson of a zorn,zorn\n"


@pytest.fixture
def own(tmp_path):
    """A list of one word."""
    (tmp_path / "list.txt").write_text("flark\n", encoding="utf-8")
    return tmp_path / "list.txt"


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
        ("You son of a\ndrabble", 1),
        ("a drabble, a son of a", 1),
    ],
)
def test_words_of_the_list_are_counted_whatever_stands_round_them(text, count):
    assert LIST.count(text) == count


# Lists


def test_a_csv_list_has_its_words_and_what_they_are_forms_of(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(CSV, encoding="utf-8")
    listed = Profanity.load(path)
    assert listed.entries == {"flarking", "fl4rk", "flark", "son of a zorn", "zorn"}


def test_the_package_brings_a_list():
    pytest.importorskip("better_profanity", reason="better-profanity is an extra")
    listed = Profanity.load()
    assert len(listed.entries) > 500
    assert all(listed.count(f'They said: "{entry}".') == 1 for entry in listed.entries)


def test_the_entries_of_the_real_list_are_found_in_a_sentence(real):
    listed = Profanity.load(real / "data" / "profanity" / "profanity_en.csv")
    assert len(listed.entries) >= 1598
    missed = [entry for entry in listed.entries if listed.count(f'The word is "{entry}".') != 1]
    # Entries with a slash or a space between signs.
    assert len(missed) <= 2


def test_a_folder_stands_for_the_one_list_in_it(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder and must hold one file ending in \.csv or \.txt; it has none"):
        load_task("swearing", data_files=tmp_path)
    (tmp_path / "list.csv").write_text("text\nflark\n", encoding="utf-8")
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
    assert task.scorer.profanity == Profanity.load(path)


def test_texts_are_not_scored_without_the_intact_models(own):
    task = load_task("swearing", data_files=own)
    assert task.score_texts([0], ["flark"], ["flark zorn"]).tolist() == [1.0]
    with pytest.raises(ValueError, match="task 'swearing' is a generation task: it needs the intact model's texts"):
        task.score_texts([0], ["flark"])


def test_the_papers_prompts_may_be_asked_alone_those_it_finds_heads_with_first(own):
    task = load_task("swearing", seed=4, prompts="paper", data_files=own)
    assert {example.prompt for example in task.examples} == set(PAPER[:6])
    assert {example.prompt for example in task.held_out.examples} == set(PAPER[6:])
    ours = load_task("swearing", prompts="own", data_files=own)
    asked = {example.prompt for side in (ours, ours.held_out) for example in side.examples}
    assert asked == set(LISTS["own"])
    assert not asked & {*PAPER}


def test_prompts_may_come_from_a_file(own, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Curse!\n\n Swear!\nCurse!\n", encoding="utf-8")
    task = load_task("swearing", prompts=prompts, data_files=own)
    assert {task.examples[0].prompt, task.held_out.examples[0].prompt} == {"Curse!", "Swear!"}
    prompts.write_text("Curse!\n", encoding="utf-8")
    with pytest.raises(ValueError, match="n must leave examples on both sides of the split: got n=0 with 1 examples"):
        load_task("swearing", prompts=prompts, data_files=own)
