"""What a report is made of, from results at hand or from the folder that ``find`` or ``compare`` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.compare import Compared, Comparison
from cs_heads.ranking import HeadRanking

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTENTION = "attention.json"


@dataclass(frozen=True, eq=False)
class Section:
    """A further part of a report: a title, a sentence or two, a picture and a table."""

    title: str
    text: str = ""
    picture: Axes | Figure | None = None
    frame: pd.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """One question to one model, and everything that was found out: at least a ranking or a comparison.

    ``proof`` is ``Confirmation.to_dict()``; ``command`` the shell line that made it, ``k`` the number of heads shown.
    """

    ranking: HeadRanking | None = None
    proof: dict[str, Any] | None = None
    comparison: Comparison | None = None
    attention: HeadAttention | None = None
    sections: tuple[Section, ...] = ()
    command: str = ""
    k: int = 5
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.ranking is None and self.comparison is None:
            raise ValueError("ranking or comparison must be given: a report needs one of them")

    @property
    def provenance(self) -> dict[str, Any]:
        """Of the ranking, else of the comparison."""
        if self.ranking is not None:
            return self.ranking.provenance
        return self.comparison.provenance if self.comparison is not None else {}

    @property
    def task(self) -> str:
        """The task's name, as far as it is known."""
        return str(self.provenance.get("task", {}).get("name", "a task"))

    @property
    def model(self) -> str:
        """The model's name, as far as it is known."""
        return str(self.provenance.get("model", {}).get("name", "a model"))

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """Read a folder that ``cs-heads find --out`` or ``compare --out`` wrote; another one raises ``ValueError``."""
        folder = Path(folder)
        found, compared = folder / "result.json", folder / "comparison.json"
        if not found.is_file() and not compared.is_file():
            raise ValueError(
                f"study {str(folder)!r} is no folder with result.json or comparison.json: give the folder that "
                "cs-heads find --out or compare --out wrote"
            )
        try:
            result = _read(found) if found.is_file() else {}
            comparison = _comparison(folder, _read(compared)) if compared.is_file() else None
            ranking = HeadRanking.load(folder / "ranking.json") if found.is_file() else None
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"study {str(folder)!r} is broken: {error!r}") from error
        attention = folder / ATTENTION
        record = _read(compared) if comparison is not None else {}
        return cls(
            ranking=ranking,
            proof=result.get("confirm"),
            comparison=comparison,
            attention=HeadAttention.load(attention) if attention.is_file() else None,
            command=result.get("command") or record.get("command") or "",
            k=len(result["heads"]) if result else (comparison.k if comparison else 5),
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"path {str(path)!r} is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"path {str(path)!r} holds no result")
    return record


def _comparison(folder: Path, record: dict[str, Any]) -> Comparison:
    return Comparison(
        methods={
            name: Compared(
                ranking=HeadRanking.load(folder / f"ranking-{name}.json"),
                seconds=float(one["seconds"]),
                drops=np.array(one["drops"], dtype=float),
                controls=dict(one["controls"]),
            )
            for name, one in record["methods"].items()
        },
        random_drops=np.array(record["random_drops"], dtype=float),
        k=int(record["k"]),
        baseline=float(record["baseline"]),
        spent=int(record["spent"]),
        refused=dict(record["refused"]),
        provenance=dict(record["provenance"]),
    )
