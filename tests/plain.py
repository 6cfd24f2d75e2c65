"""The independent way to a number: plain Hugging Face, one row at a time, no padding."""

from contextlib import ExitStack, contextmanager, nullcontext

import torch


def output_projections(model):
    """The module that takes the concatenated heads, by layer."""
    if hasattr(model, "transformer"):
        return [getattr(block.attn, "c_proj", None) or block.attn.attention.out_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]


def plain_score(model, prompt, target, mask=None):
    """Summed log-probability of ``target`` after ``prompt`` and whether each of its tokens is the argmax."""
    with nullcontext() if mask is None else units_replaced(model, "heads", mask), torch.no_grad():
        logits = model(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0].float()
    at = range(len(prompt) - 1, len(prompt) + len(target) - 1)
    logprobs = logits[list(at)].log_softmax(-1)
    picked = logprobs[range(len(target)), list(target)]
    return picked.sum().item(), bool((logprobs.argmax(-1) == torch.tensor(list(target))).all())


def parts_of(model):
    """By layer: the attention's output projection, what the attention adds, what the MLP adds, and its output weights.

    What is added is the norm after attention or MLP where there is one, as in Gemma 2.
    """
    if hasattr(model, "transformer"):
        return [
            (out, block.attn, block.mlp, block.mlp.c_proj)
            for out, block in zip(output_projections(model), model.transformer.h, strict=True)
        ]
    parts = []
    for layer in model.model.layers:
        gemma2 = hasattr(layer, "pre_feedforward_layernorm")
        added = layer.post_attention_layernorm if gemma2 else layer.self_attn
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
        added_by_mlp = layer.post_feedforward_layernorm if gemma2 else mlp
        parts.append((layer.self_attn.o_proj, added, added_by_mlp, getattr(mlp, "down_proj", None)))
    return parts


@contextmanager
def hooks(pairs):
    """Put each hook by its ``module.register_...``, and remove all at the end."""
    with ExitStack() as stack:
        for register, hook in pairs:
            stack.callback(register(hook).remove)
        yield


def units_replaced(model, units, mask, values=None, where=None):
    """In a ``with`` block put ``values[layer][unit]`` (None: zeros) for what units of ``mask`` [layer, unit] give.

    ``where`` are the positions at which they are off (None: all). Tensors are changed by hand: slices of the input of
    the attention's output projection (heads, key/value groups) or of the MLP's (neurons), or all that a layer adds.
    A value is ``[width]``, or ``[pos, width]``.
    """

    def changed(layer, tensor):
        row, cut = mask[layer], tensor.clone()
        width = 1 if units == "neurons" else tensor.shape[-1] // len(row)
        at = range(tensor.shape[1]) if where is None else [i for i in where if i < tensor.shape[1]]
        for unit in range(len(row)):
            if row[unit]:
                value = 0 if values is None else values[layer][unit]
                value = value[list(at)] if values is not None and value.ndim == 2 else value
                cut[:, at, unit * width : (unit + 1) * width] = value
        return cut

    return hooked_units(model, units, changed)


def hooked_units(model, units, changed):
    """In a ``with`` block let ``changed(layer, tensor)`` change what units give in every layer, all in one tensor."""

    def before(layer):
        return lambda module, arguments: (changed(layer, arguments[0]), *arguments[1:])

    def after(layer):
        def hook(module, arguments, output):
            if isinstance(output, tuple):
                return (changed(layer, output[0]), *output[1:])
            return changed(layer, output)

        return hook

    place = {"heads": 0, "kv": 0, "attn": 1, "mlp": 2, "neurons": 3}[units]
    modules = [parts[place] for parts in parts_of(model)]
    if units in ("attn", "mlp"):
        return hooks([(module.register_forward_hook, after(layer)) for layer, module in enumerate(modules)])
    return hooks([(module.register_forward_pre_hook, before(layer)) for layer, module in enumerate(modules)])


def experts_removed(model, mask, where=None):
    """In a ``with`` block take what experts of ``mask`` [layer, expert] add out of what all of their layer add.

    An expert by itself: all of them run once more with every other one's weight at zero.
    """

    def alone(experts, row, states, indices, weights):
        at = torch.arange(len(states)) if where is None else torch.tensor([i for i in where if i < len(states)])
        off = torch.zeros(len(states), 1, dtype=torch.bool)
        off[at] = True
        gone = off & torch.tensor(row)[indices]
        return experts.forward(states, indices, weights * gone)

    def hook(row):
        return lambda experts, arguments, output: output - alone(experts, row, *arguments)

    rows = zip(model.model.layers, mask, strict=True)
    return hooks([(layer.mlp.experts.register_forward_hook, hook(row)) for layer, row in rows])


def units_given(model, units, tokens, n_units):
    """What units give at each token: ``[layer, pos, unit, width]``."""
    given = {}

    def keep(layer, tensor):
        given[layer] = tensor[0].reshape(len(tokens), n_units, -1).clone()
        return tensor

    with hooked_units(model, units, keep), torch.no_grad():
        model(torch.tensor([list(tokens)]), use_cache=False)
    return torch.stack([given[layer] for layer in sorted(given)])


def plain_logprob(model, prompt, target):
    """Mean log-probability of ``target`` after ``prompt`` (nats per token)."""
    return plain_score(model, prompt, target)[0] / len(target)


def plain_text(model, prompt, finished):
    """Greedy decoding that runs the whole text again for every token."""
    text = []
    with torch.no_grad():
        while not finished(text):
            logits = model(torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, -1]
            text.append(int(logits.argmax()))
    return tuple(text)


def z_changed(model, change):
    """Replace each layer's z ``[pos, head, d_head]`` by ``change(layer, z)`` inside a ``with`` block."""
    shape = (model.config.num_attention_heads, -1)
    return hooked_units(model, "heads", lambda layer, x: change(layer, x[0].unflatten(-1, shape)).flatten(-2)[None])


def last_logprobs(model, prompt):
    """Log-probabilities after the last token of a prompt."""
    return model(torch.tensor([list(prompt)]), use_cache=False).logits[0, -1].log_softmax(-1)


def gated_nll(model, prompt, target, gates):
    """Mean negative log-probability of the target's tokens with z times ``gates`` [layer, head]."""
    with z_changed(model, lambda layer, z: z * gates[layer][:, None]):
        logits = model(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0]
    at = torch.arange(len(prompt) - 1, len(prompt) + len(target) - 1)
    return -logits[at].log_softmax(-1)[torch.arange(len(target)), torch.tensor(list(target))].mean()
