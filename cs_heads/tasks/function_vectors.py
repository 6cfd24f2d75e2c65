r"""Six word-to-word tasks, by ten shots or an instruction: those of *Function Vectors* (Todd et al., arXiv 2310.15213).

    >>> task = load("antonym", n=10, few_shot=2)
    >>> task.examples[0].prompt, task.examples[0].target
    ('Q: near\nA: far\n\nQ: everything\nA: nothing\n\nQ: more\nA:', ' less')

The library brings about a hundred pairs of its own for each; ``data_files=`` takes the files of that paper.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

from cs_heads.arguments import check_integer
from cs_heads.tasks.data_files import input_output_pairs
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, asking, check_shared
from cs_heads.tasks.pairs import PromptPair, shuffled_labels
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import word_list, word_pairs
from cs_heads.text import shown as as_text

INSTRUCTIONS = {
    "antonym": "Write the word that means the opposite.",
    "capitalize": "Write the word with a capital first letter.",
    "country-capital": "Write the capital city of the country.",
    "english-french": "Translate the English word into French.",
    "present-past": "Write the verb in the past tense.",
    "singular-plural": "Write the noun in the plural.",
}
"""The six tasks, and what each asks for."""

_FORM = "Q: {item}\nA: {label}\n\n"


def load(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    few_shot: int = 10,
    shared: bool = False,
    data_files: str | Path | None = None,
) -> Task:
    """``n`` words to be turned into others, the remaining ones held out.

    Args:
        name: One of ``INSTRUCTIONS``.
        n: Finding words; by default 100, or half of a short list.
        seed: Chooses them.
        few_shot: Worked examples, drawn for each prompt from pairs never asked; 0: an instruction says what to do, in
            the model's chat template where it has one.
        shared: Draw them once, and show the same before every question.
        data_files: A JSON list of ``{"input", "output"}``, or a folder that holds it as ``<name>.json``.

    Raises:
        ValueError: There are too few pairs, or they are malformed.
    """
    check_integer("few_shot", few_shot, 0)
    check_shared(shared, few_shot)
    items = list(_items(name, data_files))
    rng = random.Random(f"function_vectors/{name}/{seed}")
    rng.shuffle(items)
    # Shots come from pairs that are never asked, on neither side of the split.
    held_back = 2 * few_shot
    pool, asked = items[:held_back], items[held_back:]
    if len(asked) < 2:
        raise ValueError(f"few_shot={few_shot} needs {held_back + 2} pairs or more, task {name!r} has {len(items)}")
    instructed = [f"{INSTRUCTIONS[name]}\nWord: {word}" for word, _ in asked]
    prompts = [f"{question}\nAnswer:" for question in instructed]
    if few_shot:
        worked = ["".join(f"Q: {x}\nA: {y}\n\n" for x, y in rng.sample(pool, few_shot)) for _ in asked]
        prompts = [f"{worked[0 if shared else i]}Q: {word}\nA:" for i, (word, _) in enumerate(asked)]
    records = [{"prompt": prompt, "target": f" {y}"} for prompt, (_, y) in zip(prompts, asked, strict=True)]
    task = asking(Task.from_records(records, f"function_vectors/{name}"), instructed).split(n, seed)[0]
    return task if few_shot else task.with_chat_template("auto")


def pairs_of(task: Task, n: int = 50, seed: int = 0) -> tuple[PromptPair, ...]:
    """Clean prompts of worked examples, as many as a task's prompts have, and corrupted ones with shuffled labels.

    They ask about the task's words, for causal mediation.

    Args:
        task: Questions by two worked examples or more, as ``load`` asks them.
        n: Pairs.
        seed: Draws the words and the shuffles.

    Raises:
        ValueError: There are too few different answers.
    """
    items = {example.target: (asked_word(example), str(example.target).strip()) for example in reversed(task.examples)}
    return shuffled_labels([*items.values()], n, n_shots=n_shots(task), seed=seed, form=_FORM)


def n_shots(task: Task) -> int:
    """How many worked examples every prompt of a task has; 0 where it does not ask by them."""
    prompts = [as_text(example.prompt) for example in task.examples]
    if not all("Q: " in prompt and prompt.endswith("\nA:") for prompt in prompts):
        return 0
    return min(prompt.count("Q: ") for prompt in prompts) - 1


def asked_word(example: Example) -> str:
    """The word that a prompt by worked examples asks about."""
    return as_text(example.prompt).rpartition("Q: ")[2].removesuffix("\nA:")


def instructed(example: Example, name: str) -> Example:
    """The same word asked for by an instruction and one worked example, the first of the prompt.

    Args:
        example: One that is asked by worked examples.
        name: Its task among the instructions, as ``"antonym"``.
    """
    shown, answer = as_text(example.prompt).partition("\n\n")[0].removeprefix("Q: ").split("\nA: ")
    worked = f"Word: {shown}\nAnswer: {answer}"
    prompt = f"{INSTRUCTIONS[name]}\n{worked}\n\nWord: {asked_word(example)}\nAnswer:"
    return replace(example, prompt=prompt)


def _items(name: str, data_files: str | Path | None) -> tuple[tuple[str, str], ...]:
    if data_files is None and name == "capitalize":
        return tuple((word, word.capitalize()) for word in word_list("nouns"))
    if data_files is None:
        return word_pairs(name)
    path = Path(data_files)
    found: dict[str, str] = {}
    for word, output in input_output_pairs(path / f"{name}.json" if path.is_dir() else path):
        found.setdefault(word, output)
    return tuple(found.items())


TASKS = {
    name: Entry(f"word to word by ten examples: {told[0].lower()}{told[1:-1]}", partial(load, name))
    for name, told in INSTRUCTIONS.items()
}
