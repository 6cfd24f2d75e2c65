"""Tasks that are made by drawing: identity rules, induction, indirect objects."""

import json

import pytest

from cs_heads import load_task
from cs_heads.tasks.load import names_of

DRAWN = ("symbolic/aba", "symbolic/abb", "symbolic/both", "induction", "ioi")
LISTS = {
    "NAMES": ["Ada", "Bo", "Cy"],
    "BABA_TEMPLATES": ["[B] and [A] met at the [PLACE]. [B] gave a [OBJECT] to [A]"],
    "PLACES": ["pier"],
    "OBJECTS": ["kite"],
    "VERBS": ["unused"],
}


@pytest.mark.parametrize("name", [*DRAWN, *names_of("everyday")])
def test_a_seed_gives_the_same_examples_and_another_seed_others(name):
    task, again, other = (load_task(name, n=40, seed=seed) for seed in (1, 1, 2))
    assert task == again
    assert len(task) == 40
    assert name not in DRAWN or len({example.question for example in task.held_out.examples}) == 400
    assert task.examples != other.examples


# Identity rules


@pytest.mark.parametrize(("rule", "third"), [("aba", 0), ("abb", 1)])
def test_a_rule_is_shown_by_triples_and_asked_for_by_two_words(rule, third):
    for example in load_task(f"symbolic/{rule}", n=50, few_shot=3).examples:
        *triples, asked = (part.split() for part in example.prompt.split(" . "))
        assert len(triples) == 3
        assert all(triple[2] == triple[third] and triple[0] != triple[1] for triple in triples)
        assert sorted(example.continuations) == sorted(f" {word}" for word in asked)
        assert example.target == f" {asked[third]}"


@pytest.mark.parametrize("rule", ["aba", "abb"])
def test_all_examples_have_the_same_triples_and_ask_for_other_words(rule):
    task, other = (load_task(f"symbolic/{rule}", n=50, seed=seed, few_shot=3, shared=True) for seed in (0, 1))
    prompts = [example.prompt.rsplit(" . ", 1) for side in (task, task.held_out) for example in side.examples]
    (triples,) = {before for before, _ in prompts}
    assert len(triples.split(" . ")) == 3
    assert not {word for _, asked in prompts for word in asked.split()} & set(triples.split())
    assert not other.examples[0].prompt.startswith(triples)
    assert task.identity != load_task(f"symbolic/{rule}", n=50, few_shot=3).identity


def test_triples_that_say_which_rule_is_asked_are_not_the_same_for_all():
    with pytest.raises(ValueError, match=r"^shared must be False with rule 'both', where the triples say which rule"):
        load_task("symbolic/both", shared=True)


def test_both_rules_come_about_equally_often():
    examples = load_task("symbolic/both", n=400).examples
    aba = [example.prompt.split()[0] == example.prompt.split()[2] for example in examples]
    assert 150 < sum(aba) < 250


# Induction


def test_the_word_asked_for_followed_the_last_word_before():
    for example in load_task("induction", n=50, length=8).examples:
        shown = example.prompt.split()
        assert len(set(shown[:8])) == 8
        assert shown[8:] == shown[: len(shown) - 8]
        assert example.target == f" {shown[len(shown) - 8]}"


def test_a_vocabulary_that_gives_too_few_prompts_is_refused():
    with pytest.raises(ValueError, match="n=100 and 400 held out are more than task 'induction' has: about 12 ex"):
        load_task("induction", length=3, words=["a", "b", "c"])


# Indirect objects


@pytest.mark.parametrize(("order", "subject_first"), [("BABA", [True]), ("ABBA", [False]), ("both", [False, True])])
def test_the_subject_is_named_twice_and_the_other_is_asked_for(order, subject_first):
    seen = set()
    for example in load_task("ioi", n=100, order=order).examples:
        io, subject = example.target.strip(), example.continuations[1 - example.answer].strip()
        words = [word.strip(",.") for word in example.prompt.split()]
        assert (words.count(io), words.count(subject)) == (1, 2)
        assert example.prompt.endswith(" to")
        assert "[" not in example.prompt
        seen.add(words.index(subject) < words.index(io))
    assert sorted(seen) == subject_first


def test_names_and_templates_may_come_from_the_real_file(real):
    path = real / "data" / "ioi" / "redwoodresearch_ioi_lists.json"
    names = set(json.loads(path.read_text())["NAMES"])
    task = load_task("ioi", n=100, data_files=str(path))
    assert {choice.strip() for example in task.examples for choice in example.continuations} <= names
    assert not any("[" in example.prompt for example in task.examples)


def test_lists_of_ones_own_are_used(tmp_path):
    path = tmp_path / "lists.json"
    names = [f"{a}{b}" for a in "BCDFGHKLMNPRST" for b in ("a", "o", "i")]
    path.write_text(json.dumps(LISTS | {"NAMES": names}), encoding="utf-8")
    task = load_task("ioi", n=5, order="BABA", data_files=path)
    assert load_task("ioi", n=5, order="BABA", data_files=tmp_path) == task
    for example in task.examples:
        io, subject = example.target.strip(), example.continuations[1 - example.answer].strip()
        assert example.prompt == f"{subject} and {io} met at the pier. {subject} gave a kite to"


@pytest.mark.parametrize(
    ("lists", "fault"),
    [
        ([], "must be a mapping, NAMES, BABA_TEMPLATES, PLACES, OBJECTS, got"),
        ({k: v for k, v in LISTS.items() if k != "PLACES"}, '"PLACES" must be a list of texts, got None'),
        ({**LISTS, "NAMES": ["Ada", 3]}, '"NAMES" must be a list of texts, got'),
        ({**LISTS, "NAMES": ["Ada", "Ada"]}, "'NAMES' must be a list of 2 or more different texts"),
        ({**LISTS, "OBJECTS": []}, "'OBJECTS' must be a list of 1 or more different texts"),
        (
            {**LISTS, "BABA_TEMPLATES": ["[A] and [B] met. [B] gave a kite to [A]"]},
            r"names \[B\], \[A\], \[B\] in this",
        ),
        ({**LISTS, "BABA_TEMPLATES": ["[B] and [A] met"]}, r"ends in ' \[A\]', got"),
    ],
)
def test_malformed_lists_are_named(tmp_path, lists, fault):
    path = tmp_path / "lists.json"
    path.write_text(json.dumps(lists), encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        load_task("ioi", data_files=path)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("function_vectors/antonym", "Q: ", "\nA:"), ("everyday/plural", "\n", ""), ("rhyming", "\n", "")],
)
def test_a_word_is_the_same_question_after_other_worked_examples(name, before, after):
    """Another seed draws others: what one search has seen, the proof of another must know again."""
    options = {"few_shot": 5} if name == "rhyming" else {}
    first, second = (load_task(name, seed=seed, **options) for seed in (0, 1))

    def words(task):
        return [example.prompt.rpartition(before)[2].removesuffix(after) for example in task.examples]

    searched, known = {*words(first)}, {key for keys in first.known for key in keys}
    again = [word in searched for word in words(second.held_out)]
    assert 0 < sum(again) < len(again)
    assert [not known.isdisjoint(keys) for keys in second.held_out.known] == again
    assert not {example.prompt for example in first.examples} & {e.prompt for e in second.held_out.examples}
