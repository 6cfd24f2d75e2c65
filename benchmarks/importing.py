"""How long a user waits for ``import cs_heads``: ``python benchmarks/importing.py``.

Exit status 1 from half a second on. The best of several fresh interpreters, less what an interpreter needs by itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from time import perf_counter

ALLOWED = 0.5
"""Seconds."""


def best(code: str, repeats: int) -> float:
    """Seconds of the fastest of several interpreters that run ``code``."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure, print, and fail where it takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    seconds = best("import cs_heads", repeats) - best("pass", repeats)
    print(f"import cs_heads: {seconds:.3f} s (allowed: below {ALLOWED})")
    sys.exit(seconds >= ALLOWED)


if __name__ == "__main__":
    main()
