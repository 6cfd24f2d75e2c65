"""What is known of found heads: a card for each, in figures beside chance and in words, and one for all."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from cs_heads.analysis.intervals import difference_interval, drop_interval
from cs_heads.analysis.result import Result
from cs_heads.drawable import Drawable
from cs_heads.record import Record, Saved
from cs_heads.units import Unit

if TYPE_CHECKING:
    from cs_heads.analysis.interactions import Interactions


@dataclass(frozen=True, eq=False)
class Figure(Record):
    """One figure of a head, beside chance.

    Attributes:
        name: What it is of: see ``HeadCards``.
        value: Its mean over examples.
        low: Lower end of its 95 % interval, which is corrected for the number of heads and of figures of its kind; NaN
            of habits, *copying* and *agreement*, which are one number.
        high: Upper end.
        chance: What must be exceeded: see ``HeadCards``.
        percentile: Share of other heads that have less, in absolute numbers.
        controls: The same on control tasks (NaN: not measured).
        written: Of what is looked at, the share of what the head writes that it reads from there; it may be below 0,
            or above 1 where the rest writes against it. NaN where what it writes is not clear.
        clear: Whether its interval leaves out zero, where it has one, and its mean is beyond chance. None is clear of a
            head whose total effect is not, but for its Shapley value: whether the interval leaves out zero, and all
            heads together take more than chance.
    """

    name: str
    value: float
    low: float
    high: float
    chance: float = nan
    percentile: float = nan
    controls: float = nan
    written: float = nan
    clear: bool = False


@dataclass(frozen=True, eq=False)
class HeadCard(Record):
    """What is known of one head.

    Attributes:
        head: The head.
        figures: Its figures.
        promotes: Tokens whose logits it raises most on this task, first to last; empty where *writes* (of other units
            *direct*) is not clear, or few answers are among them and those of ``demotes``.
        demotes: Tokens whose logits it lowers most; empty as ``promotes``.
        moves: Pairs of a token read and the one it then writes most, among the task's words; empty where what it makes
            of tokens by themselves does not agree with what it does on the task, and where neither *writes* nor
            *direct* is clear.
        matches: Pairs of a query and the key it then attends to most; empty as ``moves``.
        strip: By token, or span of tokens, of the prompt that ``HeadCards`` shows, what the answer loses with the head
            off there alone.
        reads: By the same what the head writes into the answer that it reads from there; empty where not known.
        words: One or two sentences, from figures that are clear; "unclear" where none is.
    """

    head: Unit
    figures: tuple[Figure, ...]
    promotes: tuple[str, ...]
    demotes: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    matches: tuple[tuple[str, str], ...]
    strip: tuple[float, ...]
    reads: tuple[float, ...]
    words: str

    def __getitem__(self, name: str) -> Figure:
        """A figure by its name."""
        return next(figure for figure in self.figures if figure.name == name)


@dataclass(frozen=True, eq=False)
class Pair(Record):
    """Two heads that surely take more together than each by itself, or less.

    Attributes:
        first: One of them.
        second: The other.
        value: How much more, as ``Interactions.pairs`` says it.
        low: Lower end of its 95 % interval, corrected for the number of pairs.
        high: Upper end.
        kind: ``backup`` where they take more than the sum, ``overlap`` where less.
    """

    first: str
    second: str
    value: float
    low: float
    high: float
    kind: str


@dataclass(frozen=True, eq=False, repr=False)
class HeadCards(Saved, Result, Drawable, picture="head_cards"):
    """What heads do on a task: a card for each, and one for all.

    Figures are in nats of the right answer's first token less the best wrong one's (*total*, *at the last token*,
    *elsewhere*, *writes*, *direct*, *through others*), shares of attention (from the last token of the task's prompts;
    habits on random tokens), the *copying* of the OV circuit from -1 to 1, *entropy* in nats, *Shapley value*, a
    share of right answers, and the *agreement* of either circuit with the task, a correlation.

    Chance is corrected for the number of heads. Of 100 draws of heads at random at most 5 have a claim: 2.5 on cards of
    heads, 2.5 on that of all. For ablations it is what random heads of the same layers reach, by Student's t: one head
    by some 20 at most, all together by 20 sets. For *writes*, looks, habits and copying it is what no more than 5 of
    100 draws of other heads of the model have in any of these figures (``bounds_of_others``), and for shares of
    attention .25, for copying .5 at least; for agreement .5. Nothing else is said of a head whose total effect is not
    clear: so of heads without effect nothing is.

    Attributes:
        cards: Of each head.
        tokens: A typical prompt, whose tokens are ablated one at a time; of a long one spans of tokens. Of the half of
            prompts of middle length it is the one of which the total effects of the heads are nearest to their means.
        pairs: Two heads that are surely a ``backup`` or ``overlap``, and how much.
        least: The fewest heads that do nine tenths of the harm of all. Of more than six heads, and where all together
            take nothing beyond chance, there are neither.
        harm: What all heads take of right answers, and ``least`` where there is one; of more than six heads nothing.
        words: What they do together.
        provenance: Model and task.
        spent: Example-evaluations.
        notes: Examples that were left out, and what was not measured.
    """

    _format, _version = "head cards", 2

    cards: tuple[HeadCard, ...]
    tokens: tuple[str, ...]
    pairs: tuple[Pair, ...]
    least: tuple[Unit, ...]
    harm: tuple[Figure, ...]
    words: str

    def to_frame(self) -> pd.DataFrame:
        """One row per head and figure."""
        return pd.DataFrame(
            [{"head": str(card.head), **vars(figure)} for card in self.cards for figure in card.figures]
        )

    def __repr__(self) -> str:
        said = [f"{card.head}: {card.words}" for card in self.cards]
        cost = f"{self.spent:,} example-evaluations"
        return "\n".join([f"HeadCards({len(said)} heads, {cost})", *said, *filter(None, [self.words, *self.notes])])

    def _repr_html_(self) -> str:
        # By name: pages are above results.
        return str(import_module("cs_heads.report.cards").cards_html(self))


def figure_of(
    name: str, values: Float[np.ndarray, " example"], outside: float, others: Float[np.ndarray, " other"], chance: float
) -> Figure:
    """A mean and its interval, beside what others have.

    Args:
        name: What it is of.
        values: By example; where there is one alone there is no interval.
        outside: What the interval leaves out.
        others: The absolute numbers of others; none where none are known.
        chance: What must be exceeded.
    """
    mean, low, high = float(values.mean()), nan, nan
    if len(values) > 1:
        mean, low, high = difference_interval(values, outside)
    percentile = float((np.abs(others) < abs(mean)).mean()) if len(others) else nan
    return Figure(name, mean, low, high, chance, percentile)


def together_figures(found: Interactions | None, chance: float) -> dict[str, Any]:
    """Of ``HeadCards`` the ``harm`` of all heads, and where it is beyond chance ``pairs`` and ``least``.

    Args:
        found: As ``interactions`` gives it (None: not measured).
        chance: What all must take, at least; NaN where nothing tells.
    """
    if found is None:
        return {"harm": (), "pairs": (), "least": ()}
    beyond = found.is_beyond(chance)
    rows = {"all": -1} | ({"least": found.least_row} if beyond else {})
    pairs = [Pair(*row) for row in found.pairs().itertuples(index=False, name=None)]
    return {
        "harm": tuple(
            Figure(name, *drop_interval(found.drops[row]), chance, clear=beyond) for name, row in rows.items()
        ),
        "pairs": tuple(pair for pair in pairs if beyond and pair.kind),
        "least": found.least if beyond else (),
    }
