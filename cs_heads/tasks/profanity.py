"""Counting profanity: a list from a file or a package, and what of it a text holds.

No list is kept here: it comes from a CSV or text file of yours, or from the package ``better-profanity``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import MappingProxyType

from cs_heads.tasks.data_files import csv_lines, lines_of, one_file, read_text

# What stands round a word in prose and Markdown; other signs (@, $, !) are letters of some words.
_AROUND = ".,:;?!\"'()[]{}<>*_`~“”‘’«»-"
# Without its signs a shorter entry would be a letter or two: f*** is no f.
_SHORTEST = 3
_BETWEEN = re.compile(r"[\s/,;|—–…]+")


@dataclass(frozen=True)
class Swearing:
    """How much a text swears: how many words or phrases of the list it holds, and the mean of their severities."""

    count: int
    severity: float
    """Mean severity of those found, in the list's units (1 mild to 3 severe); 0 where there is none."""


@dataclass(frozen=True)
class Profanity:
    """Words and phrases, each with a severity: what counts as swearing.

    >>> Profanity({"flark": 1.0, "son of a drabble": 3.0}).judge("Flark! That **son of a drabble**, flark.")
    Swearing(count=3, severity=1.6666666666666667)
    """

    severities: Mapping[str, float] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.severities:
            raise ValueError("a profanity list must hold one word or more, got none")
        for entry, severity in self.severities.items():
            if not 0 <= severity < inf:
                raise ValueError(f"severity of {entry!r} must be a number of 0 or more, got {severity}")
        cleaned = {" ".join(entry.lower().split()): float(value) for entry, value in self.severities.items()}
        object.__setattr__(self, "severities", MappingProxyType(cleaned))

    def __reduce__(self) -> tuple[type[Profanity], tuple[dict[str, float]]]:
        return type(self), (dict(self.severities),)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Profanity:
        """The list of a file, or of the package ``better-profanity`` where no file is given.

        A CSV file has the columns ``text`` and ``severity_rating`` and may have ``canonical_form_1``, whose words count
        too, each with the mildest severity of its forms (the list of Bair et al., arXiv 2603.03335, is of
        this form). Any other file holds one word or phrase a line, and each has severity 1, as in the package. A
        folder stands for its one ``.csv`` or ``.txt`` file. A file that does not exist or is malformed, and a missing
        package, raise ``ValueError``.
        """
        if path is None:
            return cls(_plain_list(_package_list()))
        path = one_file(path, "profanity list", (".csv", ".txt"))
        return cls(_csv_list(path) if path.suffix.lower() == ".csv" else _plain_list(path))

    @property
    def identity(self) -> str:
        """A hash of all entries and severities."""
        return hashlib.sha256(repr(sorted(self.severities.items())).encode()).hexdigest()[:16]

    def judge(self, text: str) -> Swearing:
        """What of the list a text holds, longest phrases first; case, punctuation and Markdown do not matter."""
        words = [word for word in _BETWEEN.split(text.lower()) if word]
        bare = [word.strip(_AROUND) for word in words]
        found: list[float] = []
        at = 0
        while at < len(words):
            length, severity = self._longest(words, bare, at)
            at += max(length, 1)
            if length:
                found.append(severity)
        return Swearing(len(found), sum(found) / len(found) if found else 0.0)

    def _longest(self, words: list[str], bare: list[str], at: int) -> tuple[int, float]:
        """Number of words of the longest entry that begins here, and its severity; 0 where there is none."""
        lengths = {*self._lengths.get(bare[at], ()), *self._lengths.get(words[at], ())}
        for length in sorted(lengths, reverse=True):
            for side in (bare, words):
                severity = self._forms.get(" ".join(side[at : at + length]))
                if severity is not None and at + length <= len(words):
                    return length, severity
        return 0, 0.0

    @cached_property
    def _forms(self) -> dict[str, float]:
        """Entries as they are, and without signs at their ends, unless hardly a letter is left."""
        bare = {entry.strip(_AROUND): severity for entry, severity in self.severities.items()}
        return {form: severity for form, severity in bare.items() if len(form) >= _SHORTEST} | dict(self.severities)

    @cached_property
    def _lengths(self) -> dict[str, set[int]]:
        """Numbers of words of the entries that begin with a word."""
        lengths: dict[str, set[int]] = {}
        for entry in self._forms:
            words = entry.split()
            lengths.setdefault(words[0], set()).add(len(words))
        return lengths


def _package_list() -> Path:
    package = find_spec("better_profanity")
    if package is None or package.origin is None:
        raise ValueError(
            "swearing needs a profanity list: a file by data_files=..., or the package better-profanity "
            "(pip install 'cs-heads[tasks]')"
        )
    return Path(package.origin).with_name("profanity_wordlist.txt")


def _plain_list(path: Path) -> dict[str, float]:
    return dict.fromkeys(lines_of(path, "profanity list"), 1.0)


def _csv_list(path: Path) -> dict[str, float]:
    what = f"profanity list {str(path)!r}"
    found: dict[str, float] = {}
    canonical: dict[str, float] = {}
    for line, row in csv_lines(read_text(path, "profanity list"), what):
        place = f"{what}, {line}"
        if missing := {"text", "severity_rating"} - set(row):
            raise ValueError(f"{what} has no column {' and '.join(sorted(missing))}")
        try:
            severity = float(row["severity_rating"])
            if not 0 <= severity < inf:
                raise ValueError(severity)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{place}: severity_rating must be a number of 0 or more, got {row['severity_rating']!r}"
            ) from error
        if not (row["text"] or "").strip():
            raise ValueError(f"{place}: text is empty")
        found[row["text"]] = severity
        if form := (row.get("canonical_form_1") or "").strip():
            canonical[form] = min(severity, canonical.get(form, severity))
    return canonical | found
