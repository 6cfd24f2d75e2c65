"""Gates and patches the plain way: Hugging Face, one row at a time, hooks on the output projection."""

from contextlib import contextmanager

import torch

from tests.plain import output_projections


@contextmanager
def z_changed(model, change):
    """Replace each layer's z ``[pos, head, d_head]`` by ``change(layer, z)``."""

    def hook_of(layer, n_heads):
        def hook(module, arguments):
            z = arguments[0][0].unflatten(-1, (n_heads, -1))
            return (change(layer, z).flatten(-2)[None], *arguments[1:])

        return hook

    n_heads = model.config.num_attention_heads
    handles = [
        projection.register_forward_pre_hook(hook_of(layer, n_heads))
        for layer, projection in enumerate(output_projections(model))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def last_logprobs(model, prompt):
    """Log-probabilities after the last token of a prompt."""
    return model(torch.tensor([list(prompt)]), use_cache=False).logits[0, -1].log_softmax(-1)


def gated_nll(model, prompt, target, gates):
    """Mean negative log-probability of the target's tokens with z times ``gates`` [layer, head]."""
    with z_changed(model, lambda layer, z: z * gates[layer][:, None]):
        logits = model(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0]
    at = torch.arange(len(prompt) - 1, len(prompt) + len(target) - 1)
    return -logits[at].log_softmax(-1)[torch.arange(len(target)), torch.tensor(list(target))].mean()
