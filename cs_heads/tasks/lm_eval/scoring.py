"""lm-eval's filters and metrics as scorers: plain data that makes lm-eval's task anew where it is used."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.tasks.example import Example
from cs_heads.tasks.lm_eval import harness


@dataclass(frozen=True)
class Rule:
    """How one lm-eval task scores: its name, its group's overrides (JSON), metric, filter, version and first document.

    The document (JSON, as it is after the task's own processing) is what lm-eval needs to make the task again
    without its data.
    """

    task: str
    overrides: str
    metric: str
    filter: str
    version: str
    document: str


@dataclass(frozen=True)
class HarnessScorer:
    """Scores texts as lm-eval does, by the task that an example's reference names."""

    rules: tuple[Rule, ...]

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """The metric of each text, after the task's filter."""
        scores = [math.nan] * len(texts)
        by_task: dict[str, list[int]] = defaultdict(list)
        for i, example in enumerate(examples):
            by_task[_named(example.reference)].append(i)
        for name, places in by_task.items():
            judge = _judge_of(_rule_of(self.rules, name))
            judged = judge.texts([examples[i] for i in places], [texts[i] for i in places])
            for i, score in zip(places, judged, strict=True):
                scores[i] = score
        return scores


@dataclass(frozen=True)
class HarnessLogprobScorer:
    """Scores choices and completions as lm-eval does, from log-probabilities and greedy matches."""

    rules: tuple[Rule, ...]

    def score_logprobs(
        self, example: Example, logprobs: Float[np.ndarray, " continuation"], greedy: Sequence[bool]
    ) -> float:
        """The metric of one example; of choices that tie lm-eval takes the first."""
        return _judge_of(_rule_of(self.rules, _named(example.reference))).logprobs(example, logprobs, greedy)


class Judge:
    """lm-eval's own task, made for scoring alone."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        # The documents of examples are processed already, and no worked examples are shown.
        unread = ("process_docs", "fewshot_config", "fewshot_split", "training_split", "validation_split")
        overrides = {**json.loads(rule.overrides), **dict.fromkeys(unread), "test_split": "test", "num_fewshot": 0}
        self.task = harness.build(rule.task, overrides, {"test": [json.loads(rule.document)]})
        self.documents: dict[str, Any] = {}
        # lm-eval reads its templates anew for each result, and a document is asked for under many masks.
        for name in ("doc_to_text", "doc_to_target", "doc_to_choice"):
            setattr(self.task, name, _remembering(getattr(self.task, name)))

    def texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """The metric of each text after the filter."""
        from lm_eval.api.instance import Instance

        instances = [
            Instance("generate_until", self._document(example), (example.prompt, {}), 0, resps=[text])
            for example, text in zip(examples, texts, strict=True)
        ]
        with harness.quietly():
            self._filter(instances)
            return [self._score(instance.doc, [instance.filtered_resps[self.rule.filter]]) for instance in instances]

    def logprobs(self, example: Example, logprobs: Float[np.ndarray, " continuation"], greedy: Sequence[bool]) -> float:
        """The metric of one example from what was measured of each continuation."""
        results = [(float(logprob), bool(match)) for logprob, match in zip(logprobs, greedy, strict=True)]
        if example.reference in self.documents:
            return self._score(self._document(example), results)
        with harness.quietly():
            return self._score(self._document(example), results)

    def _filter(self, instances: list[Any]) -> None:
        for ensemble in self.task._filters:
            if ensemble.name == self.rule.filter:
                ensemble.apply(instances)

    def _score(self, document: Any, results: list[Any]) -> float:
        found = self.task.process_results(document, results)
        value = found.get(self.rule.metric)
        if not isinstance(value, int | float | np.number | np.bool_) or not 0 <= float(value) <= 1:
            raise ValueError(
                f"metric {self.rule.metric!r} of lm-eval task {self.rule.task!r} gave {value!r}, which is no score of "
                f"one example in 0..1; choose another with metric= (it gives {', '.join(map(str, found))})"
            )
        return float(value)

    def _document(self, example: Example) -> Any:
        if example.reference not in self.documents:
            self.documents[example.reference] = json.loads(example.reference)["doc"]
        return self.documents[example.reference]


def _rule_of(rules: tuple[Rule, ...], task: str) -> Rule:
    return next(rule for rule in rules if rule.task == task)


@cache
def _judge_of(rule: Rule) -> Judge:
    return Judge(rule)


@cache
def _named(reference: str) -> str:
    name: str = json.loads(reference)["task"]
    return name


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is asked once a document; documents are identified by ``id``, since their judge keeps them."""
    known: dict[int, Any] = {}

    def remembered(document: Any, *more: Any) -> Any:
        if any(argument is not None for argument in more):
            return function(document, *more)
        if id(document) not in known:
            known[id(document)] = function(document)
        return known[id(document)]

    return remembered
