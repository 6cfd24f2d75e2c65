"""Recovery of planted heads by methods that need an experiment alone: table and figure of docs/benchmarks/planted.md.

    python benchmarks/recovery.py --out recovery.csv --figure recovery.png
    python benchmarks/recovery.py --out verdicts.jsonl --verdicts [--scenarios no_structure --seeds 1000]

Each cell is a scenario, a number of heads, a method and its cost, on ``--seeds`` fresh planted worlds. Every world
measured is a line of the file; a run goes on where the last one stopped. Compressed sensing and greedy search
are told the universal heads and need not look at them; annealed sensing finds them by itself, with a control
task, within its budget. Where answers can be guessed it is told how often. The drop is that of the five heads on
1,000 unseen examples. The arithmetic of a search is its processor time outside of the worlds, which
stand for the model.

``--verdicts`` searches 256 heads with the default budget and proves what it finds, in every scenario and in two where
all that matters is shared: ``shared_only`` has universal heads and groups alone, in ``same_heads`` the control rests on
the heads of the task. Three more have five controls: of ``five_apart`` each has heads of its own, of ``one_half`` one
rests on three of the heads of the task, which do half of the damage, of ``one_alike`` on all. With them it says, too,
in how many worlds heads would be *specific* by other thresholds.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from recovery_tables import (
    NO_STRUCTURE,
    arithmetic,
    certainty_table,
    draw,
    recovery_table,
    threshold_table,
    verdict_table,
)

import cs_heads as cs
from cs_heads.analysis.confirm import Confirmation, prove
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.simulate import SCENARIOS, PlantedExperiment, World, planted_world
from cs_heads.units import Unit

K = 5
SHAPES = {256: (16, 16), 512: (16, 32), 1024: (32, 32), 16_384: (128, 128)}
DEFAULT = 1640
OTHERS = tuple(name for name in SCENARIOS if name not in ("main", *NO_STRUCTURE))
SHARED = {
    "shared_only": replace(SCENARIOS["universal_groups_small"], universal=8, drops=(), weak=(), pairs=()),
    "same_heads": SCENARIOS["main"],
}
FIVE = dict.fromkeys(("five_apart", "one_half", "one_alike"), SCENARIOS["main"])


class Cell(NamedTuple):
    """A scenario, heads, a method, and masks or rounds or evaluations of 100 examples."""

    scenario: str
    n_heads: int
    method: str
    size: int


class Search(Protocol):
    """Finds heads in a world at a cost, and says them with what else is a column of the file."""

    def __call__(self, made: World, size: int, seed: int) -> dict[str, Any]:
        """Search one world."""


class Timed(ExperimentLike):
    """An experiment that counts the processor seconds it takes itself."""

    def __init__(self, experiment: ExperimentLike) -> None:
        self._experiment = experiment
        self.grid, self.n_examples, self.seconds = experiment.grid, experiment.n_examples, 0.0
        self.name, self.chance = experiment.name, experiment.chance

    def __call__(self, masks: np.ndarray, examples: np.ndarray | None = None) -> np.ndarray:
        """Scores of the experiment."""
        start = process_time()
        scores = self._experiment(masks, examples)
        self.seconds += process_time() - start
        return scores


class Without(ExperimentLike):
    """An experiment on all heads but some, in a grid of one layer."""

    def __init__(self, experiment: PlantedExperiment, heads: tuple[Unit, ...]) -> None:
        self._experiment = experiment
        self._kept = np.setdiff1d(np.arange(experiment.grid.size), [experiment.grid.index(head) for head in heads])
        self.grid = cs.Grid(1, len(self._kept))
        self.n_examples = experiment.n_examples

    def __call__(self, masks: np.ndarray, examples: np.ndarray | None = None) -> np.ndarray:
        """Scores with the kept heads of each mask off."""
        full = np.zeros((len(masks), self._experiment.grid.size), dtype=bool)
        full[:, self._kept] = masks[:, 0]
        return self._experiment(full.reshape(-1, *self._experiment.grid.shape), examples)

    @property
    def spent(self) -> int:
        """Example-evaluations so far."""
        return self._experiment.spent

    def original(self, heads: list[Unit]) -> list[Unit]:
        """Heads of the whole grid."""
        return [self._experiment.grid.unit(int(self._kept[head.index])) for head in heads]


def told(search: Callable[[Without, int, int], list[Unit]]) -> Search:
    """A search that is told the universal heads."""

    def run(made: World, size: int, seed: int) -> dict[str, Any]:
        experiment = Without(made.task, made.universal)
        return {"heads": experiment.original(search(experiment, size, seed)), "spent": made.task.spent}

    return run


def sensing(design: str) -> Callable[[Without, int, int], list[Unit]]:
    """Compressed sensing with so many masks of density .05."""

    def run(experiment: Without, n_masks: int, seed: int) -> list[Unit]:
        return cs.methods.compressed_sensing(experiment, n_masks=n_masks, design=design, seed=seed).top(K)

    return run


def greedy(one_shot: bool) -> Callable[[Without, int, int], list[Unit]]:
    """Greedy search for five heads, or the five that hurt most alone."""
    return lambda experiment, _, seed: cs.methods.greedy(experiment, k=K, one_shot=one_shot, seed=seed).top(K)


def annealed(made: World, size: int, seed: int) -> dict[str, Any]:
    """Annealed sensing in so many evaluations; with all that it says of its certainty."""
    task, control = Timed(made.task), Timed(made.control)
    start = process_time()
    try:
        found = cs.methods.annealed(
            task,
            controls=[control],
            budget=100 * size,
            k=K,
            seed=seed,
        )
    except cs.BaselineTooLowError:
        return {"heads": [], "spent": made.task.spent}
    arithmetic = process_time() - start - task.seconds - control.seconds
    truth = made.grid.mask(made.planted)
    of_all = {*made.universal, *(head for group in made.groups for head in group)}
    singles = cs.designs.explicit(made.grid, [[], *([head] for head in made.planted)])
    assert found.interval is not None
    assert found.frequency is not None
    # Their true single drops, on many examples at the size where intervals are judged.
    many = planted_world(made.scenario, made.grid, n_unseen=5000 if made.grid.size == 1024 else 1000, seed=seed).unseen
    scores = many(singles).mean(axis=1)
    bounds = np.array([found.interval[head.layer, head.index] for head in made.planted]).reshape(-1, 2)
    known = ~np.isnan(bounds[:, 0])
    drops = scores[0] - scores[1:]
    sure = [head for head in found.top(K) if found.frequency[head.layer, head.index] >= 0.9]
    return {
        "heads": found.top(K),
        "spent": found.spent,
        "arithmetic": arithmetic,
        "universal_found": len({*found.shared} & {*made.universal}),
        "universal_wrong": len({*found.shared} - of_all),
        "intervals": int(known.sum()),
        "covered": int(((bounds[:, 0] <= drops) & (drops <= bounds[:, 1]))[known].sum()),
        "claims": len(found.claims),
        "claims_right": sum(bool(truth[head.layer, head.index]) for head in found.claims),
        "sure": len(sure),
        "sure_right": sum(bool(truth[head.layer, head.index]) for head in sure),
    }


def proof(made: World, found: Sequence[Unit], shared: Sequence[Unit]) -> Confirmation:
    """Heads on a hundred unseen examples."""
    # One example more draws all anew, and the heads stay.
    fresh = replace(made, n_examples=made.n_examples + 1, n_unseen=100)
    return prove(fresh.unseen, found, exclude=shared, controls=fresh.controls)


def proved(made: World, size: int, seed: int) -> dict[str, Any]:
    """Annealed sensing in so many evaluations (0: by default), and what the proof says of what it finds.

    ``planted`` is the verdict on the heads that were planted, whatever is found, and ``fresh`` the drop of the heads
    proved on a thousand examples more, beside that on the examples of the proof.
    """
    controls = list(made.controls)
    try:
        found = cs.methods.annealed(made.task, controls=controls, budget=100 * size or None, k=K, seed=seed)
    except cs.BaselineTooLowError:
        return {"heads": [], "spent": made.task.spent, "verdict": "baseline too low", "close": False}
    said = proof(made, found.top(K), found.shared)
    told = proof(made, made.planted[:K], made.universal).verdict if made.planted else None
    intact, off = made.unseen(cs.designs.explicit(made.grid, [[], said.heads])).mean(axis=1)
    return {
        "heads": found.top(K),
        "spent": found.spent,
        "proof": said.spent,
        "found": " ".join(map(str, found.top(K))),
        "proved": " ".join(map(str, said.heads)),
        "shared": " ".join(map(str, found.shared)),
        "p_sets": said.random.p_sets,
        "p_examples": said.random.p_examples,
        "verdict": said.verdict,
        "close": said.close,
        "planted": told,
        "proved_drop": said.drop,
        "fresh_drop": intact - off,
        "losses": said.specificity.to_dict() if said.localized and said.specificity else None,
    }


METHODS: dict[str, Search] = {
    "csb": told(sensing("bernoulli")),
    "css": told(sensing("stratified")),
    "one-shot": told(greedy(one_shot=True)),
    "greedy": told(greedy(one_shot=False)),
    "annealed": annealed,
    "proved": proved,
}


def cells(sizes: list[int]) -> Iterator[Cell]:
    """All cells."""
    for n_heads in sizes:
        rivals = [*itertools.product(("csb", "css"), (100, 200, 400)), ("one-shot", 1), ("greedy", K)]
        # The last of a large grid is the default: ten a head, and the intact run. It is there for its arithmetic.
        budgets = (100, 200, 400, DEFAULT) if n_heads >= 16_384 else (50, 60, 80, 100)
        yield from (Cell("main", n_heads, *rival) for rival in (*rivals, *(("annealed", size) for size in budgets)))
    if 1024 in sizes:
        yield from (Cell(scenario, 1024, "annealed", 100) for scenario in (*NO_STRUCTURE, *OTHERS))


def n_worlds(cell: Cell, seeds: int) -> int:
    """``seeds``; a hundred where nothing is to be found, five at the largest cost."""
    if cell.size == DEFAULT:
        return min(seeds, 5)
    return max(seeds, 100) if cell.scenario in NO_STRUCTURE else seeds


def measure(cell: Cell, seed: int) -> dict[str, Any]:
    """One world, as a line of the file."""
    scenario, five = {**SHARED, **FIVE}.get(cell.scenario, cell.scenario), 5 if cell.scenario in FIVE else 1
    grid = cs.Grid(*SHAPES[cell.n_heads])
    made = planted_world(scenario, grid, n_unseen=1000, n_controls=five, seed=seed)
    if cell.scenario in ("same_heads", "one_alike"):
        made = replace(made, others=(*made.others[:-1], made.own))
    if cell.scenario == "one_half":
        half = made.others[-1].copy()
        alike = slice(made.scenario.universal + 1, made.scenario.universal + 4)
        half[alike] = made.own[alike]
        made = replace(made, others=(*made.others[:-1], half))
    start = perf_counter()
    line = METHODS[cell.method](made, cell.size, seed)
    seconds = perf_counter() - start
    heads = line.pop("heads")
    intact, off = made.unseen(cs.designs.explicit(made.grid, [[], heads])).mean(axis=1)
    recall = len({*heads} & {*made.planted}) / len(made.planted) if heads and made.planted else float("nan")
    return {**cell._asdict(), "seed": seed, "recall": recall, "drop": intact - off, **line, "seconds": seconds}


def main() -> None:
    """Measure what is missing, then print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, of verdicts JSON lines, read and added to")
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--verdicts", action="store_true", help="search 256 heads and prove what is found")
    names = [*SCENARIOS, *SHARED, *FIVE]
    parser.add_argument("--scenarios", nargs="+", choices=names, default=names)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SHAPES, default=list(SHAPES)[1:])
    parser.add_argument("--seeds", type=int, default=40, help="worlds a cell")
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no world after so long")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    start = perf_counter()
    lines = pd.DataFrame(columns=[*Cell._fields, "seed"])
    if options.out.exists():
        lines = pd.read_json(options.out, lines=True) if options.verdicts else pd.read_csv(options.out)
    done = {tuple(line) for line in lines[[*Cell._fields, "seed"]].itertuples(index=False)}
    kinds = [Cell(name, 256, "proved", 0) for name in options.scenarios] if options.verdicts else cells(options.sizes)
    worlds = [
        (cell, options.first_seed + number)
        for cell in kinds
        for number in range(options.seeds if options.verdicts else n_worlds(cell, options.seeds))
        if (*cell, options.first_seed + number) not in done
    ]
    for position in range(0, len(worlds), 4 * options.jobs):
        if perf_counter() - start > 60 * options.minutes:
            print(f"{len(worlds) - position} worlds are still to be measured")
            break
        part = worlds[position : position + 4 * options.jobs]
        new = pd.DataFrame(Parallel(options.jobs)(delayed(measure)(*each) for each in part))
        lines = pd.concat([lines, new], ignore_index=True) if len(lines) else new
        if options.verdicts:
            new.to_json(options.out, orient="records", lines=True, mode="a")
        else:
            lines.to_csv(options.out, index=False)
    if options.verdicts:
        return print(verdict_table(lines), threshold_table(lines), sep="\n\n")
    dear = lines["size"] == DEFAULT
    print(recovery_table(lines[~dear]), certainty_table(lines), arithmetic(lines[dear]), sep="\n\n")
    if options.figure is not None:
        draw(lines[~dear], options.figure)


if __name__ == "__main__":
    main()
