"""Devices that are not there: tensors are told which one they lie on, and may not meet across them.

The numbers are computed on the CPU. What a tensor says of its device, what moves it, and what refuses tensors of two
devices is as on a machine that has them. torch has names for more devices than a machine has, but ``meta`` tensors
have no numbers, and a backend registered by the name of one's own (``privateuse1``) needs kernels in C++: so tensors
stay on the CPU and a function mode answers for the device, which torch asks before everything that Python code does.
"""

import sys
from collections import Counter
from typing import Any

import numpy as np
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("xla:0"), torch.device("xla:1")
GPU = torch.device("cuda:0")

# Tensors that may lie on the CPU whatever they index: torch allows it.
INDEXING = ("__getitem__", "__setitem__", "index_put", "index_put_")


class FakeDevices(TorchFunctionMode):
    """Inside the ``with`` block tensors lie where they were put, on the CPU if nowhere."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == Tensor.device.__get__:
            return where(args[0])
        if func == Tensor.pin_memory:
            return _pinned(args[0])
        if func in (Tensor.to, Tensor.cpu, Tensor.type_as):
            return self._moved(name, args, kwargs)
        if func == Tensor.numpy and where(args[0]) != CPU:
            raise TypeError(f"can't convert {where(args[0])} device type tensor to numpy. Use Tensor.cpu() first")
        if func == Tensor.data.__set__ or func is torch._has_compatible_shallow_copy_type:
            # A module is moved by giving its parameters other data.
            if func == Tensor.data.__set__:
                put(args[0], where(args[1]))
            return func(*args, **kwargs)
        if func == torch.autograd.grad:
            inputs = args[1] if isinstance(args[1], tuple | list) else (args[1],)
            return tuple(put(g, where(x)) for g, x in zip(func(*args, **kwargs), inputs, strict=True))
        if name.startswith("new_") or name.endswith("_like"):
            device = torch.device(kwargs.pop("device", None) or where(args[0]))
        elif "device" in kwargs:
            device = torch.device(kwargs.pop("device") or CPU)
        else:
            device = self._common(name, args, kwargs)
        return put(func(*args, **kwargs), device)

    def _moved(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        tensor, *rest = args
        device, dtype = where(tensor), tensor.dtype
        for given in (*rest, *kwargs.values(), *([CPU] if name == "cpu" else [])):
            if isinstance(given, Tensor):
                device, dtype = where(given), given.dtype
            elif isinstance(given, torch.dtype):
                dtype = given
            elif isinstance(given, torch.device | str):
                device = torch.device(given)
        with torch._C.DisableTorchFunction():
            copy = tensor.to(dtype) if tensor.dtype != dtype else tensor
            # Another device has memory of its own.
            if device != where(tensor) and copy is tensor:
                copy = tensor.view_as(tensor) if tensor.requires_grad else tensor.clone()
        return put(copy, device)

    def _common(self, name: str, args: Any, kwargs: Any) -> torch.device:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # A number on the CPU may meet a tensor of any device.
        devices = {where(tensor) for tensor in given if not (where(tensor) == CPU and tensor.ndim == 0)}
        if name in INDEXING:
            devices = {where(given[0])} | {where(tensor) for tensor in given[1:] if where(tensor) != CPU}
        if len(devices) > 1:
            raise RuntimeError(
                f"{name}: expected all tensors to be on the same device, but found {' and '.join(map(str, devices))}"
            )
        return devices.pop() if devices else CPU


# What a host that asks for it waits for, until the device has done all that it was given.
_WAITING = (
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__", "is_nonzero"),
    *("nonzero", "masked_select", "unique", "equal", "allclose"),
)

_LIBRARIES = ("transformers", "transformer_lens")


class WatchedDevices(FakeDevices):
    """Counts, beside, what makes the host wait for a device, and numbers of float64 there.

    ``seen`` holds, for code of cs-heads, ``"downloads"``, ``"waits"`` (a number asked of a device), ``"blocking
    uploads"`` (not by way of pinned memory) and ``"float64"``; the same of libraries under ``"library waits"`` and so
    on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        before = where(given[0]) if given else CPU
        if name in _WAITING and before != CPU:
            self._note("waits")
        if name in INDEXING and before != CPU:
            self._note("waits", sum(t.dtype == torch.bool and where(t) != CPU for t in given[1:]))
            arrays = sum(isinstance(leaf, np.ndarray) for leaf in tree_leaves(args[1:]))
            self._note("blocking uploads", arrays + sum(where(t) == CPU and t.ndim > 0 for t in given[1:]))
        if name in ("tensor", "as_tensor") and torch.device(kwargs.get("device") or CPU) != CPU:
            self._note("blocking uploads")
        made = super().__torch_function__(func, types, args, kwargs)
        if func in (Tensor.to, Tensor.cpu, Tensor.type_as) and where(made) != before:
            unpinned = not (given[0].__dict__.get("_pinned") and kwargs.get("non_blocking"))
            self._note("downloads", where(made) == CPU)
            self._note("blocking uploads", before == CPU and unpinned)
        self._note("float64", isinstance(made, Tensor) and made.dtype == torch.float64 and where(made) != CPU)
        return made

    def _note(self, what: str, times: int | bool = 1) -> None:
        if times:
            self.seen[f"library {what}" if _of_a_library() else what] += int(times)


