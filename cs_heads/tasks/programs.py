"""HumanEval and MBPP from the hub or from files: ``humaneval_instruct`` and ``mbpp``, by these names and lm-eval's.

The programs are judged in the sandbox (``cs_heads.tasks.code``), never by lm-eval, which runs them unprotected.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from cs_heads.tasks import code
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.hub import hub_rows
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
    needs = "the extra code and bubblewrap; data_files=, or the hub; runs what the model writes: --allow-code"
    return Entry(code.FORMS[name].about, partial(load, name), needs)


def load(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: str | Path | Sequence[str | Path] | None = None,
    allow_code: bool = False,
    unsafe_code: bool = False,
) -> Task:
    """``n`` finding examples, the others held out; options are those of ``cs_heads.tasks.code``."""
    read = partial(
        code.load_mbpp if name == "mbpp" else code.load_humaneval,
        name,
        n,
        seed,
        allow_code=allow_code,
        unsafe_code=unsafe_code,
    )
    # Nothing is downloaded that may not be run.
    if data_files is not None or not (allow_code or unsafe_code):
        return read(data_files=data_files)
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.jsonl"
        rows = hub_rows(*DATASETS[name])
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read(data_files=file)
