"""Methods side by side: the same model, task and budget, judged on the same unseen examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from cs_heads.analysis.agreement import overlap, rank_biased_overlap, spearman
from cs_heads.heads import Head, HeadGrid
from cs_heads.measure.baseline import BaselineTooLowError, check_k, check_size
from cs_heads.measure.cluster import placed
from cs_heads.measure.store import BrokenStoreError, Store
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import method_named
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, confirming_side, control_side, finding_side
from cs_heads.tasks.option_types import check_integer

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("annealed", "css", "csb", "one-shot", "greedy", "chg", "gradient")


@dataclass(frozen=True, eq=False)
class Compared:
    """One method: its ranking, how long it took, and what its heads do to unseen examples.

    ``drops[i]`` is drop@k with k = i + 1, in points; ``controls`` the drop of each control with the top heads off.
    """

    ranking: HeadRanking
    seconds: float
    drops: Float[np.ndarray, " k"]
    controls: dict[str, float]

    @property
    def cost(self) -> dict[str, int | float]:
        """Example-evaluations, the forward and backward passes of one example among them, and seconds."""
        return {"spent": self.ranking.spent, **self.ranking.provenance["cost"], "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several methods say of one task, by the name of the method.

    ``random_drops`` are the drops of random heads, ``[set, k]``: each set grows from one head to the most.
    ``k`` is the number of heads that controls and agreement are told of; ``baseline`` and all drops are
    those of unseen examples; ``spent`` counts the example-evaluations of this judgement alone; ``refused``
    has the methods that did not run, and why.
    """

    methods: dict[str, Compared]
    random_drops: Float[np.ndarray, "set k"]
    k: int
    baseline: float
    spent: int
    refused: dict[str, str]
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def random_drop(self) -> Float[np.ndarray, " k"]:
        """Mean drop of random heads: the line a method must beat."""
        return self.random_drops.mean(axis=0)

    def to_frame(self) -> pd.DataFrame:
        """One row a method: its top heads, cost, drop@1, @k and at the end of the curve, and the controls' drops."""
        import pandas as pd

        most = self.random_drops.shape[1]
        at = sorted({1, min(self.k, most), most})
        return pd.DataFrame(
            {
                "method": name,
                "heads": " ".join(map(str, one.ranking.top(self.k))),
                **one.cost,
                **{f"drop@{k}": one.drops[k - 1] for k in at},
                **{f"control {task}": drop for task, drop in one.controls.items()},
            }
            for name, one in self.methods.items()
        )

    def curves(self) -> pd.DataFrame:
        """Drop by number of heads off: one row a (method, k), and the random heads' mean, least and most."""
        import pandas as pd

        rows = [
            {"method": name, "k": k, "drop": drop, "low": None, "high": None}
            for name, one in self.methods.items()
            for k, drop in enumerate(one.drops, start=1)
        ]
        rows += [
            {"method": "random", "k": k, "drop": sets.mean(), "low": sets.min(), "high": sets.max()}
            for k, sets in enumerate(self.random_drops.T, start=1)
        ]
        return pd.DataFrame(rows).astype({"low": float, "high": float})

    def agreement(self) -> pd.DataFrame:
        """One row a pair of methods: overlap of the top k, rank-biased overlap of the curve's heads, Spearman.

        Spearman is over heads with an importance other than zero in both; NaN where there is no order to compare.
        """
        import pandas as pd

        most = self.random_drops.shape[1]
        rows = []
        for (first, a), (second, b) in combinations(self.methods.items(), 2):
            rows.append(
                {
                    "first": first,
                    "second": second,
                    f"overlap@{self.k}": overlap(a.ranking, b.ranking, self.k),
                    "rank-biased overlap": rank_biased_overlap(a.ranking.top(most), b.ranking.top(most)),
                    "spearman": spearman(a.ranking, b.ranking),
                }
            )
        columns = ["first", "second", f"overlap@{self.k}", "rank-biased overlap", "spearman"]
        return pd.DataFrame(rows, columns=columns).astype({"spearman": float})

    def to_dict(self) -> dict[str, Any]:
        """The whole comparison but for the rankings' importances, JSON-ready."""
        return {
            "k": self.k,
            "baseline": self.baseline,
            "random_drops": self.random_drops.tolist(),
            "methods": {
                name: {
                    "heads": [str(head) for head in one.ranking.top(self.random_drops.shape[1])],
                    **one.cost,
                    "drops": one.drops.tolist(),
                    "controls": one.controls,
                    "notes": list(one.ranking.notes),
                }
                for name, one in self.methods.items()
            },
            "agreement": [
                {**row, "spearman": None if np.isnan(row["spearman"]) else row["spearman"]}  # NaN is no JSON
                for row in self.agreement().to_dict("records")
            ],
            "spent": self.spent,
            "refused": self.refused,
            "provenance": self.provenance,
        }

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.3f}".format, border=0)


