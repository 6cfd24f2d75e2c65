"""What found heads do, measured: what they look at, write and move, where in the prompt, and whether together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from typing_extensions import Unpack

from cs_heads.analysis.attention import HABITS, habits
from cs_heads.analysis.columns import controlled
from cs_heads.analysis.direct_effects import SETTINGS, DirectEffects, direct_effects
from cs_heads.analysis.found_heads import Found, check_intact, heads_of, model_of
from cs_heads.analysis.head_cards import Figure, HeadCard, HeadCards
from cs_heads.analysis.head_looks import EVERYWHERE, LOOKS, looked_at_everywhere, parts_of, shares, tokens_looked_at
from cs_heads.analysis.head_words import harm_beyond, head_in_words, together_in_words
from cs_heads.analysis.interactions import MOST_HEADS, Interactions, interactions
from cs_heads.analysis.intervals import difference_interval
from cs_heads.analysis.random_heads import Mask, drawn_notes, like_note, random_sets
from cs_heads.arguments import check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.engine.encoding import as_shown
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import measured
from cs_heads.lens.attention import last_patterns, token_texts
from cs_heads.lens.batches import TokenBudget, default_tokens
from cs_heads.lens.circuits import Circuits, Margins, as_logits, logits_written, token_circuits
from cs_heads.lens.model import tokenizer_of
from cs_heads.progress import one_bar
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.controls import form_of
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.units import Unit

N_EXAMPLES = 60
"""Unseen examples, where no other number is asked for."""

# Random heads of the same layers; examples with heads off at some tokens alone; prompts of all controls together.
_RANDOM, _PLACED, _BESIDE = 20, 30, 40
# Tokens read by themselves, those that stand for what may be written, how many are named, and places of a strip.
_READ, _WORDS, _NAMED, _STRIP = 1024, 64, 5, 32
# Random heads, or sets of them, below which nothing says what is chance.
_OTHERS = 4
# Prompts that have what is looked at, below which nothing is said of it.
_FEW = 10
# How well what a head makes of tokens by themselves must agree with what it does on the task (correlation).
_AGREES = 0.5
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
    check_intact(heads)
    own = local_model(model, Settings.of(settings, SETTINGS))
    how: SettingsArguments = {**settings, "dtype": None}
    with controlled(own, task, controls, heads, n=n, seed=seed, settings=how) as judged:
        experiment, unseen = judged.own, judged.own.task
        grid = experiment.grid
        chosen = heads_of(grid, heads, model=model_of(experiment))
        found, none = grid.mask(chosen), grid.mask([])
        sets = random_sets(grid, found, none, -(-_RANDOM // len(chosen)), np.random.default_rng(seed))
        random = grid.units(np.any(sets, axis=0) & ~found)
        # Where others run out there are smaller sets, or one of none.
        sets = [each for each in sets if each.sum() == len(chosen)]
        few = drawn_notes(grid, found, none, sets) if sets else (f"there are no {len(chosen)} other {grid.word}s",)
        effects = direct_effects(own, unseen, chosen, n=n, **how)
        # As many examples as have answers that can be told apart.
        enough = effects.places[MIN_CORRECT - 1] + 1
        beside = direct_effects(own, unseen, random, n=enough, **how) if random else None
        together = None
        if len(chosen) <= MOST_HEADS:
            together = interactions(own, unseen, chosen, n=n, seed=seed, **how)
        alike = like_note(found, sets) if sets else ""
        like = f"random {grid.word}s{alike}" if len(random) >= _OTHERS else ""
        of = _Measured(experiment, chosen, effects, beside, together, judged.controls, like, seed)
        tokens, strips = of.strips()
        notes = (*judged.notes, *few, *effects.notes)
        if together is None:
            notes = (*notes, f"what heads do together is measured of {MOST_HEADS} at most, here are {len(chosen)}")
        chance = of.harm_of(sets) if together is not None and len(sets) >= _OTHERS else np.nan
        pairs: tuple[tuple[str, ...], ...] = ()
        least: tuple[Unit, ...] = ()
        if together is not None and harm_beyond(together, chance):
            named = together.pairs().query("kind != ''")[["first", "second", "kind"]]
            pairs, least = tuple(named.itertuples(index=False, name=None)), together.least
        return HeadCards(
            cards=tuple(of.card(place, strip) for place, strip in enumerate(strips)),
            tokens=tokens,
            pairs=pairs,
            least=least,
            words=together_in_words(together, chance),
            spent=of.spent + sum(each.spent for each in (effects, beside, together) if each is not None),
            provenance=experiment.provenance(),
            notes=tuple(dict.fromkeys(notes)),
        )


@dataclass
class _Measured:
    """What cards are made of."""

    experiment: Experiment
    heads: tuple[Unit, ...]
    effects: DirectEffects
    random: DirectEffects | None
    together: Interactions | None
    controls: Sequence[Experiment]
    random_units: str
    seed: int
    spent: int = 0

    def __post_init__(self) -> None:
        self.model, self.grid = self.experiment.model, self.experiment.grid
        self.tokenizer = tokenizer_of(self.model)
        batch_tokens = self.experiment.settings.batch_tokens
        self.room = TokenBudget(batch_tokens or default_tokens(self.model, "patching"))
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

    def _look(self) -> None:
        """Attention of all heads, on the task, on its controls, and on random tokens."""
        self.patterns, self.looks = self._looked(self.rows, self.seen)
        each = max(1, _BESIDE // max(1, len(self.controls)))
        beside = {control: range(min(each, control.n_examples)) for control in self.controls}
        if beside:
            rows = [control.encoded[place].prompt for control, places in beside.items() for place in places]
            seen = [looked for control, places in beside.items() for looked in self._seen(control, places)[1]]
            self.control_looks = self._looked(rows, seen)[1]
        table = habits(self.model, seed=self.seed, progress=self.experiment.settings.progress)
        self.looks |= {f"habit: {name}": table[name].to_numpy()[None] for name in HABITS}

    def _looked(self, rows: Sequence[Any], seen: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The attention of the last token of each prompt, and what all heads look at there and at every token."""
        patterns, every = last_patterns(
            self.model, rows, self.room, lambda row: looked_at_everywhere(self.tokenizer, rows[row])
        )
        return patterns, shares(patterns, seen) | dict(zip(EVERYWHERE, np.stack(every, axis=1), strict=True))

    def _seen(
        self, experiment: Experiment, places: Sequence[int], likeliest: Sequence[int] = ()
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """By example the parts of its prompt, and what may be looked at: beside an open answer the ``likeliest``."""
        shown, parts, seen = as_shown(self.model, experiment.task).examples, [], []
        form = form_of([example.asked for example in shown if example.asked])
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
            self.read = [*words, *(token for token in tokens if token not in {*words})]
            self.words = token_texts(self.tokenizer, words)
            self.circuits = token_circuits(self.model, self.read, len(words), self.heads)

    def _place(self) -> None:
        """What the answer loses with a head off at some tokens alone."""
        n = min(_PLACED, len(self.rows))
        self.margins = Margins(self.model, self.rows, self.answers, self.heads, self.room)
        self.spent += len(self.rows)
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
        self.spent += len(at)
        return self.margins.intact[at] - self.margins.without(head, where, at)

    def harm_of(self, sets: Sequence[Mask]) -> float:
        """What no more than 5 of 100 such sets take from the right answers: one answer at least, by so few examples."""
        examples = np.tile(np.arange(min(MIN_CORRECT, self.experiment.n_examples)), (len(sets), 1))
        self.spent += examples.size
        taken = self.experiment.baseline()[examples] - measured(self.experiment, np.stack(sets), examples)
        return max(_chance_of_random(taken.mean(axis=1), 1), 1 / examples.shape[1])

    def strips(self) -> tuple[tuple[str, ...], list[tuple[float, ...]]]:
        """The tokens of a prompt of typical length, and by head what is lost with it off at each."""
        typical = sorted(range(len(self.rows)), key=lambda i: len(self.rows[i]))[len(self.rows) // 2]
        ids = self.rows[typical]
        ends = np.unique(np.linspace(0, len(ids), min(len(ids), _STRIP) + 1).astype(int))
        spans = list(pairwise(ends))
        place = np.arange(len(ids))
        where = [(place >= begin) & (place < end) for begin, end in spans]
        texts = token_texts(self.tokenizer, ids)
        lost = [tuple(self._lost(head, where, [typical] * len(where)).tolist()) for head in self.heads]
        return tuple("".join(texts[begin:end]) for begin, end in spans), lost

    def card(self, place: int, strip: tuple[float, ...]) -> HeadCard:
        """The card of a head."""
        order = np.argsort(self.logits[place], kind="stable")
        promotes, demotes = (
            tuple(token_texts(self.tokenizer, ids.tolist())) for ids in (order[::-1][:_NAMED], order[:_NAMED])
        )
        moves, matches, copies = self._pairs(place)
        figures = self._figures(place, copies)
        words = head_in_words(figures, promotes, demotes, self.random_units, self.grid.word)
        return HeadCard(self.heads[place], figures, promotes, demotes, moves, matches, strip, words)

    def _figures(self, place: int, copies: bool) -> tuple[Figure, ...]:
        """All figures of a head; ``copies`` where what it makes of tokens by themselves means something."""
        chosen = [self.grid.index(head) for head in self.heads]
        random = np.zeros(0) if self.random is None else self.random.total.mean(axis=0)
        beyond, outside = _chance_of_random(random, len(chosen)), 0.05 / len(chosen)
        parts = {"total": self.effects.total, "direct": self.effects.direct}
        parts |= {"through others": self.effects.through_others, **self.placed}
        found: list[Figure] = []
        for name, values in parts.items():
            # One interval of the total, and one of each of its parts.
            share, others = (outside / (len(parts) - 1), random[:0]) if found else (outside, random)
            part = _figure(name, values[:, place], share, others, beyond)
            clear = abs(part.value) > beyond and part.low * part.high > 0 and (not found or found[0].clear)
            found.append(replace(part, clear=clear))
        everyone = self.looks
        if self.effects.added is None:
            everyone = {"writes": self.effects.writes.heads.reshape(len(self.rows), -1), **everyone}
        if copies and self.circuits is not None:
            everyone["copying"] = self.circuits.copying.reshape(1, -1)
        writes = False
        for name, numbers in everyone.items():
            values = numbers[~np.isnan(numbers[:, chosen[place]])]
            if len(values) < _FEW and len(numbers) > 1:
                continue
            others = np.abs(np.delete(values.mean(axis=0), chosen))
            most = max(float(np.quantile(others, 0.95)), _LEAST.get(name, 0.0)) if len(others) else np.nan
            made = _figure(name, values[:, chosen[place]], outside / len(everyone), others, most)
            # Habits and copying are one number.
            low, high = (made.value, made.value) if np.isnan(made.low) else (made.low, made.high)
            clear = found[0].clear and name != "entropy" and (low > most or high < -most)
            beside = self.control_looks.get(name)
            controls = np.nan if beside is None else _mean(beside[:, chosen[place]])
            writes = clear if name == "writes" else writes
            written = self._written_from(name, place) if writes and name in LOOKS else np.nan
            found.append(replace(made, clear=clear, controls=controls, written=written))
        if self.together is not None:
            row = self.together.shapley().iloc[place]
            found.append(Figure("Shapley value", float(row["shapley"]), float(row["low"]), float(row["high"])))
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

    def _pairs(self, place: int) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...], bool]:
        """Pairs of words moved and matched, and whether the first mean something, by what the head does on the task."""
        if self.circuits is None:
            return (), (), False
        at, number = {token: i for i, token in enumerate(self.read)}, self.grid.index(self.heads[place])
        rows = [i for i, row in enumerate(self.rows) if {*row} <= {*at}]
        if len(rows) < 2:
            return (), (), False
        made = np.stack(
            [self.patterns[i][number] @ self.circuits.z[place, [at[token] for token in self.rows[i]]] for i in rows]
        )
        moved = _agree(made - made.mean(axis=0), self.z[rows, place] - self.z[rows, place].mean(axis=0))
        scores, seen = [], []
        for i in rows:
            # The first key is what many heads rest on.
            keys = [at[token] for token in self.rows[i][1:]]
            if keys:
                scores.append(self.circuits.matches[place, at[self.rows[i][-1]], keys])
                seen.append(np.log(self.patterns[i][number][1:] + 1e-9))
                scores[-1], seen[-1] = scores[-1] - scores[-1].mean(), seen[-1] - seen[-1].mean()
        matched = _agree(np.concatenate(scores), np.concatenate(seen)) if scores else 0.0
        n = len(self.words)
        moves = _top_pairs(self.circuits.moves[place], self.words) if moved >= _AGREES else ()
        matches = self.circuits.matches[place, :n, :n]
        matches = matches - matches.mean(axis=1, keepdims=True)
        return moves, _top_pairs(matches, self.words) if matched >= _AGREES else (), moved >= _AGREES


