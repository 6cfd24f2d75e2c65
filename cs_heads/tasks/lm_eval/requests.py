"""lm-eval's requests as examples: which tasks can be measured here, their prompts, worked examples and choices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cs_heads.arguments import fits
from cs_heads.tasks.data_files import DataFiles, Row
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import check_shared
from cs_heads.tasks.lm_eval import harness
from cs_heads.tasks.lm_eval.scoring import HarnessLogprobScorer, HarnessScorer, Rule
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.records import Kind
from cs_heads.tasks.task import Task

KINDS: dict[str, Kind] = {"multiple_choice": "choice", "loglikelihood": "completion", "generate_until": "generation"}
"""lm-eval's kind of request → the kind of a task here."""

# lm-eval's own default where a task says nothing (HFLM.max_gen_toks), and the names it goes by.
_MAX_NEW_TOKENS = 256
_MAX_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")

_ON_HUB = "hf://datasets/"

# Python's words, and those of lm-eval's samplers, where worked examples run out.
_TOO_FEW = ("Sample larger than population", "number of fewshot samples", "no documents available")


def kind_of_member(member: harness.Member) -> Kind:
    """The kind of a task; one that cannot be measured head by head raises ``ValueError``, in one line."""
    kind, sampled = member["output_type"] or "generate_until", member["generation_kwargs"] or {}
    repeats = member["repeats"] or 1
    drawn = sampled.get("do_sample") and float(sampled.get("temperature", 1.0)) > 0
    reasons = {
        "is written in Python inside lm-eval and has no configuration to read": member["class"],
        "runs generated code outside a sandbox; mbpp, humaneval and humaneval_instruct do not": member["unsafe_code"],
        "shows images or plays sound, and models here read text": member["doc_to_image"] or member["doc_to_audio"],
        f"asks for {kind}, the probability of whole documents, which is no score of an answer": kind not in KINDS,
        "draws its texts at random, and texts here are decoded greedily": drawn,
        f"asks for {repeats} texts an example, and texts here are decoded greedily": repeats > 1,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"lm-eval task {member.name!r} {reason}")
    return KINDS[kind]


def _metric_of(member: harness.Member, wanted: str | None) -> str:
    """The metric that scores each example: ``wanted``, or the first of the task that gives one in [0, 1].

    A metric over all examples together (perplexity, F1, ...), one that counts lower as better, or one that the task
    has not, raises ``ValueError``.
    """
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, get_metric_aggregation, is_higher_better

    kind = member["output_type"] or "generate_until"
    listed = member["metric_list"] or [{"metric": metric} for metric in DEFAULT_METRIC_REGISTRY[kind]]
    usable, lower = list[str](), list[str]()
    with harness.quiet_harness():
        for entry in listed:
            # A function's name is the last part of where it stands.
            name = re.split("[/.]", str(entry["metric"]))[-1]
            better = entry.get("higher_is_better", True if "/" in str(entry["metric"]) else is_higher_better(name))
            how = entry.get("aggregation") or get_metric_aggregation(name)
            if (how if isinstance(how, str) else getattr(how, "__name__", "")) in ("mean", "nanmean"):
                (lower if better is False else usable).append(name)
    if usable and wanted in (None, *usable):
        return wanted or usable[0]
    raise ValueError(
        f"lm-eval task {member.name!r} cannot be scored example by example with metric "
        f"{wanted or str(listed[0]['metric'])!r}: its metrics for one example are {', '.join(usable) or 'none'}; "
        f"lower is better by {', '.join(lower) or 'none'}, and scores here count higher as better"
    )


def _filter_of(member: harness.Member, wanted: str | None) -> str:
    """The filter that a text goes through before it is judged: ``wanted``, or the task's first."""
    names = [str(entry["name"]) for entry in member["filter_list"] or [{"name": "none"}]]
    if wanted not in (None, *names):
        raise ValueError(f"lm-eval task {member.name!r} has no filter {wanted!r}; it has {', '.join(names)}")
    return wanted or names[0]


