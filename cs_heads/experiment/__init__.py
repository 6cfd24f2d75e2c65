"""The waist: masks in, scores out, and what that costs.

An ``Experiment`` is a model and a task: masks ``[mask, layer, head]`` in, **scores** ``[mask, example]`` out,
between 0 and 1. The **baseline** is the intact score, with no head off. Everything left of it (models, tokens,
workers, the store) is hidden; methods and analyses need no more than ``grid``, ``n_examples`` and the call
(``experiment.protocol.ExperimentLike``).

**Cost** is counted in example-evaluations: one mask on one example, a forward pass; a backward pass counts as
another. An experiment measures no pair twice. *Evaluations*, without more, are 100 example-evaluations, a mask on
100 examples. A budget is never exceeded.

Planted worlds answer like a model whose heads are known, so that cost and certainty can be tried for nothing:

>>> import numpy as np
>>> from cs_heads.units import Grid
>>> from cs_heads.simulate import planted_world
>>> made = planted_world("main", Grid(12, 12), seed=0)
>>> intact, off = made.task(np.stack([made.grid.mask([]), made.grid.mask(made.planted)])).mean(axis=1)
>>> bool(off < intact / 2), made.task.spent
(True, 200)
"""
