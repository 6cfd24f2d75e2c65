"""Prompts that end in white space: *last* is the token that predicts the answer, and the answer alone is scored."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cs_heads import Experiment, Task
from cs_heads.experiment.baseline import CANNOT, BaselineTooLowError, check_baseline
from cs_heads.lens import load_model
from tests.plain import units_replaced
from tests.tiny import save_byte_model

# As every template in use: a line end opens the answer. It writes no beginning-of-sequence token.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
ENDS = ["\n", " ", "\t", "\n\n"]
QUESTIONS = [("the capital of France", "Paris"), ("one two", "three"), ("up and", "down")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def task_of(end=""):
    return Task.from_records([{"prompt": f"{q}:{end}", "target": a} for q, a in QUESTIONS], name="questions")


def off_at_the_last(folder, prompts, targets, layers, heads):
    """Plain Hugging Face: mean log-probability of each target's tokens, by head off at the last token of the prompt."""
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rows = []
    for layer, head in [(None, None), *((layer, head) for layer in layers for head in range(heads))]:
        mask = np.zeros((hf.config.num_hidden_layers, heads), dtype=bool)
        if layer is not None:
            mask[layer, head] = True
        rows.append([])
        for prompt, target in zip(prompts, targets, strict=True):
            with torch.no_grad(), units_replaced(hf, "heads", mask, where=[len(prompt) - 1]):
                logprobs = hf(torch.tensor([[*prompt, *target]]), use_cache=False).logits[0].double().log_softmax(-1)
            said = logprobs[range(len(prompt) - 1, len(prompt) + len(target) - 1), target]
            rows[-1].append(said.mean().item())
    return np.array(rows)


def ours(folder, backend, task, layers, template=None):
    model = load_model(folder, device="cpu", backend=backend)
    if template is not None:
        model.tokenizer.chat_template = template
    experiment = Experiment(model, task, positions="last", progress=False)
    masks = np.zeros((1 + len(layers) * experiment.grid.n_units, *experiment.grid.shape), dtype=bool)
    for row, (layer, head) in enumerate(((la, h) for la in layers for h in range(experiment.grid.n_units)), start=1):
        masks[row, layer, head] = True
    return experiment, experiment.logprob(masks)


@pytest.mark.parametrize("end", ENDS)
def test_a_chat_is_the_template_s_own_tokens_and_its_answer_those_of_the_answer(folder, backend, end):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template = TEMPLATE.replace("<assistant>\n", f"<assistant>{end}")
    message = [[{"role": "user", "content": f"{question}:"}] for question, _ in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in message]
    targets = [tokenizer(answer, add_special_tokens=False)["input_ids"] for _, answer in QUESTIONS]
    experiment, found = ours(folder, backend, task_of().with_chat_template(), [0, 1], template)
    assert [list(one.prompt) for one in experiment.encoded] == prompts
    assert [list(one.continuations[0]) for one in experiment.encoded] == targets
    np.testing.assert_allclose(found, off_at_the_last(folder, prompts, targets, [0, 1], 2), atol=1e-5)
    assert experiment.provenance()["task"]["merged"] == 0


@pytest.mark.parametrize("end", ENDS)
def test_a_prompt_keeps_the_white_space_that_it_ends_in(folder, backend, end):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(f"{question}:{end}", add_special_tokens=False)["input_ids"] for question, _ in QUESTIONS]
    targets = [tokenizer(answer, add_special_tokens=False)["input_ids"] for _, answer in QUESTIONS]
    experiment, found = ours(folder, backend, task_of(end), [0, 1])
    np.testing.assert_allclose(found, off_at_the_last(folder, prompts, targets, [0, 1], 2), atol=1e-5)
    assert experiment.provenance()["task"]["merged"] == 0


def test_a_chat_gets_no_token_that_its_template_does_not_write(folder, backend):
    """As ``apply_chat_template``, whatever the tokenizer prepends to other texts."""
    model = load_model(folder, device="cpu", backend=backend)
    model.tokenizer.chat_template = TEMPLATE
    chat = task_of().with_chat_template()
    plain, with_bos = (Experiment(model, chat, prepend_bos=asked, progress=False) for asked in (None, True))
    assert [one.prompt for one in with_bos.encoded] == [(0, *one.prompt) for one in plain.encoded]
    assert (plain.provenance()["prepend_bos"], with_bos.provenance()["prepend_bos"]) == (False, True)


def test_a_line_end_may_be_the_answer(folder):
    """In a chat too, whose answers lose the space that they begin with."""
    records = [{"prompt": "the capital", "target": "\n"}, {"prompt": "one", "target": " \t"}]
    choices = [{"prompt": "the capital", "choices": ["\n", " "], "answer": 0}]
    model = load_model(folder, device="cpu")
    model.tokenizer.chat_template = TEMPLATE
    for task, expected in ((Task.from_records(records), ["\n", " \t"]), (Task.from_records(choices), ["\n", " "])):
        for each in (task, task.with_chat_template()):
            encoded = Experiment(model, each, progress=False).encoded
            assert [model.tokenizer.decode(ids) for one in encoded for ids in one.continuations] == expected


