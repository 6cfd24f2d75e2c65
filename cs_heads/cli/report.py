"""Write the HTML report of a study.

Write one HTML file that opens without a network: the heads and the verdict, what broke, maps,
curves, attention patterns, cost, provenance. Nothing is measured and no model is loaded.

Examples:
  cs-heads find --model demo --task demo/capitals --out capitals
  cs-heads report capitals -o capitals.html
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cs_heads.cli.options import add_command

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands


def add(commands: Commands) -> None:
    """The sub-command ``report``."""
    parser = add_command(commands, "report", __doc__, _report)
    parser.add_argument("study", type=Path, metavar="STUDY", help="folder that find --out or compare --out wrote")
    parser.add_argument(
        "-o", "--out", type=Path, default=None, metavar="FILE", help="where to write it (default: STUDY/report.html)"
    )


def _report(options: argparse.Namespace) -> None:
    from cs_heads.report import write_report

    print(f"written: {write_report(options.study, options.out or options.study / 'report.html')}")
