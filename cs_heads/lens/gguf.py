"""GGUF files: read by transformers, de-quantized, with the configuration and the tokenizer that are inside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cs_heads.lens.weights import WeightsError, read_model

# How Llama 3.1 and later scale rotary positions, but for the factor.
_LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that a path names: the file itself, or the only one in a folder that has no other weights.

    Raises:
        ValueError: The file does not exist, or the folder has several.
    """
    if path.suffix.lower() == ".gguf" and not path.exists():
        raise ValueError(f"model file {str(path)!r} does not exist")
    if path.is_file():
        return path if path.suffix.lower() == ".gguf" else None
    if not path.is_dir() or any(path.glob("*.safetensors")) or any(path.glob("*.bin")):
        return None
    files = sorted(found for found in path.iterdir() if found.suffix.lower() == ".gguf")
    if len(files) > 1:
        names = ", ".join(found.name for found in files)
        raise ValueError(f"model folder {str(path)!r} has {len(files)} GGUF files ({names}): name one of them")
    return files[0] if files else None


def unpack(file: Path, folder: Path) -> Callable[..., Any]:
    """Write what a GGUF file has beside weights into a folder, in Hugging Face form; gives what reads the weights."""
    from transformers import AutoConfig, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = _named(file)
    config = AutoConfig.from_pretrained(**named)
    _scale_rotary(file, config)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**named).save_pretrained(folder)
    return partial(_read, file, config)


def _scale_rotary(file: Path, config: Any) -> None:
    """Put into a configuration what a file has as a table alone, which transformers leaves out: Llama 3.1's scales.

    Of the rule that makes them one number is known from the table, and the others are those of all Llamas so far: a
    table that they do not make is left out, and refused.
    """
    from gguf import GGUFReader
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    tables = [tensor.data for tensor in GGUFReader(file).tensors if tensor.name == "rope_freqs.weight"]
    rotary = getattr(config, "rope_parameters", None) or {}
    if not tables or (tables[0] == 1).all() or rotary.get("rope_type", "default") != "default":
        return
    scaled = copy.deepcopy(config)
    scaled.rope_parameters = {**rotary, **_LLAMA_3, "factor": float(tables[0].max())}
    made, _ = ROPE_INIT_FUNCTIONS["llama3"](scaled, torch.device("cpu"))
    places = torch.arange(len(made)) / len(made)
    if len(made) == len(tables[0]) and torch.allclose(
        rotary["rope_theta"] ** -places / torch.from_numpy(tables[0].copy()), made, rtol=1e-4, atol=0
    ):
        config.rope_parameters = scaled.rope_parameters


def _named(file: Path) -> dict[str, Any]:
    """How transformers is told of a file."""
    return {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}


def _read(file: Path, own: Any, auto_class: Any, **options: Any) -> Any:
    """``weights.read_model`` of a GGUF file, of which transformers does not say what it leaves unread."""
    import transformers

    if hasattr(transformers, "GgufConfig"):  # others always de-quantize
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = read_model(auto_class, **{"config": own, **options, **_named(file)})
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    _check_read_whole(file, model)
    return model


def _check_read_whole(file: Path, model: Any) -> None:
    """Raise ``WeightsError`` for a file that holds more numbers than a model, or scales rotary positions otherwise."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    scales = rotary.get("rope_type", "default")
    # A table of ones scales nothing, and that of Llama 3 stands in the configuration.
    held = sum(
        int(tensor.n_elements)
        for tensor in reader.tensors
        if not (tensor.name.startswith("rope_") and (scales == "llama3" or (tensor.data == 1).all()))
    )
    # Tied weights are one tensor here as well as in the file, where they are stored once.
    read = sum({values.data_ptr(): values.numel() for values in model.state_dict().values()}.values())
    if held > read:
        raise WeightsError(
            f"the file holds {held - read:,} numbers that transformers leaves unread: weights, or scales of rotary "
            "positions. Load the model in Hugging Face form"
        )
    kinds = [field.contents() for name, field in reader.fields.items() if name.endswith(".rope.scaling.type")]
    kind = kinds[0] if kinds else "none"
    if kind != "none" and scales == "default":
        raise WeightsError(
            f"the file scales rotary positions ({kind}), which transformers leaves out. "
            "Load the model in Hugging Face form"
        )
