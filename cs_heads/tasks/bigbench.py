"""BIG-bench sets of grammar, ``bigbench/<set>``: linguistic mappings, tense, subject-verb agreement.

Srivastava et al., *Beyond the Imitation Game* (arXiv 2206.04615); asked as in causal head gating (arXiv 2505.13737).
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

SETS: dict[str, str] = {
    "linguistic_mappings": "forms of words and sentences: plurals, past tense, questions, negation",
    "tense": "a sentence put into another tense",
    "subject_verb_agreement": "the verb that agrees with its subject",
}
"""The sets and what they ask."""

# A set that BIG-bench scores by a program of its own, with data beside it: the hub's copy has none of these.
NOT_ON_HUB = ("subject_verb_agreement",)


def load(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: DataFiles | None = None,
    few_shot: int = 1,
    few_shot_seed: int = 0,
    shared: bool = False,
) -> Task:
    """``n`` finding examples of a set, its others held out.

    A set of free answers is a completion task; one with choices asks for the letter of the right one.

    Args:
        name: One of ``SETS``.
        n: Finding examples; by default 100, or half of a small set.
        seed: Chooses them.
        data_files: The set's ``task.json``, a folder named after the set, or one that holds such a folder, with that
            file or those of its parts in it, or the hub's rows; None: the hub.
        few_shot: Worked examples before each question, from the 10 shortest.
        few_shot_seed: Draws them, and the letters of choices.
        shared: Draw them once, and show the same before every question.

    Raises:
        ValueError: The data are malformed, or the set is in ``NOT_ON_HUB`` and has no ``data_files``.
    """
    if data_files is None and name in NOT_ON_HUB:
        folder = f"the folder bigbench/benchmark_tasks/{name} of github.com/google/BIG-bench"
        raise ValueError(f"task 'bigbench/{name}' is not on the hub: get {folder} and name its files with data_files=")
    folders = (name, f"{name}_english", f"{name}_zero_shot")
    wanted = Wanted(name, "default", None, "hails/bigbench", f"{name}_zero_shot", (name, "task"), folders)
    rows = read_splits(wanted, data_files)["default"]
    rng = np.random.default_rng(few_shot_seed)
    questions = converted(rows, partial(_question, rng), f"task 'bigbench/{name}'")
    return of_questions(f"bigbench/{name}", questions, few_shot, few_shot_seed, shared=shared).split(n, seed)[0]


def _question(rng: np.random.Generator, row: Row) -> Question:
    """A row of the hub, ``{"inputs", "targets", "multiple_choice_targets"}``, or an example of a ``task.json``.

    That is ``{"input", "target"}`` or ``{"input", "target_scores": {choice: score}}``.
    """
    scores = row.get("target_scores") or {}
    if not isinstance(scores, dict) or not all(isinstance(score, int | float) for score in scores.values()):
        raise ValueError(f'"target_scores" must be an object, choice to score, got {scores!r:.60}')
    best = [choice for choice, score in scores.items() if score == max(scores.values())]
    asked, choices = row.get("inputs", row.get("input")), row.get("multiple_choice_targets", list(scores))
    targets = row.get("targets", row.get("target", best)) or best
    targets = [targets] if isinstance(targets, str) else targets
    texts = isinstance(targets, list) and targets and all(isinstance(target, str) for target in targets)
    if not isinstance(asked, str) or not texts or not targets[0].strip():
        raise ValueError(f"must have a text and its answer, a text or a list of texts, got {row!r:.80}")
    # The hub's rows are asked already, in BIG-bench's own words.
    text = asked.strip().removeprefix("Q:").removesuffix("A:").strip()
    if not choices:
        return Question(text, targets[0].strip())
    drawn = tuple(str(choices[i]) for i in rng.permutation(len(choices)))
    if not 2 <= len(drawn) <= len(ascii_uppercase) or targets[0] not in drawn:
        raise ValueError("the answer must be one of 2 to 26 choices")
    return Question(text, ascii_uppercase[drawn.index(targets[0])], drawn)


_NEEDS = dict.fromkeys(SETS, "data_files= (BIG-bench's task.json), or the hub and the extra datasets")
_NEEDS |= dict.fromkeys(NOT_ON_HUB, "data_files= (files of BIG-bench's folder of this name); it is not on the hub")
TASKS = {name: Entry(f"BIG-bench: {about}", partial(load, name), _NEEDS[name]) for name, about in SETS.items()}
