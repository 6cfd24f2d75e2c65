"""The head atlas: which heads serve which skill, and which serve all, from one set of masks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.cluster.hierarchy import fcluster, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform
from typing_extensions import Unpack

from cs_heads.analysis.confirm import Confirmation, measure_proof
from cs_heads.analysis.drops import Column, TaskDrops, measure_drops
from cs_heads.analysis.random_heads import random_sets
from cs_heads.analysis.result import Result, json_ready
from cs_heads.arguments import check_integer, check_path, check_seed, read_saved
from cs_heads.cluster import Cluster, ModelLike, source_of
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import MIN_CORRECT, check_size, fitting_k
from cs_heads.experiment.controls import check_apart, unseen_side
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import preparation_of
from cs_heads.experiment.together import Asked, measure_together
from cs_heads.lens.model import tokenizer_of
from cs_heads.methods.annealing.joint import annealed_jointly, check_joint_budget, per_task
from cs_heads.methods.annealing.task_search import alone_intervals, universal_of
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, finding_side
from cs_heads.tasks.controls import MIN_DEFAULTS, are_kin, family_of
from cs_heads.tasks.sides import check_tasks
from cs_heads.units import Unit

FORMAT = "cs-heads atlas"

# A loss must be so many standard errors, and so much of the score above chance, to call a head one of a skill; and
# what is subtracted where skills are compared.
_CLEAR, _MUCH, _DOUBT = 4.0, 0.1, 2.0


@dataclass(frozen=True, eq=False, repr=False)
class Atlas(Result, Drawable, picture="atlas"):
    """Which heads of a model serve which of several skills, and which serve all.

    Attributes:
        rankings: The heads of each skill, by its name, ranked by what they take from it beyond the other skills.
        losses: What each head takes from each skill among other heads that are off, as a share of its score above
            chance.
        errors: The standard errors of these.
        drops: What the first ``k`` heads of each skill take from every skill on unseen examples.
        proofs: The verdict on the heads of each skill.
        k: Heads of each skill that go off in the proofs.
        left_out: Skills that the model cannot do, and why.
        spent: Example-evaluations.
        provenance: Model, skills and seed.
        notes: What its reader should know.

    Raises:
        ValueError: No ranking, losses or errors of another shape, or proofs of a skill that has no ranking.
    """

    rankings: dict[str, HeadRanking]
    losses: Float[np.ndarray, "skill layer head"]
    errors: Float[np.ndarray, "skill layer head"]
    drops: TaskDrops
    proofs: dict[str, Confirmation]
    k: int
    left_out: dict[str, str]
    spent: int
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.rankings:
            raise ValueError("rankings must hold those of one skill or more")
        wanted = (len(self.rankings), *next(iter(self.rankings.values())).grid.shape)
        for name in ("losses", "errors"):
            if (got := getattr(self, name).shape) != wanted:
                raise ValueError(f"{name} must be [skill, layer, head] = {wanted}, got {got}")
        if foreign := {*self.proofs} - {*self.rankings}:
            raise ValueError(
                f"proofs must be of the skills ranked, {', '.join(self.rankings)}, got {', '.join(foreign)}"
            )

    @property
    def skills(self) -> tuple[str, ...]:
        """The skills, in the order of all tables."""
        return tuple(self.rankings)

    @property
    def heads(self) -> dict[str, tuple[Unit, ...]]:
        """The first ``k`` heads of each skill."""
        return {name: tuple(ranking.top(self.k)) for name, ranking in self.rankings.items()}

    @property
    def universal(self) -> tuple[Unit, ...]:
        """Heads that most skills need, those first that take most (see ``annealed_jointly``)."""
        grid = next(iter(self.rankings.values())).grid
        losses, errors = (each.reshape(len(each), -1) for each in (self.losses, self.errors))
        place = {name: number for number, name in enumerate(self.skills)}
        pairs = [(place[name], place[other]) for name, others in self.kin.items() for other in others]
        return tuple(grid.unit(int(index)) for index in universal_of(losses, errors, pairs))

    @property
    def shared(self) -> dict[Unit, tuple[str, ...]]:
        """Heads of two skills or more that are not universal, and which these are.

        A head is one of a skill where it is among its first ``k``, or takes a tenth of the score above chance and more
        than four standard errors.
        """
        serving: dict[Unit, list[str]] = {}
        universal = {*self.universal}
        for place, (name, ranking) in enumerate(self.rankings.items()):
            clear = (self.losses[place] > _CLEAR * self.errors[place]) & (self.losses[place] > _MUCH)
            for head in sorted({*ranking.top(self.k), *ranking.grid.units(clear)} - universal):
                serving.setdefault(head, []).append(name)
        kept = {head: tuple(names) for head, names in serving.items() if len(names) > 1}
        return dict(sorted(kept.items(), key=lambda item: (-len(item[1]), item[0])))

    @property
    def interfering(self) -> dict[str, tuple[Unit, ...]]:
        """Heads whose removal helps a skill, by the skills that have such heads."""
        return {name: ranking.interfering for name, ranking in self.rankings.items() if ranking.interfering}

    @property
    def importance(self) -> Float[np.ndarray, "skill layer head"]:
        """What each head takes from each skill, in points of score."""
        return np.stack([ranking.importance for ranking in self.rankings.values()])

    @property
    def z(self) -> Float[np.ndarray, "skill layer head"]:
        """By how many standard errors each head takes more from each skill than what is sure of the other skills."""
        return np.stack([np.asarray(ranking.z) for ranking in self.rankings.values()])

    @property
    def interval(self) -> Float[np.ndarray, "skill layer head bound"]:
        """The 95 % intervals of what each head takes from each skill alone (``losses`` are among others)."""
        return alone_intervals(self.losses, self.errors)

    def matrix(self) -> pd.DataFrame:
        """The share of each skill's score above chance that the heads of each skill take, on unseen examples.

        Skills whose heads go off down, skills measured across; NaN where a skill cannot tell.
        """
        return self.drops.matrix("share_lost")

    def means(self) -> tuple[float, float]:
        """The mean loss of skills to their own heads, and to those of other skills.

        A loss counts as 1 at most, since a choice that turns into its opposite loses more, and as 0 at least, since
        what one skill gains makes up for no other's loss. Skills that are kin (the same in another form) are no others.
        """
        losses = self.matrix().clip(0, 1).to_numpy(dtype=float)
        own = np.eye(len(losses), dtype=bool)
        kin = np.array([[other in self.kin.get(name, ()) for other in self.skills] for name in self.skills])
        return float(np.nanmean(losses[own])), float(np.nanmean(losses[~own & ~kin]))

    @property
    def kin(self) -> dict[str, tuple[str, ...]]:
        """Skills that are no controls of each other, since they share questions or ask for the same."""
        told = self.provenance.get("kin", {})
        return {name: tuple(x for x in told[name] if x in self.rankings) for name in self.rankings if name in told}

    def linkage(self) -> Float[np.ndarray, "merge 4"]:
        """The tree of skills by the heads they need, as SciPy's dendrograms take it (average linkage).

        The distance of two skills is 1 less the cosine of what heads surely take from each (two standard errors are
        subtracted) beyond what they take from all skills in the mean.
        """
        sure = self.losses - self.losses.mean(axis=0) - _DOUBT * self.errors
        profile = np.maximum(sure, 0).reshape(len(self.losses), -1)
        length = np.linalg.norm(profile, axis=1)
        length[length == 0] = 1.0
        cosine = (profile / length[:, None]) @ (profile / length[:, None]).T
        distance = np.clip(1 - cosine, 0, 1)
        np.fill_diagonal(distance, 0)
        condensed = squareform(distance, checks=False)
        return np.asarray(optimal_leaf_ordering(linkage(condensed, "average"), condensed))

    def clusters(self, at: float = 0.9) -> list[tuple[str, ...]]:
        """Groups of skills that are nearer than ``at`` in the tree, the largest first.

        Args:
            at: The height of the cut through the tree (``linkage``), in its distance; larger groups more.
        """
        number = fcluster(self.linkage(), at, "distance")
        groups = [tuple(np.array(self.skills)[number == each].tolist()) for each in np.unique(number)]
        return sorted(groups, key=lambda group: (-len(group), self.skills.index(group[0])))

    def to_frame(self) -> pd.DataFrame:
        """One row a skill: its heads, own loss and mean loss of the others, on unseen examples, and the verdict."""
        matrix = self.matrix()
        rows = []
        for name, proof in self.proofs.items():
            others = matrix.loc[name].drop([name, *self.kin.get(name, ())])
            worst = str(others.idxmax()) if (others > 0).any() else None
            above = proof.result.baseline - proof.result.chance
            rows.append(
                {
                    "skill": name,
                    "heads": " ".join(map(str, self.heads[name])),
                    "baseline": proof.result.baseline,
                    "own loss": matrix.loc[name, name],
                    "others' mean loss": others.clip(lower=0).mean(),
                    "loses most": worst,
                    "loss of that": np.nan if worst is None else others[worst],
                    "random": proof.random_drop / above if above > 0 else np.nan,
                    "verdict": f"{proof.verdict}{' (close)' if proof.close else ''}",
                }
            )
        return pd.DataFrame(rows)

    def heads_frame(self) -> pd.DataFrame:
        """One row per skill and head: rank, importance, z, loss with its interval, and what kind of head it is."""
        universal, shared = {*self.universal}, self.shared
        frames = []
        for place, (name, ranking) in enumerate(self.rankings.items()):
            frame = ranking.to_frame()[["rank", "head", "layer", "index", "importance", "z"]]
            units = list(map(ranking.grid.resolve, frame["head"]))
            at = [unit.layer for unit in units], [unit.index for unit in units]
            frame.insert(0, "skill", name)
            frame["loss"] = self.losses[place][at]
            frame["low"], frame["high"] = self.interval[place][at].T
            frame["kind"] = ["universal" if u in universal else "shared" if u in shared else "" for u in units]
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """The whole atlas, JSON-ready, with the name of its format."""
        return {"format": FORMAT, **json_ready(super().to_dict())}

    def save(self, path: str | Path) -> None:
        """Write the atlas as JSON.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            ValueError: ``path`` is no path.
            OSError: The file cannot be written.
        """
        check_path("path", path).write_text(json.dumps(self.to_dict()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Atlas:
        """Read a saved atlas.

        Args:
            path: The file that ``save`` wrote.

        Raises:
            ValueError: ``path`` is no path, or a file of another kind.
            OSError: The file cannot be read.
        """
        path, record = read_saved(path, "atlas")
        try:
            return cls.from_dict(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"path {str(path)!r} is a broken atlas: {error}") from error

    def __repr__(self) -> str:
        own, others = self.means()
        lines = [f"{name}: {' '.join(map(str, heads))}" for name, heads in self.heads.items()]
        universal = ", ".join(map(str, self.universal)) or "none"
        head = f"Atlas({len(self.skills)} skills: own loss {own:.2f}, others' {others:.2f}; {self.spent:,} evaluations)"
        return "\n  ".join([head, *lines, f"universal: {universal}", *self._gains()])

    def _gains(self) -> list[str]:
        return [f"{name} gains without {', '.join(map(str, heads))}" for name, heads in self.interfering.items()]

    def _remarks(self) -> Sequence[str]:
        universal = f"universal heads: {', '.join(map(str, self.universal)) or 'none'}"
        return (
            universal,
            *self._gains(),
            *(f"{name} is left out: {why}" for name, why in self.left_out.items()),
            *self.notes,
        )


@one_bar("atlas")
def atlas(
    model: ModelLike,
    tasks: Sequence[Task] | None = None,
    *,
    k: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    n: int = 100,
    n_random: int = 8,
    **settings: Unpack[SettingsArguments],
) -> Atlas:
    """Find the heads of many skills at once, each against all others, and prove them on unseen examples.

    Each skill is a control of the others, so that none pays for controls of its own (``methods.annealed_jointly``).
    The heads of each skill then go off on unseen examples of every skill, beside random heads. Skills that the model
    cannot do are left out. With a ``store`` an interrupted atlas goes on when the call is repeated, and ends with the
    same result. Large float32 models search in bfloat16 where that decides alike, as in ``find_heads``; what is said of
    unseen examples is measured in the model's own dtype.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        tasks: Two skills or more, each with unseen examples (None: the everyday skills that come with the library, of
            the demo model its own).
        k: Heads of each skill (None: 5, or half of a grid of fewer than ten heads).
        budget: Example-evaluations of the search of all skills together (None: for each half of what
            ``find_heads`` takes, 4,000 up to 800 heads, beside the intact runs).
            The proof takes ``n × (1 + skills + n_random)`` for each skill at most.
        seed: Seeds all draws.
        n: Unseen examples of each skill at most.
        n_random: Random sets of heads that those of each skill are compared with.
        settings: As of ``Experiment``.

    Raises:
        ValueError: Fewer than two tasks, tasks of one name or without unseen examples, unseen examples of one that are
            finding examples of another, or a budget below the least; raised before the model runs.
        BaselineTooLowError: The model can do fewer than two of the skills.

    >>> import cs_heads as cs
    >>> model = cs.load_model("demo")
    >>> skills = [cs.load_task(f"demo/{name}", n=40) for name in ("capitals", "code", "rhyme")]
    >>> found = cs.atlas(model, skills, budget=2000, n=20, progress=False)
    >>> list(found.rankings)
    ['demo/capitals', 'demo/code', 'demo/rhyme']
    """
    seed = check_seed(seed)
    check_integer("n", n, MIN_CORRECT)
    check_integer("n_random", n_random, 1)
    budget = None if budget is None else check_integer("budget", budget, 1)
    given = None if tasks is None else check_skills(tasks, n)
    with _source(model, settings) as (source, rest):
        listed = _default_tasks(source, seed) if given is None else given
        unseen, unread = _unseen(source, listed, n, rest, chosen=given is not None)
        listed = [task for task in listed if task.name in unseen]
        names, judged = [task.name for task in listed], next(iter(unseen.values()))
        k, fitted = fitting_k(k, judged.grid)
        pairs = [(i, j) for i, j in combinations(range(len(listed)), 2) if are_kin(listed[i], listed[j])]
        if 2 * len(pairs) == len(listed) * (len(listed) - 1):
            raise ValueError(f"tasks must ask for two skills or more, got {', '.join(names)}, which are kin")
        sizes = [len(finding_side(task)) for task in listed]
        check_joint_budget(budget, sizes, sum(sizes))
        searching = judged.on(finding_side(listed[0])).in_faster_dtype()
        finding = [searching, *(searching.on(finding_side(task)) for task in listed[1:])]
        searched = sum(sizes) + per_task(judged.grid.size) * len(finding) if budget is None else budget
        judging = sum(one.n_examples for one in unseen.values()) * (1 + len(listed) + n_random)
        ready = preparation_of(*finding, *unseen.values())
        expect(searched + judging + ready)
        step("search", names)
        joint = annealed_jointly(finding, kin=pairs, k=k, budget=budget, seed=seed)
        rankings = {name: found for name, found in zip(names, joint.rankings, strict=True) if found is not None}
        apart = {frozenset((names[i], names[j])) for i, j in pairs}
        kin = {name: [other for other in rankings if frozenset((other, name)) in apart] for name in rankings}
        heads = {name: found.top(k) for name, found in rankings.items()}
        step("matrix")
        columns = [Column(name, "own", (unseen[name],)) for name in rankings]
        drops = measure_drops(columns, heads, {name: name for name in rankings}, seed)
        step("random heads")
        apart_of = {name: [h for h in found.shared if h not in heads[name]] for name, found in rankings.items()}
        # As each proof draws them, all in forwards that they share.
        grid = judged.grid
        sets = {
            name: random_sets(grid, grid.mask(heads[name]), grid.mask(others), n_random, seed)
            for name, others in apart_of.items()
        }
        measure_together([Asked(unseen[name], np.stack(masks)) for name, masks in sets.items()])
        proofs = {
            name: measure_proof(
                unseen[name],
                heads[name],
                exclude=apart_of[name],
                name=name,
                controls=[(other, unseen[other]) for other in rankings if other not in (name, *kin[name])],
                n_random=n_random,
                seed=seed,
            )
            for name, found in rankings.items()
        }
        few = min(len(rankings) - 1 - len(others) for others in kin.values()) < MIN_DEFAULTS
        return Atlas(
            rankings=rankings,
            losses=joint.losses,
            errors=joint.errors,
            drops=drops,
            proofs=proofs,
            k=k,
            left_out={**unread, **{names[place]: why for place, why in joint.left_out.items()}},
            spent=sum(one.spent for one in (*finding, *unseen.values())),
            notes=(*fitted, *((_FEW.format(len(rankings)),) if few else ())),
            provenance={
                **judged.provenance(),
                "tasks": {task.name: one.provenance().get("task") for task, one in zip(listed, finding, strict=True)},
                "kin": {name: others for name, others in kin.items() if others},
                "search": {"spent": sum(one.spent for one in finding), "compute_dtype": searching.compute_dtype},
                "budget": budget,
                "n_random": n_random,
                "seed": seed,
            },
        )


_FEW = "{} skills tell little of what every skill needs: use four or more that are not kin"


def check_skills(tasks: Sequence[Task], n: int) -> list[Task]:
    """The tasks of an atlas as a list; raises ``ValueError`` for what ``atlas`` refuses of them.

    Args:
        tasks: Two skills or more, each with two sides, none of which another's heads are judged on.
        n: Unseen examples of each at most.
    """
    listed = check_tasks("tasks", tasks)
    names = [task.name for task in listed]
    if len(listed) < 2 or len({*names}) < len(names):
        raise ValueError(f"tasks must be two or more of different names, got {', '.join(names) or 'none'}")
    for task in listed:
        check_size(finding_side(task))
    check_apart(listed, [unseen_side(task, n) for task in listed])
    return listed


@contextmanager
def _source(model: ModelLike, settings: SettingsArguments) -> Iterator[tuple[Any, SettingsArguments]]:
    """What runs the model, with the settings of experiments on it; workers started for it end with the block."""
    source: Any = source_of(model, Settings.of(settings))
    placed = dict.fromkeys({"dtype", "workers", "address"} & settings.keys())
    try:
        yield source, cast(SettingsArguments, {**settings, **placed})
    finally:
        if source is not model and isinstance(source, Cluster):
            source.close()


def _default_tasks(source: Any, seed: int) -> list[Task]:
    """The skills that come with the library, for a model that reads texts."""
    model = source.model_or_info if isinstance(source, Cluster) else source
    if tokenizer_of(model) is None:
        raise ValueError("tasks must be given for a model without a tokenizer: those by default are texts")
    return list(family_of(str(model.cfg.model_name), seed))


def _unseen(
    source: Any, tasks: Sequence[Task], n: int, settings: SettingsArguments, *, chosen: bool
) -> tuple[dict[str, Experiment], dict[str, str]]:
    """Experiments on the unseen examples of tasks by their names, and of those not ``chosen`` why some are not read."""
    made: dict[str, Experiment] = {}
    unread: dict[str, str] = {}
    for task in tasks:
        first, side = next(iter(made.values()), None), unseen_side(task, n)
        try:
            one = Experiment(source, side, **settings) if first is None else first.on(side)
            if not chosen:
                Experiment(source, finding_side(task), **one.shared_settings())
            made[task.name] = one
        except BrokenStoreError:
            raise
        except ValueError as error:
            if chosen:
                raise
            unread[task.name] = str(error)
    if len(made) < 2:
        raise ValueError(f"tasks must be two or more that the model can read: {'; '.join(unread.values())}")
    return made, unread
