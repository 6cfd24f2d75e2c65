"""The methods by name: a new one joins by one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_type_hints

from cs_heads.arguments import Option, check_one_of, described
from cs_heads.methods.annealing import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.methods.gating import causal_head_gating, contrastive_gating
from cs_heads.methods.gradient import gradient_importance
from cs_heads.methods.greedy import greedy
from cs_heads.methods.group_testing import group_testing
from cs_heads.methods.mediation import mediation
from cs_heads.methods.ranking_method import BOUNDS
from cs_heads.ranking import HeadRanking

# What the caller gives every method, and no user sets as an option.
_GIVEN = ("seed", "budget", "k", "controls")


@dataclass(frozen=True)
class Method:
    """One way to a ranking.

    ``function`` takes an experiment, ``seed=`` and ``budget=``. A method with ``k=`` is told how many heads are wanted,
    one with ``controls=`` is given experiments on other tasks. Its other keyword-only arguments are its options, which
    the command line and ``compare`` take by name. Where ``default_controls`` says so it has the default controls unless
    the caller says otherwise; the methods of papers stand as they are there.

    Attributes:
        function: The function.
        uses: What it asks of the experiment: masks, or also the model in this process, for its gradients or for
            patches. Methods of the second kind run the intact model by themselves, and count it.
        measures_intact: Whether a method that uses masks runs and counts the intact model by itself.
        default_controls: Whether the default controls serve its search.
        fixed: The arguments that its name stands for.
    """

    function: Callable[..., HeadRanking]
    uses: Literal["masks", "model"] = "masks"
    measures_intact: bool = False
    default_controls: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def run(self, experiment: Any, **given: Any) -> HeadRanking:
        """The ranking of an experiment."""
        return self.function(experiment, **self.fixed, **given)

    def bound(self, experiment: Any, **given: Any) -> int:
        """The most example-evaluations that ``run`` takes with these arguments; wrong ones raise ``ValueError``.

        Of a function that says nothing of it the budget.
        """
        bound = BOUNDS.get(self.function, lambda *_, budget=None, **__: budget or 0)
        return bound(experiment, **self.fixed, **given)

    @property
    def about(self) -> str:
        """What the method does, in a line: how its docstring begins."""
        told = (inspect.getdoc(self.function) or "").partition("\n\n")[0]
        fixed = ", ".join(f"{name}={value}" for name, value in self.fixed.items())
        return f"{' '.join(told.split()).rstrip('.')}{fixed and f' ({fixed})'}"

    @property
    def takes_k(self) -> bool:
        """Whether the search depends on how many heads are wanted."""
        return "k" in self._parameters

    @property
    def takes_controls(self) -> bool:
        """Whether other tasks can help the search."""
        return "controls" in self._parameters

    @cached_property
    def options(self) -> dict[str, Option]:
        """What a user may set: keywords of the function, but for those fixed and those every method has."""
        types, texts = get_type_hints(self.function), described(self.function)
        return {
            name: Option(name, types.get(name, str), parameter.default, texts.get(name, ""))
            for name, parameter in self._parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in (*self.fixed, *_GIVEN)
        }

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters


METHODS: dict[str, Method] = {
    "annealed": Method(annealed, measures_intact=True, default_controls=True),
    "css": Method(compressed_sensing, measures_intact=True, fixed={"design": "stratified"}),
    "csb": Method(compressed_sensing, measures_intact=True, fixed={"design": "bernoulli"}),
    "one-shot": Method(greedy, fixed={"one_shot": True}),
    "greedy": Method(greedy, fixed={"one_shot": False}),
    "group-testing": Method(group_testing, measures_intact=True, default_controls=True),
    "chg": Method(causal_head_gating, "model"),
    "contrastive": Method(contrastive_gating, "model"),
    "gradient": Method(gradient_importance, "model", fixed={"signed": False}),
    "attribution": Method(gradient_importance, "model", fixed={"signed": True}),
    "mediation": Method(mediation, "model"),
}
"""Every method that ``find_heads``, ``compare`` and the command line know."""


def method_named(name: Any) -> Method:
    """The method of this name; an unknown one raises ``ValueError``."""
    check_one_of("method", name, METHODS)
    return METHODS[name]
