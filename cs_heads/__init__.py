"""Finds the few attention heads that a capability of a language model rests on.

    import cs_heads as cs

    model = cs.load_model("gpt2")
    task = cs.load_task("my_task.jsonl", n=100, seed=0)
    found = cs.find_heads(model, task)  # controls=[...]: other tasks than the everyday skills of the library
    cs.confirm(model, task, found)

A **head** is one query head before W_O, named by layer and place; a **mask** says which heads are off (True =
ablated) in one run, and its **density** is their share:

>>> import cs_heads as cs
>>> grid = cs.Grid(3, 4)
>>> mask = grid.mask(["L0H1", cs.Head(2, 3)])
>>> mask.shape, int(mask.sum()), round(float(mask.mean()), 3)
((3, 4), 2, 0.167)

Each package explains its part: ``help(cs_heads.tasks)``, what a capability is, and which examples are unseen;
``cs_heads.lens``, models and kinds of ablation; ``cs_heads.experiment``, masks in, scores out, and what that costs;
``cs_heads.methods``, ways to a ranking, and universal heads; ``cs_heads.analysis``, the verdict, what breaks, and your
own model with the heads off; ``cs_heads.plot``, pictures; ``cs_heads.report``, all of them on one page.

What is exported stands in ``__init__.pyi``; each name is imported when it is first used.
"""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading it takes longer than all else that an import does.
        from importlib.metadata import version

        return version("cs-heads")
    return _load(name)
