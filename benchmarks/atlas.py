"""The head atlas of a real model, and what of the papers' claims holds at its size: the CSV files of benchmarks/real.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/atlas.py --model models/smollm2 --out benchmarks/real/smollm2
    python benchmarks/atlas.py --claims benchmarks/real/smollm2 benchmarks/real/gemma3 --out benchmarks/real

The skills are ``everyday/*``. Written are small files: ``skills.csv`` (heads of each skill, own loss, loss of the
others, verdict), ``matrix.csv`` (the heads of one skill off, all skills measured), ``universal.csv`` and
``shared.csv``, ``curve.csv`` (own loss with the first 1 to 10 heads off), ``habits.csv`` (what universal heads and
the first heads look at) and ``run.json`` (command, seconds, cost); and pictures of the map, the matrix and the tree.
``--save`` keeps the whole atlas, from which ``--saved`` writes all but ``run.json`` anew: curve and habits, where
``--model`` is given, and the rest without a model. ``--again`` writes curve, habits or both of the heads in the
tables of ``--out``: a curve then ends with these. With ``--store`` an interrupted run goes on. ``--site FILE`` draws
the matrix once more, as the site shows it.

``--claims`` runs no model. From the tables of atlases that are there it writes what these say together:

- ``groups.csv``: pairs of a skill's heads that are of one layer, beside heads drawn from the whole grid; and pairs of
  one key/value group, beside heads drawn from the same layers, where a layer has several groups. Universal heads,
  which no skill keeps, are not drawn.
- ``depth.csv``: how deep the heads of each skill lie, 0 the first layer and 1 the last; of two atlases their
  correlation over skills is printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr

import cs_heads as cs
from cs_heads import plot
from cs_heads.experiment.controls import unseen_side
from cs_heads.files import write_csv
from cs_heads.plot.style import draw_to
from cs_heads.settings import COMPUTE_DTYPES, SCREENS
from cs_heads.tasks import builtin_tasks
from cs_heads.units import Head, Unit

N_UNSEEN = 60
"""Unseen examples of each skill."""
MOST = 10
"""Heads of the curve."""
MEASURED = ("habits", "curve")
"""Tables that the model is run for once more."""
LOOKED_AT = 10
"""Prompts of a skill on which attention is taken."""
DRAWS = 20_000
"""Random sets of heads that pairs of one layer or group are compared with."""


def skills_of(options: argparse.Namespace) -> list[cs.Task]:
    """The tasks of an atlas, each with unseen examples."""
    return [cs.load_task(name, seed=options.seed) for name in builtin_tasks() if name.startswith("everyday/")]


def curves(
    model: Any, tasks: list[cs.Task], sets: Mapping[str, list[Unit]], options: argparse.Namespace
) -> pd.DataFrame:
    """Own loss on unseen examples with the first heads of each skill off."""
    rows = []
    given: dict[str, Any] = {"seed": options.seed, "store": options.store, "progress": False}
    for task in tasks:
        if task.name not in sets:
            continue
        heads = sets[task.name]
        curve = cs.sparsity_curve(model, task, heads, max_heads=len(heads), n=N_UNSEEN, controls=None, **given)
        for k, drop in enumerate(curve.drops[curve.own]):
            rows.append({"skill": task.name, "k": k, "loss": drop.loss})
    return pd.DataFrame(rows)


def looked_at(model: Any, sets: Mapping[str, Iterable[Unit]], seed: int) -> pd.DataFrame:
    """The habits of universal heads, and of the first heads of each skill, with what they serve."""
    serves: dict[str, list[str]] = {}
    for name in sorted(sets, key=lambda name: name != "universal"):
        for head in map(str, sets[name]):
            serves.setdefault(head, []).append("all" if name == "universal" else name)
    table = cs.habits(model, list(serves))
    worked, even = at_worked_examples(model, list(table["head"]), seed)
    said: dict[str, np.ndarray | float] = {"worked examples": worked, "if even": even}
    return table.assign(**said, serves=[" ".join(serves[head]) for head in table["head"]])


def at_worked_examples(model: Any, heads: list[str], seed: int) -> tuple[np.ndarray, float]:
    """By head the last token's attention to worked examples but for the first token; and what it is if spread evenly.

    Of everyday skills that are asked by worked examples, a line each, the mean over the first unseen prompts.
    """
    tasks = [cs.load_task(name, seed=seed) for name in builtin_tasks() if name.startswith("everyday/")]
    prompts = [
        one.prompt
        for task in tasks
        for one in unseen_side(task, N_UNSEEN)[0].examples[:LOOKED_AT]
        if one.prompt.count("\n") > 1
    ]
    shares, tokens = [], []
    for seen in cs.attention(model, prompts, heads, off=()).prompts:
        line = next(at for at in reversed(range(len(seen.tokens))) if "\n" in seen.tokens[at])
        shares.append(seen.intact[:, -1, 1 : line + 1].sum(axis=-1))
        tokens.append(line / len(seen.tokens))
    return np.mean(shares, axis=0), float(np.mean(tokens))


def write(folder: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Small files: three digits."""
    for name, table in tables.items():
        write_csv(folder / f"{name}.csv", table, index=name == "matrix", float_format="%.3f", lineterminator="\n")


