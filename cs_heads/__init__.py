"""Finds the few attention heads that a capability of a language model rests on.

    import cs_heads as cs

    model = cs.load_model("gpt2")
    task = cs.load_task("my_task.jsonl", n=100, seed=0)
    found = cs.find_heads(model, task)
    cs.confirm(model, task, found.top(5))

What is exported stands in ``__init__.pyi``; each name is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
