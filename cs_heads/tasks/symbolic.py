"""Identity rules, ABA and ABB: triples of random words show which of two words comes again.

Symbolic reasoning after Yang et al., *Emergent Symbolic Mechanisms Support Abstract Reasoning in Large Language
Models* (arXiv 2502.20332). `identity_rules` makes the pairs of its three stages for causal mediation.

    >>> task = load("abb", n=1)
    >>> task.examples[0].prompt, task.examples[0].target
    ('bed garden garden . sister wine wine . truck mother', ' mother')
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from cs_heads.arguments import check_integer, check_one_of
from cs_heads.tasks.family import Entry, choice_record, drawn
from cs_heads.tasks.induction import vocabulary_of
from cs_heads.tasks.pairs import rule_prompt
from cs_heads.tasks.task import Task

RULES = {
    "aba": "identity rule ABA by example: the first of two words comes again",
    "abb": "identity rule ABB by example: the second of two words comes again",
    "both": "identity rules ABA and ABB by example, each prompt one of the two",
}
"""The rules, and what each task is."""


def load(
    rule: str,
    n: int | None = None,
    seed: int = 0,
    *,
    few_shot: int = 2,
    shared: bool = False,
    words: Sequence[str] | None = None,
) -> Task:
    """``n`` prompts of ``few_shot`` triples of a rule and two words of one more, 400 held out; which follows?

    Args:
        rule: ``"aba"``, ``"abb"``, or ``"both"``: each prompt one of the two.
        n: Finding examples, 100 by default.
        seed: Draws all examples.
        few_shot: Triples before the two words.
        shared: Draw the triples once, and show the same before every two words, which are none of theirs.
        words: As for induction.

    Raises:
        ValueError: There are too few words, or ``shared`` triples would have to show both rules.
    """
    check_one_of("rule", rule, RULES)
    if shared and rule == "both":
        raise ValueError("shared must be False with rule 'both', where the triples say which rule is asked; got True")
    check_integer("few_shot", few_shot, 1)
    vocabulary = vocabulary_of(words, least=2 * few_shot + 2)

    kept = random.Random(f"symbolic/{rule}/{seed}/shared").sample(vocabulary, 2 * few_shot) if shared else []
    asked = [word for word in vocabulary if word not in kept]

    def draw(rng: random.Random) -> dict[str, Any]:
        shown = kept + rng.sample(asked, 2 * few_shot + 2 - len(kept))
        twos = list(zip(shown[::2], shown[1::2], strict=True))
        aba = rng.random() < 0.5 if rule == "both" else rule == "aba"
        prompt, _ = rule_prompt(twos, aba)
        return choice_record(rng, prompt, [f" {word}" for word in twos[-1]], f" {twos[-1][0 if aba else 1]}")

    return drawn(f"symbolic/{rule}", draw, n, seed)


TASKS = {rule: Entry(about, partial(load, rule)) for rule, about in RULES.items()}
