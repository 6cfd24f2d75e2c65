from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cs_heads import plot
from cs_heads.experiment.cost import Cost
from cs_heads.methods.gating.result import HeadGates
from cs_heads.plot.head_markers import head_look
from cs_heads.plot.style import ROLES
from cs_heads.units import Head


def made(plus, minus) -> HeadGates:
    plus, minus = np.array([plus], dtype=float), np.array([minus], dtype=float)
    return HeadGates(
        free=plus,
        plus=plus,
        minus=minus,
        losses=np.ones((3, 1, 2)),
        trajectory=np.ones((3, 1, 2, *plus.shape[1:])),
        at=np.arange(2),
        cost=Cost(1, 1),
        provenance={"task": {"name": "capitals"}},
    )


# L0H0 facilitates (kept open even when pushed shut), L0H1 interferes (shut even when pushed open), L1H0 does neither.
GATES = made(plus=[[1, 0], [1, 1]], minus=[[1, 0], [0, 0.3]])


@pytest.fixture
def ax():
    return plot.roles(GATES, Figure().subplots())


def signs_of(ax) -> dict:
    """Where each sign stands."""
    lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): line.get_xydata().tolist() for line in lines}


def test_blue_facilitates_orange_interferes_and_white_does_neither(ax):
    image = ax.images[0]
    (blue, orange), (white, pale) = image.to_rgba(image.get_array())[..., :3]
    assert blue == pytest.approx(to_rgb(ROLES["facilitation"][0]))
    assert orange == pytest.approx(to_rgb(ROLES["interference"][0]))
    assert white == pytest.approx((1, 1, 1), abs=0.01)
    assert blue[0] < pale[0] < 1


def test_clear_roles_carry_signs_so_that_nobody_needs_the_colors():
    ax = plot.roles(GATES, Figure().subplots(), k=0)
    assert signs_of(ax) == {"facilitation of 0.5 or more": [[0, 0]], "interference of 0.5 or more": [[1, 0]]}
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == list(signs_of(ax))


def test_a_head_that_does_one_in_some_seed_and_the_other_in_another_has_both_signs():
    plus, minus = np.ones((2, 2, 2)), np.zeros((2, 2, 2))
    minus[0, 1, 0], plus[1, 1, 0] = 1, 0
    losses, trajectory = np.ones((3, 2, 2)), np.ones((3, 2, 2, 2, 2))
    both = replace(GATES, free=plus, plus=plus, minus=minus, losses=losses, trajectory=trajectory)
    assert signs_of(plot.roles(both, Figure().subplots(), k=0)) == {"each in some seed": [[0, 1]]}


def test_the_first_heads_look_as_in_the_head_map(ax):
    looks = [(line.get_marker(), line.get_color()) for line in ax.get_lines() if line.get_label().startswith("_")]
    expected = [head_look(head) for head in (Head(0, 0), Head(1, 1))]
    assert looks == [(look.marker, look.color) for look in expected]
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()][:2] == ["1  L0H0  1.00", "2  L1H1  0.30"]
