"""CommonsenseQA, ``commonsense_qa``: everyday questions of five choices.

Talmor et al., *CommonsenseQA* (arXiv 1811.00937); asked as in causal head gating (arXiv 2505.13737): a worked example
before each question, choices in an order drawn for it, and the letter of the right one as answer. Without worked
examples in lm-eval's own form it is ``lm-eval/commonsense_qa``.
"""

from __future__ import annotations

from string import ascii_uppercase

import numpy as np

from cs_heads.arguments import check_seed
from cs_heads.tasks.data_files import DataFiles, Row
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, Question, with_worked_examples
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.task import Task

NAME, DATASET = "commonsense_qa", "tau/commonsense_qa"
POOL = 10


def catalogue() -> dict[str, Entry]:
    """The one task."""
    return {NAME: Entry("common sense, by letters", load, "data_files=, or the hub and the extra datasets")}


def load(
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: DataFiles | None = None,
    few_shot: int = 1,
    few_shot_seed: int = 0,
    shared: bool = False,
) -> Task:
    """``n`` finding questions of the validation split, its others held out.

    Args:
        n: Finding questions; by default 100, or half of a small set.
        seed: Chooses them.
        data_files: Files of the set, as the hub or its authors publish them; None: the hub.
        few_shot: Worked examples before each question, from the 10 shortest.
        few_shot_seed: Draws them, and the order of the choices.
        shared: Draw them once, and show the same before every question.
    """
    check_seed(seed)
    wanted = Wanted(NAME, "validation", None, DATASET, None, (NAME, "dev_rand_split"), ())
    rng = np.random.default_rng(few_shot_seed)
    questions = [
        _question(row, number, rng) for number, row in enumerate(read_splits(wanted, data_files)["validation"])
    ]
    prompts = with_worked_examples(questions, "", few_shot, POOL, few_shot_seed, shared=shared)
    examples = []
    for prompt, each in prompts:
        letters = tuple(f" {letter}" for letter in ascii_uppercase[: len(each.choices)])
        examples.append(Example(prompt, letters, letters.index(f" {each.answer}"), asked=each.bare))
    return Task(NAME, "choice", tuple(examples)).split(n, seed)[0]


def _question(row: Row, number: int, rng: np.random.Generator) -> Question:
    """A row in the hub's columns, its choices in a drawn order."""
    asked, key, choices = (row.get(column) for column in ("question", "answerKey", "choices"))
    labels, texts = (list((choices or {}).get(column, ())) for column in ("label", "text"))
    if not isinstance(asked, str) or key not in labels or not 2 <= len(texts) == len(labels) <= len(ascii_uppercase):
        raise ValueError(
            f"task {NAME!r}, record {number}: must have a question, 2 to 26 choices with labels and the right label, "
            f"got {row!r:.80}"
        )
    order = rng.permutation(len(texts)).tolist()
    right = ascii_uppercase[order.index(labels.index(key))]
    return Question(asked, right, tuple(str(texts[i]) for i in order))
