"""The controls of a search and of its proof: the tasks given, or by default everyday skills that come with the library.

A control is another task, which tells heads of this task from heads that every task needs. Skills that share a form
share heads: choose controls that differ from the task in what matters, and read which of them lose.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

from cs_heads.arguments import check_seed
from cs_heads.tasks.data_files import check_different
from cs_heads.tasks.example import Example, questions_of, right_of
from cs_heads.tasks.load import load_task, names_of
from cs_heads.tasks.splits import check_is_task, check_tasks
from cs_heads.tasks.task import Task
from cs_heads.tasks.worked_examples import bare_questions, has_worked_examples, matched_controls

AUTO = "auto"
"""What stands for the default controls."""
MIN_DEFAULTS = 3
"""Default controls that the model can do below which they do not speak for other tasks."""
NO_CONTROLS = (
    "no controls: heads of this task cannot be distinguished from task-general (universal) heads; give other tasks as "
    "controls (controls=[...]; --control)"
)
"""What a search says that had none, and a proof, in the same words: together they say it once."""

# The same skill under other names, by the skill's own, as shell patterns: it is no control of these tasks.
_KIN = {
    "agreement": "*/agreement blimp_*_subject_verb_agreement_* blimp_distractor_agreement_* "
    "bigbench/subject_verb_agreement",
    "antonyms": "function_vectors/antonym",
    "capitals": "*/capitals function_vectors/country-capital",
    "copying": "*/copying induction",
    "indirect_object": "ioi",
    "past": "function_vectors/present-past bigbench/tense",
    "plural": "function_vectors/singular-plural",
    "sums": "arithmetic*",
    "upper_case": "function_vectors/capitalize",
}


# Questions that two tasks may have in common but for their worked examples or the wording of their answer, as a share
# of the smaller, and the words from which on a question is more than a template ("hot ->").
_MAX_ALIKE = 0.1
_MIN_WORDS = 4
# Examples of the smaller of two tasks that have a word with the same answer in both, as a share, above which they ask
# for the same in other words. A word counts that at most a quarter of a task's questions have; of those that both tasks
# have three quarters must have the same answer.
_MAX_MAPPED, _COMMON, _LEAST_SAME = 0.2, 0.25, 0.75
# What may stand about the words of a question, brackets and signs of sums not among it, and behind all of them.
_MARKS = ".,;:!?…\"'“”‘’«»\u200b\ufeff"
_PARTS = re.compile(r"\w+|[^\w\s,.]+")
_CUES = ("answer:", "a:", "output:", "response:")


def default_controls(task: Task, model_name: str, seed: int = 0) -> tuple[Task, ...]:
    """The skills ``everyday/*``, of the demo model its own skills ``demo/*``, each split with ``seed``.

    Left out are the task itself, by its name, and its kin (``default_kin``). To a task that shows worked examples those
    that do so, too, are asked in its form, and its own words are to be copied (``matched_controls``).

    Args:
        task: The task that they are controls of.
        model_name: Name of the model; ``"demo"`` is the demo model.
        seed: That of ``find_heads``; it splits each skill.

    Returns:
        Finding sides, each with its confirming side in ``held_out``.

    Raises:
        ValueError: ``seed`` is no integer that seeds a generator.

    >>> task = load_task("demo/capitals", n=20)
    >>> [control.name for control in default_controls(task, "demo")][:3]
    ['demo/word_problems', 'demo/code', 'demo/rhyme']
    >>> len(default_controls(task, "gpt2"))
    14
    """
    demo = model_name == "demo"
    controls = _parted(_skills_of(demo, check_seed(seed)), task)[0]
    # The demo model knows no other words and forms than its own.
    return tuple(controls if demo else matched_controls(task, controls, seed))


def default_kin(task: Task, model_name: str, seed: int = 0) -> tuple[Task, ...]:
    """The skills that are no default controls of a task of another name, for they ask for the same: its kin.

    They share questions with it, give the same answers to the same words in more than a fifth of the examples, or are
    the skill that a built-in task asks for in another form (``ioi`` and ``everyday/indirect_object``).

    Args:
        task: The task.
        model_name: As in ``default_controls``.
        seed: As in ``default_controls``.

    Returns:
        Finding sides, each with its confirming side in ``held_out``; empty where no skill overlaps.

    Raises:
        ValueError: ``seed`` is no integer that seeds a generator.

    >>> default_kin(load_task("demo/capitals", n=20), "demo")
    ()
    >>> [skill.name for skill in default_kin(load_task("ioi", n=20), "gpt2")]
    ['everyday/indirect_object']
    """
    return tuple(_parted(_skills_of(model_name == "demo", check_seed(seed)), task)[1])


def without_kin(controls: Sequence[Task], task: Task) -> tuple[list[Task], list[Task]]:
    """The controls of a task that ask for something else, and those that are its kin, as in ``default_kin``.

    Args:
        controls: Tasks.
        task: The task that they are controls of.

    Returns:
        Two lists.

    >>> controls = [load_task(name, n=20) for name in ("everyday/past", "everyday/indirect_object")]
    >>> [[each.name for each in side] for side in without_kin(controls, load_task("ioi", n=20))]
    [['everyday/past'], ['everyday/indirect_object']]
    """
    return _parted(map(_Asking, controls), task)


def family_of(model_name: str, seed: int = 0) -> tuple[Task, ...]:
    """All the skills ``everyday/*``, of the demo model its own skills ``demo/*``, each split with ``seed``."""
    return tuple(skill.task for skill in _skills_of(model_name == "demo", check_seed(seed)))


def kin_among(tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """The pairs of tasks, by place, that share questions or ask for the same skill: none is a control of the other.

    >>> kin_among([load_task(name, n=20) for name in ("ioi", "everyday/past", "everyday/indirect_object")])
    [(0, 2)]
    """
    pairs = combinations(enumerate(map(_Asking, tasks)), 2)
    return [(i, j) for (i, one), (j, other) in pairs if _are_kin(one, other)]


def check_controls(controls: Any, task: Task) -> Sequence[Task]:
    """The tasks given, none for ``"auto"`` and None.

    A control may not share a question with the task, on whatever side: that is the task, or some of it. A question is
    the same with other wrong choices or none, other white space, or another case. Nor may it ask more than a tenth of
    the questions in another way: with worked examples before them, with other marks or "Answer:" behind them, or, where
    one of the two is a generation task, for an answer worded otherwise.

    Args:
        controls: A list of tasks, ``"auto"`` or None.
        task: The task that they are controls of.

    Returns:
        The tasks, or an empty tuple.

    Raises:
        ValueError: What is none of these, a name that comes twice or is that of ``task`` (drawn with another seed,
            say), or a control that asks what the task asks.
    """
    check_is_task(task)
    if controls is None or controls == AUTO:
        return ()
    if isinstance(controls, str) or not isinstance(controls, Sequence | Task):
        raise ValueError(f"controls must be a list of tasks, {AUTO!r} or None, got {controls!r:.300}")
    controls = check_tasks("controls", controls)
    check_different("controls", [control.name for control in controls])
    asking = _Asking(task)
    for asked in map(_Asking, controls):
        n = len(asked.examples)
        if shared := _shared(asked, asking):
            said = f"shares {shared} of its {n} examples with task {task.name!r}"
        elif reworded := _reworded(asked, asking):
            how = "after worked examples, with other marks or for an answer worded otherwise"
            said = f"asks {reworded} of its {n} questions in the words of task {task.name!r}, {how}"
        elif asked.task.name == task.name:
            said = "has the name of the task"
        else:
            continue
        raise ValueError(f"control {asked.task.name!r} {said}: a control must be another task")
    return controls


_Question = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of a prompt, and those of the right answer."""


class _Asking:
    """What a task asks, on both of its sides: it is held against that of many others."""

    def __init__(self, task: Task) -> None:
        check_is_task(task)
        self.task = task
        held_out = () if task.held_out is None else task.held_out.examples
        self.examples = (*task.examples, *held_out)

    @cached_property
    def asked(self) -> list[tuple[Any, ...]]:
        """Of each example what it asks."""
        known = zip(self.examples, questions_of(self.examples), strict=True)
        return [keys if one.over_token_ids else _asked(one) for one, keys in known]

    @cached_property
    def all(self) -> frozenset[Any]:
        """What any example asks."""
        return frozenset(key for asked in self.asked for key in asked)

    @cached_property
    def plain(self) -> list[Example]:
        """The examples with one prompt of texts."""
        return [example for example in self.examples if not example.over_token_ids and not example.prompts]

    @cached_property
    def questions(self) -> list[_Question]:
        """Of all examples with one prompt of texts, which is not empty."""
        asked = ((tuple(str(one.prompt).casefold().split()), tuple(str(right_of(one)).split())) for one in self.plain)
        return [(words, right) for words, right in asked if words]

    @cached_property
    def bare(self) -> list[_Question]:
        """Without marks and a last word that only asks for the answer; no words where that may be a template."""
        bare = []
        for words, right in self.questions:
            asked = _unmarked(words[:-1] if words[-1] in _CUES else words)
            bare.append((asked if len(asked) >= _MIN_WORDS else (), _unmarked(right) or right))
        return bare

    @cached_property
    def answered(self) -> list[tuple[frozenset[str], str]]:
        """Of each example with one prompt of texts the words of its question, and the right answer."""
        # What stands before a question whose beginning is not told may be other questions.
        whole = [str(one.prompt) if one.asked is None else one.asked for one in self.plain]
        asked = bare_questions(self.plain) if self.has_worked_examples else whole
        return [(frozenset(_words(text)), _answer(one)) for text, one in zip(asked, self.plain, strict=True)]

    @cached_property
    def mapped(self) -> dict[str, str]:
        """The words that few of the questions have, each with the right answer, where it is the same throughout."""
        answers = defaultdict[str, list[str]](list)
        for words, right in self.answered:
            for word in words:
                answers[word].append(right)
        most = max(1, _COMMON * len(self.answered))
        # A number has any answer, and what is copied says nothing of what is asked.
        return {
            word: told[0]
            for word, told in answers.items()
            if len(told) <= most and word.isalpha() and {*told} == {told[0]} != {word}
        }

    @cached_property
    def rights(self) -> frozenset[str]:
        """The right answers."""
        return frozenset(map(_answer, self.plain))

    @cached_property
    def has_worked_examples(self) -> bool:
        """Whether most of the questions stand behind others that are answered."""
        return has_worked_examples(self.plain)

    @cached_property
    def form(self) -> frozenset[str]:
        """The words and marks that most of the questions have."""
        asked = bare_questions([example for example in self.examples if not example.over_token_ids])
        n = Counter(part for question in asked for part in {*_PARTS.findall(question.casefold())})
        return frozenset(part for part in n if n[part] > len(asked) / 2)


def alike(task: Task, others: Mapping[str, Task]) -> list[str]:
    """The names of tasks that share a form with one.

    They have half of the words and marks that most of their questions have, or both ask after worked examples.

    >>> names = ("capitals", "plural", "antonyms", "code")
    >>> capitals, *others = (load_task(f"everyday/{name}", n=20) for name in names)
    >>> alike(capitals, dict(zip(names[1:], others, strict=True)))
    ['plural', 'antonyms']
    """
    own = _Asking(task)
    return [name for name, other in others.items() if _share_a_form(own, _Asking(other))]


def _share_a_form(one: _Asking, other: _Asking) -> bool:
    if one.has_worked_examples and other.has_worked_examples:
        return True
    return len(one.form & other.form) >= 0.5 * len(one.form | other.form) > 0


def alike_in_answers(task: Task, others: Mapping[str, Task]) -> list[str]:
    """The names of tasks that may ask for the same as one: half of the right answers of either are those of the other.

    So may those that ask for the same pairs the other way round.

    >>> he_she, plural = (load_task(f"everyday/{name}", n=20) for name in ("he_she", "plural"))
    >>> pronouns = Task.from_records([{"prompt": "My aunt said that", "target": " she"}])
    >>> alike_in_answers(pronouns, {"he_she": he_she, "plural": plural})
    ['he_she']
    """
    own = _Asking(task)
    return [name for name, other in others.items() if _share_answers(own, _Asking(other))]


def _share_answers(one: _Asking, other: _Asking) -> bool:
    both = len(one.rights & other.rights)
    return both >= 0.5 * min(len(one.rights), len(other.rights)) > 0 or _mapped(one, other, turned=True) > _MAX_MAPPED


def _mapped(one: _Asking, other: _Asking, *, turned: bool = False) -> float:
    """The share of the examples of the smaller task that have a word with the same answer as in the other.

    0 where the words that both have mostly have other answers. With ``turned`` the words of one are the answers of the
    other.
    """
    own = {right: word for word, right in one.mapped.items()} if turned else one.mapped
    both = own.keys() & other.mapped.keys()
    same = {word for word in both if own[word] == other.mapped[word]}
    if len(same) <= _LEAST_SAME * len(both):
        return 0.0
    same |= {own[word] for word in same} if turned else set()
    asked = min(one.answered, other.answered, key=len)
    return sum(not same.isdisjoint(words) for words, _ in asked) / len(asked)


@lru_cache(maxsize=4)
def _skills_of(demo: bool, seed: int) -> tuple[_Asking, ...]:
    """Kept, since a search and its proof ask for the same: drawing those of the demo model takes over half a second."""
    return tuple(_Asking(load_task(name, seed=seed)) for name in names_of("demo" if demo else "everyday"))


def _parted(others: Iterable[_Asking], task: Task) -> tuple[list[Task], list[Task]]:
    """Tasks of other names that ask for something else than a task, and its kin."""
    asking, apart, kin = _Asking(task), list[Task](), list[Task]()
    for other in others:
        if other.task.name != task.name:
            (kin if _are_kin(asking, other) else apart).append(other.task)
    return apart, kin


def _are_kin(one: _Asking, other: _Asking) -> bool:
    """Whether two tasks ask the same questions, or for the same skill by their names."""
    names = (one.task.name, other.task.name), (other.task.name, one.task.name)
    named = any(fnmatch(task, same) for skill, task in names for same in _KIN.get(skill.rpartition("/")[2], "").split())
    return named or bool(_shared(one, other) or _reworded(one, other)) or _mapped(one, other) > _MAX_MAPPED


def _shared(control: _Asking, task: _Asking) -> int:
    """How many examples of a control ask what the task asks, on either side of both."""
    return sum(not task.all.isdisjoint(asked) for asked in control.asked)


def _reworded(control: _Asking, task: _Asking) -> int:
    """How many examples of a control ask what the task asks in another way; 0 where they are a tenth or fewer.

    The prompt of one ends with that of the other, and both want the same answer, or one of them a text, whose reference
    may be worded in many ways: then the words they have in common must be more than a template, or the whole prompt.
    Where they are more than a template, marks and a last "Answer:" make no difference.
    """
    written = "generation" in (task.task.kind, control.task.kind)
    found: set[int] = set()
    for own, others in ((task.questions, control.questions), (task.bare, control.bare)):
        found |= {place for place, _ in _ending_alike(others, own, written)}
        found |= {place for _, place in _ending_alike(own, others, written)}
    return len(found) if len(found) > _MAX_ALIKE * min(len(task.questions), len(control.questions)) else 0


def _unmarked(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(bare for word in words if (bare := word.strip(_MARKS)))


def _words(text: str) -> tuple[str, ...]:
    """Its words in small letters, without marks."""
    return _unmarked(tuple(text.casefold().split()))


def _answer(example: Example) -> str:
    """The right answer in such words, or as it is where it is marks alone."""
    right = str(right_of(example))
    return " ".join(_words(right) or right.split())


def _ending_alike(longer: list[_Question], shorter: list[_Question], written: bool) -> Iterator[tuple[int, int]]:
    """The places of two questions of which the first ends with the words of the second, for the same answer.

    Where answers are ``written`` any will do, if the words are more than a template, or all.
    """
    known = defaultdict[tuple[str, ...], list[tuple[int, tuple[str, ...]]]](list)
    for place, (words, right) in enumerate(shorter):
        known[words].append((place, right))
    lengths = {len(words) for words in known} - {0}
    for first, (words, right) in enumerate(longer):
        for n in (n for n in lengths if n <= len(words)):
            any_answer = written and (n == len(words) or n >= _MIN_WORDS)
            for second, wanted in known.get(words[-n:], ()):
                if any_answer or right == wanted:
                    yield first, second


def _asked(example: Example) -> tuple[Any, ...]:
    """The whole text, and what is asked with the right answer alone, whatever the form."""
    before = example.prompts or (example.prompt if example.asked is None else example.asked,)
    plain = tuple(" ".join(str(text).split()).casefold() for text in before)
    return example.text, (plain, " ".join(str(right_of(example)).split()))
