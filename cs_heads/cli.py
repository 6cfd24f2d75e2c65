"""The same steps from a shell: ``cs-heads find --model M --task T``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from cs_heads.analysis.compare import Comparison
    from cs_heads.analysis.proof import Confirmation
    from cs_heads.heads import Head
    from cs_heads.ranking import HeadRanking
    from cs_heads.tasks import Task


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, exit status 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status, 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            options.run(options)
    except (ValueError, OSError, MemoryError) as error:
        print(f"cs-heads: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cs-heads: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> _Parser:
    parser = _Parser(prog="cs-heads", description="Find the attention heads that a capability rests on.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    find = commands.add_parser(
        "find",
        help="rank heads for a task and prove the best on unseen examples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_common(find)
    add = find.add_argument
    add("--method", default="annealed", help="name of the method; an unknown one lists them all")
    add("--ablation", default="zero", help="what an ablated head becomes: zero, mean (over the task) or resample")
    add("--n-masks", type=int, default=None, help="masks to measure, for css and csb (None: 100)")
    add("--density", type=float, default=None, help="share of heads ablated in a mask, for css and csb (None: 0.05)")
    add("--out", type=Path, default=None, metavar="DIR", help="write result.json, ranking.json and heads.png there")
    find.set_defaults(run=_find)
    compare = commands.add_parser(
        "compare",
        help="rank heads by several methods, and judge them on unseen examples",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_common(compare)
    add = compare.add_argument
    add(
        "--methods",
        default=None,
        help="names, commas between (None: annealed,css,csb,one-shot,greedy,chg,gradient)",
    )
    add("--most", type=int, default=10, help="heads to ablate at the end of the drop curve")
    add("--out", type=Path, default=None, metavar="DIR", help="write comparison.json, rankings and pictures there")
    compare.set_defaults(run=_compare)
    tasks = commands.add_parser("tasks", help="list the built-in tasks, one a line")
    tasks.set_defaults(run=_tasks)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face name or local folder")
    add("--task", required=True, help="built-in task, or a .jsonl or .csv file")
    add(
        "--control",
        action="append",
        default=[],
        metavar="TASK",
        help="another task, for specificity; may be repeated; the first tells annealed which heads are universal",
    )
    add("--n", type=int, default=None, help="examples to find heads with (None: 100, or half of a small task)")
    add("--length-normalised", action="store_true", help="score the choices of --task per character (acc_norm)")
    add("--budget", type=int, default=None, help="example-evaluations a method may spend (None: what it takes)")
    add("--k", type=int, default=5, help="heads to report and confirm")
    add("--seed", type=int, default=0, help="seed of the split, the masks and the tests")
    add("--device", default=None, help="cpu, cuda, ... (None: cuda where there is one)")
    add("--dtype", default=None, help="float32, bfloat16 or float16 (None: float32)")
    add("--backend", default="auto", help="auto, bridge or hooked")
    add("--json", action="store_true", help="print one JSON object")


def _tasks(_: argparse.Namespace) -> None:
    from cs_heads.tasks import builtin_tasks

    print("\n".join(builtin_tasks()))


def _find(options: argparse.Namespace) -> None:
    import cs_heads as cs
    from cs_heads.methods.registry import method_named

    # What needs no model to be refused is refused before one is loaded.
    design = {"n_masks": options.n_masks, "density": options.density}
    more: dict[str, Any] = {name: value for name, value in design.items() if value is not None}
    method = method_named(options.method)
    method.check(options.method, more)
    model, task, controls = _loaded(options)
    if controls and method.takes_control:
        more["control"] = controls[0]
    more |= {"seed": options.seed, "ablation": options.ablation}
    found = cs.find_heads(model, task, k=options.k, method=options.method, budget=options.budget, **more)
    proof = cs.confirm(
        model, task, found.top(options.k), controls=controls, seed=options.seed, ablation=options.ablation
    )
    result = _result(options, found, proof)
    if options.json:
        print(json.dumps(result))
    else:
        _print_result(result, found, proof)
    if options.out is not None:
        _write(options.out, options.k, result, found, quiet=options.json)


def _loaded(options: argparse.Namespace) -> tuple[Any, Task, list[Task]]:
    """The model, the task and its controls, each read before anything is measured."""
    import cs_heads as cs
    from cs_heads.tasks import control_side, is_builtin, whole_task

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    task = cs.load_task(options.task, options.n, options.seed, options.length_normalised)
    controls = [
        cs.load_task(name, seed=options.seed) if is_builtin(name) else whole_task(name) for name in options.control
    ]
    model = cs.load_model(options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    for control in controls:
        cs.Experiment(model, control_side(control, n=100, seed=options.seed))
    return model, task, controls


def _compare(options: argparse.Namespace) -> None:
    import cs_heads as cs
    from cs_heads.analysis.compare import METHODS
    from cs_heads.methods.registry import method_named

    names = METHODS if options.methods is None else tuple(name.strip() for name in options.methods.split(","))
    for name in names:
        method_named(name).check(name, {})
    model, task, controls = _loaded(options)
    result = cs.compare(
        model,
        task,
        methods=names,
        budget=options.budget,
        k=options.k,
        most=options.most,
        controls=controls,
        seed=options.seed,
    )
    if options.json:
        print(json.dumps(result.to_dict()))
    else:
        _print_comparison(options, result)
    if options.out is not None:
        _write_comparison(options.out, result, quiet=options.json)


def _print_comparison(options: argparse.Namespace, result: Comparison) -> None:
    at = sorted({1, options.k, options.most})
    print(f"model {options.model}, task {options.task}, baseline {result.baseline:.3f} on unseen examples\n")
    drops = "".join(f"{f'drop@{k}':>9}" for k in at)
    print(f"{'method':<12}{'evaluations':>12}{'backward':>10}{'seconds':>9}{drops}  top {options.k}")
    for name, one in result.methods.items():
        drops = "".join(f"{one.drops[k - 1]:>+9.3f}" for k in at)
        heads = " ".join(map(str, one.ranking.top(options.k)))
        cost = f"{one.ranking.spent:>12,}{one.cost['backwards']:>10,}{one.seconds:>9.1f}"
        print(f"{name:<12}{cost}{drops}  {heads}")
    print(f"{'random':<43}{''.join(f'{result.random_drop[k - 1]:>+9.3f}' for k in at)}\n")
    print(result.agreement().to_string(index=False, float_format="{:.2f}".format))
    for name, one in result.methods.items():
        for task, drop in one.controls.items():
            print(f"control {task}: {drop:+.3f} with the top {options.k} of {name} off")
        for note in one.ranking.notes:
            print(f"note on {name}: {note}")
    for name, reason in result.refused.items():
        print(f"{name} did not run: {reason}")
    print(f"cost: {result.spent:,} example-evaluations to judge")


def _write_comparison(folder: Path, result: Comparison, quiet: bool) -> None:
    from cs_heads.views.comparison import save_comparison

    written = [folder / "comparison.json"]
    written[0].write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
    for name, one in result.methods.items():
        written.append(folder / f"ranking-{name}.json")
        one.ranking.save(written[-1])
    written += save_comparison(result, folder)
    if not quiet:
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


def _write(folder: Path, k: int, result: dict[str, Any], found: HeadRanking, quiet: bool) -> None:
    from cs_heads.views.head_map import save_head_map

    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    found.save(folder / "ranking.json")
    save_head_map(found, folder / "heads.png", k)
    if not quiet:
        print(f"written: {folder / 'result.json'}, {folder / 'ranking.json'}, {folder / 'heads.png'}")


def _print_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"cs-heads: warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
