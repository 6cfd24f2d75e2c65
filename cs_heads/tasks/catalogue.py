"""What a built-in task says of itself, and how it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cs_heads.arguments import check_options
from cs_heads.tasks.task import Task


@dataclass(frozen=True)
class Entry:
    """A built-in task: one line ``about`` it, what it ``needs`` (an extra, files; "" for nothing), and its loader.

    ``load(n, seed, **options)`` gives the finding side, its other examples held out; ``n`` None is the loader's
    default. Its keywords beyond ``n`` and ``seed`` are the options that ``load_task`` passes on. ``leaves_out`` says
    what an entry that stands for many tasks refuses.
    """

    about: str
    load: Callable[..., Task]
    needs: str = ""
    leaves_out: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keywords a user may set."""
        given = set(getattr(self.load, "keywords", ()))
        parameters = inspect.signature(self.load).parameters.values()
        named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return tuple(name for name in named if name not in {"n", "seed", *given})

    def checked(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options; one that the task does not have, or of another type, raises ``ValueError`` naming it."""
        unknown = [option for option in options if option not in self.options]
        if unknown:
            has = f"it has {', '.join(self.options)}" if self.options else "it has none"
            raise ValueError(f"task {name!r} has no option {', '.join(unknown)}; {has}")
        try:
            check_options(self.load, options)
        except ValueError as error:
            raise ValueError(f"task {name!r}: {error}") from None
        return options
