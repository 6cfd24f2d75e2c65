"""What a report is made of: results at hand, or the folder that ``find``, ``compare`` or ``atlas`` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.compare import Compared, Comparison
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.failures import FailureModes
from cs_heads.analysis.head_cards import HeadCards
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.arguments import check_path
from cs_heads.files import read_json
from cs_heads.lens import check_weights
from cs_heads.lens.model import without_place
from cs_heads.ranking import HeadRanking
from cs_heads.record import read_as

ATLAS = "atlas.json"
ATTENTION = "attention.json"
CARDS = "cards.json"
TEXTS = "texts.json"
RESULT = "result.json"
COMPARISON = "comparison.json"
CURVE = "curve.json"


@dataclass(frozen=True, eq=False)
class Findings:
    """Everything that was found out about one task of one model: at least a ranking or a comparison.

    Attributes:
        ranking: the heads.
        proof: what ``cs.confirm`` said of them.
        comparison: of methods.
        attention: of the heads on a few prompts.
        curve: the score by number of heads off.
        cards: what each of the heads does.
        texts: what the model writes with the heads off.
        seconds: what finding (``find``) and confirming (``confirm``) took.
        command: the shell line that made it, or several, each on a line.
        k: number of heads shown.

    Raises:
        ValueError: where parts are of different models or tasks, as far as they say, or both are missing.
    """

    ranking: HeadRanking | None = None
    proof: Confirmation | None = None
    comparison: Comparison | None = None
    attention: HeadAttention | None = None
    curve: SparsityCurve | None = None
    cards: HeadCards | None = None
    texts: FailureModes | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    k: int = 5

    def __post_init__(self) -> None:
        if self.ranking is None and self.comparison is None:
            raise ValueError("ranking or comparison must be given: a report needs one of them")
        parts = (self.ranking, self.proof, self.curve, self.comparison, self.attention, self.cards, self.texts)
        check_same(*(part.provenance for part in parts if part is not None and part.provenance))
        if self.ranking is not None and self.proof is not None:
            for head in self.proof.heads:
                self.ranking.grid.resolve(head)

    @property
    def origins(self) -> dict[str, dict[str, Any]]:
        """The provenance of each part that a report names, by its name there."""
        parts = {"the ranking": self.ranking, "the proof": self.proof, "the comparison": self.comparison}
        return {name: part.provenance for name, part in parts.items() if part is not None}

    @property
    def task(self) -> str:
        """The task's name, as far as it is known."""
        return self._name("task")

    @property
    def model(self) -> str:
        """The model's name, of a folder its own name alone, as far as it is known."""
        return without_place(self._name("model"))

    @property
    def word(self) -> str:
        """What the units are called."""
        compared = () if self.comparison is None else self.comparison.methods.values()
        return next(one.grid.word for one in (self.ranking, *(one.ranking for one in compared)) if one is not None)

    def _name(self, what: str) -> str:
        origins = self.origins
        known = origins.get("the ranking", origins.get("the comparison", {}))
        return str(known.get(what, {}).get("name", f"a {what}"))

    @classmethod
    def load(cls, folder: str | Path) -> Findings:
        """Read a folder that ``cs-heads find --out`` or ``compare --out`` wrote; another one raises ``ValueError``."""
        folder = check_path("folder", folder)
        result, compared, curve = (_read(folder / name) for name in (RESULT, COMPARISON, CURVE))
        if result is None and compared is None:
            why = f"has no {RESULT} or {COMPARISON}, and no {ATLAS}" if folder.exists() else "does not exist"
            raise ValueError(f"folder '{folder}' {why}: give what find, compare or atlas wrote, or a reproduced study")

        def of_result(name: str, hint: Any) -> Any:
            return read_as(f"{name} of {str(folder / RESULT)!r}", (result or {}).get(name), hint)

        comparison = None if compared is None else _comparison(folder, compared)
        proof, heads = of_result("confirm", Confirmation | None), of_result("heads", tuple[Any, ...] | None)
        if heads is None and proof is not None:  # a study of reproduce
            heads = proof.heads
        commands = (of_result("command", str | None), (compared or {}).get("command"))
        attention, cards, texts = folder / ATTENTION, folder / CARDS, folder / TEXTS
        return cls(
            ranking=None if result is None else HeadRanking.load(folder / "ranking.json"),
            proof=proof,
            comparison=comparison,
            attention=HeadAttention.load(attention) if attention.is_file() else None,
            cards=HeadCards.load(cards) if cards.is_file() else None,
            texts=FailureModes.load(texts) if texts.is_file() else None,
            curve=read_as(f"path {str(folder / CURVE)!r}", curve, SparsityCurve | None),
            seconds=of_result("seconds", dict[str, float] | None) or {},
            command="\n".join(filter(None, commands)),
            k=len(heads or ()) if comparison is None else comparison.k,
        )


