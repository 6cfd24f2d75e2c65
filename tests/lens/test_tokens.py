"""Joining prompt and continuation: as lm-eval, and nothing lost at the border."""

import pickle
import shutil

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cs_heads.lens import encode_example, load_model
from cs_heads.lens.tokens import encode_prompt, prepended, unread_words
from cs_heads.tasks.chat import chat_prompt
from tests.tiny import make_hf_model, make_tokenizer


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
    ("prompt", "continuation", "merged"),
    [
        *(("the cat", " dogs", False), ("cat", " the dog cannot", False), ("the", "\ncat", False)),
        # A space that begins the answer's first token goes with it.
        *(("the cat ", "dogs", True), ("the cat can ", "dog", True)),
    ],
)
def test_borders_are_cut_as_lm_eval_cuts_them(bpe, prompt, continuation, merged):
    encoded = encode_example(bpe, prompt, [continuation])
    assert (list(encoded.prompt), list(encoded.continuations[0])) == lm_eval_pair(bpe, prompt, continuation)
    assert encoded.merged == merged


@pytest.mark.parametrize("end", ["\n", "\t", "\n\n", " \n", "\n\n\n"])
@pytest.mark.parametrize("answers", [["cat"], [" cat"], ["cat", "dogs"]])
def test_white_space_that_ends_a_prompt_is_its_own_and_the_last_token_predicts_the_answer(bpe, end, answers):
    """Byte-level BPE reads two line ends as one token where nothing follows, and as two before a letter."""
    encoded = encode_example(bpe, "the cat" + end, answers)
    assert not encoded.merged
    assert bpe.decode(encoded.prompt) == "the cat" + end
    assert [bpe.decode(tokens) for tokens in encoded.continuations] == answers
    joined = [bpe(f"the cat{end}{answer}", add_special_tokens=False)["input_ids"] for answer in answers]
    assert [[*encoded.prompt, *tokens] for tokens in encoded.continuations] == joined
    if len(end) == 1:
        assert encode_prompt(bpe, "the cat" + end) == encoded.prompt


def metaspace(normalizer=None):
    """A tokenizer in the manner of sentencepiece: a space begins a word's token, a line end is a byte."""
    pieces = ["<unk>", "<0x0A>", "▁", "▁the", "▁cat", "cat", "▁dog", "c", "a", "t", ":"]
    inner = Tokenizer(models.Unigram([(piece, -1.0 - (len(piece) == 1)) for piece in pieces], 0, byte_fallback=True))
    inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize("normalizer", [None, normalizers.Strip()], ids=["as it is", "strips"])
def test_a_line_end_stays_with_the_prompt_where_the_tokenizer_drops_it_at_the_end_of_a_text(normalizer):
    """Some tokenizers strip a text, so that a prompt alone lacks the token that predicts its answer."""

    def pieces(prompt, answers):
        encoded = encode_example(metaspace(normalizer), prompt, answers)
        return [metaspace().convert_ids_to_tokens(list(ids)) for ids in (encoded.prompt, *encoded.continuations)]

    assert pieces("the cat:\n", ["cat"]) == [["▁the", "▁cat", ":", "<0x0A>"], ["cat"]]
    assert pieces("the cat ", ["cat", "dog"]) == [["▁the", "▁cat"], ["▁cat"], ["▁dog"]]


@pytest.mark.parametrize(
    ("prompt", "answer", "last", "first", "merged"),
    [
        ("Lily. ", "She", ".", "▁She", True),
        ("Lily.\n ", "She", "<0x0A>", "▁She", True),
        ("A:\n\t", "x", "<0x09>", "x", False),
        ("A:\n\n ", "Paris", "▁", "P", False),
        ("Lily.\n", "She", "<0x0A>", "S", False),
    ],
)
def test_of_white_space_that_ends_a_prompt_the_token_over_the_border_alone_moves(
    real, prompt, answer, last, first, merged
):
    tokenizer = AutoTokenizer.from_pretrained(real / "models/stories260K")
    encoded = encode_example(tokenizer, prompt, [answer], prepend_bos=False)
    assert [*encoded.prompt, *encoded.continuations[0]] == tokenizer(
        prompt + answer, add_special_tokens=False
    ).input_ids
    border = tokenizer.convert_ids_to_tokens([encoded.prompt[-1], encoded.continuations[0][0]])
    assert (border, encoded.merged) == ([last, first], merged)


