"""How a failure looks: empty or repetitive texts, the same answer to everything, choices that are all unlikely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import entropy
from typing_extensions import Unpack

from cs_heads.analysis import texts as judge
from cs_heads.analysis.drops import Found, heads_of
from cs_heads.analysis.intervals import wilson_interval
from cs_heads.analysis.unseen import unseen_side
from cs_heads.designs import explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.experiment import Experiment
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Example, Task
from cs_heads.tasks.scorer import compared
from cs_heads.tasks.sides import check_is_task
from cs_heads.units import Head

if TYPE_CHECKING:
    import pandas as pd

INTACT = "intact"
UNLIKELY = 0.1
"""What is left at most of the probability of all choices, as a share of the intact one, for them to be unlikely."""


@dataclass(frozen=True)
class Share:
    """How often something is seen, with its 95 % Wilson interval."""

    count: int
    n: int

    @property
    def share(self) -> float:
        """Share of the examples."""
        return self.count / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound."""
        return wilson_interval(self.count, self.n)


@dataclass(frozen=True, eq=False)
class FailureModes(Drawable, picture="failures"):
    """How often each kind of failure is seen with each set of heads off; ``intact`` is the model with none off.

    ``modes[heads set][kind]`` count examples, and an example may show several kinds; ``measures`` are means over
    examples; ``texts`` are what was written, where texts were asked for.
    """

    heads: dict[str, tuple[Head, ...]]
    modes: dict[str, dict[str, Share]]
    measures: dict[str, dict[str, float]]
    spent: int
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def beyond_intact(self, found: str, mode: str) -> bool:
        """Whether a kind of failure is seen clearly more often than with no head off: the intervals do not meet."""
        return self.modes[found][mode].interval[0] > self.modes[INTACT][mode].interval[1]

    def named(self, found: str) -> tuple[str, ...]:
        """The kinds of failure seen clearly more often than with no head off, the most frequent first."""
        seen = [mode for mode in self.modes[found] if self.beyond_intact(found, mode)]
        return tuple(sorted(seen, key=lambda mode: -self.modes[found][mode].share))

    def to_frame(self) -> pd.DataFrame:
        """One row a (heads set, kind of failure): share, its interval, and whether it is beyond the intact model's."""
        import pandas as pd

        return pd.DataFrame(
            {
                "found": found,
                "heads": " ".join(map(str, self.heads.get(found, ()))),
                "mode": mode,
                "share": share.share,
                "low": share.interval[0],
                "high": share.interval[1],
                "beyond_intact": self.beyond_intact(found, mode),
            }
            for found, row in self.modes.items()
            for mode, share in row.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        return {
            "heads": {found: [str(head) for head in heads] for found, heads in self.heads.items()},
            "modes": {
                found: {
                    mode: {"count": s.count, "n": s.n, "low": s.interval[0], "high": s.interval[1]}
                    for mode, s in row.items()
                }
                for found, row in self.modes.items()
            },
            "measures": {
                found: {name: None if np.isnan(value) else value for name, value in row.items()}
                for found, row in self.measures.items()
            },
            "texts": {found: list(texts) for found, texts in self.texts.items()},
            "spent": self.spent,
            "provenance": self.provenance,
        }


def text_failures(
    model: Any,
    task: Task,
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    n: int = 50,
    max_new_tokens: int | None = None,
    stop: Sequence[str] | None = None,
    **settings: Unpack[SettingsArguments],
) -> FailureModes:
    """Let the model write after each unseen prompt, intact and with each set of heads off, and judge the texts.

    Kinds: ``empty`` (no word), ``repetition`` (a loop at the end, or hardly any new pair of words), ``same text`` (the
    one written most often, where it is written twice or more) and ``changed`` (not what the intact model writes).
    Measures: distinct-1, distinct-2 and words a text. ``heads`` are as in ``specificity``; a set is a universal head,
    say, or the top five.
    Costs ``n × (1 + sets)`` example-evaluations of up to ``max_new_tokens`` tokens each,
    by default as ``Experiment.generate`` has it, which also says what is refused; ``store`` is that of ``Experiment``.
    """
    experiment, named = _start(model, task, heads, k=k, n=n, settings=settings)
    masks = explicit(experiment.grid, [[], *named.values()])
    written = experiment.generate(masks, max_new_tokens=max_new_tokens, stop=stop)
    texts = {found: tuple(map(str, row)) for found, row in zip((INTACT, *named), written, strict=True)}
    modes, measures = {}, {}
    for found, row in texts.items():
        same = judge.most_common(row)
        modes[found] = {
            "empty": Share(sum(map(judge.is_empty, row)), len(row)),
            "repetition": Share(sum(map(judge.is_repetition, row)), len(row)),
            "same text": Share(same if same > 1 else 0, len(row)),
            "changed": Share(sum(a != b for a, b in zip(row, texts[INTACT], strict=True)), len(row)),
        }
        measures[found] = {
            "distinct-1": judge.distinct(row, 1),
            "distinct-2": judge.distinct(row, 2),
            "words": float(np.mean([len(judge.words_of(text)) for text in row])),
        }
    return FailureModes(
        heads=named,
        modes=modes,
        measures=measures,
        spent=masks.shape[0] * experiment.n_examples + experiment.preparation,
        texts=texts,
        provenance={
            **experiment.provenance(),
            "max_new_tokens": max_new_tokens,
            "stop": None if stop is None else list(stop),
        },
    )


def choice_failures(
    model: Any,
    task: Task,
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> FailureModes:
    """Measure every choice of each unseen example, intact and with each set of heads off.

    Kinds: ``wrong`` (a choice that is not the right one is picked), ``choices unlikely`` (the probability of saying any
    of the choices is a tenth or less of what it is in the intact model) and ``same place`` (the place among the choices
    that is picked most often, as always the first letter; picked is the likeliest, for each character where the task is
    ``length_normalized``, also where a scorer judges by another rule). Measures: score, ``mass`` (the mean probability
    of saying any choice; of choices with prompts of their own, the sum of each after its own), ``log mass`` (its mean
    logarithm, nats) and ``entropy`` of the places picked (bits). Every choice is one example-evaluation. A task of
    another kind raises ``ValueError``; the rest is as in ``text_failures``.
    """
    check_is_task(task)
    if task.kind != "choice":
        raise ValueError(f"task must be a choice task, {task.name!r} is a {task.kind} task")
    whole, named = _start(model, task, heads, k=k, n=n, settings=settings)
    experiment, logprobs, greedy = _each_choice(whole, explicit(whole.grid, [[], *named.values()]))
    unseen = whole.task
    masses = np.array([[np.logaddexp.reduce(choices) for choices in row] for row in logprobs])
    modes, measures = {}, {}
    for found, row, said, mass in zip((INTACT, *named), logprobs, greedy, masses, strict=True):
        scores = np.array([unseen.score(i, row[i], said[i].astype(bool).tolist()) for i in range(len(row))])
        picked = [_pick(unseen, i, choices) for i, choices in enumerate(row)]
        modes[found] = {
            "wrong": Share(int((scores == 0).sum()), len(row)),
            "choices unlikely": Share(int((mass <= masses[0] + np.log(UNLIKELY)).sum()), len(row)),
            "same place": Share(judge.most_common(picked), len(row)),
        }
        measures[found] = {
            "score": float(scores.mean()),
            "mass": float(np.exp(mass).mean()),
            "log mass": float(mass.mean()),
            "entropy": float(entropy(np.unique(picked, return_counts=True)[1], base=2)),
        }
    return FailureModes(
        heads=named,
        modes=modes,
        measures=measures,
        spent=len(logprobs) * experiment.n_examples + experiment.preparation,
        provenance={**whole.provenance(), "choices": experiment.n_examples},
    )


def _start(
    model: Any, task: Task, heads: Found | Mapping[str, Found], *, k: int | None, n: int, settings: SettingsArguments
) -> tuple[Experiment, dict[str, tuple[Head, ...]]]:
    """The experiment on the unseen examples, and the heads of each set."""
    experiment = Experiment(model, unseen_side(task, n), **settings)
    found = heads if isinstance(heads, Mapping) else {task.name: heads}
    if INTACT in found:
        raise ValueError(f"heads must not be named {INTACT!r}: that is the model with no head off")
    return experiment, {name: heads_of(experiment.grid, each, k) for name, each in found.items()}


Choices = list[list[Float[np.ndarray, "_"]]]
"""A number for each choice, by mask and example."""


def _each_choice(whole: Experiment, masks: Bool[np.ndarray, "row layer head"]) -> tuple[Experiment, Choices, Choices]:
    """Summed log-probability of every choice, and whether it would be said: each choice is an example of its own."""
    examples = whole.task.examples
    each = tuple(Example(e.prompt_of(i), (choice,)) for e in examples for i, choice in enumerate(e.continuations))
    single = replace(whole.task, kind="completion", examples=each, length_normalized=False, scorer=None)
    experiment = whole.on(single)
    lengths = np.array([len(target) for target in experiment.answers.targets])
    ends = np.cumsum([len(e.continuations) for e in examples])[:-1]
    summed = experiment.logprob(masks) * lengths
    return experiment, [np.split(row, ends) for row in summed], [np.split(row, ends) for row in experiment(masks)]


def _pick(task: Task, example: int, logprobs: Float[np.ndarray, " choice"]) -> int:
    """The place of the choice that is picked; of choices that tie, the first."""
    return int(np.argmax(compared(task.examples[example], logprobs, task.length_normalized)))
