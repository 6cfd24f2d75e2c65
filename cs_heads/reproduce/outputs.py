"""What a step makes: tables by the paper's names of tasks, and the figures that go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.reproduce.reproduction import Reproduction


@dataclass(frozen=True, eq=False)
class Output:
    """A table or figure: file name without ending, one line on what it shows, the table, and what draws it.

    ``picture`` writes the figure to a path without ending (None: a table alone).
    """

    name: str
    about: str
    frame: pd.DataFrame
    picture: Callable[[Path], object] | None = None


def measured(study: Reproduction, frame: pd.DataFrame) -> pd.DataFrame:
    """A table by the paper's names of tasks in place of labels, with what each was measured with beside."""
    names = {study.label(name): name for name in study.tasks}
    frame = frame.assign(task=[names.get(task, task) for task in frame["task"]])
    members = {name: study.members(name) or [name] for name in frame["task"]}
    sources = {name: ", ".join(study.tasks[member].name for member in some) for name, some in members.items()}
    frame.insert(list(frame).index("task") + 1, "measured with", [sources[name] for name in frame["task"]])
    return frame


def titled(title: str, plot: Callable[..., Any]) -> Callable[..., Any]:
    """``plot`` with a title over the whole figure."""

    def draw(*arguments: Any, **options: Any) -> Any:
        drawn = plot(*arguments, **options)
        axes = drawn if hasattr(drawn, "get_figure") else next(iter(drawn))
        axes.get_figure(root=True).suptitle(title, fontsize="medium")
        return drawn

    return draw
