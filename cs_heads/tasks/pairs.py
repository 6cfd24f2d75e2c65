"""Clean and corrupted prompts: the data of causal mediation.

A pair asks what one prompt knows that the other does not: state is carried from the clean run into the
corrupted one, and the answer is watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cs_heads.arguments import check_one_of, check_seed
from cs_heads.tasks.example import Example
from cs_heads.tasks.task import Task
from cs_heads.text import Text

STAGES = ("abstraction", "induction", "retrieval")


@dataclass(frozen=True)
class PromptPair:
    """A clean prompt, a corrupted one, and the answer that the clean prompt's state should bring about.

    Attributes:
        clean: The prompt that state is taken from.
        corrupted: The prompt that state is carried into.
        target: The answer that this should bring about, with the space that it begins with.
        instead: What the corrupted prompt says by itself, likewise (None: not known).
        clean_ends: Where state is taken from, in characters (token ids, where prompts are such): the last token up to
            there. Without any it is the last token of the prompt.
        corrupted_ends: Where it is carried to, likewise, one for each of ``clean_ends``.

    Raises:
        ValueError: Ends that do not pair up or lie outside a prompt, or ``target`` and ``instead`` the same.
    """

    clean: Text
    corrupted: Text
    target: Text
    instead: Text | None = None
    clean_ends: tuple[int, ...] = ()
    corrupted_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ends = ((self.clean_ends, self.clean), (self.corrupted_ends, self.corrupted))
        inside = all(0 < end <= len(text) for places, text in ends for end in places)
        if not inside or len(self.clean_ends) != len(self.corrupted_ends):
            raise ValueError(
                "clean_ends and corrupted_ends must pair up, each inside its prompt (1 to its length); got "
                f"{self.clean_ends} in {len(self.clean)} and {self.corrupted_ends} in {len(self.corrupted)}"
            )
        if self.target == self.instead:
            raise ValueError(f"target and instead must differ, got {self.target!r} twice")


def counterparts(task: Task, n: int, seed: int = 0) -> tuple[PromptPair, ...]:
    """Pairs for any task: an example's prompt is clean, that of another example with another answer corrupted.

    The answer of the clean prompt is the target, that of the corrupted one stands ``instead``. Of a sequence with
    answers inside it the pair is about the first.

    Args:
        task: The task.
        n: Pairs at most.
        seed: Draws them.

    Raises:
        ValueError: All examples have the same answer.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    prompts, answers = zip(*map(_first_answer, task.examples), strict=True)
    if len(set(answers)) < 2:
        raise ValueError(f"task {task.name!r} has one answer alone, {answers[0]!r}: no prompt can be its counterpart")
    pairs = []
    for index in rng.permutation(len(task))[:n]:
        other = rng.choice([i for i, answer in enumerate(answers) if answer != answers[index]])
        pairs.append(PromptPair(prompts[index], prompts[other], target=answers[index], instead=answers[other]))
    return tuple(pairs)


def _first_answer(example: Example) -> tuple[Text, Text]:
    """Prompt and target; where answers are read inside a prompt, what comes before the first, and that."""
    if not example.positions:
        return example.prompt, example.target
    return example.prompt[: example.positions[0] + 1], example.target[:1]


