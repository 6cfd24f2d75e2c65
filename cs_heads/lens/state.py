"""What a model is at a moment: its weights, its modules, and the hooks of others that stand on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from cs_heads.lens.fingerprint import fingerprint, is_stretched
from cs_heads.lens.locks import alone
from cs_heads.lens.model import (
    WITHOUT,
    HookedModel,
    ModelDescription,
    ModelInfo,
    backend_of,
    config_inside,
    config_of,
    dtype_of,
)
from cs_heads.units import Grid

# Numbers of each tensor that are read: of 32 heads one whose weights alone were changed is missed in one case of 60.
_SAMPLE = 128

# What these put on modules is part of the model: they do so by themselves, most of it at the first forward.
_OWN = (
    *("transformer_lens.", "transformers.", "accelerate."),
    *("bitsandbytes.", "gptqmodel.", "optimum.", "torch.nn.utils."),
)

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True, eq=False)
class ModelState:
    """A model at a moment, cheap to take: about a hundredth of the time of a forward.

    Of each weight it has the place in memory, device, dtype, shape and version, which every change by PyTorch's own
    operations raises; of weights and buffers some of the numbers, drawn by lot, since a change to ``weight.data``
    raises no version. Not seen are such a change to few numbers of a tensor, and an attribute of a module or
    configuration that was set by hand.

    Attributes:
        weights: What is known of each weight.
        numbers: Some numbers of each weight and buffer.
        modules: The identity of each module.
        hooks: Hooks on hook points and modules, and forwards put in place of a module's own, each with the name of its
            place; those that the libraries around a model put there themselves are left out.
    """

    weights: tuple[tuple[Any, ...], ...] = ()
    numbers: bytes = b""
    modules: tuple[int, ...] = ()
    hooks: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, model: HookedModel | ModelInfo) -> ModelState:
        """The state of a model now; one in another process has none."""
        if isinstance(model, ModelInfo):
            return cls()
        with alone(model), torch.no_grad():
            modules, weights, buffers, hooks = list[int](), dict[int, Tensor](), dict[int, Tensor](), list[Any]()
            for module in _modules(model):
                modules.append(id(module))
                # Most modules have none of these, and there may be thousands.
                if module._parameters:
                    weights.update((id(each), each) for each in module._parameters.values() if each is not None)
                if module._buffers:
                    kept = {name: each for name, each in module._buffers.items() if not is_stretched(module, name)}
                    buffers.update((id(each), each) for each in kept.values() if each is not None)
                attributes = module.__dict__
                if "forward" in attributes or any(map(attributes.__getitem__, _HOOKS)):
                    hooks += [(module, hook) for hook in _foreign(attributes)]
            return cls(
                tuple(map(_identity, weights.values())),
                _numbers([*weights.values(), *buffers.values()]),
                tuple(modules),
                tuple(_named(model, hooks)),
            )

    @property
    def places(self) -> list[str]:
        """The names of the places where hooks stand."""
        return list(dict.fromkeys(place for place, _ in self.hooks))

    def check(self, model: HookedModel | ModelInfo, since: str = "the experiment was made") -> None:
        """Raise ``ValueError`` where a model is another than it was, ``since`` when it was as this state says."""
        if changed := self.changed(ModelState.of(model)):
            raise ValueError(
                f"model {model.cfg.model_name} must be what it was when {since}: {changed}; undo it, or make a new "
                "Experiment of the model as it is (with a store of its own)"
            )

    @contextmanager
    def kept(self, model: HookedModel | ModelInfo) -> Iterator[None]:
        """Check that a model is what it was, and keep other threads from it inside the ``with`` block."""
        with alone(model):
            self.check(model)
            yield

    def changed(self, now: ModelState) -> str | None:
        """What is another by now, in words; None where nothing is."""
        for name, place in (("dtype", 2), ("device", 3)):
            was, is_now = ({str(weight[place]) for weight in state.weights} for state in (self, now))
            if was != is_now:
                listed = (", ".join(sorted(each)).replace("torch.", "") for each in (was, is_now))
                return f"the {name} of its weights was {next(listed)} and is {next(listed)}"
        if self.hooks != now.hooks:
            sides = (now.hooks, self.hooks), (self.hooks, now.hooks)
            came, gone = ([*dict.fromkeys(hook[0] for hook in one if hook not in other)] for one, other in sides)
            return f"hooks stand on {', '.join(came[:3])}" if came else f"hooks are gone from {', '.join(gone[:3])}"
        if self.modules != now.modules:
            return "some of its modules are others"
        same = (self.weights, self.numbers) == (now.weights, now.numbers)
        return None if same else "its weights were changed"


# By model, what was known of its weights when they were read, and their fingerprint.
_READ: WeakKeyDictionary[Any, tuple[Any, str]] = WeakKeyDictionary()


def describe(model: HookedModel | ModelInfo, *, anew: bool = False) -> ModelDescription:
    """Name, revision, dtype, class, weights, hooks and library versions: the model's part of a provenance.

    Args:
        model: The model.
        anew: Whether all weights are read, though they were before and nothing is seen to have changed.
    """
    if isinstance(model, ModelInfo):
        return model.description.copy()
    with alone(model):
        state = ModelState.of(model)
        described: ModelDescription = {
            "name": str(model.cfg.model_name),
            "revision": getattr(config_inside(model), "_commit_hash", None),
            "dtype": str(dtype_of(model)).removeprefix("torch."),
            "class": {"bridge": "TransformerBridge", "hooked": "HookedTransformer"}[backend_of(model)],
            "grid": list(Grid.from_model(model).shape),
            "key_value_heads": getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads,
            "weights": _weights(model, state, anew),
            "versions": {name: version(name) for name in ("transformer-lens", "transformers", "torch")},
        }
    others = {"without": list(getattr(config_of(model), WITHOUT, ())), "hooks": state.places}
    return described | {name: value for name, value in others.items() if value}


def check_weights(what: str, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> None:
    """Raise ``ValueError`` where two results, or a result and a model, are of other weights, as far as can be known.

    Weights of another dtype or class have another fingerprint though they are the same: these are taken as they are,
    and so are results that say no weights.

    Args:
        what: What meets, for the error.
        one: The model's part of a provenance.
        other: That of the other result, or ``describe`` of the model.
    """
    if not one or not other or any(one.get(name) != other.get(name) for name in ("dtype", "class")):
        return
    first, second = one.get("weights"), other.get("weights")
    if None not in (first, second) and first != second:
        raise ValueError(
            f"{what} must be of the same weights, got {first} of {one.get('name')!r} and {second} of "
            f"{other.get('name')!r}: to try heads of one model on another give a list of them, as found.top(5)"
        )


def _weights(model: HookedModel, state: ModelState, anew: bool) -> str | None:
    """The fingerprint of the weights in a state, read once; None where some are not in memory."""
    if any(device.type == "meta" for _, _, _, device, *_ in state.weights):
        return None
    now, (read, found) = (state.weights, state.numbers), _READ.get(model, (None, ""))
    if anew or read != now:
        found = fingerprint(model)
        _READ[model] = now, found
    return found


def _modules(model: Any) -> Iterator[torch.nn.Module]:
    """All modules once each, also those of a Hugging Face model that are not among its bridge's."""
    seen, left = set[int](), [model, getattr(model, "original_model", None)]
    while left:
        module = left.pop()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            left.extend(module._modules.values())
            yield module


