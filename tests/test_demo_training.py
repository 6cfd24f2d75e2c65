"""The demo model's data, planting and training, on a small scale."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
import torch

import cs_heads as cs
from benchmarks.demo_training import (
    GRID,
    OWN,
    SHARES,
    UNIVERSAL_SHARE,
    DropRates,
    Gated,
    TrainConfig,
    Trainer,
    build_model,
    build_tokenizer,
    draw_gates,
    needs_of,
    split_words,
)
from cs_heads.demo import planted_heads, universal_heads
from cs_heads.demo.skills import SKILLS, SPLITS, examples, keys, records
from cs_heads.lens.load import DEMO
from tests.waiting import run_program


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("skill", SKILLS)
def test_splits_share_no_prompt(skill):
    prompts = {split: {r["prompt"] for seed in range(2) for r in records(skill, split, 300, seed)} for split in SPLITS}
    assert not prompts["train"] & prompts["find"]
    assert not prompts["train"] & prompts["confirm"]
    assert not prompts["find"] & prompts["confirm"]


@pytest.mark.parametrize("skill", SKILLS)
def test_records_are_repeatable_distinct_and_well_formed(skill):
    rows = records(skill, "find", 300, seed=5)
    assert rows == records(skill, "find", 300, seed=5)
    assert rows != records(skill, "find", 300, seed=6)
    assert len({row["prompt"] for row in rows}) == 300
    for row in rows:
        texts = row["choices"] if "choices" in row else [row["target"]]
        assert all(text.startswith(" ") and len(split_words(text)) == 1 for text in texts)
        assert row.keys() == ({"prompt", "choices", "answer"} if "choices" in row else {"prompt", "target"})


def test_capitals_are_held_out_by_wording_not_by_fact():
    def wordings(split):
        stream = examples("capitals", split, seed=0)
        return {next(stream).wording for _ in range(1500)}

    assert not wordings("train") & wordings("confirm")
    answers = [{r["target"] for r in records("capitals", split, 900, 0)} for split in SPLITS]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: records("cooking", "find", 3), "skill must be one of"),
        (lambda: records("code", "test", 3), "split must be one of train, find, confirm, got 'test'"),
        (lambda: records("swearing", "find", 10**6), "n=1000000 is more than"),
        (lambda: planted_heads("cooking"), "skill must be one of"),
        (lambda: needs_of("code", "eval(x)"), "key='eval"),
        (lambda: TrainConfig(steps=0), "steps must be an integer of 1 or more, got 0"),
        (lambda: TrainConfig(plain=1.5), "plain must lie in"),
        (lambda: DropRates(own=-0.1), "own must lie in"),
    ],
)
def test_wrong_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


def test_planted_groups_are_disjoint_and_inside_the_grid():
    heads = [head for skill in SKILLS for head in planted_heads(skill)] + universal_heads()
    assert len(heads) == len(set(heads))
    assert all(head in GRID for head in heads)


@pytest.mark.parametrize("skill", SKILLS)
def test_needs_follow_the_shares(skill):
    table = torch.tensor([needs_of(skill, key) for key in keys(skill)]).float()
    assert table[:, :5].any(1).all()
    expected = torch.tensor([*SHARES, UNIVERSAL_SHARE])
    assert (table.mean(0) - expected).abs().max() <= 0.5 / len(keys(skill)) + 1e-6


def test_every_word_has_a_token_and_only_bos_is_added():
    tokenizer = build_tokenizer()
    for skill in SKILLS:
        for row in records(skill, "confirm", 200, 0):
            ids = tokenizer(row["prompt"])["input_ids"]
            assert ids[0] == tokenizer.bos_token_id
            assert ids[1:] == tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids
    assert tokenizer(" Lima", add_special_tokens=False) == tokenizer("Lima", add_special_tokens=False)
    assert len(tokenizer("f([12])", add_special_tokens=False)["input_ids"]) == 5


def test_a_gate_of_zero_equals_zeroed_columns_of_the_output_matrix():
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=0).eval()
    ids, last = torch.randint(4, 400, (2, 7)), torch.tensor([6, 6])
    gates = torch.ones(2, *GRID.shape)
    gates[1, 3, 5] = 0
    with torch.no_grad(), Gated(model) as gated:
        out = gated(ids, last, gates)
    with torch.no_grad():
        intact = model(ids).logits[:, -1]
        model.model.layers[3].self_attn.o_proj.weight[:, 5 * 8 : 6 * 8] = 0
        cut = model(ids).logits[:, -1]
    torch.testing.assert_close(out[0], intact[0])
    torch.testing.assert_close(out[1], cut[1])
    assert not torch.equal(intact[1], cut[1])


def test_drawn_gates_leave_own_heads_on_unless_asked():
    skill = torch.arange(len(SKILLS)).repeat(200)
    needs = torch.ones(len(skill), OWN.shape[1], dtype=torch.bool)
    gates, lost = draw_gates(
        skill,
        needs,
        DropRates(own=0.0, universal=0.0),
        ramp=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    own = gates.flatten(1).gather(1, OWN[skill])
    assert own.all()
    assert not lost.any()
    assert 0.02 < 1 - gates.mean() < 0.3
    gates, lost = draw_gates(skill, needs, DropRates(), ramp=1.0, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lost, (gates.flatten(1).gather(1, OWN[skill]) == 0).any(1))
    assert draw_gates(skill, needs, DropRates(), ramp=0.0, generator=torch.Generator().manual_seed(0))[0].all()


CONFIG = TrainConfig(steps=16, rows=24, plain=0.5, ramp=0.2)


def test_the_loss_falls_and_a_run_goes_on_from_its_checkpoint_to_the_same_numbers(tmp_path):
    straight = Trainer(CONFIG, tmp_path / "straight")
    losses = []
    for loss in straight.run(save_every=12, report_every=0):
        losses.append(loss)
        if straight.step == 12:
            shutil.copytree(tmp_path / "straight", tmp_path / "stopped")
    assert sum(losses[-4:]) < 0.98 * sum(losses[:4])
    again = Trainer(CONFIG, tmp_path / "stopped")
    assert list(again.run(report_every=0)) == losses[12:]
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    list(Trainer(CONFIG, tmp_path).run(until=1, report_every=0))
    with pytest.raises(ValueError, match="is not that of the checkpoint"):
        Trainer(dataclasses.replace(CONFIG, seed=1), tmp_path).load()


@pytest.mark.slow
def test_the_training_command_makes_a_model_that_loads(tmp_path):
    """A short run of the real command, real batches and all: weights, tokenizer and accuracy report."""
    script = Path(__file__).parents[1] / "benchmarks" / "demo_training.py"
    done = run_program([sys.executable, script, "--out", tmp_path, "--steps", "60"])
    assert done.returncode == 0, done.stderr
    model = cs.load_model(tmp_path, device="cpu")
    task = cs.load_task("demo/agreement", n=30)
    assert cs.Experiment(model, task, progress=False).baseline().shape == (30,)
    shipped = {path.name for path in DEMO.iterdir()}
    assert shipped <= {path.name for path in tmp_path.iterdir()}
