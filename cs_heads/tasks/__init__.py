"""What a capability is: examples, prompts, how an answer is scored. Knows no model and no mask."""

from cs_heads.tasks.catalogue import Entry as Entry
from cs_heads.tasks.example import Example as Example
from cs_heads.tasks.forms import full_form as full_form
from cs_heads.tasks.forms import letter_form as letter_form
from cs_heads.tasks.load import builtin_tasks as builtin_tasks
from cs_heads.tasks.load import entry_of as entry_of
from cs_heads.tasks.load import load_task as load_task
from cs_heads.tasks.load import whole_task as whole_task
from cs_heads.tasks.scorer import ExactMatch as ExactMatch
from cs_heads.tasks.scorer import LogprobScorer as LogprobScorer
from cs_heads.tasks.scorer import Scorer as Scorer
from cs_heads.tasks.sides import confirming_side as confirming_side
from cs_heads.tasks.sides import control_side as control_side
from cs_heads.tasks.sides import finding_side as finding_side
from cs_heads.tasks.sides import search_control as search_control
from cs_heads.tasks.task import Task as Task
