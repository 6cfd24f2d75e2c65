"""HumanEval and MBPP from the hub or from files: ``humaneval_instruct`` and ``mbpp``, by these names and lm-eval's.

The programs are judged in the sandbox (``cs_heads.tasks.code``), never by lm-eval, which runs them unprotected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cs_heads.tasks import code
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.hub import hub_rows
from cs_heads.tasks.sandbox import Sandbox
from cs_heads.tasks.task import Task

_HUMANEVAL = ("openai/openai_humaneval", None, ("test",))

DATASETS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "humaneval": _HUMANEVAL,
    "humaneval_instruct": _HUMANEVAL,
    "mbpp": ("google-research-datasets/mbpp", "full", ("prompt", "test")),
}
"""Names → the hub's data set, its part, and the splits that are read."""


def catalogue() -> dict[str, Entry]:
    """The sets of programs that the paper takes."""
    return {name: entry(name) for name in ("humaneval_instruct", "mbpp")}


def entry(name: str) -> Entry:
    """A set of programs by name, one of ``DATASETS``."""
    needs = "the extra code, bubblewrap, and --allow-code; data_files=, or the hub"
    return Entry(code.FORMS[name].about, partial(load_mbpp if name == "mbpp" else load_humaneval, name), needs)


def load_humaneval(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: str | Path | Sequence[str | Path] | None = None,
    allow_code: bool = False,
    unsafe_code: bool = False,
    sandbox: Sandbox | None = None,
) -> Task:
    """``n`` finding examples, the others held out; options and errors are those of ``code.load_humaneval``."""
    given: dict[str, Any] = {"allow_code": allow_code, "unsafe_code": unsafe_code, "sandbox": sandbox}
    return _read(name, partial(code.load_humaneval, name, n, seed, **given), data_files, allow_code or unsafe_code)


def load_mbpp(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: str | Path | Sequence[str | Path] | None = None,
    allow_code: bool = False,
    unsafe_code: bool = False,
    sandbox: Sandbox | None = None,
    few_shot: int = 3,
) -> Task:
    """``n`` finding examples, the others held out; options and errors are those of ``code.load_mbpp``."""
    given: dict[str, Any] = {
        "allow_code": allow_code,
        "unsafe_code": unsafe_code,
        "sandbox": sandbox,
        "few_shot": few_shot,
    }
    return _read(name, partial(code.load_mbpp, name, n, seed, **given), data_files, allow_code or unsafe_code)


def _read(name: str, read: Callable[..., Task], data_files: Any, allowed: bool) -> Task:
    # Nothing is downloaded that may not be run.
    if data_files is not None or not allowed:
        return read(data_files=data_files)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.jsonl"
        rows = hub_rows(*DATASETS[name])
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read(data_files=file)
