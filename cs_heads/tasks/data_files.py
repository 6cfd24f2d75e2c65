"""Files and data sets as rows: JSON lines, JSON, CSV, Parquet and text, compressed or in a zip archive, and the hub.

What is missing or malformed raises ``ValueError`` in one line that names the file and the place in it.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_type
from cs_heads.files import parse_json, read_text, text_of

Row = dict[str, Any]
DataFiles = str | Path | Sequence[str | Path] | Mapping[str, Any]
"""What ``data_files=`` takes: a file, a folder or archive, several files, or any of these by split."""

_UNPACK: dict[str, Callable[[bytes], bytes]] = {".bz2": bz2.decompress, ".gz": gzip.decompress}
FORMATS = (".jsonl", ".json", ".csv", ".parquet", ".txt")


# Texts, and what they say, by the name of the file or place.


def lines_of(path: str | Path, what: str) -> list[str]:
    """The lines of a text file without white space at their ends, empty ones left out; errors as of ``read_text``."""
    return [line.strip() for line in read_text(path, what).splitlines() if line.strip()]


def json_lines(text: str, place: str) -> Iterator[tuple[str, Any]]:
    r"""What each line of JSON lines says, with its number in words; empty lines say nothing.

    >>> list(json_lines('{"a": 1}\n\n[2]', "own.jsonl"))
    [('line 1', {'a': 1}), ('line 3', [2])]
    """
    # Not splitlines: a JSON text may hold other line separators unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", parse_json(line, f"{place}, line {number}")


def csv_lines(text: str, place: str, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Row]]:
    """What each row of a CSV text holds by column, with the number of its last line in words.

    Args:
        text: The CSV text.
        place: What errors begin with.
        columns: Names of the columns; None reads them from the first line.

    Raises:
        ValueError: Text that is no CSV, as with a quote that is not closed, or a row of another number of fields.
    """
    reader, line = csv.reader(io.StringIO(text, newline=""), strict=True), 0
    try:
        names, line = list(columns or next(reader, ())), reader.line_num
        check_different(f"{place}, line 1: columns", names)
        for fields in filter(None, reader):
            line = reader.line_num
            if len(fields) != len(names):
                why = f"({', '.join(names)}); a text with a comma in it stands in double quotes"
                raise ValueError(f"{place}, line {line}: {len(fields)} fields, expected {len(names)} {why}")
            yield f"line {line}", dict(zip(names, fields, strict=True))
    except csv.Error as error:
        # The line behind the last row that was read.
        why = "a double quote that opens a text must close it, and one inside it stands twice"
        raise ValueError(f"{place}, line {line + 1}: not CSV ({error}): {why}") from error


def check_different(said: str, names: Sequence[str]) -> None:
    """Raise ``ValueError`` where two things have one name: which of them is meant cannot be known."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{said} must have different names, got two or more of {', '.join(map(repr, twice))}")


def one_file(path: str | Path, what: str, endings: tuple[str, ...]) -> Path:
    """The path itself, or of a folder its one file that ends so; another number raises ``ValueError`` naming them."""
    path = Path(path)
    if not path.is_dir():
        return path
    found = sorted(file for file in path.iterdir() if file.is_file() and file.suffix.lower() in endings)
    if len(found) != 1:
        has = f"has {', '.join(file.name for file in found)}: name one of them" if found else "has none"
        raise ValueError(
            f"{what} {str(path)!r} is a folder and must hold one file ending in {' or '.join(endings)}; it {has}"
        )
    return found[0]


# Rows of a file, a folder or an archive.


@dataclass(frozen=True)
class File:
    """A file, or a member of an archive: its name with ``/`` between folders, and how its bytes are read."""

    name: str
    read: Callable[[], bytes]

    @property
    def path(self) -> Path:
        """The name without the ending of a compressed file."""
        path = Path(self.name)
        return path.with_suffix("") if path.suffix in _UNPACK else path


def is_collection(path: str | Path) -> bool:
    """Whether a path is a folder or a zip archive, in which files are looked for by name."""
    path = Path(path).expanduser()
    return path.is_dir() or path.suffix.lower() == ".zip"


