"""A few dozen results with seeds, and whether they are what they were: for changes that must move no number.

    python benchmarks/same_numbers.py --write before.json
    python benchmarks/same_numbers.py --against before.json

Results are of every method on the demo model, of those that use masks alone on planted worlds, too, of eleven calls on
the demo model, and with ``--model`` of small searches and a proof on a real one. Numbers of another processor or number
of threads differ in the last places. ``--against`` says how many numbers of each result differ by more than a rounding,
are missing or are new, and names the first; its exit status is 1 where one differs or is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import cs_heads as cs
from cs_heads.methods.registry import METHODS
from cs_heads.simulate import planted_world

WORLDS = ("main", "noisy", "chance50")
BY_MASKS = ("annealed", "css", "csb", "one-shot", "greedy", "group-testing")
TOLERANCE = 1e-4
"""Of numbers around 1: float32 rounds otherwise in other batches."""

_ASIDE = {"provenance", "notes", "reasons", "seconds", "examples", "search", "version"}


def results(model: str | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each result by its name, still to be made."""
    for scenario in WORLDS:
        for method in BY_MASKS:
            yield f"planted/{scenario}/{method}", partial(_planted, scenario, method)
    demo: Any = cs.load_model("demo")
    task, other = (cs.load_task(f"demo/{name}", seed=0) for name in ("capitals", "copying"))
    heads = ["L1H1", "L2H3", "L3H0"]
    given: dict[str, Any] = {"controls": [other], "progress": False}
    for method in METHODS:
        options: dict[str, Any] = {"forget": other} if method == "contrastive" else {}
        options |= {"steps": 40} if method in ("chg", "contrastive") else {}
        options |= {"controls": [other]} if METHODS[method].takes_controls else {}
        yield f"demo/{method}", partial(cs.find_heads, demo, task, method=method, progress=False, **options)
    found = partial(cs.find_heads, demo, task, progress=False)
    calls: dict[str, Callable[[], Any]] = {
        "default": found,
        "confirm": lambda: cs.confirm(demo, task, found(), progress=False),
        "confirm_list": lambda: cs.confirm(demo, task, heads, **given),
        "specificity": lambda: cs.specificity(demo, task, heads, **given),
        "sparsity_curve": lambda: cs.sparsity_curve(demo, task, heads, max_heads=3, progress=False),
        "faithfulness": lambda: cs.faithfulness(demo, task, found(method="gradient"), n=40, progress=False),
        "failures": lambda: cs.failures(demo, task, heads, n=40, progress=False),
        "compare": lambda: cs.compare(demo, task, methods=["css", "gradient"], budget=2500, n=40, **given),
        "atlas": lambda: cs.atlas(demo, [task, other], budget=4000, n=40, progress=False),
        "habits": lambda: cs.habits(demo, heads, progress=False),
        "overlap": lambda: cs.head_overlap(
            {"a": heads, "b": heads[1:]}, grid=cs.Grid.from_model(demo), n_permutations=999
        ),
    }
    yield from ((f"demo/{name}", call) for name, call in calls.items())
    if model is not None:
        real: Any = cs.load_model(model)
        opposites = cs.load_task("everyday/antonyms", seed=0)
        few: dict[str, Any] = {"controls": [], "progress": False}
        search = partial(cs.find_heads, real, opposites, budget=1500, **few)
        yield from ((f"real/{name}", partial(search, method=name)) for name in ("css", "annealed"))
        heads = ["L9H3", "L23H3", "L1H3"]
        yield "real/confirm_list", lambda: cs.confirm(real, opposites, heads, n=30, n_random=20, **few)


def _planted(scenario: str, name: str) -> Any:
    world, method = planted_world(scenario, seed=0), METHODS[name]
    given: dict[str, Any] = {"k": 5} if method.takes_k else {}
    # Greedy search measures every head before each step.
    budget = 12_000 if name == "greedy" else 6000
    return method.run(world.task, controls=world.controls, seed=0, budget=budget, **given)


def numbers_of(result: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The numbers and words of a result under their places; what tells of its origin aside."""
    if hasattr(result, "to_dict") and not isinstance(result, dict):
        result = result.to_dict(orient="list") if isinstance(result, pd.DataFrame) else result.to_dict()
    if isinstance(result, dict):
        for key, value in result.items():
            if key not in _ASIDE:
                yield from numbers_of(value, f"{path}/{key}")
    elif isinstance(result, list | tuple):
        for place, value in enumerate(result):
            yield from numbers_of(value, f"{path}/{place}")
    elif isinstance(result, bool | int | float | str) or result is None:
        yield path, result
    else:
        raise TypeError(f"{path} is neither a number nor a word: {result!r:.80}")


def differs(before: Any, now: Any) -> bool:
    """Whether a number is another but for rounding, or a word is."""
    if isinstance(before, float | int) and isinstance(now, float | int):
        both_nan = math.isnan(before) and math.isnan(now)
        return not both_nan and not math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(before != now)


def main() -> None:
    """Write numbers, or hold them against those written before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--model", help="a real model beside the demo model")
    parser.add_argument("--only", default="", help="results whose name holds this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    made: dict[str, dict[str, Any]] = {}
    for name, make in results(options.model):
        if options.only in name:
            made[name] = dict(numbers_of(make(), ""))
            print(f"{name}: {len(made[name])} numbers", flush=True)
    if options.write:
        options.write.write_text(json.dumps(made, indent=0))
    if not options.against:
        return
    wrong = 0
    for name, before in json.loads(options.against.read_text()).items():
        if options.only not in name or (name.startswith("real/") and options.model is None):
            continue
        now = made.get(name, {})
        moved = [key for key in before if key in now and differs(before[key], now[key])]
        missing, new = [key for key in before if key not in now], [key for key in now if key not in before]
        wrong += len(moved) + len(missing)
        if moved or missing or new:
            told = ", ".join(f"{key} {before[key]!r:.40} -> {now[key]!r:.40}" for key in moved[:4])
            print(
                f"{name}: {len(moved)} moved ({told}); {len(missing)} missing {missing[:3]}; {len(new)} new {new[:3]}"
            )
    print(f"{wrong} numbers moved or missing")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
