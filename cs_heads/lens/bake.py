"""Units taken out of the weights, for good: a model without them, here or in a folder in Hugging Face form."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cs_heads.lens.abilities import tolerance
from cs_heads.lens.forward import sample_logits
from cs_heads.lens.model import WITHOUT, HookedModel, backend_of, check_ablatable, config_of, dtype_of
from cs_heads.lens.serialization import copied_model
from cs_heads.lens.tokens import as_loaded
from cs_heads.lens.weights import quiet_loading
from cs_heads.units import Grid, Unit, Units

# Kinds with output weights of their own. Those of an expert are packed with others', in a form of each architecture.
_BAKED: tuple[Units, ...] = ("heads", "kv", "attn", "mlp", "neurons")


def without_units(model: HookedModel, heads: Sequence[Unit], units: Units = "heads", *, in_place: bool = False) -> Any:
    """The model with the output weights of some units set to zero: what zero ablation of these gives, without a hook.

    Of a head these are its rows of W_O, so that its z reaches nothing; ``b_O`` stays. A neuron's are its row of the
    MLP's output weights; a whole attention or MLP layer's all of them, and the output bias.

    Args:
        model: The model.
        heads: The units.
        units: Their kind.
        in_place: Whether the model itself is changed; else it stays as it is, and a copy is.

    Returns:
        The model that was changed, in which ``lens.model.describe`` names the units.

    Raises:
        ValueError: Hooks on the model, units of a kind or weights of a form that cannot be taken out, or a model that
            does not run then as with the units ablated; nothing is changed.
    """
    named = ", ".join(map(str, heads))
    refused = f"{named} cannot be taken out of the weights of model {model.cfg.model_name}"
    if units not in _BAKED:
        raise ValueError(f"{refused}: units must be one of {', '.join(_BAKED)}, got {units!r}")
    # Permanent ones belong to the model; others would be baked in.
    if standing := [
        name for name, point in model.hook_dict.items() if not all(h.is_permanent for h in point.fwd_hooks)
    ]:
        raise ValueError(
            f"{refused}: hooks stand on it ({standing[0]}); leave their with block, or model.reset_hooks()"
        )
    grid = Grid.from_model(model, units)
    # Read first, so that nothing is copied or run for weights that cannot be changed.
    for head in heads:
        _output_weights(model, head.layer, units, refused)
    wanted = sample_logits(model, 1 - torch.from_numpy(grid.mask(heads)).float()[None], units)
    made, slices = model if in_place else copied_model(model), list[Tensor]()
    with torch.no_grad():
        for head in heads:
            rows, bias = _output_weights(made, head.layer, units, refused)
            slices.append(rows.unflatten(0, (grid.n_units, -1))[head.index])
            slices += [bias] if bias is not None and units in ("attn", "mlp") else []
        before = [one.clone() for one in slices]
        for one in slices:
            one.zero_()
        away = np.abs(sample_logits(made) - wanted).max()
        if not away <= tolerance(dtype_of(model)) * np.abs(wanted).max():
            for one, values in zip(slices, before, strict=True):
                one.copy_(values)
            raise ValueError(f"{refused}: without these weights it does not run as with them ablated")
    config = config_of(made)
    setattr(config, WITHOUT, sorted({*getattr(config, WITHOUT, ()), *map(str, heads)}))
    # That value biases were not folded is known of the model before, whose output biases may have changed now.
    check_ablatable(made, unfolded=True)
    return made


def check_can_save(model: HookedModel, path: Path) -> None:
    """Raise ``ValueError`` where ``save_plain`` could not write a model, or would write over one."""
    why = None
    if backend_of(model) != "bridge":
        why = "a HookedTransformer has no Hugging Face model to save; load a bridge (load_model(..., backend='bridge'))"
    elif getattr(model, "compatibility_mode", False):
        why = "its weights were processed (enable_compatibility_mode), and are not those of a Hugging Face model"
    if why is not None:
        raise ValueError(f"path must be left out for model {model.cfg.model_name}: {why}")
    if (path / "config.json").exists() or (path.exists() and not path.is_dir()):
        raise ValueError(f"path must be a new folder, or one without a model, got {str(path)!r}")


def save_plain(model: HookedModel, path: Path) -> None:
    """Write the Hugging Face model inside a bridge, and its tokenizer, as ``save_pretrained`` does.

    The bridge has put modules of its own into that model, which would be saved under their names: weights are written
    by the names that a model of the same class and configuration has.

    Args:
        model: A bridge.
        path: The folder.

    Raises:
        ValueError: What ``check_can_save`` refuses, or a model that lacks a weight which its class has.
    """
    check_can_save(model, path)
    inside = model.original_model
    held = {name.replace("_original_component.", ""): value for name, value in inside.state_dict().items()}
    with torch.device("meta"):
        plain = type(inside)(copy.deepcopy(inside.config))
    names = list(plain.state_dict())
    if missing := [name for name in names if name not in held]:
        raise ValueError(f"model {model.cfg.model_name} cannot be saved: it has no weight {missing[0]}")
    plain.load_state_dict({name: held[name] for name in names}, assign=True)
    plain.tie_weights()
    if hasattr(inside, "generation_config"):
        plain.generation_config = copy.deepcopy(inside.generation_config)
    tokenizer = getattr(model, "tokenizer", None)
    with quiet_loading():
        plain.save_pretrained(path)
        if tokenizer is not None:
            as_loaded(tokenizer).save_pretrained(path)


def _output_weights(model: Any, layer: int, units: Units, refused: str) -> tuple[Tensor, Tensor | None]:
    """What the units of a layer give is multiplied by, ``[unit * width, d_model]``, and the output bias; views."""
    block = model.blocks[layer]
    of_mlp = units in ("mlp", "neurons")
    if backend_of(model) == "hooked":
        weight: Any = block.mlp.W_out if of_mlp else block.attn.W_O
        rows, bias = weight.reshape(-1, weight.shape[-1]), (block.mlp.b_out if of_mlp else block.attn.b_O)
        plain = rows.data_ptr() == weight.data_ptr()
    else:
        component = getattr(block.mlp, "out", None) if of_mlp else getattr(block.attn, "o", None)
        linear = getattr(component, "original_component", None)
        weight = getattr(linear, "weight", None)
        bias = getattr(linear, "bias", None)
        # Quantized weights are no numbers to be zeroed; what adds to them, as adapters do, shows when the model is run.
        plain = isinstance(linear, torch.nn.Linear) or type(linear).__name__ == "Conv1D"
        # GPT-2's linear maps have their weights the other way round.
        rows = weight.T if isinstance(linear, torch.nn.Linear) else weight
    if not plain or not weight.is_floating_point() or weight.device.type == "meta":
        raise ValueError(f"{refused}: the output weights of layer {layer} are no plain matrix in memory")
    return rows, bias
