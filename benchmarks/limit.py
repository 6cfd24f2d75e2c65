"""How few example-evaluations could be enough? Bounds, a decoder told everything, and what methods need.

    python benchmarks/limit.py --out benchmarks/limit.csv --figure benchmarks/limit.png

Table and figure of docs/benchmarks/limit.md, for the planted scenario ``main``. Bounds are computed in a minute. Every
world searched is a line of the file; a run goes on where the last one stopped. Shapley values and ProxySPEX need the
environment of ``truth/rivals.py``.

A bound is the bits that name the heads over the bits of one answer. Naming them at a recall of .95 on average leaves
.25 of the five heads wrong. All bounds are given the three universal and the six weak heads, which stay on. An answer
is right or wrong, on an example that the intact model has right, which is known for free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations, product
from math import comb
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from recovery import K, Search, Without, greedy, sensing, told
from scipy.optimize import brentq
from scipy.special import entr, log_softmax, ndtr, ndtri
from small_grids import annealed
from truth.rivals import Scored, acdc_nodes, proxyspex, shapley

import cs_heads as cs
from cs_heads.plot import style
from cs_heads.simulate import SCENARIOS, PlantedExperiment, World, planted_world
from cs_heads.units import Unit

MAIN = SCENARIOS["main"]
SHAPES = {64: (8, 8), 256: (16, 16), 1024: (32, 32), 4096: (64, 64)}
KEYS = ("n_heads", "method", "n_examples", "size", "seed")
MISSED = 0.25
"""Heads that are wrong on average: recall .95 of five."""
SUBSETS = [chosen for n in range(1, K + 1) for chosen in combinations(range(K), n)]
DENSITIES = np.geomspace(0.002, 0.5, 24)
N_GIVEN = MAIN.universal + len(MAIN.weak)
"""Heads that the bounds are given: the universal and the weak ones."""
Band = tuple[float, float]
Numbers = Float[np.ndarray, "*any"]
Set = tuple[int, ...]
RIGHT: Band = (0, np.inf)
NARROW: Band = (0, 0.83)
"""Margins of examples that are right, and of the quarter of these that is nearest to wrong."""
OFF = np.array(list(product([0, 1], repeat=K)))
"""The patterns of planted heads that are off, as many as there are sets of them."""


def bits(n_heads: int, n_sought: int, missed: float) -> float:
    """Bits that any answer must have which names so many heads, with so many of them wrong on average at most.

    The logarithm of the number of sets, less the largest entropy that they have for someone who knows such an answer.
    """
    wrong = np.arange(min(n_sought, n_heads - n_sought) + 1)
    ways = [comb(n_sought, int(m)) * comb(n_heads - n_sought, int(m)) for m in wrong]
    weights = np.log([float(way) for way in ways])

    def shares(price: float) -> np.ndarray:
        return np.exp(log_softmax(weights - price * wrong))

    def excess(price: float) -> float:
        return float(shares(price) @ wrong - missed)

    if missed == 0:
        return float(np.log2(comb(n_heads, n_sought)))
    share = shares(brentq(excess, 0, 100) if excess(0) > 0 else 0)
    return float(np.log2(comb(n_heads, n_sought)) - (entr(share).sum() + share @ weights) / np.log(2))


def entropy(right: Numbers) -> Numbers:
    """Bits of an answer that is right so often."""
    return (entr(right) + entr(1 - right)) / np.log(2)


def information(right: Float[np.ndarray, "pattern case"], chosen: Set, density: float) -> float:
    """Bits of one answer about whether the chosen heads are off, for someone who knows it of the others.

    Args:
        right: How often an answer is right with each pattern of heads off, in each of several cases that are known.
        chosen: Places of heads.
        density: Each head is off with this probability.
    """
    n = right.shape[0].bit_length() - 1
    table: np.ndarray = right.reshape(*(2,) * n, -1)

    def average(values: np.ndarray, places: Set) -> np.ndarray:
        for place in places:
            values = (1 - density) * values.take([0], place) + density * values.take([1], place)
        return values

    rest = tuple(place for place in range(n) if place not in chosen)
    gained = entropy(average(table, chosen)) - average(entropy(table), chosen)
    return float(np.mean(average(gained, rest)))


def capacity(one: Numbers, other: Numbers) -> float:
    """Bits of an answer that is right so often of one kind of mask and so often of another, at the best mixture."""
    share = np.linspace(0, 1, 401).reshape(-1, *(1,) * one.ndim)
    mixed = entropy(share * one + (1 - share) * other) - share * entropy(one) - (1 - share) * entropy(other)
    return float(mixed.max())


@cache
def damage(n: int = 4000) -> Float[np.ndarray, "pattern example"]:
    """What each pattern of planted heads takes from the margins of a planted world."""
    made = planted_world("main", cs.Grid(8, 8), n_examples=n, seed=0)
    heads = [made.grid.index(head) for head in made.planted]
    taken = OFF @ made.task.damage[heads].astype(float)
    for pair, extra in made.task.groups:
        taken += np.outer(OFF[:, [heads.index(head) for head in pair]].min(axis=1), extra)
    return taken


def outlives(taken: Numbers, band: Band) -> Numbers:
    """Probability that an example whose margin is in a band outlives this much damage."""
    low, high = ndtr(np.array(band) - ndtri(MAIN.baseline))
    return (high - ndtr(np.clip(taken, *band) - ndtri(MAIN.baseline))) / (high - low)


def answers(n_heads: int, density: float, band: Band | None) -> Float[np.ndarray, "pattern case"]:
    """How often answers are right when each head is off with a probability, by pattern of planted heads.

    Args:
        n_heads: Heads of the grid.
        density: That probability.
        band: Margins of the examples, each of them a new one; a case is a sum of the average damage of the other heads
            that are off. None: examples of any margin above zero, each a case of which everything is known.
    """
    rng = np.random.default_rng(0)
    taken, n_others = damage(), n_heads - N_GIVEN - K
    mean = MAIN.diffuse * density * n_others / n_heads
    variance = (
        density * (1 - density) * n_others * ((MAIN.diffuse / n_heads) ** 2 + MAIN.uneven**2 / max(n_heads, 1024))
    )
    noise = MAIN.spread * np.sqrt(density * n_others / n_heads) * rng.standard_normal(taken.shape[1])
    alive = np.exp(-MAIN.flips * density * n_others / n_heads)
    if band is None:
        shift = mean + np.sqrt(variance) * rng.standard_normal(taken.shape[1])
        below = ndtr(-ndtri(MAIN.baseline))
        margins = ndtri(MAIN.baseline) + ndtri(rng.uniform(below, 1, taken.shape[1]))
        return ((taken + noise + shift < margins) & (rng.random(taken.shape[1]) < alive)).astype(float)
    shifts = mean + np.sqrt(variance) * ndtri((np.arange(9) + 0.5) / 9)
    return np.stack([alive * outlives(taken + noise + shift, band).mean(axis=1) for shift in shifts], axis=1)


def sought(n_heads: int, chosen: Set, missed: float = MISSED) -> float:
    """Bits that name the chosen heads for someone who is given the other planted, the universal and the weak ones."""
    return bits(n_heads - N_GIVEN - K + len(chosen), len(chosen), missed)


class Limits(NamedTuple):
    """Example-evaluations below which no method of a kind can be, at a number of heads.

    Attributes:
        bit: Any method: one bit an answer.
        adaptive: No example is asked twice. Masks may follow from answers before, and other heads do no damage.
        known: Masks of random heads on random examples, of which everything is known.
        fresh: Masks of random heads; no example is asked twice.
        narrow: The same on examples that are nearly wrong.
        fresh_all: ``fresh``, if naming the five was as hard as the bits of all five say.
        fresh_exact: ``fresh``, if no head may be wrong.
        density: The best of ``fresh``.
        density_narrow: The best of ``narrow``.
        hardest: Places of the planted heads that set ``fresh``.
    """

    bit: float
    adaptive: float
    known: float
    fresh: float
    narrow: float
    fresh_all: float
    fresh_exact: float
    density: float
    density_narrow: float
    hardest: Set


@cache
def limits(n_heads: int) -> Limits:
    """All bounds: of the sets of planted heads the one that is hardest to name, once the other planted are given."""
    shifts = np.linspace(0, 4, 41)
    table = np.stack([outlives(damage() + shift, RIGHT).mean(axis=1) for shift in shifts], axis=1)
    table = table.reshape(*(2,) * K, -1)
    channel = {chosen: capacity(table.min(axis=chosen), table.max(axis=chosen)) for chosen in SUBSETS}

    def random(band: Band | None) -> tuple[dict[Set, float], dict[Set, float]]:
        tables = [answers(n_heads, density, band) for density in DENSITIES]
        told, best = {}, {}
        for chosen in SUBSETS:
            found = [information(right, chosen, at) for right, at in zip(tables, DENSITIES, strict=True)]
            told[chosen], best[chosen] = max(found), float(DENSITIES[np.argmax(found)])
        return told, best

    def most(told: dict[Set, float], missed: float = MISSED) -> tuple[float, Set]:
        return max((sought(n_heads, chosen, missed) / told[chosen], chosen) for chosen in SUBSETS)

    (fresh, best), (narrow, best_narrow), (known, _) = random(RIGHT), random(NARROW), random(None)
    return Limits(
        bit=sought(n_heads, SUBSETS[-1]),
        adaptive=most(channel)[0],
        known=most(known)[0],
        fresh=most(fresh)[0],
        narrow=most(narrow)[0],
        fresh_all=sought(n_heads, SUBSETS[-1]) / fresh[SUBSETS[-1]],
        fresh_exact=most(fresh, 0)[0],
        density=best[most(fresh)[1]],
        density_narrow=best_narrow[most(narrow)[1]],
        hardest=most(fresh)[1],
    )


def decoded(made: World, size: int, seed: int, *, band: Band, again: bool) -> dict[str, Any]:
    """So many answers to masks of random heads, read by a decoder that knows all but which heads are planted.

    It knows how often an answer is right by the planted heads and the number of others that are off, as if no two
    answers were of one example. Heads are drawn from the posterior (Gibbs); the five that are drawn most are named.

    Args:
        made: A planted world.
        size: Number of answers.
        seed: Seeds masks and decoder.
        band: Margins of the examples.
        again: Examples are drawn at random; without, each is asked once.
    """
    rng = np.random.default_rng([seed, 7])
    n, limit = made.grid.size, limits(made.grid.size)
    density = limit.density if band == RIGHT else limit.density_narrow
    examples = np.flatnonzero((made.task.margins > band[0]) & (made.task.margins < band[1]))
    examples = rng.choice(examples, size) if again else examples[:size]
    given = [made.grid.index(head) for head in made.universal] + list(made.own[-len(MAIN.weak) :])
    masks = rng.random((len(examples), n)) < density
    masks[:, given] = False
    parts = np.array_split(np.arange(len(examples)), 1 + len(examples) // 250)
    right = [made.task(masks[part].reshape(-1, *made.grid.shape), examples[part, None]) for part in parts]
    likely = log_likelihood(n, masks.sum(axis=1), np.concatenate(right)[:, 0] > 0, band)
    drawn = draw_heads(masks.astype(np.float32), likely, np.setdiff1d(np.arange(n), given), rng)
    return {"heads": [made.grid.unit(int(head)) for head in np.argsort(-drawn)[:K]], "spent": len(examples)}


def log_likelihood(
    n_heads: int, n_off: Int[np.ndarray, " answer"], right: Bool[np.ndarray, " answer"], band: Band
) -> Float[np.ndarray, "answer pattern"]:
    """Log-probability of each answer for each pattern of planted heads."""
    rng = np.random.default_rng(1)
    taken = damage()[:, :1000]
    counts, places = np.unique(n_off, return_inverse=True)
    table = []
    for count in counts:
        others = np.maximum(count - OFF.sum(axis=1), 0)[:, None] / n_heads
        deviation = np.sqrt(others * (MAIN.spread**2 + MAIN.uneven**2 * n_heads / max(n_heads, 1024)))
        noise = deviation * rng.standard_normal(taken.shape[1])
        outlived = outlives(taken + MAIN.diffuse * others + noise, band).mean(axis=1)
        table.append(np.clip(np.exp(-MAIN.flips * others[:, 0]) * outlived, 1e-6, 1 - 1e-6))
    probability = np.array(table)[places]
    return np.log(np.where(right[:, None], probability, 1 - probability))


def draw_heads(
    masks: Float[np.ndarray, "answer flat"],
    likely: Float[np.ndarray, "answer pattern"],
    candidates: Int[np.ndarray, " candidate"],
    rng: np.random.Generator,
    *,
    n_chains: int = 2,
    n_sweeps: int = 40,
) -> Float[np.ndarray, " flat"]:
    """How often each head is drawn from the posterior, in the likeliest of several chains."""
    rows, best, found = np.arange(len(masks)), -np.inf, np.zeros(masks.shape[1])
    powers = 2 ** np.arange(K - 1, -1, -1)
    for _ in range(n_chains):
        heads = rng.choice(candidates, K, replace=False)
        drawn, total = np.zeros(masks.shape[1]), 0.0
        for sweep in range(n_sweeps):
            heat = max(1, 4 - 6 * sweep / n_sweeps)
            for place in rng.permutation(K):
                others = np.delete(heads, place)
                pattern = masks[:, others].astype(int) @ np.delete(powers, place)
                off, on = likely[rows, pattern + powers[place]], likely[rows, pattern]
                gain = (off - on).astype(np.float32) @ masks
                allowed = np.setdiff1d(candidates, others)
                scores = gain[allowed].astype(float) / heat
                heads[place] = rng.choice(allowed, p=np.exp(log_softmax(scores)))
            if sweep >= n_sweeps // 2:
                drawn[heads] += 1
                total += likely[rows, masks[:, heads].astype(int) @ powers].sum()
        if total > best:
            best, found = total, drawn
    return found


def near_wrong(made: World, budget: int, seed: int) -> dict[str, Any]:
    """Annealed sensing on the examples that are nearly wrong."""
    task = made.task
    near = (task.margins > NARROW[0]) & (task.margins < NARROW[1])
    groups = [(heads, extra[near]) for heads, extra in task.groups]
    chosen = PlantedExperiment(task.grid, task.margins[near], task.damage[:, near], groups=groups, seed=seed)
    found = cs.methods.annealed(chosen, controls=[made.control], budget=budget, k=K, seed=seed)
    return {"heads": found.top(K), "spent": found.spent}


def without_controls(experiment: Without, budget: int, seed: int) -> list[Unit]:
    """Annealed sensing that is told the universal heads."""
    return cs.methods.annealed(experiment, controls=(), budget=budget, k=K, seed=seed).top(K)


def by_groups(made: World, budget: int, seed: int) -> dict[str, Any]:
    """Group testing with a control; heads that it does not find are in the order of what masks with them lost."""
    found = cs.methods.group_testing(made.task, controls=[made.control], budget=budget, seed=seed)
    return {"heads": found.top(K), "spent": found.spent}


def scoring(score: Callable[[Without, int, int], Scored]) -> Search:
    """The heads of the highest scores, by a method that is told the universal heads."""

    def run(experiment: Without, size: int, seed: int) -> list[Unit]:
        found = score(experiment, seed, size)
        return cs.HeadRanking("scores", found.scores, found.cost.spent).top(K)

    return told(run)


def pruned(experiment: Without, seed: int, _: int) -> Scored:
    """Pruning on all examples."""
    return acdc_nodes(experiment, seed, experiment.n_examples * (1 + experiment.grid.size))


OURS, MASKS, ANSWERS = (4000, 8000, 16_000, 32_000), (100, 200, 400, 800), (1000, 2000, 4000, 8000)
MORE = (*OURS[1:], 64_000)
SEARCHES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "annealed": (annealed, OURS, (100,), (64, 256, 1024, 4096)),
    "annealed, 1,000 examples": (annealed, OURS, (1000,), (64, 256, 1024)),
    "annealed, 1,000 examples, told universal": (told(without_controls), OURS, (1000,), (256, 1024)),
    "annealed, nearly wrong examples": (near_wrong, OURS, (1000,), (64, 256, 1024)),
    "css": (told(sensing("stratified")), MASKS, (100,), (64, 256, 1024, 4096)),
    "csb": (told(sensing("bernoulli")), MASKS, (100,), (64, 256, 1024, 4096)),
    "one-shot": (told(greedy(one_shot=True)), (1,), (50, 100, 200, 400), (64, 256, 1024, 4096)),
    "greedy": (told(greedy(one_shot=False)), (K,), (50, 100, 200), (64, 256, 1024, 4096)),
    "group testing": (by_groups, MORE, (100,), (64, 256, 1024, 4096)),
    "KernelSHAP": (scoring(partial(shapley, approximator="KernelSHAP")), MORE, (100,), (64, 256, 1024, 4096)),
    "ProxySHAP": (scoring(partial(shapley, approximator="ProxySHAP")), MORE, (100,), (64, 256, 1024, 4096)),
    "OddSHAP": (scoring(partial(shapley, approximator="OddSHAP")), MORE, (100,), (64, 256, 1024, 4096)),
    "ProxySPEX": (scoring(proxyspex), MORE[:1], (100,), (64,)),
    "pruning": (scoring(pruned), (1,), (50, 100, 200, 400), (64, 256, 1024, 4096)),
    "decoder": (partial(decoded, band=RIGHT, again=False), ANSWERS, (10_000,), (64, 256, 1024)),
    "decoder, 100 examples": (partial(decoded, band=RIGHT, again=True), ANSWERS, (100,), (64, 256, 1024)),
    "decoder, nearly wrong examples": (
        partial(decoded, band=NARROW, again=False),
        (500, *ANSWERS[:3]),
        (20_000,),
        (64, 256),
    ),
}
"""Search, its sizes, numbers of examples and grids, of each method."""
VARIANTS = [name for name in SEARCHES if name.endswith(("universal", "nearly wrong examples", "100 examples"))]
"""Those that the picture leaves out."""


def measure(n_heads: int, method: str, n_examples: int, size: int, seed: int) -> dict[str, Any]:
    """One world, as a line of the file."""
    made = planted_world("main", cs.Grid(*SHAPES[n_heads]), n_examples=n_examples, seed=seed)
    done = SEARCHES[method][0](made, size, seed=seed)
    key = dict(zip(KEYS, (n_heads, method, n_examples, size, seed), strict=True))
    return {**key, "recall": len({*done["heads"]} & {*made.planted}) / K, "spent": done["spent"]}


@cache
def ordinary(n_heads: int, n_worlds: int = 6) -> float:
    """What a head costs alone that has no part in the task, on average."""
    drops = []
    for seed in range(n_worlds):
        made = planted_world("main", cs.Grid(*SHAPES[n_heads]), n_examples=1000, seed=seed)
        others = np.setdiff1d(np.arange(n_heads), made.own)[:40]
        scores = made.task(np.eye(n_heads, dtype=bool)[others].reshape(-1, *made.grid.shape))
        drops.append((made.task.margins > 0).mean() - scores.mean())
    return float(np.mean(drops))


def reached(part: pd.DataFrame) -> tuple[float, bool]:
    """Example-evaluations at which the recall of a method reaches .95 on one grid, between those measured (log scale).

    Where it does not, the most that was measured, and False.
    """
    means = part.groupby(["n_examples", "size"])[["spent", "recall"]].mean().sort_values("spent")
    spent, recall = np.log(means.spent.to_numpy()), np.maximum.accumulate(means.recall.to_numpy())
    if recall[-1] < 1 - MISSED / K:
        return float(np.exp(spent[-1])), False
    last = int(np.argmax(recall >= 1 - MISSED / K))
    if last == 0:
        return float(np.exp(spent[0])), True
    share = (1 - MISSED / K - recall[last - 1]) / (recall[last] - recall[last - 1])
    return float(np.exp(spent[last - 1] + share * (spent[last] - spent[last - 1]))), True


def tables(lines: pd.DataFrame) -> str:
    """Bounds, what methods need beside the bound for random masks, and recall at every cost."""
    text = [
        "| heads | one bit | adaptive | all known | random masks | all five | none wrong | nearly wrong | other head |"
    ]
    text.append("|---" * 9 + "|")
    for n_heads in SHAPES:
        of = limits(n_heads)
        bounds = (of.bit, of.adaptive, of.known, of.fresh, of.fresh_all, of.fresh_exact, of.narrow)
        text.append(f"| {n_heads:,} | {' | '.join(f'{each:,.0f}' for each in bounds)} | {ordinary(n_heads):.3f} |")
    text += ["", f"| method | {' | '.join(f'{n_heads:,} heads' for n_heads in SHAPES)} |", "|---" * 5 + "|"]
    for method in SEARCHES:
        row = []
        for n_heads in SHAPES:
            part = lines[(lines.method == method) & (lines.n_heads == n_heads)]
            spent, there = reached(part) if len(part) else (0, False)
            sign = "" if there else "> "
            row.append(f"{sign}{spent:,.0f} ({spent / limits(n_heads).fresh:.1f}×)" if len(part) else "")
        text.append(f"| {method} | {' | '.join(row)} |")
    text += ["", "| heads | method | example-evaluations: recall | worlds |", "|---" * 4 + "|"]
    for (heads, searched), part in lines.sort_values(["n_heads", "method"]).groupby(["n_heads", "method"]):
        means = part.groupby(["n_examples", "size"])[["spent", "recall"]].agg(["mean", "sem", "size"])
        cells = [
            f"{row['spent', 'mean']:,.0f}: {row['recall', 'mean']:.2f} ± {row['recall', 'sem']:.2f}".removesuffix(
                " ± nan"
            )
            for _, row in means.sort_values(("spent", "mean")).iterrows()
        ]
        text.append(f"| {heads} | {searched} | {', '.join(cells)} | {means['recall', 'size'].min():.0f} |")
    return "\n".join(text)


@style.styled
def draw(lines: pd.DataFrame, path: Path) -> None:
    """Example-evaluations by number of heads: bounds, and methods where they reach .95 (hollow: the most measured)."""
    figure = style.new_figure(style.PAGE, 3.6)
    ax = figure.subplots()
    bounds = {"bit": "bound: one bit an answer", "adaptive": "bound: adaptive", "fresh": "bound: random masks"}
    for (name, label), line in zip(bounds.items(), (":", "--", "-"), strict=True):
        ax.plot(list(SHAPES), [getattr(limits(n), name) for n in SHAPES], color="0.3", linestyle=line, label=label)
    for number, method in enumerate(each for each in SEARCHES if each not in VARIANTS):
        part = lines[lines.method == method]
        points = {n: reached(part[part.n_heads == n]) for n in SHAPES if (part.n_heads == n).any()}
        look = style.line_look(number)
        # Side by side, for some need as much as others.
        places = [n * 1.05 ** (number - len(SEARCHES) / 3) for n in points]
        ax.plot(places, [spent for spent, _ in points.values()], **{**look, "marker": None}, linewidth=0.8)
        for place, (spent, there) in zip(places, points.values(), strict=True):
            ax.plot([place], [spent], look["marker"], color=look["color"], fillstyle="full" if there else "none")
        ax.plot([], [], label=method, **look)
    ax.set(xscale="log", yscale="log", xlabel="heads", ylabel="example-evaluations for recall .95")
    ax.set_xticks(list(SHAPES), [f"{n:,}" for n in SHAPES])
    ax.minorticks_off()
    figure.legend(loc="outside right center")
    style.save(figure, path)


def main() -> None:
    """Measure what is missing, then print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, read and added to")
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("--methods", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--heads", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=12, help="worlds a cell")
    parser.add_argument("--first-seed", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no world after so long")
    options = parser.parse_args()
    start = perf_counter()
    lines = pd.read_csv(options.out) if options.out.exists() else pd.DataFrame(columns=KEYS)
    done = {tuple(line) for line in lines[list(KEYS)].itertuples(index=False)}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for method in options.methods:
            _, sizes, n_examples, grids = SEARCHES[method]
            for cell in product(grids, [method], n_examples, sizes, [seed]):
                if cell[0] in options.heads and cell not in done and perf_counter() - start < 60 * options.minutes:
                    new = pd.DataFrame([measure(*cell)])
                    new.to_csv(options.out, mode="a", index=False, header=not options.out.exists())
    lines = pd.read_csv(options.out)
    print(tables(lines))
    if options.figure is not None:
        draw(lines, options.figure)


if __name__ == "__main__":
    main()
