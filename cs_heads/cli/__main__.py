"""``python -m cs_heads.cli``."""

import sys

from cs_heads.cli import main

sys.exit(main())
