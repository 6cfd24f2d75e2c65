"""Pairs of prompts: counterparts of a task, shuffled labels, and identity rules."""

import pytest

from cs_heads.tasks import Task
from cs_heads.tasks.pairs import PromptPair, counterparts, identity_rules, shuffled_labels
from tests.tiny import WORDS

ITEMS = [("cat", "one"), ("dog", "two"), ("bird", "three"), ("king", "four"), ("run", "the")]


def test_counterparts_have_another_answer_and_each_example_comes_once():
    task = Task.from_records([{"prompt": f"{i}", "target": f" {'ab'[i % 2]}"} for i in range(10)])
    pairs = counterparts(task, 10, seed=0)
    assert sorted(pair.clean for pair in pairs) == sorted(map(str, range(10)))
    assert all(int(pair.clean) % 2 != int(pair.corrupted) % 2 for pair in pairs)
    assert all(pair.target == f" {'ab'[int(pair.clean) % 2]}" != pair.instead for pair in pairs)
    with pytest.raises(ValueError, match="has one answer alone, ' a'"):
        counterparts(Task.from_records([{"prompt": "1", "target": " a"}, {"prompt": "2", "target": " a"}]), 2)


def test_shuffled_labels_leaves_no_label_in_its_place_and_all_else_alike():
    for pair in shuffled_labels(ITEMS, n=20, n_shots=3, seed=0):
        clean, corrupted = (
            [shot.split(" : ") for shot in text.split(" . ")[:-1]] for text in (pair.clean, pair.corrupted)
        )
        assert [x for x, _ in clean] == [x for x, _ in corrupted]
        assert sorted(y for _, y in clean) == sorted(y for _, y in corrupted)
        assert all(dict(ITEMS)[x] == y for x, y in clean)
        assert all(dict(ITEMS)[x] != y for x, y in corrupted)
        query = pair.clean.split(" . ")[-1]
        assert query == pair.corrupted.split(" . ")[-1]
        assert pair.target == " " + dict(ITEMS)[query.removesuffix(" :")]


def rule_of(text: str) -> tuple[str, list[str], tuple[str, str]]:
    """The rule that all triples of a prompt follow, their third words, and the two words at the end."""
    *triples, query = (part.split() for part in text.split(" . "))
    rules = {"ABA" if c == a else "ABB" if c == b else "?" for a, b, c in triples}
    (rule,) = rules
    return rule, [triple[2] for triple in triples], tuple(query)


@pytest.mark.parametrize("stage", ["abstraction", "induction"])
def test_the_rule_differs_and_the_answer_does_not(stage):
    words = [word for word in WORDS if word.isalpha()]
    rules = set()
    for pair in identity_rules(words, stage, 10, n_shots=3, seed=5):
        (rule, thirds, (a, b)), (other, same, query) = rule_of(pair.clean), rule_of(pair.corrupted)
        rules.add(rule)
        assert {rule, other} == {"ABA", "ABB"}
        assert thirds == same
        assert query == (b, a)
        answer = a if rule == "ABA" else b
        assert pair.instead == f" {answer}" == f" {query[0] if other == 'ABA' else query[1]}"
        # The clean rule on the corrupted prompt's words.
        assert pair.target == f" {query[0] if rule == 'ABA' else query[1]}"
        if stage == "abstraction":
            assert [pair.clean[:end].split()[-1] for end in pair.clean_ends] == thirds
            assert [pair.corrupted[:end].split()[-1] for end in pair.corrupted_ends] == thirds
        else:
            assert pair.clean_ends == ()
    assert rules == {"ABA", "ABB"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: identity_rules(WORDS, "copying", 2),
            "stage must be one of abstraction, induction, retrieval, got 'copying'",
        ),
        (lambda: shuffled_labels([("a", "x"), ("b", "x"), ("c", "y")], 2, n_shots=2), "got 3 items with 2 labels"),
        (
            lambda: PromptPair("a", "b", " c", clean_ends=(1,)),
            r"must pair up, each inside its prompt .*; got \(1,\) in 1 and \(\) in 1",
        ),
        (lambda: PromptPair("a", "b", " c", " c"), "target and instead must differ, got ' c' twice"),
    ],
)
def test_wrong_pairs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
