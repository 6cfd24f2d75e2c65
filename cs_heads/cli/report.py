"""``cs-heads report``: a page of what ``find`` or ``compare`` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cs_heads.cli.options import Help

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands

_EXAMPLES = """\
examples:
  cs-heads find --model demo --task demo/capitals --out capitals
  cs-heads report capitals -o capitals.html
"""


def add(commands: Commands) -> None:
    """The sub-command ``report``."""
    parser = commands.add_parser(
        "report",
        help="write the HTML report of a study",
        description="Write one HTML file that opens without a network: the heads and the verdict, what broke, maps,\n"
        "curves, attention patterns, cost, provenance. Nothing is measured and no model is loaded.",
        epilog=_EXAMPLES,
        formatter_class=Help,
    )
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder that find --out or compare --out wrote")
    parser.add_argument(
        "-o", "--out", type=Path, default=None, metavar="FILE", help="where to write it (default: STUDY/report.html)"
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from cs_heads.report import write_report

    print(f"written: {write_report(options.study, options.out or options.study / 'report.html')}")