def compare(
    model: Any,
    task: Task,
    *,
    methods: Sequence[str] = METHODS,
    budget: int | None = None,
    k: int = 5,
    most: int = 10,
    n: int = 100,
    n_random: int = 8,
    controls: Sequence[Task] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
    workers: int | None = None,
    address: str | None = None,
    store: str | Path | Store | None = None,
) -> Comparison:
    """Find heads by each of ``methods`` on the finding examples, and ablate them on up to ``n`` unseen ones.

    Every method runs by ``find_heads``, as if it were alone, with the same ``budget`` (None: what each takes by
    default) and ``seed``; ``options`` has more of a method's own, by its name, as in
    ``{"chg": {"n_seeds": 4}}``. Each ranking's first 1, 2, ..., ``most`` heads are ablated, and as many of
    ``n_random`` random orders of all heads; methods whose search depends on the number wanted are told
    ``most``. ``controls`` are other tasks, measured with the top ``k`` off; the first also serves the search of
    methods that take a control, by examples it is not measured with. A mask that several methods ask for is measured
    once where there is a ``store``, and counted for each. ``model`` may be a ``Cluster``, and ``workers`` or
    ``address`` make one for this call; methods that start from the model itself run here all the same.

    Unknown methods and options, and a task without unseen examples, raise ``ValueError`` before the model
    runs. A method that refuses its budget or the value of an option stands in ``refused`` with its reason,
    so that what the others measured is kept; where all refuse, the first reason is raised. So is a
    baseline that is too low.
    """
    from cs_heads.measure.experiment import Experiment

    check_integer("seed", seed, 0)
    options = dict(options or {})
    _check(methods, options, n_random, k, most)
    _check_controls(controls)
    settings: dict[str, Any] = {"progress": progress, "batch_tokens": batch_tokens, "prepend_bos": prepend_bos}
    unseen = confirming_side(task)
    check_size(finding_side(task))
    check_size(unseen)
    with placed(model, workers, address) as place:
        judged = Experiment(place, unseen.take(n), store=store, **settings)
        settings["store"] = judged.store
        grid = judged.grid
        check_k(most, grid.size, "most")
        others = [Experiment(place, control_side(control, n, seed), **settings) for control in controls]

        rankings: dict[str, tuple[HeadRanking, float]] = {}
        refused: dict[str, ValueError] = {}
        for name in methods:
            more = {"budget": budget, "seed": seed, **settings, **options.get(name, {})}
            if controls and method_named(name).takes_control:
                more["control"] = controls[0]
            start = perf_counter()
            try:
                found = find_heads(place, task, k=most, method=name, **more)
            except (BaselineTooLowError, BrokenStoreError):
                raise
            except ValueError as error:
                refused[name] = error
            else:
                rankings[name] = found, perf_counter() - start
        if not rankings:
            raise next(iter(refused.values()))
        rng = np.random.default_rng(seed)
        random = [[grid.head(int(i)) for i in rng.permutation(grid.size)[:most]] for _ in range(n_random)]
        baseline = float(judged.baseline().mean())
        compared = {
            name: Compared(
                ranking=ranking,
                seconds=seconds,
                drops=baseline - judged(_growing(grid, ranking.top(most))).mean(axis=1),
                controls={other.task.name: _drop(other, ranking.top(k)) for other in others},
            )
            for name, (ranking, seconds) in rankings.items()
        }
        return Comparison(
            methods=compared,
            random_drops=np.stack([baseline - judged(_growing(grid, heads)).mean(axis=1) for heads in random]),
            k=k,
            baseline=baseline,
            spent=judged.spent + sum(other.spent for other in others),
            refused={name: str(error) for name, error in refused.items()},
            provenance={**judged.provenance(), "budget": budget, "n_random": n_random, "seed": seed},
        )


def _check(methods: Sequence[str], options: Mapping[str, Mapping[str, Any]], n_random: int, k: int, most: int) -> None:
    if isinstance(methods, str) or not methods or len({*methods}) < len(methods):
        raise ValueError(f"methods must be a list of different names, got {methods!r}")
    for name in methods:
        method_named(name).check(name, dict(options.get(name, {})))
    foreign = [name for name in options if name not in methods]
    if foreign:
        raise ValueError(f"options must be those of the methods compared, got some for {', '.join(foreign)}")
    if n_random < 1:
        raise ValueError(f"n_random must be 1 or more, got {n_random}")
    if not 1 <= k <= most:
        raise ValueError(f"k must be in 1..{most}, the heads of the drop curve (most); got {k}")


def _check_controls(controls: Sequence[Task]) -> None:
    if isinstance(controls, Task):
        raise ValueError("controls must be a list of tasks, got one task")
    names = [control.name for control in controls]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"controls must have different names, got two or more of {', '.join(map(repr, twice))}")


def _growing(grid: HeadGrid, heads: Sequence[Head]) -> Bool[np.ndarray, "row layer head"]:
    """A mask with the first head off, one with the first two, and so on."""
    return np.stack([grid.mask(heads[: i + 1]) for i in range(len(heads))])


def _drop(experiment: Any, heads: Sequence[Head]) -> float:
    return float(experiment.baseline().mean() - experiment(experiment.grid.mask(heads)[None]).mean())
