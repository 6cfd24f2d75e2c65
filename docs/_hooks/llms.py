"""The whole site as plain text, for assistants: llms.txt names the pages, llms-full.txt has all they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdownify import markdownify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_texts: dict[str, str] = {}
_pages: list[Page] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Remember the order of the pages."""
    _texts.clear()
    _pages[:] = nav.pages


def on_page_content(html: str, page: Page, **_: Any) -> None:
    """Keep each page as Markdown, without pictures and the signs behind headings."""
    html = re.sub(
        r'<a class="(?:headerlink|anchor-link)".*?</a>|<style.*?</style>|<script.*?</script>', "", html, flags=re.S
    )
    text = markdownify(html, strip=["img"], heading_style="ATX")
    _texts[page.file.src_uri] = re.sub(r"\n{3,}", "\n\n", text).strip()


def on_post_build(config: MkDocsConfig) -> None:
    """Write both files."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    names = [f"- [{page.title}]({page.url or 'index.html'})" for page in _pages]
    folder = Path(config.site_dir)
    text = f"{head}\nAll pages in one file: [llms-full.txt](llms-full.txt)\n\n" + "\n".join(names) + "\n"
    (folder / "llms.txt").write_text(text, encoding="utf-8")
    whole = "\n\n".join(_texts[page.file.src_uri] for page in _pages if page.file.src_uri in _texts)
    (folder / "llms-full.txt").write_text(f"{head}\n{whole}\n", encoding="utf-8")
