"""Running a protocol: every step once, its tables and figures written as soon as they are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.reproduce import gating, localisation
from cs_heads.reproduce.outputs import Output
from cs_heads.reproduce.reproduction import Part, Reproduction, Step
from cs_heads.store.identity import study_of
from cs_heads.tasks.example import hash_of

STEPS: dict[str, tuple[Step, ...]] = {"cs": localisation.STEPS, "chg": gating.STEPS}
"""The steps of each paper."""

DONE = "done.json"


def steps_of(paper: str, names: Sequence[str] | None = None) -> tuple[Step, ...]:
    """The steps of a paper, or those of these names in its order; an unknown one raises ``ValueError``."""
    known = STEPS[paper]
    if names is not None and not names:
        raise ValueError(f"steps must be of {', '.join(step.name for step in known)}; got none")
    unknown = set(names or ()) - {step.name for step in known}
    if unknown:
        raise ValueError(f"steps must be of {', '.join(step.name for step in known)}; got {', '.join(sorted(unknown))}")
    return tuple(step for step in known if names is None or step.name in names)


def reproduce(
    study: Reproduction, steps: Sequence[str] | None = None, say: Callable[[str], object] | None = None
) -> dict[str, str]:
    """Make a paper's tables and figures for a model in ``study.out``; returns what was left out, and why.

    Every output is a CSV and a Markdown table, and a PNG and an SVG where it is a figure; ``index.md`` leads to them.
    What is measured is kept in ``store.sqlite``, and a step that is done is not made again: the same call goes on
    where it was cut short. Texts that are looked at, single choices, soft gates and mediation are in no store: a step
    that did not end measures these anew. A step whose tasks or settings changed is made anew, with what the store has.
    A task that the model cannot do is left out, and so is what needs it. ``say`` is told of each step as it begins.

    Raises ``ValueError`` for an unknown step, or none at all, before anything runs.
    """
    tell = say or str
    chosen = steps_of(study.paper.name, steps)
    study.out.mkdir(parents=True, exist_ok=True)
    key = _key(study)
    done: dict[str, Any] = _read(study.out / DONE)
    left_out: dict[str, str] = {}
    for step in chosen:
        before = done.get(step.name, {})
        if step.keeps and before.get("key") == key and _there(study.out, before["files"]):
            tell(f"{step.name}: done before")
            left_out |= before["left_out"]
            continue
        lacks = step.needs(study)
        if lacks is not None:
            left_out[step.name] = f"needs {lacks}"
            continue
        tell(f"{step.name}: {step.about}")
        try:
            outputs = step.run(study)
        except BaselineTooLowError as error:
            left_out[step.name] = str(error)
            continue
        files = [file for output in outputs for file in _write(study.out, output)]
        left_out |= study.left_out
        about = {output.name: output.about for output in outputs}
        done[step.name] = {"key": key, "files": files, "outputs": about, "left_out": dict(study.left_out)}
        _replace(study.out / DONE, json.dumps(done, indent=1) + "\n")
        _write_index(study, done, key, left_out)
    _write_index(study, done, key, left_out)
    return left_out


def parts_made(study: Reproduction) -> set[Part]:
    """What steps that are done started from: the store has it."""
    key, done = _key(study), _read(study.out / DONE)
    return {
        part
        for step in STEPS[study.paper.name]
        if done.get(step.name, {}).get("key") == key and study.store.is_file()
        for part in step.uses
    }


def _write_index(study: Reproduction, done: dict[str, Any], key: str, left_out: dict[str, str]) -> None:
    current = {name: each for name, each in done.items() if each["key"] == key}
    _replace(study.out / "index.md", _index(study, current, left_out))


def _key(study: Reproduction) -> str:
    """What every number of a study depends on."""
    tasks = {
        name: [task.name, task.identity, None if task.held_out is None else task.held_out.identity]
        for name, task in study.tasks.items()
    }
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(study.settings).items()}
    model = study_of(study.model, "zero", None)
    return hash_of([study.paper.name, settings, study.seed, tasks, json.dumps(model, sort_keys=True, default=str)])


def _write(folder: Path, output: Output) -> list[str]:
    """Write a table, and its figure; returns the names of the files."""
    path = folder / output.name
    path.with_name(f"{output.name}.csv").write_text(output.frame.to_csv(index=False), encoding="utf-8")
    known = output.frame.astype(object).where(output.frame.notna(), "")
    table = known.to_markdown(index=False, floatfmt=".3f")
    path.with_name(f"{output.name}.md").write_text(f"{output.about}\n\n{table}\n", encoding="utf-8")
    if output.picture is not None:
        output.picture(path)
    endings = ("csv", "md", "png", "svg") if output.picture is not None else ("csv", "md")
    return [f"{output.name}.{ending}" for ending in endings]


def _index(study: Reproduction, done: dict[str, Any], left_out: dict[str, str]) -> str:
    """What was made of which model, with which tasks and settings, and what was not."""
    lines = [
        f"# {study.paper.title}",
        "",
        f"arXiv {study.paper.arxiv}, on {study.model.cfg.model_name}.",
        f"cs-heads {version('cs-heads')}, seed {study.seed}.",
        "Published values stand beside measured ones where they could be verified, and are blank elsewhere.",
        "",
        "| task of the paper | measured with | kind | finding examples | unseen |",
        "|---|---|---|---|---|",
    ]
    for name, task in study.tasks.items():
        lines.append(f"| {name} | {task.name} | {task.kind} | {len(task)} | {len(study.unseen(name))} |")
    lines += ["", f"Settings: {', '.join(f'{name} {value}' for name, value in asdict(study.settings).items())}.", ""]
    for each in done.values():
        for name, about in each["outputs"].items():
            figure = f", [figure]({name}.svg)" if f"{name}.svg" in each["files"] else ""
            lines.append(f"- **{name}**: {about} ([table]({name}.md), [CSV]({name}.csv){figure})")
    if left_out:
        lines += ["", "Left out:", "", *(f"- {name}: {reason}" for name, reason in left_out.items())]
    return "\n".join(lines) + "\n"


def _there(folder: Path, files: Sequence[str]) -> bool:
    return all((folder / file).is_file() for file in files)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _replace(path: Path, text: str) -> None:
    """Write the whole file or nothing."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
