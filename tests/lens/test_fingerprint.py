"""The fingerprint tells weights apart, and nothing else."""

import pytest
import torch

from cs_heads.lens import fingerprint, load_model


class Weights(torch.nn.Module):
    """Parameters of any shapes."""

    def __init__(self, *tensors):
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_parameter(f"w{number}", torch.nn.Parameter(tensor, requires_grad=False))


def test_the_same_weights_loaded_again_have_the_same_fingerprint_and_any_changed_weight_another(folders, load, backend):
    model, again = load_model(folders("llama"), device="cpu", backend=backend), load("llama", backend)
    seen = {fingerprint(model)}
    assert seen == {fingerprint(again)}
    assert len(fingerprint(again)) == 16
    for parameter in model.parameters():
        # Through .data, which torch itself does not notice; by the least there is.
        flat = parameter.data.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf))
        seen.add(fingerprint(model))
    assert len(seen) == 1 + len(list(model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_are_told_apart_by_bits_place_shape_and_dtype(dtype):
    weights = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights[2, 2] = 0.0
    turned, exchanged = weights.clone(), weights.clone()
    turned[2, 2] = -0.0  # of equal value, not of equal bits
    exchanged[[1, 4]] = exchanged[[4, 1]]
    others = [(turned,), (exchanged,), (weights.view(8, 6),), (weights.half(),), (weights[:3], weights[3:])]
    one_value = [(torch.tensor(1.0, dtype=dtype),), (torch.empty(0, 4, dtype=dtype),)]
    every = [(weights,), *others, *one_value]
    assert len({fingerprint(Weights(*one)) for one in every}) == len(every)


def test_how_weights_lie_in_memory_does_not_matter():
    plain = torch.randn(6, 5)
    shifted = torch.empty(31)[1:]
    shifted.copy_(plain.view(-1))
    for laid in (plain.T.contiguous().T, shifted.view(6, 5)):
        assert fingerprint(Weights(laid)) == fingerprint(Weights(plain))


def test_weights_that_are_not_in_memory_are_refused():
    with pytest.raises(ValueError, match=r"weights that are not in memory \(w0 is on the meta device\)"):
        fingerprint(Weights(torch.empty(3, device="meta")))
