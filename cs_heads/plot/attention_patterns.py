"""Attention patterns of heads: interactive by CircuitsVis without a network, and as pictures for print."""

from __future__ import annotations

import gzip
from base64 import b64encode
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from importlib.resources import files
from io import BytesIO
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.attention import HeadAttention, PromptAttention
from cs_heads.arguments import check_integer, check_path
from cs_heads.plot import style
from cs_heads.plot.head_markers import head_looks, name_heads, same_looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Tokens of a prompt that are shown; the size of a page grows with their square.
MAX_TOKENS = 96
_NUMBERS = count()
# Stands in a view for the element that it is drawn into.
_NAME = "cs-heads-view"
# Tokens that the picture of the last one has room for on a page.
_MAX_ROWS = 32
# Patterns side by side.
_MAX_ACROSS = 5
# Inches beside the first pattern, for its tokens.
_LABELS = 0.8


@dataclass(frozen=True)
class AttentionView:
    """Attention patterns that show themselves in a notebook and are saved as a page; neither needs the network.

    Where a page's scripts do not run, as in a notebook on GitHub, their picture (``attention``) is shown.

    Attributes:
        html: The patterns as HTML, without the script that draws them.
        patterns: What is drawn.
        title: Which prompt it is, of how many.
    """

    html: str = field(repr=False)
    patterns: HeadAttention = field(repr=False)
    title: str

    def _repr_html_(self) -> str:
        return f"{load_script()}<p>{escape(self.title)}</p>{self.html}"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, two dots for each one of the screen, and its size on the screen."""
        with style.offscreen():
            figure = style.figure_of(attention(self.patterns).flat[0])
        written, dpi = BytesIO(), style.settings()["figure.dpi"]
        figure.savefig(written, format="png", dpi=2 * dpi)
        width, height = (round(inches * dpi) for inches in figure.get_size_inches())
        return written.getvalue(), {"width": width, "height": height}

    def save(self, path: str | Path) -> None:
        """Write one HTML file that opens anywhere.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            ValueError: ``path`` is no path.
            OSError: The file cannot be written.
        """
        text = _macro("page")(self._repr_html_())
        check_path("path", path).write_text(text, encoding="utf-8")


def show_attention(patterns: HeadAttention, prompt: int = 0, *, max_tokens: int = MAX_TOKENS) -> AttentionView:
    """The patterns of all heads on one prompt, intact and beside them with the heads off, by CircuitsVis.

    Point at a head to enlarge it, on both sides at once; heads have the colors of their marks. Each is what
    ``circuitsvis.attention.attention_heads`` renders for a machine without network, but for its script of 1.3 MB, which
    is compressed (0.5 MB) and runs once per page.

    Args:
        patterns: as ``cs_heads.attention`` gives it.
        prompt: which prompt, from 0.
        max_tokens: of a longer prompt the first and the last tokens are shown, and one in place of those between
            (``PromptAttention.truncated``).

    Returns:
        A view that shows itself in a notebook.

    Raises:
        ValueError: for a prompt that is not there, or ``max_tokens`` below 3.
    """
    one = _prompt(patterns, prompt).truncated(max_tokens)
    titles = ("intact", f"with {', '.join(map(str, patterns.off))} off")
    runs = []
    for title, weights in zip(titles, _runs(one), strict=False):
        drawn = np.round(weights.astype(float), 4).tolist()
        _, call = _by_circuitsvis(drawn, list(map(_visible, one.tokens)), list(map(str, patterns.heads)))
        name = f"cs-heads-attention-{next(_NUMBERS)}-{abs(hash(one.ids)) % 10**6}"
        runs.append((title, name, call.replace(_NAME, name)))
    looks = {str(head): [look.color, style.letter_on(look.color)] for head, look in head_looks(patterns.heads).items()}
    return AttentionView(
        str(_macro("views")(looks, runs)),
        replace(patterns, prompts=(one,)),
        f"prompt {prompt + 1} of {len(patterns.prompts)}: {shorten(one.prompt, 100, placeholder=' …')}",
    )


def _by_circuitsvis(attention: list[Any], tokens: list[str], names: list[str]) -> tuple[str, str]:
    """The script that CircuitsVis puts before a view, and the call that draws the view into the element ``_NAME``."""
    from circuitsvis.attention import attention_heads

    # The source of its own for a machine without network: what it shows by itself first asks for one.
    html = attention_heads(attention, tokens, attention_head_names=names).local_src
    name = html.split('"', 2)[1]
    script = html[html.index(">", html.index("<script")) + 1 : html.rindex("</script>")]
    at = script.index(f'"{name}"')
    at = script.rindex("CircuitsVis.render(", 0, at)
    # A token that reads as a tag would end the script.
    return script[:at], script[at:].replace(name, _NAME).replace("<", "\\u003c").strip()


@cache
def load_script() -> str:
    """The script of CircuitsVis as it is put into a page, compressed: views on the page wait for it."""
    source, _ = _by_circuitsvis([[[1.0]]], ["."], ["."])
    together = files("cs_heads.plot").joinpath("attention.js").read_text(encoding="utf-8")
    packed = b64encode(gzip.compress(source.rsplit("//# sourceMappingURL", 1)[0].encode(), mtime=0)).decode()
    return str(_macro("script")(packed, together))


def _macro(name: str) -> Any:
    """One of ``attention.html.j2``, which returns HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    html = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return getattr(html.get_template("attention.html.j2").module, name)


