"""Reading local data files: one clear line where there is none, or it is malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: str | Path, what: str) -> Any:
    """The content of a JSON file; a missing file, another encoding or no JSON raises ``ValueError`` naming ``what``."""
    try:
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{what} {str(path)!r}: not JSON ({error})") from error


def read_text(path: str | Path, what: str) -> str:
    """The text of a file; a missing file or another encoding than UTF-8 raises ``ValueError`` naming ``what``."""
    path = Path(path)
    if not path.is_file():
        raise FileError(
            f"{what} {str(path)!r} does not exist" if not path.exists() else f"{what} {str(path)!r} is no file"
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{what} {str(path)!r} is not UTF-8 text: {error}") from error


def input_output_pairs(content: Any, place: str) -> tuple[tuple[str, str], ...]:
    """Pairs from a list of ``{"input", "output"}``, one a different input; a malformed one raises ``ValueError``."""
    if not isinstance(content, list) or not content:
        raise FileError(f'{place}: must be a list of {{"input", "output"}} that is not empty, got {str(content)[:80]}')
    found: dict[str, str] = {}
    for number, record in enumerate(content):
        texts = [record.get(key) if isinstance(record, dict) else None for key in ("input", "output")]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise FileError(f'{place}, record {number}: must be {{"input", "output"}} of texts, got {str(record)[:80]}')
        found.setdefault(str(texts[0]).strip(), str(texts[1]).strip())
    return tuple(found.items())


class FileError(ValueError):
    """A data file that cannot be used; its message names the file and what is wrong with it."""
