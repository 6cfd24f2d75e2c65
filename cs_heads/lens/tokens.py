"""Text to tokens: what stands before every text; prompt and continuations joined without losing a token or a word."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import category

from cs_heads.text import MADE_UP_BOS, ChatPrompt, Text, first_line, has_made_up_bos

# Kept on the tokenizer, so that it goes where the tokenizer goes, to another process too.
_KEPT = "cs_heads_leading_tokens"


def leading_tokens(tokenizer: Any) -> tuple[int, ...]:
    """The tokens that a tokenizer puts before a text when asked to add special tokens, as it was loaded.

    TransformerLens loads tokenizers with ``add_bos_token=True``, so that they prepend a BOS that the model may never
    have seen: what such a tokenizer does by itself is asked of its files, once. Where they cannot be read again a
    warning says so, and the tokenizer is taken as it is. Where there is no tokenizer (None), nothing is prepended.
    """
    if tokenizer is None:
        return ()
    if not hasattr(tokenizer, _KEPT):
        if not _is_changed(tokenizer):
            return _before_a_text(tokenizer)
        keep_leading_tokens(tokenizer, as_loaded(tokenizer))
    return tuple(getattr(tokenizer, _KEPT))


def _is_changed(tokenizer: Any) -> bool:
    """Whether TransformerLens loaded it with another setting than its files have."""
    return getattr(tokenizer, "init_kwargs", {}).get("add_bos_token") is True


def as_loaded(tokenizer: Any) -> Any:
    """The tokenizer that the files of one make by themselves; itself where TransformerLens did not change it.

    Where the files cannot be read again a warning says so, and the tokenizer is taken as it is.
    """
    if not _is_changed(tokenizer):
        return tokenizer
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(tokenizer.name_or_path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a loader makes of files that are gone or changed
        warnings.warn(
            "the tokenizer was loaded with add_bos_token=True, and its files, which say whether it prepends a BOS by "
            f"itself, cannot be read ({first_line(error)[:120]}): it is taken as it is; say prepend_bos=True or "
            "prepend_bos=False",
            stacklevel=3,
        )
        return tokenizer


def keep_leading_tokens(tokenizer: Any, plain: Any) -> None:
    """Let ``plain``, the tokenizer that the same files make by themselves, say what ``tokenizer`` prepends."""
    setattr(tokenizer, _KEPT, _before_a_text(plain))
    if plain.bos_token is None:
        setattr(tokenizer, MADE_UP_BOS, tokenizer.bos_token)


def bos_id(tokenizer: Any) -> int | None:
    """The beginning-of-sequence token that a tokenizer has, as it was loaded; None where it has none.

    TransformerLens gives a tokenizer without any the end-of-sequence token in its place.
    """
    token = tokenizer.bos_token_id
    if token is not None and token == tokenizer.eos_token_id:
        leading_tokens(tokenizer)  # asks the tokenizer's files
    return None if token is None or has_made_up_bos(tokenizer) else int(token)


def prepended(tokenizer: Any, prepend_bos: bool | None) -> bool | list[str]:
    """Whether a BOS is prepended to every text; where other tokens are, these. JSON-ready.

    ``prepend_bos`` None is as the tokenizer does by itself.
    """
    if prepend_bos is not None:
        return prepend_bos
    leading = leading_tokens(tokenizer)
    if not leading or leading == (bos_id(tokenizer),):
        return bool(leading)
    return [str(token) for token in tokenizer.convert_ids_to_tokens(list(leading))]


def _before_a_text(tokenizer: Any) -> tuple[int, ...]:
    with_special = list(tokenizer("a")["input_ids"])
    text = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    for start in range(len(with_special) - len(text) + 1 if text else 0):
        if with_special[start : start + len(text)] == text:
            return tuple(with_special[:start])
    # The text alone reads differently, or is nothing to this tokenizer.
    return (int(tokenizer.bos_token_id),) if with_special[:1] == [tokenizer.bos_token_id] else ()


NO_TOKENIZER = (
    "the model has no tokenizer to read and write texts with; give it one (model.tokenizer), or write prompts and "
    "answers as lists of token ids"
)


# How a token is written that begins with a space.
_SPACES = ("▁", "Ġ", " ")

# A code point that is for ever no character, so that no vocabulary has it.
_NO_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of a prompt (never empty) and of each continuation after it (none empty).

    ``merged`` says that some continuation shares a token with the end of the prompt, be it a space; that token is
    then scored with the continuation, for every continuation alike. ``prompts`` has one prompt for each continuation
    where they differ; ``prompt`` is then the first of them. With ``positions`` the tokens of the one continuation are
    not read after the prompt but at these places in it.
    """

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    merged: bool
    prompts: tuple[tuple[int, ...], ...] = ()
    positions: tuple[int, ...] = ()

    def prompt_of(self, continuation: int) -> tuple[int, ...]:
        """What a continuation follows, by its index."""
        return self.prompts[continuation] if self.prompts else self.prompt

    def inputs_of(self, continuation: int) -> tuple[int, ...]:
        """What the model is run on to read a continuation: the prompt, and the continuation but for its last token."""
        prompt = self.prompt_of(continuation)
        return prompt if self.positions else (*prompt, *self.continuations[continuation][:-1])

    def positions_of(self, continuation: int) -> Sequence[int]:
        """Where in these inputs each token of a continuation is read: after the token at that place."""
        first = len(self.prompt_of(continuation)) - 1
        return self.positions or range(first, first + len(self.continuations[continuation]))

    def answered(self, answer: int) -> EncodedExample:
        """The example with one of its continuations alone."""
        return EncodedExample(self.prompt_of(answer), (self.continuations[answer],), False, (), self.positions)

    def following(self, prompts: Sequence[tuple[int, ...]]) -> EncodedExample:
        """The same continuations, each after its own of ``prompts``."""
        return replace(self, prompt=prompts[0], prompts=tuple(prompts) if len(set(prompts)) > 1 else ())


