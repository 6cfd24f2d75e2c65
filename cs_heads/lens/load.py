"""Models by name or folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakSet

import torch

from cs_heads.arguments import check_one_of
from cs_heads.lens.forward import check_runs
from cs_heads.lens.gguf import gguf_in, unpack
from cs_heads.lens.model import ModelInfo, check_ablatable, rope_type, ropes
from cs_heads.lens.tokens import keep_leading_tokens
from cs_heads.lens.weights import Reader, check_finite, quiet_loading, read_model, refuse_adapters, refuse_hub_adapter
from cs_heads.settings import BACKENDS, COMPUTE_DTYPES
from cs_heads.text import first_line

DEMO = Path(__file__).parents[1] / "demo" / "weights"

Read = Callable[..., Any]
"""``weights.read_model``, or what does as much for another form of files."""
_TOKENIZERS = ("tokenizer*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")

# Models that have been run once: each experiment on a model loads it.
_RUN: WeakSet[Any] = WeakSet()

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in COMPUTE_DTYPES}


def load_model(
    name_or_path: Any,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    backend: str = "auto",
    revision: str | None = None,
    *,
    device_map: str | dict[str, Any] | None = None,
    unfolded: bool = False,
) -> Any:
    """A TransformerLens model whose heads can be ablated: nothing folded, nothing centered.

    Args:
        name_or_path: ``"demo"`` (the model that comes with cs-heads), a Hugging Face name, a local folder in Hugging
            Face form (without a tokenizer it takes tasks over token ids alone), a GGUF file or a folder with one
            (extra ``gguf``; de-quantized, with its tokenizer), or your own TransformerLens model, which is checked and
            returned as it is.
        device: CUDA by default, where there is one.
        dtype: float32 by default.
        backend: ``"bridge"`` loads a ``TransformerBridge`` and so does ``"auto"``; ``"hooked"`` a
            ``HookedTransformer``, on TransformerLens 3.
        revision: Of a Hugging Face name.
        device_map: Splits a bridge over several devices in place of ``device``, as transformers does: ``"auto"``, or
            the device of each module by name.
        unfolded: That the value biases of your own model are zero by themselves, and were not folded into its output
            biases; the model alone does not show it.

    Returns:
        A ``TransformerBridge`` or ``HookedTransformer`` on ``device``, or split by ``device_map``.

    Raises:
        ValueError: An unknown model, device, dtype or backend; a device map beside a device, or not for a bridge;
            weights that are missing, unexpected, of another shape, NaN or infinite; files of a folder that would
            change its model and are not read, as an adapter's; a model that TransformerLens cannot run, or whose heads
            cannot be ablated.
    """
    if not isinstance(name_or_path, str | Path):
        check_ablatable(name_or_path, unfolded)
        if not isinstance(name_or_path, ModelInfo):
            check_finite(name_or_path)
            if name_or_path not in _RUN:
                check_runs(name_or_path)
                _RUN.add(name_or_path)
        return name_or_path
    check_one_of("backend", backend, BACKENDS)
    if device_map is not None and (device is not None or backend == "hooked"):
        raise ValueError(
            f"device_map must be None where device is given or backend is 'hooked', got {device_map!r} with "
            f"device={device!r} and backend={backend!r}"
        )
    name, device, dtype = str(name_or_path), device_named(device), _dtype(dtype)
    folder = folder_of(name)
    gguf = gguf_in(folder)
    if device_map is not None and gguf is not None:
        raise ValueError(f"device_map must be None for a GGUF file, got {device_map!r} for {name!r}")
    from transformers import AutoTokenizer

    load = _load_hooked if backend == "hooked" else partial(_load_bridge, device_map=device_map)
    try:
        # Loaders report on standard output, which belongs to the caller.
        with redirect_stdout(sys.stderr), quiet_loading(), source_of(name, gguf) as source:
            if not folder.exists():
                refuse_hub_adapter(name, revision)
            model = load(*source, device, dtype, revision)
            if model.tokenizer is not None:
                # TransformerLens's own prepends a BOS: what the tokenizer does by itself is asked of its files.
                name_or_path = model.tokenizer.name_or_path
                keep_leading_tokens(model.tokenizer, AutoTokenizer.from_pretrained(name_or_path, revision=revision))
        model.cfg.model_name = name
    except Exception as error:  # whatever a loader makes of a broken file
        # TransformerLens names all that it knows.
        reason = first_line(error).partition(" Available architectures")[0]
        if not isinstance(error, ValueError | OSError):
            reason = f"{_architecture(name, revision)}{type(error).__name__}: {reason}"
        what = "folder " if folder.is_dir() else "file " if folder.exists() else ""
        tried = "" if what else "it is no folder here, and as a Hugging Face name: "
        raise ValueError(f"model {what}{name!r} could not be loaded: {tried}{reason[:600]}") from error
    # Nothing was folded on the way here.
    check_ablatable(model, unfolded=True)
    check_runs(model)
    _RUN.add(model)
    return model


def _architecture(name: str, revision: str | None) -> str:
    """What begins an error that does not say itself of which architecture a model is."""
    from transformers import PretrainedConfig

    folder = folder_of(name)
    try:
        said, _ = PretrainedConfig.get_config_dict(folder if folder.exists() else name, revision=revision)
    except (OSError, ValueError):  # no configuration beside a GGUF file
        return ""
    return "".join(f"{architecture}: " for architecture in said.get("architectures") or [])


def folder_of(name: str) -> Path:
    """Where a model of this name would lie on this machine, if it is no Hugging Face name."""
    return DEMO if name == "demo" else Path(name)


@contextmanager
def source_of(name: str, gguf: Path | None) -> Iterator[tuple[str, Read]]:
    """Where configuration and tokenizer of a model are read from, and what reads the weights.

    Of a folder, files that would change its model and are not read are refused.
    """
    folder = folder_of(name)
    if folder.is_dir():
        refuse_adapters(folder)
    if gguf is None:
        if folder.exists() and not (folder / "config.json").is_file():
            raise ValueError("it has no config.json: it must be in Hugging Face form, or hold one GGUF file")
        yield str(folder) if folder.exists() else name, read_model
        return
    if find_spec("gguf") is None:
        raise ValueError("GGUF files need the package gguf: install the extra cs-heads[gguf]")
    with TemporaryDirectory(prefix="gguf") as form:
        yield form, unpack(gguf, Path(form))


def _load_bridge(
    name: str,
    read: Read,
    device: torch.device,
    dtype: torch.dtype,
    revision: str | None,
    *,
    device_map: str | dict[str, Any] | None,
) -> Any:
    """On a device, or split by a device map."""
    from transformer_lens.model_bridge import TransformerBridge

    reader = Reader(_bridged_class, read)
    place = {"device": device} if device_map is None else {"device_map": device_map}
    options = {**place, "dtype": dtype, "revision": revision, "model_class": reader}
    if not _lacks_tokenizer(name):
        return TransformerBridge.boot_transformers(name, **options)
    # TransformerLens would make one up, or fail for want of it.
    model = TransformerBridge.boot_transformers(name, tokenizer=_stand_in(), **options)
    model.tokenizer = None
    return model


def _lacks_tokenizer(name: str) -> bool:
    """Whether it is a folder with none of the files that tokenizers are kept in."""
    folder = Path(name)
    return folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _TOKENIZERS)


def _stand_in() -> Any:
    """A tokenizer of one word, from a folder, where TransformerLens reads it once more."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    with TemporaryDirectory(prefix="tokenizer") as folder:
        inner = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
        return PreTrainedTokenizerFast.from_pretrained(folder)


