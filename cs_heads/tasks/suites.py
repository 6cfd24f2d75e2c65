"""Tasks that belong together, for specificity: ``cs.tasks.suites.general.load(n=100)`` and so on.

A head that a capability rests on is specific to it where ablating it leaves the tasks of other suites as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cs_heads.arguments import check_mapping, check_seed
from cs_heads.tasks.load import entry_of, load_task
from cs_heads.tasks.task import Task


@dataclass(frozen=True)
class Suite:
    """Names of built-in tasks, which ``load`` makes tasks.

    Attributes:
        about: What they have in common, in words.
        names: Their names, in order.

    >>> general.names
    ('hellaswag', 'boolq', 'arc_challenge', 'mmlu')
    >>> "boolq" in general
    True
    """

    about: str
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def load(
        self, n: int | None = None, seed: int = 0, data_files: Mapping[str, Any] | None = None, **options: Any
    ) -> list[Task]:
        """The finding side of each task, as ``load_task`` gives it, in order.

        Args:
            n: Examples of each to find heads with (None: as many as ``load_task`` takes).
            seed: Draws the examples.
            data_files: For each name what the task's ``data_files=`` takes. Names left out are read from the hub. Of a
                group, as ``blimp``, a folder may hold files for some of its tasks; a warning names the others.
            options: ``chat`` and ``too_long`` of ``load_task``, which go to all, and options of those tasks that have
                them.

        Returns:
            One task for each of ``names``, each with its confirming side in ``held_out``.

        Raises:
            ValueError: A name or an option that no task of the suite has, before any is loaded.
        """
        check_seed(seed)
        given = {} if data_files is None else check_mapping("data_files", data_files, "task to its files")
        known = {name: (*entry.options, "chat", "too_long") for name in self.names if (entry := entry_of(name))}
        for name in {*self.names, *given}:
            if name not in known:
                raise ValueError(f"no built-in task {name!r} is in the suite; it has {', '.join(self.names)}")
        for option in options:
            if not any(option in names for names in known.values()):
                raise ValueError(f"no task of the suite ({', '.join(self.names)}) has an option {option!r}")
        tasks = []
        for name in self.names:
            own = {option: value for option, value in options.items() if option in known[name]}
            own |= {"data_files": given[name]} if name in given else {}
            tasks.append(load_task(name, n, seed, **own))
        return tasks


general = Suite("what any model should keep", ("hellaswag", "boolq", "arc_challenge", "mmlu"))
math = Suite("numbers", ("gsm8k", "arithmetic"))
code = Suite("programs", ("humaneval_instruct", "mbpp"))
language = Suite("words and sentences", ("rhyming", "swearing", "blimp"))
wmdp = Suite("hazardous knowledge", ("wmdp_bio", "wmdp_chem", "wmdp_cyber"))
