"""GGUF files: weights de-quantized by transformers, with the configuration and the tokenizer that are inside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from cs_heads.lens.weights import WeightsError, read_model, refuse_weights

# Tables of rotary positions, which are no weights; of Llama 3.1 and later the only place that says how they are scaled.
_ROTARY = re.compile(r"rope_(freqs|factors_\w+)\.weight")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


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


@contextmanager
def _bar_as_of_transformers() -> Iterator[None]:
    """Show no bar where transformers is to show none: that of de-quantizing does not ask."""
    from transformers import modeling_gguf_pytorch_utils as module
    from transformers.utils import logging as bars

    shown = getattr(module, "tqdm", None)
    with ExitStack() as stack:
        if shown is not None and not bars.is_progress_bar_enabled():
            stack.callback(setattr, module, "tqdm", shown)
            module.tqdm = partial(shown, disable=True)
        yield


class GgufFile:
    """A GGUF file that transformers can read.

    Raises:
        ValueError: The package gguf is missing, the file is broken, or no causal language model of this architecture
            can be read.
    """

    def __init__(self, file: Path) -> None:
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise ValueError("GGUF files need the package gguf: install the extra cs-heads[gguf]") from error
        self._named = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
        self._reader = GGUFReader(file)
        self.architecture = str(self._field("general.architecture"))
        try:
            self.config = AutoConfig.from_pretrained(**self._named)
            self.config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.config.model_type]]
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ValueError(
                f"transformers {version('transformers')} reads no causal language model of architecture "
                f"{self.architecture!r} from GGUF ({error})"
            ) from error
        if getattr(self.config.get_text_config(), "num_attention_heads", None) is None:
            raise ValueError(f"a model of architecture {self.architecture!r} has no attention heads")
        self._scale_rotary_positions()

    def write_form(self, folder: Path) -> None:
        """Write the configuration and the tokenizer into a folder, in Hugging Face form: all but the weights."""
        from transformers import AutoTokenizer

        self.config.save_pretrained(folder)
        try:
            tokenizer = AutoTokenizer.from_pretrained(**self._named)
        except Exception as error:  # whatever a tokenizer is made of that transformers does not read
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"the tokenizer in the file, a model of architecture {self.architecture!r}, cannot be read: {reason}"
            ) from error
        tokenizer.save_pretrained(folder)

    def read_model(self, auto_class: Any, **options: Any) -> Any:
        """The model, de-quantized; ``options`` are those of transformers' ``from_pretrained``.

        Raises:
            WeightsError: The weights do not fit, as in ``weights.read_model``; here transformers does not say which
                of the file's weights it leaves unread, so they are counted.
        """
        try:
            from transformers import GgufConfig
        except ImportError:  # a version that always de-quantizes
            packed = {}
        else:
            packed = {"quantization_config": GgufConfig(dequantize=True)}
        with _bar_as_of_transformers():
            model = read_model(auto_class, **{"config": self.config, **options, **self._named, **packed})
        if getattr(model, "hf_quantizer", None) is not None:
            model.hf_quantizer.remove_quantization_config(model)
        self._refuse_unread(model)
        return model

    def _refuse_unread(self, model: Any) -> None:
        tensors = {tensor.name: int(tensor.n_elements) for tensor in self._reader.tensors}
        weights = {name: n for name, n in tensors.items() if not _ROTARY.fullmatch(name)}
        layer = re.compile(r"blk\.(\d+)\.")
        n_layers = self.config.get_text_config().num_hidden_layers
        beyond = [name for name in weights if (found := layer.match(name)) and int(found[1]) >= n_layers]
        refuse_weights(unexpected=beyond)
        # Tied weights are one tensor here as well as in the file, where they are stored once.
        read = sum({values.data_ptr(): values.numel() for values in model.state_dict().values()}.values())
        if sum(weights.values()) > read:
            raise WeightsError(
                f"the file holds {sum(weights.values()) - read:,} numbers that transformers {version('transformers')} "
                f"leaves unread of a model of architecture {self.architecture!r}"
            )

    def _scale_rotary_positions(self) -> None:
        """Take over how rotary positions are scaled, or refuse what transformers would leave out."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        given = self.config.rope_parameters if hasattr(self.config, "rope_parameters") else None
        if not given or given.get("rope_type") != "default":
            return
        kind = self._field(f"{self.architecture}.rope.scaling.type")
        tables = {tensor.name: tensor.data for tensor in self._reader.tensors if _ROTARY.fullmatch(tensor.name)}
        factors = tables.pop("rope_freqs.weight", None)
        fits = kind in (None, "none") and not tables
        if fits and factors is not None and (factors != 1).any():
            factor = float(factors.max())
            self.config.rope_parameters = {**given, **_LLAMA3, "rope_type": "llama3", "factor": factor}
            plain = given["rope_theta"] ** -(torch.arange(len(factors)) / len(factors))
            scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](self.config, "cpu")
            fits = len(scaled) == len(plain) and torch.allclose(scaled, plain / torch.tensor(factors), rtol=1e-3)
        if not fits:
            raise ValueError(
                f"the file scales its rotary positions ({kind or ', '.join([*tables, 'rope_freqs.weight'])}) in a way "
                f"that transformers {version('transformers')} does not read from GGUF"
            )

    def _field(self, name: str) -> Any:
        field = self._reader.get_field(name)
        return None if field is None else field.contents()
