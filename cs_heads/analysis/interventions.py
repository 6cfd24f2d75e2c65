"""Acting on what was found, in the user's own model: heads off, weighed, or taken out of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cs_heads.analysis.certificate import Certificate
from cs_heads.analysis.found_heads import Found, heads_of
from cs_heads.arguments import check_mapping, check_one_of, check_path, fits, in_line
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.encoding import encode_task
from cs_heads.engine.forwards import Forwards
from cs_heads.lens import check_weights, describe
from cs_heads.lens.bake import check_can_save, save_plain, without_units
from cs_heads.lens.gates import hooked, hooks_of
from cs_heads.lens.locks import alone
from cs_heads.lens.model import check_ablatable, check_units, largest_number
from cs_heads.ranking import HeadRanking
from cs_heads.record import write_json
from cs_heads.tasks import Task
from cs_heads.tasks.splits import check_is_task
from cs_heads.units import Grid, HeadLike, Unit, as_head, as_heads, kind_of

# What an ablated unit gives, whatever the text is: the others depend on a place in an example of the task.
_ANY_TEXT = ("zero", "mean", "optimal")


@contextmanager
def ablated(
    model: Any, heads: Found | HeadLike, ablation: str = "zero", *, k: int | None = None, task: Task | None = None
) -> Iterator[Any]:
    """Your own model with heads off, inside a ``with`` block: forward, ``run_with_cache``, ``generate``, all of it.

    The heads are off as in every measurement of this library, at every token of every row. Blocks may be nested, also
    with those of ``scale``. Afterwards, also after an exception, the model is as before: hooks of others stay. What is
    measured inside says so (``provenance["model"]["hooks"]``). Other threads that measure the model wait
    for the end of the block; what calls it in another thread by itself does not.

    Args:
        model: Your TransformerLens model.
        heads: A ranking, a list of heads, or one head; or of other units, all of one kind.
        ablation: What is put in a head's place: ``"zero"``; ``"mean"``, its mean over all tokens of the examples of
            ``task``, or ``"optimal"``, the constant that is learned on them (see ``SettingsArguments``), both of the
            model as it is when the block begins.
        k: Heads taken of a ranking (None: as many as it was searched for).
        task: For ``"mean"`` and ``"optimal"``.

    Yields:
        The model.

    Raises:
        ValueError: A model whose heads cannot be ablated, heads outside its grid, no head, a ranking of other weights,
            an ablation that needs a task and has none, or one that needs a place in an example (``"position_mean"``,
            ``"resample"``).

    >>> import cs_heads as cs
    >>> model = cs.load_model("demo")
    >>> before = model("one two three")
    >>> with cs.ablated(model, ["L2H6", (2, 7)]):
    ...     off = model("one two three")
    >>> bool((off == before).all()), bool((model("one two three") == before).all())
    (False, True)
    """
    grid, chosen = _chosen(model, heads, k)
    constants = _constants(model, grid, ablation, task)
    with hooked(model, hooks_of(grid, dict.fromkeys(chosen, 0.0), constants)):
        yield model


@contextmanager
def scale(model: Any, factors: Mapping[HeadLike, float | int]) -> Iterator[Any]:
    """Your own model with the z of heads multiplied by numbers, inside a ``with`` block, as ``ablated`` does.

    Args:
        model: Your TransformerLens model.
        factors: By head, or other unit, all of one kind: 0 is off, 1 intact, more than 1 amplifies.

    Yields:
        The model.

    Raises:
        ValueError: What ``ablated`` refuses of models and heads, or a factor that is no finite number in the dtype of
            the model.

    >>> import cs_heads as cs
    >>> model = cs.load_model("demo")
    >>> before = model("one two three")
    >>> with cs.scale(model, {"L2H6": 0.3, cs.Head(2, 7): 2.0}):
    ...     weighed = model("one two three")
    >>> bool((weighed == before).all())
    False
    """
    given = check_mapping("factors", factors, "a number by head, as {'L2H6': 0.3}")
    grid, chosen = _chosen(model, [*given], None, "factors")
    most = largest_number(model)
    for head, factor in given.items():
        if not fits(factor, float) or not -most <= factor <= most:
            raise ValueError(
                f"factors must be finite numbers, got {in_line(factor)} for {head}; "
                f"the largest of the model's dtype is {most:.3g}"
            )
    with hooked(model, hooks_of(grid, dict(zip(chosen, map(float, given.values()), strict=True)))):
        yield model


def bake(
    model: Any,
    heads: Found | HeadLike | Certificate,
    path: str | Path | None = None,
    *,
    k: int | None = None,
    copy: bool = True,
) -> Any:
    """A model without some heads: their part of W_O is zero, so that it needs no hooks and can be shipped.

    It runs exactly as with the heads zeroed; before it is returned, that is checked on a few tokens. It is measured
    like any model: ``cs.specificity(baked, ...)`` and ``cs.atlas(baked, tasks)`` say what else changed. Results name
    the heads that it lacks (``provenance["model"]["without"]``), and so does ``config.json``.

    Args:
        model: Your TransformerLens model.
        heads: A ranking, a list of heads, or one head; or key/value groups, attention layers, MLP layers or neurons. Or
            a certificate of ``cs.certify``: its heads.
        path: A folder that the Hugging Face model is also written to, with its tokenizer, as by ``save_pretrained``:
            ``cs.load_model(path)`` and ``AutoModelForCausalLM.from_pretrained(path)`` read it. For a
            ``TransformerBridge``, in the dtype that it has. A certificate is written there too, as
            ``certificate.json``.
        k: Heads taken of a ranking (None: as many as it was searched for).
        copy: Whether your model stays as it is and a copy is changed, which takes memory for the weights twice; else
            your model is changed.

    Returns:
        The model without the heads.

    Raises:
        ValueError: What ``ablated`` refuses of models and heads; hooks on the model; experts, or weights that are no
            plain matrix, as quantized ones; a ``path`` that has a model, or a model that has no Hugging Face form; a
            certificate of other weights. Nothing is changed then.

    >>> import cs_heads as cs
    >>> model = cs.load_model("demo")
    >>> baked = cs.bake(model, ["L2H6", "L2H7"])
    >>> with cs.ablated(model, ["L2H6", "L2H7"]):
    ...     off = model("one two three")
    >>> bool((baked("one two three") == off).all()), bool((model("one two three") == off).all())
    (True, False)
    """
    certificate = heads if isinstance(heads, Certificate) else None
    if certificate is not None:
        check_weights("heads and model", certificate.provenance["model"], describe(model))
    grid, chosen = _chosen(model, heads if certificate is None else certificate.heads, k)
    folder = None if path is None else check_path("path", path)
    if folder is not None:
        check_can_save(model, folder)
    with alone(model):
        made = without_units(model, chosen, grid.kind, in_place=not copy)
    if folder is not None:
        save_plain(made, folder)
        if certificate is not None:
            write_json(folder / "certificate.json", certificate)
    return made


def _chosen(model: Any, heads: Any, k: int | None, name: str = "heads") -> tuple[Grid, tuple[Unit, ...]]:
    """The units that are meant, and their grid; raises ``ValueError`` where the model cannot lose them."""
    check_ablatable(model)
    if isinstance(heads, HeadRanking):
        kind = heads.grid.kind
    else:
        heads = _listed(name, heads)
        kind = kind_of(as_head(heads[0])) if heads else "heads"
    check_units(model, kind)
    grid = Grid.from_model(model, kind)
    return grid, heads_of(grid, heads, k, name, describe(model) if isinstance(heads, HeadRanking) else None)


def _listed(name: str, heads: Any) -> list[Any]:
    """One head in any of its spellings as a list of it; a list of heads as it is."""
    pair = isinstance(heads, tuple) and len(heads) == 2 and not any(isinstance(each, str | Unit) for each in heads)
    if isinstance(heads, str | Unit) or (pair and not any(isinstance(each, tuple) for each in heads)):
        return [as_head(heads)]
    return list(as_heads(name, heads))


def _constants(model: Any, grid: Grid, ablation: str, task: Task | None) -> Any:
    """By layer, what an ablated unit gives, ``[row 1, pos 1, unit, width]``; None is zero."""
    check_one_of("ablation", ablation, _ANY_TEXT)
    if ablation == "zero":
        return None
    if task is None:
        raise ValueError(f"task must be given for ablation={ablation!r}: what is put in place comes from its examples")
    check_is_task(task)
    if grid.kind == "experts":
        raise ValueError(f"ablation must be 'zero' for experts, got {ablation!r}")
    made = Ablation(ablation, [example.answer for example in task.examples], units=grid.kind)
    Forwards(model, encode_task(model, task, None), ablation=made)
    return {layer: given[None, None] for layer, given in made.constants.items()}