def files_in(path: str | Path) -> list[File]:
    """The files of a folder or zip archive, at any depth, or the one file; a missing one raises ``ValueError``.

    A folder that holds an archive and no data beside it is read as the archive.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ValueError(f"data file {str(path)!r} does not exist")
    if path.is_dir():
        found = sorted(member for member in path.rglob("*") if member.is_file())
        archives = [member for member in found if member.suffix.lower() == ".zip"]
        files = [File(member.relative_to(path).as_posix(), member.read_bytes) for member in found]
        # A download that was left packed in a folder of its own.
        packed = len(archives) == 1 and not any(file.path.suffix.lower() in FORMATS for file in files)
        return files_in(archives[0]) if packed else files
    if path.suffix.lower() != ".zip":
        return [File(str(path), path.read_bytes)]
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"data file {str(path)!r} is no zip archive that can be read: {error}") from error
    return [File(name, partial(_member, path, name)) for name in names]


def _member(archive: Path, name: str) -> bytes:
    with zipfile.ZipFile(archive) as opened:
        return opened.read(name)


def rows_of(file: File, columns: Sequence[str] | None = None) -> list[Row]:
    """The rows of a file; ``columns`` names those of a CSV file that has no heading.

    Malformed content raises ``ValueError`` naming the file and the line, another kind of file one that
    lists the kinds.
    """
    place, suffix = f"data file {file.name!r}", file.path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{place} must end in {', '.join(FORMATS)}, or in these and .bz2 or .gz")
    try:
        content = _UNPACK.get(Path(file.name).suffix, bytes)(file.read())
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: a member that has a password, or is packed in a way that Python does not know.
        raise ValueError(f"{place} cannot be read: {error}") from error
    rows = _parquet(content, place) if suffix == ".parquet" else _text_rows(content, place, suffix, columns)
    if not rows:
        raise ValueError(f"{place} is empty")
    return rows


def check_columns(rows: Iterable[Row], columns: Mapping[str, Any], place: str) -> None:
    """Raise ``ValueError`` for the first row in which a column is not of its type, or a text or list that is empty."""
    for number, row in enumerate(rows):
        for column, kind in columns.items():
            said, value = f'{place}, record {number}: "{column}"', row.get(column)
            check_type(said, value, kind)
            if kind in (str, list) and not (str(value).strip() if kind is str else value):
                raise ValueError(f"{said} must not be empty")


def input_output_pairs(path: Path) -> list[tuple[str, str]]:
    """The texts of a file of records ``{"input", "output"}``."""
    rows = [row for file in files_in(path) for row in rows_of(file)]
    check_columns(rows, {"input": str, "output": str}, f"data file {str(path)!r}")
    return [(row["input"].strip(), row["output"].strip()) for row in rows]


def _text_rows(content: bytes, place: str, suffix: str, columns: Sequence[str] | None) -> list[Row]:
    text = text_of(content, place)
    if suffix == ".txt":
        return [{"line": line} for line in text.splitlines()] if text.strip() else []
    if suffix == ".csv":
        return [row for _, row in csv_lines(text, place, columns)]
    found = list(json_lines(text, place) if suffix == ".jsonl" else _json_records(text, place))
    for number, row in found:
        if not isinstance(row, dict):
            raise ValueError(f"{place}, {number}: must be an object with the columns of a row, got {row!r:.60}")
    return [row for _, row in found]


def _json_records(text: str, place: str) -> Iterator[tuple[str, Any]]:
    content = parse_json(text, place)
    if isinstance(content, Mapping):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = content["examples"] if "examples" in content else lists[0] if len(lists) == 1 else [content]
    # By name, as the lists of rhymes that the paper published.
    content = list(content.values()) if isinstance(content, Mapping) else content
    if not isinstance(content, list):
        raise ValueError(f"{place} must hold a JSON list of objects, got {type(content).__name__}")
    return ((f"record {number}", record) for number, record in enumerate(content))


def _parquet(content: bytes, place: str) -> list[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"{place} needs pyarrow: pip install 'cs-heads[lm-eval]'") from error
    try:
        rows: list[Row] = parquet.read_table(io.BytesIO(content)).to_pylist()
    except Exception as error:
        raise ValueError(f"{place} is no Parquet file that can be read: {error}") from error
    return rows


# Rows of the hub.


@contextmanager
def quiet_datasets(*more: str) -> Iterator[None]:
    """Run ``datasets`` and the hub's client, and ``more`` loggers, without their log and their bars."""
    import datasets

    with ExitStack() as stack:
        # The hub's client tells of each of its tries to reach it, for half a minute.
        for logger in map(logging.getLogger, ("datasets", "huggingface_hub", *more)):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        if datasets.is_progress_bar_enabled():
            stack.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        yield


def hub_rows(dataset: str, part: str | None, split: str, most: int | None = None) -> list[Row]:
    """The rows of a split of a data set; with ``most``, read as a stream up to so many.

    A data set that cannot be reached, or a missing ``datasets``, raises ``ValueError`` saying what to do.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError("data from the hub need datasets: pip install 'cs-heads[datasets]'") from error
    try:
        with quiet_datasets():
            rows = datasets.load_dataset(dataset, part, split=split, streaming=most is not None)
            return [dict(row) for row in islice(rows, most)]
    except Exception as error:
        raise not_downloaded("/".join(filter(None, (dataset, part))), error) from error


def not_downloaded(dataset: str, error: Exception) -> ValueError:
    """The error of a data set that the hub does not give, in one line that says what to do."""
    reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]
    why = "name files of your own with data_files="
    return ValueError(f"data set {dataset!r} could not be downloaded from the hub ({reason}); {why}")
