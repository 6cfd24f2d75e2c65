"""``cs-heads compare``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cs_heads import plot
from cs_heads.cli.cost import judged_with, print_cost
from cs_heads.cli.flags import (
    USUAL,
    Heads,
    MethodOption,
    OneTask,
    Several,
    Switch,
    names_of_methods,
    one_line_each,
    value_of,
    write_config,
)
from cs_heads.cli.loading import N_UNSEEN, Loaded, loaded, method_options, unseen_of
from cs_heads.cli.printing import end_with_page, losses_line, print_json

if TYPE_CHECKING:
    from cs_heads.analysis.compare import Comparison


WIDTH = 120  # columns of what is printed


@one_line_each
@dataclass(kw_only=True)
class CompareFlags(OneTask):
    """The flags of ``compare``.

    Attributes:
        methods: names, commas or spaces between (default: annealed, css, csb, one-shot, greedy, chg, gradient);
            cs-heads methods lists all, and the options of one, of which those that it needs are flags
        option: an option of one method, as css.n_masks=200; may be repeated
        contrast: controls serve the search of every method that takes them (else of annealed and group-testing)
        max_heads: heads to ablate at the end of the drop curve (default: 10, or half of a smaller grid)
        shares: shares of the units kept, all others ablated, as 0,0.01,0.1,1: adds how faithful what is left is to
            the model
    """

    methods: Annotated[
        list[str], USUAL, Parameter(alias="--method", consume_multiple=True, completer=names_of_methods)
    ] = field(default_factory=list)
    option: Several = field(default_factory=list)
    contrast: Switch = False
    max_heads: Heads = None
    shares: str | None = None


def compare(options: Annotated[CompareFlags, Parameter(name="*")], **own: MethodOption) -> None:
    """Rank heads by several methods, and judge them on unseen examples.

    Rank heads by several methods on the same finding examples, and judge all rankings on the
    same unseen ones.

    Said first is whose --k heads take the most from the task beyond what its controls lose. Then
    cost, what task and controls lose (shares of the score above chance), the drop of the score with
    the first 1, --k and --max-heads heads of each method off, beside random heads, and how far the
    methods agree.
    Without --control the default controls are measured, 50 examples of each for every method. No
    method runs beyond --budget, in example-evaluations (one mask on one example; a backward
    pass counts as another); one that needs more is left out, and says how much it needs.

    Examples:
      cs-heads compare --model demo --task demo/capitals --control demo/code --out compared
      cs-heads compare --model gpt2 --task my_task.jsonl --methods annealed,css,one-shot --budget 20000
      cs-heads compare --model gpt2 --task with_examples.jsonl --methods contrastive,chg --forget with_instruction.jsonl
    """
    import cs_heads as cs
    from cs_heads.analysis.compare import METHODS as DEFAULT
    from cs_heads.analysis.faithfulness import check_shares
    from cs_heads.report.findings import RESULT

    names = tuple(dict.fromkeys(" ".join(options.methods).replace(",", " ").split())) or DEFAULT
    given = method_options(options, names, own, options.option)
    shares = None if options.shares is None else check_shares([*map(value_of, options.shares.split(","))])
    with loaded(options) as at:
        if options.dry_run:
            _print_cost(options, at, given)
            return
        unseen_of(options, at, RESULT)
        more: dict[str, Any] = {"max_heads": options.max_heads, "contrast": options.contrast, "shares": shares}
        more |= {**options.search, **at.settings}
        result = cs.compare(at.model, at.task, methods=names, controls=at.controls, options=given, **more)
    if options.json:
        print_json(result)
    else:
        _print_comparison(options, result)
    if options.out is not None:
        _write_comparison(options, result, own)


def _print_cost(options: CompareFlags, at: Loaded, given: dict[str, dict[str, Any]]) -> None:
    """Print the cost of the search of each method, by its ``given`` options, and of judging."""
    from cs_heads.analysis.compare import most_of_judging
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.methods.find import prepared_search
    from cs_heads.methods.registry import METHODS
    from cs_heads.tasks import confirming_side

    steps, refused = dict[str, int](), list[ValueError]()
    for name, own in given.items():
        method = METHODS[name]
        helped = method.default_controls or (options.contrast and method.takes_controls)
        more = {"budget": options.budget, "seed": options.seed, "controls": at.controls if helped else None, **own}
        try:
            with prepared_search(at.model, at.task, k=options.max_heads, method=name, **more, **at.dry) as search:
                steps[name] = search.most
        except ValueError as error:
            # One that refuses its budget or the task is left out of the comparison.
            refused.append(error)
    if not steps:
        raise refused[0]
    with Experiment(at.model, confirming_side(at.task).take(N_UNSEEN), **at.dry) as unseen:
        sizes = judged_with(unseen, at.task, at.controls, options.seed)
        max_heads = options.max_heads or min(10, unseen.grid.size // 2)
        steps["judging"] = most_of_judging(unseen.n_examples, sizes, max_heads, len(given))
        if options.shares is not None:
            n_masks = 3 + (len(steps) - 1 + 8) * len(options.shares.split(","))
            steps["faithfulness"] = n_masks * unseen.n_examples
        print_cost(options, steps, unseen)


def _print_comparison(options: CompareFlags, result: Comparison) -> None:
    from cs_heads.analysis.losses import marked
    from cs_heads.report.comparison import answer_of

    k, max_heads = result.k, result.random_drops.shape[1]
    at, weighed = sorted({1, k, max_heads}), bool(result.most_specific())
    print(f"model {options.model}, task {options.task}, baseline {result.baseline:.3f} on unseen examples\n")
    print(*(fill(line, WIDTH) for line in answer_of(result)), "", sep="\n")
    columns = f"{'own loss':>9}{'controls':>10}" if weighed else ""
    drops = "".join(f"{f'drop@{k}':>9}" for k in at)
    print(f"{'method':<14}{'evaluations':>12}{'backward':>10}{'seconds':>9}{columns}{drops}  top {k}")
    for name, one in result.methods.items():
        drops = "".join(f"{one.drops[k - 1]:>+9.3f}" for k in at)
        heads = " ".join(map(str, one.ranking.top(k)))
        cost = f"{one.ranking.spent:>12,}{one.cost['backwards']:>10,}{one.seconds:>9.1f}"
        found = result.specificity(name)
        told = ("–", "–") if found is None else (marked(found.own.loss), f"{found.mean.loss:.2f}")
        losses = f"{told[0]:>9}{told[1]:>10}" if weighed else ""
        print(f"{name:<14}{cost}{losses}{drops}  {heads}")
    random = "".join(f"{result.random_drop[k - 1]:>+9.3f}" for k in at)
    print(f"{'random':<{45 + len(columns)}}{random}\n")
    if len(result.methods) > 1:
        print(result.agreement().to_string(index=False, float_format="{:.2f}".format))
    if result.faithfulness is not None:
        areas = result.faithfulness.areas().to_string(index=False, float_format="{:.3f}".format)
        print(f"\nfaithfulness of the first {result.faithfulness.unit}s kept, all others ablated\n{areas}\n")
    for name, one in result.methods.items():
        found = result.specificity(name)
        if found is not None:
            print(f"with the top {k} of {name} off: {losses_line(found)}")
        for note in one.ranking.notes:
            print(f"note on {name}: {note}")
    for note in result.notes:
        print(f"note: {note}")
    for name, reason in result.refused.items():
        print(f"{name} did not run: {reason}")
    print(f"cost: {result.spent:,} example-evaluations to judge")


def _write_comparison(options: CompareFlags, result: Comparison, own: Mapping[str, str]) -> None:
    from cs_heads.plot.style import draw_to
    from cs_heads.record import write_json
    from cs_heads.report.findings import COMPARISON

    folder = options.out
    assert folder is not None
    written = [write_config(options, own)]
    written.append(write_json(folder / COMPARISON, {**result.to_dict(), "command": options.command}))
    for name, one in result.methods.items():
        written.append(folder / f"ranking-{name}.json")
        one.ranking.save(written[-1])
    for name, draw in (("drops.png", plot.drops), ("agreement.png", plot.agreement)):
        written += draw_to(folder / name, draw, result)
    if result.faithfulness is not None:
        written += draw_to(folder / "faithfulness.png", plot.faithfulness, result.faithfulness)
    end_with_page(options, written)