@pytest.mark.parametrize("order", [1, -1])
def test_a_token_over_the_border_is_scored_not_lost(bpe, order):
    """``cat`` + ``s`` is one token, ``cats``, whichever choice has it: lm-eval's cut would leave nothing to score."""
    assert lm_eval_pair(bpe, "the cat", "s")[1] == []
    encoded = encode_example(bpe, "the cat", ["s", " dog"][::order])
    assert encoded.merged
    assert bpe.decode(encoded.prompt) == "the"
    assert [bpe.decode(tokens) for tokens in encoded.continuations] == [" cats", " cat dog"][::order]


def with_bos(adds: bool) -> PreTrainedTokenizerFast:
    """A tokenizer with a BOS other than its EOS, which it prepends by itself or, as one made from a GGUF, does not."""
    tokenizer = make_tokenizer()
    if not adds:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    return tokenizer


@pytest.mark.parametrize("adds", [True, False])
def test_a_bos_is_prepended_where_the_tokenizer_does_so_itself(adds):
    tokenizer = with_bos(adds)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert list(encode_prompt(tokenizer, "the cat")) == tokenizer("the cat")["input_ids"]
    assert list(encode_example(tokenizer, "the cat", [" runs"]).prompt) == tokenizer("the cat")["input_ids"]
    assert (encode_prompt(tokenizer, "the cat")[0] == 1) == adds
    for asked in (True, False):
        assert (encode_prompt(tokenizer, "the cat", asked)[0] == 1) == asked


def test_several_tokens_that_a_tokenizer_prepends_are_all_prepended_and_no_end_token():
    """GLM's tokenizer begins a text with two tokens, and has no beginning-of-sequence token."""
    tokenizer = make_tokenizer()
    special = [("one", tokenizer.convert_tokens_to_ids("one")), ("two", tokenizer.convert_tokens_to_ids("two"))]
    special += [("</s>", 2)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="one two $A </s>", special_tokens=special
    )
    tokenizer.bos_token = None
    assert encode_prompt(tokenizer, "the cat") == tuple(tokenizer("the cat")["input_ids"][:-1])
    assert prepended(tokenizer, None) == ["one", "two"]


@pytest.mark.parametrize("adds", [True, False])
def test_what_the_tokenizer_does_is_that_of_its_files_and_not_of_what_a_model_class_makes_of_it(
    tmp_path, backend, adds
):
    """Both classes of TransformerLens load a tokenizer so that it prepends a BOS, whether it does by itself or not."""
    make_hf_model("llama").save_pretrained(tmp_path)
    with_bos(adds).save_pretrained(tmp_path)
    own = AutoTokenizer.from_pretrained(tmp_path)("the cat")["input_ids"]
    assert (own[0] == 1) == adds
    loaded = load_model(tmp_path, device="cpu", backend=backend)
    assert loaded.tokenizer("the cat")["input_ids"][0] == 1
    sent = pickle.loads(pickle.dumps(loaded.tokenizer))
    for tokenizer in (loaded.tokenizer, sent, booted(tmp_path, backend).tokenizer):
        assert list(encode_prompt(tokenizer, "the cat")) == own
        assert prepended(tokenizer, None) == adds


def booted(folder, backend):
    """A user's own model, which cs-heads did not load."""
    if backend == "hooked":
        model = load_model(folder, device="cpu", backend=backend)
        model.set_tokenizer(AutoTokenizer.from_pretrained(folder, add_bos_token=True))
        return model
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(str(folder), device="cpu")


