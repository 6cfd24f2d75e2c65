"""The methods by name: a new one joins by one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from cs_heads.methods.annealing import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.methods.gating import causal_head_gating, contrastive_gating
from cs_heads.methods.gradient import gradient_importance
from cs_heads.methods.greedy import greedy
from cs_heads.methods.group_testing import group_testing
from cs_heads.methods.mediation import mediation
from cs_heads.ranking import HeadRanking

# What the caller gives every method, and no user sets as an option.
_GIVEN = ("seed", "budget", "k", "controls")


@dataclass(frozen=True)
class Method:
    """One way to a ranking.

    ``run`` takes an experiment, ``seed=`` and ``budget=``. A method with ``k=`` is told how many heads are wanted, one
    with ``controls=`` is given experiments on other tasks. Where ``default_controls`` says so it has the default ones
    unless it is told otherwise; the methods of papers stand as they are there. ``uses`` says what it asks of the
    experiment: masks, or also the model in this process, for its gradients or for patches. Methods of this kind run
    the intact model by themselves, and count it; others do where ``measures_intact`` says so.
    """

    run: Callable[..., HeadRanking]
    uses: Literal["masks", "model"] = "masks"
    measures_intact: bool = False
    default_controls: bool = False
    parameters: dict[str, inspect.Parameter] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", dict(inspect.signature(self.run).parameters))

    @property
    def takes_k(self) -> bool:
        """Whether the search depends on how many heads are wanted."""
        return "k" in self.parameters

    @property
    def takes_controls(self) -> bool:
        """Whether other tasks can help the search."""
        return "controls" in self.parameters

    @property
    def options(self) -> list[str]:
        """What a user may set: keywords of ``run``, but for those its name stands for and those every method has."""
        fixed = getattr(self.run, "keywords", {})
        return [
            name
            for name, parameter in self.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in (*fixed, *_GIVEN)
        ]

    def check(self, name: str, options: dict[str, Any]) -> None:
        """Raise ``ValueError`` for options that the method does not have, or needs and was not given."""
        unknown = [option for option in options if option not in self.options]
        if unknown:
            raise ValueError(f"method {name!r} has no option {', '.join(unknown)}; it has {', '.join(self.options)}")
        needed = [o for o in self.options if self.parameters[o].default is inspect.Parameter.empty]
        missing = [option for option in needed if option not in options]
        if missing:
            raise ValueError(f"method {name!r} needs the option {', '.join(missing)}")


METHODS: dict[str, Method] = {
    "annealed": Method(annealed, measures_intact=True, default_controls=True),
    "css": Method(partial(compressed_sensing, design="stratified"), measures_intact=True),
    "csb": Method(partial(compressed_sensing, design="bernoulli"), measures_intact=True),
    "one-shot": Method(partial(greedy, one_shot=True)),
    "greedy": Method(partial(greedy, one_shot=False)),
    "group-testing": Method(group_testing, measures_intact=True, default_controls=True),
    "chg": Method(causal_head_gating, "model"),
    "contrastive": Method(contrastive_gating, "model"),
    "gradient": Method(partial(gradient_importance, signed=False), "model"),
    "attribution": Method(partial(gradient_importance, signed=True), "model"),
    "mediation": Method(mediation, "model"),
}
"""Every method that ``find_heads``, ``compare`` and the command line know."""


def method_named(name: Any) -> Method:
    """The method of this name; an unknown one raises ``ValueError``."""
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]