def _bridged_class(config: Any) -> Any:
    """The class of transformers that a bridge loads a configuration with."""
    from transformer_lens.model_bridge.sources import transformers as source

    try:
        return source.get_hf_model_class_for_architecture(source.determine_architecture_from_hf_config(config))
    except ValueError:  # the text half of a model that reads images too, which the bridge itself has split off
        return source.AutoModelForCausalLM


def _load_hooked(name: str, read: Read, device: torch.device, dtype: torch.dtype, revision: str | None) -> Any:
    try:
        from transformer_lens import HookedTransformer
        from transformer_lens import loading_from_pretrained as loading
    except ImportError as error:
        raise ValueError(
            "backend 'hooked' needs TransformerLens 3, where HookedTransformer still exists: "
            "install the extra cs-heads[hooked]"
        ) from error
    auto_class = loading.AutoModelForCausalLM
    if Path(name).exists():
        return _load_hooked_folder(HookedTransformer, Path(name), read, device, dtype)
    more = {} if revision is None else {"revision": revision}
    # It takes no class to read weights with: the one it imported is put aside meanwhile.
    loading.AutoModelForCausalLM = Reader(lambda _: auto_class, read)
    try:
        model = HookedTransformer.from_pretrained_no_processing(name, device=device, dtype=dtype, **more)
    finally:
        loading.AutoModelForCausalLM = auto_class
    # Some official names are not of transformers, and are read by TransformerLens itself.
    check_finite(model)
    return model


