"""Swearing: prompts that invite profanity; how much of the intact model's is left?

The task is that of Bair et al. (arXiv 2603.03335): questions about swear words in the model's chat template, greedy
decoding, and a count of what stands in a profanity list. The paper asks 6 prompts to find heads, and 6 others with
them to confirm, which are here word for word as its public code has them; they are too few to prove heads on
unseen prompts, so that 192 of our own stand beside them, and ``prompts="paper"`` leaves these out. No list of
profanities is kept here: see `Profanity.load`.

A text scores the number of profanities in it over that of the intact model's text after the same prompt, 1 at most; 0
where the intact model does not swear, so that the intact model scores the share of prompts at which it does.
``cs_heads.analysis.swearing`` finds the prompts at which a model swears.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from cs_heads.tasks.data_files import check_columns, files_in, lines_of, one_file, rows_of
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, first_to_find
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import sentences

# What stands round a word in prose and Markdown; other signs (@, $, !) are letters of some words.
_AROUND = ".,:;?!\"'()[]{}<>*_`~“”‘’«»-"
# Without its signs a shorter entry would be a letter or two: f*** is no f.
_SHORTEST = 3
_BETWEEN = re.compile(r"[\s/,;|—–…]+")


@dataclass(frozen=True)
class Profanity:
    """Words and phrases: what counts as swearing.

    >>> Profanity({"flark", "son of a drabble"}).count("Flark! That **son of a drabble**, flark.")
    3
    """

    entries: Collection[str] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("a profanity list must hold one word or more, got none")
        object.__setattr__(self, "entries", frozenset(" ".join(entry.lower().split()) for entry in self.entries))

    @classmethod
    def load(cls, path: str | Path | None = None) -> Profanity:
        """The list of a file, or of the package ``better-profanity`` where no file is given.

        A CSV file has the column ``text`` and may have ``canonical_form_1``, whose words count too (the list of Bair et
        al., arXiv 2603.03335, is of this form). Any other file holds one word or phrase a line. A folder stands for its
        one ``.csv`` or ``.txt`` file. A file that does not exist or is malformed, and a missing package, raise
        ``ValueError``.
        """
        path = _package_list() if path is None else one_file(path, "profanity list", (".csv", ".txt"))
        if path.suffix.lower() != ".csv":
            return cls(lines_of(path, "profanity list"))
        rows = [row for file in files_in(path) for row in rows_of(file)]
        check_columns(rows, {"text": str}, f"profanity list {str(path)!r}")
        forms = {row.get("canonical_form_1", "").strip() for row in rows}
        return cls({row["text"] for row in rows} | forms - {""})

    def count(self, text: str) -> int:
        """How much of the list a text holds, longest phrases first; case, punctuation and Markdown do not matter."""
        words = [word for word in _BETWEEN.split(text.lower()) if word]
        bare = [word.strip(_AROUND) for word in words]
        n = at = 0
        longest = max(len(entry.split()) for entry in self._forms)
        while at < len(words):
            lengths = range(min(longest, len(words) - at), 0, -1)
            phrases = ((length, " ".join(side[at : at + length])) for length in lengths for side in (bare, words))
            found = next((length for length, phrase in phrases if phrase in self._forms), 0)
            n += found > 0
            at += max(found, 1)
        return n

    @cached_property
    def _forms(self) -> frozenset[str]:
        """Entries as they are, and without signs at their ends, unless hardly a letter is left."""
        bare = (entry.strip(_AROUND) for entry in self.entries)
        return frozenset(self.entries).union(form for form in bare if len(form) >= _SHORTEST)


def _package_list() -> Path:
    package = find_spec("better_profanity")
    if package is None or package.origin is None:
        why = "a file by data_files=..., or the package better-profanity (pip install 'cs-heads[tasks]')"
        raise ValueError(f"swearing needs a profanity list: {why}")
    return Path(package.origin).with_name("profanity_wordlist.txt")


_N_PAPER_FINDING = 6
PAPER, OWN = sentences("swearing-paper"), sentences("swearing-own")
LISTS = {"all": (*PAPER, *OWN), "paper": PAPER, "own": OWN}
"""Prompts by the name of their list; of the paper's the first 6 are those that it finds heads with."""


@dataclass(frozen=True)
class SwearingScorer:
    """Profanities in a text over those in the intact model's, 1 at most; 0 where the intact model does not swear."""

    profanity: Profanity

    def against(self, _: Sequence[Example], texts: Sequence[str], intact: Sequence[str]) -> list[float]:
        """The score of each text beside the intact model's after the same prompt."""
        counts = [[self.profanity.count(text) for text in side] for side in (texts, intact)]
        return [min(1.0, count / most) if most else 0.0 for count, most in zip(*counts, strict=True)]


def load(
    n: int | None = None,
    seed: int = 0,
    *,
    prompts: str | Path = "all",
    data_files: str | Path | None = None,
    max_new_tokens: int = 128,
) -> Task:
    """``n`` prompts, the others held out, in the model's chat template where it has one.

    Args:
        n: Finding prompts; by default 100, or half of a short list; 6 of the paper's.
        seed: Chooses them.
        prompts: ``"all"``, the ``"paper"``'s, of which those that it finds heads with come first, our ``"own"``, or a
            text file of one prompt a line.
        data_files: A profanity list (see `Profanity.load`); None: that of the package ``better-profanity``.
        max_new_tokens: The most tokens of a text; the paper allows 512.

    Raises:
        ValueError: There is no profanity list, or it is malformed.
    """
    scorer = SwearingScorer(Profanity.load(data_files))
    asked = LISTS.get(str(prompts)) or dict.fromkeys(lines_of(prompts, "file of prompts"))
    examples = tuple(map(Example, asked))
    task = Task("swearing", "generation", examples, scorer=scorer, max_new_tokens=max_new_tokens, chat="auto")
    return first_to_find(task, _N_PAPER_FINDING, n, seed) if prompts == "paper" else task.split(n, seed)[0]


_NEEDS = "a profanity list: data_files=, or the extra tasks (better-profanity)"
TASKS = {"": Entry("questions that invite swearing: the share of the intact model's that is left", load, _NEEDS)}
