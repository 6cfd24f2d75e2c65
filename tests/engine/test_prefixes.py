"""Shared beginnings: what is shared, what is not worth sharing, and that nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from cs_heads.engine.layout import PrefixTree, lay_out
from cs_heads.lens import EncodedExample

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30).map(tuple), min_size=1, max_size=8)


@given(texts, st.integers(0, 20))
def test_sharing_never_runs_more_tokens(sequences, n_shared):
    sequences = [(1,) * n_shared + text for text in sequences]
    found = PrefixTree(sequences)
    assert sum(s.stop - s.start for s in found.segments) <= sum(map(len, sequences))
    assert all(s.parent is None or s.parent < i for i, s in enumerate(found.segments))


def test_prefixes_nest():
    """A few-shot prompt shared by all, each question shared by its choices."""
    few_shot, questions = (9,) * 40, [(1,) * 12, (2,) * 12]
    sequences = [few_shot + question + (choice,) * 2 for question in questions for choice in (3, 4, 5)]
    found = PrefixTree(sequences)
    assert [(s.start, s.stop, s.parent) for s in found.segments if s.stop <= 52] == [
        (0, 40, None),
        (40, 52, 0),
        (40, 52, 0),
    ]
    assert sum(s.stop - s.start for s in found.segments) == 40 + 2 * 12 + 6 * 2


def test_single_token_choices_are_read_at_the_end_of_one_prompt():
    """Four choices of one token each need one row, not four."""
    layout = lay_out([EncodedExample((1, 2, 3), ((4,), (5,), (6,), (7,)), False)], [0], share=True)
    (piece,) = layout.pieces
    assert piece.tokens.tolist() == [1, 2, 3]
    assert piece.offsets.tolist() == [2, 2, 2, 2]
    assert piece.wanted.tolist() == [4, 5, 6, 7]


def test_sharing_can_be_kept_within_an_example():
    prompt = (1,) * 20
    examples = [EncodedExample(prompt, ((2, i), (3, i)), False) for i in range(2)]
    apart = lay_out(examples, [0, 1], share=True, across_examples=False)
    assert apart.n_tokens == 2 * (20 + 2)
    assert lay_out(examples, [0, 1], share=True).n_tokens < apart.n_tokens
