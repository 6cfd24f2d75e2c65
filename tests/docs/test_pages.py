"""Every page keeps its word: links lead somewhere, commands are commands, names exist, examples run."""

import ast
import re
import shlex
from fnmatch import fnmatch
from functools import cache

import pytest

import cs_heads as cs
from cs_heads.cli import app
from cs_heads.demo import planted_heads
from cs_heads.methods import METHODS
from tests.docs.pages import (
    HISTORY,
    PAGES,
    ROOT,
    SITE,
    START,
    anchor_of,
    commands,
    named,
    programs,
    prose,
    run_examples,
    text_of,
    words,
)

PYTHON = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
RUN = [page for page in SITE if page != START and PYTHON.search(text_of(page))]


def anchors(page):
    """What a link to a heading of this page may say."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {anchor_of(title) for title in titles}


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY], ids=named)
def test_no_sentence_is_long(page):
    assert [one for one in prose(text_of(page)) if words(one) > 40] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_pictures_lead_somewhere(page):
    for link in re.findall(r'(?:\]\(|src=")([^)\s"]+)', text_of(page)):
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", file):
            continue
        target = page.parent / file if file else page
        assert target.is_file(), link
        # Headings of the API are made when the site is: its own test follows them.
        if anchor and target.parent.name != "api":
            assert anchor in anchors(target), link


def test_there_are_commands_and_each_is_understood():
    given = {command for page in PAGES for command in commands(text_of(page)) if page != HISTORY}
    assert len(given) >= 15
    for command in sorted(given):
        app().parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


@cache
def options_of(script):
    """Every option that a program declares."""
    calls = [node for node in ast.walk(ast.parse(text_of(script))) if isinstance(node, ast.Call)]
    added = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"]
    return {each.value for node in added for each in node.args if isinstance(each, ast.Constant)}


def test_options_of_programs_that_pages_give_are_theirs():
    given = {(page, line) for page in PAGES if page != HISTORY for line in programs(text_of(page))}
    asked = [
        (named(page), line.split()[0], option)
        for page, line in given
        for option in re.findall(r"(?<!\S)--[\w-]+", line)
    ]
    assert len({script for _, script, _ in asked}) >= 8
    assert [(page, script, o) for page, script, o in sorted(asked) if o not in options_of(ROOT / script)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY], ids=named)
def test_names_of_the_library_exist(page):
    for name in sorted(set(re.findall(r"\bcs\.([A-Za-z_.]+)", text_of(page)))):
        found = cs
        for part in name.rstrip(".").split("."):
            found = getattr(found, part)


def test_the_page_start_finds_and_proves_planted_heads(started):
    assert {*started["proof"].heads} <= {*planted_heads("capitals")}
    assert started["proof"].verdict == "specific"


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # budgets are too small for good answers, and say so
@pytest.mark.parametrize("page", RUN, ids=named)
def test_examples_run(page, started, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(page, started)


def test_every_method_has_a_page_with_its_source_its_cost_and_when_it_fails():
    pages = {}
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        text = text_of(page)
        title = text.splitlines()[0]
        pages |= dict.fromkeys(re.findall(r"`([\w-]+)`", title), text)
    assert pages.keys() == METHODS.keys()
    for name, text in pages.items():
        for part in ("**Idea.**", "**Source.**", "**Cost.**", "## When it fails"):
            assert part in text, f"{name}: {part}"


def test_every_benchmark_has_its_tables_named():
    text = text_of(ROOT / "benchmarks" / "README.md")
    for script in (ROOT / "benchmarks").glob("*.py"):
        assert f"`{script.name}`" in text, script.name


def test_every_file_measured_on_a_real_model_has_the_script_that_makes_it():
    folder = ROOT / "benchmarks" / "real"
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|", text_of(folder / "README.md"), flags=re.MULTILINE)
    made = {pattern for files, _ in rows for pattern in re.findall(r"`([^`]+)`", files)}
    files = {each.relative_to(folder).as_posix() for each in folder.rglob("*.*") if each.is_file()} - {"README.md"}
    assert {name for name in files if not any(fnmatch(name, pattern) for pattern in made)} == set()
    assert {pattern for pattern in made if not any(fnmatch(name, pattern) for name in files)} == set()
