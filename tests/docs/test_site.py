"""The site as it is built: nothing comes from elsewhere, links lead somewhere, and it is searched without a network."""

import os
import re
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
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
    assert len([page for page in pages if page.parent.name == "notebooks"]) == 7


def test_nothing_names_a_place_elsewhere_to_load_from(pages, site):
    """Not even code that no page runs, as the theme's for diagrams."""
    for page, found in pages.items():
        assert found.loads
        assert found.elsewhere == [], page
    files = [file for file in site.rglob("*") if file.suffix in (".js", ".css", ".svg", ".map", ".mjs", ".woff2")]
    assert {".js", ".css"} <= {file.suffix for file in files}
    for file in files:
        assert ELSEWHERE.findall(file.read_text(encoding="utf-8")) == [], file


@pytest.mark.parametrize(
    "page",
    [
        "<script src='https://there.org/a.js'></script>",
        "<link rel='stylesheet' href='//there.org/a.css'>",
        "<img srcset='https://there.org/a.png 2x'>",
        "<p style='background: url(http://there.org/a.png)'>",
        "<script>if (false) import('https://there.org/a.mjs')</script>",
        "<style>@import url(https://there.org/a.css)</style>",
    ],
)
def test_an_address_elsewhere_would_be_seen(page, tmp_path):
    (tmp_path / "page.html").write_text(f"<a href='https://here.org'>https://here.org</a>{page}", encoding="utf-8")
    assert [re.sub(r".*//(\w+)\..*", r"\1", one) for one in Links(tmp_path / "page.html").elsewhere] == ["there"]


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


def test_every_public_name_is_on_a_page_of_the_api(pages):
    named = set().union(*(found.anchors for page, found in pages.items() if page.parent.name == "api"))
    assert {f"cs_heads.{name}" for name in cs.__all__} - named == set()


def test_examples_of_docstrings_are_code(site):
    pages = {page.name: page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")}
    assert {name for name, text in pages.items() if "<blockquote>" in text} == set()
    assert pages["experiment.html"].count('<span class="gp">&gt;&gt;&gt;') > 10  # colored as what is typed


def test_the_text_for_assistants_has_every_page_and_every_name(site):
    index, whole = ((site / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    for page in re.findall(r"\]\(([^)]+)\)", index):
        assert (site / page).is_file(), page
    assert len(re.findall(r"\]\(", index)) > len(SITE)
    entries = re.findall(r"^- \[(.+)\]\(\S+\)(.*)$", index, flags=re.MULTILINE)
    assert len({title for title, _ in entries}) == len(entries) > len(SITE), "two pages of one title"
    assert [title for title, said in entries if not re.fullmatch(r": .{10,}", said)] == [], "no description"
    for name in cs.__all__:
        assert name in whole, name
    assert "# Which heads does a skill rest on?" in whole
    assert "--task TASK" in whole
    assert "Permanent link" not in whole
    assert "\\_" not in whole, "names are as in code: find_heads"
    for language in ("python", "pycon", "bash"):
        assert f"```{language}\n" in whole, language


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and writes no log."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def places(site):
    """The site on disk, and the same from a server of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield {"disk": site.as_uri(), "server": f"http://127.0.0.1:{server.server_port}"}
        server.shutdown()


@pytest.fixture
def opened(browser, places):  # noqa: F811
    """Opens a page of the site without a network, and gives what it says to the console, asks for, and may ask for."""
    contexts = []

    def opened(name, width=1280, place="disk", scheme="light"):
        own = (places[place], "data:", "blob:")
        page, said, asked = offline_page(browser, viewport={"width": width, "height": 844}, color_scheme=scheme)
        contexts.append(page.context)
        page.context.set_offline(place == "disk")
        page.context.route(lambda url: not url.startswith(own), lambda request: request.abort())
        # Its network is never idle to playwright: the search works in a frame.
        page.goto(f"{places[place]}/{name}.html", wait_until="load")
        return page, said, asked, own

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_pages_fit_and_say_nothing_to_the_console_or_the_network(opened, width, scheme):
    for name in ("index", "start", "guides/controls", "api/find", "benchmarks/real-models", "notebooks/01_quickstart"):
        page, said, asked, own = opened(name, width, scheme=scheme)
        assert page.locator("h1").first.is_visible()
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert [one for one in asked if not one.startswith(own)] == []
        assert said == []


@pytest.mark.parametrize("place", ["disk", "server"])
def test_the_search_works_without_a_network(opened, place):
    page, said, asked, own = opened("index", place=place)
    page.click(".md-search__input")
    page.keyboard.type("redundant", delay=50)
    page.wait_for_selector(".md-search-result__item")
    assert "Group testing" in page.locator(".md-search-result__list").inner_text()
    assert [one for one in asked if not one.startswith(own)] == []
    assert said == []
