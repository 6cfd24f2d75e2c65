"""The whole protocol of a paper on any model: tables and figures beside what was published.

    cs-heads reproduce --paper cs --model demo --out cs-demo --dry-run

A paper is data (``papers.py``): its tasks, what each is for, and what was published (``published.py``). A step
(``localisation.py``, ``gating.py``) makes outputs from a ``Reproduction`` and says beforehand what it costs.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
