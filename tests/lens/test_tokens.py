"""Joining prompt and continuation: as lm-eval, and nothing lost at the border."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cs_heads.lens import encode_example
from cs_heads.lens.tokens import unread_words
from tests.tiny import make_tokenizer


@pytest.fixture(scope="module")
def bpe():
    """A byte-level BPE tokenizer that merges across letters, without special tokens of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the cannot can not cat cats catsup dog dogs"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")


def lm_eval_pair(tokenizer, context, continuation):
    """lm-eval's rule, written out: spaces move to the continuation, the whole is cut at the context's length."""
    n_spaces = len(context) - len(context.rstrip())
    if n_spaces:
        continuation = context[-n_spaces:] + continuation
        context = context[:-n_spaces]
    whole = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
    cut = len(tokenizer(context, add_special_tokens=False)["input_ids"])
    return whole[:cut], whole[cut:]


@pytest.mark.parametrize(
    ("prompt", "continuation"),
    [("the cat", " dogs"), ("the cat ", "dogs"), ("the  ", " dog"), ("cat", " the dog cannot"), ("the", "\ncat")],
)
def test_clean_borders_are_cut_as_lm_eval_cuts_them(bpe, prompt, continuation):
    encoded = encode_example(bpe, prompt, [continuation])
    expected = lm_eval_pair(bpe, prompt, continuation)
    assert (list(encoded.prompt), list(encoded.continuations[0])) == expected
    assert not encoded.merged


@pytest.mark.parametrize("order", [1, -1])
def test_a_token_over_the_border_is_scored_not_lost(bpe, order):
    """``cat`` + ``s`` is one token, ``cats``, whichever choice has it: lm-eval's cut would leave nothing to score."""
    assert lm_eval_pair(bpe, "the cat", "s")[1] == []
    encoded = encode_example(bpe, "the cat", ["s", " dog"][::order])
    assert encoded.merged
    assert bpe.decode(encoded.prompt) == "the"
    assert [bpe.decode(tokens) for tokens in encoded.continuations] == [" cats", " cat dog"][::order]


def test_prompt_and_continuation_together_are_the_whole_text(bpe):
    for prompt, continuations in [("can", ["not", " not"]), ("the dog", ["s", " cat"]), ("the ", ["cat", "dogs"])]:
        encoded = encode_example(bpe, prompt, continuations)
        for text, tokens in zip(continuations, encoded.continuations, strict=True):
            assert bpe.decode([*encoded.prompt, *tokens]) == prompt + text


def test_bos_is_prepended_where_the_tokenizer_has_one_of_its_own(bpe):
    words = make_tokenizer()
    assert encode_example(words, "the cat", [" runs"]).prompt == (1, *words.convert_tokens_to_ids(["the", "cat"]))
    assert encode_example(bpe, "the cat", [" dog"]).prompt[0] != bpe.bos_token_id
    assert encode_example(bpe, "the cat", [" dog"], prepend_bos=True).prompt[0] == bpe.bos_token_id
    assert encode_example(words, "the cat", [" runs"], prepend_bos=False).prompt[0] != 1


def test_an_empty_prompt_gets_a_token_to_stand_on(bpe):
    assert encode_example(make_tokenizer(), "", ["the cat"]).prompt == (1,)
    assert encode_example(bpe, "", ["the cat"]).prompt == (bpe.eos_token_id,)


def test_a_tokenizer_without_special_tokens_cannot_start_an_empty_prompt(bpe):
    bare = PreTrainedTokenizerFast(tokenizer_object=bpe.backend_tokenizer)
    assert len(encode_example(bare, "the", [" cat"]).prompt) == 1
    with pytest.raises(ValueError, match="an empty prompt needs"):
        encode_example(bare, "", ["the cat"])
    with pytest.raises(ValueError, match="prepend_bos is True, but the tokenizer has no"):
        encode_example(bare, "the", [" cat"], prepend_bos=True)


def test_a_continuation_without_tokens_is_refused():
    with pytest.raises(ValueError, match="continuation ' ' has no token of its own after prompt 'the cat'"):
        encode_example(make_tokenizer(), "the cat", [" "])


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("the cat sees", []),
        ("the zebra sees a gnu .", ["zebra", "gnu"]),
        ("zebra", ["zebra"]),
        ("<unk> the <s>", []),
        ("", []),
    ],
)
def test_words_that_become_the_unknown_token_are_named(text, unread):
    assert unread_words(make_tokenizer(), text) == unread


def test_a_word_that_becomes_an_ordinary_token_is_named():
    """The unknown token of this tokenizer is a word, which its wrapper does not know of."""
    inner = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert tokenizer.unk_token_id is None
    assert unread_words(tokenizer, "the cat, the gnu") == ["cat,", "gnu"]


def test_what_a_tokenizer_drops_is_named():
    """Without an unknown token a BPE tokenizer leaves out letters it has never seen."""
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate("abc")}, []))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert tokenizer("cab xyz", add_special_tokens=False)["input_ids"] == [2, 0, 1]
    assert unread_words(tokenizer, "cab abx xyz") == ["abx", "xyz"]


def test_a_byte_level_tokenizer_reads_everything(bpe):
    assert unread_words(bpe, "the zebra's naïve café, 東京 🙂\n\t<|end|>") == []
