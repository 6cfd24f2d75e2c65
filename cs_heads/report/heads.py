"""The heads of a ranking on a page: as chips, as a table, and on a map that is pointed at."""

from __future__ import annotations

from markupsafe import Markup

from cs_heads import plot
from cs_heads.analysis.head_cards import HeadCards
from cs_heads.plot.head_map import heads_caption
from cs_heads.ranking import TERMS, HeadRanking
from cs_heads.report import html

_COLUMNS = ("rank", "importance", "interval", "z", "claimed", "frequency", "controls")


def head_chips(ranking: HeadRanking, k: int) -> Markup:
    """The heads with their marks, what each takes, and whether it is claimed."""
    heads = [
        html.mark(head) | {"importance": ranking.importance[head.layer, head.index], "claimed": head in ranking.claims}
        for head in ranking.listed(k)
    ]
    terms = {"number": f"importance ({_loss_of(ranking)})"} | ({"✓": TERMS["claimed"]} if ranking.claims else {})
    return html.stacked(html.macro("chips", heads, "the heads found"), html.macro("defined", terms))


def interfering_note(ranking: HeadRanking) -> tuple[str, ...]:
    """What is said of heads whose removal helps the task; nothing where the search saw none."""
    gains = ", ".join(f"{head} ({ranking.importance[head.layer, head.index]:+.3f})" for head in ranking.interfering)
    if not gains:
        return ()
    return (f"interfering: the task gains without {gains}, as the search saw it; how much, unseen examples must say",)


def heads_table(ranking: HeadRanking, k: int) -> Markup:
    """The first heads, and others that are claimed, in the order of map and chips, with what else is known of each."""
    facts = _facts(ranking)
    rows = [[html.mark(head), *facts[str(head)].values()] for head in ranking.listed(k)]
    terms = {**TERMS, "claimed": f"✓ {TERMS['claimed']}"}
    terms["importance"] = f"{_loss_of(ranking)}; positive: the task does worse without the head"
    others = ", and others that are claimed" if ranking.claimed_beyond(k) else ""
    return html.table(
        f"The first heads{others}, the most important first.", ["head", *next(iter(facts.values()))], rows, 1, terms
    )


def head_map(
    ranking: HeadRanking,
    k: int,
    alt: str,
    caption: str = "",
    *,
    verdict: str | None = None,
    cards: HeadCards | None = None,
) -> Markup:
    """The map of all heads, whose squares tell a reader who points at them what is known of each."""
    words = {} if cards is None else {str(card.head): card.words for card in cards.cards}
    shared, told = set(map(str, ranking.shared)), {}
    interfering = set(map(str, ranking.interfering))
    for name, facts in _facts(ranking).items():
        known = {key: "yes" if value == "✓" else value for key, value in facts.items() if value not in ("", "–")}
        lines = [name, *(f"{key} {value}" for key, value in known.items())]
        lines += ["shared: controls need it too"] if name in shared else []
        lines += ["interfering: the task gains without it"] if name in interfering else []
        lines += [words[name]] if name in words else []
        told[name] = "\n".join(lines)
    drawn = plot.heads(ranking, k, verdict=verdict)
    return html.picture(drawn, alt, caption or heads_caption(ranking, k), ranking.grid, told)


def _loss_of(ranking: HeadRanking) -> str:
    """What an importance is of: scores are from 0 to 1."""
    lost = ranking.unit.endswith(" lost")
    return f"{ranking.unit} with the head off, of 1 at most" if lost else f"in {ranking.unit}"


def _facts(ranking: HeadRanking) -> dict[str, dict[str, str]]:
    """What is known of each head by its name, in order, as texts."""
    forms = {"rank": "{}", "importance": "{:+.3f}", "z": "{:.1f}", "frequency": "{:.2f}", "controls": "{:+.3f}"}
    facts: dict[str, dict[str, str]] = {}
    for row in ranking.to_frame().to_dict("records"):
        known = {name: form.format(row[name]) for name, form in forms.items() if name in row}
        known |= {"interval": html.interval(row["low"], row["high"])} if "low" in row else {}
        known |= {"claimed": "✓" if row["claimed"] else ""} if "claimed" in row else {}
        facts[row["head"]] = {name: known[name] for name in _COLUMNS if name in known}
    return facts
