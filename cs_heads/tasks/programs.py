"""Tasks whose answer is a program: HumanEval and MBPP, scored by their tests in the sandbox.

Prompts, few-shot examples, stop strings and the part of the text that counts are those of lm-eval's ``humaneval``,
``humaneval_instruct`` and ``mbpp``; lm-eval itself, which runs programs unprotected, never judges them.
HumanEval: Chen et al., *Evaluating Large Language Models Trained on Code* (arXiv 2107.03374).
MBPP: Austin et al., *Program Synthesis with Large Language Models* (arXiv 2108.07732).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from cs_heads.arguments import check_integer, check_one_of, check_type
from cs_heads.sandbox import Sandbox
from cs_heads.tasks.data_files import DataFiles, check_columns
from cs_heads.tasks.example import Example
from cs_heads.tasks.family import Entry, Record
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.task import Task

FENCE = "```"
DONE = "[DONE]"
MBPP_SHOTS = (2, 3, 4)
MBPP_TEST = range(11, 511)
"""The test split; the tasks before it are for prompts, those after it for training."""


@dataclass(frozen=True)
class Form:
    """What one set of programs is made of: its fields, its prompt, its target, and the program a text makes.

    ``dataset`` is the hub's name of it and of its part, ``files`` what its authors call theirs.
    """

    about: str
    dataset: tuple[str, str | None]
    files: tuple[str, ...]
    fields: Mapping[str, type]
    max_new_tokens: int
    stop: tuple[str, ...]
    prompt: Callable[[Record], str]
    target: Callable[[Record], str]
    program: Callable[[Record, str], tuple[str, str]]


def _instruct(record: Record) -> str:
    return (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"{FENCE}python\n{record['prompt']}\n{FENCE}\n"
        f"Here is the completed function:\n{FENCE}python\n{record['prompt']}\n"
    )


def _humaneval(record: Record, text: str) -> tuple[str, str]:
    return record["prompt"] + text, f"{record['test']}\ncheck({record['entry_point']})"


def _mbpp_prompt(record: Record) -> str:
    shown = "\n".join(record["test_list"][:3])
    asked = record.get("text", record.get("prompt"))
    return (
        f"You are an expert Python programmer, and here is your task: {asked} Your code should pass these tests:\n\n"
        f"{shown}\n[BEGIN]\n"
    )


def _mbpp(record: Record, text: str) -> tuple[str, str]:
    before = [record.get("test_setup_code") or "", *(record.get("test_imports") or ())]
    return text.partition(DONE)[0], "\n".join([*before, *record["test_list"]])


_HUMANEVAL = Form(
    about="HumanEval: complete a function from its docstring",
    dataset=("openai/openai_humaneval", None),
    files=("humaneval",),
    fields={"task_id": str, "entry_point": str, "canonical_solution": str, "test": str},
    max_new_tokens=1024,
    stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
    prompt=lambda record: str(record["prompt"]),
    target=lambda record: str(record["canonical_solution"]),
    program=_humaneval,
)
FORMS: dict[str, Form] = {
    "humaneval": _HUMANEVAL,
    "humaneval_instruct": replace(
        _HUMANEVAL,
        about="HumanEval, asked for in words",
        prompt=_instruct,
        program=lambda record, text: _humaneval(record, text.partition(FENCE)[0]),
    ),
    "mbpp": Form(
        about="MBPP: write a function from one sentence and three tests",
        dataset=("google-research-datasets/mbpp", "full"),
        files=("mbpp", "sanitized_mbpp"),
        fields={"task_id": int, "code": str, "test_list": list},
        max_new_tokens=256,
        stop=(DONE,),
        prompt=_mbpp_prompt,
        target=lambda record: f"{record['code']}\n{DONE}",
        program=_mbpp,
    ),
}
"""The sets of programs by name."""


@dataclass(frozen=True)
class PassesTests:
    """1 where the program that a text makes passes its tests in the sandbox, 0 where not; many run at once.

    ``form`` is a name of ``FORMS``; an example's ``reference`` is its record as JSON. Texts are run as programs,
    so that ``allow_code=True`` must be said: else ``ValueError``. Where there is no sandbox, making the scorer raises
    ``SandboxError``, before any model runs.
    """

    graded: ClassVar[bool] = False

    form: str
    allow_code: bool = False
    sandbox: Sandbox = field(default_factory=Sandbox)

    def __post_init__(self) -> None:
        check_one_of("form", self.form, FORMS)
        check_type("allow_code", self.allow_code, bool)
        if not self.allow_code:
            raise ValueError(f"{self.form} runs the programs that the model writes: say allow_code=True (--allow-code)")
        self.sandbox.check()

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text; a program said twice runs once."""
        program = FORMS[self.form].program
        programs = [program(json.loads(e.reference), text) for e, text in zip(examples, texts, strict=True)]
        different = list(dict.fromkeys(programs))
        passed = dict(zip(different, self.sandbox.run_all(different), strict=True))
        return [float(passed[each].passed) for each in programs]


