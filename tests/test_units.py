import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_heads.units import Grid, Head, MLPLayer, Unit

grids = st.builds(Grid, st.integers(1, 12), st.integers(1, 12))


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_head_is_read_back_from_its_name(layer, head):
    assert Head.parse(str(Head(layer, head))) == Head(layer, head)


@pytest.mark.parametrize("text", ["", "L1", "H3", "l1h3", "L1H3x", "L-1H3", "1.3", "L1 H3"])
def test_what_is_no_name_of_a_head_is_refused(text):
    with pytest.raises(ValueError, match=r"is no head; heads are written like 'L16H21'"):
        Head.parse(text)


@given(grids)
def test_flat_index_and_head_are_inverse_over_the_whole_grid(grid):
    assert [grid.index(head) for head in grid] == list(range(grid.size))
    assert [grid.unit(index) for index in range(grid.size)] == list(grid)


@pytest.mark.parametrize("index", [-1, 12])
def test_an_index_outside_the_grid_is_refused(index):
    with pytest.raises(ValueError, match=rf"index must be an integer in 0\.\.11, got {index}"):
        Grid(3, 4).unit(index)


def test_a_head_is_taken_apart_like_a_pair():
    layer, head = Head(3, 4)
    assert (layer, head) == (Head(3, 4)[0], Head(3, 4)[1]) == tuple(Head(3, 4)) == (3, 4)


def test_a_head_may_be_written_in_three_ways():
    grid = Grid(3, 4)
    assert grid.resolve("L1H2") == grid.resolve((1, 2)) == grid.resolve(Head(1, 2)) == Head(1, 2)


@pytest.mark.parametrize("head", ["L3H0", (0, 4), Head(7, 7)])
def test_a_head_of_another_grid_is_refused(head):
    with pytest.raises(ValueError, match=r"is not in the grid: layers 0\.\.2, heads 0\.\.3"):
        Grid(3, 4).index(head)


def test_a_mask_is_true_where_a_head_is_ablated():
    mask = Grid(2, 3).mask(["L0H1", (1, 2)])
    assert mask.tolist() == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_model_has_one_head_a_query_head_also_under_gqa(load, architecture):
    assert Grid.from_model(load(architecture)) == Grid(3, 4)


def test_a_unit_of_another_kind_than_the_grid_is_named_with_both_kinds():
    with pytest.raises(ValueError, match=r"head L3H2 is not in the grid, which is of MLP layers, as L0MLP"):
        Grid(8, 1, "mlp").mask(["L3H2"])
    told = "key/value group L0KV0 is not in the grid, which is of heads, as L0H0; for key/value groups give units='kv'"
    with pytest.raises(ValueError, match=told):
        Grid(8, 16).index("L0KV0")


def test_a_layer_has_one_attention_and_one_mlp():
    with pytest.raises(ValueError, match=r"n_mlp must be an integer in 1\.\.1"):
        Grid(3, 5, "mlp")
    with pytest.raises(ValueError, match="index must be an integer in 0"):
        MLPLayer(3, 1)


@pytest.mark.parametrize("name", ["L16H21", "L3KV1", "L3ATTN", "L3MLP", "L3N512", "L3E7"])
def test_a_unit_is_made_from_its_name_by_its_own_kind(name):
    unit = Unit.parse(name)
    assert type(unit)(name) == unit
    assert str(type(unit)(name)) == name
    assert pickle.loads(pickle.dumps(unit)) == unit


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("L3MLP",), "text 'L3MLP' is no head; heads are written like 'L16H21'"),
        (("two",), "text 'two' is no head"),
        ((2,), "head must be an integer of 0 or more, got None"),
        (("L1H2", 3), "layer must be an integer of 0 or more, got 'L1H2'"),
    ],
)
def test_a_name_of_another_kind_or_half_a_head_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Head(*given)
