"""What is in a store: by numbers, and as a table for pandas and for files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.store.store import Store
from cs_heads.units import HeadGrid

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Contents:
    """What a store holds: the study it is of, results and different masks, bytes on disk, when it was last written.

    ``tasks`` is the number of results by task, those that tasks share counted for each; ``kept`` the number of
    searches, begun or done, by method, of those that keep other work than results: ``chg``, ``contrastive``,
    ``gradient``, ``mediation``; ``written`` the time in UTC (None: nothing yet).
    """

    path: str
    format: int
    study: dict[str, Any]
    tasks: dict[str, int]
    masks: int
    results: int
    kept: dict[str, int]
    bytes: int
    written: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def contents_of(store: Store) -> Contents:
    """What is in it, by numbers; counts every result, a second for some millions."""
    tasks = store.query(
        "SELECT task, sum(n) FROM tasks JOIN (SELECT scoring, example, count(*) AS n FROM results "
        "GROUP BY scoring, example) USING (scoring, example) GROUP BY task ORDER BY task"
    )
    written = store.query("SELECT value FROM study WHERE field = 'written'")
    ((masks, results),) = store.query("SELECT count(DISTINCT mask), count(*) FROM results")
    beside = [store.path, store.path.with_name(store.path.name + "-wal")]
    return Contents(
        path=str(store.path),
        format=store.format(),
        study=store.study,
        tasks=dict(tasks),
        masks=masks,
        results=results,
        kept=_kept(store),
        bytes=sum(path.stat().st_size for path in beside if path.exists()),
        written=json.loads(written[0][0]) if written else None,
    )


def frame_of(store: Store) -> pd.DataFrame:
    """Every result of a store: see ``Store.to_frame``."""
    import pandas as pd

    tasks = [task for (task,) in store.query("SELECT DISTINCT task FROM tasks ORDER BY task")]
    rows = []
    for number, task in enumerate(tasks):
        rows += store.query(
            "SELECT ?, scoring, example, mask, score, logprob, margin, text FROM results "
            "WHERE (scoring, example) IN (SELECT scoring, example FROM tasks WHERE task = ?)",
            (number, task),
        )
    of_task, scoring, example, mask, score, logprob, margin, text = zip(*rows, strict=True) if rows else ((),) * 8
    scorings = dict(store.query("SELECT id, identity FROM scorings"))
    examples = {number: more for number, *more in store.query("SELECT id, identity, prompt FROM examples")}
    heads, n_heads = _heads(store)
    columns = {
        "task": _category(of_task, dict(enumerate(tasks))),
        "scoring": _category(scoring, scorings),
        "example": _category(example, {number: identity for number, (identity, _) in examples.items()}),
        "prompt": _category(example, {number: prompt for number, (_, prompt) in examples.items()}),
        "ablated": _category(mask, heads),
        "n_ablated": np.array([n_heads[number] for number in mask], dtype=int),
        "score": np.array(score, dtype=float),
        "logprob": np.array(logprob, dtype=float),
        "margin": np.array(margin, dtype=float),
        "text": pd.Series(text, dtype=object),
    }
    return pd.DataFrame(columns)


def write_parquet(store: Store, path: Path) -> None:
    """Every result of a store as a Parquet file; ``ValueError`` without pyarrow, or onto the store itself."""
    if find_spec("pyarrow") is None:
        raise ValueError("Parquet files need pyarrow: pip install 'cs-heads[parquet]'")
    if path.resolve() == store.path.resolve():
        raise ValueError(f"path {str(path)!r} is the store itself, which it would overwrite")
    # What stood there before is replaced by a whole file, or not at all.
    beside = path.with_name(path.name + ".part")
    frame_of(store).to_parquet(beside, engine="pyarrow", index=False)
    beside.replace(path)


def _kept(store: Store) -> dict[str, int]:
    """How many pieces of work there are by method, each in one or more phases (see ``Progress``)."""
    keys = [key.split("/") for (key,) in store.query("SELECT identity FROM progress ORDER BY identity")]
    # What is in two parts is a setting of the store itself.
    return dict(Counter(method for method, _ in dict.fromkeys((key[0], key[1]) for key in keys if len(key) == 3)))


def _category(numbers: tuple[int, ...], texts: dict[int, str]) -> pd.Categorical:
    """A text a row, by its number, each kept once."""
    import pandas as pd

    place = {text: i for i, text in enumerate(dict.fromkeys(texts.values()))}
    code = {number: place[text] for number, text in texts.items()}
    return pd.Categorical.from_codes([code[number] for number in numbers], categories=pd.Index(place, dtype=object))


def _heads(store: Store) -> tuple[dict[int, str], dict[int, int]]:
    """By mask, the heads off in words and their number."""
    grid: HeadGrid = store.grid
    names = [str(head) for head in grid]
    heads, n_heads = {}, {}
    for number, packed in store.query("SELECT id, bits FROM masks"):
        off = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=grid.size).astype(bool)
        heads[number], n_heads[number] = " ".join(names[int(i)] for i in np.flatnonzero(off)), int(off.sum())
    return heads, n_heads
