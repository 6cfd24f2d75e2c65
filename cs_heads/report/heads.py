"""The heads of a ranking on a page: as chips, as a table, and on a map that is pointed at."""

from __future__ import annotations

from typing import Any

from cs_heads.ranking import TERMS, HeadRanking
from cs_heads.report.parts import Part, interval_of, mark_of, table_of
from cs_heads.units import Unit


def shown_heads(ranking: HeadRanking, k: int) -> list[Unit]:
    """The first heads, and others that are claimed."""
    return [*ranking.order[:k], *ranking.claimed_beyond(k)]


def chip_of(ranking: HeadRanking, head: Unit) -> Part:
    """A head with its mark, what it takes, and whether it is claimed."""
    more = {"importance": ranking.importance[head.layer, head.index], "claimed": head in ranking.claims}
    return {**mark_of(head), **more}


def interfering_note(ranking: HeadRanking) -> tuple[str, ...]:
    """What is said of heads whose removal helps the task; nothing where the search saw none."""
    gains = ", ".join(f"{head} ({ranking.importance[head.layer, head.index]:+.3f})" for head in ranking.interfering)
    if not gains:
        return ()
    return (f"interfering: the task gains without {gains}, as the search saw it; how much, unseen examples must say",)


def _terms(ranking: HeadRanking) -> dict[str, str]:
    """What is told of a head, each by its name: what the words mean for this ranking."""
    return {
        "importance": f"{_loss_of(ranking)}; positive: the task does worse without the head",
        **{name: TERMS[name] for name in ("interval", "z", "controls")},
        "claimed": f"✓ {TERMS['claimed']}",
        "frequency": TERMS["frequency"],
    }


def _loss_of(ranking: HeadRanking) -> str:
    """What an importance is of: scores are from 0 to 1."""
    lost = ranking.unit.endswith(" lost")
    return f"{ranking.unit} with the head off, of 1 at most" if lost else f"in {ranking.unit}"


def chip_terms(ranking: HeadRanking) -> dict[str, str]:
    """What stands beside the name of a head at the top of the page."""
    terms = {"number": f"importance ({_loss_of(ranking)})"}
    return terms | ({"✓": _terms(ranking)["claimed"].removeprefix("✓ ")} if ranking.claims else {})


def _facts(ranking: HeadRanking) -> dict[str, dict[str, str]]:
    """What is known of each head by its name, in order, as texts."""
    facts: dict[str, dict[str, str]] = {}
    frame: Any = ranking.to_frame()
    for row in frame.itertuples():
        known = {"rank": str(row.rank), "importance": f"{row.importance:+.3f}"}
        known |= {"interval": interval_of(row.low, row.high)} if hasattr(row, "low") else {}
        known |= {"z": f"{row.z:.1f}", "claimed": "✓" if row.claimed else ""} if hasattr(row, "z") else {}
        known |= {"frequency": f"{row.frequency:.2f}"} if hasattr(row, "frequency") else {}
        known |= {"controls": f"{row.controls:+.3f}"} if hasattr(row, "controls") else {}
        facts[row.head] = known
    return facts


def heads_table(ranking: HeadRanking, k: int) -> Part:
    """The first heads, and others that are claimed, with what else is known of each."""
    facts = _facts(ranking)
    rows = []
    for head in shown_heads(ranking, k):
        rows.append([mark_of(head), *facts[str(head)].values()])
    others = ", and others that are claimed" if ranking.claimed_beyond(k) else ""
    columns = ["head", *next(iter(facts.values()))]
    return table_of(f"The first heads{others}.", columns, rows, 1, _terms(ranking))


def told_of(ranking: HeadRanking) -> dict[str, str]:
    """What is told of each head of a map that a reader points at."""
    shared = set(ranking.shared)
    told = {}
    for name, facts in _facts(ranking).items():
        known = {key: value for key, value in facts.items() if value not in ("", "–")}
        lines = [f"{key} {'yes' if value == '✓' else value}" for key, value in known.items()]
        lines += ["shared: controls need it too"] if Unit.parse(name) in shared else []
        lines += ["interfering: the task gains without it"] if Unit.parse(name) in ranking.interfering else []
        told[name] = "\n".join([name, *lines])
    return told
