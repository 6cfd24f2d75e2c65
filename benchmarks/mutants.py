"""Would the tests notice a bug? Plants bugs, one at a time, and tells which of them the tests catch.

    python benchmarks/mutants.py [--near] [--jobs 2] [--area lens] [--only "gates are" ...] [--out mutants.md]

The bugs are those of ``mutant_list.py``. Each is planted in a temporary copy of the tree, never in the checkout, and
taken out again. First run the tests most likely to notice it (*near*), then the rest of ``make test`` (*rest*: its
tests and doctests, and those on TransformerLens 3.9 where ``.venv-hooked`` is there), then, with ``--all``, what
``make test-all`` has beyond it (*all*). A bug with which tests cannot even be collected, or do not end, is *broken*: it
proves nothing and is not counted as caught.

``--check`` runs the same tests without any bug, all near ones and then the later stages: they must pass. Exit status 1
where a mutant is broken, where more than one survives, or any with ``--all``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

from mutant_list import AREAS, MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]

# What runs whole on TransformerLens 3.9 in `make test-all`, as in the Makefile.
LENS_TESTS = (
    "tests/lens",
    "tests/engine",
    "tests/cluster",
    "tests/store",
    "tests/experiment",
    "tests/simulate",
    "tests/methods",
)
# It finds every text that a mutant replaces, and so it would catch them all.
OWN_TEST = "tests/test_mutants.py"

FAILED, NO_TESTS = 1, 5
NO_END = "(a run that did not end)"

# Runs under way: each in a session of its own, which Ctrl-C does not reach.
_RUNNING: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Run:
    """One run of pytest: in which environment, and what it is given."""

    environment: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: ``caught``, ``survived`` or ``broken``, at which stage, and by which test."""

    mutant: Mutant
    fate: str
    stage: str
    test: str
    seconds: float


REST = (
    Run(".venv", ("--doctest-modules", "cs_heads", "tests")),
    Run(".venv-hooked", ("-m", "lens and not slow", "tests")),
)
SLOW = (
    Run(".venv", ("-m", "slow", "tests")),
    Run(".venv-hooked", ("-m", "slow or not slow", *LENS_TESTS)),
)


def python_of(environment: str) -> Path:
    """The interpreter of an environment of the checkout."""
    return ROOT / environment / "bin" / "python"


