"""Worked examples before a question: the form that they and the question have, and other tasks asked in that form.

Heads that read worked examples carry every task that is asked after some. Controls in the very form of a task tell
them from heads of what the task asks for: other tasks are asked in its form, and its own words are to be copied.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import TypeAlias

from cs_heads.tasks.example import Example, right_of
from cs_heads.tasks.family import N_CONFIRMING, N_FINDING, two_sides
from cs_heads.tasks.task import Task, with_fields

_Pair: TypeAlias = tuple[str, str]

# Questions on either side below which a task is not asked in another form.
_LEAST = 15
# Those that ask for another form of a word.
_OF_WORDS = ("everyday/plural", "everyday/past", "everyday/upper_case")


@dataclass(frozen=True)
class Form:
    r"""How all questions of a task read, and the worked examples before them, which have an answer behind.

    Attributes:
        begins: What every question begins with.
        ends: What every question ends with, before the answer.
        before: Characters before the question in every line it was told from: worked examples on the same line.

    >>> form = Form.of(["The opposite of hot is", "The opposite of big is"])
    >>> [found["answer"] for found in form.worked.finditer("The opposite of old is new\n")]
    [' new']
    """

    begins: str
    ends: str
    before: int = 0

    @classmethod
    def of(cls, asked: Collection[str]) -> Form | None:
        """The form of bare questions, or of last lines of prompts: worked examples may stand on the same line.

        None where they have no end in common: what stands before them may then be a heading as well.

        Args:
            asked: The questions.
        """
        # RUF071 is about paths, and these are texts.
        both = [commonprefix(texts) for texts in ([*asked], [text[::-1] for text in asked])]  # noqa: RUF071
        begins, ends = re.sub(r"\w+$", "", both[0]), re.sub(r"^\w+", "", both[1][::-1])
        if len({*asked}) < 2 or not ends.strip():
            return None
        shown = begins.rfind(ends)
        starts = [found.start() for found in re.finditer(r"\b\w", begins) if found.start() > shown >= 0]
        before = next((start for start in starts if begins[start:] in begins[:shown]), 0)
        return cls(begins[before:], ends, before)

    @cached_property
    def worked(self) -> re.Pattern[str]:
        """A worked example: what it is ``about``, and its ``answer``, up to the end of the line or the next one."""
        between = r"[\s\S]*?" if "\n" in self.begins + self.ends else ".*?"
        begins = re.escape(self.begins)
        last = r"\Z" if not self.begins.strip() else rf"(?:\Z|{begins})"
        until = rf"[^\S\n]*\n|[.,;]?\s*{last}"
        about = rf"{begins or '(?m:^)'}(?P<about>{between}){re.escape(self.ends)}"
        return re.compile(rf"{about}(?P<answer>[^\S\n]*\S[^\n]*?)(?={until})")

    def question(self, about: str) -> str:
        """The question about something."""
        return f"{self.begins}{about}{self.ends}"

    def about(self, line: str) -> str:
        """What a question, or the line it was told from, asks about."""
        return line[self.before + len(self.begins) : len(line) - len(self.ends)]


def bare_questions(examples: Sequence[Example]) -> list[str]:
    """What each of a task's examples asks: what is told of it, or else the last line of its prompt.

    The last two lines where the last is the same throughout, as "Answer:" may be.
    """
    lines = [str(one.prompt).strip().splitlines() for one in examples]
    n = 2 if len({*(each[-1] for each in lines if each)}) < 2 else 1
    return ["\n".join(each[-n:]) if one.asked is None else one.asked for one, each in zip(examples, lines, strict=True)]


def has_worked_examples(examples: Sequence[Example]) -> bool:
    """Whether most of a task's questions stand behind others that are answered.

    Where the bare question is not told it is the last line, and others are known by its form.

    Args:
        examples: Examples with one prompt of texts.
    """
    lines, n = bare_questions(examples), 0
    form = Form.of([line for line, one in zip(lines, examples, strict=True) if one.asked is None])
    for line, one in zip(lines, examples, strict=True):
        if one.asked is not None or form is None:
            n += one.asked not in (None, one.prompt)
            continue
        question, prompt = form.question(form.about(line)), str(one.prompt)
        before = form.worked.finditer(prompt, 0, max(prompt.rfind(question), 0))
        # What is copied stands there, too, and is no example of another answer.
        n += any(not each[0].startswith(question) for each in before)
    return 2 * n > len(examples)


def matched_controls(task: Task, others: Sequence[Task], seed: int = 0) -> list[Task]:
    r"""Other tasks, those that ask for another form of a word asked in the form of this one, and copying of its words.

    These are ``Task.matched`` and named ``matched/...``. Plural, past and upper case are asked so: a model does them by
    worked examples alone, whatever else the form says. Where this task does not show two worked examples or more, or
    their form is not told from its questions, the other tasks are returned as they are.

    Args:
        task: The task to be matched.
        others: Other tasks, each split.
        seed: Chooses the words of the worked examples, and of the questions to find with.

    >>> from cs_heads.tasks import load_task
    >>> lines = ["big: bigger\nold: older\n" + f"{word}:" for word in (*"abcdefghij", "new", "cold")]
    >>> task = Task.from_records([{"prompt": line, "target": " newer"} for line in lines])
    >>> plural, code = matched_controls(task, [load_task("everyday/plural"), load_task("everyday/code")])
    >>> plural.name, code.name
    ('matched/plural', 'everyday/code')
    >>> print(plural.examples[0].prompt)
    option: options
    poem: poems
    watch:
    """
    if (layout := _Layout.of(task)) is None:
        return [*others]
    sides = [dict(_pairs_of(side)) for side in _sides(task)]
    rng, made = random.Random(f"matched/{seed}"), list[Task]()
    for other in others:
        pairs = dict(_pairs_of([one for side in _sides(other) for one in side])) if other.name in _OF_WORDS else {}
        # Proofs leave out questions that the search saw: words that the task asks about to find heads come first.
        chosen = sorted(rng.sample([*pairs.items()], len(pairs)), key=lambda pair: pair[0] not in sides[0])
        half = len(chosen) // 2
        made.append(layout.filled(other.name.rpartition("/")[2], chosen[:half], chosen[half:]) or other)
    if 2 * sum(word == answer.strip() for word, answer in sides[0].items()) > len(sides[0]):
        # Copying is the task.
        return made
    # A word that is asked about to find heads is copied to find heads.
    unseen = [word for side in sides[1:] for word in side if word not in sides[0]]
    copied = layout.filled("copying", *([(word, word) for word in side] for side in (sides[0], unseen)))
    return made if copied is None else [*made, copied]


@dataclass(frozen=True)
class _Layout:
    """The worked examples of a task as they stand before its first question."""

    form: Form
    before: str
    after: str
    worked: Sequence[re.Match[str]]

    @classmethod
    def of(cls, task: Task) -> _Layout | None:
        """None where no worked examples are told from the questions, or a chat template stands about them."""
        first = task.examples[0]
        if first.over_token_ids or first.prompts or task.chat != "off" or not has_worked_examples(task.examples):
            return None
        questions = bare_questions(task.examples)
        if (form := Form.of(questions)) is None:
            return None
        question, prompt = form.question(form.about(questions[0])), str(first.prompt)
        before, _, after = prompt.rpartition(question)
        worked = [*form.worked.finditer(before)]
        return cls(form, before, after, worked) if len(worked) > 1 else None

    def filled(self, name: str, finding: Sequence[_Pair], unseen: Sequence[_Pair] = ()) -> Task | None:
        """Pairs of a word and its answer in this form, each asked about once; None where they are few.

        The first of them to find with are the worked examples. Without ``unseen`` ones half of the others are these.
        """
        shown, asked = finding[: len(self.worked)], finding[len(self.worked) :]
        if not unseen:
            asked, unseen = asked[: len(asked) // 2], asked[len(asked) // 2 :]
        if min(len(asked), len(unseen)) < _LEAST:
            return None
        first = self.worked[0]["answer"]
        lead = first[: len(first) - len(first.lstrip())]
        text, end = "", 0
        for found, (about, answer) in zip(self.worked, shown, strict=True):
            text += f"{self.before[end : found.start()]}{self.form.question(about)}{lead}{answer.strip()}"
            end = found.end()
        text += self.before[end:]

        def record(pair: _Pair) -> dict[str, str]:
            question, target = self.form.question(pair[0]), f"{'' if self.after else lead}{pair[1].strip()}"
            return {"prompt": f"{text}{question}{self.after}", "target": target, "asked": question}

        sides = asked[:N_FINDING], unseen[:N_CONFIRMING]
        made = two_sides(f"matched/{name}", *([record(pair) for pair in side] for side in sides))
        return with_fields(made, matched=True)


def _sides(task: Task) -> list[Sequence[Example]]:
    return [task.examples] if task.held_out is None else [task.examples, task.held_out.examples]


def _pairs_of(examples: Sequence[Example]) -> list[_Pair]:
    """What each question asks about, with its answer; none where the questions have no form."""
    if any(one.over_token_ids or one.prompts for one in examples):
        return []
    questions = bare_questions(examples)
    form, right = Form.of(questions), [str(right_of(one)) for one in examples]
    return [] if form is None else [(form.about(each), answer) for each, answer in zip(questions, right, strict=True)]
