"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.heads import HeadGrid
from cs_heads.lens import describe, load_model
from cs_heads.masks import check_masks
from cs_heads.measure.cluster import Cluster
from cs_heads.measure.engine import Engine
from cs_heads.measure.engine.ablation import KINDS, Ablation
from cs_heads.measure.engine.protocol import EngineLike
from cs_heads.measure.engine.texts import Texts
from cs_heads.measure.inputs import check_examples, encode_prompts, encode_task
from cs_heads.measure.results import Results
from cs_heads.tasks import Task

if TYPE_CHECKING:
    import pandas as pd


class Experiment:
    """Measures a task on a model with groups of heads ablated; NumPy in, NumPy out.

    ``model`` is your own TransformerLens model, a name that ``load_model`` takes, or a ``Cluster`` that holds
    one. Many (mask, example) pairs share one forward, each row with its own mask. What has been measured is kept:
    asking again costs nothing, and an exception loses the batch in flight alone. ``spent`` counts
    the example-evaluations that were run, ``preparation`` among them.

    ``ablation`` says what an ablated head's z becomes: ``"zero"``; ``"mean"``, its mean over the positions
    of the task's examples; ``"resample"``, its z on another example. ``batch_tokens`` is the number of tokens
    of one forward at most (by default found by a probe; halved by itself when memory does not suffice),
    ``progress`` shows a bar (None: in notebooks and terminals), ``prepend_bos`` is as in
    ``encode_example``. An example longer than the model's context raises ``ValueError``.

    ``workers`` and ``address`` are short for ``Cluster(model, workers, address=address)``: the model runs on so many
    Ray workers, which end with the experiment (or with ``experiment.source.close()``).
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
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        if not isinstance(task, Task):
            raise ValueError(f"task must be a cs_heads.Task (see load_task), got {type(task).__name__}")
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"batch_tokens must be 1 or more, got {batch_tokens}")
        if ablation not in KINDS:
            raise ValueError(f"ablation must be one of {', '.join(KINDS)}, got {ablation!r}")
        if workers is not None or address is not None:
            if isinstance(model, Cluster):
                raise ValueError("workers and address must be left out where the model is a Cluster: it has its own")
            model = Cluster(model, workers, address=address)
        self.source: Any = model if isinstance(model, Cluster) else load_model(model)
        self.model: Any = self.source.here if isinstance(self.source, Cluster) else self.source
        self.task = task
        self.ablation = ablation
        self.progress = progress
        self._scored = 0
        self._prepend_bos = prepend_bos
        answers = [example.answer for example in task.examples]
        start = self.source.engine if isinstance(self.source, Cluster) else partial(Engine, self.model)
        self._engine: EngineLike = start(
            encode_task(self.model, task, prepend_bos),
            batch_tokens,
            None if ablation == "zero" else Ablation(ablation, answers),
        )
        self._results = Results(self.grid, self.n_examples)
        self._texts: dict[tuple[int, tuple[str, ...]], Texts] = {}
        if task.max_new_tokens is not None:
            self._texts_of(task.max_new_tokens, task.stop)

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
        prepared = 0 if self._engine.ablation is None else self._engine.ablation.spent
        return self._scored + sum(texts.generated for texts in self._texts.values()) + prepared

    def __call__(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Score of each row's examples, in [0, 1], with the row's heads off.

        ``masks`` is ``[row, layer, head]`` (or one mask), True = ablated; ``examples`` is each row's
        own example indices, None for all of them. Masks of another grid or indices outside the task
        raise ``ValueError`` before the model runs.
        """
        return self._measure(masks, examples, by_texts=self.task.kind == "generation")[..., 0]

    def logprob(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Mean log-probability of the target (nats per token) where ``__call__`` gives the score.

        On a generation task it is that of the target as given, and runs by itself; examples without a target raise
        ``ValueError``.
        """
        for example in self.task.examples if self.task.kind == "generation" else ():
            _ = example.target
        return self._measure(masks, examples, by_texts=False)[..., 1]

    def generate(
        self,
        masks: Bool[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> np.ndarray:
        """What the model says after the prompt of each row's examples, with the row's heads off: texts ``[row, k]``.

        Greedy decoding, in float32 token for token that of each mask and example by itself, up to an end token,
        to the first of the strings ``stop`` (left out), or to ``max_new_tokens``; by default those of a generation
        task, else no string and 64 tokens. ``masks`` and ``examples`` are as for scores; a text counts one
        example-evaluation in ``spent``. ``ValueError`` is raised where a prompt with so many more tokens does not
        fit into the model's context.
        """
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        if max_new_tokens is None:
            max_new_tokens = self.task.max_new_tokens or 64
        stop = self.task.stop if stop is None else stop
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
        if isinstance(stop, str) or "" in stop:
            raise ValueError(f"stop must be a list of texts, none empty, got {stop!r}")
        return self._texts_of(max_new_tokens, tuple(stop))(masks, examples)

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Score of each example with no head ablated, from the same code path."""
        return self(np.zeros((1, *self.grid.shape), dtype=bool))[0]

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row a (mask, example) with the heads ablated, score and logprob."""
        import pandas as pd

        records = []
        for mask, measured in self._results:
            heads = " ".join(str(self.grid.head(int(index))) for index in np.flatnonzero(mask))
            for example in np.flatnonzero(~np.isnan(measured).all(axis=1)):
                records.append((heads, int(mask.sum()), int(example), *measured[example]))
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob"])

    def provenance(self) -> dict[str, Any]:
        """What a result of this experiment must say of its origin; JSON-ready."""
        return {
            "model": describe(self.model),
            "task": {
                "name": self.task.name,
                **self.task.scoring,
                "role": self.task.role,
                "n_examples": self.n_examples,
                "identity": self.task.identity,
            },
            "ablation": self.ablation,
            "prepend_bos": self._prepend_bos,
            "cs_heads": version("cs-heads"),
        }

    def _texts_of(self, max_new_tokens: int, stop: tuple[str, ...]) -> Texts:
        key = (max_new_tokens, stop)
        if key not in self._texts:
            prompts = encode_prompts(self.model, self.task, self._prepend_bos, max_new_tokens)
            self._texts[key] = Texts(self._engine, prompts, max_new_tokens, stop, self.progress)
        return self._texts[key]

    def _measure(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None, by_texts: bool
    ) -> Float[np.ndarray, "row k 2"]:
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        entries = [self._results.of(mask) for mask in masks]
        # Text and log-probability of a generation task are runs of their own.
        column = 1 if self.task.kind == "generation" and not by_texts else 0
        missing = {
            (id(entry), int(example)): (row, int(example))
            for row, entry in enumerate(entries)
            for example in examples[row][np.isnan(entry[examples[row], column])]
        }
        if missing:
            rows, wanted = np.array(list(missing.values())).T
            run = self._by_texts if by_texts else self._by_logprobs
            for batch in run(masks[rows], wanted):
                for pair, measured in batch:
                    entry = entries[rows[pair]][wanted[pair]]
                    np.copyto(entry, measured, where=~np.isnan(measured))
        return np.stack([entry[chosen] for entry, chosen in zip(entries, examples, strict=True)])

    def _by_logprobs(
        self, masks: Bool[np.ndarray, "pair layer head"], examples: Int[np.ndarray, " pair"]
    ) -> Iterator[list[tuple[int, Float[np.ndarray, " 2"]]]]:
        for batch in self._engine.run(masks, examples, self.progress):
            self._scored += len(batch)
            yield [(pair, self._result(int(examples[pair]), logprobs, greedy)) for pair, logprobs, greedy in batch]

    def _by_texts(
        self, masks: Bool[np.ndarray, "pair layer head"], examples: Int[np.ndarray, " pair"]
    ) -> Iterator[list[tuple[int, Float[np.ndarray, " 2"]]]]:
        assert self.task.max_new_tokens is not None
        texts = self._texts_of(self.task.max_new_tokens, self.task.stop)
        for batch in texts.run(masks, examples):
            scores = self.task.score_texts([int(examples[pair]) for pair, _ in batch], [text for _, text in batch])
            yield [(pair, np.array([score, np.nan])) for (pair, _), score in zip(batch, scores, strict=True)]

    def _result(
        self, example: int, logprobs: Float[np.ndarray, " continuation"], greedy: Bool[np.ndarray, " continuation"]
    ) -> Float[np.ndarray, " 2"]:
        answer = self.task.examples[example].answer
        logprob = logprobs[answer] / len(self._engine.examples[example].continuations[answer])
        generated = self.task.kind == "generation"
        return np.array([np.nan if generated else self.task.score(example, logprobs, greedy.tolist()), logprob])
