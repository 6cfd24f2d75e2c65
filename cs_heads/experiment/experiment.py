"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from typing_extensions import Unpack

from cs_heads.cluster import Cluster, ModelLike, local_model, source_of
from cs_heads.designs import check_masks, key_in_words
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.plan import faster_dtype, token_budget
from cs_heads.engine.protocol import EngineLike
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.inputs import Answers, check_writing, encode_prompts, encode_task, text_length
from cs_heads.experiment.patching import PatchingExperiment
from cs_heads.experiment.plan import Entry, Observed, Part, Source, run
from cs_heads.experiment.protocol import check_examples, responding
from cs_heads.experiment.texts import Texts
from cs_heads.lens import EncodedExample, ModelState, describe, prepended
from cs_heads.lens.abilities import check_forward, why_no_gradients
from cs_heads.lens.batches import TokenBudget, token_budget_for
from cs_heads.lens.differentiate import Asked, gate_gradients, probability_gradients
from cs_heads.lens.locks import alone
from cs_heads.lens.model import ModelDescription, check_units, device_of, end_tokens, tokenizer_of
from cs_heads.lens.quantized import quantization_of
from cs_heads.progress import calling, counting
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.identity import example_identities, replacement_of, study_of
from cs_heads.store.kept_work import KeptWork, filled
from cs_heads.store.store import Store
from cs_heads.store.stored_observations import StoredObservations
from cs_heads.tasks import Task, confirming_side
from cs_heads.tasks.chat import template_identity
from cs_heads.tasks.example import hash_of
from cs_heads.tasks.pairs import PromptPair
from cs_heads.tasks.responses import RESPONSES, Observations
from cs_heads.tasks.splits import check_is_task
from cs_heads.tasks.task import Scoring
from cs_heads.text import shown
from cs_heads.units import Grid

if TYPE_CHECKING:
    import pandas as pd


# Prompts on which a faster dtype is tried, and tokens of each.
_TRIED_TEXTS, _TRIED_TOKENS = 8, 32


@dataclass(frozen=True, eq=False)
class _Checked:
    """What another experiment runs on: the model, as it was when that was made."""

    source: Any
    state: ModelState
    description: ModelDescription


class TaskDescription(Scoring):
    """The task's part of the provenance of a result."""

    name: str
    role: str
    n_examples: int
    identity: str
    chat_template: str | None
    merged: int


class Provenance(TypedDict):
    """Where a number comes from: model, task and settings that may change it; JSON-ready."""

    model: ModelDescription
    task: TaskDescription
    ablation: str
    units: str
    positions: str
    compute_dtype: str
    prepend_bos: bool | list[str]
    cs_heads: str


