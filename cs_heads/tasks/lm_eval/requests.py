"""lm-eval's requests as examples: which tasks can be measured here, their prompts, worked examples and choices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cs_heads.arguments import fits
from cs_heads.tasks.data_files import DataFiles, Row, is_collection
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import check_shared
from cs_heads.tasks.lm_eval import harness
from cs_heads.tasks.lm_eval.scoring import Rule
from cs_heads.tasks.records import Kind
from cs_heads.tasks.splits import Wanted, read_splits
from cs_heads.text import ChatPrompt

KINDS: dict[str, Kind] = {
    "multiple_choice": "choice",
    "loglikelihood": "completion",
    "generate_until": "generation",
}
"""lm-eval's kind of request → the kind of a task here."""

# lm-eval's own default where a task says nothing (HFLM.max_gen_toks), and the names it goes by.
_MAX_NEW_TOKENS = 256
_MAX_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def kind_of(member: harness.Member) -> Kind:
    """The kind of a task that ``check`` lets through."""
    return KINDS[member["output_type"] or "generate_until"]


def check(member: harness.Member) -> None:
    """Raise ``ValueError``, in one line, where a task cannot be measured head by head."""
    name, kind = member.name, member["output_type"] or "generate_until"
    sampled = member["generation_kwargs"] or {}
    reason = None
    if member["class"] is not None:
        reason = "is written in Python inside lm-eval and has no configuration to read"
    elif member["unsafe_code"]:
        reason = "runs generated code outside a sandbox; mbpp, humaneval and humaneval_instruct run in one here"
    elif member["doc_to_image"] is not None or member["doc_to_audio"] is not None:
        reason = "shows images or plays sound, and models here read text"
    elif kind not in KINDS:
        reason = f"asks for {kind}, the probability of whole documents, which is no score of an answer"
    elif sampled.get("do_sample") and float(sampled.get("temperature", 1.0)) > 0:
        reason = "draws its texts at random, and texts here are decoded greedily"
    elif (member["repeats"] or 1) > 1:
        reason = f"asks for {member['repeats']} texts an example, and texts here are decoded greedily"
    if reason:
        raise ValueError(f"lm-eval task {name!r} {reason}")


def metric_of(member: harness.Member, wanted: str | None) -> str:
    """The metric that scores each example: ``wanted``, or the first of the task that gives one in [0, 1].

    A metric over all examples together (perplexity, F1, ...), one that counts lower as better, or one that the task
    has not, raises ``ValueError``.
    """
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, get_metric_aggregation, is_higher_better

    listed = member["metric_list"] or [
        {"metric": metric} for metric in DEFAULT_METRIC_REGISTRY[member["output_type"] or "generate_until"]
    ]
    usable: list[str] = []
    lower: list[str] = []
    with harness.quietly():
        for entry in listed:
            name = _name(entry["metric"])
            better = entry.get("higher_is_better", True if "/" in str(entry["metric"]) else is_higher_better(name))
            how = entry.get("aggregation") or get_metric_aggregation(name)
            mean = (how if isinstance(how, str) else getattr(how, "__name__", "")) in ("mean", "nanmean")
            if mean:
                (lower if better is False else usable).append(name)
    if wanted is None and usable:
        return usable[0]
    if wanted in usable:
        return str(wanted)
    has = f"its metrics for one example are {', '.join(usable)}" if usable else "it has no metric for one example"
    if lower and (wanted in lower or not usable):
        other = f", {has}" if usable else ""
        has = f"lower is better by {', '.join(lower)}, and scores here count higher as better{other}"
    raise ValueError(
        f"lm-eval task {member.name!r} cannot be scored example by example with metric "
        f"{wanted or _name(listed[0]['metric'])!r}: {has}"
    )


def _name(metric: Any) -> str:
    """A metric's name; a function's is the last part of where it stands."""
    return str(metric).rsplit("/", 1)[-1].rsplit(".", 1)[-1]


def filter_of(member: harness.Member, wanted: str | None) -> str:
    """The filter that a text goes through before it is judged: ``wanted``, or the task's first."""
    names = [str(entry["name"]) for entry in member["filter_list"] or [{"name": "none"}]]
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise ValueError(f"lm-eval task {member.name!r} has no filter {wanted!r}; it has {', '.join(names)}")
    return wanted


