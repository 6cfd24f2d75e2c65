"""``Experiment.generate``: what the model says with heads off, as text."""

import pytest

from cs_heads import Experiment, Task, designs
from cs_heads.engine.protocol import StoppingCriteria
from tests.tiny import make_native_bridge, make_tokenizer

RECORDS = [
    {"prompt": prompt, "target": " runs"}
    for prompt in ("the cat", "a dog sees", "the big king", "one two three", "the")
]


def task():
    return Task.from_records(RECORDS)


def off(experiment):
    return designs.explicit(experiment.grid, [["L0H1"], ["L1H0", "L2H3"], []])


def test_a_text_ends_before_its_stop_string(load):
    experiment = Experiment(load("llama"), task())
    whole = experiment.generate(off(experiment), max_new_tokens=8)
    stop = whole[0, 0].split()[2]
    cut = Experiment(load("llama"), task()).generate(off(experiment), max_new_tokens=8, stop=[stop])
    for long, short in zip(whole.ravel(), cut.ravel(), strict=True):
        assert short == long[: long.index(stop)] if stop in long else short == long


def test_of_several_stop_strings_the_first_in_the_text_ends_it():
    tokenizer = make_tokenizer()
    text = tokenizer("the cat sees a dog and runs", add_special_tokens=False)["input_ids"]
    assert StoppingCriteria(9, ("runs", "dog"), frozenset()).kept(text, tokenizer) == "the cat sees a "


def test_no_text_is_generated_twice(load):
    experiment = Experiment(load("llama"), task())
    first = experiment.generate(off(experiment)[:2], max_new_tokens=4)
    assert experiment.spent == experiment.ran == 2 * 5
    again = experiment.generate(off(experiment), max_new_tokens=4)
    assert experiment.spent == experiment.ran == 3 * 5
    assert (again[:2] == first).all()


def test_native_bridges_generate_without_a_cache(load):
    model = make_native_bridge()
    model.tokenizer = load("llama").tokenizer
    experiment = Experiment(model, task())
    texts = experiment.generate(off(experiment), max_new_tokens=3)
    assert not experiment._engine.forwards.able.extend
    # A text of fewer words had tokens that are not shown, without which it may be another.
    whole = [(record, text) for record, text in zip(RECORDS, texts[0], strict=True) if len(text.split()) == 3]
    records = [{**record, "target": " " + text} for record, text in whole]
    said = Experiment(model, Task.from_records(records))(off(experiment)[:1])[0]
    assert len(said) >= 2
    assert said.all()


def test_by_default_a_text_is_as_long_as_the_context_leaves_room_for(load):
    """The longest prompt has 4 tokens, the context 64."""
    experiment = Experiment(load("llama"), task())
    masks = off(experiment)[:1]
    assert (experiment.generate(masks) == experiment.generate(masks, max_new_tokens=60)).all()


def test_wrong_arguments_are_refused_before_the_model_runs(load):
    experiment = Experiment(load("llama"), task())
    with pytest.raises(ValueError, match="max_new_tokens must be an integer of 1 or more, got 0"):
        experiment.generate(off(experiment), max_new_tokens=0)
    with pytest.raises(ValueError, match=r"max_new_tokens must be 60 or fewer: .* context 64; got 100"):
        experiment.generate(off(experiment), max_new_tokens=100)
    with pytest.raises(ValueError, match="stop must be a list of texts, none empty, got 'a'"):
        experiment.generate(off(experiment), stop="a")
    assert experiment.spent == 0
