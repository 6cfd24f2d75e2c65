"""Models by name or folder."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cs_heads.lens.bos import keep_leading_tokens
from cs_heads.lens.model import check_model

DEMO = Path(__file__).parents[1] / "demo" / "weights"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    name_or_path: Any,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    backend: str = "auto",
    revision: str | None = None,
) -> Any:
    """A TransformerLens model whose heads can be ablated: nothing folded, nothing centred.

    ``name_or_path`` is ``"demo"`` (the model that comes with cs-heads), a Hugging Face name, a local
    folder in Hugging Face form, or your own TransformerLens model, which is checked and returned as
    it is. ``backend="bridge"`` loads a
    ``TransformerBridge`` and so does ``"auto"``; ``"hooked"`` a ``HookedTransformer``, on
    TransformerLens 3. The device is CUDA where there is one, the dtype float32. An unknown model,
    device, dtype or backend raises ``ValueError``.
    """
    if not isinstance(name_or_path, str | Path):
        check_model(name_or_path)
        return name_or_path
    if backend not in ("auto", "bridge", "hooked"):
        raise ValueError(f"backend must be 'auto', 'bridge' or 'hooked', got {backend!r}")
    name, device, dtype = str(name_or_path), _device(device), _dtype(dtype)
    folder = DEMO if name == "demo" else Path(name)
    if folder.exists() and not (folder / "config.json").is_file():
        raise ValueError(f"model folder {name!r} has no config.json: it must be in Hugging Face form")
    load = _load_hooked if backend == "hooked" else _load_bridge
    try:
        # Loaders report on standard output, which belongs to the caller.
        with redirect_stdout(sys.stderr), quietly():
            model = load(str(folder) if folder.exists() else name, device, dtype, revision)
            _keep_own_bos(model.tokenizer, revision)
        model.cfg.model_name = name
    except Exception as error:  # whatever a loader makes of a broken file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model {name!r} could not be loaded: it is no folder here, and as a Hugging Face name: {reason[:300]}"
            if not folder.exists()
            else f"model folder {name!r} could not be loaded: {reason[:300]}"
        ) from error
    check_model(model)
    return model


def _keep_own_bos(tokenizer: Any, revision: str | None) -> None:
    """TransformerLens loads a tokenizer that prepends a BOS: what the tokenizer itself does is asked of its files."""
    from transformers import AutoTokenizer

    if tokenizer is not None:
        keep_leading_tokens(tokenizer, AutoTokenizer.from_pretrained(tokenizer.name_or_path, revision=revision))


@contextmanager
def quietly(*more: str) -> Iterator[None]:
    """Load without retry messages, and with bars in terminals alone: what goes wrong is said once, at the end.

    ``more`` are loggers of whom no warning is wanted either.
    """
    from transformers.utils import logging as bars

    loggers = [logging.getLogger(name) for name in ("huggingface_hub", *more)]
    levels, hide = [logger.level for logger in loggers], bars.is_progress_bar_enabled() and not sys.stderr.isatty()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    if hide:
        bars.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if hide:
            bars.enable_progress_bar()


def _load_bridge(name: str, device: torch.device, dtype: torch.dtype, revision: str | None) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(name, device=device, dtype=dtype, revision=revision)


def _load_hooked(name: str, device: torch.device, dtype: torch.dtype, revision: str | None) -> Any:
    try:
        from transformer_lens import HookedTransformer
    except ImportError as error:
        raise ValueError(
            "backend 'hooked' needs TransformerLens 3, where HookedTransformer still exists: "
            "install the extra cs-heads[hooked]"
        ) from error
    if Path(name).exists():
        return _load_hooked_folder(HookedTransformer, Path(name), device, dtype)
    more = {} if revision is None else {"revision": revision}
    return HookedTransformer.from_pretrained_no_processing(name, device=device, dtype=dtype, **more)


def _load_hooked_folder(cls: Any, folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """``HookedTransformer.from_pretrained`` takes official names alone: its steps, for a folder."""
    from transformer_lens import loading_from_pretrained as loading
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    config = AutoConfig.from_pretrained(folder).to_dict()
    config["architectures"] = [type(source).__name__]
    if "n_positions" in config:
        config.setdefault("n_ctx", config["n_positions"])
    # The folder's own name would be taken for an architecture: ".../llama-ft" reads as Llama 1.
    with TemporaryDirectory(prefix="config") as neutral:
        (Path(neutral) / "config.json").write_text(json.dumps(config, default=str))
        cfg = loading.get_pretrained_model_config(neutral, device=device, dtype=dtype)
        weights = loading.get_pretrained_state_dict(neutral, cfg, hf_model=source, dtype=dtype)
    model = cls(cfg, AutoTokenizer.from_pretrained(folder), move_to_device=False)
    model.load_and_process_state_dict(
        weights,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
    )
    model.move_model_modules_to_device()
    return model


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return chosen


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]
