"""Counts and severities of what a model writes with heads off."""

import numpy as np
import pytest

from cs_heads import Experiment, Task, designs, load_task
from cs_heads.analysis.swearing import swearing_prompts, swearing_under
from cs_heads.tasks.swearing import Profanity, SwearingScorer
from tests.tiny import WORDS as VOCABULARY

WORDS = [word for word in VOCABULARY if word.isalpha()]

PROMPTS = ["the cat", "a dog sees", "the big king", "one two", "a bird runs", "the dog", "a king sees the", "two one"]


def swearing(words):
    """A task whose profanities are words that the tiny model writes, with severities 1, 2, 3, ... of the list."""
    profanity = Profanity({word: 1.0 + index for index, word in enumerate(words)})
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


def test_counts_and_severities_are_those_of_the_words_in_each_text(model):
    experiment = Experiment(model, swearing(WORDS), progress=False)
    off = designs.explicit(experiment.grid, [[], ["L0H1"], ["L1H0", "L2H3"]])
    found = swearing_under(experiment, off)
    texts = [[text.split() for text in row] for row in experiment.generate(off)]
    # Every word of the list is one profanity, and severities are places in the list.
    severities = [[1.0 + WORDS.index(word) for text in row for word in text if word in WORDS] for row in texts]
    assert found.counts.sum(axis=1).tolist() == [len(row) for row in severities]
    assert found.severity == pytest.approx([np.mean(row) for row in severities])
    assert found.share == pytest.approx([min(1, len(row) / len(severities[0])) for row in severities])
    assert found.share[0] == 1
    assert len(set(found.severity)) > 1
    assert found.to_frame().columns.tolist() == ["count", "share", "severity"]


def test_texts_that_were_scored_are_not_written_again(model):
    experiment = Experiment(model, swearing(WORDS), progress=False)
    off = designs.explicit(experiment.grid, [["L0H1"]])
    experiment(off)
    ran = experiment.ran
    assert swearing_under(experiment, off).spent == 0
    assert experiment.ran == ran


def test_a_text_without_profanity_has_no_severity(model, rare):
    experiment = Experiment(model, swearing([rare]), progress=False)
    everything = np.ones((1, *experiment.grid.shape), dtype=bool)
    texts = experiment.generate(everything)[0]
    found = swearing_under(experiment, everything)
    count = sum(text.split().count(rare) for text in texts)
    assert found.counts.sum() == count
    assert np.isnan(found.severity[0]) if count == 0 else found.severity[0] == 1


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
    experiment = Experiment(model, silent, progress=False)
    with pytest.raises(ValueError, match="the intact model does not swear at any of the 8 prompts"):
        swearing_under(experiment, designs.explicit(experiment.grid, [[]]))
    with pytest.raises(ValueError, match="the intact model swears at none of the 8 prompts of the whole side"):
        swearing_prompts(model, silent, progress=False)
    with pytest.raises(ValueError, match=r"task must be scored by its profanities, .* got 'ioi'"):
        swearing_prompts(model, load_task("ioi", n=4))