def encode_example(
    tokenizer: Any,
    prompt: Text,
    continuations: Sequence[Text],
    prepend_bos: bool | None = None,
    positions: tuple[int, ...] = (),
) -> EncodedExample:
    """Tokenize prompt + continuation in one piece and cut it where the prompt ends; a chat and its answer apart.

    The tokens before the cut are those of the prompt, whatever it ends in, so that the last of them predicts the first
    of the continuation. Where a token spans the border, it is neither lost nor split: the cut lies before it. Token
    ids need no tokenizer and stay as they are given.

    Args:
        tokenizer: The model's tokenizer.
        prompt: Text, or token ids.
        continuations: Texts, or token ids, after the prompt.
        prepend_bos: Whether to prepend a beginning-of-sequence token; None does as the tokenizer itself when asked to
            add special tokens: those of Llama and Gemma prepend one, those of GPT-2 and Qwen none; before a chat none
            stands that its template does not write. A prompt that begins with this token gets no second one; an empty
            prompt always gets one, or else the end-of-sequence token.
        positions: Those of ``EncodedExample``.

    Raises:
        ValueError: A continuation without tokens, or an empty prompt for a tokenizer with neither of these tokens.
    """
    if not isinstance(prompt, str):
        ids = tuple(text for text in continuations if not isinstance(text, str))
        return EncodedExample(encode_prompt(tokenizer, prompt, prepend_bos), ids, False, (), positions)
    alone, texts = _encode(tokenizer, prompt), [text for text in continuations if isinstance(text, str)]
    if isinstance(prompt, ChatPrompt):
        joined = [alone + _encode(tokenizer, text) for text in texts]
        ends = [(len(alone), False)]
    else:
        joined = [_encode(tokenizer, prompt + text) for text in texts]
        ends = [_end_of(tokenizer, prompt, *each, alone) for each in zip(texts, joined, strict=True)]
    border = min([*(common_prefix(joined[0], tokens) for tokens in joined), *(end for end, _ in ends)])
    for text, tokens in zip(texts, joined, strict=True):
        if len(tokens) <= border:
            why = "" if text.strip() else ": the tokenizer drops white space at the end of a text"
            raise ValueError(f"continuation {text!r} has no token of its own after prompt {prompt[-40:]!r}{why}")
    own = joined[0][:border]
    return EncodedExample(
        prompt=(*_prefix(tokenizer, prompt, own, prepend_bos), *own),
        continuations=tuple(tuple(tokens[border:]) for tokens in joined),
        merged=any(merged or end != border for end, merged in ends),
    )


def _end_of(tokenizer: Any, prompt: str, text: str, joined: list[int], alone: list[int]) -> tuple[int, bool]:
    """How many first tokens of a prompt with its continuation are the prompt's, and whether a token is of both.

    They may be others than those of the prompt ``alone``: of two line ends that are one token at the end of a text,
    GPT-2's tokenizer makes two before a word, and some tokenizers drop white space at the end.
    """
    shared = common_prefix(alone, joined)
    kept = shared == len(alone)
    if kept and prompt == prompt.rstrip():
        return shared, False
    whole = _spelled(tokenizer, joined)
    before = whole.removesuffix(text) if whole.endswith(text) else ""
    end = shared
    for n in range(shared, len(joined)):
        said = _spelled(tokenizer, joined[:n])
        if said == before:
            return n, False
        end = n if before.startswith(said) else end
    # Tokens of words alone, as in WordPiece, have no space, and are as the prompt's own.
    [first] = tokenizer.convert_ids_to_tokens(joined[end : end + 1]) or [""]
    return end, not kept or first.startswith(_SPACES)


