"""``cs-heads find``."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from cs_heads import plot
from cs_heads.cli.cost import judged_with, print_cost
from cs_heads.cli.explain import cards_or_note
from cs_heads.cli.flags import USUAL, MethodOption, OneTask, names_of_methods, one_line_each, write_config
from cs_heads.cli.loading import N_UNSEEN, Loaded, loaded, method_options, unseen_of
from cs_heads.cli.printing import end_with_page, largest_losses, losses_line, print_json
from cs_heads.units import as_heads

if TYPE_CHECKING:
    from cs_heads.analysis.confirm import Confirmation
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.methods.find import PreparedSearch
    from cs_heads.ranking import HeadRanking
    from cs_heads.tasks import Task
    from cs_heads.units import Unit

PROMPTS = 3  # unseen prompts that a report shows attention on
TOKENS = 12  # tokens of the texts that it shows
MOST, N_RANDOM = 10, 3  # heads of the curve of a report, and sets of random heads beside it


@one_line_each
@dataclass(kw_only=True)
class FindFlags(OneTask):
    """The flags of ``find``.

    Attributes:
        method: name of the method (cs-heads methods lists them; cs-heads methods NAME shows the options of one, each of
            which is a flag)
        off: heads that are off throughout, as L1H3 L1H4: what carries the task without them
        curve: with --out: the score with 0 to 10 heads off, beside random heads (41 example-evaluations an unseen
            example at most; none with --off)
        explain: with --out: what each of the heads proved does, as cs-heads explain says it
        repeats: search and prove again so often, with other seeds: how often heads and verdict come again
    """

    method: Annotated[str, USUAL, Parameter(alias="--methods", completer=names_of_methods)] = "annealed"
    off: Annotated[list[str], Parameter(consume_multiple=True, show_default=False)] = field(default_factory=list)
    curve: bool = True
    explain: bool = False
    repeats: Annotated[int, Parameter(validator=Number(gte=0, lte=1000))] = 0


def find(options: Annotated[FindFlags, Parameter(name="*")], **own: MethodOption) -> None:
    """Rank heads for a task and prove the best on unseen examples.

    Rank the heads of a model by how much a task rests on them, and prove the first on examples
    the search has not seen.

    The task's examples are split: --n of them find the heads, others judge. The search zeroes
    groups of heads and measures the score; the proof zeroes the top --k on up to 100 unseen
    examples, beside random heads of the same layers. The verdict:

      specific          the heads do more harm than random ones (p < .01 over sets of heads and over examples),
                        by a tenth of the score or more, and the controls lose little: on average a third at
                        most of what the task loses, as shares of the score above chance, and less by .10 for
                        certain; and no control, but for one or two of the task's form, for certain more than half
      template-bound    the same, but the same skill in other words loses less than half of what the task loses
      shared            as much harm to the task, but the controls lose more than that third, or one more than half
      localized         as much harm to the task, but the difference is not certain, or no control
                        that can tell was given
      not localized     not as much harm: the ranking is no evidence that the task rests on them
      baseline too low  the intact model does not do the task well enough to tell: already on the examples
                        that find heads, the search ends with an error that says so

    It is close where the intervals allow another verdict.

    Controls are other tasks, which the heads should not serve. By default they are the everyday
    skills that come with the library (cs-heads tasks lists them), for the verdict and for the
    search of the method annealed: those that the model can do count, alike, and specific takes
    three. The search ranks heads by what they take from the task beyond what they take from the
    controls. Give --control, once or several times, for controls of your own, of which each counts;
    --no-control for none. Choose tasks that differ in what matters: skills that share a form share
    heads, and the result names the controls that lose.

    Cost, counted in example-evaluations (one mask on one example, a forward pass): by default 10 for
    each head of the model, from 8,000 to 60,000, to find; about 1,300 to prove (2,200 at most), and
    up to 1,500 for the default controls (100 each; 200 for each --control); with --out a curve of up to 4,100.

    Examples:
      cs-heads find --model demo --task demo/capitals --out found
      cs-heads find --model gpt2 --task my_task.jsonl --control another.jsonl --store run.sqlite --out found
      cs-heads find --model FOLDER --task boolq --task-option data_files=boolq/ --method css --n-masks 200

    A line of my_task.jsonl: {"prompt": "The cats", "choices": [" sleep", " sleeps"], "answer": 0}
    or {"prompt": "The capital of France is", "target": " Paris"}; lists of token ids may stand for the
    texts, as {"prompt": [3, 4, 11], "target": [7]}, and need no tokenizer.
    With --store an interrupted command is resumed where it was.
    """
    import cs_heads as cs

    if "," in options.method:
        raise ValueError(f"--method of find is one method, got {options.method!r}: cs-heads compare takes several")
    if options.explain and options.off:
        raise ValueError("--explain goes without --off: cards are of heads that are found with no others off")
    # What needs no model to be refused is refused before one is loaded, and what loads and runs it is imported.
    search: dict[str, Any] = {**options.search, "method": options.method, "off": as_heads("off", options.off)}
    # The default method without options needs no look at the methods, whose import takes seconds.
    if own or options.method != "annealed":
        search |= method_options(options, [options.method], own)[options.method]
    _check_repeats(options.repeats, search)
    with loaded(options) as at:
        from cs_heads.methods.find import prepared_search
        from cs_heads.methods.registry import METHODS

        # Of a method that takes no controls they judge all the same.
        search["controls"] = at.controls if METHODS[options.method].takes_controls else None
        curve = options.out is not None and options.curve and not options.off
        if options.dry_run:
            with prepared_search(at.model, at.task, **search, **at.dry) as prepared:
                print_cost(options, _steps(options, at, prepared, curve=curve), prepared.experiment)
            return
        from cs_heads.report.findings import CARDS, COMPARISON

        unseen = unseen_of(options, at, COMPARISON)
        start = perf_counter()
        found = cs.find_heads(at.model, at.task, **search, **at.settings)
        between = perf_counter()
        # By default found.k is what fits the grid.
        judging: dict[str, Any] = {"off": search["off"], "seed": options.seed, "repeats": options.repeats}
        proof = cs.confirm(at.model, at.task, found, controls=at.controls, k=found.k, **judging, **at.settings)
        seconds = {"find": between - start, "confirm": perf_counter() - between}
        found = found.proved(proof.heads)
        result = _result(options, at.task, found, proof, seconds)
        if not options.json:
            _print_result(result, found, proof)
        if options.out is not None and unseen is not None:
            folder = options.out
            # Results lie on disk before the model runs once more, for what is looked at.
            written = [write_config(options, own), *_write(folder, result, found)]
            if curve and not proof.result.too_low:
                written += _measure_curve(folder, unseen, found, result, options.seed)
            if found.grid.kind == "heads":
                written += _attend(folder, at, found.heads)
            if options.explain and not proof.result.too_low:
                given: dict[str, Any] = {"controls": at.controls, "seed": options.seed, **at.settings}
                if (cards := cards_or_note(at.model, at.task, found, **given)) is not None:
                    cards.save(folder / CARDS)
                    written.append(folder / CARDS)
            if not proof.result.too_low and not options.off:
                written += _write_on(folder, at, found)
            end_with_page(options, written)
    if options.json:
        print_json(result)


def _check_repeats(repeats: int, search: dict[str, Any]) -> None:
    from cs_heads.tasks import Task

    if repeats and (lost := [name for name, value in search.items() if isinstance(value, Task)]):
        raise ValueError(f"--repeats goes without --{lost[0]}, which the ranking does not keep")


def _result(
    options: FindFlags, task: Task, found: HeadRanking, proof: Confirmation, seconds: dict[str, float]
) -> dict[str, Any]:
    return {
        "verdict": proof.headline,
        "close": proof.close,
        "model": options.model,
        "task": options.task,
        "method": found.method,
        "baseline": found.provenance["baseline"],
        "prepend_bos": None if task.over_token_ids else found.provenance["prepend_bos"],
        "heads": [_row(found, head) for head in found.listed(found.k)],
        "passengers": [_row(found, head) for head in proof.passengers],
        "shared": found.shared_effects,
        "interfering": [_row(found, head) for head in found.interfering],
        "spent": found.spent,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "confirm": proof.to_dict(),
        "notes": list(found.notes),
        "command": options.command,
    }


def _row(found: HeadRanking, head: Unit) -> dict[str, Any]:
    at = head.layer, head.index
    row: dict[str, Any] = {"head": str(head), "importance": float(found.importance[at])}
    if found.interval is not None and not math.isnan(found.interval[at][0]):
        row["interval"] = found.interval[at].tolist()
    known = {"frequency": found.frequency, "z": found.z, "control_importance": found.control_importance}
    return row | {name: float(values[at]) for name, values in known.items() if values is not None}


def _print_result(result: dict[str, Any], found: HeadRanking, proof: Confirmation) -> None:
    from cs_heads.analysis.losses import shared_line
    from cs_heads.report.heads import interfering_note

    screened = ", screened by gradients" if found.method == "annealed" and found.backwards else ""
    print(f"model {result['model']}, task {result['task']}, method {result['method']}{screened}")
    off = f", with {', '.join(map(str, found.off))} off throughout" if found.off else ""
    print(f"baseline {result['baseline']:.3f}{off}")
    where = {"all": "", "last": ", off at the last token of the prompt", "prompt": ", off at the tokens of the prompt"}
    searched, proved = found.provenance.get("compute_dtype"), proof.provenance.get("compute_dtype")
    if searched != proved:
        print(f"searched in {searched}, proved in {proved}")
    how = f"{found.grid.word}s{where[found.provenance.get('positions', 'all')]}"
    if how != "heads":
        print(how)
    print(f"{_prepended_line(result['prepend_bos'])}\n")
    unit = "" if found.unit == "score lost" else f" ({found.unit})"
    print(f"{'unit' if found.grid.kind != 'heads' else 'head':<8}{'importance':>10}{unit}")
    for row in result["heads"]:
        low, high = row.get("interval", (None, None))
        bounds = "" if low is None else f"  ({low:+.3f} to {high:+.3f})"
        print(f"{row['head']:<8}{row['importance']:>+10.3f}{bounds}")
    print("(what the search estimates that each takes; the proof is of all together)")
    if result["shared"]:
        told = [f"  {shared_line(effects)}" for effects in result["shared"]]
        print("left out, because the controls need them too (shared):", *told, sep="\n")
    print(f"\nverdict: {proof.headline}")
    for reason in (*proof.reasons, *proof.likely):
        print(f"  {reason}")
    _print_controls(proof)
    if proof.close_because is not None:
        print(f"  close: {proof.close_because}")
    for note in dict.fromkeys((*proof.notes, *found.notes, *interfering_note(found))):
        print(f"note: {note}")
    print(f"cost: {found.spent:,} example-evaluations to find, {proof.spent:,} to confirm")
    print(f"next: {proof.next_step}")


def _prepended_line(prepended: bool | list[str] | None) -> str:
    """What stands before every prompt; None where prompts are token ids."""
    if prepended is None:
        return "prompts are token ids, as they are given"
    return f"{' '.join(prepended) if isinstance(prepended, list) else 'BOS' if prepended else 'no BOS'} prepended"


def _print_controls(proof: Confirmation) -> None:
    """What the controls lose: each one given, of the default ones those that lose most."""
    found = proof.specificity
    if found is not None and not proof.localized:
        # The reasons of the other verdicts have the losses.
        print(f"  {losses_line(found)}")
    elif found is not None and proof.default_controls and len(found.controls) > 1:
        print(f"  {largest_losses(found)}")
    for control in () if proof.default_controls else proof.controls:
        known = found.controls.get(control.task) if found else None
        lost = f", loss {known}" if known else ""
        print(f"  control {control.task}: {control.baseline:.3f} to {control.score:.3f}{lost}")


def _write(folder: Path, result: dict[str, Any], found: HeadRanking) -> list[Path]:
    from cs_heads.plot.style import draw_to
    from cs_heads.record import write_json
    from cs_heads.report.findings import ATTENTION, CARDS, CURVE, RESULT, TEXTS

    # Parts of an earlier run do not stay beside this one's.
    for part in (ATTENTION, CARDS, CURVE, TEXTS):
        (folder / part).unlink(missing_ok=True)
    written = [write_json(folder / RESULT, result), folder / "ranking.json"]
    found.save(written[-1])
    return written + draw_to(folder / "heads.png", plot.heads, found, found.k, verdict=result["confirm"]["verdict"])


def _heads_of_curve(size: int) -> int:
    """Heads of the curve on a grid of so many."""
    return min(MOST, size // 2)


def _steps(options: FindFlags, at: Loaded, search: PreparedSearch, *, curve: bool) -> dict[str, int]:
    """The most example-evaluations of each step."""
    from cs_heads.analysis.least_set import most_of_proof
    from cs_heads.tasks import confirming_side
    from cs_heads.tasks.splits import MIN_CORRECT

    n, experiment = min(N_UNSEEN, len(confirming_side(at.task))), search.experiment
    others = judged_with(experiment, at.task, at.controls, options.seed)
    prepared = 0 if experiment.settings.ablation == "zero" else n + sum(others)
    steps = {"search": search.most, "proof": prepared + most_of_proof(search.k, n, others)}
    if options.repeats:
        steps["repeats"] = options.repeats * sum(steps.values())
    if curve:
        # None off, the heads found, and the sets of random heads.
        steps["curve"] = (1 + (1 + N_RANDOM) * _heads_of_curve(experiment.grid.size)) * n
    if options.out is not None and not options.off:
        steps["texts"] = 2 * MIN_CORRECT
    if options.explain:
        from cs_heads.analysis.explain import N_EXAMPLES, most_of_cards

        steps["cards"] = most_of_cards(search.k, min(n, N_EXAMPLES), of_heads=experiment.grid.kind == "heads")
    return steps


def _measure_curve(
    folder: Path, unseen: Experiment, found: HeadRanking, result: dict[str, Any], seed: int
) -> list[Path]:
    """The score on unseen examples with 0, 1, ..., 10 heads off; how many take half goes into the result."""
    from cs_heads.analysis.sparsity import sparsity_curve
    from cs_heads.record import write_json
    from cs_heads.report.findings import CURVE, RESULT

    given: Any = {"max_heads": _heads_of_curve(found.grid.size), "seed": seed, "n_random": N_RANDOM}
    curve = sparsity_curve(None, unseen, found, **given)
    written = [write_json(folder / CURVE, curve.to_dict())]
    result |= {"half": curve.heads_for(0.5), "curve_spent": curve.spent}
    write_json(folder / RESULT, result)
    return written


def _write_on(folder: Path, at: Loaded, found: HeadRanking) -> list[Path]:
    """What the model writes after some unseen prompts, intact and with the heads off; one that cannot goes without."""
    from cs_heads.analysis.failures import failures
    from cs_heads.report.findings import TEXTS
    from cs_heads.tasks.splits import MIN_CORRECT

    given: dict[str, Any] = {"n": MIN_CORRECT, "texts": True, "max_new_tokens": TOKENS, "stop": ["\n"]}
    try:
        failures(at.model, at.task, found, **given, **at.settings).save(folder / TEXTS)
    except ValueError as error:
        print(f"cs-heads: note: no texts: {error}", file=sys.stderr)
        return []
    return [folder / TEXTS]


def _attend(folder: Path, at: Loaded, heads: Sequence[Unit]) -> list[Path]:
    """Attention of the heads on a few short unseen prompts; a model that does not show it goes without."""
    from cs_heads.analysis.attention import attention
    from cs_heads.cluster import local_model
    from cs_heads.engine.encoding import as_shown
    from cs_heads.plot.attention_patterns import MAX_TOKENS
    from cs_heads.report.findings import ATTENTION
    from cs_heads.tasks import confirming_side

    model = local_model(at.model)
    prompts = {example.prompt for example in as_shown(model, confirming_side(at.task)).examples}
    short = sorted(prompts, key=lambda prompt: (len(prompt), prompt))
    path = folder / ATTENTION
    try:
        chosen, prepend_bos = short[len(short) // 4 :][:PROMPTS], at.settings.get("prepend_bos")
        attention(model, chosen, heads, prepend_bos=prepend_bos).truncated(MAX_TOKENS).save(path)
    except ValueError as error:
        print(f"cs-heads: note: no attention patterns: {error}", file=sys.stderr)
        return []
    return [path]
