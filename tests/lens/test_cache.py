"""Stored keys and values: which rows, which tokens, in which place."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cs_heads.lens.cache import Extension, KeyValues

LAYERS = (0, 2)


def stored(valid, first=1):
    """Keys that say which token they are: 10 × row + token number, and values that are their negatives."""
    valid = torch.tensor(valid, dtype=torch.bool)
    number = valid.cumsum(1) + 10 * torch.arange(first, first + len(valid))[:, None]
    keys = {layer: (number * valid + 0.5 * layer)[:, None, :, None].float() for layer in LAYERS}
    return KeyValues(valid, {layer: (key, -key) for layer, key in keys.items()})


def tokens_of(rows):
    """Per row the numbers that stand where ``valid`` says, from both layers and both sides, which must agree."""
    found = []
    for i, valid in enumerate(rows.valid):
        n = len(valid)
        (keys, values), (later_keys, later_values) = rows.layers[0], rows.layers[2]
        sides = [keys, -values, later_keys - 1, -later_values - 1]
        numbers = [side[i, 0, :n, 0][valid].tolist() for side in sides]
        assert numbers.count(numbers[0]) == len(numbers)
        found.append([int(number) for number in numbers[0]])
    return found


def right_aligned(rows):
    return bool((rows.valid[:, 1:] >= rows.valid[:, :-1]).all()) and bool(rows.valid[:, -1].all())


bits = st.lists(st.booleans(), min_size=5, max_size=5).map(lambda row: [*row, True])


@given(st.lists(bits, min_size=1, max_size=4))
def test_compact_rows_keep_their_tokens_in_order(valid):
    rows = stored(valid)
    before = tokens_of(rows)
    rows.compact()
    assert tokens_of(rows) == before
    assert right_aligned(rows)


@given(st.lists(bits, min_size=1, max_size=4), st.data())
def test_selected_rows_keep_their_first_tokens(valid, data):
    rows = stored(valid)
    chosen = data.draw(st.lists(st.integers(0, len(valid) - 1), min_size=1, max_size=5))
    lengths = [data.draw(st.integers(1, sum(valid[row]))) for row in chosen]
    before = tokens_of(rows)
    picked = rows.select(torch.tensor(chosen), torch.tensor(lengths))
    assert tokens_of(picked) == [before[row][:n] for row, n in zip(chosen, lengths, strict=True)]
    assert right_aligned(picked)
    assert tokens_of(rows) == before


def test_joined_rows_stand_one_after_another():
    parts = [stored([[False, True, True]]), stored([[True] * 5, [False, False, False, True, True]], first=4)]
    joined = KeyValues.joined(parts)
    assert tokens_of(joined) == [tokens for part in parts for tokens in tokens_of(part)]
    assert right_aligned(joined)


def test_rows_go_on_from_the_row_they_name():
    past = stored([[False, True, True], [True, True, True]])
    extension = Extension(torch.tensor([[1, 1], [1, 0], [1, 1]]), past, torch.tensor([1, 0, 0]), keep=True)
    new = torch.tensor([[91, 92], [93, 94], [95, 96]])[:, None, :, None].float()
    for layer in LAYERS:
        extension.extend(layer, new + 0.5 * layer, -new - 0.5 * layer)
    assert tokens_of(extension.finish()) == [[21, 22, 23, 91, 92], [11, 12, 93], [11, 12, 95, 96]]
    assert extension.n_layers_extended == len(LAYERS)


def test_a_prefix_shorter_than_others_stored_is_cut_to_its_own_width():
    past = stored([[False, False, True], [True, True, True]])
    extension = Extension(torch.tensor([[1]]), past, torch.tensor([0]))
    keys, _ = extension.extend(0, torch.full((1, 1, 1, 1), 9.0), torch.zeros(1, 1, 1, 1))
    assert keys.flatten().tolist() == [11, 9]
    assert extension.n_past == 1


def test_rows_grow_in_place_beyond_their_room():
    past = stored([[False, True], [True, True]])
    for step in range(5):
        extension = Extension(torch.ones(2, 1, dtype=torch.long), past, room=2)
        for layer in LAYERS:
            new = torch.tensor([90.0 + step, 50.0 + step])[:, None, None, None] + 0.5 * layer
            extension.extend(layer, new, -new)
        past = extension.finish()
    assert tokens_of(past) == [[11, 90, 91, 92, 93, 94], [21, 22, 50, 51, 52, 53, 54]]
