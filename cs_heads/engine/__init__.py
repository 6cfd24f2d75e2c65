"""The engine: rows of masks and examples, planned into forwards of which none is run twice.

One idea a module: shared ``prefixes`` (cut into pieces by ``layout``), starting at a layer from the ``intact``
run, the ``plan`` of a batch, kinds of ``ablation``; ``forwards`` run all this for ``scoring`` and ``generation``.
"""

from cs_heads.engine.scoring import Engine as Engine
