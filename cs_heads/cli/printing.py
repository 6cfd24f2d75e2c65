"""What several commands print: losses of controls, and colors where a terminal shows them.

Colors are never in files, pipes and JSON, nor where NO_COLOR is set.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs_heads.analysis.losses import Specificity

_CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
# A verdict, and what a line of results begins with.
_VERDICTS = {
    "specific": "green",
    "template-bound": "yellow",
    "localized": "yellow",
    "shared": "yellow",
    "not localized": "red",
    "baseline too low": "red",
}
_STATUS = {"ok": "green", "warn": "yellow", "fail": "red"}


def colored(text: str, color: str, stream: Any = None) -> str:
    """The text in a color, or bold, where the stream (standard output by default) shows it; else as it is."""
    stream = sys.stdout if stream is None else stream
    shown = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if shown and not os.environ.get("NO_COLOR") else text


def verdict_colored(verdict: str, width: int = 0) -> str:
    """A verdict in its color, in as many columns as ``width``."""
    return colored(verdict, _VERDICTS.get(verdict.partition(" but for")[0], "bold")) + " " * (width - len(verdict))


def status_colored(line: str) -> str:
    """A line that begins with ok, warn or fail, with that in its color."""
    status = re.match(r"\w+", line)
    color = _STATUS.get(status[0]) if status else None
    return line if status is None or color is None else colored(status[0], color) + line[status.end() :]


def headed(line: str) -> str:
    """A line such as ``note: ...`` or ``cost: ...``, with its head bold."""
    head, colon, rest = line.partition(":")
    return colored(head + colon, "bold") + rest if colon else line


def losses_line(found: Specificity, most: int = 3) -> str:
    """The own loss, the mean control loss, and the controls that lose most."""
    many = len(found.controls)
    line = f"the task loses {found.own}, {f'{many} controls {found.mean} on average' if many > 1 else 'its control'}"
    return f"{line}; {largest_losses(found, most)}" if many > 1 else f"{line} {found.mean}"


def largest_losses(found: Specificity, most: int = 3) -> str:
    """The controls that lose most, the first first."""
    order = sorted(found.controls, key=lambda name: -found.controls[name].loss)
    shown = ", ".join(f"{name} {found.controls[name].loss:.2f}" for name in order[:most])
    left = order[most:]
    more = f"; {len(left)} more lose at most {found.controls[left[0]].loss:.2f}" if left else ""
    return f"controls that lose most: {shown}{more}"
