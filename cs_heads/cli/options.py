"""Arguments that commands share, and what they load."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from cs_heads.tasks import Task

    Commands = argparse._SubParsersAction["Parser"]


class Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """One line, exit status 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that runs a model."""
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
    add(
        "--store",
        type=Path,
        default=None,
        metavar="FILE",
        help="keep every result in this file as it is measured; the same command goes on from there",
    )


def loaded(options: argparse.Namespace) -> tuple[Any, Task, list[Task]]:
    """The model, the task and its controls, each read before anything is measured."""
    import cs_heads as cs
    from cs_heads.tasks import control_side, entry_of, whole_task

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    task = cs.load_task(options.task, options.n, options.seed, options.length_normalised)
    controls = [
        cs.load_task(name, seed=options.seed) if entry_of(name) else whole_task(name) for name in options.control
    ]
    model = cs.load_model(options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    for control in controls:
        cs.Experiment(model, control_side(control, n=100, seed=options.seed))
    return model, task, controls
