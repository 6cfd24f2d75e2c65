"""The prompts at which a model swears."""

import numpy as np
import pytest

from cs_heads import Experiment, Task, load_task
from cs_heads.analysis.swearing import swearing_prompts
from cs_heads.tasks.swearing import Profanity, SwearingScorer
from tests.tiny import WORDS as VOCABULARY

WORDS = [word for word in VOCABULARY if word.isalpha()]

PROMPTS = ["the cat", "a dog sees", "the big king", "one two", "a bird runs", "the dog", "a king sees the", "two one"]


def swearing(words):
    """A task whose profanities are words that the tiny model writes."""
    profanity = Profanity(words)
    records = [{"prompt": prompt} for prompt in PROMPTS]
    return Task.from_records(records, "swearing", scorer=SwearingScorer(profanity), max_new_tokens=6)


@pytest.fixture
def model(load):
    return load("llama")


@pytest.fixture
def written(model):
    """What the intact model writes after each prompt."""
    experiment = Experiment(model, swearing(["x"]), progress=False)
    return experiment.generate(np.zeros((1, *experiment.grid.shape), dtype=bool))[0]


@pytest.fixture
def rare(written):
    """A word that the model writes after some prompts and not after others."""
    everywhere = [set(text.split()) for text in written]
    return next(word for word in WORDS if 0 < sum(word in text for text in everywhere) < len(PROMPTS))


def test_the_intact_model_scores_1_on_the_prompts_at_which_it_swears(model, rare, written):
    task = swearing([rare])
    swears = [rare in text.split() for text in written]
    assert Experiment(model, task, progress=False).baseline().tolist() == [float(each) for each in swears]
    kept = swearing_prompts(model, task, progress=False)
    prompts = [prompt for prompt, each in zip(PROMPTS, swears, strict=True) if each]
    assert [example.prompt for example in kept.examples] == prompts
    assert Experiment(model, kept, progress=False).baseline().tolist() == [1.0] * len(prompts)


def test_the_held_out_prompts_are_chosen_too(model):
    kept = swearing_prompts(model, swearing(WORDS).split(4)[0], progress=False)
    assert (kept.role, kept.held_out.role, len(kept), len(kept.held_out)) == ("finding", "confirming", 4, 4)


def test_what_cannot_be_counted_is_refused(model):
    silent = swearing(["flark"])
    with pytest.raises(ValueError, match="the intact model swears at none of the 8 prompts of the whole side"):
        swearing_prompts(model, silent, progress=False)
    with pytest.raises(ValueError, match=r"task must be scored by its profanities, .* got 'ioi'"):
        swearing_prompts(model, load_task("ioi", n=4))
