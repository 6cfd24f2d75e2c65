"""Whether a model can be measured honestly: one line a check, each with what to do about it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from cs_heads.engine.plan import example_length, free_memory, tokens_per_second
from cs_heads.lens import FoldedValueBiasesError, load_model
from cs_heads.lens.checks import Check, checks_of, failed, not_run, tried
from cs_heads.lens.model import HALF, backend_of, device_of, dtype_of
from cs_heads.lens.reference_model import PlainModel
from cs_heads.lens.weights import WeightsError
from cs_heads.methods.annealing import default_budget
from cs_heads.text import duration
from cs_heads.units import Grid

_DAY = 86_400.0


def check_model(
    model: Any,
    *,
    reference: str | Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    backend: str = "auto",
    revision: str | None = None,
) -> list[Check]:
    """Load a model and check everything that a wrong number could come from.

    Args:
        model: A name, folder or GGUF file that ``load_model`` takes, or your own TransformerLens model, which stays as
            it is.
        reference: The name, folder or GGUF file that plain Hugging Face loads, in the dtype of the model, to hold it
            against; by default ``model`` where that is one. Without a reference logits are compared with nothing, and
            hooks against the model's own W_O. Of half precision the same weights are run in float32 too, both here
            and there, so that a fault is told from rounding.
        device: As for ``load_model``.
        dtype: As for ``load_model``.
        backend: As for ``load_model``.
        revision: As for ``load_model``.

    Returns:
        A line for each check, ``"ok"``, ``"warn"`` or ``"fail"``: weights, hook_z, logits, BOS, later tokens, padding,
        batch, dtype, folded biases, fused attention, shortcuts, heads, context length and speed. Of files that cannot
        be loaded, because of what is wrong with them, or a model that cannot be run, the lines that say so alone.

    Raises:
        ValueError: No such model, reference, device, dtype or backend.
    """
    named = isinstance(model, str | Path)
    if named:
        try:
            loaded = load_model(model, device, dtype, backend, revision)
        except ValueError as error:
            lines = _refused(error, model, revision)
            if not lines:
                raise
            return lines
    else:
        # Not by load_model: what it refuses becomes a line.
        backend_of(model)
        loaded = model
        if lines := not_run(model):
            return lines
    plain, why_not = _plain(reference or (model if named else None), loaded, reference is None, revision)
    lines = checks_of(loaded, plain)
    if why_not:
        said = f"not available: {why_not}", "logits are not compared with plain Hugging Face"
        lines.insert(0, Check("reference", "warn", *said))
    fused = any(line.name == "fused attention" and line.status == "ok" for line in lines)
    return [*lines, tried("speed", partial(_speed, loaded, fused))]


def _plain(
    reference: str | Path | None, model: Any, named: bool, revision: str | None
) -> tuple[PlainModel | None, str]:
    """The model by itself, or None and why it is not available, where there is something to say."""
    if reference is None:
        return None, ""
    device, dtype = device_of(model), dtype_of(model)
    # Of half precision both models stand in memory once more, in float32.
    n_bytes = 2 + 4 + 4 if dtype in HALF else dtype.itemsize
    needed, free = n_bytes * sum(p.numel() for p in model.parameters()), free_memory(device)
    if needed > free:
        return None, f"that takes {needed / 1e9:.1f} GB more in float32, and {free / 1e9:.1f} GB are free"
    try:
        return PlainModel.load(reference, device, revision, dtype), ""
    except ValueError as error:
        if not named:
            raise
        return None, str(error)


def _refused(error: ValueError, name: str | Path, revision: str | None) -> list[Check]:
    """What stands in the way of loading a model, as far as it is a matter of its files."""
    if isinstance(error, FoldedValueBiasesError):
        return [failed("folded biases", error)]
    if isinstance(error.__cause__, WeightsError):
        return [failed("weights", error.__cause__)]
    if not (Path(name) / "config.json").is_file():
        return []
    try:
        PlainModel.load(name, "cpu", revision)
    except ValueError as reason:
        return [failed("weights", reason)]
    return []


def _speed(model: Any, fused: bool) -> Check:
    speed, budget = tokens_per_second(model, fused), default_budget(Grid.from_model(model).size)
    length = example_length(model)
    seconds = budget * length / speed
    found = (
        f"{speed:,.0f} tokens a second; a default search, {budget:,} example-evaluations, takes about "
        f"{duration(seconds)} with examples of {length} tokens (find --dry-run times yours)"
    )
    if seconds <= _DAY:
        return Check("speed", "ok", found)
    return Check("speed", "warn", found, "give a budget=, workers=, a faster device or dtype='bfloat16'")
