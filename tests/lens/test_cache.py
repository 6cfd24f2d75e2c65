"""Stored keys and values take no more room than they need. Which they are: ``tests/engine``."""

import torch

from cs_heads.lens.cache import Extension, KeyValues


def test_a_prefix_shorter_than_others_stored_is_cut_to_its_own_width():
    keys = torch.tensor([[0.0, 0.0, 11.0], [21.0, 22.0, 23.0]])[:, None, :, None]
    past = KeyValues(keys[:, 0, :, 0] > 0, {0: (keys, -keys)})
    extension = Extension(torch.tensor([[1]]), past, torch.tensor([0]))
    longer, _ = extension.extend(0, torch.full((1, 1, 1, 1), 9.0), torch.zeros(1, 1, 1, 1))
    assert longer.flatten().tolist() == [11, 9]
    assert extension.n_past == 1
