"""How a call measures: the arguments that every call which runs a model takes, each declared once.

A call takes them as ``**settings: Unpack[SettingsArguments]``, reads them with ``Settings.of``, and gives them to its
first ``Experiment``; further ones are made by ``Experiment.on``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Literal, TypedDict

from cs_heads.arguments import Option, check_integer, check_one_of, check_path, did_you_mean, in_line
from cs_heads.units import POSITIONS, UNITS, Positions, Units

Kind = Literal["identity", "design", "runtime"]
"""What an argument does to the number of one mask on one example: change it, choose masks and examples, or nothing."""

ABLATIONS = ("zero", "mean", "position_mean", "resample", "optimal")
"""What an ablated head's z becomes."""


COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
"""What weights may be in, and what forwards may run in."""

SCREENS = ("auto", "gradients", "masks")
"""What a search may screen all heads by; ``"auto"`` are gradients where these do better: each search says when."""

BACKENDS = ("auto", "bridge", "hooked")
"""What may load a model."""


class SettingsArguments(TypedDict, total=False):
    """How a call measures; each may be left out.

    Attributes:
        ablation: What an ablated head's z becomes: ``"zero"``; ``"mean"``, its mean over all positions of the task's
            examples, or ``"position_mean"``, that at each position by itself; ``"resample"``, its z on another example;
            ``"optimal"``, one constant learned so that the right answers stay likely. For other units, what they give.
        units: What masks turn off: ``"heads"``; ``"kv"``, key/value groups with all their query heads; ``"attn"`` or
            ``"mlp"``, what a whole layer's attention or MLP adds; ``"neurons"`` of the MLPs;
            ``"experts"`` of a mixture, with ablation ``"zero"`` alone: those chosen beside one keep their weights.
        positions: Where units are off: at ``"all"`` tokens; at the ``"last"`` of the prompt alone, before which all
            masks share what is run; or at those of the ``"prompt"``, and not of what follows it.
        prepend_bos: Whether a beginning-of-sequence token stands before every prompt (default: as the tokenizer itself
            does when asked to add special tokens).
        dtype: Of the weights of a model given by name or folder (None: float32).
        compute_dtype: What forwards with units off run in, where it is another dtype than that of the weights, as
            ``"bfloat16"`` for float32 weights: faster where the machine multiplies that faster. Gradients of a
            screen run in bfloat16, too; those of other methods do not.
        batch_tokens: Tokens of one forward pass at most; by default what the device is fast with, less where memory is
            short, and halved where it does not suffice.
        progress: Whether a progress bar is shown (default: yes; off a terminal in lines, one a minute).
        workers: Number of Ray workers, each with its own copy of the model, for this call: short for a ``Cluster``.
        address: A running Ray cluster for them: auto, host:6379 or ray://host:10001 (default: a local one).
        store: A file, or the ``store`` of another experiment, that every result is written to as it is measured; the
            same call resumes from there.
    """

    ablation: str
    units: Units
    positions: Positions
    prepend_bos: bool | None
    dtype: Any
    compute_dtype: str | None
    batch_tokens: int | None
    progress: bool | None
    workers: int | None
    address: str | None
    store: str | PathLike[str] | None


