"""``python -m cs_heads.cli``."""

import sys

from cs_heads.cli import run

sys.exit(run())
