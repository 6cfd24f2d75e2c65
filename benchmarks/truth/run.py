"""Methods on models whose heads are known: tables of docs/benchmarks/truth.md.

    python -m benchmarks.truth.run --out benchmarks/truth/models.csv
    python -m benchmarks.truth.run --out benchmarks/truth/models.csv --first 9 --every 4 --methods css csb ...
    python -m benchmarks.truth.run --out benchmarks/truth/models.csv --demo --trained models/truth --published FOLDER
    python -m benchmarks.truth.run --decoys 100 --out benchmarks/truth/decoys.csv
    python -m benchmarks.truth.run --check

Every model is built from its seed, searched and proved, with the other programs of the model as controls. The other
methods have none, as in their papers, and the example-evaluations that annealed search took on the same model;
gradients take what they need, or with ``-many`` examples for as much. Contrastive gating forgets the first control.
Methods of ``rivals.py`` run in an environment of their own.

A line of the file is a model and a method; a run goes on where the last one stopped.
``--check`` gates heads by hand in place of searching, and says what contradicts what is known.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pandas as pd
from transformers.utils import logging

import cs_heads as cs

from . import demo, published, trained
from .gating import faults
from .judging import auc, coverage
from .methods import crossed, draw
from .rivals import RIVALS, ranked
from .suite import KINDS, SMALL, Spec, TrueModel, build, specs

OURS = ("annealed", "annealed-gradients", "group-testing")
"""Methods that have controls; the second screens all heads by gradients."""
EACH = {"gradient": 3, "attribution": 3, "eap-ig": 12, "gim": 3}
"""Example-evaluations that methods by gradients take of each example."""
MANY = "-many"
"""Ends the name of such a method where it has as many examples as the others' cost buys."""
METHODS = (
    *(*OURS, "css", "csb", "one-shot", "greedy", "chg", "contrastive", "mediation", "gradient", "attribution"),
    *(*RIVALS, *(f"{method}{MANY}" for method in EACH)),
)
FREE = ("annealed", "gradient", "attribution")
"""Methods that take what they need."""
K = 5


def loaded(made: TrueModel, backend: str = "auto") -> Any:
    """The model in TransformerLens."""
    with TemporaryDirectory() as folder:
        return cs.load_model(made.save(Path(folder)), device="cpu", backend=backend)


