"""``cs-heads reproduce``: the whole protocol of a paper on a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cs_heads.cli.completion import is_completing
from cs_heads.cli.config import write_config
from cs_heads.cli.cost import print_steps
from cs_heads.cli.loading import check_numbers, make_folder
from cs_heads.cli.options import ALLOW_CODE, REPEATED, add_loading, add_settings, settings_of
from cs_heads.cli.parser import add_command, add_config

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.cli.parser import Commands, Parser
    from cs_heads.reproduce import Reproduction


def add(commands: Commands) -> None:
    """The sub-command ``reproduce``."""
    parser = add_command(commands, reproduce)
    parser.complete = _add_steps_and_settings
    add_config(parser)
    add = parser.add_argument
    add("--paper", required=True, choices=("cs", "chg"), help="paper whose protocol is run")
    text = "Hugging Face name, local folder or GGUF file, or demo, which has its own tasks in the paper's roles"
    add("--model", required=True, help=text)
    add("--out", required=True, type=Path, metavar="DIR", help="folder of tables, figures and the store")
    text = (
        "some of the paper's tasks, and what to measure in their place: a built-in task, a .jsonl or .csv file "
        "(default: all with data; fewer tasks give fewer tables)"
    )
    add("--tasks", metavar="NAME[=TASK],...", help=text)
    text = "local files: NAME.jsonl or NAME.csv with records, or a folder NAME with a benchmark's own files"
    add("--data", type=Path, metavar="DIR", help=text)
    add("--steps", metavar="NAME,...", help="some of the steps listed below (default: all)")
    text = "four designs, 100 unseen examples, short fits: tens of minutes on the demo model"
    add("--quick", action="store_true", help=text)
    add("--n", type=int, help="finding examples a task (default: 100, or half of a small task)")
    add("--n-unseen", type=int, help="unseen examples a task (default: all, with --quick 100)")
    add("--k", type=int, help="heads ablated (default: 5)")
    add("--seed", type=int, default=0, help="seed of splits, masks, fits and tests")
    text = "the --out folder of another model, to compare this one with; may be repeated"
    add("--beside", **REPEATED, metavar="MODEL=DIR", help=text)
    add("--allow-code", action="store_true", help=ALLOW_CODE)
    add_loading(parser)
    add("--dry-run", action="store_true", help="print the cost, and stop")


def _add_steps_and_settings(parser: Parser, _: Sequence[str]) -> None:
    """Put the steps of each paper before the examples of the help; as late as this, since it loads the library."""
    from cs_heads.reproduce.papers import SETTINGS

    add_settings(parser, SETTINGS)
    if is_completing():
        return
    from cs_heads.reproduce.run import STEPS

    for paper, steps in reversed(STEPS.items()):
        needs = [f" (needs {step.needs[0]})" if step.needs[0] else "" for step in steps]
        lines = [f"  {step.name:<16}{step.about}{need}" for step, need in zip(steps, needs, strict=True)]
        parser.epilog = "\n".join([f"steps of {paper}:", *lines, "", parser.epilog or ""])


def reproduce(options: argparse.Namespace) -> None:
    """Run the whole protocol of a paper, tables and figures, on a model.

    Make every table and figure of a paper's protocol for a model, beside what was published.

      cs   Compressed Sensing for Capability Localization (arXiv 2603.03335): heads of mathematics, code, swearing,
           rhyme and hazardous knowledge are found on 100 examples of each task by a search over masks and densities;
           universal heads are ranked last, and the others ablated on all unseen examples of every task.
      chg  Causal Head Gating (arXiv 2505.13737): gates on all heads, fitted with several seeds; kinds of heads,
           curves, mediation, and contrastive gates on held-out tasks.

    The cost is printed first, at most, with its time by a few masks; --dry-run stops there. After an interruption
    the same command resumes: measurements are kept in OUT/store.sqlite, and finished steps are not run again.

    Examples:
      cs-heads reproduce --paper cs --model demo --quick --out cs-demo
      cs-heads reproduce --paper chg --model demo --quick --steps kinds,shares --out chg-demo
      cs-heads reproduce --paper cs --model meta-llama/Llama-3.1-8B-Instruct --allow-code --out cs-8b --dry-run
      cs-heads reproduce --paper cs --model FOLDER --data DIR --tasks gsm8k,boolq,rhyming=my_rhymes.jsonl --out mine
    """
    from tqdm import tqdm

    from cs_heads import reproduce as protocol
    from cs_heads.progress import calling, expect
    from cs_heads.reproduce.reproduction import STORE
    from cs_heads.reproduce.run import steps_of

    names = _parts(options.steps)
    steps = steps_of(options.paper, names)
    check_numbers(options)
    make_folder(options.out, dry=options.dry_run)
    repro = _reproduction(options)
    found = protocol.estimate(repro, steps)
    _print_estimate(repro, found)
    if options.dry_run:
        return
    write_config(options.parser, options, options.arguments)
    # An interruption names this file.
    options.store = options.out / STORE
    with calling("reproduce"):
        expect(int(found["example-evaluations"].sum()))
        # A line does not break the bar.
        left_out = protocol.reproduce(repro, names, say=lambda line: tqdm.write(line, file=sys.stderr))
    for name, reason in left_out.items():
        print(f"left out {name}: {reason}")
    print(f"written: {options.out / 'index.md'}")


def _reproduction(options: argparse.Namespace) -> Reproduction:
    import cs_heads as cs
    from cs_heads.reproduce import PAPERS, PaperSettings, Reproduction, load_tasks
    from cs_heads.reproduce.papers import QUICK
    from cs_heads.reproduce.tasks import lacking
    from cs_heads.settings import SettingsArguments

    paper = PAPERS[options.paper]
    settings = QUICK if options.quick else PaperSettings()
    settings = settings.changed(n=options.n, n_unseen=options.n_unseen, k=options.k)
    beside = {}
    for each in options.beside:
        name, equals, folder = each.partition("=")
        if not equals or not Path(folder, "study").is_dir():
            raise ValueError(f"--beside must be MODEL=DIR with the --out folder of another model, got {each!r}")
        beside[name] = Path(folder)
    names = _parts(options.tasks)
    more = {"n": settings.n, "seed": options.seed, "allow_code": options.allow_code}
    tasks = load_tasks(paper, options.model, names, data=options.data, **more)
    model = cs.load_model(options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    left_out = lacking(paper, tasks, names)
    seed, measuring = options.seed, cast(SettingsArguments, settings_of(options))
    return Reproduction(model, paper, tasks, settings, options.out, seed, measuring, beside, left_out)


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _print_estimate(repro: Reproduction, found: pd.DataFrame) -> None:
    print(f"{repro.paper.title} (arXiv {repro.paper.arxiv}) on {repro.model.cfg.model_name}\n")
    print(f"{'task of the paper':<34}measured with")
    for name, task in repro.tasks.items():
        print(f"{name:<34}{task.name}, {len(task)} finding examples, {len(repro.unseen(name))} unseen")
    for name, reason in repro.left_out.items():
        print(f"{name:<34}left out: {reason}")
    print()
    made = found[found["missing"] == ""].set_index("step")
    print_steps(made["example-evaluations"].to_dict(), made["seconds"].to_dict())
    for step, reason in found.loc[found["missing"] != "", ["step", "missing"]].to_numpy().tolist():
        print(f"{step} cannot be made: {reason}")
    print(flush=True)
