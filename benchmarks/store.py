"""What the store costs: of a run on the demo model, and to open with a million results and a call cut short.

    python benchmarks/store.py [--repeats 5] [--device cpu]

The run is 100 stratified masks on 100 examples, with a store and without, in turns; the share of the store is also
taken inside one run, as the processor time spent in its methods, which other work on the machine does not blur.

Allowed: that share at most 2 % (the median of the runs), and less than 2 s to open a million results. Exit status 1
where either is missed. The ratios of whole runs, and the shares by the clock, are printed beside: they hold the
machine's other work, too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from types import ModuleType
from typing import Any

import numpy as np

import cs_heads as cs
from cs_heads.experiment import plan, setup
from cs_heads.lens import HookedModel
from cs_heads.store.stored_observations import PlannedCall, StoredObservations, begin_together, packed

MILLION = 1_000_000

STORE: list[tuple[type | ModuleType, str]] = [
    (setup, "study_of"),
    (cs.Store, "of"),
    *((StoredObservations, name) for name in ("__init__", "read", "write", "end", "flush")),
    (plan, "begin_together"),
]
"""What an experiment calls of the store."""

MOST_SHARE = 0.02
MOST_SECONDS = 2.0


@contextmanager
def timed(methods: list[tuple[type | ModuleType, str]]) -> Iterator[list[float]]:
    """Processor and wall seconds inside these methods and functions, each counted where it is entered from outside."""
    spent, depth, kept = [0.0, 0.0], [0], []

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*arguments: Any, **options: Any) -> Any:
            depth[0] += 1
            processor, wall = process_time(), perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    spent[0] += process_time() - processor
                    spent[1] += perf_counter() - wall

        return inside

    for owner, name in methods:
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield spent
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def run(model: HookedModel, task: cs.Task, masks: np.ndarray, store: Path | None) -> tuple[float, float]:
    """Processor and wall seconds of one run, the experiment's making included."""
    processor, wall = process_time(), perf_counter()
    cs.Experiment(model, task, store=store, progress=False)(masks)
    return process_time() - processor, perf_counter() - wall


def overhead(model: HookedModel, repeats: int, folder: Path) -> bool:
    """The same run with a store and without, in turns; whether the share of the store is as small as promised."""
    task = cs.load_task("demo/capitals", n=100, seed=0)
    masks = cs.designs.stratified(cs.Grid.from_model(model), n_masks=100, density=0.05, seed=0)
    run(model, task, masks[:10], None)
    without, with_store, inside = [], [], []
    for number in range(repeats):
        without.append(run(model, task, masks, None))
        with timed(STORE) as spent:
            with_store.append(run(model, task, masks, folder / f"{number}.sqlite"))
        inside.append([part / whole for part, whole in zip(spent, with_store[-1], strict=True)])
    print(f"{len(masks) * len(task):,} results, {repeats} runs in turns")
    shares = []
    for clock, place in (("processor", 0), ("wall", 1)):
        a, b, part = ([run[place] for run in runs] for runs in (without, with_store, inside))
        ratio = [one / other for one, other in zip(b, a, strict=True)]
        shares.append(statistics.median(part))
        print(
            f"  {clock} seconds: without {statistics.median(a):.2f}, with a store {statistics.median(b):.2f},", end=" "
        )
        print(f"ratio {statistics.median(ratio):.3f} ({min(ratio):.3f} to {max(ratio):.3f});", end=" ")
        print(f"inside the store {shares[-1]:.2%} ({min(part):.2%} to {max(part):.2%})")
    small = shares[0] <= MOST_SHARE
    print(f"  share of the processor's time: {shares[0]:.2%}, allowed {MOST_SHARE:.0%}: {kept(small)}")
    print(f"  bytes: {(folder / '0.sqlite').stat().st_size:,}")
    return small


def kept(is_kept: bool) -> str:
    """In a word."""
    return "kept" if is_kept else "MISSED"


def million(model: HookedModel, folder: Path) -> bool:
    """A store of a million results, 10,000 masks on 100 examples, cut short: whether it opens as fast as promised."""
    task = cs.load_task("demo/capitals", n=100, seed=0)
    grid = cs.Grid.from_model(model)
    path = folder / "million.sqlite"
    experiment = cs.Experiment(model, task, store=path, progress=False)
    rng = np.random.default_rng(0)
    masks = rng.random((MILLION // len(task), *grid.shape)) < 0.05
    stored = experiment._observed.stored
    assert stored is not None
    examples = list(range(len(task)))
    start = perf_counter()
    for first in range(0, len(masks), 100):
        batch = [np.packbits(mask).tobytes() for mask in masks[first : first + 100]]
        results = [(mask, i, (packed(-rng.random((1, 2)) * [1, 0]), None)) for mask in batch for i in examples]
        stored.add(results, PlannedCall(0, np.zeros(0, dtype=int), np.zeros(0, dtype=bool)))
        stored.flush()
    # A call that was begun and never ended, as a killed run leaves it.
    asked = [np.packbits(~masks[0]).tobytes()] * len(task), np.array(examples), np.ones(len(task), dtype=bool)
    begin_together([(stored, *asked)])
    print(f"\n{MILLION:,} results of {len(masks):,} masks written in {perf_counter() - start:.1f} s")
    del experiment, stored
    print(f"  bytes                                    {path.stat().st_size:,}")
    fast = True
    for what, opens, step in (
        ("Store.open", True, lambda: cs.Store.open(path)),
        ("Experiment(store=...)", True, lambda: cs.Experiment(model, task, store=path, progress=False)),
        ("... and 100 masks on all examples from it", True, lambda: known(model, task, path, masks[:100])),
        ("... and all of it", False, lambda: known(model, task, path, masks)),
        ("Store.open(...).contents()", False, lambda: cs.Store.open(path).contents()),
        ("Store.open(...).to_frame()", False, lambda: cs.Store.open(path).to_frame()),
    ):
        start, processor = perf_counter(), process_time()
        step()
        seconds, processor = perf_counter() - start, process_time() - processor
        bound = f", allowed {MOST_SECONDS:.0f}: {kept(seconds < MOST_SECONDS)}" if opens else ""
        print(f"  {what:<42}{seconds:6.2f} s ({processor:.2f} s of the processor){bound}")
        fast &= seconds < MOST_SECONDS or not opens
    return fast


def known(model: HookedModel, task: cs.Task, path: Path, masks: np.ndarray) -> None:
    """Everything comes from the store."""
    experiment = cs.Experiment(model, task, store=path, progress=False)
    experiment(masks)
    assert experiment.ran == 0


def main() -> None:
    """Both measurements, one after the other; fails where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    model = cs.load_model("demo", device=options.device)
    with tempfile.TemporaryDirectory() as folder:
        promises = [overhead(model, options.repeats, Path(folder)), million(model, Path(folder))]
    sys.exit(not all(promises))


if __name__ == "__main__":
    main()
