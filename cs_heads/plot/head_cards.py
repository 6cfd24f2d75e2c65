"""Head cards as a figure: where the heads lie, what each loses by which way, and at which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.head_cards import HeadCards
from cs_heads.plot import guides, style
from cs_heads.plot.bars import Bars, draw_bars
from cs_heads.plot.head_map import draw_map
from cs_heads.plot.head_markers import mark_heads, name_heads
from cs_heads.units import Grid, Head

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Letters of a token of the strip.
_LETTERS = 12


@style.styled
def head_cards(cards: HeadCards) -> Figure:
    """Draw head cards: a map of the heads, their effects by way, and what is lost with each off at one token alone.

    Other units than heads are on no map.

    Blue: the answer loses without the head; orange: it gains. All in nats.

    Args:
        cards: as ``explain`` gives them.

    Returns:
        The figure.
    """
    names = [str(card.head) for card in cards.cards]
    figure = style.new_figure(style.PAGE, 2.6 + 0.5 * len(names))
    places = figure.add_gridspec(2, 2, width_ratios=[1, 1.3])
    heads = [card.head for card in cards.cards]
    if isinstance(heads[0], Head):
        at, grid = figure.add_subplot(places[0, 0]), Grid(*cards.provenance["model"]["grid"])
        values = np.zeros(grid.shape)
        values[tuple(np.transpose([(head.layer, head.index) for head in heads]))] = [
            card["total"].value for card in cards.cards
        ]
        draw_map(at, grid, values, float(np.abs(values).max()) or 1.0, label="nats", n_lines=0)
        at.set(title="total effect", xticks=guides.some_of(grid.n_units, 4))
        mark_heads(at, grid, {head: number for number, head in enumerate(heads, start=1)})
        bars = figure.add_subplot(places[0, 1])
    else:
        bars = figure.add_subplot(places[0, :])
    strip = figure.add_subplot(places[1, :])
    ways = ("total", "direct", "through others")
    shown = [[card[way] for card in cards.cards] for way in ways]
    draw_bars(
        bars,
        [
            Bars(way, [one.value for one in each], [(one.low, one.high) for one in each], number)
            for number, (way, each) in enumerate(zip(ways, shown, strict=True))
        ],
        horizontal=True,
    )
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    name_heads(bars, heads)
    bars.axvline(0, color="0.7", linewidth=0.6, zorder=0)
    bars.set(xlabel="the answer loses (nats)")
    bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(ways), title="by which way")
    lost = np.array([card.strip for card in cards.cards])
    limit = float(np.abs(lost).max()) or 1.0
    image = strip.imshow(lost, cmap=style.signed_colors(), vmin=-limit, vmax=limit, aspect="auto")
    strip.set_yticks(range(len(names)), names)
    guides.turned_names(strip, [style.safe_text(token.strip() or "␣", _LETTERS) for token in cards.tokens])
    strip.set_title("off at one token, or span, alone")
    guides.color_bar(strip, image, "nats")
    return figure