def load(
    form: str,
    n: int | None = None,
    seed: int = 0,
    *,
    data_files: DataFiles | None = None,
    allow_code: bool | None = None,
    unsafe_code: bool = False,
    sandbox: Sandbox | None = None,
    few_shot: int = 3,
) -> Task:
    """``n`` finding examples of HumanEval, or of MBPP's test split, the others held out.

    A record's ``test_setup_code`` and ``test_imports`` stand before its tests, which lm-eval leaves out: of MBPP's test
    split that is task 367 alone in the JSONL file, whose tests nothing passes without it.

    Args:
        form: A name of ``FORMS``.
        n: Finding examples; by default 82 of HumanEval, half of them, and 100 of MBPP.
        seed: Chooses them.
        data_files: Its JSONL file (of MBPP the sanitized JSON file, too), or a folder that holds it; None: the hub's.
            Of MBPP tasks 11 to 510 are asked.
        allow_code: Generated programs may run.
        unsafe_code: They may run also where there is no sandbox.
        sandbox: A sandbox with other limits.
        few_shot: How many of tasks 2, 3 and 4 of MBPP stand before each prompt; HumanEval has none.

    Raises:
        ValueError: A file is missing or malformed, or programs may not run: then none is read or fetched.
        SandboxError: There is no sandbox.
    """
    check_integer("few_shot", few_shot, 0, len(MBPP_SHOTS))
    if unsafe_code and allow_code is False:
        raise ValueError("unsafe_code=True runs generated code, and allow_code=False forbids it; leave one of them out")
    sandbox = sandbox or Sandbox()
    # To run code unprotected is to run it.
    scorer = PassesTests(form, bool(allow_code) or unsafe_code, replace(sandbox, unsafe=sandbox.unsafe or unsafe_code))
    made, shown = FORMS[form], "prompt" if few_shot else None
    splits = read_splits(Wanted(form, "test", shown, *made.dataset, (form, *made.files)), data_files)
    # The split that worked examples come from stands before the other.
    records: Sequence[Record] = [row for rows in reversed(splits.values()) for row in rows]
    # The file of MBPP that is not sanitized has another name for the prompt.
    asked = [{"prompt": record.get("text"), **record} for record in records]
    check_columns(asked, {"prompt": str, **made.fields}, f"data of {form}")
    shots = ""
    if form == "mbpp":
        known = {record["task_id"]: record for record in records}
        for number in MBPP_SHOTS[:few_shot]:
            if number not in known:
                raise ValueError(f"data of mbpp hold no task {number}, which stands before each prompt; few_shot=0")
            shots += f"{made.prompt(known[number])}{made.target(known[number])}\n\n"
        records = [record for number, record in known.items() if number in MBPP_TEST]
        if not records:
            raise ValueError(f"data of mbpp hold none of the tasks 11 to {MBPP_TEST[-1]} of its test split")
    examples = tuple(
        Example(shots + asked, (made.target(record),), 0, json.dumps(record, sort_keys=True), asked)
        for asked, record in zip(map(made.prompt, records), records, strict=True)
    )
    scoring: dict[str, Any] = {"scorer": scorer, "max_new_tokens": made.max_new_tokens, "stop": made.stop}
    return Task(form, "generation", examples, **scoring).split(n, seed)[0]


_NEEDS = "bubblewrap, --allow-code, extra code; data_files=, or the hub (extra datasets)"
_LOADERS = {name: partial(load, name) if name == "mbpp" else partial(load, name, few_shot=0) for name in FORMS}
TASKS = {name: Entry(form.about, _LOADERS[name], _NEEDS) for name, form in FORMS.items()}
