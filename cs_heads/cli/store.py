"""Say what is in a file made with --store, or export it.

Say what a file made with --store holds: the model, the tasks and how many results of each.
Nothing is measured. The command that wrote it goes on from there when it is given once more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from cs_heads.cli.options import add_command

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands
    from cs_heads.store.export import Contents


def add(commands: Commands) -> None:
    """The sub-command ``store``."""
    parser = add_command(commands, "store", __doc__, _store)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a file made with --store")
    add("--json", action="store_true", help="print one JSON object")
    add("--parquet", type=Path, default=None, metavar="FILE", help="write every result there (needs pyarrow)")


def saved(options: argparse.Namespace) -> str:
    """What to say of the store of a command that was interrupted; nothing where it has none yet."""
    from cs_heads.store.store import Store, StoreError

    path: Path | None = getattr(options, "store", None)
    try:
        results = 0 if path is None else Store.open(path).contents().results
    except (ValueError, StoreError):
        return ""
    if not results:
        return ""
    return f"; {results:,} results are kept in {path}, and the same command goes on: {options.command}"


def _store(options: argparse.Namespace) -> None:
    from cs_heads.store.store import Store

    store = Store.open(options.file)
    contents = store.contents()
    if options.parquet is not None:
        store.to_parquet(options.parquet)
    if options.json:
        print(json.dumps(contents.to_dict()))
    else:
        _print(contents)


def _print(contents: Contents) -> None:
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
        print(f"\nkept to go on from: {', '.join(f'{n:,} of {kind}' for kind, n in contents.kept.items())}")
    print(f"\n{contents.masks:,} different masks, {contents.bytes:,} bytes, last written {contents.written or 'never'}")
