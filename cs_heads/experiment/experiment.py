"""The experiment: with these heads off, how did these examples go?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Int, Shaped
from typing_extensions import Unpack

from cs_heads.cluster import Cluster, ModelLike
from cs_heads.designs import check_masks, key_in_words
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.protocol import EngineLike, StoppingCriteria, TextRequest
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.gradients import Gradients
from cs_heads.experiment.inputs import check_writing, encode_prompts, text_length
from cs_heads.experiment.plan import Observed, Part, run
from cs_heads.experiment.protocol import Examples, Masks, Rows, Scores, check_examples, responding
from cs_heads.experiment.setup import Setup
from cs_heads.lens import prepended
from cs_heads.lens.model import end_tokens, tokenizer_of
from cs_heads.progress import one_bar
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.store.identity import example_identities, replacement_of
from cs_heads.store.stored_observations import StoredObservations
from cs_heads.tasks import Task, confirming_side
from cs_heads.tasks.chat import template_identity
from cs_heads.tasks.example import hash_of
from cs_heads.tasks.responses import RESPONSES, Observations
from cs_heads.tasks.splits import check_is_task
from cs_heads.text import shown

if TYPE_CHECKING:
    import pandas as pd


# Prompts on which a faster dtype is tried, and tokens of each.
_TRIED_TEXTS, _TRIED_TOKENS = 8, 16


class Experiment(Gradients):
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
    """

    def __init__(self, model: ModelLike | Setup, task: Task, **settings: Unpack[SettingsArguments]) -> None:
        check_is_task(task)
        how = model.settings if isinstance(model, Setup) else Settings.of(settings)
        ablation = Ablation(how.ablation, task.answers.tolist(), units=how.units, positions=how.positions)
        setup = model if isinstance(model, Setup) else Setup.of(model, how)
        super().__init__(setup, task)
        self._owns = setup is not model
        start = self.source.engine if isinstance(self.source, Cluster) else partial(Engine, self.model)
        engine = start(self.encoded, setup.batch_tokens, ablation, compute_dtype=how.compute_dtype)
        self.preparation = ablation.preparation
        self._identities = example_identities(self.encoded)
        self._observed = Observed(task, engine, self._stored(self._identities), how.progress)
        self._texts: dict[tuple[int, tuple[str, ...]], Observed] = {}
        # Of texts: a scorer may take long.
        self._scores: dict[tuple[str, int, str], float] = {}
        if self.writes:
            _ = self._own_texts

    @property
    def _engine(self) -> EngineLike:
        return self._observed.engine

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
            other._observed.engine, other._observed.first = self._engine, self._engine.add(other.encoded)
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
        spent = self._observed.taken + sum(texts.taken for texts in self._texts.values())
        return spent + (self.preparation if spent else 0) + 2 * self._backwards

    @property
    def cost(self) -> Cost:
        """What was spent, backward passes told apart."""
        return Cost(forwards=self.spent - self._backwards, backwards=self._backwards)

    @property
    def ran(self) -> int:
        """Example-evaluations that the model ran here: ``spent`` less what the store had."""
        written = sum(texts.ran for texts in self._texts.values())
        return self._observed.ran + written + self._engine.ablation.spent + self._differentiated

    def __call__(self, masks: Masks, examples: Examples = None) -> Scores:
        """Score of each row's examples, in [0, 1], with the row's heads off.

        Args:
            masks: ``[row, layer, head]``, or one alone: masks (bool, True = ablated), or gates (float, 0 to 1) by which
                each head's z is multiplied, what is left of 1 being filled with what an ablated head becomes.
            examples: Each row's own example indices ``[row, k]``; None: all of them in every row.

        Raises:
            ValueError: Masks of another grid, or indices outside the task; raised before the model runs.
        """
        return self._answer("score", self.observe(masks, examples))

    def observe(self, masks: Masks, examples: Examples = None) -> Observations:
        """What the model says of each row's examples with the row's heads off: what scores are made of.

        Args:
            masks: As for ``__call__``.
            examples: As for ``__call__``.

        Returns:
            Log-probability and greedy match of each continuation, or the texts of a generation task.

        Raises:
            ValueError: As ``__call__``.
        """
        masks, examples = self._checked(masks, examples)
        if not self.writes:
            return self._said(masks, examples)
        intact = None
        with one_bar(self.task.name, outermost=True):
            if self.task.relative:
                asked, place = np.unique(examples, return_inverse=True)
                nothing_off = np.zeros((1, *self.grid.shape), dtype=bool)
                intact = self._measured(self._own_texts, nothing_off, asked[None])[0][place.reshape(examples.shape)]
            said = self._measured(self._own_texts, masks, examples)
        return Observations(examples, texts=said, intact=intact)

    def _said(self, masks: Rows, examples: Int[np.ndarray, "row k"]) -> Observations:
        said = self._measured(self._observed, masks, examples)
        return Observations(examples, said[..., 0], said[..., 1])

    def _measured(
        self, observed: Observed, masks: Rows, examples: Int[np.ndarray, "row k"]
    ) -> Shaped[np.ndarray, "row k ..."]:
        """What the model says, measured where nothing has it."""
        with self._state.kept(self.model):
            part = Part(observed, list(masks), list(examples))
            run([part])
        return np.stack([entry.said[chosen] for entry, chosen in zip(part.entries, examples, strict=True)])

    def _checked(self, masks: Masks, examples: Examples) -> tuple[Rows, Int[np.ndarray, "row k"]]:
        masks = check_masks(self.grid, masks)
        return masks, check_examples(self.n_examples, len(masks), examples)

    def _answer(self, response: str, said: Observations) -> Scores:
        """A response to what was said; each text is scored once."""
        if said.texts is None:
            return RESPONSES[response](self.task, said)
        beside = said.texts if said.intact is None else said.intact
        keys = [*zip(said.texts.ravel().tolist(), said.examples.ravel().tolist(), beside.ravel().tolist(), strict=True)]
        new = {key: place for place, key in enumerate(keys) if key not in self._scores}
        if new:
            places = [*new.values()]
            examples, texts = (each.reshape(1, -1)[:, places] for each in (said.examples, said.texts))
            intact = None if said.intact is None else said.intact.reshape(1, -1)[:, places]
            some = Observations(examples, texts=texts, intact=intact)
            self._scores |= dict(zip(new, RESPONSES[response](self.task, some)[0].tolist(), strict=True))
        return np.array([self._scores[key] for key in keys]).reshape(said.examples.shape)

    def part(self, calls: Sequence[tuple[Masks, Examples]]) -> Part:
        """What calls ask of the engine, for ``measure_together``; of a task for which the model writes no texts.

        Args:
            calls: Masks and examples, as for ``__call__``.

        Returns:
            The pairs of mask and example that the calls need, with what is known of them.

        Raises:
            ValueError: As ``__call__``.
        """
        asked = [self._checked(*call) for call in calls]
        masks, examples = ([row for call in asked for row in call[place]] for place in (0, 1))
        with self._state.kept(self.model):
            return Part(self._observed, masks, examples)

    def respond(self, masks: Masks, examples: Examples = None, response: str = "probability") -> Scores:
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

    def logprob(self, masks: Masks, examples: Examples = None) -> Scores:
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
        return self._target_logprobs(self._said(*self._checked(masks, examples)))

    def _target_logprobs(self, said: Observations) -> Scores:
        answers = self.task.answers
        lengths = np.array([len(one.continuations[at]) for one, at in zip(self.encoded, answers, strict=True)])
        assert said.logprobs is not None
        summed = np.take_along_axis(said.logprobs, answers[said.examples][..., None], axis=-1)[..., 0]
        return summed / lengths[said.examples]

    def generate(
        self,
        masks: Masks,
        examples: Examples = None,
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
        masks, examples = self._checked(masks, examples)
        if max_new_tokens is None:
            max_new_tokens = self.task.max_new_tokens or text_length(self.model, self.task, self.settings.prepend_bos)
        stop = self.task.stop if stop is None else stop
        check_writing(max_new_tokens, stop)
        return self._measured(self._texts_of(max_new_tokens, tuple(stop)), masks, examples)

    def to_frame(self) -> pd.DataFrame:
        """Everything measured: one row a (mask, example) with the heads ablated, score, logprob and margin."""
        import pandas as pd

        rows: dict[tuple[bytes, int], list[float]] = {}
        for key, entry in self._observed.by_mask.items():
            said = self._observed.known(entry)
            numbers = np.full((3, said.examples.size), np.nan)
            numbers[1] = self._target_logprobs(said)[0]
            if not self.writes:
                numbers[0] = RESPONSES["score"](self.task, said)[0]
                numbers[2] = np.nan if self.task.scorer is not None else RESPONSES["margin"](self.task, said)[0]
            measured = said.examples[0].tolist()
            rows |= {(key, example): each for example, each in zip(measured, numbers.T.tolist(), strict=True)}
        scores = {(text, example): score for (text, example, _), score in self._scores.items()}
        for key, entry in self._own_texts.by_mask.items() if self.writes else ():
            for example in np.flatnonzero(entry.known).tolist():
                score = scores.get((entry.said[example], example), np.nan)
                rows.setdefault((key, example), [np.nan] * 3)[0] = score
        off = {key: key_in_words(self.grid, key) for key, _ in rows}
        records = [(*off[key], example, *values) for (key, example), values in rows.items()]
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob", "margin"])

    def provenance(self) -> dict[str, Any]:
        """What a result of this experiment must say of its origin; JSON-ready."""
        tokenizer, prepend_bos = tokenizer_of(self.model), self.settings.prepend_bos
        template = template_identity(tokenizer, self.task)
        if template is not None and prepend_bos is None:
            prepend_bos = False  # the template writes the tokens it wants
        task: dict[str, Any] = {"name": self.task.name, **self.task.scoring, "role": self.task.role}
        task |= {"n_examples": self.n_examples, "identity": self.task.identity, "chat_template": template}
        task |= {"merged": sum(tokens.merged for tokens in self.encoded)}
        how: dict[str, Any] = {name: getattr(self.settings, name) for name in ("ablation", "units", "positions")}
        how |= {"compute_dtype": self.compute_dtype, "prepend_bos": prepended(tokenizer, prepend_bos)}
        return {"model": self.setup.description.copy(), "task": task, **how, "cs_heads": version("cs-heads")}

    @property
    def _own_texts(self) -> Observed:
        """The texts that a generation task is scored by."""
        assert self.task.max_new_tokens is not None
        return self._texts_of(self.task.max_new_tokens, self.task.stop)

    def _texts_of(self, max_new_tokens: int, stop: tuple[str, ...]) -> Observed:
        key = (max_new_tokens, stop)
        if key not in self._texts:
            prompts = encode_prompts(self.model, self.task, self.settings.prepend_bos, max_new_tokens)
            ends = StoppingCriteria(max_new_tokens, stop, end_tokens(self.model))
            put = {"max_new_tokens": max_new_tokens, "stop": list(stop), "end_tokens": sorted(ends.end_tokens)}
            stored = self._stored([hash_of(prompt) for prompt in prompts], **put)
            request = TextRequest(prompts, ends)
            self._texts[key] = Observed(self.task, self._engine, stored, self.settings.progress, request)
        return self._texts[key]

    @property
    def writes(self) -> bool:
        """Whether the model writes what is scored."""
        return self.task.kind == "generation"

    def _stored(self, examples: Sequence[str], **settings: Any) -> StoredObservations | None:
        if self.store is None:
            return None
        replaced = replacement_of(self.settings.ablation, self._identities, self.task.answers.tolist())
        put = {**settings, **replaced}
        if self.compute_dtype != self.setup.description["dtype"]:
            put["compute_dtype"] = self.compute_dtype
        prompts = [shown(example.prompt) for example in self.task.examples]
        return StoredObservations(self.store, put, self.task.name, examples, prompts)
