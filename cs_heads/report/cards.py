"""Head cards as HTML, for notebooks and pages."""

from __future__ import annotations

from math import isnan

from markupsafe import Markup

from cs_heads.analysis.head_cards import HeadCard, HeadCards
from cs_heads.report import html

_COLUMNS = ("value", "interval", "chance", "more than", "on controls", "of writes", "clear")
_TERMS = {
    "interval": "corrected for the number of heads, and of figures of its kind",
    "chance": "must be exceeded: what random heads take, or what 95 of 100 other heads have at most",
    "more than": "share of other heads that have less",
    "of writes": "share of what the head writes that it reads from there",
    "clear": "✓ the head matters here, and the figure lies beyond chance",
}


def cards_html(cards: HeadCards) -> Markup:
    """The cards one below the other: words, the strip of a prompt, tokens and pairs, and all figures, folded.

    Args:
        cards: as ``explain`` gives them.
    """
    most = max((abs(lost) for card in cards.cards for lost in card.strip), default=0) or 1.0
    shown = [_shown(card, cards.tokens, most) for card in cards.cards]
    return html.macro("cards", shown, cards.words, cards.notes)


def _shown(card: HeadCard, tokens: tuple[str, ...], most: float) -> dict[str, object]:
    rows = [
        [
            one.name,
            f"{one.value:.2f}",
            html.interval(one.low, one.high),
            *(
                "–" if isnan(number) else f"{number:.2f}"
                for number in (one.chance, one.percentile, one.controls, one.written)
            ),
            "✓" if one.clear else "",
        ]
        for one in card.figures
    ]
    lists = {"raises most": card.promotes, "lowers most": card.demotes}
    pairs = {"reads → writes": card.moves, "from → to": card.matches}
    strip = [
        {
            "token": token,
            "lost": lost,
            "share": round(abs(lost) / most, 3),
            "hue": "0, 114, 178" if lost > 0 else "230, 159, 0",
        }
        for token, lost in zip(tokens, card.strip, strict=True)
    ]
    return {
        "head": str(card.head),
        "words": card.words,
        "strip": strip,
        "lists": {name: ", ".join(map(repr, each)) for name, each in lists.items()}
        | {name: ", ".join(f"{a!r} → {b!r}" for a, b in each) for name, each in pairs.items() if each},
        "table": html.table("", ("figure", *_COLUMNS), rows, 1, _TERMS),
    }
