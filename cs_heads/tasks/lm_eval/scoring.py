"""lm-eval's filters and metrics as scorers: plain data that makes lm-eval's task anew where it is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.tasks.example import Example
from cs_heads.tasks.lm_eval import harness


@dataclass(frozen=True)
class Rule:
    """How one lm-eval task scores: its name, its group's overrides (JSON), metric and filter, and lm-eval's version."""

    task: str
    overrides: str
    metric: str
    filter: str
    version: str

    def score(self, task: Any, document: Any, results: list[Any]) -> float:
        """The metric of one example by lm-eval's task, from a filtered text, or log-probabilities and matches."""
        found = task.process_results(document, results)
        value = found.get(self.metric)
        if not isinstance(value, int | float | np.number | np.bool_) or not 0 <= float(value) <= 1:
            raise ValueError(
                f"metric {self.metric!r} of lm-eval task {self.task!r} gave {value!r}, which is no score of one "
                f"example in 0..1; choose another with metric= (it gives {', '.join(map(str, found))})"
            )
        return float(value)


@dataclass(frozen=True)
class ByRules:
    """Scores as lm-eval does, by the task that an example's reference names."""

    rules: tuple[Rule, ...]

    @property
    def name(self) -> str:
        """What results call it."""
        return f"lm-eval {self.rules[0].version}: {self.rules[0].metric}"


@dataclass(frozen=True)
class HarnessScorer(ByRules):
    """Scores texts."""

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """The metric of each text, after the task's filter."""
        from lm_eval.api.instance import Instance

        scores = []
        for example, text in zip(examples, texts, strict=True):
            rule, task, document = _judge_of(self.rules, example)
            instance = Instance("generate_until", document, (example.prompt, {}), 0, resps=[text])
            with harness.quiet_harness():
                for ensemble in task._filters:
                    if ensemble.name == rule.filter:
                        ensemble.apply([instance])
                scores.append(rule.score(task, document, [instance.filtered_resps[rule.filter]]))
        return scores


@dataclass(frozen=True)
class HarnessLogprobScorer(ByRules):
    """Scores choices and completions, from log-probabilities and greedy matches."""

    def score_logprobs(
        self, example: Example, logprobs: Float[np.ndarray, " continuation"], greedy: Sequence[bool]
    ) -> float:
        """The metric of one example; of choices that tie lm-eval takes the first."""
        rule, task, document = _judge_of(self.rules, example)
        results = [(float(logprob), bool(match)) for logprob, match in zip(logprobs, greedy, strict=True)]
        with harness.quiet_harness():
            return rule.score(task, document, results)


_TASKS: dict[Rule, Any] = {}
# The task and the document of an example, which is scored once for each mask.
_read = cache(json.loads)


def _judge_of(rules: Sequence[Rule], example: Example) -> tuple[Rule, Any, Any]:
    """The rule of an example, lm-eval's task made for scoring alone, and the example's document."""
    read = _read(example.reference)
    rule, document = next(rule for rule in rules if rule.task == read["task"]), read["doc"]
    if rule not in _TASKS:
        # The documents of examples are processed already, and no worked examples are shown.
        unread = ("process_docs", "fewshot_config", "fewshot_split", "training_split", "validation_split")
        overrides = {**json.loads(rule.overrides), **dict.fromkeys(unread), "test_split": "test", "num_fewshot": 0}
        _TASKS[rule] = harness.build(rule.task, overrides, {"test": [document]})
    return rule, _TASKS[rule], document