class Experiment:
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

    def __init__(self, model: ModelLike, task: Task, **settings: Unpack[SettingsArguments]) -> None:
        self.settings = Settings.of(settings)
        check_is_task(task)
        answers, how = [example.answer for example in task.examples], self.settings
        ablation = Ablation(how.ablation, answers, units=how.units, positions=how.positions)
        given: Any = model
        checked = isinstance(given, _Checked)
        self.source: Any = given.source if checked else source_of(model, self.settings)
        own = isinstance(self.source, Cluster) and not checked and self.source is not model
        self._own = self.source if own else None
        self.model: Any = self.source.model_or_info if isinstance(self.source, Cluster) else self.source
        check_units(self.model, self.settings.units)
        self.task = task
        self.store: Store | None = None
        self._opened: Store | None = None
        batch_tokens, prepend_bos = self.settings.batch_tokens, self.settings.prepend_bos
        self._state = given.state if checked else ModelState.of(self.model)
        if self.settings.store is not None:
            kept: Any = self.settings.store
            self.store = kept if checked else Store.of(kept, study_of(self.model, self.settings))
            self._opened = None if self.store is kept else self.store
            batch_tokens = self._first_batch_tokens(self.store) if batch_tokens is None else batch_tokens
        self._description = given.description if checked else describe(self.model)
        start = self.source.engine if isinstance(self.source, Cluster) else partial(Engine, self.model)
        self.encoded: Sequence[EncodedExample] = encode_task(self.model, task, prepend_bos)
        self._engine: EngineLike = start(self.encoded, batch_tokens, ablation, compute_dtype=how.compute_dtype)
        # Engines of several tasks number their examples through.
        self._first = 0
        self._identities = example_identities(self.encoded)
        self._observed = Observed(
            [len(tokens.continuations) for tokens in self.encoded], self._stored(self._identities)
        )
        self._texts: dict[tuple[int, tuple[str, ...]], Texts] = {}
        # Of texts: a scorer may take long.
        self._scores: dict[tuple[str, int, str], float] = {}
        self._passes, self._passes_run = Cost(0), 0
        if self.writes:
            _ = self._own_texts

    def on(self, task: Task) -> Experiment:
        """An experiment on another task: the same model or workers, the same settings, the same store.

        Args:
            task: The other task.

        Raises:
            ValueError: The task does not fit the model: see ``Experiment``.
        """
        other = Experiment(self._checked, task, **self.shared_settings())
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
        if self.settings.compute_dtype is not None or isinstance(self.source, Cluster):
            return self
        texts = [example.prompt[:_TRIED_TOKENS] for example in self.encoded[:_TRIED_TEXTS]]
        find = partial(faster_dtype, self.model, texts)
        said = None
        if self.store is not None:
            # One that has results has them of the weights' own dtype, if it does not say otherwise.
            begun = bool(self.store.query("SELECT 1 FROM observations LIMIT 1"))
            said = self.store.first("faster_dtype", lambda: json.dumps(None if begun else find()))
        settings = self.shared_settings()
        settings["compute_dtype"] = find() if said is None else json.loads(said)
        same = settings["compute_dtype"] is None
        return self if same else Experiment(self._checked, self.task, **settings)

    @cached_property
    def held_out(self) -> Experiment:
        """The same on the unseen examples of the task; ``ValueError`` for a task that holds out none."""
        return self.on(confirming_side(self.task))

    def shared_settings(self) -> SettingsArguments:
        """The settings of further experiments on what this one runs on: ``source``."""
        placed = {"dtype": None, "workers": None, "address": None}
        return cast(SettingsArguments, {**vars(self.settings), **placed, "store": self.store})

    def close(self) -> None:
        """Stop the workers that this experiment started, and close the store that it opened, if it did."""
        if self._own is not None:
            self._own.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        on = f"{self.model.cfg.model_name}, {self.grid}, {self.settings.ablation} ablation"
        return f"Experiment({on}; {self.task!r}; {self.spent:,} example-evaluations)"

    @property
    def grid(self) -> Grid:
        """Layers × heads of the model, or × other units."""
        return Grid.from_model(self.model, self.settings.units)

    @property
    def compute_dtype(self) -> str:
        """What forwards run in."""
        return self.settings.compute_dtype or self._description["dtype"]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of a result must know of the model: the hooks of others that stood on it."""
        hooks = ", ".join(self._description.get("hooks", ()))
        return (f"the model was measured with hooks of yours on it: {hooks}",) if hooks else ()

    @property
    def n_examples(self) -> int:
        """Number of examples of the task."""
        return len(self.task)

    @property
    def preparation(self) -> int:
        """Example-evaluations before the first mask: for what heads become, all but zero run every example intact."""
        return self._engine.ablation.preparation

    @property
    def spent(self) -> int:
        """Different example-evaluations asked for, wherever they came from, and the preparation they need."""
        spent = self._observed.taken + sum(len(texts.used) for texts in self._texts.values())
        return spent + (self.preparation if spent else 0) + self._passes.spent

    @property
    def cost(self) -> Cost:
        """What was spent, backward passes told apart."""
        return Cost(forwards=self.spent - self._passes.backwards, backwards=self._passes.backwards)

    @property
    def ran(self) -> int:
        """Example-evaluations that the model ran here: ``spent`` less what the store had, and drafts of texts."""
        prepared = self._engine.ablation.spent
        written = sum(texts.generated for texts in self._texts.values())
        return self._observed.ran + written + prepared + self._passes_run

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
        if self.settings.ablation != "zero":
            raise ValueError(f"ablation must be 'zero' for gradients in gates, got {self.settings.ablation!r}")
        wanted = (len(examples), *self.grid.shape)
        if gates.shape != wanted:
            raise ValueError(f"gates must be [row, layer, head] = {wanted}, got shape {gates.shape}")
        _ = self.answers  # refuses an example without a target
        answers = [self.encoded[i].answered(self.task.examples[i].answer) for i in examples]
        found = np.full_like(gates, np.nan)
        kept = None if keep is None else self.kept_work(keep, {"examples": examples.tolist()})
        passes = counting(self.task.name, 2 * len(examples), self.settings.progress)
        measuring = self._state.kept(self.model)
        with measuring, passes as bar, filled(kept, 0, found, lambda more: bar.add(2 * more)) as done:
            loss, _ = gate_gradients(
                local_model(self.source),
                answers,
                gates,
                self._gradient_tokens,
                done=done,
                measured=found,
                units=self.settings.units,
                off_at=self.settings.positions,
            )
        nll = loss.numpy()
        self._passes += Cost(forwards=len(gates), backwards=len(gates))
        self._passes_run += 2 * int((~np.isnan(nll)).sum())
        return nll, found

    @property
    def has_gradients(self) -> bool:
        """Whether ``probability_gradients`` can be asked for.

        It can where heads become zero, no scorer judges the answers, and the model is in this process and not
        quantized: what multiplies packed weights need not have a gradient.
        """
        if self.settings.ablation != "zero" or self.task.scorer is not None or isinstance(self.source, Cluster):
            return False
        packed = quantization_of(getattr(self.model, "original_model", None)) is not None
        return not packed and all(weight.is_floating_point() for weight in self.model.parameters())

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
        wanted = (len(examples), *self.grid.shape)
        if gates.shape != wanted:
            raise ValueError(f"gates must be [row, layer, head] = {wanted}, got shape {gates.shape}")
        if not self.has_gradients:
            raise ValueError(f"task {self.task.name!r} has no gradients here: see has_gradients")
        examples = check_examples(self.n_examples, len(gates), examples)
        asked = [[self._asked(int(example)) for example in row] for row in examples]
        found = np.full(gates.shape, np.nan, dtype=np.float32)
        digest = hashlib.sha256(gates.astype("<f4").tobytes()).hexdigest()
        engine = self._engine if isinstance(self._engine, Engine) else None
        # Gradients in float16 would vanish: there is no scale of the loss.
        in_dtype = engine.cast if engine is not None and self.compute_dtype == "bfloat16" else None
        dtype = {} if in_dtype is None else {"compute_dtype": self.compute_dtype}
        kept = self.kept_work(keep, {"examples": examples.tolist(), "gates": digest, **dtype})
        n = 2 * examples.size
        ran: Bool[np.ndarray, " row"] = np.zeros(len(gates), dtype=bool)
        passes = counting(self.task.name, n, self.settings.progress)
        with (
            self._state.kept(self.model),
            passes as bar,
            filled(kept, 0, found, lambda rows: bar.add(2 * rows * examples.shape[1])) as done,
        ):
            ran = np.asarray(np.isnan(found).any(axis=(1, 2)))
            extend = engine is not None and engine.forwards.able.extend and self._extends_gradients
            with in_dtype or nullcontext():
                probability_gradients(
                    local_model(self.source),
                    asked,
                    gates,
                    self._gradient_tokens,
                    done=done,
                    measured=found,
                    extend=extend,
                    units=self.settings.units,
                    off_at=self.settings.positions,
                )
        self._passes += Cost(forwards=examples.size, backwards=examples.size)
        self._passes_run += 2 * int(ran.sum()) * examples.shape[1]
        return found

    def _asked(self, example: int) -> Asked:
        one, tokens = self.task.examples[example], self.encoded[example]
        scales = np.ones(len(tokens.continuations))
        if self.task.kind == "completion" and self.task.accuracy == "token":
            scales = scales / len(one.target)
        elif self.task.length_normalized:
            scales = scales / self.task.characters[example, : len(scales)]
        return Asked(tokens, one.answer, tuple(scales.tolist()))

    def patching(self, pairs: Sequence[PromptPair]) -> PatchingExperiment:
        """An experiment on pairs of prompts: the same model, settings and store.

        Args:
            pairs: Clean and corrupted prompts, as ``cs.tasks`` makes them.

        Raises:
            ValueError: Fewer than two pairs, pairs of two kinds, or an ablation other than zero.
        """
        return PatchingExperiment(self.source, pairs, **self.shared_settings())

    @cached_property
    def answers(self) -> Answers:
        """The right answers as tokens; a task without targets raises ``ValueError``."""
        return Answers.of(self.task, self.encoded)

    @cached_property
    def _gradient_tokens(self) -> TokenBudget:
        # Of all calls: what does not fit into memory is found out once, and whether the model is run rightly.
        model = local_model(self.source)
        check_forward(model)
        return token_budget_for(model, self.settings.batch_tokens, "gradient")

    @cached_property
    def _extends_gradients(self) -> bool:
        """Whether gradients are taken through stored keys and values."""
        return why_no_gradients(self.model) is None

    def kept_work(self, kind: str, work: Mapping[str, Any], *others: Experiment) -> KeptWork | None:
        """Where work on the right answers of this experiment, and of others, is kept; None without a store.

        Args:
            kind: The method, for people who ask what a store holds.
            work: All else that the work depends on, JSON-ready.
            others: Experiments whose answers it depends on, too.

        Returns:
            What loads and saves the arrays of each phase of the work.
        """
        if self.store is None:
            return None
        # Places of answers where there are any, so that what was kept before they were there is found.
        asked = [
            [each.prompts, each.targets, *([each.positions] if any(each.positions) else [])]
            for each in (self.answers, *(other.answers for other in others))
        ]
        return KeptWork(self.store, kind, {**work, "answers": asked})

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

    def provenance(self) -> Provenance:
        """What a result of this experiment must say of its origin; JSON-ready."""
        tokenizer, prepend_bos = tokenizer_of(self.model), self.settings.prepend_bos
        template = template_identity(tokenizer, self.task)
        if template is not None and prepend_bos is None:
            prepend_bos = False  # the template writes the tokens it wants
        return {
            "model": self._description.copy(),
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
    def _checked(self) -> Any:
        """The model of this experiment, for another."""
        return _Checked(self.source, self._state, self._description)

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

    def _first_batch_tokens(self, store: Store) -> int:
        """The tokens that the store's first experiment on such a device ran at once.

        Where memory is short they depend on what is free, and other batches round otherwise.
        """
        source = self.source
        if isinstance(source, Cluster):
            return int(store.first(f"batch_tokens/{source.info.device}", lambda: str(source.batch_tokens)))
        return int(store.first(f"batch_tokens/{device_of(source).type}", lambda: str(token_budget(source))))

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
        if self.compute_dtype != self._description["dtype"]:
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
