"""The demo model of the library among models whose heads are known: five planted for each of its skills.

    python -m benchmarks.truth.run --demo --out benchmarks/truth/models.csv

Each skill is a task, the others are its controls. Training planted its heads; which heads matter is measured here as
well, each off by itself. Agreement, a choice between two verbs, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads.demo
from cs_heads.demo.skills import SKILLS, records
from cs_heads.units import Head

from .gating import right
from .programs import Digits, Program
from .suite import Spec, TrueModel

FOLDER = Path(cs_heads.demo.__file__).parent / "weights"
TASKS = tuple(name for name in SKILLS if name != "agreement")


class Skill(Program):
    """A skill, whose digits are the token ids of a prompt."""

    def prompt(self, digits: Digits, cue: int) -> tuple[int, ...]:
        """The token ids."""
        del cue
        return tuple(digits)


def skill(name: str) -> Skill:
    """A skill on prompts that the model was not trained on."""
    tokenizer, answers = AutoTokenizer.from_pretrained(FOLDER), {}

    def draw(rng: np.random.Generator, _: int) -> Any:
        (record,) = records(name, str(rng.choice(["find", "confirm"])), 1, int(rng.integers(2**31)))
        prompt = tuple(tokenizer(record["prompt"]).input_ids)
        # A program says digits, whose token ids are one more.
        answers[prompt] = tokenizer(record["target"], add_special_tokens=False).input_ids[0] - 1
        return prompt

    return Skill(name, lambda prompt: answers[tuple(prompt)], lambda builder: builder.logits, draw)


@cache
def measured(name: str) -> tuple[tuple[Head, ...], tuple[Head, ...]]:
    """The heads that a skill needs, as ``put`` says it, and those that change any answer."""
    made = TrueModel(Spec("demo", 8, 16, 0), (skill(name),), ((),), (), loaded())
    whole = right(made, 0)
    lost = {head: whole.mean() - right(made, 0, [head]).mean() for head in made.decoys}
    return tuple(head for head in lost if lost[head] >= 0.05), tuple(head for head in lost if 0 < lost[head] < 0.05)


@cache
def loaded() -> Any:
    """The model in Hugging Face form."""
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def made(name: str) -> TrueModel:
    """The demo model with a skill as its task."""
    names = (name, *(other for other in TASKS if other != name))
    heads = tuple(measured(each)[0] for each in names)
    spec = Spec("demo", 8, 16, TASKS.index(name), f"demo-{name}")
    return TrueModel(spec, tuple(map(skill, names)), heads, (), loaded(), measured(name)[1])


def models() -> dict[str, Callable[[], TrueModel]]:
    """One for each skill, by name."""
    return {f"demo-{name}": partial(made, name) for name in TASKS}
