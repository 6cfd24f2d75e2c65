"""The site as it is built: nothing comes from elsewhere, links lead somewhere, and it is searched without a network."""

import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

import cs_heads as cs
from tests.docs.pages import ROOT, SITE
from tests.report.test_report_in_browser import browser, offline_page  # noqa: F401 - a fixture
from tests.waiting import run_program

pytestmark = pytest.mark.slow


ELSEWHERE = re.compile(r"""["'`(=]\s*((?:https?:|wss?:)?//(?!www\.w3\.org)[\w$][^"'`)\s]*)""")
"""An address of another machine where code would use it: in quotes or brackets. W3C's are names and never fetched."""


class Links(HTMLParser):
    """What a page loads, links to and has anchors for, and the addresses of other machines that are no links."""

    def __init__(self, page):
        super().__init__()
        self.loads, self.links, self.anchors, self.elsewhere, self.inside = [], [], set(), [], ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source", "link"):
            self.loads.append(given.get("src") or given.get("href") or "")
        texts = [f"{name}='{value}'" for name, value in attributes if (tag, name) != ("a", "href")]
        self.elsewhere += [address for text in texts for address in ELSEWHERE.findall(text)]
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in ("script", "style"):
            self.elsewhere += ELSEWHERE.findall(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    ended = run_program(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)})
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {page: Links(page) for page in sorted(site.rglob("*.html"))}


def test_every_page_is_there(site, pages):
    written = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in SITE}
    assert written <= {page.relative_to(site) for page in pages}
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {page.stem for page in pages if page.parent.name == "notebooks"} == notebooks


def test_nothing_names_a_place_elsewhere_to_load_from(pages, site):
    """Not even code that no page runs, as the theme's for diagrams."""
    for page, found in pages.items():
        assert found.loads
        assert found.elsewhere == [], page
    files = [file for file in site.rglob("*") if file.suffix in (".js", ".css", ".svg", ".map", ".mjs", ".woff2")]
    assert {".js", ".css"} <= {file.suffix for file in files}
    for file in files:
        assert ELSEWHERE.findall(file.read_text(encoding="utf-8")) == [], file


def test_every_link_leads_somewhere(pages, site):
    for page, found in pages.items():
        if page.name == "404.html":  # its links are from the root of a server
            continue
        for link in (*found.links, *found.loads):
            file, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", file):
                continue
            target = (page.parent / file).resolve() if file else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_relative_to(site), f"{page}: {link}"
            assert target.is_file(), f"{page}: {link}"
            if anchor and target.suffix == ".html":
                assert anchor in pages[target].anchors, f"{page}: {link}"


def test_the_text_for_assistants_has_every_page_and_every_name(site):
    index, whole = ((site / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    linked = re.findall(r"\]\(([^)]+)\)", index)
    assert len(linked) > len(SITE)
    assert [page for page in linked if not (site / page).is_file()] == []
    assert [name for name in cs.__all__ if name not in whole] == []
    assert "`--task`" in whole
    assert "\\_" not in whole, "names are as in code: find_heads"


@pytest.fixture
def opened(browser, site):  # noqa: F811
    """Opens a page of the site without a network, and gives what it says to the console and asks for elsewhere."""
    contexts = []

    def opened(name, width=1280, scheme="light"):
        page, said, asked = offline_page(browser, viewport={"width": width, "height": 844}, color_scheme=scheme)
        contexts.append(page.context)
        # Its network is never idle to playwright: the search works in a frame.
        page.goto(f"{site.as_uri()}/{name}.html", wait_until="load")
        return page, lambda: (said, [one for one in asked if not one.startswith((site.as_uri(), "data:", "blob:"))])

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_fit_and_say_nothing_to_the_console_or_the_network(opened, width, scheme):
    for name in ("index", "start", "guides/controls", "api/find", "benchmarks/real-models", "notebooks/01_quickstart"):
        page, complaints = opened(name, width, scheme)
        assert page.locator("h1").first.is_visible()
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert complaints() == ([], [])


def test_the_search_works_without_a_network(opened):
    page, complaints = opened("index")
    page.click(".md-search__input")
    page.keyboard.type("redundant", delay=50)
    page.wait_for_selector(".md-search-result__item")
    assert "Group testing" in page.locator(".md-search-result__list").inner_text()
    assert complaints() == ([], [])
