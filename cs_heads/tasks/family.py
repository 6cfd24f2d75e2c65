"""What a family of built-in tasks is made with: its entries, and examples drawn with a seed.

A family is a module with ``TASKS``, an ``Entry`` by the name of each task; ``load.FAMILIES`` lists the modules.
Examples come from records (``Task.from_records``). Here is what draws them and holds some out to confirm heads with
(``drawn``, ``drawn_about``, ``asked_once``, ``first_to_find``), and puts worked examples before them
(``with_worked_examples``).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, TypeAlias, TypeVar

import numpy as np

from cs_heads.arguments import check_integer, check_options, check_seed
from cs_heads.tasks.example import Example
from cs_heads.tasks.task import Task

N_FINDING = 100
N_CONFIRMING = 400
POOL = 10
"""Words that are kept for worked examples, whatever the number of shots, and never asked about."""

# So many draws in a row (or about one word) without a new example mean that there is hardly another.
_MAX_MISSES, _MAX_MISSES_OF_A_WORD = 2000, 50

W = TypeVar("W")
Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A built-in task: one line about it, what it needs, and its loader.

    Attributes:
        about: The line about it.
        load: Called as ``load(n=n, seed=seed, **options)``; gives the finding side, its other examples held out. ``n``
            None is its default. Its keywords beyond ``n`` and ``seed`` are the options that ``load_task`` passes on.
        needs: An extra, or files; empty: nothing.
        leaves_out: What an entry that stands for many tasks refuses.
    """

    about: str
    load: Callable[..., Task]
    needs: str = ""
    leaves_out: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keywords a user may set."""
        given = {"n", "seed", *getattr(self.load, "keywords", ())}
        parameters = inspect.signature(self.load).parameters.values()
        return tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in given)

    def check(self, name: str, options: dict[str, Any]) -> None:
        """Refuse options that the task does not take.

        Args:
            name: The task's name, for errors.
            options: What a user has set.

        Raises:
            ValueError: An option that the task does not have, or of another type; the message names it.
        """
        unknown = [option for option in options if option not in self.options]
        if unknown:
            has = f"it has {', '.join(self.options)}" if self.options else "it has none"
            raise ValueError(f"task {name!r} has no option {', '.join(unknown)}; {has}")
        try:
            check_options(self.load, options)
        except ValueError as error:
            raise ValueError(f"task {name!r}: {error}") from None


def drawn(name: str, draw: Callable[[random.Random], Record], n: int | None, seed: int) -> Task:
    """A task of random records, no two of which have the same question, 400 of them held out.

    Args:
        name: The task's name.
        draw: A record, from a random generator.
        n: Finding examples, 100 by default.
        seed: The same seed gives the same examples.

    Raises:
        ValueError: ``draw`` has not so many; the message says how many there are.
    """
    n, rng = N_FINDING if n is None else n, random.Random(f"{name}/{seed}")
    made = _different(rng, [None], lambda rng, *_: draw(rng), n + N_CONFIRMING, _MAX_MISSES)
    if len(made) < n + N_CONFIRMING:
        why = f"about {len(made)} examples"
        raise ValueError(f"n={n} and {N_CONFIRMING} held out are more than task {name!r} has: {why}")
    return two_sides(name, made[:n], made[n:])


def drawn_about(
    name: str, words: Sequence[W], draw: Callable[[random.Random, W, Sequence[W]], Record], n: int | None, seed: int
) -> Task:
    """A task with several questions a word: half of the words are asked about to find heads, the others to confirm.

    Args:
        name: The task's name.
        words: What is asked about.
        draw: A record about a word; the third argument are all words of its side.
        n: Finding examples, 100 by default; up to 400 others are held out.
        seed: The same seed gives the same examples.

    Raises:
        ValueError: There are not ``n`` different questions on the finding side.
    """
    n, rng = N_FINDING if n is None else n, random.Random(f"{name}/{seed}")
    order = rng.sample(words, len(words))
    half = len(order) // 2
    finding = _different(rng, order[:half], draw, n)
    if len(finding) < n:
        raise ValueError(f"n={n} is more than task {name!r} has: about {len(finding)} different examples to find with")
    return two_sides(name, finding, _different(rng, order[half:], draw, N_CONFIRMING))


def _different(
    rng: random.Random,
    words: Sequence[W],
    draw: Callable[[random.Random, W, Sequence[W]], Record],
    n: int,
    most_misses: int = _MAX_MISSES_OF_A_WORD,
) -> list[Record]:
    """Up to ``n`` different records, the words taken in turn, each until ``most_misses`` draws give nothing new."""
    records: dict[tuple[str, ...], Record] = {}
    left = list(words)
    while left:
        for word in list(left):
            if len(records) == n:
                return list(records.values())
            draws = (draw(rng, word, words) for _ in range(most_misses))
            record = next((record for record in draws if _question(record) not in records), None)
            if record is None:
                left.remove(word)
            else:
                records[_question(record)] = record
    return list(records.values())


def asked_once(
    name: str,
    words: Sequence[W],
    line: Callable[[random.Random, W], tuple[str, str]],
    n: int | None,
    seed: int,
    *,
    shots: int,
) -> Task:
    """A completion task with one question a word, after worked examples.

    Args:
        name: The task's name.
        words: What is asked about.
        line: The question about a word and its answer, which together are a worked example.
        n: Finding examples; 100 by default, or half of the words where there are fewer than 200.
        seed: The same seed gives the same examples.
        shots: Worked examples, of ten words kept for them; the same come before each question.

    Raises:
        ValueError: ``shots`` are more than there are words for, or ``n`` leaves nothing to confirm.
    """
    check_integer("shots", shots, 0, POOL)
    rng = random.Random(f"{name}/{seed}")
    order = rng.sample(words, len(words))
    shown, asked = order[:POOL], order[POOL:]
    n = min(N_FINDING, len(asked) // 2) if n is None else n
    if n >= len(asked):
        raise ValueError(f"n must leave examples to confirm with: got n={n}, and task {name!r} has {len(asked)}")
    # Shots have a stream of their own: their number changes neither the questions nor their order.
    drawing = random.Random(f"{name}/{seed}/shots")
    # The same before every question: their tokens run once for all examples of a mask.
    worked = [" ".join(line(drawing, other)) for other in drawing.sample(shown, shots)]
    lines = [line(rng, word) for word in asked]
    records = [{"prompt": "\n".join([*worked, each]), "target": f" {right}", "asked": each} for each, right in lines]
    return two_sides(name, records[:n], records[n:])


def first_to_find(task: Task, n_first: int, n: int | None, seed: int) -> Task:
    """The finding side of examples drawn from the first of a whole task and then from its others, which are held out.

    Args:
        task: The whole task.
        n_first: How many examples come first, as in a protocol that has two lists.
        n: Finding examples; None: the first.
        seed: Draws them.

    Raises:
        ValueError: ``n`` leaves no examples on one side.
    """
    n = n_first if n is None else n
    if not 1 <= n < len(task):
        raise ValueError(f"n must leave examples on both sides: got n={n} with {len(task)} in task {task.name!r}")
    rng = random.Random(f"{task.name}/{seed}")
    lists = task.examples[:n_first], task.examples[n_first:]
    order = [example for examples in lists for example in rng.sample(examples, len(examples))]
    return replace(task, examples=tuple(order[:n])).with_holdout(replace(task, examples=tuple(order[n:])))


def _question(record: Record) -> tuple[str, ...]:
    return (record["prompt"], *sorted(record.get("choices", ())))


def two_sides(name: str, finding: Sequence[Record], unseen: Sequence[Record]) -> Task:
    """A finding task and its held-out examples; ``asked`` of a record is what it asks beside worked examples."""
    found, judged = (
        asking(Task.from_records(records, name), [record.get("asked") for record in records])
        for records in (finding, unseen)
    )
    return found.with_holdout(judged)


def asking(task: Task, asked: Iterable[str | None]) -> Task:
    """The task with the bare question of each example, which it asks whatever worked examples stand before it."""
    examples = zip(task.examples, asked, strict=True)
    return replace(task, examples=tuple(replace(example, asked=bare) for example, bare in examples))


def choice_record(rng: random.Random, prompt: str, choices: Sequence[str], right: str) -> dict[str, Any]:
    """A choice record, its choices in random order.

    Args:
        rng: Shuffles the choices.
        prompt: What they follow.
        choices: As they are, each with its leading space where it has one.
        right: The right one.
    """
    shuffled = list(choices)
    rng.shuffle(shuffled)
    return {"prompt": prompt, "choices": shuffled, "answer": shuffled.index(right)}


@dataclass(frozen=True)
class Question:
    """A question, the answer it should get, and the choices it offers (none where the answer is written freely)."""

    text: str
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def bare(self) -> str:
        """The question with its choices in whatever order: what is asked, whatever worked examples stand before it."""
        return "\n".join([self.text.strip(), *sorted(self.choices)])

    @property
    def asked(self) -> str:
        """The question with its choices, lettered."""
        lettered = (f"\n{letter}. {choice}" for letter, choice in zip(ascii_uppercase, self.choices, strict=False))
        return f"Question: {self.text.strip()}{''.join(lettered)}\nAnswer:"


def with_worked_examples(
    questions: Sequence[Question], instruction: str, n_shots: int, pool: int, seed: int, *, shared: bool
) -> list[tuple[str, Question]]:
    """Each question but those of the pool, with its prompt; questions that come again are left out.

    Args:
        questions: The questions.
        instruction: Stands before the worked examples, where it is not empty.
        n_shots: Worked examples before each question.
        pool: They are drawn from so many of the shortest questions.
        seed: Draws them.
        shared: Draw them once, and show the same before every question.

    Raises:
        ValueError: There are not enough questions for a pool and two more, or none of it is shown to be ``shared``.
    """
    check_shared(shared, n_shots)
    known: dict[tuple[str, tuple[str, ...]], Question] = {}
    for question in questions:
        # Where choices are lettered, another order of them has another letter for the same answer.
        known.setdefault((question.text, tuple(sorted(question.choices)) or (question.answer,)), question)
    different = list(known.values())
    pool = pool if n_shots else 0
    if n_shots < 0 or n_shots > pool or len(different) < pool + 2:
        raise ValueError(
            f"few_shot must be 0 to {pool}, with {pool + 2} or more different questions (the {pool} shortest are "
            f"shown as worked examples); got few_shot={n_shots} and {len(different)} questions"
        )
    by_length = sorted(range(len(different)), key=lambda i: len(different[i].asked) + len(different[i].answer))
    shown = [different[i] for i in by_length[:pool]]
    rng = np.random.default_rng(check_seed(seed))
    head, worked, prompts = f"{instruction}\n" if instruction else "", "", list[tuple[str, Question]]()
    for i in sorted(by_length[pool:]):
        if not (shared and prompts):
            worked = "".join(f"{shown[j].asked} {shown[j].answer}\n" for j in rng.permutation(pool)[:n_shots])
        prompts.append((f"{head}{worked}{different[i].asked}", different[i]))
    return prompts


def of_questions(name: str, questions: Sequence[Question], n_shots: int, few_shot_seed: int, *, shared: bool) -> Task:
    """The whole task of questions: the letter of the right choice, or the answer, after examples from the 10 shortest.

    Args:
        name: The task's name.
        questions: The questions; the answer of one with choices is its letter.
        n_shots: Worked examples before each question.
        few_shot_seed: Draws them.
        shared: Draw them once, and show the same before every question.
    """
    examples = []
    for prompt, each in with_worked_examples(questions, "", n_shots, POOL, few_shot_seed, shared=shared):
        answers = tuple(f" {letter}" for letter in ascii_uppercase[: len(each.choices)]) or (f" {each.answer}",)
        examples.append(Example(prompt, answers, answers.index(f" {each.answer}"), asked=each.bare))
    return Task(name, "choice" if questions[0].choices else "completion", tuple(examples))


def check_shared(shared: bool, n_shots: int) -> None:
    """Raise ``ValueError`` where worked examples are to be the same for all and none is shown."""
    if shared and not n_shots:
        raise ValueError("shared must be False where no worked examples are shown; got shared=True and few_shot=0")
