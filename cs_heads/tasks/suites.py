"""Tasks that belong together, for specificity: ``cs.tasks.suites.general.load(n=100)`` and so on.

A head that a capability rests on is specific to it where ablating it leaves the tasks of other suites as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cs_heads.arguments import check_seed
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
    >>> "boolq" in general, len(general)
    (True, 4)
    """

    about: str
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def load(
        self,
        n: int | None = None,
        seed: int = 0,
        data_files: Mapping[str, Any] | None = None,
        *,
        chat: str | None = None,
        too_long: str | None = None,
        **options: Any,
    ) -> list[Task]:
        """The finding side of each task, as ``load_task`` gives it, in order.

        Args:
            n: Examples of each to find heads with (None: as many as ``load_task`` takes).
            seed: Draws the examples.
            data_files: For each name what the task's ``data_files=`` takes. Names left out are read from the hub. Of a
                group, as ``blimp``, a folder may hold files for some of its tasks; a warning names the others.
            chat: Goes to all tasks; see ``load_task``.
            too_long: Goes to all tasks; see ``load_task``.
            options: Go to those tasks that have them.

        Returns:
            One task for each of ``names``, each with its confirming side in ``held_out``.

        Raises:
            ValueError: A name or an option that no task of the suite has, before any is loaded.
        """
        check_seed(seed)
        if data_files is not None and not isinstance(data_files, Mapping):
            raise ValueError(f"data_files of a suite must be a mapping, task to its files, got {data_files!r:.80}")
        given = dict(data_files or {})
        known = {name: entry.options for name in self.names if (entry := entry_of(name)) is not None}
        for name in (*self.names, *given):
            if name not in known or name not in self.names:
                raise ValueError(f"no built-in task {name!r} is in the suite; it has {', '.join(self.names)}")
        for option in options:
            if not any(option in names for names in known.values()):
                raise ValueError(f"no task of the suite ({', '.join(self.names)}) has an option {option!r}")
        tasks = []
        for name in self.names:
            own = {option: value for option, value in options.items() if option in known[name]}
            own |= {"data_files": given[name]} if name in given else {}
            tasks.append(load_task(name, n, seed, chat=chat, too_long=too_long, **own))
        return tasks


general = Suite("what any model should keep", ("hellaswag", "boolq", "arc_challenge", "mmlu"))
math = Suite("numbers", ("gsm8k", "arithmetic"))
code = Suite("programs", ("humaneval_instruct", "mbpp"))
language = Suite("words and sentences", ("rhyming", "swearing", "blimp"))
wmdp = Suite("hazardous knowledge", ("wmdp_bio", "wmdp_chem", "wmdp_cyber"))
