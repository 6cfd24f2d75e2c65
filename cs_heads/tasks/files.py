"""Reading local data files: one clear line where there is none, or it is malformed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def read_json(path: str | Path, what: str) -> Any:
    """The content of a JSON file; a missing file, another encoding or no JSON raises ``ValueError`` naming ``what``."""
    return json_of(read_text(path, what), f"{what} {str(path)!r}")


def read_text(path: str | Path, what: str) -> str:
    """The text of a file; a missing file or another encoding than UTF-8 raises ``ValueError`` naming ``what``."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"{what} {str(path)!r} does not exist" if not path.exists() else f"{what} {str(path)!r} is no file"
        )
    return text_of(path.read_bytes(), f"{what} {str(path)!r}")


def text_of(content: bytes, place: str) -> str:
    """Bytes as text, without a mark of their order; another encoding than UTF-8 raises ``ValueError``."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place} is not UTF-8 text: {error}") from error


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


def json_of(text: str, place: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """What JSON text says; any other raises ``ValueError`` naming ``place``. ``pairs`` makes what an object is."""
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except KeyError as error:
        raise ValueError(f"{place}: key {error} stands twice in one record, which would be read once") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error})") from error


def json_lines(text: str, place: str) -> Iterator[tuple[str, Any]]:
    r"""What each line of JSON lines says, with its number in words; empty lines say nothing.

    >>> list(json_lines('{"a": 1}\n\n[2]', "own.jsonl"))
    [('line 1', {'a': 1}), ('line 3', [2])]
    """
    # Not splitlines: a JSON text may hold other line separators unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", json_of(line, f"{place}, line {number}", _once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; a key that is there twice raises ``KeyError``, of which JSON keeps the last."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise KeyError(key)
        made[key] = value
    return made


def input_output_pairs(content: Any, place: str) -> tuple[tuple[str, str], ...]:
    """Pairs from a list of ``{"input", "output"}``, one a different input; a malformed one raises ``ValueError``."""
    if not isinstance(content, list) or not content:
        raise ValueError(f'{place}: must be a list of {{"input", "output"}} that is not empty, got {str(content)[:80]}')
    found: dict[str, str] = {}
    for number, record in enumerate(content):
        texts = [record.get(key) if isinstance(record, dict) else None for key in ("input", "output")]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(
                f'{place}, record {number}: must be {{"input", "output"}} of texts, got {str(record)[:80]}'
            )
        found.setdefault(str(texts[0]).strip(), str(texts[1]).strip())
    return tuple(found.items())
