"""What a capability is: examples, prompts, how an answer is scored. Knows no model and no mask."""

from cs_heads.tasks.load import builtin_tasks as builtin_tasks
from cs_heads.tasks.load import is_builtin as is_builtin
from cs_heads.tasks.load import load_task as load_task
from cs_heads.tasks.load import whole_task as whole_task
from cs_heads.tasks.task import Example as Example
from cs_heads.tasks.task import Task as Task
from cs_heads.tasks.task import confirming_side as confirming_side
from cs_heads.tasks.task import control_side as control_side
from cs_heads.tasks.task import finding_side as finding_side
from cs_heads.tasks.task import search_control as search_control