def found_by(method: str, model: Any, tasks: list[cs.Task], budget: int | None) -> cs.HeadRanking:
    """The heads of the first of the tasks by a method, as it stands by default but for its cost."""
    if method in OURS:
        screen: dict[str, Any] = {"screen": "gradients"} if method == "annealed-gradients" else {}
        method = method.removesuffix("-gradients")
        return cs.find_heads(model, tasks[0], k=K, method=method, controls=tasks[1:], budget=budget, **screen)
    more: dict[str, Any] = {"forget": tasks[1]} if method == "contrastive" else {}
    if method in ("css", "csb"):
        more = {"n_masks": max(5, (budget or 0) // len(tasks[0]) - 1)}
    if method == "mediation":
        more = {"n_pairs": len(tasks[0])}
    return cs.find_heads(model, tasks[0], k=K, method=method, controls=None, budget=budget, **more)


def measured(made: TrueModel, found: cs.HeadRanking, proof: Any) -> dict[str, Any]:
    """What a search and its proof got right, as a line of the file.

    Recall is of the known heads among the first five, or among the heads reported as shared with the control, and
    precision is that of as many heads as are known. A wrong claim is a head proved, where heads are localized, that the
    task does not need, not even slightly.
    """
    known, top, allowed = {*made.known}, found.top(K), {*made.known, *made.slight}
    own = {*made.known} - {*made.shared}
    proved = proof.heads if proof.localized else ()
    n = max(len(own), 1)
    return {
        "model": made.spec.name,
        "kind": made.spec.kind,
        "layers": made.spec.layers,
        "heads": made.spec.layers * made.spec.heads,
        "task": made.programs[0].name,
        "controls": "; ".join(program.name for program in made.programs[1:]),
        "method": found.method,
        "known": _named(made.known),
        "shared": _named(made.shared),
        "top": _named(top),
        "found_shared": _named(found.shared),
        "claims": _named(found.claims),
        "recall": min(1.0, len(known & {*top, *found.shared}) / min(len(known), K)) if known else np.nan,
        "precision": len(own & {*found.top(n)}) / n if own else np.nan,
        "auc": auc(found, made.known, made.decoys),
        **coverage(made, found),
        "shared_wrong": len({*found.shared} - {*made.shared, *made.slight}),
        "wrong_claims": len({*found.claims} - allowed),
        "proved": _named(proved),
        "wrong": len({*proved} - allowed),
        "verdict": proof.headline,
        "right_verdict": " or ".join(made.verdicts),
        "close": proof.close,
        "loss": proof.result.loss,
        "spent": found.spent,
        "proof": proof.spent,
    }


def _named(heads: Iterable[Any]) -> str:
    return " ".join(map(str, heads))


def search(
    made: TrueModel,
    methods: Iterable[str],
    budget: int | None = None,
    *,
    n: int = 100,
    first: int | None = None,
    eap_ig: Path = Path("eap-ig"),
) -> Iterator[dict[str, Any]]:
    """A line for each method; annealed search, which comes first, says what the others may take.

    Args:
        made: The model.
        methods: Those to run.
        budget: Example-evaluations that annealed search took; None: it comes first.
        n: Examples that heads are found on, and as many that prove them.
        first: Example-evaluations of annealed search (None: its default).
        eap_ig: A copy of hannamw/EAP-IG.
    """
    model, tasks = loaded(made), [made.task(i, n) for i in range(len(made.programs))]
    for method in methods:
        start, task, base = process_time(), tasks[0], method.removesuffix(MANY)
        if base != method:
            assert budget is not None
            task = made.task(0, n, budget // EACH[base] - n)
        if base in RIVALS:
            assert budget is not None
            found = ranked(base, model, task, budget, hooked=partial(loaded, made, "hooked"), folder=eap_ig)
        else:
            allowed = {"annealed": first}.get(base, None if base in FREE else budget)
            found = found_by(base, model, [task, *tasks[1:]], allowed)
        seconds = process_time() - start
        proof = cs.confirm(model, tasks[0], found, controls=tasks[1:])
        budget = found.spent if method == "annealed" else budget
        yield {**measured(made, found, proof), "method": method, "seconds": round(seconds, 1)}


def table(lines: pd.DataFrame, by: str) -> str:
    """Recall, precision, AUC, what is said wrong, intervals that hold the truth, and cost of groups of lines."""
    heads = [by, "models", "recall@5", "precision", "AUC", "claimed", "proved", "shared", "right verdict"]
    text = [f"| {' | '.join([*heads, 'intervals', 'of others', 'evaluations', 'CPU s'])} |", f"|{'---|' * 13}"]
    for name, part in lines.groupby(by, sort=False):
        rights = zip(part.verdict, part.right_verdict, strict=True)
        right = sum(any(verdict.startswith(one) for one in told.split(" or ")) for verdict, told in rights)
        means = [
            "" if part[each].isna().all() else f"{part[each].mean():.2f}" for each in ("recall", "precision", "auc")
        ]
        said = [
            f"{sum(len(str(heads).split()) for heads in part[each].dropna())}, {int(part[wrong].sum())} wrong"
            for each, wrong in (("claims", "wrong_claims"), ("proved", "wrong"), ("found_shared", "shared_wrong"))
        ]
        held = [
            f"{part[f'{side}held'].sum():.0f} of {n:.0f}" if (n := part[f"{side}intervals"].sum()) else ""
            for side in ("", "other_")
        ]
        cost = ["" if each.isna().any() else f"{each.mean():,.0f}" for each in (part.spent, part.seconds)]
        cells = [name, len(part), *means, *said, f"{right} of {len(part)}", *held, *cost]
        text.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(text)


def tables(lines: pd.DataFrame, picture: Path | None = None) -> str:
    """Of annealed search by kind of model and by heads, and of all methods on the models that all of them searched."""
    kind = pd.Categorical(lines.kind, [*KINDS, "demo", "trained", "published"], ordered=True)
    lines = lines.assign(heads=np.where(lines.heads < 128, "64 to 72", "128 to 144"), order=kind.codes)
    lines = lines.sort_values("order", kind="stable")
    own = lines[lines.method == "annealed"]
    each = [lines[lines.method == method] for method in METHODS if method in set(lines.method)]
    common = set.intersection(*(set(one.model) for one in each))
    all_methods = pd.concat(one[one.model.isin(common)] for one in each)
    if picture:
        draw(all_methods, picture)
    return "\n\n".join(
        [
            table(own, "kind"),
            table(own[own.kind.isin(KINDS)].sort_values("heads", ascending=False), "heads"),
            table(all_methods, "method"),
            crossed(all_methods, "kind"),
            crossed(all_methods, "heads"),
        ]
    )


def models(options: argparse.Namespace) -> dict[str, Callable[[], TrueModel]]:
    """How the models that are asked for are made, by name."""
    # The kinds take turns, so that a run that stops has some of each.
    among = (spec for spec in specs() if spec.seed % options.every == 0 and spec.seed < options.first)
    chosen = sorted(among, key=lambda spec: spec.seed)
    if options.decoys:
        kinds = cycle(("decoys", "none"))
        chosen = [Spec(next(kinds), *SMALL[i // 2 % 2], 1000 + i) for i in range(options.decoys)]
    made: dict[str, Callable[[], TrueModel]] = {spec.name: partial(build, spec) for spec in chosen}
    made |= demo.models() if options.demo else {}
    made |= trained.models(options.trained) if options.trained else {}
    for folder in options.published:
        made |= published.models(folder)
    return made


def main() -> None:
    """Search what is missing, or check the suite, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="CSV file, read and added to")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["annealed"], help="annealed comes first")
    parser.add_argument("--eap-ig", type=Path, default=Path("eap-ig"), help="folder with a copy of hannamw/EAP-IG")
    parser.add_argument("--decoys", type=int, default=0, help="so many models whose task needs no head")
    parser.add_argument("--demo", action="store_true", help="the demo model, too")
    parser.add_argument("--trained", type=Path, default=None, help="trained models of this folder, too")
    parser.add_argument("--published", type=Path, nargs="+", default=[], help="checkouts of published models, likewise")
    parser.add_argument("--every", type=int, default=1, help="of the suite one in so many")
    parser.add_argument("--first", type=int, default=max(KINDS.values()), help="of the models of each kind so many")
    parser.add_argument("--models", nargs="+", default=None, help="names of models (None: all)")
    parser.add_argument("--budget", type=int, default=None, help="of annealed search (None: its default)")
    parser.add_argument("--examples", type=int, default=100, help="that find heads, and as many that prove them")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no model after so long")
    parser.add_argument("--picture", type=Path, default=None, help="draw recall and cost of all methods here")
    parser.add_argument("--check", action="store_true", help="gate heads by hand in place of searching")
    options = parser.parse_args()
    logging.disable_progress_bar()
    chosen = models(options)
    if options.models:
        chosen = {name: make for name, make in chosen.items() if name in options.models}
    if options.check:
        found = {name: faults(make()) for name, make in chosen.items()}
        print(*(f"{name}: {fault}" for name, each in found.items() for fault in each), f"{len(found)} models", sep="\n")
        return
    start, methods = perf_counter(), ["annealed", *(each for each in options.methods if each != "annealed")]
    lines = pd.read_csv(options.out) if options.out.exists() else pd.DataFrame(columns=["model", "method", "spent"])
    for name, make in chosen.items():
        done = lines[lines.model == name].set_index("method").spent
        missing = [method for method in methods if method not in done.index]
        if missing and perf_counter() - start < 60 * options.minutes:
            spent = int(done.annealed) if "annealed" in done.index else None
            made = search(make(), missing, spent, n=options.examples, first=options.budget, eap_ig=options.eap_ig)
            lines = pd.concat([lines, pd.DataFrame(made)], ignore_index=True)
            lines.convert_dtypes().to_csv(options.out, index=False)
    print(tables(lines, options.picture))


if __name__ == "__main__":
    main()
