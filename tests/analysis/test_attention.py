from importlib import import_module

import numpy as np
import pytest

from cs_heads.analysis.attention import HABITS, HeadAttention, PromptAttention, attention, habit_scores, habits
from cs_heads.units import Head

PROMPTS = ["the cat sees the dog", "a bird runs ."]
HEADS = [Head(0, 1), Head(1, 2), Head(2, 0)]


@pytest.fixture
def model(load):
    return load("llama")


def test_ablation_changes_the_attention_of_later_layers_alone(model):
    found = attention(model, PROMPTS, HEADS)
    assert found.off == tuple(HEADS)
    assert all(one.tokens[0] == "<s>" for one in found.prompts)
    assert not found.change[:, 0].any()
    assert (found.change[:, 1:] > 0).all()
    assert (found.change <= 1).all()


def test_saved_attention_is_read_back_to_four_decimals(model, tmp_path):
    found = attention(model, PROMPTS, HEADS)
    found.save(tmp_path / "attention.json")
    again = HeadAttention.load(tmp_path / "attention.json")
    assert (again.heads, again.off, again.provenance) == (found.heads, found.off, found.provenance)
    for one, two in zip(found.prompts, again.prompts, strict=True):
        assert (one.prompt, one.tokens, one.ids) == (two.prompt, two.tokens, two.ids)
        np.testing.assert_allclose(one.intact, two.intact, atol=6e-5)
        np.testing.assert_allclose(one.ablated, two.ablated, atol=6e-5)


# Habits


def by_hand(pattern, ids) -> dict[str, float]:
    """The same habits, pair by pair."""
    shares: dict[str, list[float]] = {name: [] for name in HABITS}
    for query in range(1, len(ids)):
        shares["previous token"].append(pattern[query, query - 1])
        shares["first token"].append(pattern[query, 0])
        copies = [key for key in range(query) if ids[key] == ids[query]]
        if copies:
            shares["same token"].append(sum(pattern[query, key] for key in copies))
        followers = [key + 1 for key in copies if key + 1 < query]
        if followers:
            shares["induction"].append(sum(pattern[query, key] for key in followers))
    return {name: float(np.mean(values)) if values else np.nan for name, values in shares.items()}


@pytest.mark.parametrize("ids", [[3, 4, 5, 3, 4, 3], [1, 1, 1, 2], [1, 2, 3], [4, 4]])
def test_habits_are_counted_as_by_hand(ids):
    raw = np.tril(np.random.default_rng(0).random((2, len(ids), len(ids))))
    patterns = raw / raw.sum(axis=-1, keepdims=True)
    scores = habit_scores(patterns, ids)
    for row, pattern in enumerate(patterns):
        expected = by_hand(pattern, ids)
        assert {name: scores[name][row] for name in HABITS} == pytest.approx(expected, nan_ok=True)


def test_a_head_that_looks_back_one_token_is_seen_as_that(model, monkeypatch):
    def looks_back(model, ids, heads):
        pattern = np.eye(len(ids), k=-1)
        pattern[0, 0] = 1
        return np.stack([pattern] * len(heads))

    monkeypatch.setattr(import_module("cs_heads.analysis.attention"), "attention_patterns", looks_back)
    frame = habits(model, [Head(0, 0)], n=2, length=5)
    assert frame["previous token"].tolist() == [1.0]
    assert frame["induction"].tolist() == [0.0]


def test_a_truncated_prompt_sums_what_is_left_out_and_takes_the_mean_of_its_queries():
    pattern = np.array(
        [[[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2, 0.4, 0.4, 0, 0], [0.1, 0.2, 0.3, 0.4, 0], [0.2] * 5]]
    )
    one = PromptAttention("a b c d e", ("a", "b", "c", "d", "e"), (4, 5, 6, 7, 8), pattern)
    short = one.truncated(4)
    assert (short.tokens, short.ids) == (("a", "[2 tokens]", "d", "e"), (4, -1, 7, 8))
    np.testing.assert_allclose(
        short.intact[0], [[1, 0, 0, 0], [0.35, 0.65, 0, 0], [0.1, 0.5, 0.4, 0], [0.2, 0.4, 0.2, 0.2]]
    )
    assert one.truncated(5) is one
    with pytest.raises(ValueError, match="max_tokens must be an integer of 3 or more, got 2"):
        one.truncated(2)
