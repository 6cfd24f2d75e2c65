"""How heads change the answer: what they write straight into the logits, and what goes through later units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from typing_extensions import Unpack

from cs_heads.analysis.found_heads import Found, heads_of, model_of
from cs_heads.analysis.intervals import difference_interval
from cs_heads.analysis.result import Result
from cs_heads.cluster import ModelLike, local_model
from cs_heads.experiment.controls import found_on, unseen_side
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens.attention import token_texts
from cs_heads.lens.batches import TokenBudget, default_tokens
from cs_heads.lens.circuits import Margins
from cs_heads.lens.direct import Writes, direct_writes, likeliest_of, unit_writes
from cs_heads.lens.model import tokenizer_of
from cs_heads.lens.sources import writes_by_source
from cs_heads.progress import one_bar
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.text import TokenIds
from cs_heads.units import Head, HeadLike, Unit

_WHY = "logits of two first tokens are compared"
SETTINGS = ("units", "prepend_bos", "dtype", "batch_tokens", "progress", "store")


@dataclass(frozen=True, eq=False, repr=False)
class DirectEffects(Result):
    """What units write into the difference of two logits: the right answer's first token less that of the best wrong.

    All numbers are in nats, before a soft cap of the logits.

    Attributes:
        heads: The heads, or other units, whose effects are told apart.
        writes: By example what every head and layer of the intact model writes, with the scale of the final norm held.
        written: The same of each of ``heads``.
        direct: How much the difference falls where one of them is missing from the last residual stream alone; all
            later heads and layers do what they do in the intact model.
        total: How much it falls with one of them ablated.
        added: What each adds behind the final norm, on average; of heads None.
        sources: Of each example what every token that a head reads from makes of what it writes: ``by_source()``.
        prompts: The tokens of each example's prompt.
        texts: The same as a reader sees them.
        answers: The first tokens of its right and its best wrong answer.
        places: Its place among the unseen examples.
        spent: Example-evaluations.
        provenance: Model and task.
        notes: Examples that were left out.
    """

    heads: tuple[Unit, ...]
    writes: Writes
    written: Float[np.ndarray, "example chosen"]
    direct: Float[np.ndarray, "example chosen"]
    total: Float[np.ndarray, "example chosen"]
    prompts: tuple[TokenIds, ...]
    answers: Int[np.ndarray, "example 2"]
    places: tuple[int, ...]
    added: Float[np.ndarray, "chosen d_model"] | None = None
    sources: tuple[Float[np.ndarray, "chosen _"], ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()

    @property
    def through_others(self) -> Float[np.ndarray, "example chosen"]:
        """What is left of the total effect: what later heads and layers do otherwise without the head."""
        return self.total - self.direct

    def to_frame(self) -> pd.DataFrame:
        """One row per head: what it writes, its effects with 95 % intervals of the mean, and its place among all heads.

        ``writes more than`` is the share of the other heads of the model that write less, in absolute numbers; it is
        said of heads alone.
        """
        all_heads = np.abs(self.writes.heads.mean(axis=0)).ravel()
        columns = (self.written, self.total, self.direct, self.through_others)
        rows = []
        for place, head in enumerate(self.heads):
            row: dict[str, object] = {"head": str(head)}
            for name, values in zip(("writes", "total", "direct", "through others"), columns, strict=True):
                mean, low, high = difference_interval(values[:, place])
                row |= {name: mean, f"{name} low": low, f"{name} high": high}
                if name == "writes" and isinstance(head, Head):
                    row["writes more than"] = float((all_heads < abs(mean)).sum() / max(1, len(all_heads) - 1))
            rows.append(row)
        return pd.DataFrame(rows)

    def by_layer(self) -> pd.DataFrame:
        """Mean of what each part writes: a row for the embedding and one a layer; all numbers sum to the difference."""
        heads, attention, mlps = (
            part.mean(axis=0) for part in (self.writes.heads.sum(axis=2), self.writes.attention, self.writes.mlps)
        )
        rows = [(str(layer), *parts, 0.0) for layer, parts in enumerate(zip(heads, attention, mlps, strict=True))]
        first = ("embedding and last biases", 0.0, 0.0, 0.0, self.writes.rest.mean())
        return pd.DataFrame([first, *rows], columns=["layer", "heads", "attention biases", "mlp", "rest"])

    def by_source(self) -> pd.DataFrame:
        """One row per example, head and token: how much of what the head *writes* it reads from there.

        It is the head's attention to the token, from the last one, times the values there, through W_O; over a prompt
        it sums to what the head writes.

        Raises:
            ValueError: Other units than heads, or a model whose heads are no such sums.
        """
        if not self.sources:
            raise ValueError("tokens are told apart of heads alone, and where these sum values by their patterns")
        rows = [
            {"example": place, "head": str(head), "position": at, "token": text, "writes": float(part)}
            for place, texts, by_head in zip(self.places, self.texts, self.sources, strict=True)
            for head, parts in zip(self.heads, by_head, strict=True)
            for at, (text, part) in enumerate(zip(texts, parts, strict=True))
        ]
        return pd.DataFrame(rows)


@one_bar("direct effects")
def direct_effects(
    model: ModelLike,
    task: Task,
    heads: Found | Sequence[HeadLike],
    *,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> DirectEffects:
    """Tell apart what heads write straight into the answer, and what they do through later heads and layers.

    On unseen examples, at the last token of the prompt. The answer is the logit of the right answer's first token less
    that of the best wrong one: the wrong choice that the intact model likes best, or for completions the token that it
    likes best beside the right one. Costs four forwards an example, and one more for each head or two for
    each other unit.

    *Writes* is logit attribution (Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021): with the
    scale of the final norm held, what all parts of the model write adds up to the difference. *Direct* takes the head
    out of the last residual stream and lets the norm be; *total* is that of its ablation.

    Args:
        model: Your own TransformerLens model, the name of one, or a ``Cluster``: its model in this process is run.
        task: Choices or completions; their first tokens are compared.
        heads: A ranking, or a list of heads, or of other units of the kind ``units``.
        n: Unseen examples at most.
        settings: ``units``, ``prepend_bos``, ``dtype``, ``batch_tokens``, ``progress``, ``store``: as of
            ``Experiment``.

    Returns:
        By example and head the three effects, and what every part of the model writes.

    Raises:
        ValueError: A task without answers, too few examples whose answers begin with different tokens, heads that the
            model has not, a ranking found with other heads off, or a model whose layers do not add up.
    """
    asked = Settings.of(settings, SETTINGS)
    unseen, notes = unseen_side(task, n, found_on(heads))
    how: SettingsArguments = {**settings, "dtype": None}
    with Experiment(local_model(model, asked), unseen, **how) as experiment:
        chosen = heads_of(experiment.grid, heads, model=model_of(experiment))
        found, _ = effects_and_margins(experiment, chosen, room_of(experiment))
        return replace(found, notes=(*notes, *found.notes))


def room_of(experiment: Experiment) -> TokenBudget:
    """Tokens of one forward that reads inside the model."""
    return TokenBudget(experiment.settings.batch_tokens or default_tokens(experiment.model, "patching"))


def effects_and_margins(
    experiment: Experiment, heads: tuple[Unit, ...], room: TokenBudget
) -> tuple[DirectEffects, Margins]:
    """The effects of heads on all examples of an experiment, and the margins that they are differences of.

    Args:
        experiment: On the unseen side of a task.
        heads: The heads, or other units.
        room: Tokens of one forward; it counts the rows.
    """
    model, of_heads = experiment.model, experiment.grid.kind == "heads"
    prompts, answers, places, notes = _answers(experiment, room)
    writes = direct_writes(model, prompts, answers, room)
    # What heads write is seen in one forward.
    made = writes.of(heads) if of_heads else unit_writes(model, prompts, answers, heads, room)
    sources = writes_by_source(model, prompts, answers, heads, room) if of_heads else ()
    margins = Margins(model, prompts, answers, heads, room)
    found = DirectEffects(
        heads=heads,
        writes=writes,
        written=made.written,
        direct=writes.difference[:, None] - made.without,
        total=margins.lost(heads),
        prompts=tuple(prompts),
        answers=answers,
        places=tuple(places),
        added=made.mean,
        sources=sources,
        texts=tuple(tuple(token_texts(tokenizer_of(model), prompt)) for prompt in prompts),
        spent=room.rows,
        provenance=experiment.provenance(),
        notes=tuple(notes),
    )
    return found, margins


def _answers(
    experiment: Experiment, room: TokenBudget
) -> tuple[list[TokenIds], Int[np.ndarray, "row 2"], list[int], list[str]]:
    """Prompts, the first tokens of right and best wrong answers, which examples' they are, and notes on the others."""
    rows, places, right, wrong, alike = list[TokenIds](), list[int](), list[int](), list[list[int]](), 0
    for place, (tokens, example) in enumerate(zip(experiment.encoded, experiment.task.examples, strict=True)):
        if tokens.positions or tokens.prompts or not example.continuations:
            raise ValueError(
                f"task {experiment.name!r} must have one prompt an example, and answers that follow it: {_WHY}"
            )
        first = [continuation[0] for continuation in tokens.continuations]
        others = [token for index, token in enumerate(first) if index != example.answer]
        if first[example.answer] in others:
            alike += 1
            continue
        rows.append(tokens.prompt)
        places.append(place)
        right.append(first[example.answer])
        wrong.append(others)
    if len(rows) < MIN_CORRECT:
        raise ValueError(
            f"task {experiment.name!r} must have {MIN_CORRECT} unseen examples or more whose right answer begins with "
            f"a token of its own, got {len(rows)}"
        )
    notes = [f"{alike} examples whose answers begin with the same token are left out"] if alike else []
    best = likeliest_of(experiment.model, rows, wrong, right, room)
    return rows, np.stack([np.array(right), best], axis=1), places, notes
