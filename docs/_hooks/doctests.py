"""Examples of docstrings are code on the pages of the API: by itself Markdown reads ``>>>`` as a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Puts a fence around each example."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Once the object has been read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Fences around what is typed at a prompt and what it answers, up to an empty line.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nNo more.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nNo more.'
    """
    return re.sub(r"^>>> .*(?:\n.*\S.*)*", lambda example: f"```pycon\n{example[0]}\n```", text, flags=re.MULTILINE)
