"""Indirect object identification: *When Mary and John went to the shop, John gave a ring to* — Mary.

The task of Wang et al., *Interpretability in the Wild* (arXiv 2211.00593), with names and templates of our own,
or those of a file.

    >>> example = load(n=1, order="ABBA").examples[0]
    >>> example.prompt, example.target
    ('Ruth and Steven had a quarrel about the lamp, but at last Steven gave it to', ' Ruth')
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_mapping, check_one_of
from cs_heads.files import read_json
from cs_heads.tasks.data_files import check_columns, one_file
from cs_heads.tasks.family import Entry, choice_record, drawn
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import FOLDER

OWN = FOLDER / "ioi.json"
"""The library's own names and templates."""


LISTS = ("NAMES", "BABA_TEMPLATES", "PLACES", "OBJECTS")
"""What a file of lists holds.

In a template ``[A]`` is the indirect object, ``[B]`` the subject, named twice; it ends in ``[A]`` and may have
``[PLACE]`` and ``[OBJECT]``.
"""


def _read(path: str | Path) -> dict[str, Sequence[str]]:
    """Lists from a JSON object with these four keys, or a folder with one such file; others are left aside."""
    path = one_file(path, "IOI lists", (".json",))
    what = f"IOI lists {str(path)!r}"
    lists = {**check_mapping(what, read_json(path, "IOI lists"), ", ".join(LISTS))}
    check_columns([lists], dict.fromkeys(LISTS, Sequence[str]), what)
    for name in LISTS:
        least = 2 if name == "NAMES" else 1
        if not all(map(str.strip, lists[name])) or len(set(lists[name])) < least:
            raise ValueError(f"{what}: {name!r} must be a list of {least} or more different texts, none empty")
    for template in lists["BABA_TEMPLATES"]:
        if re.findall(r"\[[AB]\]", template) != ["[B]", "[A]", "[B]", "[A]"] or not template.endswith(" [A]"):
            why = f"a template names [B], [A], [B] in this order and ends in ' [A]', got {template!r}"
            raise ValueError(f"{what}: {why}")
    return lists


def load(n: int | None = None, seed: int = 0, *, order: str = "both", data_files: str | Path | None = None) -> Task:
    """``n`` choices between indirect object and subject, 400 held out.

    Args:
        n: Finding examples, 100 by default.
        seed: Draws all examples.
        order: The two names at first: ``"BABA"`` the subject before, ``"ABBA"`` after, ``"both"`` half of each.
        data_files: A JSON file with ``LISTS``, or its folder.

    Raises:
        ValueError: The file is malformed.
    """
    check_one_of("order", order, ("both", "BABA", "ABBA"))
    lists = _read(data_files or OWN)

    def draw(rng: random.Random) -> dict[str, Any]:
        template = rng.choice(lists["BABA_TEMPLATES"]).removesuffix(" [A]")
        io, subject = rng.sample(lists["NAMES"], 2)
        for slot, values in (("[PLACE]", lists["PLACES"]), ("[OBJECT]", lists["OBJECTS"])):
            template = template.replace(slot, rng.choice(values))
        swap = order == "ABBA" or (order == "both" and rng.random() < 0.5)
        first, second = (io, subject) if swap else (subject, io)
        head, middle, before, after = re.split(r"\[[AB]\]", template)
        prompt = f"{head}{first}{middle}{second}{before}{subject}{after}"
        return choice_record(rng, prompt, [f" {io}", f" {subject}"], f" {io}")

    return drawn("ioi", draw, n, seed)


TASKS = {"": Entry("indirect object identification: to whom did John give it, John or Mary?", load)}
