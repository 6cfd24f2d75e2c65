"""The whole site as plain text, for assistants: llms.txt names the pages, llms-full.txt has all they say."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from markdownify import markdownify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

LONGEST = 200
"""Letters of what llms.txt says of a page."""

_texts: dict[str, str] = {}
_abouts: dict[str, str] = {}
_pages: list[Page] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Remember the order of the pages."""
    _texts.clear()
    _abouts.clear()
    _pages[:] = nav.pages


def on_page_content(html: str, page: Page, **_: Any) -> None:
    """Keep each page as Markdown, and what it is about."""
    _texts[page.file.src_uri] = markdown_of(html)
    _abouts[page.file.src_uri] = about(html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write both files."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    folder = Path(config.site_dir)
    parts = [f"{head}\nAll pages in one file: [llms-full.txt](llms-full.txt)"]
    for group, pages in groupby(_pages, group_of):
        parts.append(f"## {group}\n\n" + "\n".join(f"- {_line(group, page)}" for page in pages))
    (folder / "llms.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    whole = "\n\n".join(_texts[page.file.src_uri] for page in _pages if page.file.src_uri in _texts)
    (folder / "llms-full.txt").write_text(f"{head}\n{whole}\n", encoding="utf-8")


def group_of(page: Page) -> str:
    """The tab of the site that a page is under."""
    return str(page.ancestors[-1].title) if page.ancestors else str(page.title)


def _line(group: str, page: Page) -> str:
    title = page.title if page.title == group else f"{group}: {page.title}"
    said = _abouts.get(page.file.src_uri)
    return f"[{title}]({page.url or 'index.html'})" + (f": {said}" if said else "")


def markdown_of(html: str) -> str:
    """A page without pictures and the signs behind headings; code keeps its language.

    >>> sign = '<a href="#a_b" class="headerlink" title="Permanent link">¶</a>'
    >>> print(markdown_of(f'<h1>a_b{sign}</h1><div class="language-python highlight"><pre>a_b()</pre></div>'))
    # a_b
    <BLANKLINE>
    ```python
    a_b()
    ```
    """
    soup = _read(html)
    text = markdownify(
        str(soup),
        strip=["img"],
        heading_style="ATX",
        escape_underscores=False,
        escape_asterisks=False,
        code_language_callback=_language,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def about(html: str) -> str:
    """The first sentence of a page, or the names that it documents, whichever comes first.

    >>> about("<h1>Your data</h1><p>A task is examples. It has two sides.</p>")
    'A task is examples.'
    >>> names = "".join(f'<h2 class="doc doc-heading" id="cs_heads.{name}"></h2>' for name in ("find", "prove"))
    >>> about(f"<h1>API</h1>{names}<p>Finds.</p>")
    'find, prove'
    """
    soup = _read(html)
    names = [str(each["id"]).removeprefix("cs_heads.") for each in soup.select("h2.doc-heading[id]")]
    for each in soup.find_all(["p", "h2"]):
        if "doc-heading" in (each.get("class") or []):
            return _shortened(", ".join(names), ", ")
        text = re.sub(r"^(?:Idea|Question)\. ", "", " ".join(each.get_text().split()))  # labels
        if each.name == "p" and text:
            return _shortened(re.split(r"(?<=[.?!])\s+(?=[A-Z])|:$", text, maxsplit=1)[0], " ")
    return ""


def _shortened(text: str, between: str) -> str:
    """No longer than allowed, cut between words or names."""
    return text if len(text) <= LONGEST else text[: LONGEST - 5].rpartition(between)[0] + between + "..."


def _read(html: str) -> BeautifulSoup:
    soup = BeautifulSoup(html, "html.parser")
    for each in soup.select("a.headerlink, a.anchor-link, style, script"):
        each.decompose()
    return soup


def _language(code: Tag) -> str:
    """The language of a block of code, as a class around it says; a signature is Python."""
    classes = [name for each in (code, code.parent) if each for name in each.get("class") or []]
    named = [found[1] for name in classes if (found := re.fullmatch(r"(?:language|hl)-([\w-]+)", name))]
    return named[0] if named else "python" if "doc-signature" in classes else ""