def _setting(kind: Kind, default: Any = None) -> Any:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class Settings:
    """The settings of one call, checked: those of ``SettingsArguments``.

    An *identity* setting may change the number of one mask on one example, so that a stored result never answers under
    another value; under a *runtime* setting it is the same, to rounding.

    Attributes:
        ablation: Identity: what an ablated unit gives, one of ``ABLATIONS``.
        units: Identity: the kind of unit that masks turn off.
        positions: Identity: where units are off.
        prepend_bos: Identity: whether prompts begin with a beginning-of-sequence token (None: as the tokenizer does).
        dtype: Runtime: of the weights of a model given by name or folder (None: float32); other weights are another
            study.
        compute_dtype: Identity: what forwards run in (None: the dtype of the weights).
        batch_tokens: Runtime: tokens of one forward pass at most (None: what the device is fast with).
        progress: Runtime: whether a progress bar is shown (None: yes; off a terminal in lines, one a minute).
        workers: Runtime: number of Ray workers (None: the model runs in this process, unless an address is given).
        address: Runtime: a running Ray cluster for them (None: a local one).
        store: Runtime: a file, or an open ``Store``, that keeps every result (None: none does).

    Raises:
        ValueError: A value that is not allowed.

    >>> Settings.of({"ablation": "mean"}).ablation
    'mean'
    """

    ablation: str = _setting("identity", "zero")
    units: Units = _setting("identity", "heads")
    positions: Positions = _setting("identity", "all")
    prepend_bos: bool | None = _setting("identity")
    # Weights of another dtype are another study by themselves.
    dtype: Any = _setting("runtime")
    compute_dtype: str | None = _setting("identity")
    batch_tokens: int | None = _setting("runtime")
    progress: bool | None = _setting("runtime")
    workers: int | None = _setting("runtime")
    address: str | None = _setting("runtime")
    store: str | PathLike[str] | None = _setting("runtime")

    def __post_init__(self) -> None:
        check_one_of("ablation", self.ablation, ABLATIONS)
        check_one_of("units", self.units, UNITS)
        check_one_of("positions", self.positions, POSITIONS)
        if self.compute_dtype is not None:
            check_one_of("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        if self.units == "experts" and self.ablation != "zero":
            # A weight of another expert would change which are chosen.
            raise ValueError(f"ablation must be 'zero' with units='experts', got {self.ablation!r}")
        for name in ("prepend_bos", "progress"):
            if not isinstance(value := getattr(self, name), bool | None):
                raise ValueError(f"{name} must be True, False or None, got {in_line(value)}")
        for name in ("batch_tokens", "workers"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if self.address is not None and not isinstance(self.address, str):
            raise ValueError(f"address must be a text, as 'auto' or 'host:6379', got {self.address!r:.80}")
        if self.store is not None and not isinstance(self.store, PathLike):
            check_path("store", self.store)

    @classmethod
    def of(cls, arguments: Mapping[str, Any], only: Collection[str] | None = None) -> Settings:
        """The settings of a call's ``**settings``.

        Args:
            arguments: What the call was given.
            only: Settings that the call can do something with; another value than the default of the others raises
                ``ValueError`` (None: all can be set).

        Returns:
            All settings: those given, and the others at their defaults.

        Raises:
            TypeError: An argument that is no setting.
            ValueError: A value that is not allowed.
        """
        unknown = [name for name in arguments if name not in cls.kinds()]
        if unknown:
            raise TypeError(f"unexpected argument {unknown[0]!r}; the settings of a call are {', '.join(cls.kinds())}")
        settings = cls(**arguments)
        for each in fields(cls):
            if only is not None and each.name not in only and getattr(settings, each.name) != each.default:
                raise ValueError(f"{each.name} must be {each.default!r} here, got {getattr(settings, each.name)!r}")
        return settings

    @staticmethod
    def kinds() -> dict[str, Kind]:
        """By the name of each setting, what it does to a number."""
        return {each.name: each.metadata["kind"] for each in fields(Settings)}


def check_method_options(method: str, has: Mapping[str, Option], given: Collection[str]) -> None:
    """Raise ``ValueError`` for options that a method does not have, or needs and was not given.

    Args:
        method: Its name, for the message.
        has: Its options by name.
        given: The names of those given.

    Raises:
        ValueError: An option that the method does not have, or a required one that is missing.
    """
    unknown = [option for option in given if option not in has]
    if unknown:
        near = did_you_mean(unknown[0], [*has, *Settings.kinds()])
        known = f"it has {', '.join(has) or 'none'}; settings of every call: {', '.join(Settings.kinds())}{near}"
        raise ValueError(f"method {method!r} has no option {', '.join(unknown)}; {known}")
    missing = [option.name for option in has.values() if option.required and option.name not in given]
    if missing:
        raise ValueError(f"method {method!r} needs the option {', '.join(missing)}")
