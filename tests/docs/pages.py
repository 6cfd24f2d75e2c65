"""Every page that is written by hand, and what stands in it."""

import re
from pathlib import Path

from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SITE = sorted((ROOT / "docs").rglob("*.md"))
START = ROOT / "docs" / "start.md"
"""Its examples begin with nothing; those of other pages go on from there."""
HISTORY = ROOT / "CHANGELOG.md"
"""Names that were are written there."""

_OTHERS = ("benchmarks/README.md", "benchmarks/real/README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [README, *SITE, *(ROOT / name for name in _OTHERS), ROOT / "cs_heads" / "demo" / "MODEL_CARD.md", HISTORY]


def named(page: Path) -> str:
    """A page by its path, for the name of a test."""
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    """What a page says."""
    return page.read_text(encoding="utf-8")


def run_examples(page: Path, names: dict) -> dict:
    """The names that the examples of a page leave, which go on from these."""
    document = Document.parse(str(page), PythonCodeBlockParser(), SkipParser())
    document.namespace.update(names)
    examples = list(document.examples())
    assert examples
    for example in examples:
        example.evaluate()
    return document.namespace


def commands(text: str) -> list[str]:
    """Lines of ``cs-heads`` in blocks of code, fenced or indented."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(
        r"^(?: {4})?(cs-heads .*)$", "\n".join([*blocks, *re.findall(r"^ {4}.*$", text, flags=re.M)]), flags=re.M
    )


def programs(text: str) -> list[str]:
    """Commands that run a script of the benchmarks, each on one line, wherever they stand."""
    return re.findall(r"python (benchmarks/[^`\n]*)", re.sub(r"\\\n\s*", "", text))


def anchor_of(title: str) -> str:
    """What a link to a heading says."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose header begins so, each a list of its cells; the header is the first."""
    lines = text[text.index(header) :].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not set(line) <= set("|-")]


def prose(text: str) -> list[str]:
    """The sentences of a page, without code, tables, pictures and targets of links; an item ends a sentence."""
    text = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(    |\||#|<).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^ *(-|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    # A sentence may begin with a name in code, and end inside emphasis or brackets.
    sentences = [one for part in paragraphs for one in re.split(r"(?<=[.!?])[*)]*\s+(?=[A-Z*`(\d\"])", part)]
    return [re.sub(r"[*`]", "", one) for one in sentences if re.search(r"[a-zA-Z]", one)]


def words(sentence: str) -> int:
    """How many words a sentence has; a sign between two is none."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())
