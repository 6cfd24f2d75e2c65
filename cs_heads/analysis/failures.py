"""How a failure looks: empty or repetitive texts, the same answer to everything, choices that are all unlikely."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from typing_extensions import Unpack

from cs_heads.analysis.columns import in_role, unseen_columns
from cs_heads.analysis.found_heads import Found, sets_of
from cs_heads.analysis.intervals import wilson_interval
from cs_heads.analysis.result import Result
from cs_heads.cluster import ModelLike
from cs_heads.designs import explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.experiment import Experiment
from cs_heads.progress import one_bar
from cs_heads.record import Record, Saved
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.responses import RESPONSES, compared_of
from cs_heads.tasks.splits import check_is_task
from cs_heads.text import shown
from cs_heads.units import Unit

INTACT = "intact"
UNLIKELY = 0.1
"""What is left at most of the probability of all choices, as a share of the intact one, for them to be unlikely."""
LOOPED = 0.5
"""Share of a text that a loop at its end must cover, for the text to be called repetition."""
DISTINCT = 0.5
"""Share of different pairs of words below which a text is called repetition."""
LEAST = 8
"""Words that a text must have to be called repetition."""


@dataclass(frozen=True)
class Share(Record):
    """How often something is seen, with its 95 % Wilson interval."""

    _written = ("count", "n", "interval")

    count: int
    n: int

    @property
    def share(self) -> float:
        """Share of the examples."""
        return self.count / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return wilson_interval(self.count, self.n)


@dataclass(frozen=True, eq=False, repr=False)
class FailureModes(Saved, Result, Drawable, picture="failures"):
    """How often each kind of failure is seen with each set of heads off; ``intact`` is the model with none off.

    Attributes:
        heads: By the name of a set its heads.
        modes: By set, ``intact`` among them, then by kind of failure the share of examples; an example may show
            several.
        spent: Example-evaluations.
        texts: By set what was written after each prompt; empty where choices were measured.
        provenance: Model, task and options of texts.
        prompts: The prompt of each text.
        right: The right answer to each prompt, where there is one.
        notes: How many examples were left out, since heads were found on them or they repeat a question.
    """

    _format = "failure modes"

    heads: dict[str, tuple[Unit, ...]]
    modes: dict[str, dict[str, Share]]
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    prompts: tuple[str, ...] = field(default=(), repr=False)
    right: tuple[str, ...] = field(default=(), repr=False)

    def beyond_intact(self, found: str, mode: str) -> bool:
        """Whether a kind of failure is seen clearly more often than with no head off: the intervals do not meet.

        Args:
            found: Name of the set of heads.
            mode: The kind of failure.

        Returns:
            True where the lower bound with the heads off is above the upper bound of the intact model.
        """
        return self.modes[found][mode].interval[0] > self.modes[INTACT][mode].interval[1]

    def text_frame(self) -> pd.DataFrame:
        """What the model wrote, one row per prompt: its last line, the right answer, and a column for each set.

        Raises:
            ValueError: No texts were written: choices were measured.
        """
        if not self.texts:
            raise ValueError("the model wrote no texts, since choices were measured: give failures(..., texts=True)")
        lines = [prompt.rstrip().rpartition("\n")[2] for prompt in self.prompts]
        right = {"right": self.right} if self.right else {}
        return pd.DataFrame({"prompt": lines, **right, **self.texts})

    def to_frame(self) -> pd.DataFrame:
        """One row per (set of heads, kind): share, its interval, and whether it is beyond the intact model's."""
        named = {found: " ".join(map(str, self.heads.get(found, ()))) for found in self.modes}
        rows = [
            (found, named[found], mode, share.share, *share.interval, self.beyond_intact(found, mode))
            for found, row in self.modes.items()
            for mode, share in row.items()
        ]
        return pd.DataFrame(rows, columns=["found", "heads", "mode", "share", "low", "high", "beyond_intact"])


