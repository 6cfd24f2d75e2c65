"""The table that says how close a protocol is to its paper is held to the protocol."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cs_heads.methods.gating.descent import CLIP, FREE_RATES, MAX_GAIN, MAX_NORM, SIGNED_RATES
from cs_heads.reproduce import PAPERS, PaperSettings
from cs_heads.reproduce.run import STEPS

PAGE = Path(__file__).parents[2] / "docs" / "reproduce.md"
TITLES = {"cs": "### Compressed sensing", "chg": "### Causal head gating"}


def rows_of(paper: str) -> list[dict[str, str]]:
    """The rows of a paper's table by the names of its columns."""
    text = PAGE.read_text(encoding="utf-8").split(TITLES[paper])[1].split("\n##")[0]
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [re.split(r"\s*\|\s?", line) for line in lines]
    assert head == ["what", "here", "how, or why", "in the code"]
    return [dict(zip(head, [*row, ""], strict=False)) for row in rows]


def named_in(paper: str) -> list[str]:
    return [name for row in rows_of(paper) for name in re.findall(r"`([^`]+)`", row["in the code"])]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_step_and_task_has_a_row_and_every_name_is_one(paper):
    steps = {step.name for step in STEPS[paper]}
    tasks = {task.name for task in PAPERS[paper].tasks}
    settings = {field.name for field in fields(PaperSettings)}
    named = named_in(paper)
    assert steps | tasks <= {*named}
    assert {*named} <= steps | tasks | settings


def test_every_setting_has_a_row():
    assert {field.name for field in fields(PaperSettings)} <= {*named_in("cs"), *named_in("chg")}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_says_how_it_differs_or_why_it_is_left_out(paper):
    rows = rows_of(paper)
    assert len({row["what"] for row in rows}) == len(rows)
    for row in rows:
        assert row["here"] in ("same", "differs", "left out", "not checked"), row
        assert row["how, or why"], row


def test_numbers_of_the_rows_are_those_of_the_protocol():
    said = {row["what"]: row["how, or why"] for paper in PAPERS for row in rows_of(paper)}
    settings = PaperSettings()
    assert said["numbers of masks"].startswith(", ".join(map(str, settings.n_masks)))
    assert said["densities"].startswith(", ".join(f"{each:g}".lstrip("0") for each in settings.densities))
    assert (settings.k, said["heads ablated"]) == (5, "five")
    assert (settings.max_heads, said["heads in the curve"]) == (10, "0 to 10")
    assert (settings.n_seeds, said["seeds"]) == (10, "ten")
    assert said["seeds of the rules"] == str(settings.n_rule_seeds)
    assert said["steps of a phase"] == str(settings.steps)
    assert said["examples of a step"].startswith(f"{settings.batch_size};")
    assert said["pairs of prompts"].startswith(f"{settings.n_pairs},")
    assert said["heads toggled"].startswith(f"{settings.n_toggled},")
    assert f"{settings.n_universal} examples" in said["universal heads"]
    assert f"±{CLIP:g}" in said["penalty"]
    assert f"norm {MAX_NORM:g}" in said["gradient"]
    rates = [f"{rate:g}".lstrip("0") for rate in (*FREE_RATES, *SIGNED_RATES)]
    assert said["learning rates"].startswith("{} to {}, then {} to {}".format(*rates))
    assert f"{MAX_GAIN:g} nats" in said["contrastive gates"]
    chg = PAPERS["chg"]
    assert f"{chg.task('openmathinstruct2').n:,} problems" in said["examples that gates are fitted to"]
    assert f"{chg.task('openmathinstruct2').options['shortest']:,}" in said["OpenMathInstruct-2"]
    for name, words in (("swearing", "512 tokens"), ("rhyming", "64 tokens")):
        assert f"{PAPERS['cs'].task(name).options['max_new_tokens']} tokens" == words
        assert words in said[name]
