"""The report, looked at in a real browser without a network."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from cs_heads.analysis.attention import attention
from cs_heads.analysis.columns import Column
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.plot import show_attention
from cs_heads.plot.head_markers import head_looks
from cs_heads.report import Findings, write_report
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted
from tests.plot.studies import made_cards, made_comparison, made_proof, made_ranking, made_study
from tests.report.atlases import made_atlas
from tests.waiting import HANG, wait_until

QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no chromium here: `make system` installs it, or `apt-get install chromium`")
    with playwright.sync_playwright() as started:
        # A new empty profile, which playwright removes.
        chromium = started.chromium.launch(executable_path=path, args=QUIET, timeout=1000 * HANG)
        yield chromium
        chromium.close()


def offline_page(browser, **settings):
    """A page without a network, with lists of what it says to the console and of what it asks for."""
    context = browser.new_context(offline=True, **settings)
    context.set_default_timeout(1000 * HANG)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    return page, said, asked


def until(page, question):
    """`wait_for_function` asks by `eval` in the page, whose policy forbids that."""
    wait_until(lambda: page.evaluate(question), f"the page to say yes to {question}")


@pytest.fixture
def look(browser):
    """Opens a file and gives the page, what it said to the console, and what it asked for beyond the file."""
    contexts = []

    def opened(path, **settings):
        page, said, asked = offline_page(browser, **settings)
        contexts.append(page.context)
        page.goto(path.as_uri())
        page.wait_for_load_state("networkidle")
        return page, said, [url for url in asked if url != path.as_uri() and not url.startswith(("data:", "blob:"))]

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(made_study(), tmp_path_factory.mktemp("report") / "report.html")


def test_the_report_shows_its_pictures_and_says_nothing_to_the_console_or_the_network(look, report):
    page, said, asked = look(report)
    until(page, "document.querySelectorAll('.cs-attention canvas').length >= 6")
    widths = page.evaluate("[...document.images].map(image => image.complete ? image.naturalWidth : 0)")
    assert len(widths) == 8
    assert min(widths) > 0
    assert page.locator("h1").inner_text() == "Which heads does capitals on tiny rest on?"
    assert page.locator(".verdict").first.is_visible()
    assert (said, asked) == ([], [])


# Texts that stand out of their place, and words of a first column that are broken into letters.
FAULTS = """() => {
    const faults = [], page = document.documentElement.clientWidth;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        let place = text.parentElement;
        if (!text.data.trim() || place.closest('script, style, .told') || !place.checkVisibility()) continue;
        const range = document.createRange();
        const name = text.data.trim().slice(0, 40);
        const first = place.closest('tbody th:first-child, thead th, dt');
        if (first) for (const word of text.data.matchAll(/[^\\s\\/-]+/g)) {
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (range.getClientRects().length > 1) faults.push(`broken: ${word[0]}`);
        }
        range.selectNodeContents(text);
        while (getComputedStyle(place).display.startsWith('inline')) place = place.parentElement;
        const box = place.getBoundingClientRect(), moved = place.closest('.wide, .cs-attention');
        for (const line of range.getClientRects()) {
            if (line.right > box.right + 1 || line.left < box.left - 1) faults.push(`outside its place: ${name}`);
            if (!moved && (line.right > page + 1 || line.left < -1)) faults.push(`outside the page: ${name}`);
        }
    }
    if (document.documentElement.scrollWidth > page) faults.push('the page is moved sideways');
    return [...new Set(faults)];
}"""

LONG = "everyday/a_control_with_a_rather_long_name"


def whole():
    """With all that a search writes, heads that are claimed beyond the first and one that is in the way, and beside it
    a comparison."""
    grid, claimed = Grid(3, 4), (Head(0, 1), Head(2, 3))
    importance = made_ranking().importance.copy()
    importance[2, 0] = -0.2
    ranking = replace(made_ranking(), importance=importance, claims=claimed, interfering=(Head(2, 0),))
    ranking = replace(ranking, frequency=np.ones((3, 4)), control_importance=np.zeros((3, 4)))
    tasks = [Planted(grid, {Head(0, 1): 0.3, Head(1, 2): 0.3}, baseline=0.9), Planted(grid, {}, baseline=0.9)]
    columns = [Column("capitals", "own", (tasks[0],)), Column(LONG, "control", (tasks[1],))]
    curve = measure_sparsity(columns, [Head(0, 1), Head(1, 2), Head(2, 3)], n_random=2)
    command = f"cs-heads find --model /models/{'deep/' * 12}tiny --task capitals --control {LONG} --out somewhere"
    return made_study(
        ranking=ranking,
        proof=made_proof(control=LONG),
        command=command,
        cards=made_cards(3, 32),
        curve=curve,
        seconds={"find": 3.25, "confirm": 1.0},
    )


PAGES = {"whole": whole, "comparison": lambda: Findings(comparison=made_comparison()), "atlas": made_atlas}


@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_no_text_overflows_on_any_screen_in_light_and_in_dark(look, tmp_path, make):
    """All that is folded is open; contrast of 4.5 or more, as WCAG 2 asks."""
    page, said, asked = look(write_report(make(), tmp_path / "page.html"))
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    views = page.locator(".cs-attention section").count()
    until(page, f"document.querySelectorAll('.cs-attention canvas').length >= {3 * views}")
    for width, scheme in ((390, "dark"), (800, "light"), (1400, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FAULTS) == [], (width, scheme)
        colors = page.evaluate(COLORS)
        assert len(colors) > 5
        for name, ink, ground in colors:
            assert contrast(ink, ground) >= 4.5, (name, scheme)
        assert (luminance(colors[0][2]) < 0.2) == (scheme == "dark")
    assert min(page.evaluate("[...document.images].map(image => image.naturalWidth)")) > 0
    assert (said, asked) == ([], [])


def luminance(color: str) -> float:
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(ink: str, ground: str) -> float:
    light, dark = sorted(map(luminance, (ink, ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


COLORS = """'h1 p .soft .verdict figcaption td th dt pre a button dfn .terms'.split(' ').flatMap(name => {
    let place = document.querySelector('main ' + name);
    if (!place) return [];
    const ink = getComputedStyle(place).color;
    while (getComputedStyle(place).backgroundColor === 'rgba(0, 0, 0, 0)') place = place.parentElement;
    return [[name, ink, getComputedStyle(place).backgroundColor]];
})"""


def test_a_reader_copies_points_and_compares(look, report):
    """Copy buttons, the map that tells its heads, and the two attention views that move together."""
    page, _, _ = look(
        report, permissions=["clipboard-read", "clipboard-write"], viewport={"width": 1280, "height": 800}
    )
    page.get_by_role("button", name="Copy names").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "L0H1 L1H2"

    cells = page.locator(".cells").first
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 1.5 / 4, box["y"] + box["height"] * 0.5 / 3)
    assert page.locator(".told").inner_text().splitlines()[:3] == ["L0H1", "rank 1", "importance +0.500"]
    page.mouse.move(2, 2)
    assert not page.locator(".told").is_visible()

    until(page, "document.querySelectorAll('.cs-attention canvas').length >= 6")
    names = page.locator(".cs-attention h2")
    assert names.all_inner_texts() == ["L0H1", "L0H1"]
    small = page.locator(".cs-attention h4").get_by_text("L1H2", exact=True)
    small.first.hover()
    until(page, shown := "[...document.querySelectorAll('.cs-attention h2')].every(name => name.innerText === 'L1H2')")
    small.last.click()
    page.mouse.move(2, 2)
    until(page, shown)

    look_of = {str(head): look for head, look in head_looks([Head(0, 1), Head(1, 2)]).items()}
    painted = small.first.evaluate("name => getComputedStyle(name).backgroundColor")
    assert painted == "rgb({}, {}, {})".format(*(int(look_of["L1H2"].color[at : at + 2], 16) for at in (1, 3, 5)))


def test_attention_of_a_model_shows_itself_as_in_a_notebook(look, load, tmp_path):
    """Two views on one page, each with the script, as a notebook has them."""
    found = attention(load("llama"), ["the cat sees the dog"], [Head(0, 1), Head(2, 3)])
    path = tmp_path / "notebook.html"
    view = show_attention(found)._repr_html_() + show_attention(found)._repr_html_()
    path.write_text(f'<!doctype html><meta charset="utf-8">{view}', encoding="utf-8")
    page, said, asked = look(path)
    until(page, "document.querySelectorAll('.cs-attention canvas').length >= 12")
    assert page.locator("h4", has_text="with L0H1, L2H3 off").count() == 2
    assert (said, asked) == ([], [])
