"""The statistics of the proof: heads against random heads of the same layers, on any experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import permutation_test

from cs_heads.analysis.drops import Column, check_columns, measure_drops
from cs_heads.analysis.losses import Specificity
from cs_heads.analysis.random_heads import drawn_notes, like_note, random_sets
from cs_heads.analysis.task_drop import TaskDrop, task_drop
from cs_heads.analysis.verdict import Verdict, is_localized, judge
from cs_heads.arguments import check_integer, check_list, check_seed
from cs_heads.designs import different
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import baseline_too_low, chance_of, check_k
from cs_heads.experiment.protocol import ExperimentLike, check_is_experiment, provenance_of
from cs_heads.tasks.controls import AUTO
from cs_heads.units import Head, HeadLike, as_heads

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Confirmation(Drawable, picture="confirmation"):
    """Whether a capability rests on its heads, shown on unseen examples.

    ``random_drops`` are the drops of sets of random heads from the same layers; ``p`` is the
    one-sided paired permutation test of the heads' scores against the mean of those sets, example
    by example. ``reasons`` say in words what the verdict rests on (``cs_heads.analysis.verdict`` says what each means),
    ``specificity`` has the losses of the task and of the controls that count, None where there are none to hold
    against each other. ``close_because`` says why another verdict is compatible with the intervals, None where none is;
    ``notes`` what the verdict cannot tell.
    """

    heads: tuple[Head, ...]
    result: TaskDrop
    random_drops: tuple[float, ...]
    p: float
    verdict: Verdict
    reasons: tuple[str, ...]
    controls: tuple[TaskDrop, ...]
    spent: int
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    specificity: Specificity | None = None
    close_because: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def localized(self) -> bool:
        """Whether the heads do more harm than random ones: the verdict is localized, specific or shared."""
        return is_localized(self.verdict)

    @property
    def default_controls(self) -> bool:
        """Whether the controls are the default ones, and nobody's choice."""
        return self.provenance.get("controls_from") == AUTO

    @property
    def close(self) -> bool:
        """Whether another verdict is compatible with the 95 % intervals."""
        return self.close_because is not None

    @property
    def lines(self) -> tuple[str, ...]:
        """All that is said with the verdict: the reasons, whether it is close, and the notes."""
        close = () if self.close_because is None else (f"close: {self.close_because}",)
        return (*self.reasons, *close, *(f"note: {note}" for note in self.notes))

    @property
    def drop(self) -> float:
        """Points of score lost on unseen examples with the heads off: drop@k."""
        return self.result.drop

    @property
    def random_drop(self) -> float:
        """Mean drop of the random sets."""
        return float(np.mean(self.random_drops))

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        return {
            "heads": [str(head) for head in self.heads],
            **self.result.to_dict(),
            "random_drop": self.random_drop,
            "random_drops": list(self.random_drops),
            "p": self.p,
            "verdict": self.verdict,
            "localized": self.localized,
            "close": self.close,
            "close_because": self.close_because,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "controls": [control.to_dict() for control in self.controls],
            "default_controls": self.default_controls,
            "specificity": None if self.specificity is None else self.specificity.to_dict(),
            "spent": self.spent,
            "provenance": self.provenance,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Confirmation:
        """What ``to_dict`` wrote, also in older versions: their verdicts, which read no controls, stay as they are."""
        losses = record.get("specificity")
        return cls(
            heads=tuple(map(Head.parse, record["heads"])),
            result=TaskDrop.from_dict(record),
            random_drops=tuple(record["random_drops"]),
            p=record["p"],
            verdict=record["verdict"],
            reasons=tuple(record["reasons"]),
            controls=tuple(map(TaskDrop.from_dict, record["controls"])),
            spent=record["spent"],
            provenance=dict(record.get("provenance", {})),
            specificity=None if losses is None else Specificity.from_dict(losses),
            close_because=record.get("close_because"),
            notes=tuple(record.get("notes", ())),
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a task, the confirmed one first: baseline, score, drop and relative drop with their intervals."""
        import pandas as pd

        rows = [("task", self.result), *(("control", control) for control in self.controls)]
        return pd.DataFrame({"role": role, **drop.to_dict()} for role, drop in rows)

    def __str__(self) -> str:
        return f"{self.verdict}: {'; '.join(self.lines)}"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, float_format="{:.3f}".format, border=0)
        said = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        return f"<div><b>{escape(', '.join(map(str, self.heads)))}: {self.verdict}</b><ul>{said}</ul>{table}</div>"


def prove(
    experiment: ExperimentLike,
    heads: Sequence[HeadLike],
    *,
    exclude: Sequence[HeadLike] = (),
    name: str = "task",
    chance: float | None = None,
    controls: Sequence[tuple[str, ExperimentLike]] = (),
    defaults: Sequence[str] | None = None,
    n_random: int = 8,
    seed: int = 0,
) -> Confirmation:
    """Ablate ``heads`` on every example of an experiment, beside ``n_random`` random sets of the same layers.

    This is ``confirm`` for experiments of any kind; the examples must be others than those the heads were
    found with, which nobody can check here. Random sets have none of the heads ``exclude``, such as the shared ones
    of a ranking: on a small grid these would be in most of them, and hide what ``heads`` do. A layer that they
    would use up gives way to others, and the notes say so. ``chance`` is the
    score of guessing (None: that of the experiment's task, or its own ``chance``, else 0); ``controls`` are
    ``(name, experiment)`` of other tasks, and all that can tell count in the verdict, which
    ``cs_heads.analysis.verdict`` defines. Where they are the default ones, ``defaults`` has the names of these, also of
    those that could not be measured.
    Heads outside the grid, named twice or also in ``exclude``, or too many to leave as many others, and controls of one
    name raise ``ValueError`` before anything is measured.

    >>> from cs_heads.units import HeadGrid
    >>> from cs_heads.simulate import planted_world
    >>> made = planted_world("main", HeadGrid(16, 16), seed=0)
    >>> prove(made.unseen, made.planted).verdict
    'localized'
    >>> proof = prove(made.unseen, made.planted, controls=[("another task", made.control)])
    >>> proof.verdict, proof.close
    ('specific', False)
    >>> print(proof.specificity.difference)
    0.55 (+0.41 to +0.66)
    """
    check_seed(seed)
    check_integer("n_random", n_random, 1)
    _check_experiments(experiment, controls)
    heads, exclude, grid = as_heads("heads", heads), as_heads("exclude", exclude), experiment.grid
    found = grid.mask(heads)
    if found.sum() != len(heads):
        raise ValueError(f"heads must differ from each other, got {', '.join(map(str, heads))}")
    without = grid.mask(exclude)
    both = [str(grid.resolve(head)) for head in heads if without[grid.resolve(head).layer, grid.resolve(head).head]]
    if both:
        raise ValueError(f"exclude must have none of heads, got {', '.join(both)}")
    check_k(len(heads), grid.size)
    intact = np.zeros(grid.shape, dtype=bool)
    drawn = random_sets(grid, found, without, n_random, np.random.default_rng(seed))
    masks = np.stack([intact, found, *drawn])
    others = [Column(name, "control", (control,)) for name, control in controls]
    if others:
        check_columns(others)
    # Random sets may repeat on a small grid, and each different mask is asked once.
    once, place = different(masks)
    baseline, ablated, *random = experiment(once)[place]
    chance = chance_of(experiment) if chance is None else chance
    result = task_drop(name, chance, [(baseline, ablated)], seed, [baseline_too_low(experiment, baseline, chance)])
    controlled = measure_drops(others, {"heads": heads}, {}, seed) if others else None
    p = _paired_p(np.mean(random, axis=0) - ablated, seed)
    random_drops = tuple(float(baseline.mean() - scores.mean()) for scores in random)
    measured = () if controlled is None else tuple(controlled.drops["heads"].values())
    like = like_note(found, drawn)
    said = judge(result, float(np.mean(random_drops)), p, measured, defaults, like=like)
    origin = provenance_of(experiment)
    return Confirmation(
        heads=tuple(grid.resolve(head) for head in heads),
        result=result,
        random_drops=random_drops,
        p=p,
        verdict=said.verdict,
        reasons=said.reasons,
        controls=measured,
        spent=len(once) * len(baseline) + (0 if controlled is None else controlled.spent),
        provenance={
            **origin,
            "n_random": n_random,
            "apart": [str(grid.resolve(head)) for head in exclude],
            "controls": [control.task for control in measured],
            "controls_from": AUTO if defaults is not None else "given" if measured else None,
            "seed": seed,
        },
        specificity=said.specificity,
        close_because=said.close,
        notes=(*said.notes, *drawn_notes(found, without, drawn)),
    )


def _check_experiments(experiment: Any, controls: Any) -> None:
    check_is_experiment("experiment", experiment)
    for control in check_list("controls", controls, "pairs, a name and an experiment"):
        if not isinstance(control, tuple | list) or len(control) != 2:
            raise ValueError(f"controls must be a list of pairs, a name and an experiment, got {control!r:.80}")
        check_is_experiment(f"controls[{control[0]!r}]", control[1])


def _paired_p(difference: Float[np.ndarray, " example"], seed: int) -> float:
    if len(difference) < 2:
        return 1.0
    test = permutation_test(
        (difference,),
        np.mean,
        permutation_type="samples",
        alternative="greater",
        n_resamples=9999,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)
