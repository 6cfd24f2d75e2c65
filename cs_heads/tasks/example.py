"""One prompt, what may follow it, and what its scorer needs to know."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """One prompt with the continuations that are scored after it.

    A choice example has two continuations or more and ``answer`` is the index of the right one; a
    completion example has its target alone; a generation example its target or none, and in ``reference`` what
    the scorer holds the text against. Prompt and continuation are joined as they stand: a
    continuation that starts a new word begins with a space. ``prompts`` has a prompt for each continuation, where they
    follow different ones (as in Winograd schemas); ``prompt`` is then that of the answer. ``asked`` is the bare
    question, where more than it stands in the prompt (worked examples, a heading); it changes no score and is no part
    of what an example is.
    """

    prompt: str
    continuations: tuple[str, ...] = ()
    answer: int = 0
    reference: str = ""
    asked: str | None = field(default=None, compare=False, repr=False)
    prompts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (self.prompt, self.reference, self.asked or "", *self.continuations, *self.prompts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"a text must be Unicode, without lone surrogates; got {text!r:.80}") from error
        if not 0 <= self.answer < max(1, len(self.continuations)):
            raise ValueError(
                f"answer must be the index of one of {len(self.continuations)} continuations, got {self.answer}"
            )
        if self.prompts and (len(self.prompts) != len(self.continuations) or self.prompts[self.answer] != self.prompt):
            raise ValueError(
                f"prompts must be one for each of {len(self.continuations)} continuations, the answer's being prompt; "
                f"got {self.prompts!r:.200}"
            )

    @property
    def target(self) -> str:
        """The right continuation; an example without any raises ``ValueError``."""
        if not self.continuations:
            raise ValueError(f"example {self.prompt[:40]!r} has no target")
        return self.continuations[self.answer]

    def prompt_of(self, continuation: int) -> str:
        """What a continuation follows, by its index."""
        return self.prompts[continuation] if self.prompts else self.prompt

    @property
    def identity(self) -> str:
        """A hash of everything in the example."""
        more = [part for part in (self.reference, self.prompts) if part]
        return hash_of([self.prompt, self.continuations, self.answer, *more])

    @property
    def question(self) -> str:
        """A hash of what is asked (by default what continuations follow) and of these, whatever their order.

        It must not stand on both sides of a split.
        """
        before = sorted(self.prompts) or self.prompt
        return hash_of([before if self.asked is None else self.asked, sorted(self.continuations)])


def hash_of(content: object) -> str:
    """A short hash of JSON-ready content."""
    # Surrogates that JSON lets through have no UTF-8: hashed as they stand.
    text = json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]
