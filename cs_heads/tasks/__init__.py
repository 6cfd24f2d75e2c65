"""What a capability is: examples, prompts, how an answer is scored. Knows no model and no mask.

A **task** is examples of one form: a choice (the right continuation is the most likely), a completion (every
target token is the argmax), or a generation (the model writes, a scorer judges). A score lies between 0 and 1;
*chance* is what guessing scores.

The **unseen side.** Heads found on examples always seem to matter for those examples. A task is therefore split
before anything is measured: the *finding* side goes to the search, the *confirming* side to the proof, and one
question stays on one side, also with its choices in another order. A task that is not split is refused.

>>> cities = ["Oslo", "Rome", "Cairo", "Paris"]
>>> task = Task.from_records([{"prompt": f"{i}:", "target": f" {city}"} for i, city in enumerate(cities)], "cities")
>>> finding, unseen = task.split(n=3, seed=0)
>>> (finding.role, len(finding)), (unseen.role, len(unseen)), finding.held_out == unseen
(('finding', 3), ('confirming', 1), True)

A *control* is another task, whole or split: one half helps the search to tell heads of the task from heads that every
task needs, the other is judged. The default ones are everyday skills (``default_controls``).
"""

from cs_heads.tasks import suites as suites
from cs_heads.tasks.controls import check_controls as check_controls
from cs_heads.tasks.controls import default_controls as default_controls
from cs_heads.tasks.controls import default_kin as default_kin
from cs_heads.tasks.controls import without_kin as without_kin
from cs_heads.tasks.example import Example as Example
from cs_heads.tasks.family import Entry as Entry
from cs_heads.tasks.forms import full_form as full_form
from cs_heads.tasks.forms import letter_form as letter_form
from cs_heads.tasks.load import builtin_tasks as builtin_tasks
from cs_heads.tasks.load import entry_of as entry_of
from cs_heads.tasks.load import load_task as load_task
from cs_heads.tasks.load import read_task_file as read_task_file
from cs_heads.tasks.scorer import ExactMatch as ExactMatch
from cs_heads.tasks.scorer import LogprobScorer as LogprobScorer
from cs_heads.tasks.scorer import Scorer as Scorer
from cs_heads.tasks.splits import confirming_side as confirming_side
from cs_heads.tasks.splits import control_side as control_side
from cs_heads.tasks.splits import finding_side as finding_side
from cs_heads.tasks.splits import search_control as search_control
from cs_heads.tasks.task import Task as Task
