"""Several models side by side, from the tables in their folders; nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from os.path import relpath
from pathlib import Path
from typing import Any

import pandas as pd

from cs_heads import plot
from cs_heads.analysis.scale_study import scale_study
from cs_heads.methods.gating.result import SCORES
from cs_heads.reproduce.costs import GENERAL
from cs_heads.reproduce.papers import Paper, PaperSettings
from cs_heads.reproduce.reproduction import Output, listed
from cs_heads.reproduce.run import read_done

Folders = Mapping[str, Path]


def side_by_side(paper: Paper, folders: Folders, out: Path) -> dict[str, str]:
    """Lay the tables of several models side by side in ``out``, on the page ``index.md``.

    Args:
        paper: The paper that was reproduced.
        folders: By the name of each model the folder of its tables.
        out: The folder of the page.

    Returns:
        What was left out of the page, and why.
    """
    outputs, left_out = (_capabilities if paper.name == "cs" else _gated)(paper, folders)
    lines = [f"# {paper.title}: {len(folders)} models side by side", ""]
    lines += [f"- [{name}]({relpath(folder, out)}/index.md)" for name, folder in folders.items()]
    lines += ["", *(listed(output.name, output.about, output.write(out)) for output in outputs)]
    lines += ["", *(f"- left out: {name}: {reason}" for name, reason in left_out.items())]
    (out / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return left_out


def _read(folders: Folders, file: str, left_out: dict[str, str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """A table of each model whose last run has it."""
    for name, folder in folders.items():
        if file in _files(folder):
            yield name, pd.read_csv(folder / file)
        else:
            left_out[f"{file} of {name}"] = "its last run did not make it"


def _files(folder: Path) -> set[str]:
    return {file for made in read_done(folder).values() for file in made["files"]}


def _capabilities(paper: Paper, folders: Folders) -> tuple[list[Output], dict[str, str]]:
    """Table 2, and the heads of the first capability that several models have."""
    left_out: dict[str, str] = {}
    own = {task.heads: task.name for task in paper.tasks if task.heads is not None}
    columns = {}
    for model, frame in _read(folders, "drops.csv", left_out):
        shown = [task in (own.get(heads), GENERAL) for heads, task in zip(frame["heads"], frame["task"], strict=True)]
        columns[model] = frame[shown].set_index(["heads", "task"])[["baseline", "score"]].stack()
    outputs = []
    if columns:
        about = f"intact, and with the heads of a capability off: its task, and Gen, the mean of {GENERAL}"
        outputs = [Output("table-2", about, _with_mean(columns, ["heads", "task", "measured"]))]
    proved = {model: [*frame["found"]] for model, frame in _read(folders, "scale.csv", left_out)}
    if proved:
        # The paper's first, of those that most models have.
        first = max(own, key=lambda heads: sum(heads in each for each in proved.values()))
        studies = {model: folders[model] / "study" / first for model, each in proved.items() if first in each}
        left_out |= {f"scale of {name}": f"it has no {first} heads" for name in proved if name not in studies}
        found = scale_study(studies, k=PaperSettings.max_heads)
        about = f"{first} heads of each model: how much depends on them, and at which depth"
        frame = found.to_frame()
        outputs += [
            Output("scale", about, frame, found.plot if frame["low"].notna().any() else None),
            Output("depth", "share of importance by depth", found.profiles(), partial(plot.depth_profiles, found)),
        ]
    return outputs, left_out


def _gated(_: Paper, folders: Folders) -> tuple[list[Output], dict[str, str]]:
    """Table 2, and how alike the models are: in the shares of kinds, and head by head."""
    left_out: dict[str, str] = {}
    index = ["fit", "heads"]
    columns = {
        model: frame.set_index(index)[[*SCORES]].stack() for model, frame in _read(folders, "table-2.csv", left_out)
    }
    if not columns:
        return [], left_out
    table = _with_mean(columns, [*index, "score"])
    per_head: dict[str, dict[str, pd.DataFrame]] = {}
    for name, folder in folders.items():
        for file in sorted(file for file in _files(folder) if file.startswith("table-1-") and file.endswith(".csv")):
            fit = f"heads, {file.removeprefix('table-1-').removesuffix('.csv')}"
            per_head.setdefault(fit, {})[name] = pd.read_csv(folder / file, index_col="head")[[*SCORES]]
    rows = []
    for score in SCORES:
        shares = table[table["score"] == score]
        compared = {"shares of table 2": {model: shares[model] for model in columns}}
        compared |= {fit: {name: frame[score] for name, frame in each.items()} for fit, each in per_head.items()}
        for over, each in compared.items():
            for a, b in combinations(each, 2):
                both = pd.concat([each[a], each[b]], axis=1).dropna()
                # Heads of two grids are not each other's counterparts.
                if len(both) == len(each[a]) == len(each[b]):
                    r = both.iloc[:, 0].corr(both.iloc[:, 1])
                    rows.append({"score": score, "over": over, "model": a, "other": b, "n": len(both), "r": r})
    about = "correlation of two models: shares of table 2, and scores head by head where both have the same grid"
    return [
        Output("table-2", "share of heads of each kind, in every seed and in any", table),
        Output("correlation", about, pd.DataFrame(rows)),
    ], left_out


def _with_mean(columns: Mapping[str, Any], names: list[str]) -> pd.DataFrame:
    """A column a model, and their mean."""
    table = pd.concat(columns, axis=1, sort=False).rename_axis(names)
    return table.assign(**{"mean over models": table.mean(axis=1, skipna=False)}).reset_index()
