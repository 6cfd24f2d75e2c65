"""Sufficiency beside necessity: how much of what the model does is left with a ranking's first units alone.

The **faithfulness** of a circuit C is f(C) = (m(C) - m(nothing)) / (m(intact) - m(nothing)), where m is the mean
response with all units but those of C ablated: 0 with nothing kept, 1 where C does as well as the whole model, more
where it does better. **CPR** is the area under f over the share of units kept, from 0 to 1, and **CMD** the area of
|1 - f|, both by the trapezoid rule (Mueller et al., MIB, arXiv 2504.13151, whose areas begin at a share of .001): a
good ranking has a CPR that is large, or a CMD that is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.integrate import trapezoid
from typing_extensions import Unpack

from cs_heads.analysis.columns import Judged, in_role, unseen_columns
from cs_heads.analysis.found_heads import heads_of, model_of
from cs_heads.analysis.intervals import Interval, wilson_interval
from cs_heads.analysis.result import Result, leading
from cs_heads.arguments import check_integer, check_list, check_seed, fits, in_line
from cs_heads.cluster import ModelLike
from cs_heads.designs import different
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import BaselineTooLowError, baseline_too_low, remedy
from cs_heads.experiment.protocol import ExperimentLike, check_response, measured, responding
from cs_heads.progress import expect, one_bar
from cs_heads.ranking import HeadRanking
from cs_heads.record import Record
from cs_heads.settings import SettingsArguments
from cs_heads.units import Grid

SHARES = (0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
"""Shares of the units kept that MIB measures."""

RANDOM = "random"
"""The name of random orders in tables."""

_RESAMPLES = 2000
# Standard errors by which the intact model must exceed the one with nothing kept: a ratio to less is noise.
_CLEAR = 3
# Of a difference: less is rounding.
_NOTHING = 1e-9


@dataclass(frozen=True, eq=False)
class FaithfulnessCurve(Record):
    """Faithfulness of one ranking at each number of units kept, with 95 % intervals of a bootstrap over examples.

    Each resample has the same examples for every circuit, the intact model and the one with nothing kept. Where no
    score changes, as many as may hide in so many examples are allowed for (Wilson). The lower bound of ``cmd`` counts
    only points whose f is clearly not 1.

    Attributes:
        responses: Mean response at each number of units kept.
        faithfulness: f at each.
        bounds: Lower and upper bound of each f.
        cpr: Area under f.
        cmd: Area of |1 - f|.
        cpr_interval: That of ``cpr``.
        cmd_interval: That of ``cmd``.
    """

    responses: Float[np.ndarray, " share"]
    faithfulness: Float[np.ndarray, " share"]
    bounds: Float[np.ndarray, "share bound"]
    cpr: float
    cmd: float
    cpr_interval: Interval
    cmd_interval: Interval


@dataclass(frozen=True, eq=False, repr=False)
class Faithfulness(Result, Drawable, picture="faithfulness"):
    """How faithful the first units of each ranking are, all others ablated, on unseen examples.

    Attributes:
        curves: By the name of the ranking.
        kept: Numbers of units kept, from 0 to all of the grid.
        unit: What one unit is called.
        response: What is measured: ``score``, ``probability`` or ``margin``.
        intact: Its mean on the intact model.
        empty: Its mean with every unit ablated.
        spent: Example-evaluations.
        random: f of random orders of all units (None: not measured).
        provenance: Model, task, shares and seed.
        notes: Where the order of a ranking says less than it seems: shared units come last, and those ranked alike by
            layer and index.
    """

    curves: dict[str, FaithfulnessCurve]
    kept: tuple[int, ...]
    unit: str
    response: str
    intact: float
    empty: float
    random: Float[np.ndarray, "set share"] | None = None

    @property
    def shares(self) -> Float[np.ndarray, " share"]:
        """Shares of the units kept."""
        return np.array(self.kept) / self.kept[-1]

    def to_frame(self) -> pd.DataFrame:
        """One row per (ranking, number of units kept): share, mean response, faithfulness and its interval.

        Random orders are rows of their own (``random``), with their mean, least and largest faithfulness.
        """
        rows = {name: (one.responses, one.faithfulness, *one.bounds.T) for name, one in self.curves.items()}
        if self.random is not None:
            mean = self.random.mean(axis=0)
            response = self.empty + (self.intact - self.empty) * mean
            rows[RANDOM] = response, mean, self.random.min(axis=0), self.random.max(axis=0)
        columns = ["found", "kept", "share", "response", "faithfulness", "low", "high"]
        points = [
            (name, *point) for name, each in rows.items() for point in zip(self.kept, self.shares, *each, strict=True)
        ]
        return pd.DataFrame(points, columns=columns)

    def areas(self) -> pd.DataFrame:
        """One row per ranking: CPR and CMD with their intervals; of random orders mean, least and largest."""
        columns = ("cpr", "cpr_low", "cpr_high", "cmd", "cmd_low", "cmd_high")
        rows = [(name, one.cpr, *one.cpr_interval, one.cmd, *one.cmd_interval) for name, one in self.curves.items()]
        if self.random is not None:
            cpr, cmd = areas(self.shares, self.random)
            rows.append((RANDOM, cpr.mean(), cpr.min(), cpr.max(), cmd.mean(), cmd.min(), cmd.max()))
        return pd.DataFrame(rows, columns=["found", *columns])

    def leading(self) -> tuple[str, ...]:
        """The ranking with the largest CPR, then all whose CPR lies within its 95 % interval, the larger first."""
        return leading({name: (one.cpr, one.cpr_interval[0]) for name, one in self.curves.items()})

    def _table(self) -> pd.DataFrame:
        return self.areas()


def areas(
    shares: Float[np.ndarray, " share"], faithful: Float[np.ndarray, "row share"]
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """CPR and CMD of each row, by the trapezoid rule over the share kept.

    >>> areas(np.array([0.0, 0.5, 1.0]), np.array([[0.0, 1.0, 1.0]]))
    (array([0.75]), array([0.25]))
    """
    return trapezoid(faithful, shares), trapezoid(np.abs(1 - faithful), shares)


@one_bar("faithfulness")
def faithfulness(
    model: ModelLike | None,
    task: Judged,
    found: HeadRanking | Mapping[str, HeadRanking],
    *,
    shares: Sequence[int | float] = SHARES,
    response: str | None = None,
    n: int = 100,
    n_random: int = 4,
    seed: int = 0,
    **settings: Unpack[SettingsArguments],
) -> Faithfulness:
    """Keep the first units of a ranking and ablate all others, on unseen examples: are they enough for the task?

    Where ``sparsity_curve`` asks whether the task needs the first units, this asks whether the task can do with them
    alone. At a share k the first ``round(k * size)`` units of ``ranking.order`` are kept, one at least where k > 0;
    shares that keep as many units are measured once. With nothing kept f is 0, and with all units it is 1: both are
    always measured. f is the difference of mean responses to the model with nothing kept, as a share of that of the
    intact model; CPR is the area under f over the share kept, and CMD that of |1 - f| (Mueller et al., MIB, arXiv
    2504.13151). Costs at most ``n`` example-evaluations for each number of units, ranking and random order; by default,
    with one ranking, 48 ``n``, one of them the score of the intact model where the response is another.

    ``ablation="mean"`` or ``"optimal"`` are usual here: zeroing most of a model, which is allowed, takes it far from
    what it was trained to compute.

    Args:
        model: A model, the name of one, or a ``Cluster``; None: ``task`` is an experiment (see ``cs_heads.analysis``).
        task: The task that the units were found on.
        found: A ranking of the units of ``settings``, or several by name.
        shares: Of the units kept, between 0 and 1; those of MIB by default.
        response: ``"margin"``, ``"probability"`` or ``"score"``, as of ``Experiment.respond`` (None: the margin where
            the experiment has one, else the score, as of a task that a scorer judges).
        n: Unseen examples at most.
        n_random: Random orders of all units, for comparison.
        seed: Draws the random orders, and the bootstrap.
        settings: As of ``Experiment``.

    Returns:
        By ranking f at each number of units kept, with 95 % intervals, CPR and CMD; beside them f of the random orders
        ``[set, share]``. ``areas()`` is a table of CPR and CMD.

    Raises:
        ValueError: No ranking, one of another grid, shares outside 0..1, a response that the experiment has not, or a
            task without 20 unseen examples. Raised before the model runs.
        BaselineTooLowError: The intact model cannot do the task, or its mean response is not clearly (by three standard
            errors) above that with nothing kept; nothing else is measured then.
    """
    check_seed(seed)
    check_integer("n_random", n_random, 0)
    shares, rankings = check_shares(shares), _rankings(found)
    if response is not None:
        check_response(response)
    with unseen_columns(model, in_role("own", [task]), rankings, n=n, seed=seed, settings=settings) as columns:
        [experiment], left_out = columns[0].parts, columns[0].notes
        for name, ranking in rankings.items():
            heads_of(experiment.grid, ranking, name=f"found[{name!r}]", model=model_of(experiment), beside_off=True)
        if response is None:
            response = "margin" if "margin" in experiment.responses else "score"
        asked = {"shares": shares, "response": response, "n_random": n_random, "seed": seed}
        kept = _numbers_kept(shares, experiment.grid)
        orders = [np.array(list(map(experiment.grid.index, one.order))) for one in rankings.values()]
        rng = np.random.default_rng([seed, 1])
        orders += [rng.permutation(experiment.grid.size) for _ in range(n_random)]
        responses, place = _responses(experiment, response, orders, kept)
        intact, empty = responses[:2]

        # The same resamples of the examples for every circuit, the intact model and the one with nothing kept.
        size = experiment.n_examples
        counts = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=_RESAMPLES)
        means = responses.mean(axis=1)
        faithful, resampled = _faithful(means[None])[0], _faithful(counts @ responses.T / size)
        # Of equal answers a bootstrap knows nothing: where all are right or wrong, as many as may hide in n examples.
        reach = wilson_interval(0, size)[1] / float(means[0] - means[1]) if response == "score" else 0.0
        return Faithfulness(
            curves={
                name: _curve(np.array(kept), means[row], faithful[row], resampled[:, row], reach)
                for name, row in zip(rankings, place, strict=False)
            },
            kept=kept,
            unit=experiment.grid.word,
            response=response,
            intact=float(intact.mean()),
            empty=float(empty.mean()),
            spent=responses.size + (response != "score") * size + experiment.preparation,
            random=faithful[place[len(rankings) :]] if n_random else None,
            provenance=experiment.provenance() | asked,
            notes=(*(said for one in rankings.items() for said in _order_notes(*one)), *left_out),
        )


def _responses(
    experiment: ExperimentLike, response: str, orders: Sequence[Int[np.ndarray, " flat"]], kept: Sequence[int]
) -> tuple[Float[np.ndarray, "mask example"], Int[np.ndarray, "order share"]]:
    """Responses under each different mask, the first intact and the second empty, and the mask of each circuit."""
    ask = responding(experiment, response)
    grid, n = experiment.grid, experiment.n_examples
    expect((2 + (response != "score") + len(orders) * len(kept)) * n + experiment.preparation)
    ends = np.stack([np.zeros(grid.shape, dtype=bool), np.ones(grid.shape, dtype=bool)])
    responses = ask(ends, None)
    scores = responses[0] if response == "score" else measured(experiment, ends[:1])[0]
    _check_clear(experiment, scores, responses, response)
    # All units are off but the first so many of an order.
    masks = [(np.argsort(order) >= np.array(kept)[:, None]).reshape(-1, *grid.shape) for order in orders]
    once, place = different(np.concatenate([ends, *masks]))
    if len(once) > 2:
        responses = np.concatenate([responses, ask(once[2:], None)])
    return responses, place[2:].reshape(len(orders), len(kept))


def check_shares(shares: Any) -> list[float]:
    """The shares as a list; raises ``ValueError`` unless they are numbers in 0..1, one or more."""
    listed = check_list("shares", shares, "numbers in 0..1")
    wrong = [share for share in listed if not (fits(share, float) and 0 <= share <= 1)]
    if wrong or not listed:
        raise ValueError(f"shares must be numbers in 0..1, got {in_line(wrong[0]) if wrong else 'none'}")
    return [float(share) for share in listed]


def _rankings(found: Any) -> Mapping[str, HeadRanking]:
    """Rankings by name; one alone has the name of its method."""
    given = {found.method: found} if isinstance(found, HeadRanking) else found
    values = given.values() if isinstance(given, Mapping) else ()
    if not values or not all(isinstance(each, HeadRanking) for each in values):
        raise ValueError(f"found must be a HeadRanking, or rankings by name, got {in_line(found)}")
    if RANDOM in given:
        raise ValueError(f"found must have other names than {RANDOM!r}, which is that of random orders")
    return given


def _numbers_kept(shares: Sequence[int | float], grid: Grid) -> tuple[int, ...]:
    """The different numbers of units kept, 0 and all of them among these."""
    # Rounded first: 0.005 * 300 must be 1.5, not 1.4999....
    each = (max(1, round(round(share * grid.size, 9))) if share else 0 for share in shares)
    return tuple(sorted({0, *each, grid.size}))


def _order_notes(name: str, ranking: HeadRanking) -> list[str]:
    """What an order does with shared units, and with those that a method cannot tell apart."""
    grid, notes = ranking.grid, []
    if ranking.shared:
        some = "" if len(ranking.shared) == 1 else "s"
        notes.append(f"{name} keeps {len(ranking.shared)} shared {grid.word}{some} after all others")
    _, counts = np.unique(ranking.importance if ranking.z is None else ranking.z, return_counts=True)
    equal = int(counts.max())
    if equal > max(1, grid.size // 10):
        notes.append(f"{name} ranks {equal} of {grid.size} {grid.word}s alike, and keeps these by layer and index")
    return notes


def _check_clear(
    experiment: ExperimentLike,
    scores: Float[np.ndarray, " example"],
    ends: Float[np.ndarray, "2 example"],
    response: str,
) -> None:
    """Raise ``BaselineTooLowError`` where the intact model cannot do the task, or hardly differs from an empty one."""
    low = baseline_too_low(experiment, scores)
    if low:
        raise BaselineTooLowError(f"task {experiment.name!r}: {low}; {remedy(experiment)}")
    intact, empty = ends
    gain = intact - empty
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    if gain.mean() <= max(_CLEAR * error, _NOTHING):
        word = experiment.grid.word
        raise BaselineTooLowError(
            f"task {experiment.name!r}: the mean {response} of the intact model, {intact.mean():.3f}, must be "
            f"clearly above that with every {word} ablated, {empty.mean():.3f} (by {_CLEAR} standard errors, "
            f"{_CLEAR * error:.3f}): use another response, ablation or task"
        )


def _faithful(means: Float[np.ndarray, "row mask"]) -> Float[np.ndarray, "row mask"]:
    """F of each mask, the first being the intact model and the second an empty one; NaN where these do not differ."""
    intact, empty = means[:, :1], means[:, 1:2]
    return np.divide(means - empty, intact - empty, out=np.full_like(means, np.nan), where=intact > empty)


def _curve(
    kept: Int[np.ndarray, " share"],
    responses: Float[np.ndarray, " share"],
    faithful: Float[np.ndarray, " share"],
    resampled: Float[np.ndarray, "sample share"],
    reach: float,
) -> FaithfulnessCurve:
    shares = kept / kept[-1]
    n = len(shares)
    # The few resamples in which the intact model is no better than an empty one have no ratio.
    resampled = resampled[~np.isnan(resampled).any(axis=1)]
    (cpr,), (cmd,) = areas(shares, faithful[None])
    numbers, samples = np.array([*faithful, cpr, cmd]), np.column_stack([resampled, *areas(shares, resampled)])
    low, high = np.quantile(samples, (0.025, 0.975), axis=0)
    # A distance of resamples is never 0, that of the truth may be, wherever the interval of f holds 1.
    clear = (low[:n] > 1) | (high[:n] < 1)
    low[-1] = np.quantile(trapezoid(np.abs(1 - resampled) * clear, shares), 0.025)
    below, above = np.maximum(numbers - low, 0), np.maximum(high - numbers, 0)
    # Nothing kept, and all of it, are 0 and 1 by definition.
    flat = (np.maximum(below, above) < _NOTHING)[:n] * np.where((kept > 0) & (kept < kept[-1]), reach, 0.0)
    # Points where no answer changes are as uncertain together as each by itself, and independent of the others.
    beyond = np.array([*flat, *[trapezoid(flat, shares)] * 2])
    low, high = numbers - np.hypot(below, beyond), numbers + np.hypot(above, beyond)
    # No area of a distance is negative.
    low[-1] = max(0.0, low[-1])
    bounds = np.stack([low, high], axis=1)
    of_cpr, of_cmd = map(tuple, bounds[n:].tolist())
    return FaithfulnessCurve(responses, faithful, bounds[:n], float(cpr), float(cmd), of_cpr, of_cmd)
