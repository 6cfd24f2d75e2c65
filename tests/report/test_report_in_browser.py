"""The report, looked at in a real browser without a network."""

import shutil

import pytest

from cs_heads.analysis.attention import attention
from cs_heads.plot import show_attention
from cs_heads.report import write_report
from cs_heads.units import Head
from tests.plot.studies import made_study
from tests.report.atlases import made_atlas
from tests.waiting import HANG

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


@pytest.fixture
def look(browser):
    """Opens a file and gives the page, what it said to the console, and what it asked for beyond the file."""
    contexts = []

    def opened(path, **settings):
        context = browser.new_context(offline=True, **settings)
        context.set_default_timeout(1000 * HANG)
        contexts.append(context)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
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
    page.wait_for_function("document.querySelectorAll('.cs-attention canvas').length >= 6")
    widths = page.evaluate("[...document.images].map(image => image.complete ? image.naturalWidth : 0)")
    assert len(widths) == 8
    assert min(widths) > 0
    assert page.locator("h1").inner_text() == "Which heads does capitals on tiny rest on?"
    assert page.locator(".verdict").first.is_visible()
    assert (said, asked) == ([], [])


def test_a_page_that_complains_or_asks_the_network_would_be_seen(look, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/picture.png"><script>nothing()</script>')
    _, said, asked = look(path)
    assert asked == ["http://127.0.0.1:9/picture.png"]
    assert any("nothing is not defined" in text for text in said)


def test_the_patterns_are_painted(look, report):
    page, _, _ = look(report)
    page.wait_for_function("document.querySelectorAll('.cs-attention canvas').length >= 6")
    # A canvas that stays blank is waited for until the limit.
    page.wait_for_function(
        """[...document.querySelectorAll('.cs-attention canvas')].every(canvas => {
            const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let i = 0; i < pixels.length; i += 4) seen.add(pixels.slice(i, i + 4).join());
            return seen.size > 3;
        })"""
    )


@pytest.mark.parametrize("width", [380, 1280])
def test_nothing_is_wider_than_the_page(look, report, width):
    page, _, _ = look(report, viewport={"width": width, "height": 800})
    page.wait_for_function("document.querySelectorAll('.cs-attention canvas').length >= 6")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1400])
def test_an_atlas_fits_the_page_and_names_of_skills_stay_whole(look, tmp_path, width):
    path = write_report(made_atlas(), tmp_path / "atlas.html")
    page, said, asked = look(path, viewport={"width": width, "height": 800})
    assert (said, asked) == ([], [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(page.evaluate("[...document.images].map(image => image.naturalWidth)")) > 0
    lines = page.evaluate(
        """[...document.querySelectorAll('tbody th:first-child, td:nth-child(2)')].map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell.lastChild);
            return [cell.innerText, range.getClientRects().length];
        })"""
    )
    names = dict(lines)
    assert names["word_problems"] == names["L0H1"] == names["sums"] == 1


def luminance(color: str) -> float:
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_in_light_and_in_dark(look, report, scheme):
    """Contrast of 4.5 or more, as WCAG 2 asks."""
    page, _, _ = look(report, color_scheme=scheme)
    colors = page.evaluate(
        """['p', '.soft', '.verdict', 'figcaption', 'td', 'dt', 'pre'].map(name => {
            let place = document.querySelector('main ' + name), ink = getComputedStyle(place).color;
            while (getComputedStyle(place).backgroundColor === 'rgba(0, 0, 0, 0)') place = place.parentElement;
            return [ink, getComputedStyle(place).backgroundColor];
        })"""
    )
    for ink, ground in colors:
        light, dark = sorted(map(luminance, (ink, ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    assert (luminance(colors[0][1]) < 0.2) == (scheme == "dark")


def test_the_report_prints(look, report):
    page, _, _ = look(report)
    pdf = page.pdf()
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator(".interactive").first.is_visible()


def test_attention_of_a_model_shows_itself_as_in_a_notebook(look, load, tmp_path):
    """Two views on one page, each with the script, as a notebook has them."""
    found = attention(load("llama"), ["the cat sees the dog"], [Head(0, 1), Head(2, 3)])
    path = tmp_path / "notebook.html"
    view = show_attention(found)._repr_html_() + show_attention(found)._repr_html_()
    path.write_text(f'<!doctype html><meta charset="utf-8">{view}', encoding="utf-8")
    page, said, asked = look(path)
    page.wait_for_function("document.querySelectorAll('.cs-attention canvas').length >= 12")
    assert page.locator("h4", has_text="with L0H1, L2H3 off").count() == 2
    assert (said, asked) == ([], [])
