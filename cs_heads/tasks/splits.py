"""Which local file holds which split of which data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_heads.tasks.data_files import FORMATS, DataFiles, File, Row, files_in, is_collection, rows_of
from cs_heads.tasks.published import Form, form_of

SPLIT_NAMES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
    "dev": ("dev",),
}
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

    @property
    def form(self) -> Form:
        """The form in which the files may come."""
        return form_of(self.dataset, self.part)


def read_splits(wanted: Wanted, data_files: DataFiles) -> dict[str, list[Row]]:
    """The rows of each split that a task reads, in the hub's columns.

    ``data_files`` is a file (all splits come from it), several, a folder or zip archive with files named after
    the task and its splits, or any of these by split (one that the task does not read is left alone). Where a file
    is missing or malformed, ``ValueError`` names it and says what is looked for: ``NoFileError`` where a folder or
    archive has none.
    """
    if isinstance(data_files, Mapping):
        if any(split not in data_files for split in wanted.splits):
            raise ValueError(
                f"data_files for task {wanted.task!r} must name the splits {', '.join(wanted.splits)}; "
                f"got {', '.join(map(str, data_files)) or 'none'}"
            )
        chosen = {split: _files(wanted, split, data_files[split]) for split in wanted.splits}
    else:
        chosen = {split: _files(wanted, split, data_files) for split in wanted.splits}
    return {split: _rows(wanted, files) for split, files in chosen.items()}


def _files(wanted: Wanted, split: str, paths: Any) -> list[File]:
    if isinstance(paths, str | Path):
        return _named(wanted, split, paths) if is_collection(paths) else files_in(paths)
    if not isinstance(paths, Sequence) or not paths:
        raise ValueError(f"data_files must be a path, a list of paths, or these by split; got {paths!r}")
    return [file for path in paths for file in _files(wanted, split, path)]


def _named(wanted: Wanted, split: str, folder: str | Path) -> list[File]:
    """The files of a split in a folder: named after task and split, or after either where that tells enough."""
    there = files_in(folder)
    files = _of_set(wanted, folder, [file for file in there if file.path.suffix.lower() in FORMATS])
    endings = tuple(dict.fromkeys((split, *SPLIT_NAMES.get(split, ()))))
    both = [[f"{name}_{end}" for end in endings] for name in wanted.names]
    for stems in (*both, wanted.names, endings):
        for stem in map(_plain, stems):
            found = [file for file in files if stem in (_plain(file.path.stem), _plain("_".join(file.path.parts[-2:])))]
            # A split's name alone is that of many data sets.
            if found and (stems is not endings or len({file.path.parent for file in found}) == 1):
                return found
    # hellaswag_val_full, train_first1000: a part of a split says so after the split's name.
    for stems in (*both, endings):
        found = [file for file in files if any(_begins(file, stem) for stem in map(_plain, stems))]
        if found and (stems is not endings or len({file.path.parent for file in found}) == 1):
            return found
    within = f" in a folder named {wanted.folders[0]}" if wanted.folders else ""
    raise NoFileError(
        f"data_files for task {wanted.task!r}: {str(folder)!r} has no file for split {split!r}; looked for "
        f"{', '.join(f'{name}_{split}' for name in wanted.names[:3])}, {' or '.join((*wanted.names[:3], split))}, "
        f"ending in {', '.join(FORMATS)}{within}{_could_be(there)}"
    )


def _of_set(wanted: Wanted, folder: str | Path, files: list[File]) -> list[File]:
    """The files of a set among those of other sets: in a folder of its name, or named after it themselves."""
    if not wanted.folders:
        return files
    given = Path(folder).expanduser().resolve()
    if _plain(given.stem if given.is_file() else given.name) in wanted.folders:
        return files
    own = [file for file in files if any(_plain(part) in wanted.folders for part in file.path.parts[:-1])]
    return own or [file for file in files if any(_begins(file, name) for name in wanted.folders)]


def _could_be(files: list[File]) -> str:
    """What a folder has that may be pointed at."""
    kinds = (*FORMATS, ".zip")
    named = [file.name for file in files if file.path.suffix.lower() in kinds]
    more = f" and {len(named) - 3} more" if named[3:] else ""
    return f"; it has {', '.join(named[:3])}{more}: point data_files= at what is meant" if named else ""


def _begins(file: File, stem: str) -> bool:
    return f"{_plain(file.path.stem)}_".startswith(f"{stem}_")


def _plain(name: str) -> str:
    """A name as it is compared: whatever its capitals and dashes, without the ending."""
    return name.lower().replace("-", "_").rsplit(".", 1)[0]


def _rows(wanted: Wanted, files: list[File]) -> list[Row]:
    found: list[Row] = []
    for file in files:
        rows = _converted(wanted, file)
        _check_alike(file.name, rows, (found or rows)[0])
        found += rows
    return found


def _converted(wanted: Wanted, file: File) -> list[Row]:
    rows = rows_of(file, wanted.form.columns)
    try:
        return wanted.form.convert(rows)
    except LookupError as error:
        raise ValueError(
            f"data file {file.name!r} has not the columns of task {wanted.task!r}: {error}; its first row has "
            f"{', '.join(map(str, rows[0]))}"
        ) from error
    except ValueError as error:
        raise ValueError(f"data file {file.name!r}: {error}") from error


def _check_alike(name: str, rows: list[Row], first: Row) -> None:
    """Refuse what would be read as the answer "None": a column that is missing in a row, or holds something else."""
    for number, row in enumerate(rows):
        if row.keys() != first.keys():
            raise ValueError(
                f"data file {name!r}, record {number}: has the columns {', '.join(map(str, row))}, and the first "
                f"record {', '.join(map(str, first))}; every record must have the same"
            )
        for column, value in row.items():
            if None not in (value, first[column]) and _sort(value) is not _sort(first[column]):
                raise ValueError(
                    f"data file {name!r}, record {number}: column {column!r} holds {value!r:.60}, and in the first "
                    f"record {first[column]!r:.60}; every record must hold the same kind of value"
                )


def _sort(value: Any) -> type:
    """The type that a column of such values has; whole numbers and others go together."""
    return float if type(value) is int else type(value)
