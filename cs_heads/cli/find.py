"""``cs-heads find``: a ranking and its proof."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_heads.cli.options import add_common, loaded

if TYPE_CHECKING:
    from cs_heads.analysis.proof import Confirmation
    from cs_heads.cli.options import Commands
    from cs_heads.heads import Head
    from cs_heads.ranking import HeadRanking
    from cs_heads.tasks import Task

PROMPTS = 3
"""How many unseen prompts a report shows attention on."""


def add(commands: Commands) -> None:
    """The sub-command ``find``."""
    parser = commands.add_parser(
        "find",
        help="rank heads for a task and prove the best on unseen examples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common(parser)
    add = parser.add_argument
    add("--method", default="annealed", help="name of the method; an unknown one lists them all")
    add("--ablation", default="zero", help="what an ablated head becomes: zero, mean (over the task) or resample")
    add("--n-masks", type=int, default=None, help="masks to measure, for css and csb (None: 100)")
    add("--density", type=float, default=None, help="share of heads ablated in a mask, for css and csb (None: 0.05)")
    add("--out", type=Path, default=None, metavar="DIR", help="write report.html, results and pictures there")
    parser.set_defaults(run=_find)


def _find(options: argparse.Namespace) -> None:
    import cs_heads as cs
    from cs_heads.measure.cluster import here
    from cs_heads.methods.registry import method_named
    from cs_heads.views.report import write_report

    # What needs no model to be refused is refused before one is loaded.
    design = {"n_masks": options.n_masks, "density": options.density}
    more: dict[str, Any] = {name: value for name, value in design.items() if value is not None}
    method = method_named(options.method)
    method.check(options.method, more)
    more |= {"seed": options.seed, "ablation": options.ablation, "store": options.store}
    with loaded(options) as (model, task, controls):
        if controls and method.takes_control:
            more["control"] = controls[0]
        found = cs.find_heads(model, task, k=options.k, method=options.method, budget=options.budget, **more)
        proof = cs.confirm(
            model,
            task,
            found.top(options.k),
            controls=controls,
            seed=options.seed,
            ablation=options.ablation,
            store=options.store,
        )
    result = _result(options, found, proof)
    if options.json:
        print(json.dumps(result))
    else:
        _print_result(result, found, proof)
    if options.out is not None:
        written = _write(options.out, options.k, result, found)
        # Results lie on disk before the model runs once more, for what is only looked at.
        written += _attend(options.out, here(model), task, found.top(options.k))
        written.append(write_report(options.out, options.out / "report.html"))
        if not options.json:
            print(f"written: {', '.join(map(str, written))}")


def _result(options: argparse.Namespace, found: HeadRanking, proof: Confirmation) -> dict[str, Any]:
    return {
        "model": options.model,
        "task": options.task,
        "method": found.method,
        "baseline": found.provenance["baseline"],
        "heads": [_row(found, head) for head in found.top(options.k)],
        "universal": [str(head) for head in found.universal],
        "spent": found.spent,
        "confirm": proof.to_dict(),
        "notes": list(found.notes),
        "command": options.command,
    }


def _row(found: HeadRanking, head: Head) -> dict[str, Any]:
    at = head.layer, head.head
    row: dict[str, Any] = {"head": str(head), "importance": float(found.importance[at])}
    if found.interval is not None and not math.isnan(found.interval[at][0]):
        row["interval"] = found.interval[at].tolist()
    if found.frequency is not None:
        row["frequency"] = float(found.frequency[at])
    return row


def _print_result(result: dict[str, Any], found: HeadRanking, proof: Confirmation) -> None:
    print(f"model {result['model']}, task {result['task']}, method {result['method']}")
    print(f"baseline {result['baseline']:.3f}\n")
    print(f"{'head':<8}{'importance':>10}")
    for row in result["heads"]:
        low, high = row.get("interval", (None, None))
        bounds = "" if low is None else f"  ({low:+.3f} to {high:+.3f})"
        print(f"{row['head']:<8}{row['importance']:>+10.3f}{bounds}")
    if result["universal"]:
        print(f"universal heads, needed by the control as well: {', '.join(result['universal'])}")
    print(f"\nverdict: {proof.verdict}")
    for reason in proof.reasons:
        print(f"  {reason}")
    for control in proof.controls:
        print(f"  control {control.task}: {control.baseline:.3f} to {control.score:.3f}")
        if control.too_low:
            print(f"    it can show no drop: {control.too_low}")
    for note in found.notes:
        print(f"note: {note}")
    print(f"cost: {found.spent:,} example-evaluations to find, {proof.spent:,} to confirm")


def _write(folder: Path, k: int, result: dict[str, Any], found: HeadRanking) -> list[Path]:
    from cs_heads.views.head_map import save_head_map

    written = [folder / "result.json", folder / "ranking.json"]
    written[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    found.save(written[1])
    return [*written, *save_head_map(found, folder / "heads.png", k, result["confirm"]["verdict"])]


def _attend(folder: Path, model: Any, task: Task, heads: Sequence[Head]) -> list[Path]:
    """Attention of the heads on a few short unseen prompts; a model that does not show it goes without."""
    from cs_heads.analysis.attention import attention
    from cs_heads.tasks import confirming_side

    short = sorted({example.prompt for example in confirming_side(task).examples}, key=lambda text: (len(text), text))
    path = folder / "attention.json"
    path.unlink(missing_ok=True)
    try:
        attention(model, short[len(short) // 4 :][:PROMPTS], heads).save(path)
    except ValueError as error:
        print(f"cs-heads: note: no attention patterns: {error}", file=sys.stderr)
        return []
    return [path]
