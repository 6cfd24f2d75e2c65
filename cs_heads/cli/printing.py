"""What several commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs_heads.analysis.losses import Specificity
    from cs_heads.cli.flags import Run


MOST = 3  # controls that are named as those that lose most


def print_json(result: Any) -> None:
    """Print one JSON object, as ``--json`` asks for."""
    from cs_heads.record import json_text

    print(json_text(result))


def end_with_page(options: Run, written: Sequence[Path]) -> None:
    """Write the page of the folder of ``--out``, and say which files a command wrote."""
    from cs_heads.report import write_report

    assert options.out is not None
    page = write_report(options.out, options.out / "report.html")
    if not options.json:
        print(f"written: {', '.join(map(str, (*written, page)))}")


def losses_line(found: Specificity) -> str:
    """The own loss, the mean control loss, and the controls that lose most."""
    many = len(found.controls)
    controls = f"{many} controls {found.mean} on average" if many > 1 else "its control"
    line = f"the task loses {found.own_counted}, {controls}"
    return f"{line}; {largest_losses(found)}" if many > 1 else f"{line} {found.mean}"


def largest_losses(found: Specificity) -> str:
    """The controls that lose most, the first first."""
    from cs_heads.analysis.losses import marked

    order = sorted(found.controls, key=lambda name: -found.controls[name].loss)
    shown = ", ".join(f"{name} {marked(found.controls[name].loss)}" for name in order[:MOST])
    left = order[MOST:]
    more = f"; {len(left)} more lose at most {marked(found.controls[left[0]].loss)}" if left else ""
    return f"controls that lose most: {shown}{more}"
