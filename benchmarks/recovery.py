"""Recovery of planted heads by every method that needs an experiment alone: the table and figure of the README.

    python benchmarks/recovery.py --out recovery.csv --figure recovery.png

Each cell is a scenario, a number of heads, a method and its cost, on ``--seeds`` fresh planted worlds. Every world
measured is a line of the file; a run goes on where the last one stopped. Compressed sensing and greedy search
are told the universal heads and need not look at them; annealed sensing finds them by itself, with a control
task, within its budget. Where answers can be guessed it is told how often. The drop is that of the five heads on
1,000 unseen examples. The arithmetic of a search is its processor time outside of the worlds, which
stand for the model.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

import cs_heads as cs
from cs_heads.measure.protocol import ExperimentLike
from cs_heads.measure.scenarios import SCENARIOS
from cs_heads.measure.simulate import World, planted_world

K = 5
SHAPES = {512: (16, 32), 1024: (32, 32), 16_384: (128, 128)}
DEFAULT = 1640
NO_STRUCTURE = ("no_structure", "no_structure_fragile")
OTHERS = tuple(name for name in SCENARIOS if name not in ("main", *NO_STRUCTURE))


class Cell(NamedTuple):
    """A scenario, heads, a method, and masks or rounds or evaluations of 100 examples."""

    scenario: str
    n_heads: int
    method: str
    size: int


class Timed:
    """An experiment that counts the processor seconds it takes itself."""

    def __init__(self, experiment: ExperimentLike) -> None:
        self._experiment = experiment
        self.grid, self.n_examples, self.seconds = experiment.grid, experiment.n_examples, 0.0

    def __call__(self, masks: np.ndarray, examples: np.ndarray | None = None) -> np.ndarray:
        """Scores of the experiment."""
        start = process_time()
        scores = self._experiment(masks, examples)
        self.seconds += process_time() - start
        return scores


class Without:
    """An experiment on all heads but some, in a grid of one layer."""

    def __init__(self, experiment: ExperimentLike, heads: tuple[cs.Head, ...]) -> None:
        self._experiment = experiment
        self._kept = np.setdiff1d(np.arange(experiment.grid.size), [experiment.grid.index(head) for head in heads])
        self.grid = cs.HeadGrid(1, len(self._kept))
        self.n_examples = experiment.n_examples

    def __call__(self, masks: np.ndarray, examples: np.ndarray | None = None) -> np.ndarray:
        """Scores with the kept heads of each mask off."""
        full = np.zeros((len(masks), self._experiment.grid.size), dtype=bool)
        full[:, self._kept] = masks[:, 0]
        return self._experiment(full.reshape(-1, *self._experiment.grid.shape), examples)

    def original(self, heads: list[cs.Head]) -> list[cs.Head]:
        """Heads of the whole grid."""
        return [self._experiment.grid.head(int(self._kept[head.head])) for head in heads]


def told(search: Callable[[Without, int, int], list[cs.Head]]) -> Callable[[World, int, int], dict[str, Any]]:
    """A search that is told the universal heads."""

    def run(made: World, size: int, seed: int) -> dict[str, Any]:
        experiment = Without(made.task, made.universal)
        return {"heads": experiment.original(search(experiment, size, seed)), "spent": made.task.spent}

    return run


def sensing(design: str) -> Callable[[Without, int, int], list[cs.Head]]:
    """Compressed sensing with so many masks of density .05."""

    def run(experiment: Without, n_masks: int, seed: int) -> list[cs.Head]:
        return cs.methods.compressed_sensing(experiment, n_masks=n_masks, design=design, seed=seed).top(K)

    return run


def greedy(one_shot: bool) -> Callable[[Without, int, int], list[cs.Head]]:
    """Greedy search for five heads, or the five that hurt most alone."""
    return lambda experiment, _, seed: cs.methods.greedy(experiment, k=K, one_shot=one_shot, seed=seed).top(K)


def annealed(made: World, size: int, seed: int) -> dict[str, Any]:
    """Annealed sensing in so many evaluations; with all that it says of its certainty."""
    chance = made.scenario.chance
    task, control = Timed(made.task), Timed(made.control)
    start = process_time()
    try:
        found = cs.methods.annealed(
            task,
            control=control,
            budget=100 * size,
            k=K,
            seed=seed,
            chance=chance,
            control_chance=chance,
        )
    except cs.BaselineTooLowError:
        return {"heads": [], "spent": made.task.spent, "verdict": "baseline too low"}
    arithmetic = process_time() - start - task.seconds - control.seconds
    truth = made.grid.mask(made.planted)
    singles = cs.masks.explicit(made.grid, [[], *([head] for head in made.planted)])
    # Their true single drops, on many examples at the size where intervals are judged.
    many = planted_world(made.scenario, made.grid, n_unseen=5000 if made.grid.size == 1024 else 1000, seed=seed).unseen
    scores = many(singles).mean(axis=1)
    bounds = np.array([found.interval[head.layer, head.head] for head in made.planted]).reshape(-1, 2)
    known = ~np.isnan(bounds[:, 0])
    drops = scores[0] - scores[1:]
    sure = [head for head in found.top(K) if found.frequency[head.layer, head.head] >= 0.9]
    proof = cs.prove(planted_world(made.scenario, made.grid, seed=seed).unseen, found.top(K), chance=chance)
    return {
        "heads": found.top(K),
        "spent": found.spent,
        "arithmetic": arithmetic,
        "universal_found": len({*found.universal} & {*made.universal}),
        "universal_wrong": len({*found.universal} - {*made.universal}),
        "intervals": int(known.sum()),
        "covered": int(((bounds[:, 0] <= drops) & (drops <= bounds[:, 1]))[known].sum()),
        "claims": len(found.claims),
        "claims_right": sum(bool(truth[head.layer, head.head]) for head in found.claims),
        "sure": len(sure),
        "sure_right": sum(bool(truth[head.layer, head.head]) for head in sure),
        "verdict": proof.verdict,
    }


METHODS: dict[str, Callable[[World, int, int], dict[str, Any]]] = {
    "csb": told(sensing("bernoulli")),
    "css": told(sensing("stratified")),
    "one-shot": told(greedy(one_shot=True)),
    "greedy": told(greedy(one_shot=False)),
    "annealed": annealed,
}


def cells(sizes: list[int]) -> Iterator[Cell]:
    """All cells."""
    for n_heads in sizes:
        rivals = [*itertools.product(("csb", "css"), (100, 200, 400)), ("one-shot", 1), ("greedy", K)]
        # The last of a large grid is the default: ten a head, and the intact run.
        budgets = (100, 200, 400, DEFAULT) if n_heads >= 16_384 else (50, 60, 80, 100)
        yield from (Cell("main", n_heads, *rival) for rival in (*rivals, *(("annealed", size) for size in budgets)))
    if 1024 in sizes:
        yield from (Cell(scenario, 1024, "annealed", 100) for scenario in (*NO_STRUCTURE, *OTHERS))


def n_worlds(cell: Cell, seeds: int) -> int:
    """A hundred where nothing is to be found; half of ``seeds`` beside the main scenario, few at the largest cost."""
    if cell.size == DEFAULT:
        return min(seeds, 5)
    return max(seeds, 100) if cell.scenario in NO_STRUCTURE else seeds if cell.scenario == "main" else -(-seeds // 2)


def measure(cell: Cell, seed: int) -> dict[str, Any]:
    """One world, as a line of the file."""
    made = planted_world(cell.scenario, cs.HeadGrid(*SHAPES[cell.n_heads]), n_unseen=1000, seed=seed)
    start = perf_counter()
    line = METHODS[cell.method](made, cell.size, seed)
    seconds = perf_counter() - start
    heads = line.pop("heads")
    intact, off = made.unseen(cs.masks.explicit(made.grid, [[], heads])).mean(axis=1)
    recall = len({*heads} & {*made.planted}) / len(made.planted) if heads and made.planted else float("nan")
    return {**cell._asdict(), "seed": seed, "recall": recall, "drop": intact - off, **line, "seconds": seconds}


def recovery_table(lines: pd.DataFrame) -> str:
    """Recall, and drop as a share of greedy's on the same worlds, by heads and method."""
    main = lines[lines.scenario == "main"]
    text = ["| heads | method | evaluations | worlds | recall@5 | drop / greedy's | arithmetic, CPU s |"]
    text.append("|---|---|---|---|---|---|---|")
    for (n_heads, method, _), part in main.groupby(["n_heads", "method", "size"], sort=False):
        best = main[(main.n_heads == n_heads) & (main.method == "greedy") & main.seed.isin(part.seed)]
        ratio = f"{part['drop'].mean() / best['drop'].mean():.2f}" if len(best) == len(part) else ""
        error = part.recall.std() / np.sqrt(len(part))
        # Not in files of before.
        known = part.arithmetic.dropna() if "arithmetic" in part else []
        seconds = f"{np.median(known):.1f}" if len(known) else ""
        text.append(
            f"| {n_heads:,} | {method} | {part.spent.mean() / 100:,.0f} | {len(part)} "
            f"| {part.recall.mean():.2f} ± {error:.2f} | {ratio} | {seconds} |"
        )
    return "\n".join(text)


