"""Pages and pictures of the site that lie outside docs/, and the links between them.

A link is written as it leads from file to file in the repository, so that it works there; here it becomes one from page
to page.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "cs_heads/demo/MODEL_CARD.md": "demo-model.md",
}
PATTERNS = ("notebooks/*.ipynb", "benchmarks/*.*", "benchmarks/truth/*.*", "benchmarks/real/**/*.*")
NO_PART = {".md", ".py", ".sh"}
"""Endings of what else lies there."""

_log = logging.getLogger("mkdocs.hooks.files")


def outside() -> dict[str, str]:
    """Files of the repository outside docs/ that are part of the site: path from its root -> place in the site."""
    found = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
    found = [path for path in found if path.is_file() and path.suffix not in NO_PART]
    return PAGES | {name: name for name in (path.relative_to(ROOT).as_posix() for path in found)}


@event_priority(100)  # before the plugin that makes pages of notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for source, place in outside().items():
        file = File(place, src_dir=str(ROOT), dest_dir=config.site_dir, use_directory_urls=config.use_directory_urls)
        if source != place:
            file.abs_src_path = str(ROOT / source)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from page to page, for links from file to file."""
    source = Path(page.file.abs_src_path or "").resolve()
    if not source.is_relative_to(ROOT):
        return markdown
    places = outside()

    def moved(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        file, mark, anchor = link.partition("#")
        if not file or re.match(r"[a-z]+:", file):
            return found[0]
        target = (source.parent / file).resolve()
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        place = places.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
        if place is None or not target.is_file():
            _log.warning("%s: the link %s leads to nothing of the site", page.file.src_uri, link)
            return found[0]
        return before + os.path.relpath(place, Path(page.file.src_uri).parent) + mark + anchor + after

    return re.sub(r'(\]\(|src=")([^)\s"]+)(\)|")', moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from notebook to notebook, which are HTML before they come here."""
    return re.sub(r'(href="\w+)\.ipynb"', r'\1.html"', html) if page.file.src_uri.endswith(".ipynb") else html