def test_the_end_token_does_not_stand_in_for_a_bos_that_the_tokenizer_does_not_have(tmp_path, backend):
    """TransformerLens names it so, as of Qwen2: a chat would begin with the end of one."""
    make_hf_model("llama").save_pretrained(tmp_path)
    tokenizer = with_bos(False)
    tokenizer.bos_token, tokenizer.chat_template = None, "{{ bos_token }} {{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu", backend=backend)
    assert loaded.tokenizer.bos_token == "</s>"
    sent = pickle.loads(pickle.dumps(loaded.tokenizer))
    for each in (loaded.tokenizer, sent, booted(tmp_path, backend).tokenizer):
        assert encode_prompt(each, "the cat") == encode_prompt(tokenizer, "the cat")
        assert chat_prompt(each, "the cat") == " the cat"
        with pytest.raises(ValueError, match="prepend_bos is True, but the tokenizer has no"):
            encode_prompt(each, "the cat", prepend_bos=True)
    loaded.tokenizer.bos_token = "<s>"
    assert encode_prompt(loaded.tokenizer, "the cat", prepend_bos=True)[0] == 1


def test_a_bos_that_nobody_can_say_the_tokenizer_adds_is_warned_of(tmp_path):
    with_bos(False).save_pretrained(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer", add_bos_token=True)
    shutil.rmtree(tmp_path / "tokenizer")
    with pytest.warns(UserWarning, match="say prepend_bos=True or prepend_bos=False"):
        assert encode_prompt(tokenizer, "the cat")[0] == 1
    # Once.
    assert encode_prompt(tokenizer, "the cat")[0] == 1


def test_an_empty_prompt_needs_a_special_token_to_stand_on(bpe):
    assert encode_example(make_tokenizer(), "", ["the cat"]).prompt == (1,)
    assert encode_example(bpe, "", ["the cat"]).prompt == (bpe.eos_token_id,)
    bare = PreTrainedTokenizerFast(tokenizer_object=bpe.backend_tokenizer)
    assert len(encode_example(bare, "the", [" cat"]).prompt) == 1
    with pytest.raises(ValueError, match="an empty prompt needs"):
        encode_example(bare, "", ["the cat"])
    with pytest.raises(ValueError, match="prepend_bos is True, but the tokenizer has no"):
        encode_example(bare, "the", [" cat"], prepend_bos=True)


def test_a_continuation_without_tokens_is_refused():
    with pytest.raises(ValueError, match=r"continuation ' ' has no token of its own after prompt 'the cat': .* drops"):
        encode_example(make_tokenizer(), "the cat", [" "])


def unigram():
    """A tokenizer with a number for an unknown token, of which its wrapper names none."""
    inner = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.0), ("▁", -2.0), ("a", -3.0)], 0))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def ordinary_unknown():
    """A tokenizer whose unknown token is a word, which its wrapper does not know of."""
    inner = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def dropping():
    """A tokenizer without an unknown token, which leaves out letters it has never seen."""
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate("abc")}, []))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@pytest.mark.parametrize(
    ("make", "text", "unread"),
    [
        (make_tokenizer, "the cat sees", []),
        (make_tokenizer, "the zebra sees a gnu .", ["zebra", "gnu"]),
        (make_tokenizer, "<unk> the <s>", []),
        (make_tokenizer, "", []),
        (unigram, "the cat", []),
        (unigram, "the xyz cat", ["xyz"]),
        (ordinary_unknown, "the cat, the gnu", ["cat,", "gnu"]),
        (dropping, "cab abx xyz", ["abx", "xyz"]),
    ],
)
def test_words_that_a_tokenizer_does_not_know_are_named(make, text, unread):
    assert unread_words(make(), text) == unread


def test_a_byte_level_tokenizer_reads_everything(bpe):
    assert unread_words(bpe, "the zebra's naïve café, 東京 🙂\n\t<|end|>") == []
