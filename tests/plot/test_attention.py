import base64
import gzip
import json
import re

import circuitsvis
import numpy as np
import pytest
from matplotlib import pyplot as plt

from cs_heads import plot
from cs_heads.analysis.attention import HeadAttention, PromptAttention
from cs_heads.plot.attention_patterns import load_script, show_attention
from cs_heads.plot.head_markers import head_look
from cs_heads.units import Head
from tests.plot.looking import clipped, smallest

HEADS = (Head(2, 6), Head(6, 0), Head(3, 4))


def patterns(n_heads, n_tokens, seed):
    raw = np.tril(np.random.default_rng(seed).random((n_heads, n_tokens, n_tokens)) ** 4)
    return raw / raw.sum(axis=-1, keepdims=True)


def made(prompt="Cuba is Havana", tokens=("<s>", " Cuba", " is", " Hav", "ana"), off=HEADS) -> HeadAttention:
    n = len(tokens)
    ablated = patterns(3, n, 1) if off else None
    one = PromptAttention(prompt, tuple(tokens), tuple(range(n)), patterns(3, n, 0), ablated)
    return HeadAttention(HEADS, off, (one,))


def given(html: str) -> list[dict]:
    """What each view on the page is given to show."""
    return [
        json.loads(props) for props in re.findall(r"CircuitsVis\.AttentionHeads,\s*(\{.*?\})\s*\)\)</script>", html)
    ]


def test_circuitsvis_is_given_the_patterns_intact_and_beside_them_with_the_heads_off():
    attention = made()
    intact, off = given(show_attention(attention).html)
    assert intact["attentionHeadNames"] == off["attentionHeadNames"] == ["L2H6", "L6H0", "L3H4"]
    assert intact["tokens"] == ["<s>", "·Cuba", "·is", "·Hav", "ana"]
    np.testing.assert_allclose(intact["attention"], attention.prompts[0].intact, atol=6e-5)
    np.testing.assert_allclose(off["attention"], attention.prompts[0].ablated, atol=6e-5)
    assert "with L2H6, L6H0, L3H4 off" in show_attention(attention).html


def test_the_script_of_circuitsvis_comes_along_and_nothing_from_the_web():
    html = show_attention(made())._repr_html_()
    assert not re.search(r"""(src|href)=|https?://|unpkg""", html)
    packed = re.search(r"atob\('([^']+)'\)", load_script())[1]
    assert "CircuitsVis" in gzip.decompress(base64.b64decode(packed)).decode()[:100]
    assert len(html) < 600_000


def test_views_are_rendered_by_circuitsvis_itself(monkeypatch):
    """By its public call, and without asking for a network."""
    asked = []
    rendered = circuitsvis.attention.attention_heads

    def heads(attention, tokens, **options):
        asked.append((np.shape(attention), tokens, options["attention_head_names"]))
        return rendered(attention, tokens, **options)

    monkeypatch.setattr(circuitsvis.attention, "attention_heads", heads)
    monkeypatch.setattr(circuitsvis.utils.render, "internet_on", lambda: pytest.fail("asked the network"))
    show_attention(made())._repr_html_()
    names = ["L2H6", "L6H0", "L3H4"]
    assert asked[:2] == [((3, 5, 5), ["<s>", "·Cuba", "·is", "·Hav", "ana"], names)] * 2


def test_a_prompt_cannot_end_the_script():
    attention = made(tokens=("<s>", "</script><script>alert(1)</script>", "<!--"))
    html = show_attention(attention).html
    assert "alert(1)</script>" not in html
    assert given(html)[0]["tokens"][1:] == ["</script><script>alert(1)</script>", "<!--"]


@pytest.mark.parametrize("show", [show_attention, plot.attention, plot.last_token])
def test_a_prompt_that_is_not_there_is_refused(show):
    with pytest.raises(ValueError, match=r"prompt must be an integer in 0\.\.0, got 1"):
        show(made(), 1)


def test_every_pattern_is_drawn_above_intact_below_with_the_heads_off():
    attention = made()
    axes = plot.attention(attention)
    assert axes.shape == (2, 3)
    for row, expected in enumerate((attention.prompts[0].intact, attention.prompts[0].ablated)):
        for ax, pattern in zip(axes[row], expected, strict=True):
            np.testing.assert_array_equal(ax.images[0].get_array(), pattern)
    assert [ax.get_title() for ax in axes[0]] == ["L2H6", "L6H0", "L3H4"]
    assert [ax.get_title() for ax in axes[1]] == ["L2H6, off", "L6H0, off", "L3H4, off"]
    markers = [(line.get_marker(), line.get_color()) for ax in axes[0] for line in ax.get_lines()]
    assert markers == [(head_look(head).marker, head_look(head).color) for head in HEADS]
    assert clipped(axes[0, 0].figure) == []
    assert smallest(axes[0, 0].figure) >= 7
    plt.close(axes[0, 0].figure)


def test_the_last_token_is_drawn_head_by_head_intact_beside_off():
    attention = made()
    ax = plot.last_token(attention)
    one = attention.prompts[0]
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(shown[:, 2], one.intact[1, -1])
    np.testing.assert_array_equal(shown[:, 3], one.ablated[1, -1])
    np.testing.assert_allclose(shown.sum(axis=0), 1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["<s>", "·Cuba", "·is", "·Hav", "ana"]
    plt.close(ax.figure)


def long(n=600):
    return made(tokens=("<s>", *(f" word{number}" for number in range(1, n))))


def test_of_a_long_prompt_the_first_and_the_last_tokens_are_shown_and_one_in_place_of_the_others():
    view = show_attention(long())
    intact, _ = given(view.html)
    assert len(view.html) < 1_000_000
    assert len(intact["tokens"]) == 96
    assert intact["tokens"][:3] + intact["tokens"][-1:] == ["<s>", "[505·tokens]", "·word506", "·word599"]
    np.testing.assert_allclose(np.array(intact["attention"]).sum(axis=-1), 1, atol=0.01)
    last, pattern = np.array(intact["attention"])[:, -1], long().prompts[0].intact[:, -1]
    np.testing.assert_allclose(last[:, 0], pattern[:, 0], atol=6e-5)
    np.testing.assert_allclose(last[:, 1], pattern[:, 1:506].sum(axis=-1), atol=6e-5)
    np.testing.assert_allclose(last[:, 2:], pattern[:, 506:], atol=6e-5)


def test_of_a_long_prompt_the_tokens_are_drawn_that_the_last_one_looks_at_most():
    ax = plot.last_token(long(), max_tokens=20)
    shown, one = np.array(ax.images[0].get_array()), long().prompts[0]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    looked_at = np.maximum(one.intact[:, -1].max(axis=0), one.ablated[:, -1].max(axis=0))
    assert labels == [f"·word{at}" for at in sorted(np.argsort(-looked_at)[:20])] + ["[580 others]"]
    np.testing.assert_allclose(shown.sum(axis=0), 1)
    assert clipped(ax.figure) == []
    assert ax.figure.get_size_inches()[1] <= 9
    plt.close(ax.figure)
