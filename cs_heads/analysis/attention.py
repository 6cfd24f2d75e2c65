"""What heads look at: their attention on prompts, with and without the heads found, and four common habits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from typing_extensions import Unpack

from cs_heads.analysis.found_heads import heads_of
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_list, check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.drawable import Drawable
from cs_heads.lens import describe
from cs_heads.lens.attention import attention_patterns, token_texts
from cs_heads.lens.model import check_ablatable, context_length, tokenizer_of, vocabularies
from cs_heads.lens.tokens import encode_prompt
from cs_heads.ranking import HeadRanking
from cs_heads.record import Record, Saved, json_ready
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.text import Text, is_token_ids, shown
from cs_heads.units import Grid, HeadLike, Unit

HABITS = ("previous token", "first token", "same token", "induction")


@dataclass(frozen=True, eq=False)
class PromptAttention(Record):
    """One prompt: its tokens, and each head's attention intact and with the heads ``off``.

    Attributes:
        prompt: Its text; for token ids a list of them.
        tokens: Its tokens as texts, or as their ids where there is no tokenizer to write them with.
        ids: Their ids; -1 for what stands for tokens left out (``truncated``).
        intact: Share of each query's attention that goes to each key, by head in the order of ``HeadAttention.heads``.
        ablated: The same with heads off (None: none were).
    """

    prompt: str
    tokens: tuple[str, ...]
    ids: tuple[Annotated[int, (-1, 2**31)], ...]
    intact: Float[np.ndarray, "head query key"]
    ablated: Float[np.ndarray, "head query key"] | None = None

    def looks_at(self, head: int, n: int = 3) -> list[tuple[str, float]]:
        """The ``n`` tokens that the last token attends to most, with the share of its attention.

        Args:
            head: A row of ``intact``.
            n: How many tokens.

        Returns:
            Each token's text and its share of attention, in [0, 1], the largest first.
        """
        row = self.intact[head, -1]
        return [(self.tokens[key], float(row[key])) for key in np.argsort(-row, kind="stable")[:n]]

    def truncated(self, max_tokens: int) -> PromptAttention:
        """The first token, one that stands for those left out, and the last ones.

        Attention to what is left out is summed, and the mean of its queries taken, so that each query's attention
        still sums to one. The id of that token is -1. A prompt that is no longer stays as it is.

        Args:
            max_tokens: Tokens in all, 3 or more.

        Raises:
            ValueError: ``max_tokens`` is below 3.
        """
        check_integer("max_tokens", max_tokens, 3)
        n = len(self.tokens)
        if n <= max_tokens:
            return self
        begin, end = 1, n - (max_tokens - 2)
        # Row by row what a token of the short prompt is made of.
        parts = np.zeros((max_tokens, n))
        parts[0, 0], parts[1, begin:end] = 1, 1
        parts[2:, end:] = np.eye(max_tokens - 2)
        means = parts / parts.sum(axis=1, keepdims=True)
        return self._changed(
            lambda patterns: means @ patterns @ parts.T,
            tokens=(self.tokens[0], f"[{end - begin} tokens]", *self.tokens[end:]),
            ids=(self.ids[0], -1, *self.ids[end:]),
        )

    def _changed(self, change: Callable[[np.ndarray], np.ndarray], **more: Any) -> PromptAttention:
        """The same prompt, its attention changed."""
        ablated = None if self.ablated is None else change(self.ablated)
        return replace(self, intact=change(self.intact), ablated=ablated, **more)


@dataclass(frozen=True, eq=False, repr=False)
class HeadAttention(Saved, Result, Drawable, picture="last_token"):
    """Attention of ``heads`` on prompts, intact and with ``off`` ablated.

    Attributes:
        heads: Heads whose attention was taken.
        off: Heads that were ablated; empty: none.
        prompts: The attention on each prompt.
        provenance: The model.
        spent, notes: Of every result; prompts are no examples.
    """

    _format, _version = "attention", 1

    heads: tuple[Unit, ...]
    off: tuple[Unit, ...]
    prompts: tuple[PromptAttention, ...]

    @property
    def change(self) -> Float[np.ndarray, "prompt head"]:
        """How much of each head's attention moves when the heads are off: 0 none, 1 all (total variation).

        Mean over the queries of a prompt but the first, which can only attend to itself. Zero where none were off.
        """
        moved = np.zeros((len(self.prompts), len(self.heads)))
        for number, one in enumerate(self.prompts):
            if one.ablated is not None and len(one.tokens) > 1:
                moved[number] = np.abs(one.ablated - one.intact)[:, 1:].sum(axis=-1).mean(axis=-1) / 2
        return moved

    def truncated(self, max_tokens: int) -> HeadAttention:
        """The same of shorter prompts, each by ``PromptAttention.truncated``.

        Args:
            max_tokens: Tokens of a prompt at most, 3 or more.

        Raises:
            ValueError: ``max_tokens`` is below 3.
        """
        return replace(self, prompts=tuple(one.truncated(max_tokens) for one in self.prompts))

    def to_frame(self) -> pd.DataFrame:
        """One row per (prompt, head): what the last token looks at most, habits in [0, 1], and how much changes.

        Habits and change are means over all tokens of the prompt (``habit_scores``, ``change``).
        """
        frames = []
        for one, change in zip(self.prompts, self.change, strict=True):
            tokens, shares = zip(*(one.looks_at(row, 1)[0] for row in range(len(self.heads))), strict=True)
            seen = {"prompt": one.prompt, "head": list(map(str, self.heads)), "last token looks at": tokens}
            habits = habit_scores(one.intact, one.ids)
            frames.append(pd.DataFrame({**seen, "share": shares, **habits, "change": change}))
        return pd.concat(frames, ignore_index=True)

    def _remarks(self) -> Sequence[str]:
        said = "share: of the last token's attention; previous token to induction, and change: mean over all tokens"
        return (*self.notes, said)

    def to_dict(self) -> dict[str, Any]:
        """The whole of it, JSON-ready; attention is kept to four decimals."""
        prompts = tuple(one._changed(lambda patterns: np.round(patterns.astype(float), 4)) for one in self.prompts)
        return {**super().to_dict(), "prompts": json_ready(prompts)}


def attention(
    model: ModelLike,
    prompts: Sequence[Text],
    heads: HeadRanking | Iterable[HeadLike],
    *,
    off: Iterable[HeadLike] | None = None,
    **settings: Unpack[SettingsArguments],
) -> HeadAttention:
    """Attention of heads on prompts, intact and with heads ablated.

    A head's own ablation leaves its attention as it is; what changes is that of heads in later layers. Costs two
    forward passes per prompt.

    Args:
        model: Your own TransformerLens model, the name of one, or a ``Cluster``: its model in this process is run.
        prompts: Texts, or tuples of token ids.
        heads: The heads whose attention is taken: a ranking (its top 5), or a list of heads.
        off: The heads that are ablated (None: ``heads``).
        settings: ``prepend_bos``, ``dtype``, ``progress``: see ``SettingsArguments``.

    Returns:
        By prompt its tokens, and ``[head, query, key]`` the share of each query's attention that goes to each key:
        intact, and with heads off (None: none were).

    Raises:
        ValueError: No prompt, no head, a head twice or one outside the grid. Raised before the model runs.
    """
    asked = Settings.of(settings, ("prepend_bos", "dtype", "progress"))
    loaded = local_model(model, asked)
    check_ablatable(loaded)
    prompts = check_list("prompts", prompts, "one text or more")
    if not prompts or not all(isinstance(prompt, str) or is_token_ids(prompt) for prompt in prompts):
        raise ValueError(f"prompts must be a list of one text or more, or of token ids, got {prompts!r:.200}")
    tokenizer = tokenizer_of(loaded)
    grid = Grid.from_model(loaded)
    described = describe(loaded)
    chosen = heads_of(grid, heads, model=described)
    ablated = (
        chosen if off is None else heads_of(grid, off, name="off", model=described, beside_off=True) if off else ()
    )
    seen = []
    for prompt in prompts:
        ids = encode_prompt(tokenizer, prompt, asked.prepend_bos)
        intact = attention_patterns(loaded, ids, chosen)
        without = attention_patterns(loaded, ids, chosen, grid.mask(ablated)) if ablated else None
        seen.append(PromptAttention(shown(prompt), tuple(token_texts(tokenizer, ids)), tuple(ids), intact, without))
    return HeadAttention(chosen, ablated, tuple(seen), provenance={"model": described})


def habit_scores(
    patterns: Float[np.ndarray, "head query key"], ids: Sequence[int]
) -> dict[str, Float[np.ndarray, " head"]]:
    """Mean share of attention that goes to the token before, the first token, the same token earlier, or after it.

    *Induction* is attention to what followed an earlier copy of the query's token (Olsson et al., arXiv 2209.11895).
    The mean is over the queries that could: all but the first, for the last two those with an earlier copy (not
    just before, for induction); NaN where there is none.

    >>> looks_back = np.eye(4, k=-1)[None] + np.eye(4)[None] * [[1], [0], [0], [0]]
    >>> {name: float(score[0]) for name, score in habit_scores(looks_back, [7, 8, 7, 9]).items()}
    {'previous token': 1.0, 'first token': 0.3333333333333333, 'same token': 0.0, 'induction': 1.0}
    """
    scores = {}
    # A head does not follow what it looks from.
    for name, where in zip(HABITS, np.tril(habit_masks(ids), -1), strict=True):
        able = where.any(axis=1)
        shares = (patterns * where).sum(axis=-1)[:, able]
        scores[name] = shares.mean(axis=1) if able.any() else np.full(len(patterns), np.nan)
    return scores


def habit_masks(ids: Sequence[int]) -> Bool[np.ndarray, "habit query key"]:
    """Where each of ``HABITS`` looks: for induction what followed an earlier copy, which may be the query itself.

    >>> habit_masks([5, 7, 5])[2:].astype(int).tolist()
    [[[0, 0, 0], [0, 0, 0], [1, 0, 0]], [[0, 0, 0], [0, 0, 0], [0, 1, 0]]]
    """
    token, key = np.asarray(ids), np.arange(len(ids))
    query = key[:, None]
    same = (token[:, None] == token) & (key < query)
    followed = np.pad(same, ((0, 0), (1, 0)))[:, :-1]
    return np.stack([key == query - 1, (key == 0) & (query > 0), same, followed])


def habits(
    model: ModelLike,
    heads: HeadRanking | Iterable[HeadLike] | None = None,
    *,
    n: int = 8,
    length: int | None = None,
    seed: int = 0,
    **settings: Unpack[SettingsArguments],
) -> pd.DataFrame:
    """The four habits of each head on random tokens that come twice: one row per head.

    Sequences follow the token that begins a text, where the tokenizer has one (Olsson et al., arXiv 2209.11895). Random
    tokens have nothing else to look at.

    Args:
        model: Your own TransformerLens model, the name of one, or a ``Cluster``: its model in this process is run.
        heads: A ranking, or a list of heads (None: all).
        n: Sequences.
        length: Tokens of a sequence, which then comes again (None: 20, or as many as the context holds twice).
        seed: Draws the tokens.
        settings: ``dtype``, ``progress``: see ``SettingsArguments``.

    Returns:
        Columns ``head``, ``previous token``, ``first token``, ``same token`` and ``induction``: the share of its
        attention that each habit has, in [0, 1], in the mean over the tokens that can follow it (``habit_scores``).
        They are no parts of one: the token before may be the first.

    Raises:
        ValueError: A wrong argument, a head that the model has not, or sequences longer than its context; the message
            names it.
    """
    check_seed(seed)
    loaded = local_model(model, Settings.of(settings, ("dtype", "progress")))
    check_ablatable(loaded)
    check_integer("n", n, 1)
    tokenizer, limit, n_tokens = tokenizer_of(loaded), context_length(loaded), vocabularies(loaded)[0]
    special = set[int]() if tokenizer is None else set(tokenizer.all_special_ids)
    if tokenizer is not None:
        n_tokens = min(n_tokens, len(tokenizer))
    begin = encode_prompt(tokenizer, "") if getattr(tokenizer, "bos_token_id", None) is not None else ()
    most = None if limit is None else (limit - len(begin)) // 2
    length = check_integer("length", min(20, most or 20) if length is None else length, 1, most)
    grid = Grid.from_model(loaded)
    chosen = tuple(grid) if heads is None else heads_of(grid, heads, model=describe(loaded))
    usable = np.array([token for token in range(n_tokens) if token not in special])
    rng = np.random.default_rng(seed)
    scores = []
    for _ in range(n):
        drawn = rng.choice(usable, length, replace=length > len(usable)).tolist()
        ids = [*begin, *drawn, *drawn]
        scores.append(habit_scores(attention_patterns(loaded, ids, chosen), ids))
    means = {name: np.mean([one[name] for one in scores], axis=0) for name in HABITS}
    return pd.DataFrame({"head": [str(head) for head in chosen], **means})