@one_bar("failures")
def failures(
    model: ModelLike,
    task: Task,
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    n: int | None = None,
    texts: bool = False,
    max_new_tokens: int | None = None,
    stop: Sequence[str] | None = None,
    **settings: Unpack[SettingsArguments],
) -> FailureModes:
    """How the model fails on unseen examples with each set of heads off, beside the intact model.

    Of a choice task every choice is measured. Kinds: ``wrong`` (a choice that is not the right one is picked),
    ``choices unlikely`` (the probability of saying any of the choices is a tenth or less of what it is in the intact
    model) and ``same place`` (the place among the choices that is picked most often, such as always the first letter;
    picked is the likeliest, for each character where the task is ``length_normalized``, also where a scorer judges by
    another rule).

    Of other tasks the model writes a text after each prompt. Kinds: ``empty`` (no word), ``repetition`` (a loop at the
    end, or hardly any new pair of words), ``same text`` (the one written most often, where it is written twice or more)
    and ``changed`` (not what the intact model writes); where examples have a target, also ``answer later``
    (its words stand in the text, and not at its start, as where the model begins its sentence otherwise). Every text
    is one example-evaluation.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        task: The task; its unseen examples are used, one of each question and none that a ranking was found on.
        heads: A ranking, a list of heads, or several of either by name, as universal heads and the top five.
        k: Heads taken of a ranking (None: as many as it was searched for).
        n: Examples at most (None: 100 of choices, 50 of texts).
        texts: Whether the model writes texts after the prompts of a choice task, too.
        max_new_tokens: Tokens of a text at most (None: as in ``Experiment.generate``).
        stop: Strings that end a text (None: as in ``Experiment.generate``).
        settings: As of ``Experiment``.

    Returns:
        By set of heads, ``intact`` first, the share of examples that show each kind of failure, with its interval,
        and the texts if the model wrote any.

    Raises:
        ValueError: A task with fewer than 20 unseen examples, heads outside the grid or named ``"intact"``, or options
            of texts where none are written. Raised before the model runs.
    """
    check_is_task(task)
    of_choices = task.kind == "choice" and not texts
    if of_choices and not (max_new_tokens is None and stop is None):
        raise ValueError(f"max_new_tokens and stop are for texts, and {task.name!r} is a choice task: give texts=True")
    n = (100 if of_choices else 50) if n is None else n
    with unseen_columns(model, in_role("own", [task]), heads, n=n, seed=0, settings=settings) as [column]:
        [experiment], found = column.parts, heads if isinstance(heads, Mapping) else {task.name: heads}
        if INTACT in found:
            raise ValueError(f"heads must not be named {INTACT!r}: that is the model with no head off")
        named = sets_of(experiment, found, k)
        masks = explicit(experiment.grid, [[], *named.values()])
        sets, provenance = (INTACT, *named), dict(experiment.provenance())
        said: dict[str, Any] = {}
        if of_choices:
            judged = _judge_choices(experiment, masks)
        else:
            rows = experiment.generate(masks, max_new_tokens=max_new_tokens, stop=stop)
            written = {name: tuple(map(str, row)) for name, row in zip(sets, rows, strict=True)}
            prompts, right = tuple(shown(each.prompt) for each in experiment.task.examples), _answers(experiment.task)
            judged = [_judge_texts(row, written[INTACT], right) for row in written.values()]
            provenance |= {"max_new_tokens": max_new_tokens, "stop": None if stop is None else list(stop)}
            said = {"texts": written, "prompts": prompts, "right": right}
        shares = [{mode: Share(n, experiment.n_examples) for mode, n in counts.items()} for counts in judged]
        return FailureModes(
            named,
            dict(zip(sets, shares, strict=True)),
            **said,
            spent=len(masks) * experiment.n_examples + experiment.preparation,
            provenance=provenance,
            notes=column.notes,
        )


def _answers(task: Task) -> tuple[str, ...]:
    """The target of each prompt, where a task has them and they are texts; choices are not meant to be written."""
    targets = [example.target for example in task.examples if example.continuations]
    return () if task.kind == "choice" else tuple(target for target in targets if isinstance(target, str))


def _judge_texts(row: Sequence[str], intact: Sequence[str], right: Sequence[str]) -> dict[str, int]:
    """How many texts show each kind of failure."""
    same = _most_common(row)
    counts = {
        # Punctuation alone is no text.
        "empty": sum(not re.search(r"\w", text) for text in row),
        "repetition": sum(map(is_repetition, row)),
        "same text": same if same > 1 else 0,
        "changed": sum(a != b for a, b in zip(row, intact, strict=True)),
    }
    return counts | ({"answer later": sum(map(is_later, right, row))} if len(right) == len(row) else {})


def _judge_choices(experiment: Experiment, masks: Bool[np.ndarray, "row layer head"]) -> list[dict[str, int]]:
    """How many examples show each kind of failure with each mask, the first being the intact model."""
    task, said = experiment.task, experiment.observe(masks)
    assert said.logprobs is not None
    masses = np.logaddexp.reduce(np.where(np.isnan(said.logprobs), -np.inf, said.logprobs), axis=-1)
    # Of choices that tie the first is picked.
    picked = np.nanargmax(compared_of(task, said), axis=-1)
    return [
        {
            "wrong": int((score == 0).sum()),
            "choices unlikely": int((mass <= masses[0] + np.log(UNLIKELY)).sum()),
            "same place": _most_common(places),
        }
        for score, mass, places in zip(RESPONSES["score"](task, said), masses, picked.tolist(), strict=True)
    ]


def _most_common(items: Sequence[object]) -> int:
    """How many of the items are the one that is there most often."""
    return max(Counter(items).values(), default=0)


def words_of(text: str) -> list[str]:
    """Words and punctuation marks of a text, in lower case; the characters of a text that is hardly more than one word.

    >>> words_of("The cat, the CAT"), words_of("aaa")
    (['the', 'cat', ',', 'the', 'cat'], ['aaa'])
    """
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return list(text.strip()) if len(words) < 3 and len(text) > 30 else words


def looped(text: str) -> float:
    """Share of a text's words that lie in a loop at its end: the same words three times or more.

    >>> looped("once upon a time time time time time"), looped("one two three four")
    (0.625, 0.0)
    """
    words = words_of(text)
    most = 0
    for unit in range(1, len(words) // 3 + 1):
        last, times = words[-unit:], 1
        while words[-unit * (times + 1) : -unit * times] == last:
            times += 1
        most = max(most, times * unit if times >= 3 else 0)
    return most / len(words) if words else 0.0


def is_repetition(text: str) -> bool:
    """Whether half of a text is a loop at its end, or fewer than half of its pairs of words differ.

    Texts of fewer than eight words are not judged.

    >>> is_repetition("the the the the the the the the"), is_repetition("so go and see who that is now")
    (True, False)
    """
    words = words_of(text)
    pairs = list(pairwise(words))
    return len(words) >= LEAST and (looped(text) >= LOOPED or len({*pairs}) < DISTINCT * len(pairs))


def is_later(answer: str, text: str) -> bool:
    """Whether the words of an answer stand in a text, and not at its start; letters may be of another case.

    >>> is_later(" Thai", " the Thai language"), is_later(" Thai", " Thai."), is_later(" Thai", " Thailand")
    (True, False, False)
    """
    words, sought = (re.findall(r"\w+|[^\w\s]", each.lower()) for each in (text, answer))
    places = [i for i in range(len(words) - len(sought) + 1) if words[i : i + len(sought)] == sought]
    return bool(sought and places) and places[0] > 0
