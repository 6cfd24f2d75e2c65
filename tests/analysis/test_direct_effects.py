"""Effects of heads on the answer, told apart: straight into the logits, and through later units."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import cs_heads as cs
from cs_heads.units import Grid
from tests.known_heads import rows_run
from tests.lens.test_direct import difference, without
from tests.plain import units_replaced
from tests.tiny import (
    ARCHITECTURES,
    N_HEADS,
    N_LAYERS,
    WORDS,
    choice_records,
    completion_records,
    make_hf_model,
)


def task_of(records):
    """Its unseen side are the records."""
    return cs.Task.from_records(records).split(len(records) // 2, seed=0)[0]


@pytest.fixture(scope="module")
def found(load):
    task = task_of(choice_records(np.random.default_rng(0), 60))
    return cs.direct_effects(load("llama"), task, ["L0H1", "L2H3"], n=25), task


def test_the_total_effect_is_that_of_the_head_off_in_ones_own_forward(found, load):
    effects, task = found
    model, examples = load("llama"), task.held_out.examples[:25]
    answers = [
        [model.tokenizer(choice, add_special_tokens=False)["input_ids"][0] for choice in example.continuations]
        for example in examples
    ]

    def logits():
        with torch.no_grad():
            return [model(torch.tensor([model.tokenizer(one.prompt)["input_ids"]]))[0, -1].numpy() for one in examples]

    intact = logits()
    with cs.ablated(model, "L0H1"):
        off = logits()
    fell = []
    for example, ids, before, after in zip(examples, answers, intact, off, strict=True):
        right = ids.pop(example.answer)
        best = max(ids, key=before.__getitem__)
        fell.append((before[right] - before[best]) - (after[right] - after[best]))
    assert effects.total[:, 0] == pytest.approx(fell, abs=1e-4)
    assert effects.spent == 25 * 6


def test_behind_a_soft_cap_the_total_is_that_before_it(folders, load):
    """The same weights without the cap say the same."""
    task = task_of(choice_records(np.random.default_rng(0), 60))
    capped = cs.direct_effects(load("gemma2"), task, ["L0H1", "L2H3"], n=25)
    loose = cs.load_model(folders("gemma2"), device="cpu")
    loose.original_model.config.final_logit_softcapping = None
    plain = cs.direct_effects(loose, task, ["L0H1", "L2H3"], n=25)
    assert capped.total == pytest.approx(plain.total, abs=1e-3)
    assert capped.direct == pytest.approx(plain.direct, abs=1e-3)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gemma2"])
def test_direct_and_through_others_are_those_of_hugging_face_with_all_later_modules_frozen(architecture, load, backend):
    task, plain = task_of(choice_records(np.random.default_rng(0), 60)), make_hf_model(architecture)
    effects = cs.direct_effects(load(architecture, backend), task, ["L0H1", "L1H3"], n=25)
    for i in (0, 7):
        row, answers = effects.prompts[i], effects.answers[i]
        intact = difference(plain, row, answers)
        for place, head in enumerate(effects.heads):
            direct = intact - without(plain, row, answers, head.layer, head.index, held=False)
            with units_replaced(plain, "heads", Grid(N_LAYERS, N_HEADS).mask([head])):
                total = intact - difference(plain, row, answers)
            assert effects.total[i, place] == pytest.approx(total, abs=1e-4)
            assert effects.direct[i, place] == pytest.approx(direct, abs=1e-4)
            assert effects.through_others[i, place] == pytest.approx(total - direct, abs=1e-4)
            assert abs(total - direct) > 1e-3


@pytest.mark.parametrize(("units", "heads"), [("heads", ["L0H1", "L2H3"]), ("mlp", ["L0MLP", "L2MLP"])])
def test_every_forward_of_an_example_is_counted(units, heads, load):
    model, task = load("llama"), task_of(choice_records(np.random.default_rng(0), 60))
    with rows_run(model) as rows:
        effects = cs.direct_effects(model, task, heads, n=25, units=units)
    assert effects.spent == sum(rows) == 25 * (6 if units == "heads" else 8)


def test_effects_add_up(found):
    effects, _ = found
    assert effects.direct + effects.through_others == pytest.approx(effects.total)
    table = effects.by_layer()
    assert table.drop(columns="layer").to_numpy().sum() == pytest.approx(effects.writes.difference.mean(), abs=1e-4)
    frame = effects.to_frame()
    assert frame["head"].tolist() == ["L0H1", "L2H3"]
    assert frame["total"].to_numpy() == pytest.approx(effects.total.mean(axis=0))
    assert (frame["total low"] < frame["total"]).all()
    assert frame["writes more than"].between(0, 1).all()


def test_what_a_head_writes_is_told_apart_by_the_tokens_it_reads(found, load):
    effects, task = found
    frame = effects.by_source()
    by_head = frame.groupby(["example", "head"], sort=False)["writes"].sum().unstack()
    assert by_head.to_numpy() == pytest.approx(effects.written, abs=1e-5)
    first = frame[(frame["example"] == 0) & (frame["head"] == "L2H3")]
    ids = load("llama").tokenizer(task.held_out.examples[0].prompt)["input_ids"]
    assert [text.strip() for text in first["token"]] == load("llama").tokenizer.convert_ids_to_tokens(ids)
    groups = cs.direct_effects(load("llama"), task, ["L0KV0"], n=25, units="kv")
    with pytest.raises(ValueError, match="tokens are told apart of heads alone"):
        groups.by_source()


def test_without_the_last_mlp_heads_of_the_last_layer_act_on_the_logits_alone(load):
    task = task_of(choice_records(np.random.default_rng(1), 60))
    model = load("gpt2")
    with cs.Experiment(model, task, units="mlp") as mlps:
        last = mlps.grid.unit(mlps.grid.size - 1)
    with cs.ablated(model, last):
        effects = cs.direct_effects(model, task, ["L2H0", "L1H0"], n=25)
    assert effects.through_others[:, 0] == pytest.approx(np.zeros(25), abs=1e-4)
    assert np.abs(effects.through_others[:, 1]).max() > 1e-2


@pytest.mark.parametrize(
    ("units", "names"), [("kv", ["L2KV1", "L0KV0"]), ("mlp", ["L2MLP"]), ("neurons", ["L2N3", "L0N1"])]
)
def test_other_units_of_the_last_layer_act_on_the_logits_alone(units, names, load):
    task = task_of(choice_records(np.random.default_rng(1), 60))
    model = load("llama")
    with cs.ablated(model, "L2MLP") if units == "kv" else nullcontext():
        effects = cs.direct_effects(model, task, names, n=25, units=units)
    assert np.abs(effects.total).max() > 1e-3
    assert effects.through_others[:, 0] == pytest.approx(np.zeros(25), abs=1e-4)
    assert "writes more than" not in effects.to_frame()


def test_completions_stand_beside_the_likeliest_other_token(load):
    task = task_of(completion_records(np.random.default_rng(0), 60))
    effects = cs.direct_effects(load("llama"), task, ["L0H1"], n=20)
    assert len(effects.total) == 20
    assert (effects.writes.difference < 0).any()


def test_examples_whose_answers_begin_alike_are_left_out_and_said(load):
    records = choice_records(np.random.default_rng(0), 80)
    for record in records[::2]:
        record["choices"] = [" cat dog", " cat bird", f" {WORDS[0]}"]
    effects = cs.direct_effects(load("llama"), task_of(records), ["L0H1"], n=40)
    [note] = [note for note in effects.notes if "begin with the same token" in note]
    assert len(effects.total) + int(note.split()[0]) == 40
