"""Which local file holds which split of which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_heads.tasks.data_files import FORMATS, DataFiles, File, Row, files_in, hub_rows, is_collection, rows_of
from cs_heads.tasks.published import MMLU_COLUMNS, converted, form_of, hellaswag, mmlu, six_lines_each

SPLIT_NAMES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev")}
"""What the file of a split may be called, beside the split's own name."""


class NoFileError(ValueError):
    """A folder or archive that has no file for a task."""


@dataclass(frozen=True)
class Wanted:
    """What a task reads: its judged split, that of its worked examples (None: it shows none), and its data set.

    ``names`` are what its files may be called in a folder or archive, the first that fits is taken. ``folders`` are
    what its own folder is called, where other sets call their files alike (empty: its files go by names of their own).
    """

    task: str
    split: str
    shots: str | None
    dataset: str | None
    part: str | None
    names: tuple[str, ...]
    folders: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """Both splits, or the one."""
        return (self.split,) if self.shots in (None, self.split) else (self.split, str(self.shots))


def read_splits(wanted: Wanted, data_files: DataFiles | None) -> dict[str, list[Row]]:
    """The rows of each split that a task reads, in the hub's columns; of the hub itself where there are no files.

    ``data_files`` is a file (all splits come from it), several, a folder or zip archive with files named after
    the task and its splits, or any of these by split (one that the task does not read is left alone). Where a file
    is missing or malformed, ``ValueError`` names it and says what is looked for: ``NoFileError`` where a folder or
    archive has none.
    """
    if data_files is None:
        return {split: hub_rows(str(wanted.dataset), wanted.part, split) for split in wanted.splits}
    by_split = data_files if isinstance(data_files, Mapping) else dict.fromkeys(wanted.splits, data_files)
    if any(split not in by_split for split in wanted.splits):
        why = f"got {', '.join(map(str, by_split)) or 'none'}"
        raise ValueError(f"data_files for task {wanted.task!r} must name the splits {', '.join(wanted.splits)}; {why}")
    chosen = {split: _files(wanted, split, by_split[split]) for split in wanted.splits}
    return {split: [row for file in files for row in _rows(wanted, file)] for split, files in chosen.items()}


def _files(wanted: Wanted, split: str, paths: Any) -> list[File]:
    if isinstance(paths, str | Path):
        return _named(wanted, split, paths) if is_collection(paths) else files_in(paths)
    if not isinstance(paths, Sequence) or not paths:
        raise ValueError(f"data_files must be a path, a list of paths, or these by split; got {paths!r}")
    if len({is_collection(path) for path in paths}) > 1:
        # Worked examples could be what is asked.
        raise ValueError('data_files lists files beside folders: name them by split, {"test": [...], "train": [...]}')
    return [file for path in paths for file in _files(wanted, split, path)]


def _named(wanted: Wanted, split: str, folder: str | Path) -> list[File]:
    """The files of a split in a folder: named after task and split, or after either where that tells enough."""
    there = [file for file in files_in(folder) if file.path.suffix.lower() in (*FORMATS, ".zip")]
    files = _of_set(wanted, folder, [file for file in there if file.path.suffix.lower() in FORMATS])
    ends = tuple(dict.fromkeys((split, *SPLIT_NAMES.get(split, ()))))
    both = [f"{name}_{end}" for name in wanted.names for end in ends]

    def whole(stem: str) -> list[File]:
        return [file for file in files if stem in (_plain(file.path.stem), _plain("_".join(file.path.parts[-2:])))]

    def begun(stem: str) -> list[File]:
        # hellaswag_val_full, train_first1000: a part of a split says so after the split's name.
        return [file for file in files if _begins(file, stem)]

    for find, stems in ((whole, both), (whole, wanted.names), (whole, ends), (begun, both), (begun, ends)):
        for found in filter(None, (find(_plain(stem)) for stem in stems)):
            # A split's name alone is that of many data sets.
            if stems is not ends or len({file.path.parent for file in found}) == 1:
                return found
    within = f" in a folder named {wanted.folders[0]}" if wanted.folders else ""
    has = f"{', '.join(file.name for file in there[:3])}{' and more' if there[3:] else ''}"
    instead = f"; it has {has}: point data_files= at what is meant" if there else ""
    raise NoFileError(
        f"data_files for task {wanted.task!r}: {str(folder)!r} has no file for split {split!r}; looked for "
        f"{', '.join(f'{name}_{split}' for name in wanted.names[:3])}, {' or '.join((*wanted.names[:3], split))}, "
        f"ending in {', '.join(FORMATS)}{within}{instead}"
    )


def _of_set(wanted: Wanted, folder: str | Path, files: list[File]) -> list[File]:
    """The files of a set among those of other sets: in a folder of its name, or named after it themselves."""
    given = Path(folder).expanduser().resolve()
    if not wanted.folders or _plain(given.stem if given.is_file() else given.name) in wanted.folders:
        return files
    own = [file for file in files if any(_plain(part) in wanted.folders for part in file.path.parts[:-1])]
    return own or [file for file in files if any(_begins(file, name) for name in wanted.folders)]


def _begins(file: File, stem: str) -> bool:
    return f"{_plain(file.path.stem)}_".startswith(f"{stem}_")


def _plain(name: str) -> str:
    """A name as it is compared: whatever its capitals and dashes, without the ending."""
    return name.lower().replace("-", "_").rsplit(".", 1)[0]


def _rows(wanted: Wanted, file: File) -> list[Row]:
    convert, place = form_of(wanted.dataset, wanted.part), f"data file {file.name!r} of task {wanted.task!r}"
    rows = rows_of(file, MMLU_COLUMNS if convert is mmlu else None)
    rows = six_lines_each(rows, place) if convert is hellaswag and "line" in rows[0] else rows
    return converted(rows, convert, place)
