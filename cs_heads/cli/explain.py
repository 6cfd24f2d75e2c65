"""``cs-heads explain``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cs_heads.arguments import check_integer
from cs_heads.cli.cost import print_cost
from cs_heads.cli.flags import USUAL, Examples, OneTask, one_line_each, write_config
from cs_heads.cli.loading import Loaded, loaded
from cs_heads.cli.printing import print_json
from cs_heads.units import as_heads

if TYPE_CHECKING:
    from cs_heads.analysis.found_heads import Found
    from cs_heads.analysis.head_cards import HeadCards
    from cs_heads.tasks import Task


@one_line_each
@dataclass(kw_only=True)
class ExplainFlags(OneTask):
    """The flags of ``explain``.

    Attributes:
        ranking: ranking.json of find, whose first --k heads are explained
        heads: in place of a ranking, the heads, as L1H3 L1H4
        unseen: unseen examples, at most
    """

    ranking: Annotated[Path | None, USUAL] = None
    heads: Annotated[list[str], USUAL, Parameter(consume_multiple=True, show_default=False)] = field(
        default_factory=list
    )
    unseen: Annotated[Examples, USUAL] = 60
    budget: Annotated[None, Parameter(parse=False)] = None  # of a search


def explain(options: Annotated[ExplainFlags, Parameter(name="*")]) -> None:
    """Say what found heads do: what they look at, write and move, where, and whether together.

    Each figure is measured on unseen examples and stands beside chance: random heads of the same
    layers, or all other heads. Only what clears it is said in words; a head of which nothing does
    is unclear. With --out the cards go into the folder of find, and into its report.

    Cost, counted in example-evaluations: of five heads and 60 examples 4,130 at most.

    Examples:
      cs-heads explain --model demo --task demo/capitals --ranking found/ranking.json --out found
      cs-heads explain --model demo --task demo/capitals --heads L2H6 L3H4 --no-control
    """
    import cs_heads as cs
    from cs_heads.analysis.found_heads import check_none_off, heads_of
    from cs_heads.tasks.splits import MIN_CORRECT

    if (options.ranking is None) == (not options.heads):
        raise ValueError("give the heads by --ranking FILE or by --heads L1H3 L1H4")
    check_integer("unseen", options.unseen, MIN_CORRECT)
    found: Any = as_heads("heads", options.heads)
    if options.ranking is not None:
        check_none_off("heads", found := cs.HeadRanking.load(options.ranking))
        found = found if options.k is None else found.proved(found.top(options.k))
    with loaded(options, searched=False) as at:
        n: Any = options.unseen
        if options.dry_run:
            from cs_heads.analysis.explain import most_of_cards

            experiment = cs.Experiment(at.model, at.task, **at.dry)
            k, of_heads = len(heads_of(experiment.grid, found)), experiment.grid.kind == "heads"
            most = most_of_cards(k, n, of_heads=of_heads)
            print_cost(options, {"cards": most}, experiment)
            return
        if options.out is not None:
            _check_out(options.out, at)
        cards = cs.explain(at.model, at.task, found, controls=at.controls, n=n, seed=options.seed, **at.settings)
        if not options.json:
            for card in cards.cards:
                print(f"{card.head}: {card.words}")
            for line in (cards.words, *(f"note: {note}" for note in cards.notes)):
                print(line)
        if options.out is not None:
            _write(options, options.out, cards)
    if options.json:
        print_json(cards)


def _check_out(folder: Path, at: Loaded) -> None:
    """Refuse, before anything is measured, a folder that has results of another model or task."""
    from cs_heads.cluster import local_model
    from cs_heads.lens import describe
    from cs_heads.report.findings import COMPARISON, RESULT, check_folder

    for name in (RESULT, COMPARISON):
        check_folder(folder, name, {"model": describe(local_model(at.model)), "task": {"name": at.task.name}})


def cards_or_note(model: Any, task: Task, heads: Found, **given: Any) -> HeadCards | None:
    """Head cards; a model or task that does not allow them goes without, and a note says why.

    Args:
        model: The model.
        task: The task.
        heads: The heads.
        given: As of ``cs.explain``.
    """
    import cs_heads as cs

    try:
        return cs.explain(model, task, heads, **given)
    except ValueError as error:
        print(f"cs-heads: note: no head cards of {task.name}: {error}", file=sys.stderr)
        return None


def _write(options: ExplainFlags, folder: Path, cards: Any) -> None:
    """The cards in a folder: beside what ``find`` wrote into its report, else a table."""
    from cs_heads.cli.printing import end_with_page
    from cs_heads.report.findings import CARDS, COMPARISON, RESULT, check_folder

    check_folder(folder, RESULT, cards.provenance)
    folder.mkdir(parents=True, exist_ok=True)
    cards.save(folder / CARDS)
    if (folder / RESULT).is_file():
        end_with_page(options, [folder / CARDS])
    else:
        # The folder of a comparison keeps what repeats that.
        written = [] if (folder / COMPARISON).is_file() else [write_config(options)]
        if not options.json:
            print(f"written: {', '.join(map(str, [*written, folder / CARDS]))}")
