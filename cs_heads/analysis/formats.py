"""Heads that serve the form of a question, and heads that serve what it asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cs_heads.analysis.drops import Column, Found, TaskDrop, TaskDrops, heads_of, measure_drops
from cs_heads.analysis.unseen import Others, settings_of, unseen_columns
from cs_heads.heads import HeadLike
from cs_heads.tasks import Task

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["format", "knowledge", "full form", "some letters", "universal", "none"]

MIN_LOST = 0.25
"""Share of a score above chance that must be lost for a set to count as broken; its drop's interval must exclude 0."""


@dataclass(frozen=True, eq=False)
class FormatHeads:
    """What each candidate takes from questions answered by a letter, and from questions answered in full.

    ``forms`` say in which form a column of ``drops`` is: ``letters``, ``full`` or ``control``. A set of questions is
    broken where a candidate takes ``MIN_LOST`` of its score above chance or more, for certain.
    """

    drops: TaskDrops
    forms: dict[str, Literal["letters", "full", "control"]]

    def broken(self, found: str, form: str) -> tuple[str, ...]:
        """The sets of one form that a candidate breaks."""
        row = self.drops.drops[found]
        return tuple(name for name, drop in row.items() if self.forms[name] == form and _is_broken(drop))

    def kind(self, found: str) -> Kind:
        """What a candidate serves.

        ``format``: all sets in letters and none in full; ``knowledge``: sets in both forms; ``full form``: sets in
        full alone; ``some letters``: a part of the sets in letters alone; ``universal``: both forms and a control;
        else ``none``.
        """
        letters, full, control = (self.broken(found, form) for form in ("letters", "full", "control"))
        if letters and full:
            return "universal" if control else "knowledge"
        if full:
            return "full form"
        if letters:
            every = [name for name, form in self.forms.items() if form == "letters"]
            return "format" if len(letters) == len(every) else "some letters"
        return "none"

    @property
    def spent(self) -> int:
        """Example-evaluations."""
        return self.drops.spent

    def to_frame(self) -> pd.DataFrame:
        """One row a (candidate, set): its kind, the form, score, drop and share lost, and whether the set is broken."""
        frame = self.drops.to_frame().drop(columns="role")
        frame.insert(2, "kind", [self.kind(found) for found in frame["found"]])
        frame.insert(3, "form", [self.forms[name] for name in frame["task"]])
        frame["broken"] = [
            _is_broken(self.drops.drops[f][t]) for f, t in zip(frame["found"], frame["task"], strict=True)
        ]
        return frame

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        kinds = {found: self.kind(found) for found in self.drops.drops}
        return {**self.drops.to_dict(), "forms": dict(self.forms), "kinds": kinds}

    def _repr_html_(self) -> str:
        table = self.drops.matrix("share_lost")
        table.insert(0, "kind", [self.kind(str(found)) for found in table.index])
        return table.to_html(float_format="{:.3f}".format, border=0)


def measure_formats(
    letters: Sequence[Column],
    full: Sequence[Column],
    heads: Mapping[str, Sequence[HeadLike]],
    controls: Sequence[Column] = (),
    seed: int = 0,
) -> FormatHeads:
    """``format_heads`` on any experiments; refuses what ``measure_drops`` does, and a missing form."""
    if not letters or not full:
        raise ValueError(f"letters and full must hold one set of questions or more, got {len(letters)} and {len(full)}")
    columns = [*letters, *full, *controls]
    forms: dict[str, Literal["letters", "full", "control"]] = {
        **{c.name: "letters" for c in letters},
        **{c.name: "full" for c in full},
        **{c.name: "control" for c in controls},
    }
    return FormatHeads(measure_drops(columns, heads, dict.fromkeys(heads, letters[0].name), seed), forms)


def format_heads(
    model: Any,
    letters: Sequence[Task],
    full: Sequence[Task],
    candidates: Sequence[HeadLike] | Mapping[str, Found],
    *,
    controls: Sequence[Task] = (),
    k: int = 5,
    n: int = 100,
    seed: int = 0,
    ablation: str = "zero",
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
) -> FormatHeads:
    """Tell heads that serve the letters of multiple choice from heads that serve the knowledge asked for.

    ``letters`` are sets answered by a letter (WMDP and MMLU), ``full`` sets answered by the answer itself, the same
    questions or others (HellaSwag, BoolQ and ARC in their usual form); ``tasks.forms`` turns a set into both. Each
    candidate is ablated alone, or each set of heads where they come by name. Bair et al. (arXiv 2603.03335) show the
    accuracy of WMDP, MMLU and general tasks with single heads off: in small Llamas one head of layer 0 takes all sets
    in letters to chance and leaves the others, which is a ``format`` head here. Costs ``n × (1 + candidates)``
    example-evaluations a set at most. Examples, settings and refusals are those of ``specificity``.
    """
    for name, tasks in (("letters", letters), ("full", full), ("controls", controls)):
        if isinstance(tasks, Task):
            raise ValueError(f"{name} must be a list of tasks, got one task")
    if not letters or not full:
        raise ValueError(f"letters and full must hold one set of questions or more, got {len(letters)} and {len(full)}")
    settings = settings_of(ablation, progress, batch_tokens, prepend_bos)
    others: Others = [(task.name, "control", [task]) for task in (*letters, *full, *controls)]
    columns = unseen_columns(model, {}, others, n=n, seed=seed, settings=settings)
    grid = columns[0].parts[0].grid
    by_name = (
        candidates if isinstance(candidates, Mapping) else {str(grid.resolve(head)): [head] for head in candidates}
    )
    heads = {name: heads_of(grid, each, k, "candidates") for name, each in by_name.items()}
    if not heads:
        raise ValueError("candidates must name one head or more")
    middle, end = len(letters), len(letters) + len(full)
    return measure_formats(columns[:middle], columns[middle:end], heads, columns[end:], seed)


def _is_broken(drop: TaskDrop) -> bool:
    return drop.too_low is None and drop.share_lost >= MIN_LOST and drop.interval[0] > 0
