"""Running a protocol: what it costs, then every step once, its tables and figures written as soon as they are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.timing import N_EXAMPLES, timing_of
from cs_heads.files import read_json
from cs_heads.progress import one_bar
from cs_heads.progress import step as show_step
from cs_heads.record import json_text
from cs_heads.reproduce import gating, localization
from cs_heads.reproduce.reproduction import Reproduction, Step, listed
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.identity import study_of
from cs_heads.tasks.example import hash_of

STEPS: dict[str, list[Step]] = {"cs": localization.STEPS, "chg": gating.STEPS}
"""The steps of each paper: the table that the help and the index of outputs read."""

DONE = "done.json"


def steps_of(paper: str, names: Sequence[str] | None = None) -> tuple[Step, ...]:
    """The steps of a paper in its order.

    Args:
        paper: the name of a paper.
        names: some of its steps (None: all).

    Raises:
        ValueError: for an unknown step, or an empty list.
    """
    known = STEPS[paper]
    unknown = set(names or ()) - {step.name for step in known}
    if unknown or (names is not None and not names):
        got = ", ".join(sorted(unknown)) or "none"
        raise ValueError(f"steps must be of {', '.join(step.name for step in known)}; got {got}")
    return tuple(step for step in known if names is None or step.name in names)


@one_bar("reproduce", outermost=True)
def reproduce(
    repro: Reproduction, steps: Sequence[str] | None = None, say: Callable[[str], object] | None = None
) -> dict[str, str]:
    """Make a paper's tables and figures for a model in ``repro.out``.

    Every output is a CSV and a Markdown table, and a PNG and an SVG where it is a figure; ``index.md`` leads to them.
    Measurements are kept in ``store.sqlite``, and a finished step is not run again: the same call resumes where it was
    interrupted. A step whose tasks or settings changed is run again, with what the store has. A task that the
    model cannot do is left out, and so is what needs it.

    Args:
        repro: the model, the paper, its tasks and settings.
        steps: names of steps (None: all).
        say: is called with a line on each step as it begins.

    Returns:
        What was left out, and why.

    Raises:
        ValueError: for an unknown step, or an empty list, before anything runs.
    """
    tell = say or str
    chosen = steps_of(repro.paper.name, steps)
    repro.out.mkdir(parents=True, exist_ok=True)
    key, done = _key(repro), _done(repro)
    left_out: dict[str, str] = {}
    for step in chosen:
        before = done.get(step.name)
        if before is not None and all((repro.out / file).is_file() for file in before["files"]):
            tell(f"{step.name}: done before")
            left_out |= before["left_out"]
            continue
        lacking = step.lacking(repro)
        if lacking:
            left_out[step.name] = f"needs {lacking}"
            continue
        tell(f"{step.name}: {step.about}")
        show_step(step.name)
        try:
            outputs = step.run(repro)
        except ValueError as error:
            # What one step cannot do, as on a model that is too weak or with too few words, ends no other.
            left_out |= {**repro.left_out, step.name: str(error)}
            continue
        files = [file for output in outputs for file in output.write(repro.out)]
        left_out |= repro.left_out
        about = {output.name: output.about for output in outputs}
        done[step.name] = {"key": key, "files": files, "outputs": about, "left_out": dict(repro.left_out)}
        _write(repro, done, left_out)
    _write(repro, done, left_out)
    return left_out


def estimate(repro: Reproduction, steps: Iterable[Step], *, timed: bool = True) -> pd.DataFrame:
    """The most example-evaluations of each step, and their seconds on this machine.

    What an earlier step measures is not counted again, and what is done not at all. Half of the evaluations of gates
    are backward passes, which are taken to last as long as forward ones.

    Args:
        repro: The model, the paper, its tasks and settings.
        steps: Rows of the table of steps, as ``steps_of`` gives them.
        timed: Whether a few masks of each task are run to know the seconds.

    Returns:
        One row a step: ``step``, ``example-evaluations``, ``seconds`` (NaN where nothing is timed), and in ``missing``
        why it cannot be made.
    """
    paid: set[Hashable] = set()
    done = _done(repro) if repro.store.is_file() else {}
    for step in STEPS[repro.paper.name]:
        if step.name in done:
            paid |= step.cost(repro).keys()
    seconds: dict[str, float] = {}
    calls: SettingsArguments = {**repro.calls, "store": None, "progress": False}
    rows = []
    for step in steps:
        lacking = step.lacking(repro)
        bill = {} if lacking else {key: each for key, each in step.cost(repro).items() if key not in paid}
        paid |= bill.keys()
        for name in {name for name, _ in bill.values()} - seconds.keys() if timed else ():
            with Experiment(repro.model, repro.unseen(name).take(N_EXAMPLES), **calls) as experiment:
                _, seconds[name] = timing_of(experiment, repro.seed)
        n = sum(n for _, n in bill.values())
        lasting = sum(n * seconds[name] for name, n in bill.values()) if timed else float("nan")
        rows.append((step.name, n, lasting, f"it needs {lacking}" if lacking else ""))
    return pd.DataFrame(rows, columns=["step", "example-evaluations", "seconds", "missing"])


def _key(repro: Reproduction) -> str:
    """A hash of everything that the numbers depend on."""
    tasks = {
        name: [task.name, task.identity, None if task.held_out is None else task.held_out.identity]
        for name, task in repro.tasks.items()
    }
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(repro.settings).items()}
    study = study_of(repro.model, Settings.of(repro.measuring))
    return hash_of([repro.paper.name, settings, repro.seed, tasks, json.dumps(study, sort_keys=True, default=str)])


def _index(repro: Reproduction, done: dict[str, Any], left_out: dict[str, str]) -> str:
    """What was made of which model, with which tasks and settings, and what was not."""
    lines = [
        f"# {repro.paper.title}",
        "",
        f"arXiv {repro.paper.arxiv}, on {repro.model.cfg.model_name}.",
        f"cs-heads {version('cs-heads')}, seed {repro.seed}.",
        "Published values stand beside measured ones where they could be verified, and are blank elsewhere.",
        "",
        "| task of the paper | measured with | kind | finding examples | unseen |",
        "|---|---|---|---|---|",
    ]
    for name, task in repro.tasks.items():
        lines.append(f"| {name} | {task.name} | {task.kind} | {len(task)} | {len(repro.unseen(name))} |")
    lines += ["", f"Settings: {', '.join(f'{name} {value}' for name, value in asdict(repro.settings).items())}."]
    for step in STEPS[repro.paper.name]:
        if step.name not in done:
            continue
        made = done[step.name]
        lines += ["", f"## {step.name}: {step.about}", ""]
        lines += [listed(name, about, made["files"]) for name, about in made["outputs"].items()]
    if left_out:
        lines += ["", "## Left out", "", *(f"- {name}: {reason}" for name, reason in left_out.items())]
    return "\n".join(lines) + "\n"


def _done(repro: Reproduction) -> dict[str, Any]:
    """What was made with these tasks and settings; what was made with others is no part of the page."""
    key = _key(repro)
    return {name: made for name, made in read_done(repro.out).items() if made["key"] == key}


def read_done(out: Path) -> dict[str, Any]:
    """By the name of each step that a folder has, its key, files, outputs and what was left out.

    Args:
        out: The folder of a reproduction.
    """
    path = out / DONE
    found: dict[str, Any] = read_json(path, "path") if path.is_file() else {}
    return found


def _write(repro: Reproduction, done: dict[str, Any], left_out: dict[str, str]) -> None:
    """Each file whole or not at all."""
    for name, text in ((DONE, json_text(done, indent=1) + "\n"), ("index.md", _index(repro, done, left_out))):
        new = repro.out / f"{name}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(repro.out / name)