def shuffled_labels(
    items: Sequence[tuple[str, str]], n: int, *, n_shots: int = 5, seed: int = 0, form: str = "{item} : {label} . "
) -> tuple[PromptPair, ...]:
    """Function-vector pairs: worked examples ``x : y . x : y . x :`` against the same ones with shuffled labels.

    The shuffle leaves no label in its place, so the corrupted prompt shows the form of the
    task and not what it is (Todd et al., *Function Vectors in Large Language Models*, arXiv 2310.15213,
    section 2).

    Args:
        items: Words and their labels, more than ``n_shots``, no label twice.
        n: Pairs.
        n_shots: Worked examples, 2 or more.
        seed: Draws the items and the shuffles.
        form: A worked example, filled with an ``item`` and its ``label``, which has a space before it.

    Returns:
        The pairs, clean and corrupted prompts of as many words.

    Raises:
        ValueError: Too few items or shots, or a label twice.
    """
    check_seed(seed)
    labels = {label for _, label in items}
    if n_shots < 2 or len(items) <= n_shots or len(labels) < len(items):
        why = f"got {len(items)} items with {len(labels)} labels"
        raise ValueError(f"items must be more than n_shots={n_shots}, which is 2 or more, with different labels; {why}")
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        *shots, (query, answer) = (items[i] for i in rng.permutation(len(items))[: n_shots + 1])
        # A random cycle has no fixed point.
        cycle = rng.permutation(n_shots)
        moved = dict(zip(cycle, np.roll(cycle, 1), strict=True))
        asked = form.format(item=query, label="\0").partition(" \0")[0]
        clean = "".join(form.format(item=x, label=y) for x, y in shots) + asked
        other = "".join(form.format(item=x, label=shots[moved[i]][1]) for i, (x, _) in enumerate(shots)) + asked
        pairs.append(PromptPair(clean, other, target=f" {answer}"))
    return tuple(pairs)


def identity_rules(
    words: Sequence[str], stage: str, n: int, *, n_shots: int = 2, seed: int = 0
) -> tuple[PromptPair, ...]:
    """Pairs of ABA and ABB prompts for one stage of Yang et al. (arXiv 2502.20332), ABA clean and ABB clean in turn.

    A prompt shows ``n_shots`` triples of one rule and two words of another: ``x y x . u v u . a b``.

    - ``abstraction`` and ``induction``: the prompts differ in their rule and in the order of the two
      words, so that both are answered by the same word, and every third word is the same. State that
      stands for the *rule* turns the answer into the other word; state that stands for a word does not.
      Carried over at the third words (abstraction), or at the last token (induction).
    - ``retrieval``: the rule is the same, the last two words are swapped. State that stands for the *word* turns the
      answer, carried over at the last token.

    Args:
        words: ``2 * n_shots + 2`` different words or more.
        stage: ``"abstraction"``, ``"induction"`` or ``"retrieval"``.
        n: Pairs.
        n_shots: Triples that a prompt shows, 1 or more.
        seed: Draws the words.

    Returns:
        The pairs, with the words that answer both prompts of each.

    Raises:
        ValueError: Another stage, or too few words or triples.
    """
    check_seed(seed)
    check_one_of("stage", stage, STAGES)
    needed = 2 * n_shots + 2
    vocabulary = sorted(set(words))
    if n_shots < 1 or len(vocabulary) < needed:
        why = f"(at least 1), got {len(vocabulary)}"
        raise ValueError(f"words must hold {needed} different ones or more for {n_shots=} {why}")
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(n):
        drawn = [vocabulary[i] for i in rng.permutation(len(vocabulary))[:needed]]
        twos = list(zip(drawn[::2], drawn[1::2], strict=True))
        swapped = [(b, a) for a, b in twos]
        clean_is_aba = number % 2 == 0
        clean = rule_prompt(twos, clean_is_aba)
        # What the rule of the clean prompt says of its last two words, and the other of them.
        target, instead = (twos if clean_is_aba else swapped)[-1]
        if stage == "retrieval":
            corrupted = rule_prompt([*twos[:-1], swapped[-1]], clean_is_aba)
        else:
            corrupted = rule_prompt(swapped, not clean_is_aba)
            target, instead = instead, target
        ends = (clean[1], corrupted[1]) if stage == "abstraction" else ((), ())
        pairs.append(PromptPair(clean[0], corrupted[0], f" {target}", f" {instead}", *ends))
    return tuple(pairs)


def rule_prompt(twos: Sequence[tuple[str, str]], aba: bool) -> tuple[str, tuple[int, ...]]:
    """The text of a prompt and where its third words end."""
    text, ends = "", []
    for a, b in twos[:-1]:
        text += f"{a} {b} {a if aba else b}"
        ends.append(len(text))
        text += " . "
    return f"{text}{twos[-1][0]} {twos[-1][1]}", tuple(ends)