def tables_of(found: cs.Atlas) -> dict[str, pd.DataFrame]:
    """What is written of an atlas itself."""
    shared = [{"head": str(head), "skills": " ".join(names)} for head, names in found.shared.items()]
    mean, error = found.losses.mean(axis=0), (found.errors**2).sum(axis=0) ** 0.5 / len(found.losses)
    universal = [
        {"head": str(head), "mean loss": mean[head.layer, head.index], "error": error[head.layer, head.index]}
        for head in found.universal
    ]
    return {
        "skills": found.to_frame(),
        "matrix": found.matrix(),
        "universal": pd.DataFrame(universal, columns=["head", "mean loss", "error"]),
        "shared": pd.DataFrame(shared, columns=["head", "skills"]),
    }


def sets_of(folder: Path) -> tuple[tuple[int, int], int, dict[str, list[Unit]]]:
    """Of an atlas on disk its layers and heads a layer, its key/value groups a layer, and the heads of each skill."""
    model = json.loads((folder / "run.json").read_text())["model"]
    skills = pd.read_csv(folder / "skills.csv")
    sets = {
        name: [Head.parse(head) for head in heads.split()]
        for name, heads in zip(skills["skill"], skills["heads"], strict=True)
    }
    sets["universal"] = [Head.parse(head) for head in pd.read_csv(folder / "universal.csv")["head"]]
    n_layers, n_heads = model["grid"]
    return (n_layers, n_heads), model["key_value_heads"] or n_heads, sets


def pairs(places: np.ndarray) -> np.ndarray:
    """In each row the pairs of places that are equal."""
    ordered = np.sort(places, axis=1)
    same = [(ordered[:, apart:] == ordered[:, :-apart]).sum(axis=1) for apart in range(1, places.shape[1])]
    return np.sum(same, axis=0) if same else np.zeros(len(places), dtype=int)


