"""What cs-heads needs to know of a TransformerLens model, and the faults it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch

from cs_heads.lens.locks import alone
from cs_heads.lens.quantized import why_not_ablatable
from cs_heads.units import Grid, Units

Backend = Literal["bridge", "hooked"]

HALF = (torch.bfloat16, torch.float16)
"""Dtypes whose rounding may be as large as what a head does."""

# GPT-Neo has an output bias but no value bias, and HookedTransformer fills the missing one with zeros.
_NO_VALUE_BIAS = "GPTNeoForCausalLM"

# On a configuration, of Hugging Face where there is one: units that were taken out of the weights (``bake``).
WITHOUT = "cs_heads_without"

# On a model: output biases that are its own, though its value biases are zero.
_OWN_OUTPUT_BIASES = "_cs_heads_own_output_biases"


@runtime_checkable
class HookedModel(Protocol):
    """What cs-heads asks of a TransformerLens model: true of ``HookedTransformer`` and ``TransformerBridge``.

    At run time ``cfg`` alone is looked for: a bridge computes its ``hook_dict`` anew whenever it is asked.
    """

    cfg: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What both classes have, and the modules of this one."""

        def __call__(self, tokens: torch.Tensor, **options: Any) -> Any:
            """Logits, ``[batch, pos, vocab]``."""


class FoldedValueBiasesError(ValueError):
    """The model's value biases were folded into ``b_O``, where ablating a head cannot reach them."""


ModelDescription = dict[str, Any]
"""The model's part of the provenance of a result: name, revision, dtype, class, grid, versions of libraries.

``weights`` is their fingerprint (None: not all are in memory), ``without`` are units that were taken out of them, and
``hooks`` the places where hooks of others stood.
"""


ModelSettings = dict[str, Any]
"""What a model does with its weights: by field its configurations, as JSON.

``cfg`` is that of TransformerLens, ``config`` that of Hugging Face, and ``buffers`` a hash of all buffers.
"""


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """A model that is in another process: it takes the model's place where texts are tokenized and results labeled.

    It has no weights and cannot be run.

    Attributes:
        cfg: Of its TransformerLens configuration what is asked for away from the model: its shape and name.
        tokenizer: Its tokenizer.
        description: What ``describe`` says.
        end_tokens: Tokens that end a text.
        fingerprint: A hash of its weights.
        settings: What ``settings_of`` says.
        device: Its kind of device.
    """

    cfg: SimpleNamespace
    tokenizer: Any
    description: ModelDescription
    end_tokens: frozenset[int]
    fingerprint: str
    settings: ModelSettings
    device: str


def backend_of(model: Any) -> Backend:
    """``"bridge"`` or ``"hooked"``, by the names of the model's classes; another object raises ``ValueError``.

    By name, because ``HookedTransformer`` cannot be imported, nor even asked for, on TransformerLens 4.
    """
    names = {cls.__name__ for cls in type(model).__mro__}
    if "TransformerBridge" in names:
        return "bridge"
    if "HookedTransformer" in names:
        return "hooked"
    raise ValueError(
        f"model must be a TransformerLens HookedTransformer or TransformerBridge, got {type(model).__name__}"
    )


def check_ablatable(model: Any, unfolded: bool = False) -> None:
    """Raise ``ValueError`` where heads of this model cannot be ablated rightly.

    Refused are an object of another class, a model that does not read left to right, one without ``hook_z`` in some
    layer, packed weights of a kind not tried (``lens.quantized``), and folded value biases
    (``FoldedValueBiasesError``): zeroing z leaves a folded ``b_V W_O`` standing. An ``ModelInfo`` was checked where its
    model is.

    Folded ones are all zero, as those of a model may be that never had any, and no model tells by itself: ``unfolded``
    vouches for its output biases as they are now. That is remembered, and what is folded later is seen.
    """
    if isinstance(model, ModelInfo):
        return
    backend_of(model)
    if not _reads_left_to_right(model):
        raise ValueError(f"model {model.cfg.model_name} must be a causal language model, which reads left to right")
    if missing := _without_point(model, "heads"):
        raise ValueError(f"model {model.cfg.model_name} has {missing}: its heads cannot be ablated there")
    if packed := why_not_ablatable(model):
        remedy = "load it in bfloat16, or as a bridge, by bitsandbytes in 4 bits"
        raise ValueError(f"model {model.cfg.model_name} is not supported: {packed}; {remedy}")
    if not _value_biases_are_folded(model):
        return
    if not unfolded:
        raise FoldedValueBiasesError(
            "model has its value biases folded into b_O (fold_value_biases, the default of TransformerLens): ablating "
            "a head would leave its value bias standing and every score would be wrong. Load it with "
            "cs_heads.load_model, or with fold_value_biases=False. If its value biases are zero by themselves, say so "
            "once: cs_heads.load_model(model, unfolded=True)"
        )
    model.__dict__[_OWN_OUTPUT_BIASES] = [bias.to("cpu", copy=True) for bias in _output_biases(model)]