@style.styled
def attention(patterns: HeadAttention, prompt: int = 0) -> Any:
    """Draw every head's pattern on one prompt: queries down, keys across; above intact, below with the heads off.

    Black is all of a query's attention, white none. The picture is as wide as a column or a page, with at most five
    heads side by side and others below; where a prompt is too long to name every token, every second, third, ... is
    named.

    Args:
        patterns: as ``cs_heads.attention`` gives it.
        prompt: which prompt, from 0.

    Returns:
        The array of axes ``[run, head]``.

    Raises:
        ValueError: for a prompt that is not there.
    """
    one = _prompt(patterns, prompt)
    runs = _runs(one)
    labels = [style.safe_text(_visible(token), 16) for token in one.tokens]
    n_heads = len(patterns.heads)
    down = -(-n_heads // _MAX_ACROSS)
    across = -(-n_heads // down)
    needed = min(2.5, max(1.15, 0.11 * len(labels)))  # inches for the titles, and for a line per token
    width = style.width_for(_LABELS + needed * across)
    side = (width - _LABELS) / across
    shown = range(0, len(labels), int(-(-len(labels) * 0.11 // side)))
    figure = style.new_figure(width, 0.4 + (0.7 + (side + 0.2) * len(runs)) * down)
    axes = np.empty((len(runs), n_heads), dtype=object)
    for (row, column), ax in np.ndenumerate(figure.subplots(down * len(runs), across, squeeze=False)):
        run, number = row % len(runs), row // len(runs) * across + column
        if number >= n_heads:
            ax.remove()
            continue
        axes[run, number] = ax
        ax.imshow(runs[run][number], cmap="Greys", vmin=0, vmax=1)
        ax.set_xticks(shown, [labels[at] for at in shown] if run == len(runs) - 1 else [], rotation=90)
        ax.set_yticks(shown, [labels[at] for at in shown] if column == 0 else [])
        head = patterns.heads[number]
        ax.set_title(f"{head}, off" if run else str(head))
        with same_looks(patterns.heads):
            name_heads(ax, [head], "title")
    figure.supxlabel("key", fontsize=8)
    figure.supylabel("query", fontsize=8)
    return axes


@style.styled
def last_token(
    patterns: HeadAttention, prompt: int = 0, ax: Axes | None = None, *, max_tokens: int = _MAX_ROWS
) -> Axes:
    """Draw where the last token of one prompt looks: tokens down, heads across, each intact and with the heads off.

    The last token is where the answer is read. Its attention to a token is the darkness of the square; a tenth or
    more is written in it, as a percentage.

    Args:
        patterns: as ``cs_heads.attention`` gives it.
        prompt: which prompt, from 0.
        ax: axes to draw on; None: those of a new figure.
        max_tokens: of a longer prompt those tokens are drawn that get the most attention, in their order, and below
            them what the others get together.

    Returns:
        The axes.

    Raises:
        ValueError: for a prompt that is not there, or no tokens.
    """
    check_integer("max_tokens", max_tokens, 1)
    one = _prompt(patterns, prompt)
    runs = _runs(one)
    shares = np.stack([weights[:, -1] for weights in runs], axis=1).reshape(-1, len(one.tokens)).T
    columns = ["intact", "off"][: len(runs)] * len(patterns.heads)
    names = [style.safe_text(_visible(token), 16) for token in one.tokens]
    if len(names) > max_tokens:
        kept = np.sort(np.argsort(-shares.max(axis=1), kind="stable")[:max_tokens])
        others = shares.sum(axis=0) - shares[kept].sum(axis=0)
        names = [*(names[at] for at in kept), f"[{len(names) - max_tokens} others]"]
        shares = np.vstack([shares[kept], others])
    ax = style.new_axes(style.width_for(1.0 + 0.22 * len(columns)), 1.1 + 0.15 * len(names)) if ax is None else ax
    image = ax.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.1:
            color = style.letter_on(image.to_rgba(share))
            ax.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=color, fontsize=7)
    each = len(runs)
    for border in range(1, len(patterns.heads)):
        ax.axvline(border * each - 0.5, color="0.6", linewidth=0.6)
    ax.set_yticks(range(len(names)), names)
    ax.set_xticks(range(len(columns)), columns, rotation=90 if each > 1 else 0)
    above = ax.secondary_xaxis("top")
    middles = [(number + 0.5) * each - 0.5 for number in range(len(patterns.heads))]
    above.set_xticks(middles, list(map(str, patterns.heads)))
    above.tick_params(length=0, pad=8)
    name_heads(ax, patterns.heads, "x", each)
    ax.set_ylabel("token looked at")
    return ax


def _runs(one: PromptAttention) -> list[Float[np.ndarray, "head query key"]]:
    return [weights for weights in (one.intact, one.ablated) if weights is not None]


def _prompt(patterns: HeadAttention, prompt: int) -> PromptAttention:
    return patterns.prompts[check_integer("prompt", prompt, 0, len(patterns.prompts) - 1)]


def _visible(token: str) -> str:
    """Spaces and ends of lines as signs: a token is more than its letters."""
    return token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·") or "∅"