def _load_hooked_folder(cls: Any, folder: Path, read: Read, device: torch.device, dtype: torch.dtype) -> Any:
    """``HookedTransformer.from_pretrained`` takes official names alone: its steps, for a folder."""
    from transformer_lens import loading_from_pretrained as loading
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = read(AutoModelForCausalLM, pretrained_model_name_or_path=folder, dtype=dtype)
    config = AutoConfig.from_pretrained(folder).to_dict()
    config["architectures"] = [type(source).__name__]
    if "n_positions" in config:
        config.setdefault("n_ctx", config["n_positions"])
    # The folder's own name would be taken for an architecture: ".../llama-ft" reads as Llama 1.
    with TemporaryDirectory(prefix="config") as neutral:
        (Path(neutral) / "config.json").write_text(json.dumps(config, default=str))
        cfg = loading.get_pretrained_model_config(neutral, device=device, dtype=dtype)
        weights = loading.get_pretrained_state_dict(neutral, cfg, hf_model=source, dtype=dtype)
    # Other scalings it leaves out in silence.
    scaled = {"llama3": "use_NTK_by_parts_rope", "yarn": "use_yarn_rope"}
    kinds = {*map(rope_type, ropes(source.config))} - {"default"}
    if unknown := [kind for kind in sorted(kinds) if not getattr(cfg, scaled.get(kind, ""), False)]:
        raise ValueError(f"HookedTransformer leaves out its rotary scaling {unknown[0]!r}: load a bridge")
    # Of some architectures it is a number of TransformerLens's own, whatever the folder says.
    longest = getattr(source.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and longest < cfg.n_ctx:
        cfg.n_ctx = longest
    # Of GPT-2 it takes four times the residual stream.
    if (inner := getattr(source.config, "n_inner", None)) is not None:
        cfg.d_mlp = inner
    tokenizer = None if _lacks_tokenizer(str(folder)) else AutoTokenizer.from_pretrained(folder)
    if tokenizer is None:
        cfg.tokenizer_name = None  # else it is asked for by that
    model = cls(cfg, tokenizer, move_to_device=False)
    model.load_and_process_state_dict(
        weights, fold_ln=False, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    model.move_model_modules_to_device()
    return model


def device_named(device: str | torch.device | None) -> torch.device:
    """The device of this name, by default a GPU where there is one; ``ValueError`` where it cannot be used."""
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
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype or torch.float32
    check_one_of("dtype", dtype, DTYPES)
    return DTYPES[dtype]
