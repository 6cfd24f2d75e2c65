"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from typing_extensions import Unpack

from cs_heads.cluster import Cluster, ModelLike
from cs_heads.designs import check_masks, key_in_words
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.protocol import EngineLike
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.gradients import Gradients, kept_work
from cs_heads.experiment.inputs import Answers, check_writing, encode_prompts, encode_task, text_length
from cs_heads.experiment.patching import PatchingExperiment
from cs_heads.experiment.plan import Entry, Observed, Part, Source, run
from cs_heads.experiment.protocol import GradientExperiment, check_examples, responding
from cs_heads.experiment.setup import Setup
from cs_heads.experiment.texts import Texts
from cs_heads.lens import EncodedExample, prepended
from cs_heads.lens.locks import alone
from cs_heads.lens.model import end_tokens, tokenizer_of
from cs_heads.progress import calling
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.identity import example_identities, replacement_of
from cs_heads.store.kept_work import KeptWork
from cs_heads.store.stored_observations import StoredObservations
from cs_heads.tasks import Task, confirming_side
from cs_heads.tasks.chat import template_identity
from cs_heads.tasks.example import hash_of
from cs_heads.tasks.pairs import PromptPair
from cs_heads.tasks.responses import RESPONSES, Observations
from cs_heads.tasks.splits import check_is_task
from cs_heads.text import shown
from cs_heads.units import Grid

if TYPE_CHECKING:
    import pandas as pd


# Prompts on which a faster dtype is tried, and tokens of each.
_TRIED_TEXTS, _TRIED_TOKENS = 8, 32


