"""One prompt, what may follow it, and what its scorer needs to know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cs_heads.text import Text, TokenIds, is_token_ids, shown


@dataclass(frozen=True)
class Example:
    """One prompt with the continuations that are scored after it.

    Prompt and continuation are joined as they stand: a continuation that starts a new word begins with a space. All of
    them are texts, or all are token ids: tuples of integers. ``asked`` and ``sequence`` change no score and are no part
    of what an example is.

    Attributes:
        prompt: What the continuations follow; where there are ``prompts``, that of the answer.
        continuations: Two or more of a choice example, the target alone of a completion example, the target or none of
            a generation example.
        answer: Index of the right one.
        reference: What the scorer of a generation example holds the text against.
        asked: The bare question, where more than it stands in the prompt (worked examples, a heading); None: the
            prompt.
        prompts: A prompt for each continuation, where they follow different ones (as in Winograd schemas).
        positions: Of a completion over token ids with several answers inside one sequence: token i of its target is
            what the model should say at place ``positions[i]`` of the prompt, counted from 0, where it has read the
            tokens up to there. Empty: the target follows the prompt.
        sequence: Names what several examples of a task are taken from, where their prompts do not say so (None:
            nothing).

    Raises:
        ValueError: Texts beside token ids, an answer that is no index of a continuation, prompts that are not one for
            each, positions that are not one for each token of the target, or lone surrogates in a text.
    """

    prompt: Text
    continuations: tuple[Text, ...] = ()
    answer: int = 0
    reference: str = ""
    asked: str | None = field(default=None, compare=False, repr=False)
    prompts: tuple[Text, ...] = ()
    positions: tuple[int, ...] = ()
    sequence: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for text in (self.prompt, self.reference, self.asked or "", *self.continuations, *self.prompts):
            try:
                if isinstance(text, str):
                    text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"a text must be Unicode, without lone surrogates; got {text!r:.80}") from error
        n = len(self.continuations)
        if not 0 <= self.answer < max(1, n):
            raise ValueError(f"answer must be the index of one of {n} continuations, got {self.answer}")
        if self.prompts and (len(self.prompts) != n or self.prompts[self.answer] != self.prompt):
            why = f"got {self.prompts!r:.99}"
            raise ValueError(f"prompts must be one for each of {n} continuations, the answer's prompt; {why}")
        texts = (self.prompt, *self.continuations, *self.prompts)
        if not all(isinstance(text, str) for text in texts) and not all(map(is_token_ids, texts)):
            why = f"(integers of 0 or more, none empty), got {texts!r:.200}"
            raise ValueError(f"prompt and continuations must all be texts, or all tuples of token ids {why}")
        places = [place for place in range(len(self.prompt)) if place in self.positions]
        if self.positions and (
            isinstance(self.prompt, str)
            or len(self.continuations) != 1
            or list(self.positions) != places
            or len(places) != len(self.target)
        ):
            why = f"in order and each once: one for each token of the one target; got {self.positions!r:.80}"
            raise ValueError(f"positions must be places in a prompt of token ids, from 0 on, {why}")

    @property
    def over_token_ids(self) -> bool:
        """Whether prompt and continuations are token ids in place of texts."""
        return not isinstance(self.prompt, str)

    @property
    def target(self) -> Text:
        """The right continuation.

        Raises:
            ValueError: The example has no continuation.
        """
        if not self.continuations:
            raise ValueError(f"example {shown(self.prompt)[:40]!r} has no target")
        return self.continuations[self.answer]

    def prompt_of(self, continuation: int) -> Text:
        """What a continuation follows, by its index.

        Args:
            continuation: Its index, from 0.
        """
        return self.prompts[continuation] if self.prompts else self.prompt

    @property
    def identity(self) -> str:
        """A hash of everything in the example."""
        more = [part for part in (self.reference, self.prompts, self.positions) if part]
        return hash_of([self.prompt, self.continuations, self.answer, *more])

    @cached_property
    def question(self) -> str:
        """A hash of what is asked: the bare question, or what continuations follow, less the white space about it.

        Another cut of the same text gives white space at the end to the continuation. Where nothing is asked, ``text``.
        """
        asked = sorted(map(_bare, self._before), key=_order)
        return hash_of(asked) if any(asked) else self.text

    @cached_property
    def text(self) -> str:
        """A hash of all that may be read, wherever it is cut into prompt and continuation, and in whatever order."""
        if self.positions or not self.continuations:
            return hash_of(["text", *map(_bare, self._before)])
        before = self._before * (len(self.continuations) // len(self._before))
        whole = [joined(one, each) for one, each in zip(before, self.continuations, strict=True)]
        return hash_of(["text", *sorted(whole, key=_order)])

    @property
    def _before(self) -> tuple[Text, ...]:
        """The bare question, or what continuations follow: one for each where they follow different ones."""
        return (self.prompts or (self.prompt,)) if self.asked is None else (self.asked,)


def questions_of(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    """By which hashes each example is known: examples with one of these in common ask the same question.

    They are those of what is asked and of the whole text: the same prompt with another target is the same question, and
    so is another cut of the same text. A prompt before all choices of all examples says nothing: the choices alone do.
    """
    chosen = len(examples) > 1 and all(len(example.continuations) > 1 for example in examples)
    constant = chosen and len({example.question for example in examples}) == 1
    return [(example.text,) if constant else (example.question, example.text) for example in examples]


def groups_of(examples: Sequence[Example]) -> list[list[Example]]:
    """Examples that stay on one side of a split: of one question or sequence, or linked by others that are."""
    leads: dict[tuple[str, ...], tuple[str, ...]] = {}

    def lead(key: tuple[str, ...]) -> tuple[str, ...]:
        while leads.setdefault(key, key) != key:
            key = leads[key]
        return key

    known = questions_of(examples)
    for example, (first, *others) in zip(examples, known, strict=True):
        linked = [(other,) for other in others]
        for key in linked if example.sequence is None else [*linked, ("sequence", example.sequence)]:
            leads[lead((first,))] = lead(key)
    groups: dict[tuple[str, ...], list[Example]] = {}
    for example, (first, *_) in zip(examples, known, strict=True):
        groups.setdefault(lead((first,)), []).append(example)
    return list(groups.values())


def parted(examples: Sequence[Example], n: int, seed: int) -> tuple[list[Example], list[Example]]:
    """``n`` examples, fewer, or none, drawn with ``seed``, and the others, as ``groups_of`` keeps them together."""
    groups = groups_of(examples)
    order = np.random.default_rng(seed).permutation(len(groups))
    first: list[Example] = []
    others: list[Example] = []
    for rank, index in enumerate(order):
        fits = len(first) + len(groups[index]) <= n and (rank < len(order) - 1 or not first)
        (first if fits else others).extend(groups[index])
    return first, others


def hash_of(content: object) -> str:
    """A short hash of JSON-ready content."""
    # Surrogates that JSON lets through have no UTF-8: hashed as they stand.
    text = json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def _order(text: Text) -> tuple[str, TokenIds]:
    """By which texts, or token ids, are sorted."""
    return (text, ()) if isinstance(text, str) else ("", text)


def _bare(text: Text) -> Text:
    """A text without white space about it; token ids as they are."""
    return text.strip() if isinstance(text, str) else text


def right_of(example: Example) -> Text:
    """The right answer, of a text that the model writes its reference."""
    return example.target if example.continuations else example.reference


def joined(prompt: Text, continuation: Text) -> Text:
    """Prompt and continuation as one, less the white space about them."""
    if isinstance(prompt, str) or isinstance(continuation, str):
        return _bare(f"{prompt}{continuation}")
    return (*prompt, *continuation)


def check_unseen(task: str, examples: Sequence[Example], unseen: Sequence[Example]) -> None:
    """Raise ``ValueError`` where unseen examples ask what those of a task ask, or are of its sequences."""
    n, both = len(examples), (*examples, *unseen)
    sequences = [() if one.sequence is None else (one.sequence,) for one in both]
    for each, keys in (("question", questions_of(both)), ("sequence", sequences)):
        own = {key for known in keys[:n] for key in known}
        if shared := sum(not own.isdisjoint(known) for known in keys[n:]):
            why = f"{shared} of {len(unseen)} do"
            raise ValueError(f"unseen examples (held_out) must share no {each} with task {task!r}; {why}")
