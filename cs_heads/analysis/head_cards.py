"""What is known of found heads: a card for each, in figures beside chance and in words, and one for all."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import nan

import pandas as pd

from cs_heads.analysis.result import Result
from cs_heads.drawable import Drawable
from cs_heads.record import Record, Saved
from cs_heads.units import Unit


@dataclass(frozen=True, eq=False)
class Figure(Record):
    """One figure of a head, beside chance.

    Attributes:
        name: What it is of: see ``HeadCards``.
        value: Its mean over examples.
        low: Lower end of its 95 % interval, which is corrected for the number of heads and of figures of its kind; NaN
            of habits and *copying*, which are one number.
        high: Upper end.
        chance: What must be exceeded: see ``HeadCards``.
        percentile: Share of other heads that have less, in absolute numbers.
        controls: The same on control tasks (NaN: not measured).
        written: Of what is looked at, the share of what the head writes that it reads from there; it may be below 0,
            or above 1 where the rest writes against it. NaN where what it writes is not clear.
        clear: Whether its interval leaves out zero and its mean is beyond chance, of the total effect and its parts;
            of other figures whether the whole interval is. None is clear of a head whose total effect is not.
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
        promotes: Tokens whose logits it raises most on this task, first to last.
        demotes: Tokens whose logits it lowers most.
        moves: Pairs of a token read and the one it then writes most, among the task's words; empty where what it makes
            of tokens by themselves does not agree with what it does on the task.
        matches: Pairs of a query and the key it then attends to most; empty where that does not agree.
        strip: By token, or span of tokens, of the prompt that ``HeadCards`` shows, what the answer loses with the head
            off there alone.
        words: One or two sentences, from figures that are clear; "unclear" where none is.
    """

    head: Unit
    figures: tuple[Figure, ...]
    promotes: tuple[str, ...]
    demotes: tuple[str, ...]
    moves: tuple[tuple[str, str], ...]
    matches: tuple[tuple[str, str], ...]
    strip: tuple[float, ...]
    words: str

    def __getitem__(self, name: str) -> Figure:
        """A figure by its name."""
        return next(figure for figure in self.figures if figure.name == name)


@dataclass(frozen=True, eq=False, repr=False)
class HeadCards(Saved, Result, Drawable, picture="head_cards"):
    """What heads do on a task: a card for each, and one for all.

    Figures are in nats of the right answer's first token less the best wrong one's (*total*, *at the last token*,
    *elsewhere*, *writes*, *direct*, *through others*), shares of attention (from the last token of the task's prompts;
    habits on random tokens), the *copying* of the OV circuit from -1 to 1, *entropy* in nats, and *Shapley value*, a
    share of right answers.

    Chance is what 95 of 100 other heads of the model do not exceed, and for shares of attention .25, for copying .5 at
    least. For ablations it is what no more than 5 of 100 sets of as many random heads of the same layers reach, by
    Student's t, corrected for the number of heads. Nothing else is said of a head whose total effect is not clear: so
    of heads without effect nothing is.

    Attributes:
        cards: Of each head.
        tokens: A prompt of typical length, whose tokens are ablated one at a time; of a long one spans of tokens.
        pairs: Two heads, and whether they are a ``backup`` or ``overlap``, where that is certain.
        least: The fewest heads that do nine tenths of the harm of all. Of more than six heads, and where all together
            take nothing beyond chance, there are neither.
        words: What they do together.
        provenance: Model and task.
        spent: Example-evaluations.
        notes: Examples that were left out, and what was not measured.
    """

    _format = "head cards"

    cards: tuple[HeadCard, ...]
    tokens: tuple[str, ...]
    pairs: tuple[tuple[str, ...], ...]
    least: tuple[Unit, ...]
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