class Experiment(GradientExperiment):
    """Measures a task on a model with groups of heads ablated or gated; NumPy in, NumPy out.

    Many (mask, example) pairs share one forward, each row with its own mask. What has been measured is kept: asking
    again costs nothing, and an exception loses the batch in flight alone. ``spent`` counts the different
    example-evaluations asked for, ``preparation`` among them. Where a task is scored beside the intact model's texts,
    those are run first, and are the baseline's.

    With a store results are written as they come and read before anything is run: the same call in a new process
    resumes where the last one stopped, bit for bit on the same machine where memory is not short (forwards are of as
    many tokens as the store's first experiment found), and a wider one measures what is new; what another call measured
    meanwhile is taken as it is, the same to rounding. ``spent`` counts what came from it as if it had been run, so that
    it ends as that of a call never interrupted, ``ran`` what the model ran here; what mean and resample need of the
    intact model, as much as one mask, is run again by each process.

    It is of the model as it was when this was made: a call refuses one whose weights, modules or hooks are others by
    now. Hooks that stood before are named in ``provenance``, and refused with a store. Threads that share a model, an
    experiment or a store take turns.

    Args:
        model: Your own TransformerLens model, a name that ``load_model`` takes, or a ``Cluster`` that holds one.
        task: What is measured.
        settings: How, see ``SettingsArguments``. Workers that these start end with the experiment, with ``close``, or
            with its ``with`` block, and a store that it opened by its path is closed; without workers the numbers are
            the same to rounding.

    Raises:
        ValueError: A setting that is not allowed, an example that does not fit into the model's context, or hooks on a
            model whose results go into a store.

    Example:
        with cs.Experiment("gpt2", task, store="run.sqlite") as experiment:
            scores = experiment(cs.designs.single(experiment.grid))
    """

    task: Task

    def __init__(self, model: ModelLike | Setup, task: Task, **settings: Unpack[SettingsArguments]) -> None:
        check_is_task(task)
        how = model.settings if isinstance(model, Setup) else Settings.of(settings)
        answers = [example.answer for example in task.examples]
        ablation = Ablation(how.ablation, answers, units=how.units, positions=how.positions)
        self.setup = model if isinstance(model, Setup) else Setup.of(model, how)
        self._owns = self.setup is not model
        self.settings, self.source, self.model = self.setup.settings, self.setup.source, self.setup.model
        self.store, self._state = self.setup.store, self.setup.state
        self.task, self.name, self.chance, self.n_examples = task, task.name, task.chance, len(task)
        self.grid = Grid.from_model(self.model, how.units)
        self.responses = tuple(RESPONSES) if task.scorer is None else ("score",)
        start = self.source.engine if isinstance(self.source, Cluster) else partial(Engine, self.model)
        self.encoded: Sequence[EncodedExample] = encode_task(self.model, task, how.prepend_bos)
        self._engine: EngineLike = start(
            self.encoded, self.setup.batch_tokens, ablation, compute_dtype=how.compute_dtype
        )
        self.preparation = ablation.preparation
        # Engines of several tasks number their examples through.
        self._first = 0
        self._identities = example_identities(self.encoded)
        self._observed = Observed(
            [len(tokens.continuations) for tokens in self.encoded], self._stored(self._identities)
        )
        self._texts: dict[tuple[int, tuple[str, ...]], Texts] = {}
        # Of texts: a scorer may take long.
        self._scores: dict[tuple[str, int, str], float] = {}
        if self.writes:
            _ = self._own_texts

    def on(self, task: Task) -> Experiment:
        """An experiment on another task: the same model or workers, the same settings, the same store.

        Args:
            task: The other task.

        Raises:
            ValueError: The task does not fit the model: see ``Experiment``.
        """
        other = Experiment(self.setup, task)
        # What units give without being zero is of one task's examples.
        if self.settings.ablation == "zero" and not self.writes and not other.writes:
            other._engine, other._first = self._engine, self._engine.add(other.encoded)
        elif isinstance(self._engine, Engine) and isinstance(other._engine, Engine):
            other._engine.cast = self._engine.cast
        return other

    def in_faster_dtype(self) -> Experiment:
        """The same with forwards in a faster dtype that decides alike, where there is one and none was asked for.

        What a store began with it goes on with.
        """
        texts = [example.prompt[:_TRIED_TOKENS] for example in self.encoded[:_TRIED_TEXTS]]
        setup = self.setup.in_faster_dtype(texts)
        return self if setup is self.setup else Experiment(setup, self.task)

    @cached_property
    def held_out(self) -> Experiment:
        """The same on the unseen examples of the task; ``ValueError`` for a task that holds out none."""
        return self.on(confirming_side(self.task))

    def shared_settings(self) -> SettingsArguments:
        """The settings of further experiments on what this one runs on: ``source``."""
        return cast(SettingsArguments, {**vars(self.settings), "store": self.store})

    def close(self) -> None:
        """Stop the workers that this experiment started, and close the store that it opened, if it did."""
        if self._owns:
            self.setup.close()

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        on = f"{self.model.cfg.model_name}, {self.grid}, {self.settings.ablation} ablation"
        return f"Experiment({on}; {self.task!r}; {self.spent:,} example-evaluations)"

    @property
    def compute_dtype(self) -> str:
        """What forwards run in."""
        return self.setup.compute_dtype

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of a result must know of the model: the hooks of others that stood on it."""
        hooks = ", ".join(self.setup.description.get("hooks", ()))
        return (f"the model was measured with hooks of yours on it: {hooks}",) if hooks else ()

    @property
    def spent(self) -> int:
        """Different example-evaluations asked for, wherever they came from, and the preparation they need."""
        spent = self._observed.taken + sum(len(texts.used) for texts in self._texts.values())
        return spent + (self.preparation if spent else 0) + self._gradients.cost.spent

    @property
    def cost(self) -> Cost:
        """What was spent, backward passes told apart."""
        backwards = self._gradients.cost.backwards
        return Cost(forwards=self.spent - backwards, backwards=backwards)

    @property
    def ran(self) -> int:
        """Example-evaluations that the model ran here: ``spent`` less what the store had."""
        prepared = self._engine.ablation.spent
        written = sum(texts.generated for texts in self._texts.values())
        return self._observed.ran + written + prepared + self._gradients.ran

    def __call__(
        self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Score of each row's examples, in [0, 1], with the row's heads off.

        Args:
            masks: ``[row, layer, head]``, or one alone: masks (bool, True = ablated), or gates (float, 0 to 1) by which
                each head's z is multiplied, what is left of 1 being filled with what an ablated head becomes.
            examples: Each row's own example indices ``[row, k]``; None: all of them in every row.

        Raises:
            ValueError: Masks of another grid, indices outside the task, or a scorer that is another by now; raised
                before the model runs.
        """
        return self._answer("score", self.observe(masks, examples))

    def observe(
        self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Observations:
        """What the model says of each row's examples with the row's heads off: what scores are made of.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.

        Returns:
            Log-probability and greedy match of each continuation, or the texts of a generation task.

        Raises:
            ValueError: As ``__call__``.
        """
        return (self._written if self.writes else self._said)(masks, examples)

    def _answer(self, response: str, said: Observations) -> Float[np.ndarray, "row k"]:
        """A response to what was said; each text is scored once."""
        if said.texts is None:
            return RESPONSES[response](self.task, said)
        beside = said.texts if said.intact is None else said.intact
        keys = [*zip(said.texts.ravel().tolist(), said.examples.ravel().tolist(), beside.ravel().tolist(), strict=True)]
        new = {key: place for place, key in enumerate(keys) if key not in self._scores}
        if new:
            places = [*new.values()]
            some = Observations(
                said.examples.reshape(1, -1)[:, places],
                texts=said.texts.reshape(1, -1)[:, places],
                intact=None if said.intact is None else said.intact.reshape(1, -1)[:, places],
            )
            self._scores |= dict(zip(new, RESPONSES[response](self.task, some)[0].tolist(), strict=True))
        return np.array([self._scores[key] for key in keys]).reshape(said.examples.shape)

    def part(self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None) -> Part:
        """What a call asks of the engine, for ``measure_together``; of a task for which the model writes no texts.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.

        Returns:
            The pairs of mask and example that the call needs, with what is known of them.

        Raises:
            ValueError: As ``__call__``.
        """
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        told = self._scores_of, self.task.name, self.settings.progress
        with self._state.kept(self.model):
            return Part(Source(self._engine, self._first, self._observed, *told), masks, examples)

    def respond(
        self,
        masks: Shaped[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        response: str = "probability",
    ) -> Float[np.ndarray, "row k"]:
        """A continuous response where ``__call__`` gives the score, from the same forwards: asking for both costs one.

        ``"probability"`` is that of the right choice among the choices, a softmax over the numbers that the score
        compares (summed log-probabilities, by character where length-normalized), or that of a completion's whole
        target; ``"margin"`` its log-odds, log p / (1 - p) (nats), of a completion 10 at most; ``"score"`` is as
        ``__call__``. They are never counted as right answers: ``baseline`` and every proof keep to scores. A task that
        a scorer judges, as every generation task is, has scores alone.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.
            response: ``"probability"``, ``"margin"`` or ``"score"``.

        Returns:
            Probabilities or scores in [0, 1], or margins in nats, for each row's examples ``[row, k]``.

        Raises:
            ValueError: Another response, or one that the task has not; before the model runs.
        """
        responding(self, response)
        return self._answer(response, self.observe(masks, examples))

    def logprob(
        self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Mean log-probability of the target (nats per token) where ``__call__`` gives the score.

        On a generation task it is that of the target as given, and runs by itself.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.

        Returns:
            Nats per token, at most 0, for each row's examples ``[row, k]``.

        Raises:
            ValueError: An example without a target.
        """
        for example in self.task.examples if self.writes else ():
            _ = example.target
        return self._target_logprobs(self._said(masks, examples))

    def _target_logprobs(self, said: Observations) -> Float[np.ndarray, "row k"]:
        answers = self.task.answers
        lengths = np.array([len(one.continuations[at]) for one, at in zip(self.encoded, answers, strict=True)])
        assert said.logprobs is not None
        summed = np.take_along_axis(said.logprobs, answers[said.examples][..., None], axis=-1)[..., 0]
        return summed / lengths[said.examples]

    def generate(
        self,
        masks: Shaped[np.ndarray, "..."],
        examples: Int[np.ndarray, "row k"] | None = None,
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> np.ndarray:
        """What the model says after the prompt of each row's examples, with the row's heads off: texts ``[row, k]``.

        Greedy decoding, in float32 token for token that of each mask and example by itself, up to an end token. A text
        counts one example-evaluation in ``spent``.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.
            max_new_tokens: Tokens of a text at most (None: those of a generation task, else 64, or as many as the
                context leaves).
            stop: Strings before the first of which a text ends (None: those of a generation task, else none).

        Returns:
            An array of str objects, ``[row, k]``, each up to the first stop string.

        Raises:
            ValueError: A prompt that does not fit into the model's context with so many more tokens.
        """
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        if max_new_tokens is None:
            max_new_tokens = self.task.max_new_tokens or text_length(self.model, self.task, self.settings.prepend_bos)
        stop = self.task.stop if stop is None else stop
        check_writing(max_new_tokens, stop)
        with self._state.kept(self.model), calling(self.task.name, outermost=True):
            return self._texts_of(max_new_tokens, tuple(stop))(masks, examples)

    def gradients(
        self,
        gates: Float[np.ndarray, "row layer head"],
        examples: Int[np.ndarray, " row"],
        *,
        keep: str | None = None,
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row layer head"]]:
        """Loss of each row's example under the row's gates, and its gradient in them, by one backward pass a batch.

        The weights are frozen, and each row has a gradient of its own. Runs in this process, also where the
        experiment's model is on workers, and counts one forward and one backward pass a row.

        Args:
            gates: What each head's z is multiplied by; zero ablation alone has gates.
            examples: The example of each row.
            keep: A name under which gradients at gates of 1 are kept in the store every few seconds.

        Returns:
            The mean negative log-probability of the target (nats per token; NaN where the store had the gradient), and
            the gradients.

        Raises:
            ValueError: Another ablation than zero, an example without a target, or gates of another grid.
        """
        return self._gradients.of_targets(gates, examples, keep)

    @property
    def has_gradients(self) -> bool:
        """Whether ``probability_gradients`` can be asked for.

        It can where heads become zero, no scorer judges the answers, and the model is in this process and not
        quantized: what multiplies packed weights need not have a gradient.
        """
        return self._gradients.of_probabilities_exist

    def probability_gradients(
        self, gates: Float[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"], *, keep: str
    ) -> Float[np.ndarray, "row layer head"]:
        """The gradient of the mean probability of each row's answers (``respond``) in the row's gates.

        Counts one forward and one backward pass an example; what a row's prompts begin with alike runs once. Both
        passes are in bfloat16 where that is the compute dtype, else in the dtype of the weights.

        Args:
            gates: What each head's z is multiplied by.
            examples: The examples of each row.
            keep: A name under which gradients are kept in the store every few seconds.

        Returns:
            The gradients, in probability for each unit of a gate.

        Raises:
            ValueError: Gates of another grid or number of rows, or an experiment without gradients (``has_gradients``).
        """
        return self._gradients.of_probabilities(gates, examples, keep)

    def patching(self, pairs: Sequence[PromptPair]) -> PatchingExperiment:
        """An experiment on pairs of prompts: the same model, settings and store.

        Args:
            pairs: Clean and corrupted prompts, as ``cs.tasks`` makes them.

        Raises:
            ValueError: Fewer than two pairs, pairs of two kinds, or an ablation other than zero.
        """
        return PatchingExperiment(self.setup, pairs)

    @property
    def answers(self) -> Answers:
        """The right answers as tokens; a task without targets raises ``ValueError``."""
        return self._gradients.answers

    @cached_property
    def _gradients(self) -> Gradients:
        return Gradients(self.setup, self.task, self.encoded, self._engine)

    def kept_work(self, kind: str, work: Mapping[str, Any], *others: Experiment) -> KeptWork | None:
        """Where work on the right answers of this experiment, and of others, is kept; None without a store.

        Args:
            kind: The method, for people who ask what a store holds.
            work: All else that the work depends on, JSON-ready.
            others: Experiments whose answers it depends on, too.

        Returns:
            What loads and saves the arrays of each phase of the work.
        """
        return kept_work(self.setup, kind, work, self.answers, *(other.answers for other in others))

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Score of each example with no head ablated, from the same code path."""
        return self(self._nothing_off)[0]

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row a (mask, example) with the heads ablated, score, logprob and margin."""
        import pandas as pd

        rows: dict[tuple[bytes, int], list[float]] = {}
        for key, entry in self._observed.by_mask.items():
            known, said = self._known(entry)
            numbers = np.full((3, len(known)), np.nan)
            numbers[1] = self._target_logprobs(said)[0]
            if not self.writes:
                numbers[0] = RESPONSES["score"](self.task, said)[0]
                numbers[2] = np.nan if self.task.scorer is not None else RESPONSES["margin"](self.task, said)[0]
            rows |= {(key, example): values for example, values in zip(known.tolist(), numbers.T.tolist(), strict=True)}
        scores = {(text, example): score for (text, example, _), score in self._scores.items()}
        for key, example, text in self._own_texts.known() if self.writes else ():
            rows.setdefault((key, example), [np.nan] * 3)[0] = scores.get((text, example), np.nan)
        off = {key: key_in_words(self.grid, key) for key, _ in rows}
        records = [(*off[key], example, *values) for (key, example), values in rows.items()]
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob", "margin"])

    def provenance(self) -> dict[str, Any]:
        """What a result of this experiment must say of its origin; JSON-ready."""
        tokenizer, prepend_bos = tokenizer_of(self.model), self.settings.prepend_bos
        template = template_identity(tokenizer, self.task)
        if template is not None and prepend_bos is None:
            prepend_bos = False  # the template writes the tokens it wants
        return {
            "model": self.setup.description.copy(),
            "task": {
                "name": self.task.name,
                **self.task.scoring,
                "role": self.task.role,
                "n_examples": self.n_examples,
                "identity": self.task.identity,
                "chat_template": template,
                "merged": sum(tokens.merged for tokens in self.encoded),
            },
            "ablation": self.settings.ablation,
            "units": self.settings.units,
            "positions": self.settings.positions,
            "compute_dtype": self.compute_dtype,
            "prepend_bos": prepended(tokenizer, prepend_bos),
            "cs_heads": version("cs-heads"),
        }

    @property
    def _own_texts(self) -> Texts:
        """The texts that a generation task is scored by."""
        assert self.task.max_new_tokens is not None
        return self._texts_of(self.task.max_new_tokens, self.task.stop)

    def _texts_of(self, max_new_tokens: int, stop: tuple[str, ...]) -> Texts:
        key = (max_new_tokens, stop)
        if key not in self._texts:
            prompts = encode_prompts(self.model, self.task, self.settings.prepend_bos, max_new_tokens)
            ends = {"stop": list(stop), "end_tokens": sorted(end_tokens(self.model))}
            stored = self._stored([hash_of(prompt) for prompt in prompts], max_new_tokens=max_new_tokens, **ends)
            put: dict[str, Any] = {"name": self.task.name, "progress": self.settings.progress, "stored": stored}
            self._texts[key] = Texts(self._engine, self.grid, prompts, max_new_tokens, stop, **put)
        return self._texts[key]

    @property
    def _nothing_off(self) -> Bool[np.ndarray, "1 layer head"]:
        return np.zeros((1, *self.grid.shape), dtype=bool)

    @property
    def writes(self) -> bool:
        """Whether the model writes what is scored."""
        return self.task.kind == "generation"

    def _stored(self, examples: Sequence[str], **settings: Any) -> StoredObservations | None:
        if self.store is None:
            return None
        answers = [example.answer for example in self.task.examples]
        put = {**settings, **replacement_of(self.settings.ablation, self._identities, answers)}
        if self.compute_dtype != self.setup.description["dtype"]:
            put["compute_dtype"] = self.compute_dtype
        prompts = [shown(example.prompt) for example in self.task.examples]
        return StoredObservations(self.store, put, self.task.name, examples, prompts)

    def _said(self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None) -> Observations:
        """What the model says of continuations, measured where nothing has it."""
        part = self.part(masks, examples)
        examples = check_examples(self.n_examples, len(part.entries), examples)
        run([part])
        said = np.stack([entry[chosen] for entry, chosen in zip(part.entries, examples, strict=True)])
        return Observations(examples, said[..., 0], said[..., 1])

    def _written(self, masks: Shaped[np.ndarray, "..."], examples: Int[np.ndarray, "row k"] | None) -> Observations:
        """What the model writes, and where the scorer compares, what the intact model does."""
        masks = check_masks(self.grid, masks)
        examples = check_examples(self.n_examples, len(masks), examples)
        texts, intact = self._own_texts, None
        with self._state.kept(self.model), alone(self.model), calling(self.task.name, outermost=True):
            if self.task.relative:
                asked = np.unique(examples)
                by_example = dict(zip(asked.tolist(), texts(self._nothing_off, asked[None])[0], strict=True))
                intact = np.array([[by_example[one] for one in row] for row in examples.tolist()], dtype=object)
            said = texts(masks, examples)
        return Observations(examples, texts=said, intact=intact)

    def _scores_of(self, entry: Entry) -> Float[np.ndarray, " example"]:
        """The score of each example under one mask; NaN where it was not measured."""
        scores = np.full(len(entry), np.nan)
        known, said = self._known(entry)
        # What a scorer makes of it is asked for once all is measured.
        if self.task.scorer is None:
            scores[known] = RESPONSES["score"](self.task, said)[0]
        return scores

    def _known(self, entry: Entry) -> tuple[Int[np.ndarray, " known"], Observations]:
        """The examples that a mask was measured on, and what was said of them."""
        [known] = np.nonzero(~np.isnan(entry[:, 0, 0]))
        said = entry[None, known]
        return known, Observations(known[None], said[..., 0], said[..., 1])
