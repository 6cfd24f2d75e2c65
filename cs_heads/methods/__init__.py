"""Ways to a ranking of heads.

A method takes an experiment, or a model and a task, and returns a ``HeadRanking``: the **importance** of every
head, score lost with it off unless ``unit`` says otherwise, positive where the head facilitates the
task. Methods that know how sure they are add **intervals**, **claims** (heads that take more than 2 points beyond
random ones), and how often a head is selected. ``METHODS`` has them by name, as ``find_heads(method=)`` and the
command line take them.

Sensing (``annealed``, ``css``, ``csb``) measures random groups of heads and solves a sparse regression: few heads
matter, so far fewer masks than heads suffice. Group testing searches dense masks that break the task for the head or
the redundant pair that does it. Greedy search ablates each head; gating, gradients and mediation use
the model itself.

**Universal** heads are those that every task needs: without them the model writes nothing sensible, and they rank
high for any task. ``controls``, other tasks, tell them apart: with these, heads are ranked by the **contrast**, what
they take from the task less what they take from the controls. ``annealed`` sets heads that surely take much from both
aside as **shared**, with both effects; they are never among the top. The table of ``cs.universal_heads`` tells
universal heads of several tasks.

A ranking is no proof: some head always comes first. ``cs.confirm`` gives the verdict.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
