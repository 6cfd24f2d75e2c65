"""What found heads do, measured: what they look at, write and move, where in the prompt, and whether together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from typing_extensions import Unpack

from cs_heads.analysis.attention import HABITS, habits
from cs_heads.analysis.columns import controlled
from cs_heads.analysis.direct_effects import SETTINGS, DirectEffects, effects_and_margins, room_of
from cs_heads.analysis.found_heads import Found, heads_of, model_of
from cs_heads.analysis.head_cards import Figure, HeadCard, HeadCards, figure_of, together_figures
from cs_heads.analysis.head_chance import LEAST_RANDOM, bounds_of_others, reached_by_random
from cs_heads.analysis.head_looks import EVERYWHERE, LOOKS, parts_of, shares, tokens_looked_at, weights_everywhere
from cs_heads.analysis.head_words import head_in_words, together_in_words
from cs_heads.analysis.interactions import MOST_HEADS, Interactions, interactions
from cs_heads.analysis.random_heads import Mask, drawn_notes, like_note, random_sets
from cs_heads.arguments import check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.engine.encoding import as_shown
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import measured
from cs_heads.lens.attention import last_patterns, token_texts
from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.circuits import Circuits, Margins, as_logits, logits_written, token_circuits
from cs_heads.lens.model import tokenizer_of
from cs_heads.progress import one_bar
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.tasks.worked_examples import Form
from cs_heads.units import Unit

N_EXAMPLES = 60
"""Unseen examples, where no other number is asked for."""

# Random heads of the same layers, or sets; examples with heads off at some tokens alone; prompts of all controls.
_RANDOM, _PLACED, _BESIDE = 20, 30, 40
# Tokens read by themselves, those that stand for what may be written, how many are named, and places of a strip.
_READ, _WORDS, _NAMED, _STRIP = 1024, 64, 5, 32
# Share of draws of random heads on whose cards something is claimed, and of those on whose card of all it is.
_FALSE = 0.025
# Prompts that have what is looked at, below which nothing is said of it.
_FEW = 10
# Share of examples of whose answers tokens must be, for a sentence to name them.
_ANSWERING = 0.2
# How well what a head makes of tokens by themselves must agree with what it does on the task (correlation).
_AGREES = 0.5
_CIRCUITS = {"agreement: OV circuit": "moves", "agreement: QK circuit": "matches"}
# Below these nothing is said, however far from other heads.
_LEAST = {**dict.fromkeys((*(f"habit: {name}" for name in HABITS), *LOOKS, *EVERYWHERE), 0.25), "copying": 0.5}


@one_bar("head cards")
def explain(
    model: ModelLike,
    task: Task,
    heads: Found,
    *,
    controls: Sequence[Task] | str | None = "auto",
    n: int = N_EXAMPLES,
    seed: int = 0,
    **settings: Unpack[SettingsArguments],
) -> HeadCards:
    """Say what heads do on a task: what they look at, write and move, where in the prompt, and whether together.

    On unseen examples; every figure stands beside what other heads give, and only what clears that is said in words.
    It puts ``habits``, ``direct_effects`` and ``interactions`` together, and adds attention on the task, circuits of
    single tokens, and ablation at some tokens alone. Of other units than heads all is said but what they look at and
    what they make of single tokens.

    Args:
        model: Your own TransformerLens model, the name of one, or a ``Cluster``: its model in this process is run.
        task: Choices or completions; their first tokens are compared.
        heads: A ranking, or a list of heads, or of other units of the kind ``units``.
        controls: Tasks on whose prompts attention is read too; "auto": the everyday skills; None: no task.
        n: Unseen examples at most.
        seed: Draws random heads, the tokens of ``habits``, and examples of controls.
        settings: ``units``, ``prepend_bos``, ``dtype``, ``batch_tokens``, ``progress``, ``store``: as of
            ``Experiment``.

    Returns:
        The cards, with ``to_frame()`` and ``plot()``.

    Raises:
        ValueError: What ``direct_effects`` refuses.
    """
    check_seed(seed)
    own = local_model(model, Settings.of(settings, SETTINGS))
    how: SettingsArguments = {**settings, "dtype": None}
    with controlled(own, task, controls, heads, n=n, seed=seed, settings=how) as judged:
        experiment, grid = judged.own, judged.own.grid
        chosen = heads_of(grid, heads, model=model_of(experiment))
        found, none = grid.mask(chosen), grid.mask([])
        sets = random_sets(grid, found, none, _RANDOM, np.random.default_rng(seed))
        # As many sets as have some 20 heads.
        single = sets[: -(-_RANDOM // len(chosen))]
        random = grid.units(np.any(single, axis=0) & ~found)
        # Where others run out there are smaller sets, or one of none.
        sets = [each for each in sets if each.sum() == len(chosen)]
        few = drawn_notes(grid, found, none, sets) if sets else (f"there are no {len(chosen)} other {grid.word}s",)
        room = room_of(experiment)
        effects, margins = effects_and_margins(experiment, chosen, room)
        rows, answers = effects.prompts[:MIN_CORRECT], effects.answers[:MIN_CORRECT]
        beside = Margins(experiment.model, rows, answers, random, room).lost(random) if random else np.zeros((1, 0))
        together = interactions(None, experiment, chosen, n=n) if len(chosen) <= MOST_HEADS else None
        alike = like_note(found, single) if sets else ""
        like = f"random {grid.word}s{alike}" if len(random) >= LEAST_RANDOM else ""
        measured_of = (experiment, chosen, effects, margins, beside.mean(axis=0), together)
        of = _Measured(*measured_of, judged.controls, like, seed, room)
        tokens, strips = of.strips()
        notes = (*judged.notes, *few, *effects.notes)
        if together is None:
            notes = (*notes, f"what heads do together is measured of {MOST_HEADS} at most, here are {len(chosen)}")
        if together is not None and len(sets) >= LEAST_RANDOM:
            of.chance = of.harm_of(sets)
        return HeadCards(
            cards=tuple(of.card(place, *strip) for place, strip in enumerate(strips)),
            tokens=tokens,
            **together_figures(together, of.chance),
            words=together_in_words(together, of.chance),
            spent=room.rows + experiment.spent,
            provenance=experiment.provenance(),
            notes=tuple(dict.fromkeys(notes)),
        )


@dataclass
class _Measured:
    """What cards are made of."""

    experiment: Experiment
    heads: tuple[Unit, ...]
    effects: DirectEffects
    margins: Margins
    random: Float[np.ndarray, " random"]
    together: Interactions | None
    controls: Sequence[Experiment]
    random_units: str
    seed: int
    room: TokenBudget
    # What all heads must take.
    chance: float = np.nan

    def __post_init__(self) -> None:
        self.model, self.grid = self.experiment.model, self.experiment.grid
        self.tokenizer = tokenizer_of(self.model)
        self.rows, self.answers = self.effects.prompts, self.effects.answers
        self.parts, self.seen = self._seen(self.experiment, self.effects.places, self.answers[:, 1].tolist())
        self.patterns: Any = ()
        self.looks: dict[str, Any] = {}
        self.control_looks: dict[str, Any] = {}
        self.circuits: Circuits | None = None
        if self.effects.added is None:
            self._look()
            self._read()
        else:
            self.logits = as_logits(self.model, self.effects.added)
        self._place()
        self._compare()

    def _look(self) -> None:
        """Attention of all heads, on the task, on its controls, and on random tokens."""
        self.patterns, self.looks = self._looked(self.rows, self.parts, self.seen)
        each = max(1, _BESIDE // max(1, len(self.controls)))
        beside = {control: range(min(each, control.n_examples)) for control in self.controls}
        if beside:
            rows = [control.encoded[place].prompt for control, places in beside.items() for place in places]
            by_control = zip(*(self._seen(control, places) for control, places in beside.items()), strict=True)
            self.control_looks = self._looked(rows, *([*chain(*each)] for each in by_control))[1]
        table = habits(self.model, seed=self.seed, progress=self.experiment.settings.progress)
        self.looks |= {f"habit: {name}": table[name].to_numpy()[None] for name in HABITS}

    def _looked(
        self, rows: Sequence[Any], parts: Sequence[Any], seen: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The attention of the last token of each prompt, and what all heads look at there and at every token."""
        patterns, every = last_patterns(
            self.model, rows, self.room, lambda row: weights_everywhere(self.tokenizer, rows[row], parts[row])
        )
        names = (*EVERYWHERE, "at every token: entropy")
        return patterns, shares(patterns, seen) | dict(zip(names, np.stack(every, axis=1), strict=True))

    def _seen(
        self, experiment: Experiment, places: Sequence[int], likeliest: Sequence[int] = ()
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """By example the parts of its prompt, and what may be looked at: beside an open answer the ``likeliest``."""
        shown, parts, seen = as_shown(self.model, experiment.task).examples, [], []
        form = Form.of([example.asked for example in shown if example.asked])
        for number, place in enumerate(places):
            tokens, example = experiment.encoded[place], shown[place]
            first = [continuation[0] for continuation in tokens.continuations]
            right = [first.pop(example.answer)] if first else []
            parts.append(parts_of(self.tokenizer, example, tokens.prompt, experiment.settings.prepend_bos, form))
            wrong = first or [*likeliest[number : number + 1]]
            seen.append(tokens_looked_at(self.tokenizer, tokens.prompt, right, wrong, parts[-1]))
        return parts, seen

    def _read(self) -> None:
        """What heads write on the task, and make of its tokens by themselves."""
        self.z, self.logits = logits_written(self.model, self.rows, self.heads, self.room)
        counted = Counter(token for row in self.rows for token in row)
        counted.update(dict.fromkeys(self.answers.ravel().tolist(), len(self.rows)))
        tokens = [token for token, _ in counted.most_common(_READ)]
        texts = token_texts(self.tokenizer, tokens)
        special = set() if self.tokenizer is None else {*self.tokenizer.all_special_ids}
        words = [
            token
            for token, text in zip(tokens, texts, strict=True)
            if token not in special and any(letter.isalnum() for letter in text)
        ][:_WORDS]
        if len(words) > 1:
            read = [*words, *(token for token in tokens if token not in {*words})]
            self.words = token_texts(self.tokenizer, words)
            self.circuits = token_circuits(self.model, read, len(words), self.heads)

    def _place(self) -> None:
        """What the answer loses with a head off at some tokens alone."""
        n = min(_PLACED, len(self.rows))
        regions: dict[str, list[Any]] = {
            "at the last token": [np.arange(len(row)) == len(row) - 1 for row in self.rows[:n]],
            **{
                f"at the {name}": [part.get(name) for part in self.parts[:n]]
                for name in ("question", "worked examples")
            },
        }
        self.placed = {
            name: np.stack([self._lost(head, where) for head in self.heads], axis=1)
            for name, where in regions.items()
            if all(each is not None for each in where)
        }
        self.placed["elsewhere"] = self.effects.total[:n] - self.placed["at the last token"]

    def _lost(self, head: Unit, where: Sequence[Any], rows: Sequence[int] | None = None) -> Float[np.ndarray, " row"]:
        at = [*(range(len(where)) if rows is None else rows)]
        return self.margins.intact[at] - self.margins.without(head, where, at)

    def harm_of(self, sets: Sequence[Mask]) -> float:
        """What such sets take from the right answers in 39 of 40 draws: one answer at least, by so few examples."""
        examples = np.tile(np.arange(min(MIN_CORRECT, self.experiment.n_examples)), (len(sets), 1))
        taken = self.experiment.baseline()[examples] - measured(self.experiment, np.stack(sets), examples)
        return max(reached_by_random(taken.mean(axis=1), _FALSE), 1 / examples.shape[1])

    def strips(self) -> tuple[tuple[str, ...], list[tuple[tuple[float, ...], tuple[float, ...]]]]:
        """The tokens of a typical prompt, and by head what is lost with it off at each, and read there.

        Of the half of prompts of middle length it is the one of which the total effects are nearest to their means.
        """
        lengths, total = np.array([len(row) for row in self.rows]), self.effects.total
        shortest, longest = np.quantile(lengths, (0.25, 0.75))
        usual = np.flatnonzero((lengths >= shortest) & (lengths <= longest))
        typical = int(usual[np.abs(total[usual] - total.mean(axis=0)).sum(axis=1).argmin()])
        ids = self.rows[typical]
        ends = np.unique(np.linspace(0, len(ids), min(len(ids), _STRIP) + 1).astype(int))
        spans = list(pairwise(ends))
        place = np.arange(len(ids))
        where = [(place >= begin) & (place < end) for begin, end in spans]
        texts = token_texts(self.tokenizer, ids)
        lost = [tuple(self._lost(head, where, [typical] * len(where)).tolist()) for head in self.heads]
        sources = self.effects.sources
        read = np.add.reduceat(sources[typical], ends[:-1], axis=1) if sources else np.zeros((len(lost), 0))
        strips = list(zip(lost, map(tuple, read.tolist()), strict=True))
        return tuple("".join(texts[begin:end]) for begin, end in spans), strips

    def card(self, place: int, lost: tuple[float, ...], read: tuple[float, ...]) -> HeadCard:
        """The card of a head."""
        order = np.argsort(self.logits[place], kind="stable")
        figures = self._figures(place)
        known = {figure.name: figure for figure in figures}
        moves, matches = (
            _top_pairs(getattr(self.circuits, table)[place], self.words) if name in known and known[name].clear else ()
            for name, table in _CIRCUITS.items()
        )
        # What raises one answer here and another there has other tokens in its mean.
        ends = order[::-1][:_NAMED], order[:_NAMED]
        answering = np.isin(self.answers, ends).any(axis=1).mean() >= _ANSWERING
        named = answering and known.get("writes", known["direct"]).clear
        promotes, demotes = (tuple(token_texts(self.tokenizer, ids.tolist())) if named else () for ids in ends)
        others = f"{self.grid.size - len(self.heads)} other {self.grid.word}s"
        n_placed = _PLACED if len(self.rows) > _PLACED else None
        words = head_in_words(
            figures, promotes, demotes, self.random_units, others=others, n_placed=n_placed, word=self.grid.word
        )
        return HeadCard(self.heads[place], figures, promotes, demotes, moves, matches, lost, read, words)

    def _compare(self) -> None:
        """What all heads have of the same figures, by prompt, and what must be exceeded."""
        chosen = [self.grid.index(head) for head in self.heads]
        found = dict(self.looks)
        if self.effects.added is None:
            found = {"writes": self.effects.writes.heads.reshape(len(self.rows), -1), **found}
        if self.circuits is not None:
            found["copying"] = self.circuits.copying.reshape(1, -1)
        known = {name: numbers[~np.isnan(numbers).any(axis=1)] for name, numbers in found.items()}
        self.everyone = {name: values for name, values in known.items() if len(values) >= _FEW or len(found[name]) == 1}
        self.others = {name: np.abs(np.delete(each.mean(axis=0), chosen)) for name, each in self.everyone.items()}
        told = {name: each for name, each in self.others.items() if not name.endswith("entropy")}
        self.bounds = bounds_of_others(told, _LEAST, 0.05 / len(chosen)) if told else {}

    def _effects(self, place: int) -> tuple[Figure, ...]:
        """Its total effect, and the parts of that."""
        k = len(self.heads)
        beyond, outside = reached_by_random(self.random, _FALSE / k), 0.05 / k
        parts = {"total": self.effects.total, "direct": self.effects.direct}
        parts |= {"through others": self.effects.through_others, **self.placed}
        found: list[Figure] = []
        for name, values in parts.items():
            # One interval of the total, and one of each of its parts.
            share, others = (outside / (len(parts) - 1), self.random[:0]) if found else (outside, self.random)
            part = figure_of(name, values[:, place], share, others, beyond)
            clear = abs(part.value) > beyond and part.low * part.high > 0 and (not found or found[0].clear)
            found.append(replace(part, clear=clear))
        return tuple(found)

    def _figures(self, place: int) -> tuple[Figure, ...]:
        """All figures of a head."""
        number, found = self.grid.index(self.heads[place]), [*self._effects(place)]
        agreement = self._agreement(place)
        for name, values in self.everyone.items():
            if name == "copying" and agreement.get("agreement: OV circuit", 0.0) < _AGREES:
                continue
            most = self.bounds.get(name, np.nan)
            outside = 0.05 / len(self.heads) / len(self.everyone)
            made = figure_of(name, values[:, number], outside, self.others[name], most)
            known = {figure.name for figure in found if figure.clear}
            # Habits and copying have no interval.
            clear = "total" in known and abs(made.value) > most and not made.low <= 0 <= made.high
            if name == "copying":
                clear = clear and not known.isdisjoint(("writes", "direct"))
            beside = self.control_looks.get(name)
            controls = np.nan if beside is None else _mean(beside[:, number])
            written = self._written_from(name, place) if "writes" in known and name in LOOKS else np.nan
            found.append(replace(made, clear=clear, controls=controls, written=written))
        writes = any(figure.clear for figure in found if figure.name in ("writes", "direct"))
        for name, value in agreement.items():
            found.append(Figure(name, value, np.nan, np.nan, _AGREES, clear=writes and value >= _AGREES))
        if self.together is not None:
            mean, low, high = map(float, self.together.shapley().loc[place, ["shapley", "low", "high"]])
            clear = low * high > 0 and self.together.is_beyond(self.chance)
            found.append(Figure("Shapley value", mean, low, high, clear=clear))
        return tuple(found)

    def _written_from(self, name: str, place: int) -> float:
        """Of what a head writes the share that it reads from what it looks at, on prompts that have this."""
        parts = [
            (made[place][seen[name]].sum(), made[place].sum())
            for made, seen in zip(self.effects.sources, self.seen, strict=False)
            if seen[name].any()
        ]
        there, all_of_it = np.sum(parts, axis=0) if parts else (np.nan, np.nan)
        return float(there / all_of_it)

    def _agreement(self, place: int) -> dict[str, float]:
        """How well what a head makes of tokens by themselves, and matches, agrees with what it does on the task."""
        if self.circuits is None:
            return {}
        number = self.grid.index(self.heads[place])
        patterns = [pattern[number] for pattern in self.patterns]
        found = self.circuits.agreement(place, self.rows, patterns, self.z[:, place])
        return {name: value for name, value in zip(_CIRCUITS, found, strict=True) if not np.isnan(value)}


def _mean(values: Float[np.ndarray, " prompt"]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _top_pairs(table: Float[np.ndarray, "word word"], words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Of each row its largest, less the mean, and of these the largest."""
    table = table[: len(words), : len(words)]
    table = table - table.mean(axis=1, keepdims=True)
    best = table.argmax(axis=1)
    order = np.argsort(-table.max(axis=1), kind="stable")[:_NAMED]
    return tuple((words[i], words[best[i]]) for i in order)


def most_of_cards(k: int, n: int, *, of_heads: bool = True) -> int:
    """Example-evaluations of ``explain`` at most, of k heads, or other units, on n examples."""
    # What heads look at, on controls too, and write; of other units one off at a time, seen once more.
    read = 2 * n + _BESIDE if of_heads else k * n
    random = (_RANDOM + k) * MIN_CORRECT
    placed = k * (3 * min(n, _PLACED) + _STRIP)
    together = 2**k * n + _RANDOM * MIN_CORRECT if k <= MOST_HEADS else 0
    return (k + 4) * n + read + random + placed + together
