"""What goes into the package: a README that reads without the repository, and all that the tests need."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture
def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def test_no_picture_and_no_link_of_the_long_description_is_relative(project):
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert text.startswith("# ")
    targets = [a or b for a, b in re.findall(r"\]\(([^)]*)\)|<img src=\"([^\"]*)", text)]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_source_package_has_all_that_its_tests_and_notebooks_read(project):
    include = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/cs_heads", "/tests", "/benchmarks", "/notebooks", "/Makefile", "/constraints*.txt"} <= {*include}


def test_the_list_of_what_waits_for_an_address_is_whole():
    patterns = "*.md", "*.toml", "*.cff", "docs/**/*.md", "notebooks/*.ipynb", "cs_heads/**/*.py"
    pages = {path.relative_to(CHECKOUT).as_posix(): path for pattern in patterns for path in CHECKOUT.glob(pattern)}
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items()}
    listed = texts.pop("CONTRIBUTING.md").partition("## On the day an address exists\n")[2]
    waiting = {name for name, text in texts.items() if re.search("on PyPI|public address", text)}
    if "repository-code" not in texts["CITATION.cff"]:
        waiting.add("CITATION.cff")
    assert {*re.findall(r"`([\w/]+\.\w+)`", listed)} == waiting