def certainty_table(lines: pd.DataFrame) -> str:
    """What annealed sensing at 100 evaluations says of its certainty on 1,024 heads, by scenario."""
    part = lines[(lines.method == "annealed") & (lines.n_heads == 1024) & (lines["size"] == 100)]
    text = [
        "| scenario | worlds | recall@5 | localized | intervals that cover | claims planted | frequency ≥ .9 planted "
        "| universal found |"
    ]
    text.append("|---|---|---|---|---|---|---|---|")
    for scenario, group in part.groupby("scenario", sort=False):
        structured = scenario not in NO_STRUCTURE
        counts = ["covered", "intervals", "claims_right", "claims", "sure_right", "sure", "universal_found"]
        sums = group[[*counts, "universal_wrong"]].sum().astype(int)
        n_universal = SCENARIOS[scenario].universal * int(group.universal_found.notna().sum())
        wrong = f", {sums.universal_wrong} wrong" if sums.universal_wrong else ""
        cells = [
            str(scenario),
            str(len(group)),
            "" if group.recall.isna().all() else f"{group.recall.mean():.2f}",
            verdicts(group.verdict),
            f"{sums.covered / sums.intervals:.2f}" if sums.intervals else "",
            f"{sums.claims_right} of {sums.claims}" if sums.intervals or not structured else "",
            f"{sums.sure_right} of {sums.sure}" if sums.intervals or not structured else "",
            f"{sums.universal_found} of {n_universal}{wrong}" if n_universal else wrong.removeprefix(", "),
        ]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def verdicts(said: pd.Series) -> str:
    """How often a world is called localized, and how often it is refused."""
    refused = int((said == "baseline too low").sum())
    return f"{int((said == 'localized').sum())}{f', {refused} refused' if refused else ''}"


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Recall against evaluations, one panel a number of heads."""
    from matplotlib.figure import Figure

    main = lines[lines.scenario == "main"]
    sizes = sorted(main.n_heads.unique())
    figure = Figure(figsize=(3.6 * len(sizes), 3.2), layout="constrained")
    for axes, n_heads in zip(np.atleast_1d(figure.subplots(1, len(sizes), sharey=True)), sizes, strict=True):
        for method, marker in zip(METHODS, "sov^D", strict=True):
            part = main[(main.n_heads == n_heads) & (main.method == method)]
            points = part.groupby("size").agg(
                cost=("spent", lambda spent: spent.mean() / 100),
                recall=("recall", "mean"),
                error=("recall", lambda recall: recall.std() / np.sqrt(len(recall))),
            )
            style = {"linewidth": 2.2, "zorder": 3} if method == "annealed" else {"linewidth": 1.0}
            axes.errorbar(points.cost, points.recall, points.error, marker=marker, label=method, **style)
        axes.set_xscale("log")
        ticks = [50, 100, 200, 500, 1000, 5000, 16_000, 80_000]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8, rotation=45)
        axes.set_xticks([], minor=True)
        axes.set_xlim(40, 110_000)
        axes.set_title(f"{n_heads:,} heads", fontsize=10)
        axes.set_xlabel("evaluations (100 examples each)")
        axes.set_ylim(0, 1.03)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("recall of 5 planted heads")
    figure.axes[-1].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure what is missing, then print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, read and added to")
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=40, help="worlds a cell of the main scenario")
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no world after so long")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    start = perf_counter()
    lines = pd.read_csv(options.out) if options.out.exists() else pd.DataFrame(columns=[*Cell._fields, "seed"])
    done = {tuple(line) for line in lines[[*Cell._fields, "seed"]].itertuples(index=False)}
    worlds = [
        (cell, options.first_seed + number)
        for cell in cells(options.sizes)
        for number in range(n_worlds(cell, options.seeds))
        if (*cell, options.first_seed + number) not in done
    ]
    for position in range(0, len(worlds), 4 * options.jobs):
        if perf_counter() - start > 60 * options.minutes:
            print(f"{len(worlds) - position} worlds are still to be measured")
            break
        part = worlds[position : position + 4 * options.jobs]
        new = pd.DataFrame(Parallel(options.jobs)(delayed(measure)(*each) for each in part))
        lines = pd.concat([lines, new], ignore_index=True) if len(lines) else new
        lines.to_csv(options.out, index=False)
    print(recovery_table(lines), certainty_table(lines), sep="\n\n")
    if options.figure is not None:
        draw(lines, options.figure)


if __name__ == "__main__":
    main()