def generation_of(config: Any, max_new_tokens: int | None) -> tuple[int, tuple[str, ...]]:
    """The most tokens of a text and the strings that end it, from a task's ``generation_kwargs``."""
    settings = config.generation_kwargs or {}
    until = settings.get("until") or []
    stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
    most = next((settings[name] for name in _MAX_NAMES if settings.get(name) is not None), _MAX_NEW_TOKENS)
    return int(most) if max_new_tokens is None else max_new_tokens, stop


def shots_of(member: harness.Member, wanted: int | None) -> int:
    """How many worked examples stand before a question: ``wanted``, or as many as the task says (none by default)."""
    own = member["num_fewshot"]
    if wanted is None:
        return int(own or 0)
    if wanted < 0 or (own == 0 and wanted):
        allowed = "0" if own == 0 else "0 or more"
        raise ValueError(f"few_shot must be {allowed} for lm-eval task {member.name!r}, or left out; got {wanted}")
    return wanted


# What lm-eval draws worked examples with, where a user says nothing.
FEW_SHOT_SEED = 1234

_ON_HUB = "hf://datasets/"

# Python's words, and those of lm-eval's samplers, where worked examples run out.
_TOO_FEW = ("Sample larger than population", "number of fewshot samples", "no documents available")


@dataclass(frozen=True)
class Options:
    """How a task is put to a model; None leaves a setting to lm-eval's configuration of the task."""

    data_files: DataFiles | None = None
    metric: str | None = None
    filter: str | None = None
    few_shot: int | None = None
    few_shot_seed: int = FEW_SHOT_SEED
    shared: bool = False
    max_new_tokens: int | None = None
    chat_template: Callable[..., str] | None = None


@dataclass(frozen=True)
class Read:
    """The examples of one lm-eval task, the rule that scores them, and for texts their length and ends."""

    kind: Kind
    examples: tuple[Example, ...]
    rule: Rule
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()


def read(member: harness.Member, options: Options) -> Read:
    """All examples of one lm-eval task, in lm-eval's order; what cannot be measured raises ``ValueError``.

    ``check`` has let the member through.
    """
    metric, chosen = metric_of(member, options.metric), filter_of(member, options.filter)
    n_shots = shots_of(member, options.few_shot)
    check_shared(options.shared, n_shots)
    overrides, rows = dict(member.overrides), None
    if options.data_files is not None:
        wanted = _wanted(member, n_shots)
        overrides |= _splits_alone(member, wanted, n_shots)
        if wanted.shots is not None and not _by_split(options.data_files):
            wanted = replace(wanted, shots=wanted.split)
        rows = read_splits(wanted, options.data_files)
        if wanted.shots is not None and rows[wanted.shots] == rows[wanted.split]:
            # Worked examples from the file that is judged: lm-eval leaves out the one in question.
            overrides |= {"test_split": wanted.split, "fewshot_split": wanted.split}
            rows = {wanted.split: rows[wanted.split]}
    task = harness.build(member.name, overrides, rows)
    task.set_config("num_fewshot", n_shots)
    task.set_fewshot_seed(options.few_shot_seed)
    kind = KINDS[task.config.output_type]
    with harness.quietly():
        examples = tuple(_examples(task, kind, rows, n_shots, options))
    if not examples:
        raise ValueError(f"lm-eval task {member.name!r} has no examples in its data")
    rule = Rule(
        member.name,
        json.dumps(member.overrides, sort_keys=True, default=str),
        metric,
        chosen,
        str(task.VERSION),
        json.dumps(json.loads(examples[0].reference)["doc"]),
    )
    if kind != "generation":
        return Read(kind, examples, rule)
    return Read(kind, examples, rule, *generation_of(task.config, options.max_new_tokens))


def _examples(task: Any, kind: Kind, rows: Any, n_shots: int, options: Options) -> Iterator[Example]:
    """The examples in lm-eval's order; what is wrong with one is said with its number, from 0."""
    shown: list[list[str]] = []
    for number, doc in enumerate(task.task_docs):
        try:
            if options.shared and not number:
                shown = _show_the_same(task, n_shots)
            if shown and _question(task, doc) in shown:
                continue
            example = _example(task, kind, doc, n_shots, options)
        except Exception as error:
            few = any(words in str(error) for words in _TOO_FEW)
            if not few and not isinstance(error, ValueError):
                reason = harness.why_not_read(task.task_name, rows, error)
                raise ValueError(f"example {number}: {reason}") from error
            said = f"few_shot={n_shots} worked examples are more than its data have" if few else error
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


