"""One progress bar for each call: what runs, example-evaluations done and to do, the time left, the baseline so far.

A call that measures in many steps is marked with ``one_bar``. What is measured inside it, by calls that it makes too,
shows in its bar, which opens when the first example-evaluation is asked for. Tests replace ``bar_class``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

_FORMAT = "{desc} {percentage:3.0f}%|{bar}| {n:,.0f}/{total:,.0f} evals [{elapsed}<{remaining}{postfix}]"

# Seconds between lines where the output is no terminal.
_MINUTE = 60.0


@dataclass
class _Call:
    """A call in progress: its name, its step, and what it says that it costs from ``start`` on."""

    name: str
    step: str = ""
    start: int = 0
    cost: int | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.step) if part)


@dataclass
class _Bar:
    """The bar of a call and of all calls inside it; without ``shown`` nothing has been measured yet."""

    calls: list[_Call] = field(default_factory=list)
    n: int = 0
    total: int = 0
    tasks: Collection[str] = ()
    intact: dict[str, Float[np.ndarray, " example"]] = field(default_factory=dict)
    shown: Any = None

    def __str__(self) -> str:
        return ": ".join(filter(None, map(str, self.calls)))

    @property
    def is_visible(self) -> bool:
        """Whether it is open, and to be seen."""
        return self.shown is not None and not self.shown.disable

    def open(self, progress: bool | None) -> None:
        """Open it, if it is not; what the first measurement asks for decides whether it is shown."""
        if self.shown is None:
            notebook = _in_notebook()
            kind: dict[str, Any] = {"bar_format": _FORMAT}
            if notebook:
                kind |= {"file": sys.stdout}
            elif (progress or _at_terminal()) and _has_rows():
                kind |= {"dynamic_ncols": True}
            else:
                # A line that is cut to a width loses its end, and that of the line.
                lines = _FORMAT.replace("|{bar}|", "") + "\n"
                kind |= {"bar_format": lines, "mininterval": _MINUTE, "maxinterval": _MINUTE}
                kind |= {"ncols": 10_000, "nrows": 24}
            # A bar that is a widget does not read it by itself.
            if progress is False or os.environ.get("TQDM_DISABLE"):
                kind |= {"disable": True}
            self.shown = bar_class(notebook)(desc=str(self), total=max(self.total, 1), **kind)

    def at(self, task: str) -> None:
        """Say which task is measured, in a call on several."""
        if len(self.tasks) > 1:
            self.calls[-1].name = task
            self.draw(now=False)

    def add(self, n: int) -> None:
        """So many more example-evaluations are done."""
        self.n += n
        self.reach(self.n)
        if self.shown is not None:
            self.shown.update(n)

    def reach(self, total: int) -> None:
        """There are at least so many in all."""
        if total > self.total:
            self.set_total(total)

    def set_total(self, total: int) -> None:
        """There are so many in all, by what is known now."""
        self.total = total
        if self.is_visible:
            self.shown.total = max(total, 1)
            # The widget of a notebook has a maximum of its own.
            if hasattr(self.shown, "container"):
                self.shown.container.children[1].max = self.shown.total

    def draw(self, *, now: bool = True) -> None:
        """Show what runs and the baseline so far, ``now`` or when more is done."""
        if not self.is_visible:
            return
        self.shown.set_description_str(str(self), refresh=False)
        known = [scores[~np.isnan(scores)] for scores in self.intact.values()]
        scores = np.concatenate(known) if known else np.array([])
        if len(scores):
            self.shown.set_postfix_str(f"baseline {scores.mean():.2f}", refresh=False)
        if now and self.shown.mininterval < _MINUTE:
            self.shown.refresh()

    def leave(self) -> None:
        """A call has ended: what it said that it costs, and did not take, is not to come any more."""
        call = self.calls.pop()
        if call.cost is not None:
            self.set_total(max(self.n, self.total + self.n - call.start - call.cost))
        self.draw()

    def close(self, finished: bool) -> None:
        """The outermost call has ended."""
        if self.shown is not None:
            if finished:
                self.set_total(self.n)
            self.shown.close()


_OPEN: ContextVar[_Bar | None] = ContextVar("bar", default=None)


def bar_class(in_notebook: bool) -> Any:
    """The class of a bar: a widget where a notebook has them, else text."""
    if in_notebook:
        from tqdm import notebook as widgets

        if getattr(widgets, "IProgress", None) is not None:
            return widgets.tqdm
    return tqdm


@contextmanager
def one_bar(name: str, *, outermost: bool = False) -> Iterator[_Bar]:
    """What marks a call that measures in many steps: it shows one bar, or its name in that of the call around it.

    It stands above the call as ``@one_bar("confirm")``, or around a block as ``with one_bar("confirm"):``.

    Args:
        name: What runs, in a word or two.
        outermost: Whether the name is shown only where no other call is around it, as a method's own, which
            ``find_heads`` names.
    """
    outer, finished = _OPEN.get(), False
    bar = outer or _Bar()
    bar.calls.append(_Call("" if outermost and outer else name, start=bar.n))
    before = _OPEN.set(bar)
    bar.draw()
    try:
        yield bar
        finished = True
    finally:
        _OPEN.reset(before)
        if outer is None:
            bar.close(finished)
        else:
            bar.leave()


def name_call(name: str) -> None:
    """Name the call in progress otherwise, as ``find_heads`` after its method."""
    if (bar := _OPEN.get()) is not None:
        bar.calls[-1].name = name
        bar.draw()


def step(name: str, tasks: Collection[str] | None = None) -> None:
    """Name the step of the call in progress that begins.

    Args:
        name: The step.
        tasks: Names of the tasks whose baseline is shown (None: as before; of a call that says none, the first that is
            measured).
    """
    if (bar := _OPEN.get()) is not None:
        bar.calls[-1].step = name
        if tasks is not None and len(bar.calls) == 1:
            bar.tasks = tasks
        bar.draw()


def expect(cost: int) -> None:
    """Say what the call in progress costs at most, from its beginning, in example-evaluations.

    Methods say it once all arguments are checked and before anything is measured.
    """
    if (bar := _OPEN.get()) is not None:
        *around, call = bar.calls
        # What has no name is a step of the call around it, as a method in ``find_heads``, which ran the intact model.
        if call.name or around[-1].cost is None:
            call.cost = cost
            bar.reach(call.start + cost)


@contextmanager
def counting(name: str, total: int, progress: bool | None, done: int = 0) -> Iterator[_Bar]:
    """Count ``total`` example-evaluations in the bar of the call in progress; outside any they have a bar of their own.

    Args:
        name: What a bar of their own is called.
        total: Example-evaluations to come, those ``done`` among them.
        progress: Whether a bar is shown (None: yes; off a terminal as a line at once and one a minute).
        done: What is known already.

    Yields:
        What is told of more by its ``add``.
    """
    with one_bar(name, outermost=True) as bar:
        bar.reach(bar.n + total)
        bar.open(progress)
        if done:
            bar.add(done)
        yield bar


def announce(text: str, progress: bool | None) -> None:
    """Say on a line what runs before there is anything to count, off a terminal, where a bar is lines too.

    Args:
        text: What runs.
        progress: As of a call that measures.
    """
    if not (progress is False or os.environ.get("TQDM_DISABLE") or sys.stderr is None or _at_terminal()):
        tqdm.write(text, file=sys.stderr)


def is_shown() -> bool:
    """Whether there is a bar to see."""
    bar = _OPEN.get()
    return bar is not None and bar.is_visible


def show_baseline(task: str, scores: Float[np.ndarray, " example"]) -> None:
    """Show the mean of the intact scores so far, NaN where one is not known, if the call is about this task."""
    bar = _OPEN.get()
    if bar is None or not bar.is_visible:
        return
    if not bar.tasks:
        bar.tasks = (task,)
    if task in bar.tasks:
        bar.intact[task] = scores
        bar.draw(now=False)


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this, in whatever front end."""
    shell: Callable[[], Any] = getattr(sys.modules.get("IPython"), "get_ipython", str)
    return hasattr(shell(), "kernel")


def _at_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _has_rows() -> bool:
    """Whether a bar can be seen: in a terminal that says it has no rows, as ``script`` makes it, tqdm draws none."""
    with suppress(AttributeError, OSError, ValueError):  # it is no terminal, or none at all
        return os.get_terminal_size(sys.stderr.fileno()).lines > 0
    return True