_HOOKS: dict[Units, str] = {
    "heads": "attn.hook_z",
    "kv": "attn.hook_z",
    # What is added to the residual stream, after the norms that Gemma 2 has there.
    "attn": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "neurons": "mlp.hook_post",
    "experts": "mlp.hook_expert_weights",
}


def hook_name(layer: int, units: Units = "heads") -> str:
    """The hook point of a layer where units of a kind are gated: ``hook_z`` for heads."""
    return f"blocks.{layer}.{_HOOKS[units]}"


def hook_names(model: HookedModel, units: Units = "heads") -> list[str]:
    """The hook point of every layer, in order, where units of a kind are gated."""
    return [hook_name(layer, units) for layer in range(model.cfg.n_layers)]


def check_units(model: HookedModel | ModelInfo, units: Units) -> None:
    """Raise ``ValueError`` where a model has no hook point for units of a kind in some layer, or one of others."""
    if isinstance(model, ModelInfo):
        return
    missing = _without_point(model, units)
    whys = {"kv": _why_no_groups, "neurons": _why_no_neurons, "experts": _why_no_experts}
    why = f"it has {missing}" if missing else whys[units](model) if units in whys else None
    if why is not None:
        raise ValueError(f"units must not be {units!r} for model {model.cfg.model_name}: {why}")


def _without_point(model: HookedModel, units: Units) -> str | None:
    """Which hook point a model lacks where units are gated, in words."""
    points = model.hook_dict
    missing = [name for name in hook_names(model, units) if name not in points]
    many = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"no hook point {missing[0]}{many}" if missing else None


def _why_no_groups(model: HookedModel) -> str | None:
    """Layers of a bridge may have other numbers of key/value heads than its configuration says."""
    n_groups = Grid.from_model(model, "kv").n_units
    for layer, block in enumerate(model.blocks):
        attn = getattr(block, "attn", None)
        # Values are as wide as z; Gemma 4 may have keys alone.
        keys = _width(getattr(attn, "v", None) or getattr(attn, "k", None), 1)
        z = _width(getattr(attn, "o", None), 0)
        if keys is not None and z is not None and keys * model.cfg.n_heads != n_groups * z:
            n = keys * model.cfg.n_heads / z
            return f"layer {layer} has {n:g} key/value heads, and its configuration says {n_groups}"
    return None


def _why_no_neurons(model: HookedModel) -> str | None:
    """On a bridge ``mlp.hook_post`` of a mixture of experts is something else than neurons."""
    points, on_bridge = model.hook_dict, backend_of(model) == "bridge"
    mixture = bool(getattr(model.cfg, "num_experts", None))
    for layer, (name, block) in enumerate(zip(hook_names(model, "neurons"), model.blocks, strict=True)):
        read_by = getattr(getattr(getattr(block, "mlp", None), "out", None), "hook_in", None)
        if on_bridge and read_by is None and not mixture:
            return f"the MLP of layer {layer} does not show its output weights"
        if points[name] is not read_by if on_bridge else mixture:
            return f"the MLP of layer {layer} has no neurons of its own, as a mixture of experts"
    return None


def _why_no_experts(model: HookedModel) -> str | None:
    """On a HookedTransformer the hook point comes before the choice: one of weight zero makes room for another."""
    if backend_of(model) == "hooked":
        return "an expert off gives its place to another in a HookedTransformer; load a bridge"
    chosen = getattr(model.cfg, "experts_per_token", None)
    # Their weights come in the order of their size then, and not in that of the experts.
    return f"all of its {chosen} experts are chosen for every token" if chosen == model.cfg.num_experts else None


def _width(component: Any, out: int) -> int | None:
    """What a linear map of a bridge takes or (``out``) gives: numbers a token; None where it is no such map."""
    linear = getattr(component, "original_component", None)
    # GPT-2's have other names.
    names = ("out_features", "nf") if out else ("in_features", "nx")
    return next((getattr(linear, name) for name in names if hasattr(linear, name)), None)


def device_of(model: HookedModel | torch.nn.Module) -> torch.device:
    """Where tokens go: the device of the first parameter."""
    return next(model.parameters()).device


def devices_of(model: HookedModel) -> list[torch.device]:
    """Every device that holds some of the weights, in their order."""
    return list(dict.fromkeys(parameter.device for parameter in model.parameters()))


