"""What a capability is: examples, how they are scored, and which of them are kept for the proof."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from cs_heads.tasks.records import read_record

if TYPE_CHECKING:
    import datasets
    import pandas as pd

Kind = Literal["choice", "completion"]
Role = Literal["whole", "finding", "confirming"]


@dataclass(frozen=True)
class Example:
    """One prompt with the continuations that are scored after it.

    A choice example has two continuations or more and ``answer`` is the index of the right one; a
    completion example has its target alone. Prompt and continuation are joined as they stand: a
    continuation that starts a new word begins with a space.
    """

    prompt: str
    continuations: tuple[str, ...]
    answer: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.answer < len(self.continuations):
            raise ValueError(
                f"answer must be the index of one of {len(self.continuations)} continuations, got {self.answer}"
            )

    @property
    def identity(self) -> str:
        """A hash of everything in the example."""
        return _hash([self.prompt, self.continuations, self.answer])

    @property
    def question(self) -> str:
        """A hash of prompt and continuations whatever their order: what must not stand on both sides of a split."""
        return _hash([self.prompt, sorted(self.continuations)])


@dataclass(frozen=True)
class Task:
    """Examples of one capability and the rule that scores them.

    - ``choice`` (``acc``): 1 when the right continuation has the highest summed log-probability;
      with ``length_normalised=True`` (``acc_norm``) each sum is divided by the continuation's
      length in characters, its leading space not counted.
    - ``completion``: 1 when every target token is the argmax, which is greedy exact match without
      decoding.

    A task is *whole* until it is split; then it is *finding* (with its unseen examples in
    ``held_out``) or *confirming*.
    """

    name: str
    kind: Kind
    examples: tuple[Example, ...]
    length_normalised: bool = False
    role: Role = "whole"
    held_out: Task | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError(f"task {self.name!r} is empty: it needs at least one example")
        if self.kind not in ("choice", "completion"):
            raise ValueError(f"kind must be 'choice' or 'completion', got {self.kind!r}")
        for index, example in enumerate(self.examples):
            if (len(example.continuations) > 1) != (self.kind == "choice"):
                raise ValueError(
                    f"task {self.name!r}, example {index}: a {self.kind} example has "
                    f"{'two continuations or more' if self.kind == 'choice' else 'one continuation'}, "
                    f"got {len(example.continuations)}"
                )
        if self.length_normalised and self.kind != "choice":
            raise ValueError(
                f"length_normalised applies to choice tasks alone; task {self.name!r} is a {self.kind} task"
            )

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], name: str = "task", length_normalised: bool = False
    ) -> Task:
        """A task from records of one form.

        A choice record is ``{"prompt", "choices", "answer"}`` with the index of the right choice, a
        completion record ``{"prompt", "target"}``. A malformed record, an empty task or a mixture of
        both forms raises ``ValueError`` naming the record.

        >>> task = Task.from_records([{"prompt": "One, two,", "target": " three"}], name="counting")
        >>> task.kind, len(task)
        ('completion', 1)
        """
        return cls._from_numbered(
            ((f"record {i}", record) for i, record in enumerate(records)), name, length_normalised
        )

    @classmethod
    def _from_numbered(
        cls, records: Iterable[tuple[str, Mapping[str, Any]]], name: str, length_normalised: bool = False
    ) -> Task:
        examples: list[Example] = []
        kinds: dict[Kind, str] = {}
        for place, record in records:
            form, prompt, continuations, answer = read_record(record, f"task {name!r}, {place}")
            kinds.setdefault(form, place)
            examples.append(Example(prompt, continuations, answer))
        if len(kinds) > 1:
            places = " and ".join(f"a {form} record ({place})" for form, place in kinds.items())
            raise ValueError(f"task {name!r} mixes two forms: {places}; a task has one")
        kind: Kind = next(iter(kinds), "completion")
        return cls(name, kind, tuple(examples), length_normalised)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, name: str = "task", length_normalised: bool = False) -> Task:
        """A task from a pandas DataFrame whose columns are the fields of ``from_records``."""
        records = ({str(key): value for key, value in row.items()} for row in frame.to_dict("records"))
        return cls.from_records(records, name, length_normalised)

    @classmethod
    def from_dataset(cls, dataset: datasets.Dataset, name: str = "task", length_normalised: bool = False) -> Task:
        """A task from one split of a Hugging Face ``datasets.Dataset`` with the fields of ``from_records``."""
        if not hasattr(dataset, "column_names") or isinstance(dataset.column_names, dict):
            raise ValueError(
                f"dataset must be one split, a datasets.Dataset, got {type(dataset).__name__}; "
                'pick a split first, as in dataset["test"]'
            )
        return cls.from_records(dataset, name, length_normalised)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def chance(self) -> float:
        """The score of guessing: the mean of 1 / number of choices; 0 for completion."""
        if self.kind == "completion":
            return 0.0
        return float(np.mean([1 / len(example.continuations) for example in self.examples]))

    @property
    def identity(self) -> str:
        """A hash of the examples, in order, and the scoring rule."""
        parts = [self.kind, str(self.length_normalised), *(example.identity for example in self.examples)]
        return _hash(parts)

    def score(self, example: int, logprobs: Float[np.ndarray, " continuation"], greedy: Sequence[bool]) -> float:
        """Score of one example from the summed log-probability (nats) and greedy match of each continuation.

        Choices that tie for the best share the point.
        """
        if self.kind == "completion":
            return float(greedy[0])
        if self.length_normalised:
            lengths = [len(text.lstrip()) for text in self.examples[example].continuations]
            logprobs = logprobs / np.maximum(lengths, 1)
        best = logprobs == np.max(logprobs)
        return float(best[self.examples[example].answer] / max(best.sum(), 1))

    def split(self, n: int | None = None, seed: int = 0) -> tuple[Task, Task]:
        """Disjoint finding and confirming tasks: ``n`` examples to find heads with, all others to confirm.

        ``n`` is 100 by default, or half of the task where it has fewer than 200 examples. Examples with
        the same prompt and continuations stay on one side, so the finding side may miss ``n`` by some.
        A task that was split before, or an ``n`` that leaves nothing to confirm, raises ``ValueError``.
        """
        if self.role != "whole":
            raise ValueError(f"task {self.name!r} is the {self.role} side of a split; split the whole task")
        groups: dict[str, list[Example]] = {}
        for example in self.examples:
            groups.setdefault(example.question, []).append(example)
        if n is None:
            n = min(100, len(self) // 2)
        if len(groups) < 2 or not 1 <= n < len(self):
            raise ValueError(
                f"n must leave examples on both sides of the split: got n={n} with {len(self)} examples "
                f"({len(groups)} different) in task {self.name!r}"
            )
        order = np.random.default_rng(seed).permutation(len(groups))
        shuffled = list(groups.values())
        finding: list[Example] = []
        confirming: list[Example] = []
        for rank, index in enumerate(order):
            fits = len(finding) + len(shuffled[index]) <= n and rank < len(order) - 1
            (finding if fits or not finding else confirming).extend(shuffled[index])
        kept = replace(self, examples=tuple(finding)).holding_out(replace(self, examples=tuple(confirming)))
        assert kept.held_out is not None
        return kept, kept.held_out

    def holding_out(self, unseen: Task) -> Task:
        """The finding side made of this task, with ``unseen`` to confirm on; shared examples raise ``ValueError``."""
        shared = {e.question for e in self.examples} & {e.question for e in unseen.examples}
        if shared:
            raise ValueError(
                f"unseen must share no example with task {self.name!r}; {len(shared)} of its examples are in both"
            )
        if unseen.kind != self.kind or unseen.length_normalised != self.length_normalised:
            raise ValueError(f"unseen must be scored as task {self.name!r} is ({self.kind}), got {unseen.kind}")
        held_out = replace(unseen, role="confirming", held_out=None)
        return replace(self, role="finding", held_out=held_out)

    def take(self, n: int) -> Task:
        """The first ``n`` examples, in the same role; all of them where there are fewer."""
        if n < 1:
            raise ValueError(f"n must be 1 or more, got {n}")
        return replace(self, examples=self.examples[:n])


def finding_side(task: Task) -> Task:
    """The examples heads are found with; a task that has no such side raises ``ValueError``."""
    _check_task(task)
    if task.role == "finding":
        return task
    raise ValueError(
        f"task {task.name!r} is the confirming side of a split; find heads on the finding side"
        if task.role == "confirming"
        else _UNSPLIT.format(task.name)
    )


def confirming_side(task: Task) -> Task:
    """The unseen examples of a finding or confirming task; a task without any raises ``ValueError``."""
    _check_task(task)
    if task.role == "confirming":
        return task
    if task.role == "whole":
        raise ValueError(_UNSPLIT.format(task.name))
    if task.held_out is None:
        raise ValueError(f"task {task.name!r} has no held-out examples to confirm with")
    return task.held_out


def control_side(task: Task, n: int, seed: int) -> Task:
    """Up to ``n`` examples of a control to judge with: the unseen ones, or of a whole task some drawn with ``seed``.

    Of a whole task they come from the half that ``search_control`` leaves with the same seed.
    """
    _check_task(task)
    if task.role != "whole":
        return confirming_side(task).take(n)
    half = _halves(task, seed)[1]
    order = np.random.default_rng(seed).permutation(len(half))[:n]
    return replace(half, examples=tuple(half.examples[index] for index in sorted(order)))


def search_control(task: Task, seed: int) -> Task:
    """The examples of a control that a search may use: the finding side, or half of a whole task.

    ``control_side`` draws from the other half with the same ``seed``. A confirming side raises ``ValueError``:
    its examples are kept for the proof.
    """
    _check_task(task)
    return _halves(task, seed)[0] if task.role == "whole" else finding_side(task)


def _halves(task: Task, seed: int) -> tuple[Task, Task]:
    """A whole task's halves, to search and to judge with; twice the task where it is one question, with no halves."""
    if len({example.question for example in task.examples}) < 2:
        return task, task
    searched, judged = (replace(half, role="whole", held_out=None) for half in task.split(len(task) // 2, seed))
    return searched, judged


_UNSPLIT = (
    "task {!r} is not split into examples to find heads with and unseen ones to confirm them: "
    "finding, unseen = task.split(n=100, seed=0)"
)


def _check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise ValueError(f"task must be a cs_heads.Task (see load_task and Task.from_records), got {task!r}"[:300])


def _hash(content: object) -> str:
    # Surrogates that JSON lets through have no UTF-8: hashed as they stand.
    text = json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]
