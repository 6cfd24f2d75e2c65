"""The independent way to a number: plain Hugging Face, one row at a time, no padding."""

from contextlib import contextmanager

import torch


def output_projections(model):
    """The module that takes the concatenated heads, by layer."""
    if hasattr(model, "transformer"):
        return [getattr(block.attn, "c_proj", None) or block.attn.attention.out_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]


@contextmanager
def heads_zeroed(model, mask):
    """Zero the input slices of the output projection that belong to the heads of ``mask`` [layer, head]."""

    def zero(row):
        def hook(module, arguments):
            x = arguments[0].clone()
            d_head = x.shape[-1] // len(row)
            for head in range(len(row)):
                if row[head]:
                    x[..., head * d_head : (head + 1) * d_head] = 0
            return (x, *arguments[1:])

        return hook

    handles = [
        projection.register_forward_pre_hook(zero(row))
        for projection, row in zip(output_projections(model), mask, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plain_score(model, prompt, target, mask):
    """Summed log-probability of ``target`` after ``prompt`` and whether each of its tokens is the argmax."""
    with heads_zeroed(model, mask), torch.no_grad():
        logits = model(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0].float()
    at = range(len(prompt) - 1, len(prompt) + len(target) - 1)
    logprobs = logits[list(at)].log_softmax(-1)
    picked = logprobs[range(len(target)), list(target)]
    return picked.sum().item(), bool((logprobs.argmax(-1) == torch.tensor(list(target))).all())
