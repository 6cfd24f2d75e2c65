"""Prompts longer than the context: refused, or cut at the left, as plain Hugging Face scores what is left."""

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task
from tests.plain import plain_score
from tests.tiny import N_HEADS, N_LAYERS, WORDS, make_hf_model, make_tokenizer

CONTEXT = 64
MASKS = np.random.default_rng(1).random((3, N_LAYERS, N_HEADS)) < 0.3


def prompt_of(n_words):
    return " ".join(np.random.default_rng(n_words).choice(WORDS[:18], size=n_words))


def ids(text):
    return make_tokenizer()(text, add_special_tokens=False)["input_ids"]


def logprobs(model, prompt, choices):
    """Log-probability of each choice under each mask, the others beside it."""
    tasks = [
        Task.from_records([{"prompt": prompt, "choices": choices, "answer": i}]).with_truncation()
        for i in range(len(choices))
    ]
    means = np.concatenate([Experiment(model, task, progress=False).logprob(MASKS) for task in tasks], axis=1)
    return means * [len(ids(choice)) for choice in choices]


def plain(inputs, choices):
    hf = make_hf_model("llama")
    return [[plain_score(hf, inputs, ids(choice), mask)[0] for choice in choices] for mask in MASKS]


@pytest.mark.parametrize("choices", [[" runs one", " sees cat"], [" runs", " sees a big red cat"]])
def test_a_prompt_is_cut_for_each_choice_as_lm_evals_hflm_cuts_it(load, choices):
    """HFLM keeps the last ``context + 1`` tokens of prompt and choice, the last of which is no input."""
    prompt = prompt_of(90)
    kept = [(ids(prompt) + ids(choice))[-(CONTEXT + 1) :][: -len(ids(choice))] for choice in choices]
    expected = np.concatenate([plain(inputs, [c]) for inputs, c in zip(kept, choices, strict=True)], axis=1)
    np.testing.assert_allclose(logprobs(load("llama"), prompt, choices), expected, atol=1e-4)


def test_a_prompt_that_fits_is_whole_and_one_that_does_not_is_refused_unless_asked(load):
    choices, short = [" runs", " sees a"], prompt_of(40)
    np.testing.assert_allclose(logprobs(load("llama"), short, choices), plain([1, *ids(short)], choices), atol=1e-4)
    texts = Task.from_records([{"prompt": prompt_of(60), "target": " cat"}, {"prompt": "the", "target": " cat"}])
    none = np.zeros((1, N_LAYERS, N_HEADS), dtype=bool)
    whole, cut = (
        Experiment(load("llama"), texts.with_truncation(too_long), progress=False).generate(none).tolist()
        for too_long in ("refuse", "truncate")
    )
    assert whole == cut, "what fits is not cut to write more"
    with pytest.raises(ValueError, match=r"max_new_tokens must be an integer in 1\.\.63, .* got 64"):
        Experiment(load("llama"), texts.with_truncation(), progress=False).generate(none, max_new_tokens=64)
    task = Task.from_records([{"prompt": prompt_of(90), "choices": choices, "answer": 0}])
    with pytest.raises(ValueError, match=r"do not fit into the model's context of 64; load_task\(\.\.\., too_long="):
        Experiment(load("llama"), task)


def test_before_a_text_the_prompt_leaves_room_for_it(load):
    task = Task.from_records([{"prompt": prompt_of(90), "target": " cat"}], max_new_tokens=4).with_truncation()
    experiment = Experiment(load("llama"), task, progress=False)
    (text,) = experiment.generate(np.zeros((1, N_LAYERS, N_HEADS), dtype=bool))[0]
    hf, kept, written = make_hf_model("llama"), ids(prompt_of(90))[-(CONTEXT - 4) :], []
    end = make_tokenizer().eos_token_id
    while len(written) < 4 and end not in written:
        with torch.no_grad():
            written.append(int(hf(torch.tensor([kept + written])).logits[0, -1].argmax()))
    assert text.split() == make_tokenizer().decode([token for token in written if token != end]).split() != []
