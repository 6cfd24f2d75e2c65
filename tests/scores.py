"""Responses of one example, from numbers written down."""

from dataclasses import dataclass

import numpy as np

from cs_heads.tasks.responses import RESPONSES, Observations


def response_of(task, example, logprobs, hits=None, response="score"):
    """The score (or another response) of one example from its continuations' log-probabilities and shares of hits."""
    logprobs = np.asarray(logprobs, dtype=float)
    greedy = np.zeros(len(logprobs)) if hits is None else np.asarray(hits, dtype=float)
    said = Observations(np.array([[example]]), logprobs[None, None], greedy[None, None])
    return float(RESPONSES[response](task, said)[0, 0])


@dataclass(frozen=True)
class Alike:
    """Scores every example alike."""

    score: float

    def score_logprobs(self, example, logprobs, greedy):
        return self.score
