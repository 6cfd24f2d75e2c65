"""Choices that each follow a prompt of their own, as in Winograd schemas: scored as plain Hugging Face scores each."""

import numpy as np
import pytest

from cs_heads import Experiment, Task
from cs_heads.engine.encoding import as_shown
from cs_heads.lens import encode_example
from cs_heads.tasks import Example, full_form, letter_form
from cs_heads.tasks.chat import chat_prompt
from tests.plain import plain_score
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model, make_tokenizer

MASKS = np.random.default_rng(3).random((4, N_LAYERS, N_HEADS)) < 0.3


def schema(start, rivals, end, answer):
    prompts = tuple(f"{start} {rival}" for rival in rivals)
    return Example(prompts[answer], (f" {end}",) * len(rivals), answer, prompts=prompts)


EXAMPLES = (
    schema("the cat sees a dog ,", ["the cat", "a small red dog"], "sleeps one", 1),
    schema("a big bird", ["runs", "sees"], "the king", 0),
    schema("the king , a bird", ["the king", "a bird"], "sees", 0),
)
TASK = Task("schemas", "choice", EXAMPLES)


def plain(architecture, examples=EXAMPLES):
    """Summed log-probability of each choice of each example under each mask."""
    hf = make_hf_model(architecture)
    return [
        [[plain_score(hf, *tokens(prompt, c), mask)[0] for prompt, c in pairs(example)] for example in examples]
        for mask in MASKS
    ]


def pairs(example):
    return [(example.prompt_of(i), continuation) for i, continuation in enumerate(example.continuations)]


def tokens(prompt, continuation):
    encoded = encode_example(make_tokenizer(), prompt, [continuation])
    return encoded.prompt, encoded.continuations[0]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_each_choice_is_scored_after_its_own_prompt(load, backend, architecture):
    experiment = Experiment(load(architecture, backend), TASK, progress=False)
    expected = plain(architecture)
    picked = [
        [float(np.argmax(choices) == e.answer) for choices, e in zip(row, EXAMPLES, strict=True)] for row in expected
    ]
    assert experiment(MASKS).tolist() == picked
    lengths = [len(tokens(*pairs(e)[e.answer])[1]) for e in EXAMPLES]
    right = [[choices[e.answer] for choices, e in zip(row, EXAMPLES, strict=True)] for row in expected]
    np.testing.assert_allclose(experiment.logprob(MASKS) * lengths, right, atol=1e-4)


def test_gates_and_answers_read_the_same_prompts(load):
    experiment = Experiment(load("llama"), TASK, progress=False)
    gates = np.clip(1.0 - MASKS, 1e-9, 1)
    scores, logprobs = experiment(gates), experiment.logprob(gates)
    assert (scores == experiment(MASKS)).all()
    np.testing.assert_allclose(logprobs, experiment.logprob(MASKS), atol=1e-5)
    assert [one.prompt for one in experiment.answers] == [tokens(e.prompt, e.target)[0] for e in EXAMPLES]


def test_each_prompt_is_shown_in_the_chat_template_and_cut_by_itself(load):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}king {{ m['content'] }} .{% endfor %}"
    (shown, *_) = as_shown(type("Model", (), {"tokenizer": tokenizer, "cfg": None}), TASK.with_chat_template()).examples
    assert shown.prompts == tuple(chat_prompt(tokenizer, prompt) for prompt in EXAMPLES[0].prompts)
    assert shown.prompt == shown.prompts[1]
    long = schema(" ".join(["the cat"] * 40), ["runs", "sees a small dog"], ", sleeps", 0)
    measured = Experiment(load("llama"), Task("long", "choice", (long,)).with_truncation(), progress=False)
    hf, context = make_hf_model("llama"), 64
    cut = [(prompt[-(context + 1 - len(c)) :], c) for prompt, c in (tokens(*pair) for pair in pairs(long))]
    expected = [[plain_score(hf, *one, mask)[0] for one in cut] for mask in MASKS]
    assert measured(MASKS)[:, 0].tolist() == [float(np.argmax(choices) == 0) for choices in expected]
    np.testing.assert_allclose(measured.logprob(MASKS)[:, 0] * 2, [row[0] for row in expected], atol=1e-4)


def test_prompts_are_part_of_what_an_example_is():
    one, other = (schema("the cat and", ["a dog", rival], "sees", 0) for rival in ("the king", "a bird"))
    turned = schema("the cat and", ["the king", "a dog"], "sees", 1)
    assert one.prompt == other.prompt == turned.prompt
    assert one.identity != other.identity
    assert one.question != other.question
    assert one.question == turned.question


def test_prompts_that_fit_no_choice_are_refused():
    with pytest.raises(ValueError, match="prompts must be one for each of 2 continuations, the answer's prompt"):
        Example("a", (" b", " c"), 0, prompts=("x", "a"))
    with pytest.raises(ValueError, match="prompts must be one for each of 2 continuations"):
        Example("a", (" b", " c"), 0, prompts=("a",))
    for form in (letter_form, full_form):
        with pytest.raises(
            ValueError, match="'schemas' has a prompt for each choice: its choices stand in the prompts"
        ):
            form(TASK)


def test_words_that_the_tokenizer_does_not_know_are_told_with_their_example(load):
    records = [{"prompt": "the cat", "target": " runs"}, {"prompt": "a zebra", "target": " sees a gnu"}]
    task = Task.from_records(records, "animals")
    said = r"task 'animals': the tokenizer does not know 'zebra' \(example 1\), 'gnu' \(example 1\), and puts another"
    with pytest.warns(UserWarning, match=said):
        Experiment(load("llama"), task)