@contextmanager
def copy_of_tree() -> Iterator[Path]:
    """A temporary folder with every file that git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        # Resolved: tests compare paths.
        copy = Path(folder).resolve() / "checkout"
        for name in filter(None, listed.stdout.split("\0")):
            # A file that was deleted is still listed; a link to a folder is an environment.
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        yield copy


@contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The bug in the copy inside the ``with`` block."""
    path = copy / mutant.path
    text = path.read_text(encoding="utf-8")
    try:
        _write(path, mutant.applied(text))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # Compiled code is told by its time in seconds and its size, which a bug may leave as they were.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def pytest(run: Run, copy: Path, limit: float, *, first: bool = True) -> tuple[int, str]:
    """Exit status and output of pytest in the copy; after ``limit`` seconds a status of its own, and ``NO_END``."""
    own = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    real = ROOT.parent / "shared"
    if "CS_HEADS_REAL" not in os.environ and real.is_dir():
        own["CS_HEADS_REAL"] = str(real)
    settings = ("-q", "-rfE", "-p", "no:cacheprovider", f"--ignore={OWN_TEST}", *(["-x"] if first else []))
    process = subprocess.Popen(
        [python_of(run.environment), "-m", "pytest", *settings, *run.arguments],
        cwd=copy,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _RUNNING.add(process)
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return -1, NO_END
    finally:
        _RUNNING.discard(process)
    return process.returncode, said


def _end(process: subprocess.Popen[str]) -> None:
    """End a run with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judge(mutant: Mutant, copy: Path, options: argparse.Namespace) -> Outcome:
    """Plant a bug and run tests, stage by stage, until one notices it."""
    start = perf_counter()
    stages: list[tuple[str, Sequence[Run]]] = [("near", [Run(".venv", mutant.tests)])]
    if not options.near:
        stages += [("rest", REST), *([("all", SLOW)] if options.all else [])]
    with planted(mutant, copy):
        for stage, runs in stages:
            for run in runs:
                if not python_of(run.environment).exists():
                    continue
                status, said = pytest(run, copy, options.limit)
                if status not in (0, NO_TESTS):
                    test = failing(said)
                    # What cannot be collected has a file and no test, and with -x the status of a failure.
                    fate = "caught" if status == FAILED and "::" in test else "broken"
                    return Outcome(mutant, fate, stage, test, perf_counter() - start)
    return Outcome(mutant, "survived", stages[-1][0], "", perf_counter() - start)


def failing(said: str) -> str:
    """The first test that failed, as pytest names it, or the last line where it names none."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, flags=re.MULTILINE)
    return found[1] if found else (said.strip().splitlines() or [""])[-1]


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that are asked for; none at all ends the program."""
    found = [
        mutant
        for mutant in MUTANTS
        if options.area in (None, mutant.area)
        and (not options.only or any(part.lower() in mutant.name.lower() for part in options.only))
    ]
    if not found:
        sys.exit("mutants: no mutant of that name or area (--list names them)")
    return found


def judge_all(mutants: Sequence[Mutant], options: argparse.Namespace) -> list[Outcome]:
    """Every mutant, each job with its own copy of the tree; a line for each as it ends."""
    found: dict[Mutant, Outcome] = {}
    free: SimpleQueue[Path] = SimpleQueue()

    def one(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return judge(mutant, copy, options)
        finally:
            free.put(copy)

    with ExitStack() as stack:
        for _ in range(options.jobs):
            free.put(stack.enter_context(copy_of_tree()))
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        try:
            for ended in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                outcome = ended.result()
                found[outcome.mutant] = outcome
                by = f" by {outcome.test}" if outcome.test else ""
                said = f"{outcome.fate} ({outcome.stage}, {outcome.seconds:.0f} s): {outcome.mutant.name}{by}"
                print(f"[{len(found)}/{len(mutants)}] {said}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_RUNNING):
                _end(process)
            raise
    return [found[mutant] for mutant in mutants]


def check(mutants: Iterable[Mutant], options: argparse.Namespace) -> int:
    """Run the tests on the tree as it is; 1 where any fails."""
    runs = [Run(".venv", tuple(sorted({test for mutant in mutants for test in mutant.tests})))]
    runs += [*(() if options.near else REST), *(SLOW if options.all else ())]
    worst = 0
    with copy_of_tree() as copy:
        for run in runs:
            if python_of(run.environment).exists():
                status, said = pytest(run, copy, options.limit, first=False)
                print(said.strip(), flush=True)
                worst = max(worst, int(status not in (0, NO_TESTS)))
    return worst


def table(outcomes: Iterable[Outcome]) -> str:
    """All mutants as Markdown: what catches each, and when."""
    rows = ["| planted bug | area | caught by | stage |", "|---|---|---|---|"]
    for one in outcomes:
        by = f"`{one.test}`" if one.fate == "caught" else one.fate
        rows.append(f"| {one.mutant.name} | {one.mutant.area} | {by} | {one.stage} |")
    return "\n".join(rows)


def summary(outcomes: Sequence[Outcome], options: argparse.Namespace) -> str:
    """How many are caught, and the names of those that are not."""
    by = "their near tests" if options.near else "make test-all" if options.all else "make test"
    caught = sum(one.fate == "caught" for one in outcomes)
    lines = [f"caught by {by}: {caught} of {len(outcomes)}"]
    for fate in ("survived", "broken"):
        lines += [f"{fate}: {one.mutant.name}" for one in outcomes if one.fate == fate]
    return "\n".join(lines)


def write(path: Path, outcomes: Sequence[Outcome], said: str) -> None:
    """The table and the counts as Markdown, and the same as JSON beside it."""
    path.write_text(f"{table(outcomes)}\n\n{said}\n", encoding="utf-8")
    records = [
        {**asdict(one.mutant), "fate": one.fate, "stage": one.stage, "test": one.test, "seconds": round(one.seconds, 1)}
        for one in outcomes
    ]
    path.with_suffix(".json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Plant the bugs that are asked for, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="mutants whose name holds one of these")
    parser.add_argument("--area", choices=AREAS, help="mutants of one area")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once, each with a copy of the tree")
    parser.add_argument("--near", action="store_true", help="run the tests nearest to each mutant alone")
    parser.add_argument("--all", action="store_true", help="run slow tests, too, on what survives the others")
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    parser.add_argument("--check", action="store_true", help="run the tests without any mutant and end")
    parser.add_argument("--limit", type=float, default=6 * 3600, help="seconds after which a run of tests is ended")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, and JSON beside it")
    options = parser.parse_args()
    if options.near and options.all:
        parser.error("--near leaves out what --all asks for")
    if options.jobs < 1:
        parser.error("--jobs must be 1 or more")
    mutants = chosen(options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.area:<9} {mutant.name}  ({mutant.path})")
        return 0
    if not python_of(".venv").exists():
        sys.exit("mutants: there is no .venv: make venv")
    if options.check:
        return check(mutants, options)
    outcomes = judge_all(mutants, options)
    said = summary(outcomes, options)
    print(f"\n{table(outcomes)}\n\n{said}")
    if options.out is not None:
        write(options.out, outcomes, said)
    survivors = sum(one.fate == "survived" for one in outcomes)
    broken = any(one.fate == "broken" for one in outcomes)
    return int(broken or survivors > (0 if options.all else 1))


if __name__ == "__main__":
    sys.exit(main())
