"""What a capability is: examples, how they are scored, and which of them are kept for the proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from cs_heads.arguments import check_integer, check_list, check_one_of, check_seed
from cs_heads.tasks.data_files import check_different
from cs_heads.tasks.example import Example, check_unseen, groups_of, hash_of, parted, questions_of
from cs_heads.tasks.records import Kind, read_records
from cs_heads.tasks.scorer import (
    AnyScorer,
    ExactMatch,
    LogprobScorer,
    RelativeScorer,
    Scorer,
    as_scorer,
    check_scores,
    is_graded,
    name_of_scorer,
)
from cs_heads.text import shown

Role = Literal["whole", "finding", "confirming"]

# How many continuations an example of each kind has, and that in words.
_CONTINUATIONS = {
    "choice": (range(2, 10**9), "two continuations or more"),
    "completion": (range(1, 2), "one continuation"),
    "generation": (range(2), "one continuation or none"),
}
_WORDS = {
    "kind": tuple(_CONTINUATIONS),
    "accuracy": ("sequence", "token"),
    "chat": ("off", "auto", "on"),
    "too_long": ("refuse", "truncate"),
}
"""What stands in fields that hold a word."""


@dataclass(frozen=True, repr=False)
class Task:
    """Examples of one capability and the rule that scores them.

    - ``choice`` (``acc``): 1 when the right continuation has the highest summed log-probability;
      with ``length_normalized=True`` (``acc_norm``) each sum is divided by the continuation's
      length in characters, the one space that it may begin with not counted.
    - ``completion``: 1 when every target token is the argmax, which is greedy exact match without
      decoding; over token ids with ``accuracy="token"`` the share of target tokens that are the argmax.
    - ``generation``: what ``scorer`` says of the text that the model writes after the prompt, greedily, up to
      ``max_new_tokens`` or the first of the strings ``stop``.

    A task is *whole* until it is split; then it is *finding* or *confirming*.

    Attributes:
        name: Its name.
        kind: ``"choice"``, ``"completion"`` or ``"generation"``.
        examples: One or more, all of this kind.
        length_normalized: Whether choices are scored by ``acc_norm``.
        scorer: Of a generation task what scores its texts; of the others a ``LogprobScorer`` that takes the place of
            the rule (None: the rule).
        max_new_tokens: Tokens that the model writes at most; None for other kinds than generation.
        stop: Strings that end what it writes; empty for other kinds than generation.
        chat: Whether the model is shown each prompt as a user's message in its chat template: ``"off"``, ``"on"``, or
            ``"auto"`` where it has one.
        too_long: What becomes of an example that does not fit into the model's context: ``"refuse"``, or
            ``"truncate"``: its prompt loses tokens at the left until it fits.
        accuracy: ``"sequence"``, or over token ids ``"token"``.
        matched: Whether it is a control that is asked in the form of the task (``default_controls``).
        role: ``"whole"``, ``"finding"`` or ``"confirming"``.
        held_out: The unseen examples of a finding task (None: there are none).

    Raises:
        ValueError: No example, examples of another kind, texts beside token ids, fields that do not fit together, or
            unseen examples that ask what the task asks.
    """

    name: str
    kind: Kind
    examples: tuple[Example, ...]
    length_normalized: bool = False
    scorer: AnyScorer | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    chat: str = "off"
    too_long: str = "refuse"
    accuracy: str = "sequence"
    matched: bool = False
    role: Role = "whole"
    held_out: Task | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_task(self)
        if self.held_out is not None:
            check_unseen(self.name, self.examples, self.held_out.examples)

    @classmethod
    def from_records(
        cls,
        records: Any,
        name: str = "task",
        length_normalized: bool = False,
        *,
        scorer: AnyScorer | Callable[[Example, str], Any] | None = None,
        accuracy: str = "sequence",
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        places: Sequence[str] | None = None,
    ) -> Task:
        """A task from records of one form.

        A choice record is ``{"prompt", "choices", "answer"}`` with the index of the right choice, a completion record
        ``{"prompt", "target"}``, and with ``max_new_tokens`` a generation record ``{"prompt", "target", "reference"}``,
        the last two optional. Lists of token ids may stand for all of these texts; then a completion may have
        ``"positions"``, the places in its prompt where the tokens of its target are read (``Example``). Records of one
        ``"sequence"``, a name or number that any record may have, stay on one side of a split. Texts may name the bare
        question, as ``"asked"``, where the same one stands behind several worked examples: it counts once.

        Args:
            records: The records: a list of them, a DataFrame, or one split of a ``datasets.Dataset``.
            name: The task's name.
            length_normalized: Score choices by ``acc_norm``.
            scorer: A ``Scorer``, or a function of an example and a text; by default a text scores 1 where it is the
                reference, or the target where there is none.
            accuracy: Over token ids, whether the score is all of the target's tokens right (``"sequence"``) or the
                share of them (``"token"``).
            max_new_tokens: The model writes up to so many tokens.
            stop: Texts that end what the model writes.
            places: What errors call each record ("line 3"); by default its number.

        Returns:
            The whole task, not split yet, with the examples in the order of the records.

        Raises:
            ValueError: A record is malformed, there is none, or they are of several forms; the record is named.

        >>> task = Task.from_records([{"prompt": "One, two,", "target": " three"}], name="counting")
        >>> task.kind, len(task)
        ('completion', 1)
        """
        if hasattr(records, "set_axis"):
            columns = list(map(str, records.columns))
            check_different("columns of records", columns)
            records = records.set_axis(columns, axis=1).to_dict("records")
        listed = check_list("records", records, "records")
        placed = zip(places or [f"record {i}" for i in range(len(listed))], listed, strict=True)
        kind, examples = read_records(placed, name, max_new_tokens is not None)
        if scorer is None and kind == "generation":
            scorer = ExactMatch()
            for index, example in enumerate(examples):
                if not example.reference:
                    raise ValueError(f'task {name!r}, example {index}: needs a "reference" or "target", or a scorer')
        made, stop = None if scorer is None else as_scorer(scorer), tuple(check_list("stop", stop, "texts"))
        return cls(name, kind, examples, length_normalized, made, max_new_tokens, stop, accuracy=accuracy)

    def __len__(self) -> int:
        return len(self.examples)

    def __repr__(self) -> str:
        role = "" if self.role == "whole" else f"{self.role} "
        unseen = "" if self.held_out is None else f", {len(self.held_out)} held out"
        return f"Task({self.name!r}: {self.kind}, {len(self)} {role}examples{unseen})"

    @property
    def over_token_ids(self) -> bool:
        """Whether its examples are token ids in place of texts."""
        return self.examples[0].over_token_ids

    @property
    def chance(self) -> float:
        """The score of guessing: the mean of 1 / number of choices; 0 for completion and generation."""
        if self.kind != "choice":
            return 0.0
        return float(np.mean([1 / len(example.continuations) for example in self.examples]))

    @cached_property
    def known(self) -> list[frozenset[str]]:
        """By which hashes each example is known: those of its question (``questions_of``) and of its sequence."""
        asked = zip(self.examples, questions_of(self.examples), strict=True)
        return [
            frozenset(keys if one.sequence is None else (*keys, hash_of(["sequence", self.name, one.sequence])))
            for one, keys in asked
        ]

    @property
    def identity(self) -> str:
        """A hash of the examples, in order, and of ``scoring``."""
        return hash_of([self.scoring, *(example.identity for example in self.examples)])

    @property
    def scoring(self) -> dict[str, Any]:
        """How its examples are asked and scored; JSON-ready."""
        fields = ("kind", "length_normalized", "scorer", "accuracy", "max_new_tokens", "stop", "chat", "too_long")
        own = {name: getattr(self, name) for name in fields}
        return own | {"scorer": None if self.scorer is None else name_of_scorer(self.scorer), "stop": list(self.stop)}

    @cached_property
    def graded(self) -> bool:
        """Whether it has scores that are no right answers, by its scorer (``is_graded``)."""
        return self.scorer is not None and is_graded(self.scorer, self.examples)

    @property
    def relative(self) -> bool:
        """Whether texts are scored beside those of the intact model."""
        return isinstance(self.scorer, RelativeScorer)

    @cached_property
    def answers(self) -> Int[np.ndarray, " example"]:
        """The place of the right continuation of each example."""
        return np.array([example.answer for example in self.examples])

    @cached_property
    def characters(self) -> Int[np.ndarray, "example continuation"]:
        """Characters of each continuation, one at least, without the one space it may begin with, as in lm-eval."""
        counts = [[max(1, len(shown(text).removeprefix(" "))) for text in each.continuations] for each in self.examples]
        return np.array([*zip_longest(*counts, fillvalue=1)]).T

    def score_texts(
        self, examples: Sequence[int], texts: Sequence[str], intact: Sequence[str] | None = None
    ) -> Float[np.ndarray, " text"]:
        """Score of each text, said after the prompt of the example at its place.

        Args:
            examples: Index of the example of each text.
            texts: What was said.
            intact: The intact model's texts after the same prompts, which a ``RelativeScorer`` holds them against;
                other scorers do without.

        Returns:
            One number in [0, 1] for each text, in their order.

        Raises:
            ValueError: A score outside [0, 1], a task that is not scored by texts, or no texts of the intact model
                where the scorer needs them.
        """
        chosen, scorer = [self.examples[index] for index in examples], self.scorer
        if intact is not None and isinstance(scorer, RelativeScorer):
            return check_scores(scorer, scorer.against(chosen, texts, intact), examples)
        if not isinstance(scorer, Scorer):
            wants = "needs the intact model's texts" if self.relative else "is not scored by texts"
            raise ValueError(f"task {self.name!r} is a {self.kind} task: it {wants}")
        return check_scores(scorer, scorer.score_texts(chosen, texts), examples)

    def generated(self, max_new_tokens: int, stop: Sequence[str] = ()) -> Task:
        """The completion task with the model writing its answer: 1 where the text is the target, white space aside.

        Its held-out examples go with it.

        Args:
            max_new_tokens: The model writes up to so many tokens.
            stop: Texts before which the answer ends.

        Returns:
            A generation task of the same name and prompts.

        Raises:
            ValueError: Another kind of task.

        >>> task = Task.from_records([{"prompt": "2 + 2 =", "target": " 4"}], "sums").generated(3, stop=["."])
        >>> task.kind, task.examples[0].reference
        ('generation', ' 4')
        """
        if self.over_token_ids or self.kind != "completion" or self.scorer is not None:
            raise ValueError(f"only completion tasks of texts are written out; task {self.name!r} is none")
        unseen = None if self.held_out is None else self.held_out.generated(max_new_tokens, stop)
        examples = tuple(replace(example, reference=shown(example.target)) for example in self.examples)
        written: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": tuple(check_list("stop", stop, "texts"))}
        return replace(self, kind="generation", examples=examples, held_out=unseen, scorer=ExactMatch(), **written)

    def with_chat_template(self, chat: str = "on") -> Task:
        """The task with its prompts shown in the model's chat template, or not; its held-out examples go with it.

        Args:
            chat: ``"on"``, ``"off"``, or ``"auto"``: see ``Task``.

        Raises:
            ValueError: Another value, or a chat template over token ids.
        """
        return with_fields(self, chat=chat)

    def with_truncation(self, too_long: str = "truncate") -> Task:
        """The task with prompts that do not fit cut at the left, or refused; its held-out examples go with it.

        As in lm-eval's HFLM each choice leaves its own room: one of fewer tokens is shown more of the prompt.

        Args:
            too_long: ``"truncate"`` or ``"refuse"``: see ``Task``.

        Raises:
            ValueError: Another value.
        """
        return with_fields(self, too_long=too_long)

    def split(self, n: int | None = None, seed: int = 0) -> tuple[Task, Task]:
        """Disjoint finding and confirming tasks: ``n`` examples to find heads with, all others to confirm.

        Examples of one question or of one sequence stay on one side, so the finding side may have fewer than ``n``. The
        same prompt with another target is the same question, and so is another cut of the same text into both. Where
        prompts say nothing, since they are empty or before all choices the same, the continuations are the question.

        Args:
            n: By default 100, or half of the task where it has fewer than 200 examples.
            seed: Chooses the examples.

        Returns:
            The finding side, which has the other in ``held_out``, and the confirming side.

        Raises:
            ValueError: The task was split before, or ``n`` leaves a side without examples.
        """
        check_seed(seed)
        if self.role != "whole":
            raise ValueError(f"task {self.name!r} is the {self.role} side of a split; split the whole task")
        different = len(groups := groups_of(self.examples))
        fewest = min(map(len, groups)) if different > 1 else 0
        n = max(fewest, min(100, len(self) // 2)) if n is None else n
        if different < 2 or not 1 <= n < len(self):
            raise ValueError(
                f"n must leave examples on both sides of the split: got n={n} with {len(self)} examples "
                f"({different} different) in task {self.name!r}{'' if different < 2 else '; leave n out to halve them'}"
            )
        finding, confirming = parted(self.examples, n, seed)
        if not finding:
            raise ValueError(f"n must be {fewest} or more, the fewest examples that stay together, got n={n}")
        kept = replace(self, examples=tuple(finding)).with_holdout(replace(self, examples=tuple(confirming)))
        assert kept.held_out is not None
        return kept, kept.held_out

    def with_holdout(self, unseen: Task) -> Task:
        """The finding side made of this task, with another task to confirm on.

        Args:
            unseen: The unseen examples, scored in the same way.

        Raises:
            ValueError: Both share questions or sequences, or are scored in different ways.
        """
        for name, value in {**self.scoring, "scorer": self.scorer}.items():
            if (other := {**unseen.scoring, "scorer": unseen.scorer}[name]) != value:
                raise ValueError(f"unseen must be scored as task {self.name!r} is ({name} {value}), got {other}")
        held_out = replace(unseen, role="confirming", held_out=None)
        return replace(self, role="finding", held_out=held_out)

    def take(self, n: int) -> Task:
        """The first examples, in the same role.

        Args:
            n: How many; where there are fewer, all.

        Raises:
            ValueError: ``n`` is no integer of 1 or more.
        """
        return replace(self, examples=self.examples[: check_integer("n", n, 1)])


def with_fields(task: Task, **fields: Any) -> Task:
    """The task with other values of some fields, which its held-out examples have, too."""
    unseen = None if task.held_out is None else with_fields(task.held_out, **fields)
    return replace(task, held_out=unseen, **fields)


def _check_task(task: Task) -> None:
    """Raise ``ValueError`` where fields of a task do not fit together."""
    if not task.examples:
        raise ValueError(f"task {task.name!r} is empty: it needs at least one example")
    for name, words in _WORDS.items():
        check_one_of(name, getattr(task, name), words)
    numbers, allowed = _CONTINUATIONS[task.kind]
    for index, example in enumerate(task.examples):
        if (n := len(example.continuations)) not in numbers:
            raise ValueError(f"task {task.name!r}, example {index}: a {task.kind} example has {allowed}, got {n}")
    if len({example.over_token_ids for example in task.examples}) > 1:
        raise ValueError(f"task {task.name!r} mixes texts and token ids; a task has one of them")
    ids, written, scorer = task.over_token_ids, task.kind == "generation", task.scorer
    rules = {
        "accuracy 'token' is for completions over token ids without a scorer": task.accuracy == "token"
        and (not ids or task.kind != "completion" or scorer is not None),
        "length_normalized applies to choice tasks alone, of texts and without a scorer": task.length_normalized
        and (ids or task.kind != "choice" or scorer is not None),
        "max_new_tokens and stop are for generation tasks": not written
        and (task.max_new_tokens is not None or bool(task.stop)),
        "what a model writes are texts": ids and written,
        "chat must be off over token ids": ids and task.chat == "on",
        "stop must be texts, none empty": "" in task.stop,
        f"scorer must be a LogprobScorer (got {scorer!r:.80})": not written
        and not isinstance(scorer, LogprobScorer | None),
        f"scorer must be a Scorer (got {scorer!r:.80})": written and not isinstance(scorer, Scorer | RelativeScorer),
    }
    for rule, broken in rules.items():
        if broken:
            raise ValueError(f"{rule}; task {task.name!r} is a {task.kind} task of {'token ids' if ids else 'texts'}")
    if written:
        check_integer(f"max_new_tokens of task {task.name!r}", task.max_new_tokens, 1)
