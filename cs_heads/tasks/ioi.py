"""Indirect object identification: *When Mary and John went to the shop, John gave a ring to* — Mary.

The task of Wang et al., *Interpretability in the Wild* (arXiv 2211.00593), with names and templates of our own,
or those of a file.

    >>> example = load(n=1, order="ABBA").examples[0]
    >>> example.prompt, example.target
    ('Ruth and Steven had a quarrel about the lamp, but at last Steven gave it to', ' Ruth')
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_integer, check_one_of, check_seed
from cs_heads.files import read_json
from cs_heads.tasks.data_files import one_file
from cs_heads.tasks.family import Entry, choice_record, drawn
from cs_heads.tasks.pairs import PromptPair
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import rows

ORDERS = ("both", "BABA", "ABBA")


@dataclass(frozen=True)
class Lists:
    """Names, and templates: ``[A]`` is the indirect object, ``[B]`` the subject, named twice.

    A template ends in ``[A]`` and may have ``[PLACE]`` and ``[OBJECT]``. Other forms raise ``ValueError``.
    """

    NAMES: Sequence[str]
    BABA_TEMPLATES: Sequence[str]
    PLACES: Sequence[str]
    OBJECTS: Sequence[str]

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            if len(set(getattr(self, name))) < (2 if name == "NAMES" else 1):
                raise ValueError(
                    f"IOI lists: {name!r} must hold {'two texts' if name == 'NAMES' else 'a text'} or more"
                )
        for template in self.BABA_TEMPLATES:
            counts = template.count("[A]"), template.count("[B]")
            if counts != (2, 2) or not template.endswith(" [A]") or template.index("[B]") > template.index("[A]"):
                raise ValueError(
                    "IOI lists: a template of 'BABA_TEMPLATES' names [B], [A], [B] in this order and ends in ' [A]', "
                    f"got {template!r}"
                )

    @classmethod
    def read(cls, path: str | Path) -> Lists:
        """Lists from a JSON object with these four keys, or a folder with one such file; others are left aside."""
        path = one_file(path, "IOI lists", (".json",))
        content = read_json(path, "IOI lists")
        names = [f.name for f in fields(cls)]
        missing = [name for name in names if not isinstance(content, Mapping) or name not in content]
        if missing:
            raise ValueError(f"IOI lists {str(path)!r} must be a JSON object with {', '.join(names)}; no {missing[0]}")
        for name in names:
            values = content[name]
            if not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
                raise ValueError(f"IOI lists {str(path)!r}: {name!r} must be a list of texts, none empty")
        return cls(**{name: tuple(content[name]) for name in names})


OWN = Lists(
    NAMES=tuple(name for row in rows("names") for name in row),
    BABA_TEMPLATES=(
        "When [B] and [A] walked to the [PLACE], [B] handed the [OBJECT] to [A]",
        "After [B] and [A] met at the [PLACE], [B] offered a [OBJECT] to [A]",
        "Yesterday [B] and [A] sat in the [PLACE], and [B] showed a [OBJECT] to [A]",
        "While [B] and [A] waited near the [PLACE], [B] passed the [OBJECT] to [A]",
        "At the [PLACE], [B] and [A] found a [OBJECT]. Later [B] sent it to [A]",
        "Once [B] and [A] had left the [PLACE], [B] sold the [OBJECT] to [A]",
        "Since [B] and [A] both worked in the [PLACE], [B] lent a [OBJECT] to [A]",
        "[B] and [A] were tired of the [PLACE]. So [B] threw the [OBJECT] to [A]",
        "In the evening [B] and [A] cleaned the [PLACE], then [B] brought a [OBJECT] to [A]",
        "[B] and [A] had a quarrel about the [OBJECT], but at last [B] gave it to [A]",
    ),
    PLACES=("shop", "park", "library", "kitchen", "station", "museum", "harbour", "school", "market", "garden"),
    OBJECTS=("book", "ring", "ticket", "lamp", "coat", "cake", "letter", "camera", "ball", "key"),
)
"""The library's own."""


def load(n: int | None = None, seed: int = 0, *, order: str = "both", data_files: str | Path | None = None) -> Task:
    """``n`` choices between indirect object and subject, 400 held out.

    Args:
        n: Finding examples, 100 by default.
        seed: Draws all examples.
        order: The two names at first: ``"BABA"`` the subject before, ``"ABBA"`` after, ``"both"`` half of each.
        data_files: A JSON file of `Lists`, or its folder.

    Raises:
        ValueError: The file is malformed.
    """
    check_seed(seed)
    check_one_of("order", order, ORDERS)
    lists = OWN if data_files is None else Lists.read(data_files)

    def draw(rng: random.Random) -> dict[str, Any]:
        prompt, _, io, subject = _sentence(rng, lists, order)
        return choice_record(rng, prompt, [f" {io}", f" {subject}"], f" {io}")

    return drawn("ioi", draw, n, seed)


def pairs(
    n: int = 50, seed: int = 0, *, order: str = "both", data_files: str | Path | None = None
) -> tuple[PromptPair, ...]:
    """Clean prompts, and corrupted ones in which the other name comes again, so that the answer is turned round.

    *When Mary and John went to the shop, **John** gave a ring to* (Mary) against *..., **Mary** gave a ring to* (John).
    """
    check_seed(seed)
    check_integer("n", n, 1)
    check_one_of("order", order, ORDERS)
    lists = OWN if data_files is None else Lists.read(data_files)
    rng = random.Random(f"ioi pairs/{seed}")
    made = []
    for _ in range(n):
        clean, corrupted, io, subject = _sentence(rng, lists, order)
        made.append(PromptPair(clean, corrupted, target=f" {io}", instead=f" {subject}"))
    return tuple(made)


def _sentence(rng: random.Random, lists: Lists, order: str) -> tuple[str, str, str, str]:
    """A prompt, the same with the other name named again, the indirect object and the subject."""
    template = rng.choice(lists.BABA_TEMPLATES).removesuffix(" [A]")
    io, subject = rng.sample(lists.NAMES, 2)
    for slot, values in (("[PLACE]", lists.PLACES), ("[OBJECT]", lists.OBJECTS)):
        template = template.replace(slot, rng.choice(values))
    swap = order == "ABBA" or (order == "both" and rng.random() < 0.5)
    first, second, last = ("[A]", "[B]", "[B]") if swap else ("[B]", "[A]", "[B]")
    head, middle, *rest = template.replace("[A]", "[B]").split("[B]")
    texts = []
    for again in (last, "[A]"):
        text = f"{head}{first}{middle}{second}{rest[0]}{again}{rest[1]}"
        texts.append(text.replace("[A]", io).replace("[B]", subject))
    return texts[0], texts[1], io, subject


def catalogue() -> dict[str, Entry]:
    """The task, by name."""
    return {"": Entry("indirect object identification: to whom did John give it, John or Mary?", load)}