def check_alone(folder: Path, *names: str) -> None:
    """Raise ``ValueError`` where a folder has one of these files: an atlas and other results do not share one."""
    there = [name for name in names if (folder / name).is_file()]
    if there:
        raise ValueError(f"folder {str(folder)!r} has {there[0]} already: give an atlas a folder of its own")


def check_same(*origins: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where results' provenances are of different models, BOS or tasks, as far as they say.

    A model is told by its name without the folder it lies in, revision, dtype, grid and weights; as many examples of
    one side of a split by their identity, others by the task's name alone.
    """
    for first, second in pairwise(origins):
        models = [_unplaced(_object(origin, "model")) for origin in (first, second)]
        _check_alike("model", ("name", "revision", "dtype", "grid"), *models)
        check_weights("parts of a report", *models)
        _check_alike("setting", ("prepend_bos",), first, second)
        one, other = (_object(origin, "task") for origin in (first, second))
        same_side = all(one.get(name) == other.get(name) for name in ("role", "n_examples"))
        _check_alike("task", ("name", "identity") if same_side else ("name",), one, other)


def _check_alike(what: str, names: Sequence[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name in names:
        if None not in (one.get(name), other.get(name)) and one[name] != other[name]:
            raise ValueError(
                f"results of different {what}s cannot go into one report: {name} {one[name]!r} and {other[name]!r}; "
                "give each a folder of its own"
            )


def _object(origin: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_as(name, origin.get(name) or {}, dict[str, Any])
    return found


def _unplaced(model: Mapping[str, Any]) -> dict[str, Any]:
    name = model.get("name")
    return {**model, "name": None if name is None else without_place(str(name))}


def check_folder(folder: Path, name: str, origin: Mapping[str, Any]) -> None:
    """Refuse a folder that has results of another model or task.

    Args:
        folder: the folder.
        name: a file with results, which may be missing.
        origin: the provenance of the results to write beside it.

    Raises:
        ValueError: where the two differ, as far as they say, or the file is broken.
    """
    record = _read(folder / name)
    if record is None:
        return
    try:
        there = read_as("confirm", record.get("confirm", record), dict[str, Any])
        check_same(read_as("provenance", there.get("provenance", {}), dict[str, Any]), origin)
    except ValueError as error:
        raise ValueError(f"out {str(folder)!r} has a {name} already: {error}") from error


def _read(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None where there is none."""
    if not path.is_file():
        return None
    record = read_json(path, "path")
    if not isinstance(record, dict):
        raise ValueError(f"path {str(path)!r} holds no result")
    return record


def _comparison(folder: Path, record: dict[str, Any]) -> Comparison:
    methods = {}
    for name, one in read_as("methods", record.get("methods"), dict[str, dict[str, Any]]).items():
        kept = {key: one[key] for key in ("seconds", "curve", "control_drops") if key in one}
        kept["ranking"] = HeadRanking.load(folder / f"ranking-{name}.json")
        methods[name] = read_as(f"methods[{name!r}]", kept, Compared)
    given = {key: value for key, value in record.items() if key != "command"}
    return read_as(f"path {str(folder / COMPARISON)!r}", {**given, "methods": methods}, Comparison)