def _spelled(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens))


def encode_prompt(tokenizer: Any, prompt: Text, prepend_bos: bool | None = None) -> tuple[int, ...]:
    """Tokens of a prompt that a text is generated after; ``prepend_bos`` is as in ``encode_example``."""
    if not isinstance(prompt, str):
        if prepend_bos:
            raise ValueError("prepend_bos must be left out for prompts of token ids: they are given with all they need")
        return prompt
    tokens = _encode(tokenizer, prompt)
    return (*_prefix(tokenizer, prompt, tokens, prepend_bos), *tokens)


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """How many first tokens two sequences share, knowing that they share ``start``.

    >>> common_prefix([5, 6, 7], [5, 6, 8, 9])
    2
    """
    end = min(len(a), len(b))
    while start < end and a[start] == b[start]:
        start += 1
    return start


def unread_words(tokenizer: Any, text: str) -> list[str]:
    """Words of a text in whose place, or part of it, the tokenizer puts its unknown token, or nothing at all.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> unread_words(PreTrainedTokenizerFast(tokenizer_object=words), "the cat sat")
    ['sat']
    """
    unknown = unknown_tokens(tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        read = {word: set(_encode(tokenizer, word)) for word in text.split() if word not in unknown.values()}
        return [word for word, ids in read.items() if not ids or ids & set(unknown)]
    encoded = _read(tokenizer, text, return_offsets_mapping=True)
    read_at, unread = set[int](), set[int]()
    for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        missed = token in unknown and text[begin:end].strip().lower() != unknown[token].lower()
        (unread if missed else read_at).update(range(begin, end))
    # What is no letter, number, mark or symbol says nothing when it is dropped.
    dropped = {at for at, character in enumerate(text) if at not in read_at and category(character)[0] in "LNPS"}
    return list(dict.fromkeys(_word_at(text, at) for at in sorted(unread | dropped) if not text[at].isspace()))


def unknown_tokens(tokenizer: Any) -> dict[int, str]:
    """The tokens that stand for what a tokenizer does not know; it may know one that its wrapper does not name."""
    inner: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    names = (tokenizer.unk_token, getattr(inner, "unk_token", None))
    named = {name: tokenizer.convert_tokens_to_ids(name) for name in names if name}
    unknown = {int(token): name for name, token in named.items() if token is not None}
    if type(inner).__name__ == "Unigram":
        # It has a number in place of a name, and tells it of no character alone.
        try:
            unknown |= {token.id: inner.id_to_token(token.id) for token in inner.tokenize(_NO_CHARACTER)}
        except Exception:  # no unknown token
            return unknown
    return unknown


def _word_at(text: str, at: int) -> str:
    before, after = text[:at].split(), text[at:].split()
    inside = at > 0 and not text[at - 1].isspace()
    return (before[-1] if inside else "") + after[0]


def _encode(tokenizer: Any, text: str) -> list[int]:
    if tokenizer is None:
        raise ValueError(NO_TOKENIZER)
    return list(_read(tokenizer, text)["input_ids"])


def _read(tokenizer: Any, text: str, **more: Any) -> Any:
    try:
        return tokenizer(text, add_special_tokens=False, **more)
    except Exception as error:  # of no class of its own, where no token stands for an unknown word
        raise ValueError(f"the tokenizer cannot read {text[-40:]!r}: {error}") from error


def _prefix(tokenizer: Any, prompt: str, tokens: list[int], prepend_bos: bool | None) -> tuple[int, ...]:
    bos, eos = bos_id(tokenizer), tokenizer.eos_token_id
    if prepend_bos and bos is None:
        raise ValueError("prepend_bos is True, but the tokenizer has no beginning-of-sequence token")
    by_itself = () if isinstance(prompt, ChatPrompt) else leading_tokens(tokenizer)
    wanted = by_itself if prepend_bos is None else (bos,) if prepend_bos and bos is not None else ()
    # A text that writes the token out, as chat templates do, has it already.
    if tokens and tokens[0] in (bos, *wanted[:1]):
        return ()
    if tokens or wanted:
        return wanted
    if bos is None and eos is None:
        raise ValueError(
            "an empty prompt needs a beginning- or end-of-sequence token to stand before it; the tokenizer has neither"
        )
    return (int(eos if bos is None else bos),)
