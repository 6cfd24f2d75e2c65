"""Pictures of results.

Each function draws one kind of result on axes of its own or on those given (``ax=``), and returns the axes;
``result.plot()`` picks the usual one for a result. ``save`` writes PNG, SVG and PDF. Pictures fit a
column of a paper (3.3 inches) or a page, are legible in print without colors, and keep to a few signs: blue facilitates
and orange interferes in every map, gray is random heads, and a head has the same color and marker everywhere:

>>> from cs_heads.units import Head
>>> from cs_heads.plot.head_markers import head_look
>>> head_look(Head(2, 6)) == head_look(Head.parse("L2H6"))
True

``cs.write_report`` puts all pictures of what was found on one page.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