def _identity(weight: Tensor) -> tuple[Any, ...]:
    # In inference mode there are no versions.
    changed = None if weight.is_inference() else weight._version
    return weight.data_ptr(), changed, weight.dtype, weight.device, weight.shape


def _numbers(tensors: list[Tensor]) -> bytes:
    """Some numbers of each tensor, in one copy to main memory from each device."""
    drawn: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for each in tensors:
        if each.device.type != "meta" and each.numel():
            # Of dtypes of one byte and less there are some that nothing is read from.
            values = each if each.element_size() > 1 or not each.is_contiguous() else each.view(torch.uint8)
            found = values.take(_places(values.numel(), values.device))
            drawn.setdefault((found.device, found.dtype), []).append(found)
    return b"".join(torch.cat(some).view(torch.uint8).cpu().numpy().tobytes() for some in drawn.values())


@cache
def _places(n: int, device: torch.device) -> Tensor:
    """Which numbers of a tensor of ``n`` are read: no rows or columns, of which a change may leave some as they are."""
    if n <= _SAMPLE:
        return torch.arange(n, device=device)
    return torch.randint(n, (_SAMPLE,), generator=torch.Generator().manual_seed(n)).to(device)


def _named(model: Any, hooks: list[tuple[torch.nn.Module, Any]]) -> Iterator[tuple[str, Any]]:
    """Hooks with the names of their places, and those that stand on every module of this process."""
    names = _names(model) if hooks else {}
    yield from ((names.get(id(module)) or type(module).__name__, hook) for module, hook in hooks)
    for kind in ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks"):
        yield from (("every module", hook) for hook in getattr(torch_module, kind).values() if not _is_own(hook))


def _foreign(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Hooks of a module, and a forward, that no library around the model put there."""
    for kind in _HOOKS:
        yield from (given for given in map(_given, attributes[kind].values()) if not _is_own(given))
    forward = attributes.get("forward")
    if forward is not None and not _is_own(forward):
        yield forward


def _names(model: Any) -> dict[int, str]:
    """The name of each module, that of a hook point as users know it."""
    found = {id(module): path for path, module in model.named_modules()}
    # Of a point with several names the shortest, such as hook_z.
    for name, point in sorted(model.hook_dict.items(), key=lambda item: -len(item[0])):
        found[id(point)] = name
    return found


def _given(hook: Any) -> Any:
    """What a user gave to a hook point, which hands something of its own to PyTorch."""
    code = getattr(hook, "__code__", None)
    if code is None or "hook" not in code.co_freevars or _module_of(hook) != "transformer_lens.hook_points":
        return hook
    return hook.__closure__[code.co_freevars.index("hook")].cell_contents


def _is_own(hook: Any) -> bool:
    return f"{_module_of(hook)}.".startswith(_OWN)


def _module_of(hook: Any) -> str:
    """The module that defines what is called; a wrapper is not where it says that it comes from."""
    while isinstance(hook, partial):
        hook = hook.func
    function: Callable[..., Any] = getattr(hook, "__func__", hook)
    defined = getattr(function, "__globals__", None)
    return str(defined["__name__"] if defined else getattr(function, "__module__", None) or type(function).__module__)
