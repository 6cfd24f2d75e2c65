"""The whole protocol of a paper on any model: tables and figures with the published values beside.

    cs-heads reproduce --paper cs --model demo --out cs-demo --dry-run

A paper is data: its tasks and their roles (``papers.py``), and what was published (``published.py``). A step makes
outputs from a ``Reproduction``; the steps are in ``localization.py`` and ``gating.py``, and what they
cost at most is in ``costs.py``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
