"""The head atlas: which heads serve which skill, and which serve all, from one search of all skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from typing_extensions import Unpack

from cs_heads.analysis.atlas_result import Atlas, needed_by_most
from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import Confirmation, prove
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.least_set import most_of_proof
from cs_heads.analysis.random_comparison import N_RANDOM
from cs_heads.arguments import check_integer, check_seed
from cs_heads.cluster import Cluster, ModelLike
from cs_heads.engine.encoding import encode_task
from cs_heads.experiment.baseline import fitting_k
from cs_heads.experiment.controls import unseen_side, unseen_tokens
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import preparation_of
from cs_heads.experiment.setup import Setup
from cs_heads.lens.model import tokenizer_of
from cs_heads.methods.annealing.sensing import annealed_jointly, check_joint_budget, per_task
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, confirming_side, finding_side
from cs_heads.tasks.controls import MIN_DEFAULTS, family_of, kin_among
from cs_heads.tasks.splits import MIN_CORRECT, check_apart, check_size, check_tasks, distinct
from cs_heads.units import Unit


@one_bar("atlas")
def atlas(
    model: ModelLike,
    tasks: Sequence[Task] | None = None,
    *,
    k: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    n: int = 100,
    n_random: int = N_RANDOM,
    screen: str = "auto",
    control_weight: float | None = None,
    **settings: Unpack[SettingsArguments],
) -> Atlas:
    """Find the heads of many skills at once, each against all others, and prove them on unseen examples.

    Each skill is a control of the others, so that none pays for controls of its own (``methods.annealed_jointly``).
    The heads of each skill then go off on unseen examples of every skill, beside random heads. One example of each
    question counts. Skills that the model
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
            The proof takes some ``n × (11 + skills)`` for each skill, up to ``n × (29 + skills)`` where its heads
            take little more than random ones.
        seed: Seeds all draws.
        n: Unseen examples of each skill at most.
        n_random: Random sets of heads that those of each skill are compared with, as in ``confirm``.
        screen: What all heads are screened by: "masks", "gradients", or "auto" for gradients where there are 200 heads
            or more and the model has them, at any budget that has room for them.
        control_weight: What the mean loss of the other skills counts beside that of the own one, 0 or more (None: 1.5
            after a screen by gradients, 3 by masks). A large one favors heads that spare the others, a small one heads
            that take more of their own skill. Below 1 a skill keeps a universal head that takes more from it than twice
            the weight times the mean loss of the others, by estimates as they are: at .3 most skills keep it, at 0 all
            do.
        settings: As of ``Experiment``.

    Returns:
        By skill the ranking and the proof of its heads, the matrix of what each skill's heads take from every skill,
        and ``losses`` ``[skill, layer, head]`` as shares of the score above chance.

    Raises:
        ValueError: Fewer than two tasks, tasks of one name or without unseen examples, unseen examples of one that are
            finding examples of another, or a budget below the least; raised before the model runs.
        BaselineTooLowError: The model can do fewer than two of the skills.
    """
    check_seed(seed)
    check_integer("n", n, MIN_CORRECT)
    check_integer("n_random", n_random, 1)
    given = None if tasks is None else check_skills(tasks, n)
    with closing(Setup.of(model, Settings.of(settings))) as setup:
        listed = default_skills(setup.source, seed) if given is None else given
        unseen, unread, notes = _unseen(setup, listed, n, chosen=given is not None)
        sides = [distinct(finding_side(task))[0] for task in listed if task.name in unseen]
        names, judged = [*unseen], next(iter(unseen.values()))
        k, fitted = fitting_k(k, judged.grid)
        pairs = kin_among(sides)
        if 2 * len(pairs) == len(sides) * (len(sides) - 1):
            raise ValueError(f"tasks must ask for two skills or more, got {', '.join(names)}, which are kin")
        sizes, judging = [len(side) for side in sides], [one.n_examples for one in unseen.values()]
        check_joint_budget(budget, sizes, sum(sizes))
        most = most_of_atlas(judged.grid.size, k, sizes, judging, budget=budget, n_random=n_random)
        searching = judged.on(sides[0]).in_faster_dtype()
        finding = [searching, *(searching.on(side) for side in sides[1:])]
        expect(sum(most.values()) + preparation_of(*finding, *unseen.values()))
        step("search", names)
        joint = annealed_jointly(
            finding, kin=pairs, k=k, budget=budget, seed=seed, screen=screen, control_weight=control_weight
        )
        rankings = {name: found for name, found in zip(names, joint.rankings, strict=True) if found is not None}
        apart = {frozenset((names[i], names[j])) for i, j in pairs}
        kin = {name: tuple(other for other in rankings if frozenset((other, name)) in apart) for name in rankings}
        step("random heads")
        universal = needed_by_most(judged.grid, joint.losses, joint.errors, [*rankings], kin)
        proofs = _proofs(rankings, unseen, kin, universal, k=k, by_default=given is None, n_random=n_random, seed=seed)
        step("matrix")
        heads = {name: proof.heads for name, proof in proofs.items()}
        columns = [Column(name, "own", (unseen[name],)) for name in rankings]
        few = min(len(rankings) - 1 - len(others) for others in kin.values()) < MIN_DEFAULTS
        searched = {one.name: one.provenance().get("task") for one in finding}
        search = {"spent": sum(one.spent for one in finding), "compute_dtype": searching.compute_dtype}
        asked = {"budget": budget, "n_random": n_random, "control_weight": joint.control_weight, "seed": seed}
        return Atlas(
            rankings={name: found.proved(heads[name]) for name, found in rankings.items()},
            losses=joint.losses,
            errors=joint.errors,
            drops=measure_drops(columns, heads, {name: name for name in rankings}, seed),
            proofs=proofs,
            k=k,
            left_out={**unread, **{names[place]: why for place, why in joint.left_out.items()}},
            spent=sum(one.spent for one in (*finding, *unseen.values())),
            kin={name: others for name, others in kin.items() if others},
            notes=(*notes, *fitted, *((_FEW.format(len(rankings)),) if few else ())),
            provenance={**judged.provenance(), "tasks": searched, "search": search, **asked},
        )


def _proofs(
    rankings: Mapping[str, HeadRanking],
    unseen: Mapping[str, Experiment],
    kin: Mapping[str, Sequence[str]],
    universal: Sequence[Unit],
    *,
    k: int,
    by_default: bool,
    **options: Any,
) -> dict[str, Confirmation]:
    """The proof of the heads of each skill, of which all others but its kin are controls, chosen or by default."""
    proofs = {}
    for name, found in rankings.items():
        top, others = found.top(k), [other for other in rankings if other not in (name, *kin[name])]
        proofs[name] = prove(
            unseen[name],
            top,
            exclude=[head for head in dict.fromkeys((*found.shared, *universal)) if head not in top],
            controls=[unseen[other] for other in others],
            kin=[unseen[other] for other in kin[name]],
            defaults=others if by_default else None,
            **options,
        )
    return proofs


def most_of_atlas(
    n_heads: int, k: int, finding: Sequence[int], unseen: Sequence[int], *, budget: int | None, n_random: int
) -> dict[str, int]:
    """The most example-evaluations of the search and of the proof, but for what an ablation runs beforehand.

    Args:
        n_heads: Heads of the model.
        k: Heads of each skill.
        finding: Finding examples of each skill.
        unseen: Unseen ones.
        budget: That of the search (None: the one by default).
        n_random: Random sets of each proof.
    """
    proof = sum(most_of_proof(k, n, (), n_random) + n * (len(unseen) - 1) for n in unseen)
    return {"search": sum(finding) + per_task(n_heads) * len(finding) if budget is None else budget, "proof": proof}


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
    check_apart(listed, [unseen_side(task, n)[0] for task in listed])
    return listed


def default_skills(source: Any, seed: int) -> list[Task]:
    """The skills that come with the library, for a model that reads texts."""
    model = source.model_or_info if isinstance(source, Cluster) else source
    if tokenizer_of(model) is None:
        raise ValueError("tasks must be given for a model without a tokenizer: those by default are texts")
    return list(family_of(str(model.cfg.model_name), seed))


def _unseen(
    setup: Setup, tasks: Sequence[Task], n: int, *, chosen: bool
) -> tuple[dict[str, Experiment], dict[str, str], tuple[str, ...]]:
    """Experiments on unseen examples by task, why some not ``chosen`` are not read, and notes on examples left out."""
    made: dict[str, Experiment] = {}
    unread: dict[str, str] = {}
    said = [note for task in tasks for side in (task, confirming_side(task)) for note in distinct(side)[1]]
    for task in tasks:
        first, (side, _) = next(iter(made.values()), None), unseen_side(task, n)
        try:
            if not chosen:
                encode_task(setup.model, finding_side(task), setup.settings.prepend_bos)
            made[task.name] = Experiment(setup, side) if first is None else first.on(side)
        except BrokenStoreError:
            raise
        except ValueError as error:
            if chosen:
                raise
            unread[task.name] = str(error)
    if len(made) < 2:
        raise ValueError(f"tasks must be two or more that the model can read: {'; '.join(unread.values())}")
    for task in tasks:
        if task.name in made:
            # Without the tokens of the finding side.
            [made[task.name]], notes = unseen_tokens([made[task.name]], task, ())
            said += notes
    return made, unread, tuple(dict.fromkeys(said))
