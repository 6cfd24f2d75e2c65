"""The methods by name: a new one joins by one line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_type_hints

from cs_heads.arguments import Option, check_one_of, described
from cs_heads.methods.annealing import annealed
from cs_heads.methods.annealing import bound as bound_of_annealed
from cs_heads.methods.compressed_sensing import bound as bound_of_masks
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.methods.gating import bound as bound_of_gates
from cs_heads.methods.gating import bound_of_contrast, causal_head_gating, contrastive_gating
from cs_heads.methods.gradient import bound as bound_of_gradients
from cs_heads.methods.gradient import gradient_importance
from cs_heads.methods.greedy import bound as bound_of_greedy
from cs_heads.methods.greedy import greedy
from cs_heads.methods.group_testing import bound as bound_of_groups
from cs_heads.methods.group_testing import group_testing
from cs_heads.methods.mediation import bound as bound_of_mediation
from cs_heads.methods.mediation import mediation
from cs_heads.ranking import HeadRanking

# What the caller gives every method, and no user sets as an option.
_GIVEN = ("seed", "budget", "k", "controls")


def _of_budget(_: Any, *, budget: int | None = None, **__: Any) -> int:
    """What a method may take of which nothing else is known."""
    return budget or 0


@dataclass(frozen=True)
class Method:
    """One way to a ranking.

    ``run`` takes an experiment, ``seed=`` and ``budget=``. A method with ``k=`` is told how many heads are wanted, one
    with ``controls=`` is given experiments on other tasks. Its other keyword-only arguments are its options, which the
    command line and ``compare`` take by name. Where ``default_controls`` says so it has the default controls unless
    the caller says otherwise; the methods of papers stand as they are there.

    Attributes:
        run: The function.
        bound: The most example-evaluations that it takes, by the same arguments but ``seed``; by default its budget.
        uses: What it asks of the experiment: masks, or also the model in this process, for its gradients or for
            patches. Methods of the second kind run the intact model by themselves, and count it.
        measures_intact: Whether a method that uses masks runs and counts the intact model by itself.
        default_controls: Whether the default controls serve its search.
    """

    run: Callable[..., HeadRanking]
    bound: Callable[..., int] = _of_budget
    uses: Literal["masks", "model"] = "masks"
    measures_intact: bool = False
    default_controls: bool = False

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The arguments of ``run``."""
        return dict(inspect.signature(self.run).parameters)

    @property
    def about(self) -> str:
        """What the method does, in a line: how its docstring begins."""
        told = (inspect.getdoc(getattr(self.run, "func", self.run)) or "").partition("\n\n")[0]
        fixed = ", ".join(f"{name}={value}" for name, value in getattr(self.run, "keywords", {}).items())
        return f"{' '.join(told.split()).rstrip('.')}{fixed and f' ({fixed})'}"

    @property
    def takes_k(self) -> bool:
        """Whether the search depends on how many heads are wanted."""
        return "k" in self.parameters

    @property
    def takes_controls(self) -> bool:
        """Whether other tasks can help the search."""
        return "controls" in self.parameters

    @cached_property
    def options(self) -> dict[str, Option]:
        """What a user may set: keywords of ``run``, but for those its name stands for and those every method has."""
        run = getattr(self.run, "func", self.run)
        fixed, types, texts = getattr(self.run, "keywords", {}), get_type_hints(run), described(run)
        return {
            name: Option(name, types.get(name, str), parameter.default, texts.get(name, ""))
            for name, parameter in self.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in (*fixed, *_GIVEN)
        }


METHODS: dict[str, Method] = {
    "annealed": Method(annealed, bound_of_annealed, measures_intact=True, default_controls=True),
    "css": Method(partial(compressed_sensing, design="stratified"), bound_of_masks, measures_intact=True),
    "csb": Method(partial(compressed_sensing, design="bernoulli"), bound_of_masks, measures_intact=True),
    "one-shot": Method(partial(greedy, one_shot=True), partial(bound_of_greedy, one_shot=True)),
    "greedy": Method(partial(greedy, one_shot=False), bound_of_greedy),
    "group-testing": Method(group_testing, bound_of_groups, measures_intact=True, default_controls=True),
    "chg": Method(causal_head_gating, bound_of_gates, "model"),
    "contrastive": Method(contrastive_gating, bound_of_contrast, "model"),
    "gradient": Method(partial(gradient_importance, signed=False), bound_of_gradients, "model"),
    "attribution": Method(partial(gradient_importance, signed=True), bound_of_gradients, "model"),
    "mediation": Method(mediation, bound_of_mediation, "model"),
}
"""Every method that ``find_heads``, ``compare`` and the command line know."""


def method_named(name: Any) -> Method:
    """The method of this name; an unknown one raises ``ValueError``."""
    check_one_of("method", name, METHODS)
    return METHODS[name]
