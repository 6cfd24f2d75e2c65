"""Sentences on heads, put together by rules from figures that clear chance; each names its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.attention import HABITS
from cs_heads.analysis.head_looks import EVERYWHERE, LOOKS
from cs_heads.analysis.intervals import drop_interval

if TYPE_CHECKING:
    from cs_heads.analysis.head_cards import Figure
    from cs_heads.analysis.interactions import Interactions

# Of a total effect, which is then said to be of one kind.
_MOST = 0.8
# What a sentence names at most.
_CLAIMS = 3

_SAID = {name: f"looks at {what}" for name, what in LOOKS.items()}
_SAID |= {f"habit: {name}": f"has the habit {name} on random tokens" for name in HABITS}
_SAID |= {name: f"looks at {name.split(': ')[1]} from every token" for name in EVERYWHERE}
_SAID |= {"copying": "copies what it reads"}


def head_in_words(
    figures: Sequence[Figure],
    promotes: Sequence[str],
    demotes: Sequence[str],
    random: str,
    *,
    others: str,
    n_placed: int | None = None,
    word: str = "head",
) -> str:
    """What a head does: its effect, by which way, and where; then what it looks at, copies and writes.

    Args:
        figures: Its figures.
        promotes: Tokens that it raises most; none where these say nothing of the answers.
        demotes: Tokens that it lowers most.
        random: What chance is by, as "random heads of the same layers"; empty where there are no others.
        others: What chance is by in figures that all heads have, as "265 other heads".
        n_placed: First examples that places in the prompt are known of; None for all.
        word: What such a unit is called.
    """
    known = {figure.name: figure for figure in figures}
    total = known["total"]
    random = f"chance by {random}: {total.chance:.2f}" if random else f"too few other {word}s tell what is chance"
    if not total.clear:
        return f"Unclear: without it the answer loses {_interval(total)} nats ({random})."
    ways = {"direct": f"what the {word} writes itself", "through others": "through later units"}
    places = {
        "at the last token": "at the last token",
        "elsewhere": "at tokens before the last",
        "at the question": "at the question",
        "at the worked examples": "at the worked examples",
    }
    changes, sign = ("loses", 1) if total.value > 0 else ("gains", -1)
    of_placed = sign * (known["at the last token"].value + known["elsewhere"].value)
    said = [f"Without it the answer {changes} {_interval(total, sign)} nats ({random})"]
    said += _most(ways, known, sign * total.value, sign)
    placed = _most(places, known, of_placed, sign)
    if placed and n_placed is not None:
        said.append(f"on the first {n_placed} examples {of_placed:.2f}")
    said += placed
    sentences = [", ".join(said)]
    does = {figure.name: "lowers what it reads" if figure.value < 0 else _SAID.get(figure.name) for figure in figures}
    claims = sorted(
        (each for each in figures if each.clear and does[each.name] and (each.value > 0 or each.name == "copying")),
        key=lambda figure: figure.chance - abs(figure.value),
    )
    told = [
        f"{does[one.name]} ({one.value:.2f}; chance by {others}: {one.chance:.2f}{_either_way(one)}"
        + (")" if isnan(one.written) else f"; {one.written:.2f} of what it writes is read there)")
        for one in claims[:_CLAIMS]
    ]
    # Of other units than heads it is not known what all others write.
    writes, by = (known["writes"], f" by {others}") if "writes" in known else (known["direct"], "")
    if writes.clear:
        way = "toward the right answer" if writes.value > 0 else "away from the right answer"
        tokens = f"writes {way}, by tokens that differ from prompt to prompt"
        if promotes:
            tokens = f"raises {_quoted(promotes)} and lowers {_quoted(demotes)}"
        bound = f"{writes.chance:.2f}{_either_way(writes)}"
        told.append(f"{tokens} ({writes.value:.2f} nats for the answer; chance{by}: {bound})")
    if told:
        sentences.append(f"It {'; '.join(told)}")
    return " ".join(f"{sentence}." for sentence in sentences)


def _most(ways: Mapping[str, str], known: Mapping[str, Figure], whole: float, sign: int) -> list[str]:
    """By which ways most of a loss goes, or of a gain, or all of it."""
    said = []
    for name, way in ways.items():
        part = sign * known[name].value if name in known and known[name].clear else 0.0
        if part >= _MOST * whole > 0:
            # As a reader sees them.
            beyond = round(part, 2) - round(whole, 2)
            share = "most of it" if beyond < 0 else "all of it and more" if beyond else "all of it"
            said.append(f"{share} {way} ({part:.2f})")
    return said


def together_in_words(found: Interactions | None, chance: float) -> str:
    """What heads do together: the harm of all, the fewest that do most of it, fillers, backups and overlaps.

    Args:
        found: As ``interactions`` gives it (None: not measured).
        chance: What all must take, at least; NaN where nothing tells.
    """
    if found is None:
        return ""
    harm = f"Together they take {_taken(found.drops[-1])} of right answers"
    if not np.isnan(chance):
        harm = f"{harm}, random sets like them {chance:.2f} at most in 39 of 40"
    if not found.is_beyond(chance):
        return f"{harm}: {'too few others tell what is' if np.isnan(chance) else 'nothing beyond'} chance."
    does = "does" if len(found.least) == 1 else "do"
    least = f"{', '.join(map(str, found.least))} {does} at least nine tenths of that"
    said = [f"{harm}; {least}: {_taken(found.drops[found.least_row])}."]
    values = found.shapley()
    fillers = [
        f"{row['head']} ({row['shapley']:.2f}, {row['low']:.2f} to {row['high']:.2f})"
        for row in values.to_dict("records")
        if row["low"] <= 0
    ]
    if fillers:
        said.append(f"That these add to the others is not certain (Shapley value): {', '.join(fillers)}.")
    pairs = found.pairs().sort_values("beyond the sum", key=abs, ascending=False)
    for kind, does in (("backup", "back each other up"), ("overlap", "overlap")):
        of_kind = list(pairs[pairs["kind"] == kind].itertuples(index=False, name=None))
        if of_kind:
            told = ["{} and {} ({:+.2f}, {:+.2f} to {:+.2f})".format(*row[:-1]) for row in of_kind[:_CLAIMS]]
            more = len(of_kind) - len(told)
            named = f"{', '.join(told)}{f' and {more} more' if more else ''}"
            said.append(f"Beyond the sum of each, {named} {does}.")
    return " ".join(said)


def _taken(drops: Float[np.ndarray, " example"]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*drop_interval(drops))


def _interval(figure: Figure, sign: int = 1) -> str:
    low, high = sorted((sign * figure.low, sign * figure.high))
    value = sign * figure.value
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _either_way(figure: Figure) -> str:
    """What is said behind chance, which is of absolute numbers, where a figure is below zero."""
    return " either way" if figure.value < 0 else ""


def _quoted(tokens: Sequence[str]) -> str:
    return ", ".join(map(repr, tokens[:_CLAIMS]))