def read(
    member: harness.Member,
    *,
    data_files: DataFiles | None = None,
    metric: str | None = None,
    filter: str | None = None,
    few_shot: int | None = None,
    few_shot_seed: int = 1234,  # lm-eval's own
    shared: bool = False,
    max_new_tokens: int | None = None,
) -> Task:
    """The whole of one lm-eval task, in lm-eval's order.

    Args:
        member: The task.
        data_files: A file, a folder or zip archive, several files, or these by split; None: the hub's data.
        metric: lm-eval's name of it; None: the first that scores each example.
        filter: lm-eval's name of it; None: the task's first.
        few_shot: Worked examples; None: as the task says.
        few_shot_seed: Draws them.
        shared: Draw them once, and show the same before every question; they are not asked.
        max_new_tokens: The most tokens of a text; None: as the task says.

    Raises:
        ValueError: The task cannot be loaded or measured.
    """
    kind, metric, chosen = kind_of_member(member), _metric_of(member, metric), _filter_of(member, filter)
    own = member["num_fewshot"]
    n_shots = int(own or 0) if few_shot is None else few_shot
    if n_shots < 0 or (own == 0 and n_shots):
        allowed = "0" if own == 0 else "0 or more"
        raise ValueError(f"few_shot must be {allowed} for lm-eval task {member.name!r}, or left out; got {few_shot}")
    check_shared(shared, n_shots)
    overrides, rows = dict(member.overrides), None
    if data_files is not None:
        wanted = _wanted(member, n_shots)
        rows = read_splits(wanted, data_files)
        # lm-eval reads no splits that it has no use for.
        splits = ("training_split", "validation_split", "test_split")
        overrides |= dict.fromkeys(name for name in splits if member[name] not in wanted.splits)
        overrides |= {} if n_shots else {"fewshot_split": None, "fewshot_config": None}
        if wanted.shots is not None and rows[wanted.shots] == rows[wanted.split]:
            # Worked examples from the file that is judged: lm-eval leaves out the one in question.
            overrides |= {"test_split": wanted.split, "fewshot_split": wanted.split}
            rows = {wanted.split: rows[wanted.split]}
    task = harness.build(member.name, overrides, rows)
    task.set_config("num_fewshot", n_shots)
    task.set_fewshot_seed(few_shot_seed)
    with harness.quiet_harness():
        examples = tuple(_examples(task, kind, rows, n_shots, shared))
    if not examples:
        raise ValueError(f"lm-eval task {member.name!r} has no examples in its data")
    given = json.dumps(member.overrides, sort_keys=True, default=str)
    rules = (Rule(member.name, given, metric, chosen, harness.harness_version()),)
    name = f"lm-eval/{member.name}"
    if kind != "generation":
        return Task(name, kind, examples, scorer=HarnessLogprobScorer(rules))
    settings = task.config.generation_kwargs or {}
    until = settings.get("until") or []
    stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
    most = next((settings[name] for name in _MAX_NAMES if settings.get(name) is not None), _MAX_NEW_TOKENS)
    most = int(most) if max_new_tokens is None else max_new_tokens
    return Task(name, kind, examples, scorer=HarnessScorer(rules), max_new_tokens=most, stop=stop)


def _examples(task: Any, kind: Kind, rows: harness.Rows | None, n_shots: int, shared: bool) -> Iterator[Example]:
    """The examples in lm-eval's order; what is wrong with one is said with its number, from 0."""
    shown: list[list[str]] = []
    for number, doc in enumerate(task.task_docs):
        try:
            if shared and not number:
                shown = _show_the_same(task, n_shots)
            if shown and _question(task, doc) in shown:
                continue
            example = _example(task, kind, doc, n_shots)
        except Exception as error:
            said: object = error
            if any(words in str(error) for words in _TOO_FEW):
                said = f"few_shot={n_shots} worked examples are more than its data have"
            elif not isinstance(error, ValueError):
                said = harness.why_not_read(task.task_name, rows, error)
            raise ValueError(f"lm-eval task {task.task_name!r}, example {number}: {said}") from error
        yield example


def _show_the_same(task: Any, n_shots: int) -> list[list[str]]:
    """Draw worked examples once, for all that an lm-eval task asks; their questions."""
    worked, form = list(task.sampler.sample(n=n_shots)), task.fewshot_cfg
    task.sampler.sample = lambda **_: worked
    return [_question(task, doc, form.doc_to_text, form.doc_to_choice) for doc in worked]


