"""One line of what is checked of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line about a model: what was looked at, whether it is right, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.status == "ok") != (not self.remedy):
            raise ValueError(f"remedy must be given where a check is not ok, and only there, got {self.remedy!r}")

    def __str__(self) -> str:
        return f"{self.status:<5} {self.name:<16} {self.found}" + (f"; {self.remedy}" if self.remedy else "")

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return asdict(self)
