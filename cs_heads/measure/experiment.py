"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.heads import HeadGrid
from cs_heads.lens import EncodedExample, describe, encode_example, load_model
from cs_heads.lens.model import context_length
from cs_heads.lens.tokens import encode_prompt
from cs_heads.masks import check_masks
from cs_heads.measure.engine import Engine
from cs_heads.measure.engine.ablation import KINDS, Ablation
from cs_heads.measure.engine.texts import Texts
from cs_heads.measure.results import Results
from cs_heads.tasks import Task

if TYPE_CHECKING:
    import pandas as pd


class Experiment:
    """Measures a task on a model with groups of heads ablated; NumPy in, NumPy out.

    ``model`` is your own TransformerLens model, or a name that ``load_model`` takes. Many (mask,
    example) pairs share one forward, each row with its own mask. What has been measured is kept:
    asking again costs nothing, and an exception loses the batch in flight alone. ``spent`` counts
    the example-evaluations that were run, ``preparation`` among them.

    ``ablation`` says what an ablated head's z becomes: ``"zero"``; ``"mean"``, its mean over the positions
    of the task's examples; ``"resample"``, its z on another example. ``batch_tokens`` is the number of tokens
    of one forward at most (by default found by a probe; halved by itself when memory does not suffice),
    ``progress`` shows a bar (None: in notebooks and terminals), ``prepend_bos`` is as in
    ``encode_example``. An example longer than the model's context raises ``ValueError``.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        *,
        ablation: str = "zero",
        batch_tokens: int | None = None,
        prepend_bos: bool | None = None,
        progress: bool | None = None,
    ) -> None:
        if not isinstance(task, Task):
            raise ValueError(f"task must be a cs_heads.Task (see load_task), got {type(task).__name__}")
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"batch_tokens must be 1 or more, got {batch_tokens}")
        if ablation not in KINDS:
            raise ValueError(f"ablation must be one of {', '.join(KINDS)}, got {ablation!r}")
        self.model = load_model(model)
        self.task = task
        self.ablation = ablation
        self.progress = progress
        self._spent = 0
        self._prepend_bos = prepend_bos
        answers = [example.answer for example in task.examples]
        self._engine = Engine(
            self.model,
            _encode(self.model, task, prepend_bos),
            batch_tokens,
            None if ablation == "zero" else Ablation(ablation, answers),
        )
        self._results = Results(self.grid, self.n_examples)
        self._texts: dict[tuple[int, tuple[str, ...]], Texts] = {}

    @property
    def grid(self) -> HeadGrid:
        """Layers × heads of the model."""
        return HeadGrid.from_model(self.model)

    @property
    def n_examples(self) -> int:
        """Number of examples of the task."""
        return len(self.task)

    @property
    def preparation(self) -> int:
        """Example-evaluations before the first mask: mean and resample ablation run every example intact, for its z."""
        return 0 if self._engine.ablation is None else self.n_examples

    @property
    def spent(self) -> int:
        """Example-evaluations that were run."""
        return self._spent + (0 if self._engine.ablation is None else self._engine.ablation.spent)

    def __call__(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Score of each row's examples, in [0, 1], with the row's heads off.

        ``masks`` is ``[row, layer, head]`` (or one mask), True = ablated; ``examples`` is each row's
        own example indices, None for all of them. Masks of another grid or indices outside the task
        raise ``ValueError`` before the model runs.
        """
        return self._measure(masks, examples)[..., 0]

    def logprob(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Mean log-probability of the target (nats per token) where ``__call__`` gives the score."""
        return self._measure(masks, examples)[..., 1]

    def generate(
        self,
        masks: Bool[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        *,
        max_new_tokens: int = 64,
        stop: Sequence[str] = (),
    ) -> np.ndarray:
        """What the model says after the prompt of each row's examples, with the row's heads off: texts ``[row, k]``.

        Greedy decoding, in float32 token for token that of each mask and example by itself, up to an end token,
        to the first of the strings ``stop`` (left out), or to ``max_new_tokens``. ``masks`` and ``examples`` are as
        for scores; a text counts one example-evaluation in ``spent``. ``ValueError`` is raised where a prompt
        with so many more tokens does not fit into the model's context.
        """
        masks = check_masks(self.grid, masks)
        examples = self._check_examples(len(masks), examples)
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
        if isinstance(stop, str) or "" in stop:
            raise ValueError(f"stop must be a list of texts, none empty, got {stop!r}")
        key = (max_new_tokens, tuple(stop))
        if key not in self._texts:
            prompts = [encode_prompt(self.model.tokenizer, e.prompt, self._prepend_bos) for e in self.task.examples]
            limit, longest = context_length(self.model), max(map(len, prompts))
            if limit is not None and longest + max_new_tokens > limit:
                raise ValueError(
                    f"max_new_tokens must be {max(0, limit - longest)} or fewer: the longest prompt has {longest} "
                    f"tokens and the model's context {limit}; got {max_new_tokens}"
                )
            self._texts[key] = Texts(self._engine, prompts, max_new_tokens, stop, self.progress)
        texts = self._texts[key]
        before = texts.generated
        try:
            return texts(masks, examples)
        finally:
            self._spent += texts.generated - before

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Score of each example with no head ablated, from the same code path."""
        return self(np.zeros((1, *self.grid.shape), dtype=bool))[0]

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row a (mask, example) with the heads ablated, score and logprob."""
        import pandas as pd

        records = []
        for mask, measured in self._results:
            heads = " ".join(str(self.grid.head(int(index))) for index in np.flatnonzero(mask))
            for example in np.flatnonzero(~np.isnan(measured[:, 0])):
                records.append((heads, int(mask.sum()), int(example), *measured[example]))
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob"])

    def provenance(self) -> dict[str, Any]:
        """What a result of this experiment must say of its origin; JSON-ready."""
        return {
            "model": describe(self.model),
            "task": {
                "name": self.task.name,
                "kind": self.task.kind,
                "role": self.task.role,
                "n_examples": self.n_examples,
                "identity": self.task.identity,
            },
            "ablation": self.ablation,
            "prepend_bos": self._prepend_bos,
            "cs_heads": version("cs-heads"),
        }

    def _measure(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None
    ) -> Float[np.ndarray, "row k 2"]:
        masks = check_masks(self.grid, masks)
        examples = self._check_examples(len(masks), examples)
        entries = [self._results.of(mask) for mask in masks]
        missing = {
            (id(entry), int(example)): (row, int(example))
            for row, entry in enumerate(entries)
            for example in examples[row][np.isnan(entry[examples[row], 0])]
        }
        if missing:
            rows, wanted = np.array(list(missing.values())).T
            for batch in self._engine.run(masks[rows], wanted, self.progress):
                for pair, logprobs, greedy in batch:
                    entries[rows[pair]][wanted[pair]] = self._result(int(wanted[pair]), logprobs, greedy)
                self._spent += len(batch)
        return np.stack([entry[chosen] for entry, chosen in zip(entries, examples, strict=True)])

    def _result(
        self, example: int, logprobs: Float[np.ndarray, " continuation"], greedy: Bool[np.ndarray, " continuation"]
    ) -> tuple[float, float]:
        answer = self.task.examples[example].answer
        n_tokens = len(self._engine.examples[example].continuations[answer])
        return self.task.score(example, logprobs, greedy.tolist()), logprobs[answer] / n_tokens

    def _check_examples(self, n_rows: int, examples: Int[np.ndarray, "row k"] | None) -> Int[np.ndarray, "row k"]:
        if not n_rows:
            raise ValueError("masks must hold at least one row")
        if examples is None:
            return np.tile(np.arange(self.n_examples), (n_rows, 1))
        examples = np.asarray(examples)
        if examples.ndim != 2 or len(examples) != n_rows or not np.issubdtype(examples.dtype, np.integer):
            raise ValueError(
                f"examples must be integers [row, k] with {n_rows} rows, got {examples.dtype} {examples.shape}"
            )
        if examples.size and not (examples.min() >= 0 and examples.max() < self.n_examples):
            raise ValueError(f"examples must be in 0..{self.n_examples - 1}, got {examples.min()}..{examples.max()}")
        return examples


def _encode(model: Any, task: Task, prepend_bos: bool | None) -> list[EncodedExample]:
    if getattr(model, "tokenizer", None) is None:
        raise ValueError("model has no tokenizer: give it one (model.tokenizer), tasks are texts")
    encoded = []
    limit = context_length(model)
    for index, example in enumerate(task.examples):
        # The prompt too: the side of a split has other numbers than its file.
        place = f"task {task.name!r}, example {index} ({example.prompt[:40]!r})"
        try:
            tokens = encode_example(model.tokenizer, example.prompt, example.continuations, prepend_bos)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        if len(set(tokens.continuations)) < len(tokens.continuations):
            raise ValueError(f"{place}: two choices are the same tokens to this tokenizer: {example.continuations}")
        length = len(tokens.prompt) + max(map(len, tokens.continuations)) - 1
        if limit is not None and length > limit:
            raise ValueError(f"{place}: {length} tokens do not fit into the model's context of {limit}")
        encoded.append(tokens)
    merged = sum(tokens.merged for tokens in encoded)
    if merged:
        warnings.warn(
            f"task {task.name!r}: in {merged} of {len(encoded)} examples the tokenizer merges the end of the "
            "prompt with a continuation; the merged token is scored with every continuation of the example",
            stacklevel=3,
        )
    return encoded
