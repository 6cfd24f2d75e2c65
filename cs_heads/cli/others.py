"""The commands that search for no heads: doctor, report, store and tasks."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from cs_heads.cli.options import add_loading
from cs_heads.cli.parser import add_command
from cs_heads.cli.printing import status_colored

if TYPE_CHECKING:
    from cs_heads.cli.parser import Commands
    from cs_heads.store.store import Contents

WIDTH = 120


def add_doctor(commands: Commands) -> None:
    """The sub-command ``doctor``."""
    parser = add_command(commands, doctor)
    parser.add_argument("model", metavar="MODEL", help="Hugging Face name or local folder, or demo")
    add_loading(parser)
    parser.add_argument("--profile", action="store_true", help="say where the time of a measurement goes, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def doctor(options: argparse.Namespace) -> int:
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

    With --profile, where no check failed, 20 random masks or more are measured on 20 examples:
    seconds by operation of PyTorch, and the speed, beside that of a large matrix product.

    Exit status 1 where a check failed, else 0; 2 for a model that is not there.

    Examples:
      cs-heads doctor gpt2
      cs-heads doctor gpt2 --profile
      cs-heads doctor FOLDER --dtype bfloat16 --json
    """
    import cs_heads as cs

    loading = {"device": options.device, "dtype": options.dtype, "backend": options.backend}
    checks = cs.check_model(options.model, **loading)
    count = Counter(check.status for check in checks)
    profile = None
    if options.profile and not count["fail"]:
        profile = cs.profile_model(cs.load_model(options.model, **loading))
    if options.json:
        found = {"model": options.model, "ok": not count["fail"], "checks": [check.to_dict() for check in checks]}
        from cs_heads.record import json_text

        print(json_text({**found, "profile": profile and profile.to_dict()} if options.profile else found))
    else:
        for check in checks:
            print(status_colored(str(check)))
        print(f"\nmodel {options.model}: {count['ok']} ok, {count['warn']} warn, {count['fail']} fail")
        if profile:
            print(f"\n{profile}")
    return int(count["fail"] > 0)


def add_report(commands: Commands) -> None:
    """The sub-command ``report``."""
    parser = add_command(commands, report)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder that find --out, compare --out or atlas --out wrote"
    )
    where = "where to write it (default: FOLDER/report.html)"
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=where)


def report(options: argparse.Namespace) -> None:
    """Write the HTML report of what find, compare or atlas found.

    Write one HTML file that opens without a network: the heads and the verdict, what broke, maps,
    curves, attention patterns, cost, provenance; of an atlas the map, what each skill loses, universal
    and shared heads, the tree of skills. Nothing is measured and no model is loaded.

    Examples:
      cs-heads find --model demo --task demo/capitals --out capitals
      cs-heads report capitals -o capitals.html
    """
    from cs_heads.report import write_report

    print(f"written: {write_report(options.folder, options.out or options.folder / 'report.html')}")


def add_store(commands: Commands) -> None:
    """The sub-command ``store``."""
    parser = add_command(commands, store)
    parser.add_argument("file", type=Path, metavar="FILE", help="a file made with --store")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="write every result there (needs pyarrow)")


def store(options: argparse.Namespace) -> None:
    """Say what is in a file made with --store, or export it.

    Say what a file made with --store holds: the model, the tasks and how many results of each.
    Nothing is measured. The command that wrote it resumes from there when it is given once more.
    """
    from cs_heads.store.store import Store

    store = Store.open(options.file)
    contents = store.contents()
    if options.parquet is not None:
        store.to_parquet(options.parquet)
    if options.json:
        from cs_heads.record import json_text

        print(json_text(contents.to_dict()))
    else:
        _print_contents(contents)


def _print_contents(contents: Contents) -> None:
    study = contents.study
    layers, heads = study["grid"]
    print(f"store {contents.path}, format {contents.format}")
    print(f"model {study['model']}, {study['class']}, {study['dtype']}, {layers} × {heads} heads")
    print(f"weights {study['weights']}, revision {study['revision']}, ablation {study['ablation']}\n")
    print(f"{'task':<40}{'results':>12}")
    for task, results in contents.tasks.items():
        print(f"{task:<40}{results:>12,}")
    print(f"{'all':<40}{contents.results:>12,}")
    if contents.kept:
        print(f"\nkept, to be resumed: {', '.join(f'{n:,} of {kind}' for kind, n in contents.kept.items())}")
    print(f"\n{contents.masks:,} different masks, {contents.bytes:,} bytes, last written {contents.written or 'never'}")


def add_tasks(commands: Commands) -> None:
    """The sub-command ``tasks``."""
    parser = add_command(commands, tasks)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with each task's options")


def tasks(options: argparse.Namespace) -> None:
    """List the built-in tasks, what each is and what it needs.

    List the tasks that --task and --control know by name, what each is and what it needs: an extra
    to install, or files (--task-option data_files=PATH). A .jsonl or .csv file of your own needs
    no name.
    """
    from cs_heads.tasks import builtin_tasks

    listed = builtin_tasks()
    if options.json:
        told = ("about", "needs", "leaves_out", "options")
        from cs_heads.record import json_text

        print(json_text({name: {key: getattr(entry, key) for key in told} for name, entry in listed.items()}))
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
