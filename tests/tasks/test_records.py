import re

import numpy as np
import pytest

from cs_heads.tasks import Example
from cs_heads.tasks.records import read_record

GOOD = {"prompt": "The king", "choices": [" runs", " sees"], "answer": 1}
IDS = {"prompt": [3, 4], "target": [5]}
PICK = {"prompt": [3, 4], "choices": [[1], [2, 0]], "answer": 1}

MALFORMED = {
    "a list": (["The king"], r"a record must be an object .*, got list"),
    "no prompt": ({"target": " x"}, r'"prompt" must be a text, got None'),
    "a prompt alone": ({"prompt": "a"}, r'"target" must be a text that is not empty, got None'),
    "an empty target": ({"prompt": "a", "target": ""}, r"not empty, got ''"),
    "both forms": (GOOD | {"target": " x"}, r'has both "choices" and "target"'),
    "choices in a text": (GOOD | {"choices": "runs"}, r'"choices" must be .* texts, none empty, got \'runs\''),
    "choices of one": (GOOD | {"choices": [" runs"], "answer": 0}, r'"choices" must be a list of two or more'),
    "an empty choice": (GOOD | {"choices": [" runs", ""]}, r"none empty, got \[' runs', ''\]"),
    "the same choice twice": (GOOD | {"choices": [" runs", " runs"]}, r"two or more that differ"),
    "no answer": ({"prompt": "a", "choices": [" b", " c"]}, r"index of a choice, 0\.\.1 .*, got None"),
    "an answer past the end": (GOOD | {"answer": 2}, r"index of a choice, 0\.\.1 .*, got 2"),
    "an answer before the start": (GOOD | {"answer": -1}, r"index of a choice, 0\.\.1 .*, got -1"),
    "an answer in words": (GOOD | {"answer": " sees"}, r"index of a choice, 0\.\.1 .*, got ' sees'"),
    "an answer that is true": (GOOD | {"answer": True}, r"true and false are none.*, got True"),
    "a truth value as a token": (IDS | {"prompt": [1, True]}, r"must be a list of token ids .*, got \[1, True\]"),
    "a token below zero": (IDS | {"prompt": [1, -2]}, r'"prompt" must be a list of token ids'),
    "a token between": (IDS | {"target": [1.5]}, r'"target" must be a list of token ids .*, as the prompt is'),
    "no tokens to read": (IDS | {"prompt": []}, r'"prompt" must be a list of token ids .*one at least'),
    "no tokens to answer with": (IDS | {"target": []}, r'"target" must be a list of token ids .*one at least'),
    "ids answered by a text": (IDS | {"target": " x"}, r'"target" must be a list of token ids'),
    "a text answered by ids": ({"prompt": "a", "target": [1]}, r'"target" must be a text'),
    "choices that are bare ids": (PICK | {"choices": [1, 2]}, r"two or more that differ: choices, each a list"),
    "places for a text": (
        {"prompt": "a", "target": " x", "positions": [0]},
        r'"positions" must be a list, for a prompt',
    ),
    "places for choices": (PICK | {"positions": [0]}, r'"positions" must be a list, for'),
    "a place that is no list": (IDS | {"positions": 1}, r'"positions" must be a list'),
    "too few places": (IDS | {"target": [1, 2], "positions": [0]}, r"positions must be places .* one for each token"),
    "a place past the end": (IDS | {"positions": [2]}, r"positions must be places in a prompt of token ids"),
    "a mistyped field over ids": (IDS | {"position": [0]}, r"has a field 'position', .* did you mean 'positions'"),
    "a mistyped field of texts": (GOOD | {"sequnce": 3}, r"has a field 'sequnce', .* did you mean 'sequence'"),
    "a field with spaces": (GOOD | {" sequence": 3}, r"has a field ' sequence', which is not read"),
    "a blank sequence": (GOOD | {"sequence": " "}, r'"sequence" must be a text that is not empty, or an integer'),
    "a mistyped question": (GOOD | {"askd": "a"}, r"has a field 'askd', .* did you mean 'asked'"),
    "a blank question": (GOOD | {"asked": " "}, r'"asked" must be the bare question, a text that is not empty'),
    "a question of token ids": (IDS | {"asked": "what"}, r'"asked" must be the bare question'),
    "a sequence that is true": (IDS | {"sequence": True}, r'"sequence" must be .* an integer, got True'),
    "places out of order": (IDS | {"target": [1, 2], "positions": [1, 0]}, r"in order and each once"),
}


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (GOOD, ("choice", Example("The king", (" runs", " sees"), 1))),
        ({"prompt": "", "target": " runs"}, ("completion", Example("", (" runs",)))),
        (IDS, ("completion", Example((3, 4), ((5,),)))),
        (PICK, ("choice", Example((3, 4), ((1,), (2, 0)), 1))),
        (
            {"prompt": np.array([3, 4, 5]), "target": (4, 5), "positions": [0, 1]},
            ("completion", Example((3, 4, 5), ((4, 5),), positions=(0, 1))),
        ),
        # Other fields are not read.
        (GOOD | {"id": 7, "answers": 2}, ("choice", Example("The king", (" runs", " sees"), 1))),
        (IDS | {"options": 4, "sequence_id": 7}, ("completion", Example((3, 4), ((5,),)))),
    ],
)
def test_a_record_of_texts_or_token_ids_is_an_example(record, read):
    assert read_record(record, "here") == read


@pytest.mark.parametrize("record", [GOOD, IDS, PICK])
def test_a_sequence_has_a_name_or_a_number_and_changes_nothing_else(record):
    for name, kept in (("s 3", "s 3"), (3, "3"), (np.int64(3), "3"), (None, None)):
        kind, example = read_record(record | {"sequence": name}, "here")
        assert example.sequence == kept
        assert (kind, example) == read_record(record, "here")
        assert example.identity == read_record(record, "here")[1].identity
    assert read_record({"prompt": "a", "sequence": 3}, "here", generated=True)[1].sequence == "3"


def test_arrays_and_numbers_of_numpy_are_lists_and_integers():
    record = {"prompt": "The king", "choices": np.array([" runs", " sees"]), "answer": np.int64(1)}
    kind, example = read_record(record, "here")
    choices, answer = example.continuations, example.answer
    assert (kind, choices, answer) == ("choice", (" runs", " sees"), 1)
    assert type(answer) is int
    assert {type(choice) for choice in choices} == {str}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_record_is_refused_with_its_place_and_its_fault(name):
    record, fault = MALFORMED[name]
    with pytest.raises(ValueError, match=rf"^over here: .*{fault}") as refusal:
        read_record(record, "over here")
    assert not re.search(r"\n", str(refusal.value))
