"""The tokens before every text: a beginning-of-sequence token (BOS), or others that the tokenizer prepends."""

from __future__ import annotations

import warnings
from typing import Any

from cs_heads.text import MADE_UP_BOS, first_line, has_made_up_bos

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
    kept: tuple[int, ...] | None = getattr(tokenizer, _KEPT, None)
    if kept is not None:
        return kept
    if getattr(tokenizer, "init_kwargs", {}).get("add_bos_token") is not True:
        return _before_a_text(tokenizer)
    from transformers import AutoTokenizer

    as_loaded = tokenizer
    try:
        as_loaded = AutoTokenizer.from_pretrained(
            tokenizer.name_or_path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a loader makes of files that are gone or changed
        warnings.warn(
            "the tokenizer was loaded with add_bos_token=True, and its files, which say whether it prepends a BOS by "
            f"itself, cannot be read ({first_line(error)[:120]}): it is taken as it is; say prepend_bos=True or "
            "prepend_bos=False",
            stacklevel=2,
        )
    keep_leading_tokens(tokenizer, as_loaded)
    return leading_tokens(tokenizer)


def keep_leading_tokens(tokenizer: Any, as_loaded: Any) -> None:
    """Let ``as_loaded``, the tokenizer that the same files make by themselves, say what ``tokenizer`` prepends."""
    setattr(tokenizer, _KEPT, _before_a_text(as_loaded))
    if as_loaded.bos_token is None:
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
            return tuple(int(token) for token in with_special[:start])
    # The text alone reads differently, or is nothing to this tokenizer.
    return (int(tokenizer.bos_token_id),) if with_special[:1] == [tokenizer.bos_token_id] else ()
