"""Weights as transformers reads them: all of them, each of the right shape, finite, and nothing beside them."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

# Buffers that old checkpoints carry: causal masks, rotary tables, position numbers. None of them was learned.
_BUFFER = re.compile(r"(^|\.)(masked_bias|causal_mask|(attn|attention)\.bias|position_ids|inv_freq|rotary_emb\.\w+)$")

# Logs a table of the weights that are missing: ``read_model`` says it in one line.
_REPORT = "transformers.modeling_utils"

# Names of files of adapters, which are for weights that they do not have.
_ADAPTER = re.compile(
    r"adapter_config\.json|(.*[^a-z])?(lora|adapters?)([^a-z].*)?\.(safetensors|bin|pt|pth|npz)|.*\.lora"
)

_MERGE = "Merge it into its base (with peft: merge_and_unload()), save_pretrained to a new folder, and load that"

# How many weights a message names before it counts the rest.
_NAMED = 3


class WeightsError(ValueError):
    """Weights that are not those of the model that a configuration describes, or not all, or no numbers.

    What follows the first full stop is what to do about it.
    """


class Reader:
    """Takes the place of a model class of transformers in TransformerLens, and reads weights with ``read``.

    ``of`` gives the class itself, by the configuration that is loaded (None where none is given).
    """

    def __init__(self, of: Callable[[Any], Any], read: Callable[..., Any]) -> None:
        self.of, self.read = of, read

    def from_pretrained(self, name: Any, **options: Any) -> Any:
        """The model that the class would load, read by ``read``."""
        return self.read(self.of(options.get("config")), pretrained_model_name_or_path=name, **options)


def read_model(auto_class: Any, **options: Any) -> Any:
    """A model of transformers whose weights all come from its files.

    transformers draws at random what it does not find, drops what it has no place for, and says so in its log alone.

    Args:
        auto_class: An ``AutoModel...`` of transformers.
        options: What its ``from_pretrained`` takes.

    Raises:
        WeightsError: Weights are missing, unexpected, of another shape, NaN or infinite; the message names them. Tied
            embeddings are stored once, and buffers that old checkpoints carry were never learned: neither is a fault.
    """
    model, report = auto_class.from_pretrained(output_loading_info=True, ignore_mismatched_sizes=True, **options)
    missing, unexpected = (
        [name for name in report[fault] if not _BUFFER.search(name)] for fault in ("missing_keys", "unexpected_keys")
    )
    shapes = [f"{name} {tuple(stored)} for {tuple(wanted)}" for name, stored, wanted in report["mismatched_keys"]]
    # A weight of another shape is missing as well; its shape says more.
    mismatched = {name for name, *_ in report["mismatched_keys"]}
    missing = [name for name in missing if name not in mismatched]
    faults = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    if told := [f"{_counted(names)} {fault} ({_named(names)})" for fault, names in faults.items() if names]:
        raise WeightsError(f"weights do not fit the model's configuration: {'; '.join(told)}")
    check_finite(model)
    return model


def refuse_adapters(folder: Path) -> None:
    """Raise a ``WeightsError`` for a folder with files of an adapter, which transformers leaves out: it names them."""
    names = sorted(file.name for file in folder.iterdir() if _ADAPTER.fullmatch(file.name.lower()))
    if names:
        raise WeightsError(f"it has an adapter ({', '.join(names[:_NAMED])}), which would be left out. {_MERGE}")


def refuse_hub_adapter(name: str, revision: str | None) -> None:
    """Raise a ``WeightsError`` for a Hub name whose repository has an adapter, as far as transformers finds it."""
    from transformers.utils.peft_utils import find_adapter_config_file

    try:
        found = find_adapter_config_file(name, revision=revision)
    except (OSError, ValueError):
        # What is wrong with the name is said where the model is loaded.
        return
    if found is not None:
        raise WeightsError(f"it has an adapter (adapter_config.json), which would be left out. {_MERGE}")


def check_finite(model: Any) -> None:
    """Raise ``WeightsError`` where a weight of a model in memory is NaN or infinite; the message names the first."""
    bad = [
        name.replace("_original_component.", "")
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.device.type != "meta" and not _is_finite(parameter.detach())
    ]
    if bad:
        raise WeightsError(f"{_counted(bad)} not finite (NaN or infinite values in {_named(bad)})")


def _is_finite(values: torch.Tensor) -> bool:
    # Ten times as fast as isfinite, which writes a tensor; there is no such reduction of 8-bit floats.
    values = values.to(torch.float16) if values.element_size() == 1 else values
    return values.numel() == 0 or bool(torch.stack(torch.aminmax(values)).isfinite().all())


def _counted(names: list[str]) -> str:
    return "1 weight is" if len(names) == 1 else f"{len(names)} weights are"


def _named(names: list[str]) -> str:
    first = sorted(names)[:_NAMED]
    return ", ".join(first) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


@contextmanager
def quiet_loading(*more: str) -> Iterator[None]:
    """Load without retry messages, and with bars in terminals alone: what goes wrong is said once, at the end.

    ``more`` are loggers of whom no warning is wanted either.
    """
    from transformers.utils import logging as bars

    with ExitStack() as stack:
        for logger in map(logging.getLogger, ("huggingface_hub", _REPORT, *more)):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if bars.is_progress_bar_enabled() and not sys.stderr.isatty():
            stack.callback(bars.enable_progress_bar)
            bars.disable_progress_bar()
        yield