def drawn(pool: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of ``n`` of the pool, none twice, one a row."""
    return pool[rng.random((DRAWS, len(pool))).argsort(axis=1)[:, :n]]


def groups(folder: Path, rng: np.random.Generator) -> pd.DataFrame:
    """Do heads of a skill lie in one layer, and of those in one layer in one key/value group?"""
    (n_layers, n_heads), n_groups, sets = sets_of(folder)
    everywhere = np.arange(n_layers * n_heads)
    of_group = n_heads // n_groups
    skills = [name for name in sets if name != "universal"]
    rows, draws = {}, {}
    for name, heads in sets.items():
        if len(heads) < 2:
            continue
        flat = np.array([head.layer * n_heads + head.index for head in heads])
        kept = [head.layer * n_heads + head.index for head in sets["universal"]] if name in skills else []
        pool = np.setdiff1d(everywhere, kept)
        layers, counts = np.unique(flat // n_heads, return_counts=True)
        inside = [
            drawn(pool[pool // n_heads == layer], n, rng) for layer, n in zip(layers, counts, strict=True) if n > 1
        ]
        none = np.zeros(DRAWS, dtype=int)
        rows[name] = (pairs(flat[None] // n_heads)[0], pairs(flat[None] // of_group)[0])
        draws[name] = (
            pairs(drawn(pool, len(flat), rng) // n_heads),
            # A group lies within its layer.
            sum((pairs(some // of_group) for some in inside), none),
        )
    of_skills = [name for name in skills if name in rows]
    rows["all skills"] = tuple(sum(rows[name][at] for name in of_skills) for at in (0, 1))
    draws["all skills"] = tuple(np.sum([draws[name][at] for name in of_skills], axis=0) for at in (0, 1))
    table = []
    for name, found in rows.items():
        row: dict[str, Any] = {"model": folder.name, "heads of": name}
        for at, what in enumerate(("layer", "group")):
            chance = draws[name][at]
            if what == "group" and n_groups == 1:
                continue
            row |= {f"pairs of one {what}": found[at], f"expected of one {what}": chance.mean()}
            row[f"p {what}"] = (1 + (chance >= found[at]).sum()) / (1 + DRAWS)
        table.append(row)
    return pd.DataFrame(table)


def depths(folders: list[Path]) -> pd.DataFrame:
    """By skill how deep its heads lie in each model, beside own loss and verdict."""
    tables = []
    for folder in folders:
        (n_layers, _), _, sets = sets_of(folder)
        known = pd.read_csv(folder / "skills.csv").set_index("skill")
        depth = {name: np.mean([head.layer for head in sets[name]]) / (n_layers - 1) for name in known.index}
        tables.append(known[["own loss", "verdict"]].assign(depth=pd.Series(depth)).add_prefix(f"{folder.name} "))
    return pd.concat(tables, axis=1).rename_axis("skill").sort_index().reset_index()


def alike(table: pd.DataFrame, first: str, second: str) -> str:
    """How the depths in two models go together, over skills that both can do and over those localized in both."""
    verdicts = table[[f"{first} verdict", f"{second} verdict"]]
    told = table[[f"{first} own loss", f"{second} own loss"]].notna().all(axis=1)
    localized = verdicts.apply(
        lambda one: one.str.startswith(("specific", "template-bound", "shared", "localized"), na=False)
    ).all(axis=1)
    lines = []
    for what, rows in (("both can do", told), ("localized in both", told & localized)):
        one, two = (table.loc[rows, f"{name} depth"] for name in (first, second))
        if len(one) < 3:
            lines.append(f"{first} and {second}, {len(one)} skills {what}: too few")
            continue
        straight, ranks = pearsonr(one, two), spearmanr(one, two)
        low, high = straight.confidence_interval()
        lines.append(
            f"{first} and {second}, {len(one)} skills {what}: depth {one.mean():.2f} and {two.mean():.2f}, "
            f"r {straight.statistic:.2f} ({low:.2f} to {high:.2f}), rho {ranks.statistic:.2f} (p {ranks.pvalue:.2f})"
        )
    return "\n".join(lines)


def draw_large(table: pd.DataFrame, path: Path) -> None:
    """The matrix of skills that can tell, with one digit and large letters, as the site shows it, also on a phone."""
    from matplotlib.figure import Figure

    names = [name for name in table.index if not np.isnan(table.loc[name, name])]
    losses, short = table.loc[names, names].to_numpy().clip(0, 1), [name.rpartition("/")[2] for name in names]
    figure = Figure(figsize=(5.6, 5.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(losses, cmap="Blues", vmin=0, vmax=1)
    for (row, column), loss in np.ndenumerate(losses):
        if loss >= 0.05:
            color = "white" if loss > 0.6 else "black"
            text = "1" if loss >= 0.95 else f"{loss:.1f}".lstrip("0")
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=11.5)
    axes.set_xticks(range(len(names)), short, rotation=45, ha="right", rotation_mode="anchor", fontsize=11.5)
    axes.set_yticks(range(len(names)), short, fontsize=11.5)
    axes.set_xlabel("share lost of", fontsize=12)
    axes.set_ylabel("with the heads off of", fontsize=12)
    figure.savefig(path, dpi=220)


def arguments() -> argparse.ArgumentParser:
    """What the command takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or name")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--budget", type=int, help="example-evaluations of the search of all skills together")
    parser.add_argument("--screen", choices=SCREENS, default="auto")
    text = "what the mean loss of other skills counts beside that of the own one"
    parser.add_argument("--control-weight", type=float, help=text)
    parser.add_argument("--compute-dtype", choices=COMPUTE_DTYPES, help="of forwards (default: the fastest to search)")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--save", type=Path, help="file for the whole atlas")
    parser.add_argument("--saved", type=Path, help="write the tables of this atlas, and search nothing")
    parser.add_argument("--again", nargs="+", choices=MEASURED, help="write these of the tables in --out, and no more")
    parser.add_argument("--claims", type=Path, nargs="+", help="compare the atlases of these folders, and run nothing")
    parser.add_argument("--site", type=Path, help="draw the matrix of --out in this file, large, and run nothing")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    """Measure, write, and print the means."""
    parser = arguments()
    options = parser.parse_args()
    if options.site:
        draw_large(pd.read_csv(options.out / "matrix.csv", index_col=0), options.site)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.again and options.saved:
        parser.error("--again is of the tables in --out, --saved of an atlas")
    if options.claims:
        rng = np.random.default_rng(options.seed)
        depth = depths(options.claims)
        write(options.out, {"groups": pd.concat([groups(one, rng) for one in options.claims]), "depth": depth})
        for first, second in combinations([folder.name for folder in options.claims], 2):
            print(alike(depth, first, second))
        return
    if options.saved:
        found = cs.Atlas.load(options.saved)
        write_atlas(options.out, found)
        if options.model:
            write_measured(options, cs.load_model(options.model, dtype="float32"), *heads_of(found))
        return
    if options.model is None:
        parser.error("--model says what is measured")
    model = cs.load_model(options.model, dtype="float32")
    if options.again:
        sets = sets_of(options.out)[2]
        write_measured(options, model, sets, sets)
        return
    tasks = skills_of(options)
    start = perf_counter()
    found = cs.atlas(
        model,
        tasks,
        budget=options.budget,
        seed=options.seed,
        n=N_UNSEEN,
        screen=options.screen,
        control_weight=options.control_weight,
        compute_dtype=options.compute_dtype,
        store=options.store,
    )
    seconds = perf_counter() - start
    if options.save:
        found.save(options.save)
    write_atlas(options.out, found)
    own, others = found.means()
    record = {
        "command": shlex.join(["python", "benchmarks/atlas.py", *sys.argv[1:]]),
        "seconds": round(seconds),
        "spent": found.spent,
        "own": round(own, 4),
        "others": round(others, 4),
        "left_out": found.left_out,
        "clusters": found.clusters(),
        **{name: found.provenance.get(name) for name in ("model", "search", "seed")},
    }
    (options.out / "run.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(found)
    print(f"{seconds:.0f} s, own {own:.3f}, others {others:.3f}", flush=True)
    write_measured(options, model, *heads_of(found))


def heads_of(found: cs.Atlas) -> tuple[dict[str, list[Unit]], dict[str, list[Unit]]]:
    """The universal heads and those of each skill, and the first of each skill's ranking."""
    sets = {"universal": list(found.universal), **{name: list(heads) for name, heads in found.heads.items()}}
    return sets, {name: ranking.top(MOST) for name, ranking in found.rankings.items()}


def write_measured(
    options: argparse.Namespace, model: Any, sets: Mapping[str, list[Unit]], first: Mapping[str, list[Unit]]
) -> None:
    """What the model is run for once more: habits of sets of heads, and what the first heads of each skill take."""
    wanted = options.again or MEASURED
    if "habits" in wanted:
        write(options.out, {"habits": looked_at(model, sets, options.seed)})
    if "curve" in wanted:
        write(options.out, {"curve": curves(model, skills_of(options), first, options)})


def write_atlas(folder: Path, found: cs.Atlas) -> None:
    """Tables and pictures."""
    write(folder, tables_of(found))
    for name, draw in (("atlas", plot.atlas), ("matrix", plot.skill_matrix), ("tree", plot.skill_tree)):
        draw_to(folder / f"{name}.png", draw, found)


if __name__ == "__main__":
    main()