def _question(task: Any, doc: Row, text: Any = None, choice: Any = None) -> list[str]:
    """What a row asks and the choices it offers, if any, whatever their order."""
    choices = [] if task.config.doc_to_choice is None else task.doc_to_choice(doc, choice)
    return [_asked(task, doc, text, choice), *sorted(map(str, choices))]


def _example(task: Any, kind: Kind, doc: Row, n_shots: int) -> Example:
    name = task.task_name
    context = task.fewshot_context(doc, num_fewshot=n_shots, gen_prefix=task.doc_to_prefix(doc))
    reference = json.dumps({"task": name, "doc": doc}, ensure_ascii=False)
    asked = _asked(task, doc)
    if kind == "generation":
        return Example(context, _target(task, doc), 0, reference, asked)
    made = task.construct_requests(doc=doc, ctx=context, metadata=(name, 0, 1))
    arguments = [request.args[:2] for request in (made if isinstance(made, list) else [made])]
    # As lm-eval's models tokenize them: white space between them is the continuation's.
    prompts = tuple(context.rstrip() for context, _ in arguments)
    continuations = tuple(context[len(context.rstrip()) :] + answer for context, answer in arguments)
    if not all(answer.strip() for answer in continuations):
        raise ValueError(f"has an answer that is empty, of {continuations!r:.200}")
    right = _right(task, doc) if kind == "choice" else 0
    own = prompts if len(set(prompts)) > 1 else ()
    return Example(prompts[right], continuations, right, reference, asked, own)


def _asked(task: Any, doc: Row, text: Any = None, choice: Any = None) -> str:
    """The bare question of a row, by the task's own ``doc_to_text`` and ``doc_to_choice``, or by those given.

    What differs where a group has it twice is left out: the order and the letters of choices it lists.
    """
    # Where each choice has a prompt of its own, those are the question, and the text is the number of the right one.
    asked = "\n".join(task.doc_to_choice(doc, choice)) if task.multiple_input else task.doc_to_text(doc, text)
    lines = str(asked).strip().splitlines()
    return "\n".join(sorted(re.sub(r"^\(?[A-Z][.):] ", "", line.strip()) for line in lines))


def _target(task: Any, doc: Row) -> tuple[str, ...]:
    """The right text after a prompt, where lm-eval gives one."""
    target = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    target = target[0] if isinstance(target, list) and target else target
    return (f"{task.config.target_delimiter}{target}",) if isinstance(target, str) and target.strip() else ()


def _right(task: Any, doc: Row) -> int:
    """The index of the right choice, the first where there are several."""
    target, choices = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc), task.doc_to_choice(doc)
    target = target[0] if isinstance(target, list) and target else target
    index = choices.index(target) if isinstance(target, str) and target in choices else target
    if not fits(index, int) or not 0 <= index < len(choices):
        raise ValueError(f"is without a right choice: {target!r} of {choices!r}"[:300])
    return int(index)


def _wanted(member: harness.Member, n_shots: int) -> Wanted:
    split = member["test_split"] or member["validation_split"]
    if split is None:
        raise ValueError(f"lm-eval task {member.name!r} has no test or validation split")
    shown = member["fewshot_config"] or {}
    shots = shown.get("split") or member["fewshot_split"]
    if shots is None and "samples" not in shown:
        shots = member["training_split"] or member["validation_split"] or split
    files = (member["dataset_kwargs"] or {}).get("data_files", {})
    listed = [file for file in (files.values() if isinstance(files, Mapping) else [files]) if isinstance(file, str)]
    dataset, part = member["dataset_path"], member["dataset_name"]
    names = (member.name, *filter(None, [part]), *(Path(file).stem for file in listed))
    # Files that stand in a data set of the hub: hf://datasets/EleutherAI/arithmetic/data/...
    on_hub = ["/".join(file.removeprefix(_ON_HUB).split("/")[:2]) for file in listed if file.startswith(_ON_HUB)]
    return Wanted(member.name, split, shots if n_shots else None, next(iter(on_hub), dataset), part, names)
