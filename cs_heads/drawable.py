"""Results that draw themselves."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Drawable:
    """A result with one usual picture, which a subclass names: ``class Overlap(Drawable, picture="overlap")``."""

    _picture: str

    def __init_subclass__(cls, *, picture: str) -> None:
        super().__init_subclass__()
        cls._picture = picture

    def plot(self, **options: Any) -> Any:
        """Draw the usual picture of this kind of result, by the function of ``cs.plot`` that the class names.

        Args:
            options: those of that function, such as ``k`` for the map of a ranking (``cs.plot.heads``).

        Returns:
            What that function returns: axes, several axes, or a figure.
        """
        # By name: results are below the pictures, which import them.
        draw = getattr(import_module("cs_heads.plot"), self._picture)
        return draw(self, **options)