def _example(task: Any, kind: Kind, doc: Row, n_shots: int, options: Options) -> Example:
    name = task.task_name
    chat = {"apply_chat_template": options.chat_template is not None, "chat_template": options.chat_template}
    context = task.fewshot_context(
        doc,
        num_fewshot=n_shots,
        fewshot_as_multiturn=options.chat_template is not None,
        gen_prefix=task.doc_to_prefix(doc),
        **chat,
    )
    if options.chat_template is not None:
        context = ChatPrompt(context)
    reference = json.dumps({"task": name, "doc": doc}, ensure_ascii=False)
    asked = _asked(task, doc)
    if kind == "generation":
        return Example(context, _target(task, doc), 0, reference, asked)
    made = task.construct_requests(doc=doc, ctx=context, metadata=(name, 0, 1), **chat)
    arguments = [request.args[:2] for request in (made if isinstance(made, list) else [made])]
    prompts, continuations = zip(
        *(_moved(context, answer, options.chat_template is not None) for context, answer in arguments), strict=True
    )
    right = _right(task, doc) if kind == "choice" else 0
    own = prompts if len(set(prompts)) > 1 else ()
    return Example(prompts[right], continuations, right, reference, asked, own)


def _moved(context: str, continuation: str, chat: bool) -> tuple[str, str]:
    """Context and continuation as lm-eval's models tokenize them: white space between them is the continuation's.

    A chat keeps what its template ends in: it is tokenized apart.
    """
    if chat:
        return ChatPrompt(context), str(continuation)
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _asked(task: Any, doc: Row, text: Any = None, choice: Any = None) -> str:
    """The bare question of a row, by the task's own ``doc_to_text`` and ``doc_to_choice``, or by those given."""
    # Where each choice has a prompt of its own, those are the question, and the text is the number of the right one.
    return _bare("\n".join(task.doc_to_choice(doc, choice)) if task.multiple_input else task.doc_to_text(doc, text))


def _bare(text: Any) -> str:
    """A question without what differs where a group has it twice: the order and the letters of choices it lists."""
    return "\n".join(sorted(re.sub(r"^\(?[A-Z][.):] ", "", line.strip()) for line in str(text).strip().splitlines()))


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


def _by_split(data_files: DataFiles) -> bool:
    """Whether each split has files of its own; a list that leaves it open raises ``ValueError``."""
    if isinstance(data_files, Mapping):
        return True
    paths = [data_files] if isinstance(data_files, str | Path) else data_files
    found = {is_collection(path) for path in paths}
    if len(found) > 1:
        raise ValueError(
            "data_files lists files beside folders or archives, so that worked examples could be what is asked; "
            'name them by split, {"test": [...], "train": [...]}'
        )
    return True in found


def _wanted(member: harness.Member, n_shots: int) -> Wanted:
    split = member["test_split"] or member["validation_split"]
    if split is None:
        raise ValueError(f"lm-eval task {member.name!r} has no test or validation split")
    shown = member["fewshot_config"] or {}
    shots = shown.get("split") or member["fewshot_split"]
    if shots is None and "samples" not in shown:
        shots = member["training_split"] or member["validation_split"] or split
    files = (member["dataset_kwargs"] or {}).get("data_files", {})
    listed = list(files.values()) if isinstance(files, Mapping) else [files]
    stems = tuple(Path(str(file)).stem for file in listed if isinstance(file, str))
    names = (member.name, *filter(None, [member["dataset_name"]]), *stems)
    dataset, part = member["dataset_path"], member["dataset_name"]
    # Files that stand in a data set of the hub: hf://datasets/EleutherAI/arithmetic/data/...
    on_hub = [str(file).removeprefix(_ON_HUB).split("/") for file in listed if str(file).startswith(_ON_HUB)]
    dataset = "/".join(on_hub[0][:2]) if on_hub else dataset
    return Wanted(member.name, split, shots if n_shots else None, dataset, part, names)


def _splits_alone(member: harness.Member, wanted: Wanted, n_shots: int) -> dict[str, None]:
    """Settings that keep lm-eval from reading splits it has no use for."""
    splits = ("training_split", "validation_split", "test_split")
    unread = [name for name in splits if member[name] not in wanted.splits]
    return dict.fromkeys(unread if n_shots else [*unread, "fewshot_split", "fewshot_config"])
