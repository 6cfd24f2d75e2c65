"""What an atlas says: which heads serve which skill, which serve all, and how skills are alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.head_cards import HeadCards
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer
from cs_heads.drawable import Drawable
from cs_heads.methods.annealing.intervals import alone_intervals, universal_of
from cs_heads.ranking import HeadRanking
from cs_heads.record import Saved
from cs_heads.units import Grid, Unit

# A loss must be so many standard errors, and so much of the score above chance, to call a head one of a skill.
_CLEAR, _MUCH = 4.0, 0.1


def needed_by_most(
    grid: Grid,
    losses: Float[np.ndarray, "skill layer head"],
    errors: Float[np.ndarray, "skill layer head"],
    skills: Sequence[str],
    kin: Mapping[str, Collection[str]],
) -> tuple[Unit, ...]:
    """The universal heads by what each head takes from each of the skills, of which some are kin of others."""
    place = {name: number for number, name in enumerate(skills)}
    pairs = [(place[name], place[other]) for name, others in kin.items() for other in others]
    losses, errors = (each.reshape(len(each), -1) for each in (losses, errors))
    return tuple(grid.unit(int(index)) for index in universal_of(losses, errors, pairs))


@dataclass(frozen=True, eq=False, repr=False)
class Atlas(Saved, Result, Drawable, picture="atlas"):
    """Which heads of a model serve which of several skills, and which serve all.

    Attributes:
        rankings: The heads of each skill, by its name, ranked by what they take from it beyond the other skills.
        losses: What each head takes from each skill among other heads that are off, as a share of its score above
            chance.
        errors: The standard errors of these; NaN for a head that was never off.
        drops: What the heads of each skill take from every skill on unseen examples.
        proofs: The verdict on the heads of each skill.
        kin: Skills that are no controls of each other, since they share questions or ask for the same.
        k: Heads of each skill that were searched for; the fewest of them that do nine tenths of the harm are proved.
        left_out: Skills that the model cannot do, and why.
        spent: Example-evaluations.
        provenance: Model, skills and seed.
        notes: What its reader should know.
        cards: What the heads of skills do, by skill, as ``explain`` says it; ``replace(atlas, cards=...)`` adds them.
        command: The shell line that made it; empty: none did.
        seconds: What that took; None: not known.

    Raises:
        ValueError: No ranking, losses or errors of another shape, or ``k`` beyond the grid.
    """

    _format, _version = "atlas", 2

    rankings: dict[str, HeadRanking]
    losses: Float[np.ndarray, "skill layer head"]
    errors: Float[np.ndarray, "skill layer head"]
    drops: TaskDrops
    proofs: dict[str, Confirmation]
    k: int
    left_out: dict[str, str]
    kin: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cards: dict[str, HeadCards] = field(default_factory=dict)
    command: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.rankings:
            raise ValueError("rankings must hold those of one skill or more")
        check_integer("k", self.k, 1, self.grid.size, "the heads of the grid")
        # What is not known is written as it is kept.
        object.__setattr__(self, "errors", np.where(np.isfinite(self.errors), self.errors, np.nan))
        wanted = (len(self.rankings), *self.grid.shape)
        for name in ("losses", "errors"):
            if (got := getattr(self, name).shape) != wanted:
                raise ValueError(f"{name} must be [skill, layer, head] = {wanted}, got {got}")

    @property
    def grid(self) -> Grid:
        """The grid of all rankings."""
        return next(iter(self.rankings.values())).grid

    @property
    def skills(self) -> tuple[str, ...]:
        """The skills, in the order of all tables."""
        return tuple(self.rankings)

    @property
    def heads(self) -> dict[str, tuple[Unit, ...]]:
        """The heads of each skill: those proved, or the first ``k`` where there is no proof."""
        first = {name: tuple(ranking.top(self.k)) for name, ranking in self.rankings.items()}
        return first | {name: proof.heads for name, proof in self.proofs.items()}

    @property
    def universal(self) -> tuple[Unit, ...]:
        """Heads that most skills need, those first that take most (see ``annealed_jointly``)."""
        return needed_by_most(self.grid, self.losses, self.errors, self.skills, self.kin)

    @property
    def shared(self) -> dict[Unit, tuple[str, ...]]:
        """Heads of two skills or more that are not universal, and which these are.

        A head is one of a skill where it is among its ``heads``, or takes a tenth of the score above chance and more
        than four standard errors.
        """
        serving: dict[Unit, list[str]] = {}
        universal = {*self.universal}
        for place, (name, ranking) in enumerate(self.rankings.items()):
            clear = (self.losses[place] > _CLEAR * self.errors[place]) & (self.losses[place] > _MUCH)
            for head in sorted({*self.heads[name], *ranking.grid.units(clear)} - universal):
                serving.setdefault(head, []).append(name)
        kept = {head: tuple(names) for head, names in serving.items() if len(names) > 1}
        return dict(sorted(kept.items(), key=lambda item: (-len(item[1]), item[0])))

    @property
    def interfering(self) -> dict[str, tuple[Unit, ...]]:
        """Heads whose removal helps a skill, by the skills that have such heads."""
        return {name: ranking.interfering for name, ranking in self.rankings.items() if ranking.interfering}

    @property
    def interval(self) -> Float[np.ndarray, "skill layer head bound"]:
        """The 95 % intervals of what each head takes from each skill alone (``losses`` are among others)."""
        return alone_intervals(self.losses, self.errors)

    def matrix(self) -> pd.DataFrame:
        """The share of each skill's score above chance that the heads of each skill take, on unseen examples.

        Skills whose heads go off down, skills measured across; NaN where a skill cannot tell.
        """
        return self.drops.matrix()

    def means(self) -> tuple[float, float]:
        """The mean loss of skills to their own heads, and to those of other skills.

        A loss counts as 1 at most, since a choice that turns into its opposite loses more, and as 0 at least, since
        what one skill gains makes up for no other's loss. Skills that are kin (the same in another form) are no others.
        """
        losses = self.matrix().clip(0, 1).to_numpy(dtype=float)
        own = np.eye(len(losses), dtype=bool)
        kin = np.array([[other in self.kin.get(name, ()) for other in self.skills] for name in self.skills])
        return float(np.nanmean(losses[own])), float(np.nanmean(losses[~own & ~kin]))

    def linkage(self) -> Float[np.ndarray, "merge 4"]:
        """The tree of skills by the heads they need, as SciPy's dendrograms take it (average linkage).

        The distance of two skills is 1 less the cosine of what heads take from each beyond what they take from all in
        the mean. These heads are those of any skill, but for universal ones.
        """
        from scipy.cluster.hierarchy import linkage
        from scipy.spatial.distance import pdist

        named = self.grid.mask({head for heads in self.heads.values() for head in heads} - {*self.universal})
        profile = np.maximum(self.losses - self.losses.mean(axis=0), 0)[:, named]
        # A skill without heads of its own has none in common with others.
        distance = np.clip(np.nan_to_num(pdist(profile, "cosine"), nan=1.0), 0, 1)
        return np.asarray(linkage(distance, "average", optimal_ordering=True))

    def clusters(self, at: float = 0.7) -> list[tuple[str, ...]]:
        """Groups of skills that are nearer than ``at`` in the tree, the largest first.

        Args:
            at: The height of the cut through the tree (``linkage``), in its distance; larger groups more.
        """
        from scipy.cluster.hierarchy import fcluster

        number = fcluster(self.linkage(), at, "distance")
        groups = [tuple(np.array(self.skills)[number == each].tolist()) for each in np.unique(number)]
        return sorted(groups, key=lambda group: (-len(group), self.skills.index(group[0])))

    def to_frame(self) -> pd.DataFrame:
        """One row a skill: its heads, own loss and mean loss of the others, on unseen examples, and the verdict.

        ``frequency`` is the share of the resamples of the search that select its heads, on average, ``again`` that of
        draws of the losses, as on other examples, that give the same verdict; ``below chance`` are skills that lose
        more than their score above chance.
        """
        matrix = self.matrix()
        rows = []
        for name, proof in self.proofs.items():
            below = matrix.columns[matrix.loc[name].to_numpy(dtype=float) > 1]
            others = matrix.loc[name].drop([name, *self.kin.get(name, ())])
            worst = str(others.idxmax()) if (others > 0).any() else None
            rows.append(
                {
                    "skill": name,
                    "heads": " ".join(map(str, self.heads[name])),
                    "baseline": proof.result.baseline,
                    "own loss": matrix.loc[name, name],
                    "others' mean loss": others.clip(0, 1).mean(),
                    "loses most": worst,
                    "loss of that": np.nan if worst is None else others[worst],
                    "random": proof.random.drop / proof.result.above_chance,
                    "frequency": np.mean([*self.rankings[name].stability.values()] or [np.nan]),
                    "again": proof.again,
                    "below chance": " ".join(map(str, below)),
                    "verdict": f"{proof.headline}{' (close)' if proof.close else ''}",
                }
            )
        return pd.DataFrame(rows)

    def heads_frame(self) -> pd.DataFrame:
        """One row per skill and head: rank, importance, z, loss with its interval, and what kind of head it is."""
        kinds = {str(head): "universal" for head in self.universal} | {str(head): "shared" for head in self.shared}
        frames = []
        for place, (name, ranking) in enumerate(self.rankings.items()):
            frame = ranking.to_frame()[["rank", "head", "layer", "index", "importance", "z"]]
            frame.insert(0, "skill", name)
            frame["loss"] = self.losses[place].ravel()[frame["index"]]
            frame["low"], frame["high"] = self.interval[place].reshape(-1, 2)[frame["index"]].T
            frame["kind"] = [kinds.get(head, "") for head in frame["head"]]
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def __repr__(self) -> str:
        own, others = self.means()
        lines = [f"{name}: {' '.join(map(str, heads))}" for name, heads in self.heads.items()]
        head = f"Atlas({len(self.skills)} skills: own loss {own:.2f}, others' {others:.2f}; {self.spent:,} evaluations)"
        return "\n  ".join([head, *lines, *self._told()])

    def _told(self) -> list[str]:
        gains = [f"{name} gains without {', '.join(map(str, heads))}" for name, heads in self.interfering.items()]
        return [f"universal heads: {', '.join(map(str, self.universal)) or 'none'}", *gains]

    def _remarks(self) -> Sequence[str]:
        return (*self._told(), *(f"{name} is left out: {why}" for name, why in self.left_out.items()), *self.notes)
