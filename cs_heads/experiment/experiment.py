"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit

from cs_heads.arguments import check_integer, check_switch
from cs_heads.cluster import Cluster
from cs_heads.designs import check_masks
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.protocol import EngineLike
from cs_heads.experiment.inputs import check_writing, encode_prompts, encode_task, text_length
from cs_heads.experiment.protocol import check_examples, responding
from cs_heads.experiment.results import LOGPROB, MARGIN, SCORE, Measurement, Results, Run
from cs_heads.experiment.texts import Texts
from cs_heads.experiment.token_budget import kept_budget
from cs_heads.lens import EncodedExample, describe, load_model, prepended
from cs_heads.lens.model import tokenizer_of
from cs_heads.store.identity import keys_of, refuse_hooks, study_of
from cs_heads.store.store import Store
from cs_heads.store.task_results import Shelf
from cs_heads.tasks import Task
from cs_heads.tasks.chat import template_identity
from cs_heads.units import HeadGrid

if TYPE_CHECKING:
    import pandas as pd


class Experiment:
    """Measures a task on a model with groups of heads ablated; NumPy in, NumPy out.

    ``model`` is your own TransformerLens model, a name that ``load_model`` takes, or a ``Cluster`` that holds
    one. Many (mask, example) pairs share one forward, each row with its own mask. What has been measured is kept:
    asking again costs nothing, and an exception loses the batch in flight alone. ``spent`` counts
    the different example-evaluations asked for, ``preparation`` among them. Where a task is scored beside the intact
    model's texts, those are run first, and are the baseline's.

    ``store`` is a file (or an open ``Store``) that results are written to as they come and read from before anything is
    run: the same call in a new process goes on where the last one stopped, bit for bit on the same machine where
    memory is not short (forwards are of as many tokens as the store's first experiment found), and a wider one measures
    what is new; what another call measured meanwhile is taken as it is, the same to rounding. ``spent`` counts what
    came from it as if it had been run, so that it ends as that of a call never interrupted, ``ran`` what the model ran
    here; what mean and resample need of the intact model, as much as one mask, is run again by each process.

    ``ablation`` says what an ablated head's z becomes: ``"zero"``; ``"mean"``, its mean over the positions
    of the task's examples; ``"resample"``, its z on another example. ``batch_tokens`` is the number of tokens
    of one forward at most (by default found by a probe; halved by itself when memory does not suffice),
    ``progress`` shows a bar (None: in notebooks and terminals), ``prepend_bos`` is as in
    ``encode_example``. An example longer than the model's context raises ``ValueError``.

    ``workers`` and ``address`` are short for ``Cluster(model, workers, address=address)``: the model runs on so many
    Ray workers, which end with the experiment (or with ``experiment.source.close()``); without any the numbers are the
    same to rounding.
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
        store: str | Path | Store | None = None,
    ) -> None:
        if not isinstance(task, Task):
            raise ValueError(f"task must be a cs_heads.Task (see load_task), got {type(task).__name__}")
        if batch_tokens is not None:
            check_integer("batch_tokens", batch_tokens, 1)
        check_switch("prepend_bos", prepend_bos)
        check_switch("progress", progress)
        replacement = Ablation.of(ablation, [example.answer for example in task.examples])
        if workers is not None or address is not None:
            if isinstance(model, Cluster):
                raise ValueError("workers and address must be left out where the model is a Cluster: it has its own")
            model = Cluster(model, workers, address=address)
        self.source: Any = model if isinstance(model, Cluster) else load_model(model)
        self.model: Any = self.source.here if isinstance(self.source, Cluster) else self.source
        self.task, self.ablation, self.progress = task, ablation, progress
        self._scoring = task.scoring
        self._prepend_bos = prepend_bos
        self.store = None if store is None else Store.of(store, study_of(self.model, ablation, prepend_bos))
        if self.store is not None and batch_tokens is None:
            batch_tokens = kept_budget(self.store, self.source)
        start = self.source.engine if isinstance(self.source, Cluster) else partial(Engine, self.model)
        self._engine: EngineLike = start(encode_task(self.model, task, prepend_bos), batch_tokens, replacement)
        self._keys = [] if self.store is None else keys_of(task, self.encoded)
        self._results = Results(self.grid, self.n_examples)
        self._scores = Measurement(self._results, SCORE, self._shelf("score"))
        # Text and log-probability of a generation task are runs of their own.
        self._logprobs = Measurement(self._results, LOGPROB, self._shelf("logprob")) if self._writes else self._scores
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
    def encoded(self) -> Sequence[EncodedExample]:
        """The examples of the task, as tokens."""
        return self._engine.examples

    @property
    def preparation(self) -> int:
        """Example-evaluations before the first mask: mean and resample ablation run every example intact, for its z."""
        return 0 if self._engine.ablation is None else self.n_examples

    @property
    def spent(self) -> int:
        """Different example-evaluations asked for, wherever they came from, and the preparation they need."""
        spent = self._logprobs.taken + sum(len(texts.used) for texts in self._texts.values())
        return spent + (self.preparation if spent else 0)

    @property
    def ran(self) -> int:
        """Example-evaluations that the model ran here: ``spent`` less what the store had, and drafts of texts."""
        prepared = 0 if self._engine.ablation is None else self._engine.ablation.spent
        return self._logprobs.ran + sum(texts.generated for texts in self._texts.values()) + prepared

    def __call__(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Score of each row's examples, in [0, 1], with the row's heads off.

        ``masks`` is ``[row, layer, head]`` (or one mask), True = ablated; ``examples`` is each row's
        own example indices, None for all of them. Masks of another grid, indices outside the task or a scorer that
        is another by now raise ``ValueError`` before the model runs.
        """
        if self.task.scoring != self._scoring:
            raise ValueError(
                f"scorer of task {self.task.name!r} must be what it was when the experiment was made, "
                f"{self._scoring['scorer']!r}, got {self.task.scoring['scorer']!r}: make the experiment again"
            )
        run = self._by_texts if self._writes else self._by_logprobs
        return self._measure(self._scores, run, masks, examples)[..., SCORE]

    def respond(
        self,
        masks: Bool[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        response: str = "probability",
    ) -> Float[np.ndarray, "row k"]:
        """A continuous response where ``__call__`` gives the score, from the same forwards: asking for both costs one.

        ``"probability"`` is that of the right choice among the choices, a softmax over the numbers that the score
        compares (summed log-probabilities, by character where length-normalized), or that of a completion's whole
        target; ``"margin"`` its log-odds, log p / (1 - p) (nats), of a completion 10 at most; ``"score"`` is as
        ``__call__``. They are never counted as right answers: ``baseline`` and every proof keep to scores. A task that
        a scorer judges, as every generation task is, has scores alone: ``ValueError``, before the model runs. Results
        of a store of format 1 have no margin, and run anew when one is asked for.
        """
        responding(self, response)
        if response == "score":
            return self(masks, examples)
        margins = self._measure(self._scores, self._by_logprobs, masks, examples, MARGIN)[..., MARGIN]
        return margins if response == "margin" else expit(margins)

    def logprob(
        self, masks: Bool[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Mean log-probability of the target (nats per token) where ``__call__`` gives the score.

        On a generation task it is that of the target as given, and runs by itself; examples without a target raise
        ``ValueError``.
        """
        for example in self.task.examples if self._writes else ():
            _ = example.target
        return self._measure(self._logprobs, self._by_logprobs, masks, examples)[..., LOGPROB]

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
        task, else no string and 64 tokens, or as many as the context leaves. ``masks`` and ``examples`` are as for
        scores; a text counts one example-evaluation in ``spent``. ``ValueError`` is raised where a prompt with so many
        more tokens does not fit into the model's context.
        """
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        if max_new_tokens is None:
            max_new_tokens = self.task.max_new_tokens or text_length(self.model, self.task, self._prepend_bos)
        stop = self.task.stop if stop is None else stop
        check_writing(max_new_tokens, stop)
        refuse_hooks(self.model, self.store)
        return self._texts_of(max_new_tokens, tuple(stop))(masks, examples)

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Score of each example with no head ablated, from the same code path."""
        return self(self._nothing_off)[0]

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row a (mask, example) with the heads ablated, score, logprob and margin."""
        return self._results.to_frame()

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
                "chat_template": template_identity(tokenizer_of(self.model), self.task),
            },
            "ablation": self.ablation,
            "prepend_bos": prepended(getattr(self.model, "tokenizer", None), self._prepend_bos),
            "cs_heads": version("cs-heads"),
        }

    def _texts_of(self, max_new_tokens: int, stop: tuple[str, ...]) -> Texts:
        key = (max_new_tokens, stop)
        if key not in self._texts:
            prompts = encode_prompts(self.model, self.task, self._prepend_bos, max_new_tokens)
            shelf = self._shelf("text", max_new_tokens=max_new_tokens, stop=list(stop))
            self._texts[key] = Texts(self._engine, prompts, max_new_tokens, stop, self.progress, shelf=shelf)
        return self._texts[key]

    @property
    def _nothing_off(self) -> Bool[np.ndarray, "1 layer head"]:
        return np.zeros((1, *self.grid.shape), dtype=bool)

    @property
    def _writes(self) -> bool:
        """Whether the model writes what is scored."""
        return self.task.kind == "generation"

    def _shelf(self, what: str, **settings: Any) -> Shelf | None:
        if self.store is None:
            return None
        template = template_identity(tokenizer_of(self.model), self.task)
        put = {} if template is None else {"chat_template": template}
        return Shelf.of_task(self.store, self.model, self.task, self._keys, what, **settings, **put)

    def _measure(
        self,
        measurement: Measurement,
        run: Run,
        masks: Bool[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None,
        wanted: int | None = None,
    ) -> Float[np.ndarray, "row k 3"]:
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        refuse_hooks(self.model, self.store)
        measured = measurement(masks, examples, run, wanted)
        if measurement is not self._logprobs and self.task.max_new_tokens is not None:
            # Scores that the store had stand for texts.
            texts = self._texts_of(self.task.max_new_tokens, self.task.stop)
            texts.use(masks, examples)
            if self.task.relative:
                texts.use(self._nothing_off, np.unique(examples)[None])
        return measured

    def _by_logprobs(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        known: Bool[np.ndarray, " pair"],
    ) -> Iterator[list[tuple[int, Float[np.ndarray, " 3"]]]]:
        for batch in self._engine.run(masks, examples, self.progress, known):
            yield [(pair, self._result(int(examples[pair]), logprobs, hits)) for pair, logprobs, hits in batch]

    def _by_texts(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        known: Bool[np.ndarray, " pair"],
    ) -> Iterator[list[tuple[int, Float[np.ndarray, " 3"]]]]:
        assert self.task.max_new_tokens is not None
        texts = self._texts_of(self.task.max_new_tokens, self.task.stop)
        for batch in texts.judged(self.task, masks, examples, known):
            yield [(pair, np.array([score, np.nan, np.nan])) for pair, score in batch]

    def _result(
        self, example: int, logprobs: Float[np.ndarray, " continuation"], hits: Float[np.ndarray, " continuation"]
    ) -> Float[np.ndarray, " 3"]:
        answer = self.task.examples[example].answer
        logprob = logprobs[answer] / len(self.encoded[example].continuations[answer])
        score = np.nan if self._writes else self.task.score(example, logprobs, hits.tolist())
        return np.array([score, logprob, self.task.margin(example, logprobs)])
