"""Prompts in a model's chat template: what the model is shown, and that nothing is doubled."""

from datetime import datetime

import numpy as np
import pytest
from transformers.utils import chat_template_utils

from cs_heads import Experiment, Task, load_task
from cs_heads.lens.tokens import encode_example, encode_prompt
from cs_heads.tasks.chat import chat_prompt, template_identity
from tests.tiny import WORDS, make_tokenizer

# In the manner of Llama 3: the text begins with the beginning-of-sequence token, and white space opens the answer.
TEMPLATE = (
    "{{ bos_token }}"
    "{% if date_string is defined %}{{ ', ' }}{% endif %}"
    "{% for message in messages %}"
    "{{ message['role'] | replace('user', 'king') }} {{ message['content'] }} . "
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'dog ' }}{% endif %}"
)
WITHOUT_BOS = TEMPLATE.removeprefix("{{ bos_token }}")
RECORDS = [
    {"prompt": f"the {word}", "choices": [" runs", " sees", " sleeps"], "answer": index % 3}
    for index, word in enumerate(WORDS[:6])
]
COMPLETIONS = [{"prompt": record["prompt"], "target": record["choices"][record["answer"]]} for record in RECORDS]


@pytest.fixture
def chatty(load, backend):
    """A tiny model whose tokenizer has a chat template."""
    model = load("llama", backend)
    kept = model.tokenizer.chat_template
    model.tokenizer.chat_template = TEMPLATE
    yield model
    model.tokenizer.chat_template = kept


def ids(tokenizer, text):
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("template", [TEMPLATE, WITHOUT_BOS])
def test_the_beginning_of_sequence_token_comes_once(template):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    shown = chat_prompt(tokenizer, "the cat")
    assert shown.startswith("<s>") == (template is TEMPLATE)
    with_bos = ids(tokenizer, "<s> , king the cat . dog")
    expected = with_bos if template is TEMPLATE else with_bos[1:]
    assert encode_prompt(tokenizer, shown) == encode_prompt(tokenizer, shown, prepend_bos=False) == expected
    assert encode_example(tokenizer, shown, ["runs", "sees"]).prompt == expected
    assert encode_prompt(tokenizer, shown, prepend_bos=True) == with_bos
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "the cat"}], add_generation_prompt=True, date_string="x", return_dict=False
    ) == list(expected)


def test_a_chat_task_is_measured_as_its_prompts_written_out(chatty):
    written = Task.from_records(
        [
            {
                "prompt": chat_prompt(chatty.tokenizer, record["prompt"]),
                "choices": [choice.strip() for choice in record["choices"]],
                "answer": record["answer"],
            }
            for record in RECORDS
        ]
    )
    plain = Task.from_records(RECORDS)
    masks = np.random.default_rng(0).random((3, 3, 4)) < 0.3
    scores, same, other = (
        Experiment(chatty, task).logprob(masks)
        for task in (plain.with_chat_template(), written, plain.with_chat_template("off"))
    )
    np.testing.assert_allclose(scores, same, atol=1e-5)
    assert np.abs(scores - other).max() > 0.01


def test_a_model_without_a_template_is_refused_where_one_is_wanted(load, backend):
    with pytest.raises(
        ValueError, match=r"^task 'task': the tokenizer has no chat template: load an instruction-tuned"
    ):
        Experiment(load("llama", backend), Task.from_records(RECORDS).with_chat_template())


def test_a_template_that_fails_is_named(chatty):
    chatty.tokenizer.chat_template = "{{ raise_exception('no system message') }}"
    with pytest.raises(ValueError, match="task 'task': the tokenizer's chat template fails: no system message"):
        Experiment(chatty, Task.from_records(RECORDS).with_chat_template())


def test_a_result_says_which_template_its_prompts_were_in(chatty):
    task = Task.from_records(RECORDS)
    shown = Experiment(chatty, task.with_chat_template()).provenance()["task"]
    assert shown["chat"] == "on"
    assert len(shown["chat_template"]) == 16
    assert shown["identity"] != task.identity
    chatty.tokenizer.chat_template = WITHOUT_BOS
    assert Experiment(chatty, task.with_chat_template()).provenance()["task"]["chat_template"] != shown["chat_template"]


def test_both_sides_of_a_task_chat():
    finding = Task.from_records(RECORDS).split(3)[0].with_chat_template()
    assert (finding.chat, finding.held_out.chat) == ("on", "on")
    assert finding.with_chat_template("off") == Task.from_records(RECORDS).split(3)[0]
    assert load_task("ioi", n=10, chat="auto").held_out.chat == "auto"
    with pytest.raises(ValueError, match="chat must be one of off, auto, on, got 'yes'"):
        load_task("ioi", n=10).with_chat_template("yes")


def test_a_store_keeps_what_was_said_in_another_template_apart(load, tmp_path):
    model = load("llama")
    task = Task.from_records(COMPLETIONS, max_new_tokens=2).with_chat_template()
    kept, ran = model.tokenizer.chat_template, []
    for template in (TEMPLATE, "a king " + TEMPLATE, TEMPLATE):
        model.tokenizer.chat_template = template
        experiment = Experiment(model, task, store=tmp_path / "run.sqlite")
        experiment.baseline()
        ran.append(experiment.ran)
    model.tokenizer.chat_template = kept
    assert ran == [6, 6, 0]


# Templates that state a date


class Clock(datetime):
    """A day that a test sets."""

    today = datetime(2024, 7, 26)

    @classmethod
    def now(cls, tz=None):
        return cls.today


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    monkeypatch.setattr(Clock, "today", Clock.today)
    return Clock


FORMATS = ["%d %b %Y", "%A, %B %d, %Y", "%-d/%-m/%y", "%F %T", "100%%d %Y", "today"]
DATED = """
  {% if messages %}
  <{{ strftime_now(FORMAT) }}>
    {%- set today = strftime_now(format=FORMAT) %}
{% endif %}
[{{ today }}] {{ messages[0]["content"] }}
"""


@pytest.mark.parametrize("format", FORMATS)
def test_a_template_that_asks_for_today_is_told_one_date_in_the_format_it_asks_for(clock, format):
    """It is what transformers would write on that day, to the last space."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = DATED.replace("FORMAT", repr(format))
    message = [{"role": "user", "content": "the cat"}]
    shown = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    for day in (datetime(2024, 7, 26), datetime(2031, 12, 1, 13, 5)):
        clock.today = day
        assert chat_prompt(tokenizer, "the cat") == shown


def test_a_run_over_midnight_goes_on_with_what_it_measured(load, tmp_path, clock):
    model = load("llama")
    kept, ran, written_in = model.tokenizer.chat_template, [], []
    model.tokenizer.chat_template = '{% if strftime_now("%d") == "01" %}the{% else %}cat{% endif %} ' + TEMPLATE
    for day in (1, 2):
        clock.today = datetime(2031, 1, day)
        experiment = Experiment(
            model, Task.from_records(COMPLETIONS).with_chat_template(), store=tmp_path / "run.sqlite"
        )
        experiment.baseline()
        ran.append(experiment.ran)
        written_in.append(experiment.provenance()["task"]["chat_template"])
    assert written_in == [template_identity(model.tokenizer)] * 2
    model.tokenizer.chat_template = kept
    assert ran == [6, 0]
