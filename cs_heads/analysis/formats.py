"""Heads that serve the form of a question, and heads that serve what it asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import pandas as pd
from typing_extensions import Unpack

from cs_heads.analysis.columns import Column, Judged, in_role, unseen_columns
from cs_heads.analysis.drops import TaskDrops, measure_drops
from cs_heads.analysis.found_heads import Found, heads_of, model_of, sets_of
from cs_heads.analysis.losses import TaskDrop
from cs_heads.analysis.result import Result
from cs_heads.analysis.universal import is_universal
from cs_heads.arguments import check_one_of, check_seed
from cs_heads.cluster import ModelLike
from cs_heads.drawable import Drawable
from cs_heads.progress import one_bar
from cs_heads.settings import SettingsArguments
from cs_heads.units import as_heads

Kind = Literal["format", "knowledge", "full form", "some letters", "universal", "control", "none", "unclear"]

_FORMS = ("letters", "full", "control")
MIN_LOST = 0.25
"""Share of a score above chance that must be lost for a set to count as broken; its drop's interval must exclude 0."""


@dataclass(frozen=True, eq=False, repr=False)
class FormatHeads(Result, Drawable, picture="format_heads"):
    """What each candidate takes from questions answered by a letter, and from questions answered in full.

    ``drops.roles`` say in which form a set of questions is: ``letters``, ``full`` or ``control``. A set of questions is
    broken where a candidate takes ``MIN_LOST`` of its score above chance or more and some for certain, and spared where
    the interval of the loss ends below that; else, or where its baseline is too low, it is undecided.

    Attributes:
        drops: What each candidate takes from each set of questions.
        spent: Example-evaluations.
        provenance: That of the drops.
        notes: Those of the drops.
    """

    _written = ("drops", "kinds", "spent", "provenance", "notes")

    drops: TaskDrops

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each candidate."""
        return {found: self.kind(found) for found in self.drops.drops}

    def broken(self, found: str, form: str) -> tuple[str, ...]:
        """The sets of one form that a candidate breaks.

        Args:
            found: Name of the candidate.
            form: ``"letters"``, ``"full"`` or ``"control"``.

        Returns:
            Names of the sets, in the order in which they were given; empty: it breaks none.

        Raises:
            ValueError: A candidate that was not measured, or another form.
        """
        check_one_of("form", form, _FORMS)
        return tuple(name for name, drop in self._of(found, form).items() if _is_broken(drop))

    def kind(self, found: str) -> Kind:
        """What a candidate serves.

        A control that is broken decides first: ``universal`` where most sets are broken too, by the rule of
        ``analysis.universal.is_universal``, else ``control``. Then ``format``: all sets in letters and none in full;
        ``knowledge``: sets in both forms; ``full form``: sets in full alone; ``some letters``: a part of the sets in
        letters alone; ``none``: no set. ``unclear`` where undecided sets leave more than one of these open, as they
        do where both forms are broken and there is no control. With one set in letters ``format`` says no more
        than that set does: that letters as such are meant takes two.

        Args:
            found: Name of the candidate.

        Raises:
            ValueError: A candidate that was not measured.
        """
        kinds = set()
        for letters, full in product(self._states(found, "letters"), self._states(found, "full")):
            controls = self._states(found, "control")
            if "control" not in self.drops.roles.values():
                # The form that is spared stands in for a control.
                controls = {"none"} if "none" in (letters, full) else {"none", "some"}
            kinds |= {self._kind(found, letters, full, control) for control in controls}
        return kinds.pop() if len(kinds) == 1 else "unclear"

    def _kind(self, found: str, letters: str, full: str, control: str) -> Kind:
        if control != "none":
            left = {form: [1 - drop.loss for drop in self._of(found, form).values()] for form in _FORMS}
            tasks = left["letters"] + left["full"]
            return "universal" if any(is_universal(share, tasks) for share in left["control"]) else "control"
        if full != "none":
            return "full form" if letters == "none" else "knowledge"
        return "format" if letters == "all" else "some letters" if letters == "some" else "none"

    def _states(self, found: str, form: str) -> set[str]:
        """How many of the sets of one form may be broken: none, some, all."""
        drops = self._of(found, form).values()
        least = sum(map(_is_broken, drops))
        most = sum(not _is_spared(drop) or _is_broken(drop) for drop in drops)
        return {"none" if n == 0 else "all" if n == len(drops) else "some" for n in range(least, most + 1)}

    def _of(self, found: str, form: str) -> dict[str, TaskDrop]:
        """What a candidate takes from each set of one form."""
        check_one_of("found", found, self.drops.drops)
        return {name: drop for name, drop in self.drops.drops[found].items() if self.drops.roles[name] == form}

    def to_frame(self) -> pd.DataFrame:
        """One row per (candidate, set): kind, form, score, drop and loss, and whether the set is broken."""
        frame = self.drops.to_frame().rename(columns={"role": "form"})
        frame.insert(2, "kind", [self.kind(found) for found in frame["found"]])
        return frame.assign(broken=[_is_broken(drop) for row in self.drops.drops.values() for drop in row.values()])

    def _table(self) -> pd.DataFrame:
        table = self.drops.matrix()
        table.insert(0, "kind", [self.kinds[str(found)] for found in table.index])
        return table


@one_bar("formats")
def format_heads(
    model: ModelLike | None,
    letters: Sequence[Judged],
    full: Sequence[Judged],
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    controls: Sequence[Judged] | None = None,
    seed: int = 0,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> FormatHeads:
    """Tell heads that serve the letters of multiple choice from heads that serve the knowledge asked for.

    Bair et al. (arXiv 2603.03335) show the accuracy of WMDP, MMLU and general tasks with single heads off: in small
    Llamas one head of layer 0 takes all sets in letters to chance and leaves the others, which is a ``format`` head
    here. Costs ``n × (1 + candidates)`` example-evaluations per set at most.

    Args:
        model: A model, the name of one, or a ``Cluster``; None: tasks are experiments (see ``cs_heads.analysis``).
        letters: Sets of questions that are answered by a letter (WMDP and MMLU).
        full: Sets that are answered by the answer itself, the same questions or others (HellaSwag, BoolQ and ARC in
            their usual form); ``tasks.forms`` turns a set into both.
        heads: Heads or a ranking, each head of which is ablated alone, or rankings and lists of heads by name.
        k: Heads taken of a ranking (None: as many as it was searched for).
        controls: Tasks of other capabilities (None: none), which tell heads of both forms from heads of everything.
        seed: As in ``specificity``.
        n: Examples of every set at most.
        settings: As of ``Experiment``.

    Returns:
        What each candidate takes from each set of questions; ``kind(name)`` says what it serves, as ``"format"`` or
        ``"knowledge"``.

    Raises:
        ValueError: What ``specificity`` refuses, a form without questions, or no candidate. Raised before the model
            runs.
    """
    check_seed(seed)
    forms = in_role("letters", letters, "letters"), in_role("full", full, "full")
    if not all(forms):
        got = " and ".join(str(len(form)) for form in forms)
        raise ValueError(f"letters and full must hold one set of questions or more, got {got}")
    asked = [*forms[0], *forms[1], *in_role("control", controls or ())]
    if not isinstance(heads, Mapping):
        as_heads("heads", heads)
    with unseen_columns(model, asked, heads, n=n, seed=seed, settings=settings) as columns:
        judged = columns[0].parts[0]
        if isinstance(heads, Mapping):
            named = sets_of(judged, heads, k)
        else:
            named = {str(head): (head,) for head in heads_of(judged.grid, heads, k, model=model_of(judged))}
        if not named:
            raise ValueError("heads must name one head or more")
        return measure_formats(columns, named, seed)


def measure_formats(columns: Sequence[Column], candidates: Mapping[str, Found], seed: int = 0) -> FormatHeads:
    """``format_heads`` on columns whose roles are the forms.

    Args:
        columns: The sets of questions.
        candidates: Sets of heads by name.
        seed: Draws intervals.
    """
    drops = measure_drops(columns, candidates, {}, seed)
    return FormatHeads(drops, spent=drops.spent, provenance=drops.provenance, notes=drops.notes)


def _is_broken(drop: TaskDrop) -> bool:
    return drop.loss >= MIN_LOST and drop.interval[0] > 0


def _is_spared(drop: TaskDrop) -> bool:
    return not _is_broken(drop) and drop.loss_interval[1] < MIN_LOST
