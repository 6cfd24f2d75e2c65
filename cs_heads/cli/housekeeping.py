"""The commands that search for no heads: doctor, report, store, tasks and methods."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cs_heads.cli.flags import Loading, ModelName, Switch, names_of_methods
from cs_heads.cli.printing import print_json

if TYPE_CHECKING:
    from cs_heads.store.store import Contents

WIDTH = 120


def doctor(
    model: ModelName, /, *, loading: Annotated[Loading | None, Parameter(name="*")] = None, json: Switch = False
) -> int:
    """Check that a model loads as it is and can be measured.

    Load a model and check everything that a wrong number could come from, one line each: ok,
    warn or fail, with what to do about it.

      weights          complete, none left over, no NaN
      hook_z           in every layer, before W_O: a head's gate is its o_proj slice zeroed in
                       plain Hugging Face
      logits           those of plain Hugging Face in float32
      BOS              texts in the tokens that the tokenizer itself makes
      padding, batch   a text scores the same beside longer ones, and among others
      dtype, folded biases, fused attention, heads, context length
      speed            tokens a second, and what a default search takes at that

    Exit status 1 where a check failed, else 0; 2 for a model that is not there.

    Examples:
      cs-heads doctor gpt2
      cs-heads doctor FOLDER --dtype bfloat16 --json

    Args:
        model: Hugging Face name, local folder or GGUF file, or demo: the model that comes with the library
        loading: device, dtype and class
        json: print one JSON object
    """
    import cs_heads as cs

    given = loading or Loading()
    checks = cs.check_model(model, device=given.device, dtype=given.dtype, backend=given.backend)
    count = Counter(check.status for check in checks)
    if json:
        print_json({"model": model, "ok": not count["fail"], "checks": [check.to_dict() for check in checks]})
    else:
        for check in checks:
            print(check)
        print(f"\nmodel {model}: {count['ok']} ok, {count['warn']} warn, {count['fail']} fail")
    return int(count["fail"] > 0)


def report(folder: Path, /, *, out: Annotated[Path | None, Parameter(alias="-o")] = None) -> None:
    """Write the HTML report of what find, compare or atlas found.

    Write one HTML file that opens without a network: the heads, their map and the verdict, what broke,
    curves, attention patterns, cost, provenance; of an atlas the map, what each skill loses, universal
    and shared heads, the tree of skills. Nothing is measured and no model is loaded.

    Examples:
      cs-heads find --model demo --task demo/capitals --out capitals
      cs-heads report capitals -o capitals.html

    Args:
        folder: what --out named
        out: file of the page (default: report.html in the folder)
    """
    from cs_heads.report import write_report

    print(f"written: {write_report(folder, out or folder / 'report.html')}")


def store(file: Path, /, *, json: Switch = False, parquet: Path | None = None) -> None:
    """Say what is in a file made with --store, or export it.

    Say what a file made with --store holds: the model, the tasks and how many results of each.
    Nothing is measured. The command that wrote it resumes from there when it is given once more.

    Args:
        file: what --store named
        json: print one JSON object
        parquet: file that every observation is exported to
    """
    from cs_heads.store.store import Store

    opened = Store.open(file)
    contents = opened.contents()
    if parquet is not None:
        opened.to_parquet(parquet)
    if json:
        print_json(contents.to_dict())
    else:
        _print_contents(contents)


def _print_contents(contents: Contents) -> None:
    study = contents.study
    layers, heads = study["grid"]
    print(f"store {contents.path}, format {contents.format}")
    print(f"model {study['model']}, {study['class']}, {study['dtype']}, {layers} × {heads} heads")
    print(f"weights {study['weights']}, revision {study['revision']}, ablation {study['ablation']}\n")
    print(f"{'task':<40}{'observations':>14}")
    for task, n in contents.tasks.items():
        print(f"{task:<40}{n:>14,}")
    print(f"{'all':<40}{contents.observations:>14,}")
    if contents.kept:
        print(f"\nkept, to be resumed: {', '.join(f'{n:,} of {kind}' for kind, n in contents.kept.items())}")
    print(f"\n{contents.masks:,} different masks, {contents.bytes:,} bytes, last written {contents.written or 'never'}")


def tasks(*, json: Switch = False) -> None:
    """List the built-in tasks, what each is and what it needs.

    List the tasks that --task and --control know by name, what each is and what it needs: an extra
    to install, or files (--task-option data_files=PATH). A .jsonl or .csv file of your own needs
    no name.

    Args:
        json: print one JSON object
    """
    from cs_heads.tasks import builtin_tasks

    listed = builtin_tasks()
    if json:
        told = ("about", "needs", "leaves_out", "options")
        print_json({name: {key: getattr(entry, key) for key in told} for name, entry in listed.items()})
        return
    width = 2 + max(map(len, listed))
    margin = " " * (width + 2)
    # What can be measured at once comes first; what needs the same stands together.
    for needs in sorted(dict.fromkeys(entry.needs for entry in listed.values()), key=bool):
        print(f"needs {needs}:" if needs else "ready to measure:")
        alike = {name: entry for name, entry in listed.items() if entry.needs == needs}
        for name, entry in alike.items():
            print(f"  {name:<{width}}{entry.about}")
            if entry.leaves_out:
                print(fill(f"leaves out {entry.leaves_out}", WIDTH, initial_indent=margin, subsequent_indent=margin))
        print()
    print("more of each: cs-heads tasks --json; a .jsonl or .csv file of your own is a task, too: --task my_task.jsonl")


def methods(name: Annotated[str | None, Parameter(completer=names_of_methods)] = None, /) -> None:
    """List the methods, or the options of one.

    Each option is a flag of find (--method NAME --option-name VALUE), and of compare as
    --option NAME.option_name=VALUE.

    Args:
        name: name of the method whose options are listed
    """
    from cs_heads.methods.registry import METHODS, method_named

    if name is None:
        width = max(map(len, METHODS))
        for each, method in METHODS.items():
            print(f"{each:<{width}}  {method.about}")
        return
    method = method_named(name)
    print(f"{name}: {method.about}\n")
    for option in method.options.values():
        default = "required" if option.required else f"default: {option.default}"
        told = f"--{option.name.replace('_', '-')}: {option.help.rstrip('.')} ({default})"
        print(fill(told, WIDTH, subsequent_indent="    "))