def dtype_of(model: HookedModel) -> torch.dtype:
    """The dtype of the weights; ``cfg.dtype`` may say float32 for bfloat16 weights."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def largest_number(model: HookedModel) -> float:
    """The largest finite number of the dtype of the weights."""
    return float(torch.finfo(dtype_of(model)).max)


def context_length(model: HookedModel | ModelInfo) -> int | None:
    """The most tokens the model takes, where it says so, each text as by itself.

    Where rotary angles are others in long texts, transformers chooses by the longest of a batch: none is longer here.
    """
    config = getattr(getattr(model, "original_model", None), "config", None)
    short = [
        rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for rope in ropes(config)
        if rope_type(rope) == "longrope"
    ]
    limits = [n for n in (getattr(model.cfg, "n_ctx", None), *short) if n is not None]
    return min(limits, default=None)


def ropes(config: Any) -> list[Mapping[str, Any]]:
    """The rotary settings of a Hugging Face configuration: one, or one for each kind of layer."""
    text = config if config is None else config.get_text_config()
    given = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return [each for each in given.values() if isinstance(each, Mapping)] or [given]


def rope_type(rope: Mapping[str, Any]) -> str:
    """The kind of rotary settings."""
    return rope.get("rope_type") or rope.get("type") or "default"


def vocabularies(model: HookedModel | ModelInfo) -> tuple[int, int]:
    """How many tokens the model reads, and how many it answers with: a model over integers may have fewer of these."""
    n_in = int(model.cfg.d_vocab)
    said = int(getattr(model.cfg, "d_vocab_out", None) or -1)
    n_out = said if said > 0 else n_in
    # A head that was put in by hand is in no configuration.
    weight = getattr(getattr(getattr(model, "unembed", None), "original_component", None), "weight", None)
    return n_in, n_out if weight is None or weight.ndim != 2 else min(n_out, len(weight))


def tokenizer_of(model: Any) -> Any:
    """The model's tokenizer; None where it has none, or one with special tokens alone.

    transformers makes up such a one for a folder without any.
    """
    tokenizer: Any = getattr(model, "tokenizer", None)
    special = getattr(tokenizer, "all_special_ids", None)
    return tokenizer if special is None or len(tokenizer) > len(set(special)) else None


def end_tokens(model: HookedModel | ModelInfo) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of the model's generation settings."""
    if isinstance(model, ModelInfo):
        return model.end_tokens
    settings = getattr(getattr(model, "original_model", None), "generation_config", None)
    listed = getattr(settings, "eos_token_id", None)
    listed = listed if isinstance(listed, list | tuple) else [listed]
    own = getattr(tokenizer_of(model), "eos_token_id", None)
    return frozenset(int(token) for token in (own, *listed) if token is not None)


def without_place(name: str) -> str:
    """The name of a model; of a path the file or folder alone, which may lie elsewhere on another machine.

    >>> without_place("models/tiny/"), without_place("gpt2")
    ('tiny', 'gpt2')
    """
    return name.rstrip("/").rsplit("/", 1)[-1]


def config_inside(model: HookedModel) -> Any:
    """The configuration of the Hugging Face model inside a bridge; None where there is none."""
    return getattr(getattr(model, "original_model", None), "config", None)


def config_of(model: HookedModel) -> Any:
    """The configuration of the Hugging Face model inside, which goes where its weights go; else TransformerLens's."""
    return config_inside(model) or model.cfg


@contextmanager
def evaluating(model: HookedModel) -> Iterator[None]:
    """Run the model without dropout and gradients; modules in train mode are put back into it."""
    with alone(model), torch.no_grad():
        training = [module for module in model.modules() if module.training]
        if training:
            model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def replaced_forwards(pairs: Iterable[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Give modules other forwards inside the ``with`` block; those that accelerate put there come back at the end."""
    with ExitStack() as stack:
        for module, forward in pairs:
            attributes = module.__dict__
            if "forward" in attributes:
                stack.callback(attributes.__setitem__, "forward", attributes["forward"])
            else:
                stack.callback(attributes.pop, "forward", None)
            attributes["forward"] = forward
        yield


def _reads_left_to_right(model: HookedModel) -> bool:
    # TransformerLens 3.9 has attention_dir "causal" for BERT too: the Hugging Face model inside says more.
    masked = "MaskedLM" in type(getattr(model, "original_model", None)).__name__
    both_ways = masked or bool(getattr(config_inside(model), "is_encoder_decoder", False))
    return not both_ways and getattr(model.cfg, "attention_dir", "causal") == "causal"


def _value_biases_are_folded(model: HookedModel) -> bool:
    cfg, biases, output = model.cfg, [_value_bias(block.attn) for block in model.blocks], _output_biases(model)
    neo = backend_of(model) == "hooked" and cfg.original_architecture == _NO_VALUE_BIAS
    if neo and cfg.normalization_type == "LN":  # unprocessed
        return False
    if any(value is None or bool(value.any()) for value in biases) or not any(bool(bias.any()) for bias in output):
        return False
    own = model.__dict__.get(_OWN_OUTPUT_BIASES, [])
    return len(own) != len(output) or not all(map(_is_cast, output, own))


def _value_bias(attention: Any) -> torch.Tensor | None:
    """None where there is none."""
    try:
        return getattr(attention, "b_V", None)
    except NotImplementedError:  # of a bridge whose attention has no value matrix
        return None


def _output_biases(model: HookedModel) -> list[torch.Tensor]:
    """By layer, where there are some."""
    biases = [getattr(block.attn, "b_O", None) for block in model.blocks]
    return [bias.detach() for bias in biases if bias is not None]


def _is_cast(values: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether values are what they were, as far as casts to coarser dtypes leave it."""
    now = values.to("cpu")
    by_way_of = product((own.dtype, now.dtype, *HALF), repeat=2)
    return now.shape == own.shape and any(torch.equal(now, own.to(a).to(b).to(now.dtype)) for a, b in by_way_of)
