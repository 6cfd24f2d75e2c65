"""What a capability is: examples, prompts, how an answer is scored. Knows no model and no mask.

A **task** is examples of one form: a choice (the right continuation is the most likely), a completion (every
target token is the argmax), or a generation (the model writes, a scorer judges). A score lies between 0 and 1;
*chance* is what guessing scores.

The **unseen side.** Heads found on examples always seem to matter for those examples. A task is therefore split
before anything is measured: the *finding* side goes to the search, the *confirming* side to the proof, and one
question stays on one side, also with its choices in another order. A task that is not split is refused.

>>> from cs_heads.tasks import Task
>>> cities = ["Oslo", "Rome", "Cairo", "Paris"]
>>> task = Task.from_records([{"prompt": f"{i}:", "target": f" {city}"} for i, city in enumerate(cities)], "cities")
>>> finding, unseen = task.split(n=3, seed=0)
>>> (finding.role, len(finding)), (unseen.role, len(unseen)), finding.held_out == unseen
(('finding', 3), ('confirming', 1), True)

A *control* is another task, whole or split: one half helps the search to tell heads of the task from heads that every
task needs, the other is judged. The default ones are everyday skills (``default_controls``).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
