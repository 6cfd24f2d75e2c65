"""The fingerprint tells weights apart, and nothing else."""

import pytest
import torch

from cs_heads.lens import fingerprint, load_model
from tests.tiny import save_model


class Weights(torch.nn.Module):
    """Parameters of any shapes."""

    def __init__(self, *tensors):
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_parameter(f"w{number}", torch.nn.Parameter(tensor, requires_grad=False))


def some_weights(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    # One of odd length: bytes are left over from the words of eight; one longer than a chunk.
    shapes = [(3, 5), (7,), (), (1025, 1027), (0, 4)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def test_the_same_weights_loaded_again_have_the_same_fingerprint(backend, tmp_path):
    folder = save_model("llama", tmp_path / "one")
    first, again = (fingerprint(load_model(folder, device="cpu", backend=backend)) for _ in range(2))
    assert first == again
    assert len(first) == 16
    other = load_model(save_model("llama", tmp_path / "two", seed=1), device="cpu", backend=backend)
    assert fingerprint(other) != first


def test_any_changed_weight_changes_it(backend, tmp_path):
    model = load_model(save_model("llama", tmp_path), device="cpu", backend=backend)
    seen = {fingerprint(model)}
    for parameter in model.parameters():
        # Through .data, which torch itself does not notice; by the least there is.
        flat = parameter.data.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf))
        seen.add(fingerprint(model))
    assert len(seen) == 1 + len(list(model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_single_weight_counts(dtype):
    plain = fingerprint(Weights(*some_weights(dtype)))
    for tensor, places in ((0, range(15)), (1, range(7)), (2, [0]), (3, [0, 1, 524_288, 1_048_577, -2, -1])):
        for place in places:
            weights = some_weights(dtype)
            flat = weights[tensor].view(-1)
            flat[place] = -flat[place]
            assert fingerprint(Weights(*weights)) != plain


def negated_column(weights):
    weights[:, 3] *= -1


def two_signs(weights):
    weights[0, 1] *= -1
    weights[4, 5] *= -1


def exchanged_words(weights):
    """Eight bytes for eight bytes, whatever the dtype."""
    words = weights.view(torch.int64)
    words[:, [0, 1]] = words[:, [1, 0]]


def exchanged_rows(weights):
    weights[[1, 4]] = weights[[4, 1]]


def zeros_turned(weights):
    """+0.0 becomes -0.0: of equal value, not of equal bits."""
    weights[weights == 0] *= -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", [negated_column, two_signs, exchanged_words, exchanged_rows, zeros_turned])
def test_changes_that_a_sum_could_balance_are_seen(change, dtype):
    """Signs, in pairs and by the column, are the highest bits of words; their changes add up to nothing."""
    for seed in range(5):
        weights = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)
        weights[2, 2] = weights[3, 6] = 0.0
        plain = fingerprint(Weights(weights.clone()))
        change(weights)
        assert fingerprint(Weights(weights)) != plain


def test_how_weights_lie_in_memory_does_not_matter():
    plain = torch.randn(6, 5)
    shifted = torch.empty(31)[1:]
    shifted.copy_(plain.view(-1))
    for laid in (plain.T.contiguous().T, shifted.view(6, 5)):
        assert fingerprint(Weights(laid)) == fingerprint(Weights(plain))


def test_weights_that_are_not_in_memory_are_refused():
    with pytest.raises(ValueError, match=r"weights that are not in memory \(w0 is on the meta device\)"):
        fingerprint(Weights(torch.empty(3, device="meta")))