def _of_a_library() -> bool:
    """Whether a call comes from a library and not, nearer, from cs-heads."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name == "cs_heads" or name in _LIBRARIES:
            return name in _LIBRARIES
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _pinned(tensor: Tensor) -> Tensor:
    if where(tensor) != CPU:
        raise RuntimeError(f"cannot pin a tensor on {where(tensor)}: only dense CPU tensors can be pinned")
    with torch._C.DisableTorchFunction():
        copy = put(tensor.clone(), CPU)
    copy.__dict__["_pinned"] = True
    return copy


def lay(model: Any, device: torch.device) -> None:
    """Lay all of a model on one device."""
    for tensor in (*model.parameters(), *model.buffers()):
        put(tensor, device)
    if hasattr(model.cfg, "device"):
        model.cfg.device = str(device)


def where(tensor: Tensor) -> torch.device:
    return tensor.__dict__.get("_lies_on", CPU)


def put(result: Any, device: torch.device) -> Any:
    """Let all tensors of a result lie on a device."""

    def tell(tensor: Tensor) -> Tensor:
        tensor.__dict__["_lies_on"] = device
        return tensor

    return tree_map_only(Tensor, tell, result) if not isinstance(result, Tensor) else tell(result)


class _Move(ModelHook):
    """What accelerate's AlignDevicesHook does to what comes to a module whose weights stay where they are."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return send_to_device(args, self.device), send_to_device(kwargs, self.device, skip_keys="past_key_values")


def split(model: Any) -> None:
    """Lay the first half of a model's blocks on one device and the rest on another, as device maps do.

    A bridge is given accelerate's own hooks, which move what comes to a module; HookedTransformer moves by itself.
    """
    # As HookedTransformer counts.
    half = -(-model.cfg.n_layers // 2)
    # An unembedding that is tied to the embedding lies where it does.
    tied = {id(p) for p in model.unembed.parameters()} & {id(p) for p in model.embed.parameters()}
    late = [*list(model.blocks)[half:], *([model.ln_final] if hasattr(model, "ln_final") else [])]
    places = [(model, FIRST), *((module, SECOND) for module in [*late, *([] if tied else [model.unembed])])]
    for module, device in places:
        for tensor in (*module.parameters(), *module.buffers()):
            put(tensor, device)
    if "TransformerBridge" in {cls.__name__ for cls in type(model).__mro__}:
        early = [model.embed, *list(model.blocks)[:half], *([model.pos_embed] if hasattr(model, "pos_embed") else [])]
        for module in [*early, *late, model.unembed]:
            inner = module.original_component
            add_hook_to_module(inner, _Move(where(next(inner.parameters()))))
    else:
        model.cfg.device, model.cfg.n_devices = str(FIRST), 2