@pytest.mark.real
@pytest.mark.parametrize(
    "end", ["\n ", "chat", *(pytest.param(end, marks=pytest.mark.slow) for end in (*ENDS, "\r\n  "))]
)
def test_heads_of_a_real_model_off_at_the_last_token(smollm2, end):
    """Its byte-level tokenizer joins a space to the answer, and reads two line ends apart before a letter."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    task = task_of().with_chat_template() if end == "chat" else task_of(end)
    targets = [
        tokenizer(" " * end.endswith(" ") + answer, add_special_tokens=False)["input_ids"] for _, answer in QUESTIONS
    ]
    if end == "chat":
        message = [[{"role": "user", "content": f"{question}:"}] for question, _ in QUESTIONS]
        prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in message]
    else:
        texts = [f"{question}:{end}" for question, _ in QUESTIONS]
        whole = [tokenizer(text + answer)["input_ids"] for text, (_, answer) in zip(texts, QUESTIONS, strict=True)]
        prompts = [ids[: -len(target)] for ids, target in zip(whole, targets, strict=True)]
        assert [tokenizer.decode(prompt) for prompt in prompts] == [text.removesuffix(" ") for text in texts]
    if end.endswith(" "):
        with pytest.warns(UserWarning, match=r"in 3 of 3 examples the tokenizer merges the end of the prompt"):
            experiment, found = ours(smollm2, "bridge", task, [3])
    else:
        experiment, found = ours(smollm2, "bridge", task, [3])
    np.testing.assert_allclose(found, off_at_the_last(smollm2, prompts, targets, [3], 9), atol=2e-4)
    assert experiment.provenance()["task"]["merged"] == 3 * end.endswith(" ")


@pytest.mark.parametrize(("end", "start"), [("", ""), (" ", " ")], ids=["none", "two"])
def test_where_one_space_before_the_answers_makes_the_model_right_the_error_says_so(folder, backend, end, start):
    model = load_model(folder, device="cpu", backend=backend)
    prompts = [f"{first} and {second}" for first in ("one", "two", "up", "red", "cat", "king") for second in "abcdefgh"]

    def task(ends, starts, answers):
        choices = [starts + word for word in ("it", "now", "dog", "three")]
        rows = zip(prompts, answers, strict=True)
        return Task.from_records([{"prompt": p + ends, "choices": choices, "answer": int(a)} for p, a in rows])

    def likeliest(ends, starts):
        nothing = np.zeros((1, 2, 2), dtype=bool)
        # The log-probability is that of the answer.
        each = [Experiment(model, task(ends, starts, [a] * len(prompts)), progress=False) for a in range(4)]
        length = [np.array([len(one.continuations[a]) for one in e.encoded]) for a, e in enumerate(each)]
        return np.argmax([e.logprob(nothing)[0] * n for e, n in zip(each, length, strict=True)], axis=0)

    right, told = likeliest("", " "), likeliest(end, start)
    # Answers that are right after one space, and wrong as they stand.
    prompts, answers = zip(
        *((p, a) for p, a, other in zip(prompts, right, told, strict=True) if a != other), strict=True
    )
    assert len(prompts) >= 4
    with pytest.raises(BaselineTooLowError) as error:
        check_baseline(Experiment(model, task(end, start, answers), progress=False))
    written = f" {('it', 'now', 'dog', 'three')[answers[0]]}"
    asked = min(len(prompts), 20)
    assert str(error.value).endswith(
        f"; with one space between prompt and answer it answers {asked} of the first {asked} right, and as they are 0: "
        f"write answers as {written!r}, after a prompt that ends in no space"
    )
    wrong = [(a + 1) % 4 for a in answers]
    with pytest.raises(BaselineTooLowError, match=f"; {CANNOT}$"):
        check_baseline(Experiment(model, task("", " ", wrong), progress=False))


@pytest.mark.real
def test_a_real_model_is_said_to_know_capitals_with_a_space_before_them(smollm2):
    pairs = (
        "France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, China Beijing, Egypt Cairo, Greece Athens"
    )
    records = [
        {"prompt": f"The capital of {country} is", "target": city} for country, city in map(str.split, pairs.split(","))
    ]
    model = load_model(smollm2, device="cpu")
    with pytest.raises(BaselineTooLowError, match=r"answers 0 of 8 .*; with one space .* [4-8] of the first 8 right"):
        check_baseline(Experiment(model, Task.from_records(records), progress=False))
