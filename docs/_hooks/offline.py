"""Nothing in the site names another machine to fetch something from: not even code that no page runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# Formulas and diagrams, which no notebook here has.
_UNUSED = re.compile(
    r'<!-- Load mathjax -->.*?<!-- End of mathjax configuration -->|<script type="module">.*?mermaid.*?</script>',
    flags=re.DOTALL,
)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A notebook without the scripts that would load MathJax and mermaid."""
    return _UNUSED.sub("", html) if page.file.src_uri.endswith(".ipynb") else html


def on_post_build(config: MkDocsConfig) -> None:
    """The theme's files without addresses: of what old browsers lack, of diagrams, of a repository's stars."""
    assets = Path(config.site_dir, "assets")
    shutil.rmtree(assets / "javascripts" / "lunr", ignore_errors=True)  # the search in other languages
    for file in [*assets.rglob("*.js"), *assets.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"https://(unpkg\.com|api\.github\.com|\$\{e\}/api)[^\"`]*", "", text)
        text = re.sub(r"(//|/\*)# sourceMappingURL=.*", "", text)
        file.write_text(text, encoding="utf-8")
    for file in assets.rglob("*.map"):  # for who debugs the theme
        file.unlink()
