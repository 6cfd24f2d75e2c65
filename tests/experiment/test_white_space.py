"""Prompts that end in white space: *last* is the token that predicts the answer, and the answer alone is scored."""

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cs_heads import Experiment, Task
from cs_heads.experiment.baseline import BaselineTooLowError, check_baseline
from cs_heads.lens import load_model
from tests.plain import units_replaced
from tests.tiny import save_byte_model

# As every template in use: a line end opens the answer. It writes no beginning-of-sequence token.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
ENDS = ["\n", " "]
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


@cache
def loaded(folder, backend):
    return load_model(folder, device="cpu", backend=backend)


def ours(folder, backend, task, layers, template=None):
    model = loaded(folder, backend)
    if template is not None:
        model.tokenizer.chat_template = template
    experiment = Experiment(model, task, positions="last", progress=False)
    masks = np.zeros((1 + len(layers) * experiment.grid.n_units, *experiment.grid.shape), dtype=bool)
    for row, (layer, head) in enumerate(((la, h) for la in layers for h in range(experiment.grid.n_units)), start=1):
        masks[row, layer, head] = True
    return experiment, experiment.logprob(masks)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_a_prompt_keeps_the_white_space_that_it_or_its_template_ends_in(folder, backend, end, chat):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template = TEMPLATE.replace("<assistant>\n", f"<assistant>{end}") if chat else None
    prompts = [tokenizer(f"{question}:{end}", add_special_tokens=False)["input_ids"] for question, _ in QUESTIONS]
    if chat:
        message = [[{"role": "user", "content": f"{question}:"}] for question, _ in QUESTIONS]
        prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in message]
    targets = [tokenizer(answer, add_special_tokens=False)["input_ids"] for _, answer in QUESTIONS]
    task = task_of().with_chat_template() if chat else task_of(end)
    experiment, found = ours(folder, backend, task, [0, 1], template)
    assert [list(one.prompt) for one in experiment.encoded] == prompts
    assert [list(one.continuations[0]) for one in experiment.encoded] == targets
    np.testing.assert_allclose(found, off_at_the_last(folder, prompts, targets, [0, 1], 2), atol=1e-5)
    assert experiment.provenance()["task"]["merged"] == 0


def test_a_chat_gets_no_token_that_its_template_does_not_write(folder, backend):
    """As ``apply_chat_template``, whatever the tokenizer prepends to other texts."""
    model = loaded(folder, backend)
    model.tokenizer.chat_template = TEMPLATE
    chat = task_of().with_chat_template()
    plain, with_bos = (Experiment(model, chat, prepend_bos=asked, progress=False) for asked in (None, True))
    assert [one.prompt for one in with_bos.encoded] == [(0, *one.prompt) for one in plain.encoded]
    assert (plain.provenance()["prepend_bos"], with_bos.provenance()["prepend_bos"]) == (False, True)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("end", ["\n ", "chat", *ENDS, "\n\n", "\r\n  "])
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


@pytest.mark.parametrize(("end", "start", "hint"), [("", "", True), (" ", " ", False), ("", " ", False)])
def test_where_no_space_stands_before_the_answers_the_error_names_it(folder, end, start, hint):
    records = [{"prompt": f"{question}{end}", "target": f"{start}{answer}"} for question, answer in QUESTIONS]
    with pytest.raises(BaselineTooLowError, match="model that can do the task") as error:
        check_baseline(Experiment(loaded(folder, "bridge"), Task.from_records(records), progress=False))
    assert ("if a space belongs between prompt and answer, write answers as ' Paris'" in str(error.value)) == hint
