"""OpenMathInstruct-2: competition problems with worked solutions, ``openmathinstruct2``.

Toshniwal et al., *OpenMathInstruct-2* (arXiv 2410.01560); asked as in causal head gating (arXiv 2505.13737). The
worked solution is the target, whose log-probability is measured; a text is scored by the answer it puts in a box.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cs_heads.arguments import check_integer
from cs_heads.tasks.data_files import DataFiles, check_columns, hub_rows
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, Question, with_worked_examples
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.task import Task

DATASET, SPLIT = "nvidia/OpenMathInstruct-2", "train_1M"
POOL = 50

_INSTRUCTION = (
    "For each problem, explain your reasoning step by step and use LaTeX for all mathematical expressions. "
    "Indicate your final answer using \\boxed{...}."
)


@dataclass(frozen=True)
class BoxedAnswer:
    r"""1 where the last ``\boxed{...}`` of a text holds the example's reference.

    Two numbers are the same as fractions or decimals, with a letter's ``x=`` before one of them or not; all else is
    the same text, whatever its spacing, dollar signs and size of brackets.

    >>> half = [Example("?", reference="1/2")] * 2
    >>> BoxedAnswer().score_texts(half, ["so it is $\\boxed{ 0.5 }$.", r"\boxed{x = \frac12}"])
    [1.0, 1.0]
    """

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text; a text without a box scores 0."""
        return [float(_same(boxed(text), example.reference)) for example, text in zip(examples, texts, strict=True)]


def boxed(text: str) -> str | None:
    """What the last box that is closed holds; None without one."""
    for start in reversed([found.end() for found in re.finditer(r"\\boxed\s*{", text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if not depth:
                return text[start:end]
    return None


def _same(found: str | None, wanted: str) -> bool:
    if found is None:
        return False
    here, there = _plain(found), _plain(wanted)
    (named, value), (other, right) = _number(here), _number(there)
    return here == there or (value is not None and value == right and (named == other or "" in (named, other)))


_NUMBER = re.compile(
    r"(?:(?P<letter>[A-Za-z])=)?"
    r"(?:(?P<decimal>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)"
    r"|(?P<sign>[+-]?)(?:\\frac(?P<above>{[+-]?\d+}|\d)(?P<below>{[+-]?\d+}|\d)|(?P<over>\d+)/(?P<under>\d+)))",
    re.IGNORECASE,
)


def _number(answer: str) -> tuple[str, Fraction | None]:
    """The letter that stands before ``=`` ("" without one), and the number that a plain answer is, or None."""
    parts = _NUMBER.fullmatch(answer)
    # Python does not read numbers of thousands of digits.
    if parts is None or len(answer) > 1000:
        return "", None
    letter = parts["letter"] or ""
    if parts["decimal"]:
        return letter, Fraction(parts["decimal"])
    above, below = (int(str(parts[a] or parts[b]).strip("{}")) for a, b in (("above", "over"), ("below", "under")))
    return letter, Fraction(int(f"{parts['sign']}1") * above, below) if below else None


def _plain(answer: str) -> str:
    """An answer without what does not change it: spacing, dollar signs, the size of fractions and brackets."""
    answer = re.sub(r"\\(?:text|mathrm|textbf)\s*{([^{}]*)}", r"\1", answer)
    answer = re.sub(r"\\[dt]frac", r"\\frac", answer)
    answer = re.sub(r"\\left|\\right|\\!|\\,|\\;|\\:|\\ |\\\$|\$|\\%|%|\s", "", answer).rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", answer)


def load(
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: DataFiles | None = None,
    few_shot: int = 1,
    few_shot_seed: int = 0,
    shared: bool = False,
    n_records: int = 5000,
    shortest: int | None = None,
    max_new_tokens: int = 512,
) -> Task:
    """``n`` finding examples of OpenMathInstruct-2, its others held out.

    Args:
        n: Finding examples; by default 100, or half of a small set.
        seed: Chooses them.
        data_files: Files of the set; None: the hub.
        few_shot: Worked examples before each problem, from the 50 shortest.
        few_shot_seed: Draws them.
        shared: Draw them once, and show the same before every problem.
        n_records: Rows that are read of the hub's set; of ``data_files`` all are.
        shortest: So many problems of the rows read are kept, the shortest with their solutions (None: all).
        max_new_tokens: The most tokens of a text.
    """
    if shortest is not None:
        check_integer("shortest", shortest, POOL + 2)
    check_integer("n_records", n_records, 1)
    if data_files is None:
        rows = hub_rows(DATASET, None, SPLIT, n_records)
    else:
        wanted = Wanted("openmathinstruct2", "train", None, DATASET, None, ("openmathinstruct2", SPLIT))
        rows = read_splits(wanted, data_files)["train"]
    columns = {"problem": str, "generated_solution": str, "expected_answer": str | float}
    check_columns(rows, columns, "openmathinstruct2")
    first: dict[str, tuple[str, str]] = {}
    # Backwards: the first solution of a problem stands for it, with its answer, which may be a number.
    for row in reversed(rows):
        answer = str(row["expected_answer"])
        if answer.strip():
            first[row["problem"]] = row["generated_solution"], answer
    questions = [Question(problem, solution) for problem, (solution, _) in reversed(first.items())]
    if shortest is not None:
        questions = sorted(questions, key=lambda each: len(each.text) + len(each.answer))[:shortest]
    prompts = with_worked_examples(questions, _INSTRUCTION, few_shot, POOL, few_shot_seed, shared=shared)
    examples = tuple(Example(prompt, (f" {q.answer.strip()}",), 0, first[q.text][1], q.bare) for prompt, q in prompts)
    scoring: dict[str, Any] = {"scorer": BoxedAnswer(), "max_new_tokens": max_new_tokens, "stop": ("\nQuestion:",)}
    return Task("openmathinstruct2", "generation", examples, **scoring).split(n, seed)[0]


_NEEDS = "data_files=, or the hub and the extra datasets"
TASKS = {"openmathinstruct2": Entry("competition mathematics, worked out step by step", load, _NEEDS)}
