"""The flags of commands: fields of dataclasses, whose docstrings are their help."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from cs_heads.arguments import MAX_BUDGET, MAX_HEADS, MAX_SEED, described
from cs_heads.settings import Settings, SettingsArguments

RUN = "run.toml"  # the file of flags that --out writes
# What the file of flags says nothing of: these are of one call.
_OF_A_CALL = ("json", "dry_run", "command")


def names_of_tasks(*_: Any) -> list[str]:
    """Built-in tasks, and files of tasks here."""
    from cs_heads.tasks import builtin_tasks

    return [*builtin_tasks(), *(str(path) for form in ("*.jsonl", "*.csv") for path in Path().glob(form))]


def names_of_methods(*_: Any) -> list[str]:
    """What ``--method`` may be."""
    from cs_heads.methods.registry import METHODS

    return [*METHODS]


AnyFlags = TypeVar("AnyFlags")

Examples = Annotated[int | None, Parameter(validator=Number(gte=1, lte=100_000))]
Heads = Annotated[int | None, Parameter(validator=Number(gte=1, lte=MAX_HEADS))]
Evaluations = Annotated[int | None, Parameter(validator=Number(gte=1, lte=MAX_BUDGET))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lte=MAX_SEED))]
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
Several = Annotated[list[str], Parameter(show_default=False)]
TaskName = Annotated[str, Parameter(completer=names_of_tasks)]


def _is_there(_: Any, name: str) -> None:
    """Refuses a path of nothing, before what loads models is imported."""
    if (name[:1] in ("/", ".", "~") or name.count("/") > 1) and not Path(name).exists():
        raise ValueError("nothing is there: it must be demo, a Hugging Face name, a local folder or a GGUF file")


ModelName = Annotated[str, Parameter(validator=_is_there)]
USUAL = Parameter(group=Group("Usual", sort_key=0), show=True)  # what most runs are given, all that --help shows
MethodOption = Annotated[
    str, USUAL, Parameter(help="an option of the method, as --n-masks of css or --forget of contrastive")
]


def one_line_each(kind: type[AnyFlags]) -> type[AnyFlags]:
    """A class in whose docstring each attribute stands on one line, without backticks: as help shows it."""
    texts = described(kind, "Attributes").items()
    kind.__doc__ = "Flags.\n\nAttributes:\n" + "\n".join(f"    {name}: {text.rstrip('.')}" for name, text in texts)
    return kind


if TYPE_CHECKING:
    SettingsFlags = SettingsArguments
else:
    # The dtype stands beside device and backend, and a shell names a store by its file.
    _HINTS = {**get_type_hints(SettingsArguments), "store": Annotated[str | None, USUAL]}
    SettingsFlags = TypedDict("SettingsFlags", {n: h for n, h in _HINTS.items() if n != "dtype"}, total=False)
    SettingsFlags.__doc__ = SettingsArguments.__doc__
    one_line_each(SettingsFlags)


@one_line_each
@dataclass(kw_only=True)
class Loading:
    """How a model is loaded.

    Attributes:
        device: cpu, cuda, ... (default: cuda where there is one)
        dtype: float32, bfloat16 or float16 (default: float32)
        backend: class of the model
    """

    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    backend: Literal["auto", "bridge", "hooked"] = "auto"


@dataclass(kw_only=True)
class Command(Loading):
    """What is known of a command that measures: its shell line, and where it keeps results."""

    command: Annotated[str, Parameter(parse=False)] = ""

    @property
    def kept_in(self) -> Path | None:
        """The store that an interruption names."""
        return None


@one_line_each
@dataclass(kw_only=True)
class Run(Command):
    """What every command that runs a model takes.

    Attributes:
        model: Hugging Face name, local folder or GGUF file, or demo: the model that comes with the library
        n: examples to find heads with, of each task (default: 100, or half of a small task)
        allow_code: tasks whose answer is a program may run it, in a sandbox
        unsafe_code: ... and, where this machine has no sandbox, without any protection
        chat: show prompts in the model's chat template: on, off, auto (default: as a task says)
        too_long: prompts that do not fit into the model's context: refuse, or truncate them at the left
        task_option: an option of the tasks that have it, as data_files=lists.json; may be repeated
        budget: example-evaluations of a search (default: what the method takes)
        k: heads to report and prove (default: 5, or half of a smaller grid)
        seed: seed of the split, the masks and the tests
        json: print one JSON object
        dry_run: say what it would cost at most (example-evaluations, seconds, memory), and stop
        out: folder for report.html, results and pictures
    """

    model: Annotated[ModelName, USUAL]
    n: Annotated[Examples, USUAL] = None
    allow_code: Switch = False
    unsafe_code: Switch = False
    chat: str | None = None
    too_long: str | None = None
    task_option: Annotated[Several, USUAL] = field(default_factory=list)
    budget: Annotated[Evaluations, USUAL] = None
    k: Annotated[Heads, USUAL] = None
    seed: Annotated[Seed, USUAL] = 0
    json: Annotated[Switch, USUAL] = False
    dry_run: Annotated[Switch, USUAL] = False
    out: Annotated[Path | None, USUAL] = None
    settings: Annotated[SettingsFlags, Parameter(name="*", group=Group("Settings", sort_key=2))] = field(
        default_factory=SettingsFlags
    )

    @property
    def kept_in(self) -> Path | None:
        """The file of ``--store``."""
        store = self.settings.get("store")
        return None if store is None else Path(store)

    @property
    def search(self) -> dict[str, Any]:
        """What every search takes."""
        return {"k": self.k, "budget": self.budget, "seed": self.seed}


@one_line_each
@dataclass(kw_only=True)
class OnTask:
    """The flag that stands first, before those of ``Run``.

    Attributes:
        task: built-in task, or a .jsonl or .csv file
    """

    task: Annotated[TaskName, USUAL]


@one_line_each
@dataclass(kw_only=True)
class OneTask(Run, OnTask):
    """What commands on one task take.

    Attributes:
        control: another task, which the heads should not serve; may be repeated: all count, in the search and in the
            verdict (default: everyday skills that come with the library)
        no_control: no controls: heads of any task are ranked, and none is specific
        control_option: an option of the controls that have it, or of one, as boolq:data_files=dev.jsonl; may be
            repeated
        length_normalized: score the choices of --task per character (acc_norm)
        generate: tokens of an answer that the model writes to a completion task, and the text must be it (0: as many
            as a demo task says)
        stop: ends what --generate TOKENS writes; may be repeated
    """

    control: Annotated[list[TaskName], USUAL, Parameter(show_default=False)] = field(default_factory=list)
    no_control: Annotated[Switch, USUAL] = False
    control_option: Several = field(default_factory=list)
    length_normalized: Switch = False
    generate: Annotated[int | None, Parameter(validator=Number(gte=0, lte=100_000))] = None
    stop: Several = field(default_factory=list)


def given_settings(options: Run) -> dict[str, Any]:
    """The settings that a command was given, checked; those of the model are left to what loads it."""
    Settings.of(options.settings)
    return {name: value for name, value in options.settings.items() if name not in ("workers", "address")}


def write_config(options: Any, more: Mapping[str, Any] | None = None) -> Path:
    """Write what was given to the folder of ``--out``, so that ``--config`` repeats the run; returns the file."""
    given: dict[str, Any] = {}
    for each in fields(options):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        value = getattr(options, each.name)
        if each.name not in (*_OF_A_CALL, "settings") and value != default:
            given[each.name] = value
    # What methods take is read as text.
    given |= {**getattr(options, "settings", {}), **(more or {})}
    name = type(options).__name__.removesuffix("Flags").lower()
    lines = [f"# cs-heads {name} --config {RUN} repeats this run (cs-heads {version('cs-heads')}); flags override it."]
    lines += [f"{key.replace('_', '-')} = {_as_toml(value)}" for key, value in given.items() if value is not None]
    path: Path = options.out / RUN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def value_of(text: str) -> Any:
    """What a text says that is JSON, and any other text."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _as_toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # A text of JSON is one of TOML, but for DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