def _figure(
    name: str, values: Float[np.ndarray, " example"], outside: float, others: np.ndarray, chance: float
) -> Figure:
    mean, low, high = float(values.mean()), np.nan, np.nan
    if len(values) > 1:
        mean, low, high = difference_interval(values, outside)
    percentile = float((np.abs(others) < abs(mean)).mean()) if len(others) else np.nan
    return Figure(name, mean, low, high, chance, percentile)


def _chance_of_random(means: Float[np.ndarray, " head"], k: int) -> float:
    """What no more than 5 of 100 sets of k further random heads exceed, by Student's t about zero."""
    from scipy.stats import t

    if len(means) < _OTHERS:
        return np.nan
    return float(t.ppf(1 - 0.05 / (2 * k), len(means)) * np.sqrt((means**2).mean() * (1 + 1 / len(means))))


def _mean(values: Float[np.ndarray, " prompt"]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _agree(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of numbers whose means are off."""
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0


def _top_pairs(table: Float[np.ndarray, "word word"], words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Of each row its largest, and of these the largest."""
    best = table.argmax(axis=1)
    order = np.argsort(-table.max(axis=1), kind="stable")[:_NAMED]
    return tuple((words[i], words[best[i]]) for i in order)


def most_of_cards(k: int, n: int, *, of_heads: bool = True) -> int:
    """Example-evaluations of ``explain`` at most, of k heads, or other units, on n examples."""
    subsets = 2**k if k <= MOST_HEADS else 0
    placed = n + k * (3 * min(n, _PLACED) + _STRIP) + (n + _RANDOM * MIN_CORRECT if subsets else 0)
    written = 0 if of_heads else (k + 1) * n + (_RANDOM + k + 1) * MIN_CORRECT
    return (subsets + k + 3) * n + (_RANDOM + k + 3) * MIN_CORRECT + placed + written
