"""``cs-heads atlas``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from cs_heads import plot
from cs_heads.arguments import check_integer
from cs_heads.cli.cost import print_cost
from cs_heads.cli.flags import USUAL, Run, given_settings, one_line_each, write_config
from cs_heads.cli.loading import N_UNSEEN, check_out, loaded_model, options_by_task
from cs_heads.cli.printing import end_with_page, print_json
from cs_heads.files import write_csv

if TYPE_CHECKING:
    from cs_heads.analysis.atlas_result import Atlas
    from cs_heads.analysis.head_cards import HeadCards
    from cs_heads.tasks import Task


@one_line_each
@dataclass(kw_only=True)
class AtlasFlags(Run):
    """The flags of ``atlas``.

    Attributes:
        tasks: two skills or more: built-in tasks, .jsonl or .csv files, commas between (default: the everyday skills
            that come with the library, of the demo model its own)
        n_unseen: unseen examples of each skill at most
        n_random: random sets of heads that those of each skill are compared with
        screen: what all heads are screened by: masks, gradients, or auto, which takes gradients on 200 heads or more
            where the model has them
        control_weight: what the mean loss of other skills counts beside that of the own one (default: 1.5 after a
            screen by gradients, 3 by masks); below 1 skills keep universal heads that take much more from them
        explain: what each of the heads proved does, as cs-heads explain says it
    """

    tasks: Annotated[str | None, USUAL] = None
    n_unseen: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = N_UNSEEN
    n_random: Annotated[int, Parameter(validator=Number(gte=1))] = 250
    screen: Literal["auto", "gradients", "masks"] = "auto"
    control_weight: Annotated[float | None, Parameter(validator=Number(gte=0))] = None
    explain: bool = False


def atlas(options: Annotated[AtlasFlags, Parameter(name="*")]) -> None:
    """Find the heads of many skills at once, each against all others.

    Find which heads of a model serve which of many skills, and which serve all, from one set of
    masks, and prove the heads of each skill on examples the search has not seen.

    Each skill is a control of the others, so that none pays for controls of its own. The first --k
    heads of each skill then go off on unseen examples of every skill, beside random heads of the
    same layers. Printed are, for each skill, what it loses (own) and the others lose on average, as
    shares of the score above chance, with the verdict (cs-heads find --help says what each means);
    then

      universal heads   heads that most skills need
      shared heads      heads of two skills or more, but not of most
      clusters          skills that need the same heads

    Skills that the model cannot do are left out.

    Cost, counted in example-evaluations (one mask on one example, a forward pass): by default
    4,000 for each skill to find, and 100 × (11 + skills) for each to prove, 100 × (29 + skills) at most.

    Examples:
      cs-heads atlas --model demo --out atlas
      cs-heads atlas --model gpt2 --store run.sqlite --out atlas
      cs-heads atlas --model gpt2 --tasks everyday/capitals,everyday/past,everyday/plural,my_task.jsonl --out mine

    With --store an interrupted command is resumed where it was.
    """
    import cs_heads as cs

    # What needs no model to be refused is refused before one is loaded.
    settings = given_settings(options)
    tasks = _tasks(options)
    # What takes seconds to import comes after what can be refused without it.
    from cs_heads.analysis.atlas import check_skills
    from cs_heads.report.findings import ATLAS, COMPARISON, RESULT, check_alone
    from cs_heads.tasks.splits import MIN_CORRECT

    check_integer("n_unseen", options.n_unseen, MIN_CORRECT)
    if options.out is not None:
        check_alone(options.out, RESULT, COMPARISON)
        check_out(options.out)
    if tasks is not None:
        check_skills(tasks, options.n_unseen)
    with loaded_model(options) as model:
        if options.dry_run:
            _print_cost(options, model, tasks, settings)
            return
        start = perf_counter()
        more: dict[str, Any] = {name: getattr(options, name) for name in ("n_random", "screen", "control_weight")}
        found = cs.atlas(model, tasks, n=options.n_unseen, **options.search, **more, **settings)
        found = replace(found, command=options.command, seconds=round(perf_counter() - start, 3))
        if options.out is not None:
            # A search of hours lies on disk before anything else is made of it.
            options.out.mkdir(parents=True, exist_ok=True)
            found.save(options.out / ATLAS)
        if options.explain:
            found = replace(found, cards=_cards(options, model, found, tasks, settings))
    if options.json:
        print_json(found)
    else:
        _print_atlas(options.model, found)
    if options.out is not None:
        _write(options, found)


def _print_cost(options: AtlasFlags, model: Any, tasks: list[Task] | None, settings: dict[str, Any]) -> None:
    from cs_heads.analysis.atlas import default_skills, most_of_atlas
    from cs_heads.analysis.explain import N_EXAMPLES, most_of_cards
    from cs_heads.experiment.baseline import fitting_k
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.tasks import confirming_side, finding_side

    tasks = default_skills(model, options.seed) if tasks is None else tasks
    sizes = [len(finding_side(task)) for task in tasks]
    unseen = [min(options.n_unseen, len(confirming_side(task))) for task in tasks]
    settings = {**settings, "store": None, "progress": False}
    with Experiment(model, finding_side(tasks[0]), **settings) as experiment:
        k, _ = fitting_k(options.k, experiment.grid)
        more: dict[str, Any] = {"budget": options.budget, "n_random": options.n_random}
        steps = dict(most_of_atlas(experiment.grid.size, k, sizes, unseen, **more))
        if options.explain:
            of_heads = experiment.grid.kind == "heads"
            steps["cards"] = sum(most_of_cards(k, min(n, N_EXAMPLES), of_heads=of_heads) for n in unseen)
        print_cost(options, steps, experiment)


def _cards(
    options: AtlasFlags, model: Any, found: Atlas, tasks: list[Task] | None, settings: dict[str, Any]
) -> dict[str, HeadCards]:
    """Of the heads of each skill that can tell."""
    from cs_heads.analysis.atlas import default_skills
    from cs_heads.cli.explain import cards_or_note

    made: dict[str, HeadCards] = {}
    listed = default_skills(model, options.seed) if tasks is None else tasks
    for task in listed:
        proof = found.proofs.get(task.name)
        if proof is not None and not proof.result.too_low:
            apart = {task.name, *found.kin.get(task.name, ())}
            others = [other for other in listed if other.name in found.proofs and other.name not in apart]
            cards = cards_or_note(model, task, proof.heads, controls=others, seed=options.seed, **settings)
            made |= {} if cards is None else {task.name: cards}
    return made


def _tasks(options: AtlasFlags) -> list[Task] | None:
    """The tasks of ``--tasks``; None where those by default are meant."""
    import cs_heads as cs

    if options.tasks is None:
        given = [name for name in ("n", "chat", "too_long", "task_option") if getattr(options, name)]
        if given:
            raise ValueError(f"--{given[0].replace('_', '-')} goes with --tasks")
        return None
    names = [name.strip() for name in options.tasks.split(",") if name.strip()]
    more = options_by_task(options, "--tasks", names, "--task-option", options.task_option)
    loading: dict[str, Any] = {"chat": options.chat, "too_long": options.too_long}
    return [cs.load_task(name, options.n, options.seed, **loading, **more[name]) for name in names]


def _print_atlas(model: str, found: Atlas) -> None:
    from cs_heads.analysis.losses import marked
    from cs_heads.report.atlas_page import clusters_of, notes_of, verdicts_of

    frame = found.to_frame()
    width = max(len("everything"), *map(len, found.skills)) + 2
    told = max(len("verdict"), *map(len, frame["verdict"])) + 2
    print(f"model {model}, {verdicts_of(found)}\n")
    print(f"{'skill':<{width}}{'own':>6}{'others':>8}  {'verdict':<{told}}heads")
    for row in frame.to_dict("records"):
        losses = "{:>6}{:>8.2f}".format(marked(row["own loss"]), row["others' mean loss"])
        print(f"{row['skill']:<{width}}{losses}  {row['verdict']:<{told}}{row['heads']}")
    own, others = found.means()
    print(f"{'mean':<{width}}{own:>6.2f}{others:>8.2f}\n")
    print(f"universal heads: {', '.join(map(str, found.universal)) or 'none'}")
    print(f"shared heads:{'' if found.shared else ' none'}")
    for head, names in found.shared.items():
        print(f"  {head}: {', '.join(names)}")
    print(f"clusters: {clusters_of(found)}")
    for name, reason in found.left_out.items():
        print(f"{name} is left out: {reason}")
    for note in notes_of(found):
        print(f"note: {note}")
    search = found.provenance["search"]["spent"]
    print(f"cost: {search:,} example-evaluations to find, {found.spent - search:,} to prove")


def _write(options: AtlasFlags, found: Atlas) -> None:
    folder = options.out
    assert folder is not None
    from cs_heads.plot.style import draw_to
    from cs_heads.report.findings import ATLAS

    found.save(folder / ATLAS)
    written = [
        write_config(options),
        folder / ATLAS,
        write_csv(folder / "atlas.csv", found.heads_frame(), index=False),
        write_csv(folder / "matrix.csv", found.matrix(), index_label="heads of"),
        write_csv(folder / "skills.csv", found.to_frame(), index=False),
    ]
    for name, draw in (("atlas.png", plot.atlas), ("matrix.png", plot.skill_matrix), ("tree.png", plot.skill_tree)):
        written += draw_to(folder / name, draw, found)
    end_with_page(options, written)
