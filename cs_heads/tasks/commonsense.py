"""CommonsenseQA, ``commonsense_qa``: everyday questions of five choices.

Talmor et al., *CommonsenseQA* (arXiv 1811.00937); asked as in causal head gating (arXiv 2505.13737): a worked example
before each question, choices in an order drawn for it, and the letter of the right one as answer. Without worked
examples in lm-eval's own form it is ``lm-eval/commonsense_qa``.
"""

from __future__ import annotations

from functools import partial
from string import ascii_uppercase

import numpy as np

from cs_heads.tasks.data_files import DataFiles, Row
from cs_heads.tasks.family import Entry, Question, of_questions
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.published import converted
from cs_heads.tasks.task import Task

NAME, DATASET = "commonsense_qa", "tau/commonsense_qa"


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
    wanted = Wanted(NAME, "validation", None, DATASET, None, (NAME, "dev_rand_split"))
    rng = np.random.default_rng(few_shot_seed)
    questions = converted(read_splits(wanted, data_files)["validation"], partial(_question, rng), f"task {NAME!r}")
    return of_questions(NAME, questions, few_shot, few_shot_seed, shared=shared).split(n, seed)[0]


def _question(rng: np.random.Generator, row: Row) -> Question:
    """A row in the hub's columns, its choices in a drawn order."""
    asked, key, choices = (row.get(column) for column in ("question", "answerKey", "choices"))
    labels, texts = (list((choices or {}).get(column, ())) for column in ("label", "text"))
    if not isinstance(asked, str) or key not in labels or not 2 <= len(texts) == len(labels) <= len(ascii_uppercase):
        raise ValueError(f"must have a question, 2 to 26 choices with labels and the right label, got {row!r:.80}")
    order = rng.permutation(len(texts)).tolist()
    right = ascii_uppercase[order.index(labels.index(key))]
    return Question(asked, right, tuple(str(texts[i]) for i in order))


TASKS = {NAME: Entry("common sense, by letters", load, "data_files=, or the hub and the extra datasets")}
