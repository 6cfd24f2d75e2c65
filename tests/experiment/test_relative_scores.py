"""An experiment on a task that is scored beside what the intact model says."""

import numpy as np
import pytest

from cs_heads import Experiment, Task, designs, find_heads
from tests.known_heads import WORKING, own_answers

PROMPTS = [{"prompt": prompt} for prompt in ("the cat", "a dog sees", "the big king", "one two")]


class Kept:
    """The share of the intact model's words that a text begins with."""

    def against(self, examples, texts, intact):
        pairs = [(text.split(), whole.split()) for text, whole in zip(texts, intact, strict=True)]
        return [
            float(np.mean([a == b for a, b in zip(text, whole, strict=False)]) if text and whole else 0)
            for text, whole in pairs
        ]


def task(n_tokens=5):
    return Task.from_records(PROMPTS, scorer=Kept(), max_new_tokens=n_tokens)


def off(experiment):
    return designs.explicit(experiment.grid, [["L0H1"], ["L1H0", "L2H3"]])


def test_each_text_is_held_against_the_intact_models_after_the_same_prompt(load, backend):
    experiment = Experiment(load("llama", backend), task())
    scores = experiment(off(experiment))
    plain = Experiment(experiment.model, Task.from_records(PROMPTS, scorer=lambda e, t: 0.0, max_new_tokens=5))
    texts, intact = plain.generate(off(plain)), plain.generate(np.zeros((1, *plain.grid.shape), dtype=bool))[0]
    assert scores.tolist() == [Kept().against([], row, intact) for row in texts]
    assert 0 < scores.mean() < 1


def test_the_intact_texts_are_run_once_and_counted(load):
    experiment = Experiment(load("llama"), task())
    experiment(off(experiment)[:1], np.array([[0, 2]]))
    assert experiment.spent == 2 + 2
    experiment(off(experiment))
    assert experiment.spent == 2 * 4 + 4
    experiment.baseline()
    assert experiment.spent == 2 * 4 + 4


def test_a_call_that_goes_on_from_a_store_ends_with_the_same_numbers(load, tmp_path):
    first = Experiment(load("llama"), task(), store=tmp_path / "run.sqlite")
    scores = first(off(first))
    again = Experiment(first.model, task(), store=tmp_path / "run.sqlite")
    assert (again(off(again)) == scores).all()
    assert (again.spent, again.ran) == (first.spent, 0)
    half = Experiment(first.model, task(), store=tmp_path / "run.sqlite")
    half(designs.explicit(half.grid, [["L0H1"], ["L2H0"]]))
    assert (half.spent, half.ran) == (2 * 4 + 4, 4)


def test_heads_are_found_by_what_is_left_of_the_intact_models_words(load_known):
    model = load_known()
    records = [{"prompt": record["prompt"]} for record in own_answers(model, 40)]
    kept = Task.from_records(records, scorer=Kept(), max_new_tokens=1).split(20)[0]
    found = find_heads(model, kept, k=2, method="one-shot")
    assert set(found.top(2)) == set(WORKING)
    assert found.provenance["baseline"] == 1.0
    # The intact run, and each head alone: the intact texts are those of the baseline.
    assert found.spent == 20 * (1 + 12)


def test_a_score_beyond_what_is_allowed_is_refused(load):
    class Twice(Kept):
        def against(self, examples, texts, intact):
            return [2.0] * len(texts)

    wrong = Task.from_records(PROMPTS, scorer=Twice(), max_new_tokens=2)
    with pytest.raises(ValueError, match=r"scorer '.*Twice' must give \d numbers in 0\.\.1, got 2.0 for example \d"):
        Experiment(load("llama"), wrong).baseline()
