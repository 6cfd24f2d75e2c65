"""Head cards as HTML, for notebooks and pages."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from markupsafe import Markup

from cs_heads.analysis.head_cards import Figure, HeadCard, HeadCards, Pair
from cs_heads.report import html

_COLUMNS = ("value", "interval", "chance", "more than", "on controls", "of writes", "clear")
_TERMS = {
    "interval": "corrected for the number of heads, and of figures of its kind",
    "chance": "must be exceeded: what random heads take, or what other heads have",
    "more than": "share of other heads that have less",
    "of writes": "share of what the head writes that it reads from there",
    "clear": "✓ the head matters here, and the figure lies beyond chance; of a Shapley value: "
    "its interval leaves out 0, and all heads together take more than chance",
}


def cards_html(cards: HeadCards) -> Markup:
    """The cards one below the other: words, strips of a prompt, tokens and pairs, all figures, folded; then the set.

    Args:
        cards: as ``explain`` gives them.
    """
    shown = [_shown(card, cards) for card in cards.cards]
    named = {"all": "all", "least": f"least set: {', '.join(map(str, cards.least))}"}
    rows: list[tuple[str, Figure | Pair]] = [(named[one.name], one) for one in cards.harm]
    rows += [(f"{pair.first} and {pair.second}, beyond their sum: {pair.kind}", pair) for pair in cards.pairs]
    told = [[name, f"{one.value:+.2f}", html.interval(one.low, one.high)] for name, one in rows]
    table = html.table("", ("off together", "right answers lost", "interval"), told) if cards.least else ""
    return html.macro("cards", shown, cards.words, table, cards.notes)


def _shown(card: HeadCard, cards: HeadCards) -> dict[str, object]:
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
    strips = {
        "Off at one token, or span of tokens, alone": _strip(cards.tokens, card.strip, [o.strip for o in cards.cards]),
        "Reads what it writes from": _strip(cards.tokens, card.reads, [o.reads for o in cards.cards]),
    }
    return {
        "head": str(card.head),
        "words": card.words,
        "strips": {name: strip for name, strip in strips.items() if strip},
        "lists": {name: ", ".join(map(repr, each)) for name, each in lists.items() if each}
        | {name: ", ".join(f"{a!r} → {b!r}" for a, b in each) for name, each in pairs.items() if each},
        "table": html.table("", ("figure", *_COLUMNS), rows, 1, _TERMS),
    }


def _strip(
    tokens: Sequence[str], numbers: Sequence[float], all_heads: Sequence[Sequence[float]]
) -> list[dict[str, object]]:
    """Tokens with the colors of their numbers, the strongest that of the largest of any head; none without numbers."""
    most = max((abs(number) for each in all_heads for number in each), default=0) or 1.0
    return [
        {
            "token": token,
            "nats": number,
            "share": round(abs(number) / most, 3),
            "hue": "0, 114, 178" if number > 0 else "230, 159, 0",
        }
        for token, number in zip(tokens if numbers else (), numbers, strict=True)
    ]
