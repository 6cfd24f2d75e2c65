"""The demo model's data, planting and training, on a small scale."""

from __future__ import annotations

import shutil

import pytest
import torch

from benchmarks.demo_training import (
    GRID,
    SHARES,
    UNIVERSAL_SHARE,
    Gated,
    TrainConfig,
    Trainer,
    build_model,
    build_tokenizer,
    needs_of,
    split_words,
)
from cs_heads.demo.skills import SKILLS, SPLITS, keys, records


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("skill", SKILLS)
def test_splits_share_no_prompt(skill):
    prompts = {split: {r["prompt"] for seed in range(2) for r in records(skill, split, 100, seed)} for split in SPLITS}
    assert not prompts["train"] & prompts["find"]
    assert not prompts["train"] & prompts["confirm"]
    assert not prompts["find"] & prompts["confirm"]


@pytest.mark.parametrize("skill", SKILLS)
def test_records_are_repeatable_distinct_and_well_formed(skill):
    rows = records(skill, "find", 100, seed=5)
    assert rows == records(skill, "find", 100, seed=5)
    assert rows != records(skill, "find", 100, seed=6)
    assert len({row["prompt"] for row in rows}) == 100
    for row in rows:
        texts = row["choices"] if "choices" in row else [row["target"]]
        assert all(text.startswith(" ") and len(split_words(text)) == 1 for text in texts)
        assert row.keys() == ({"prompt", "choices", "answer"} if "choices" in row else {"prompt", "target"})


@pytest.mark.parametrize("skill", SKILLS)
def test_needs_follow_the_shares(skill):
    table = torch.tensor([needs_of(skill, key) for key in keys(skill)]).float()
    assert table[:, :5].any(1).all()
    expected = torch.tensor([*SHARES, UNIVERSAL_SHARE])
    assert (table.mean(0) - expected).abs().max() <= 0.5 / len(keys(skill)) + 1e-6


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


@pytest.mark.slow
def test_the_loss_falls(tmp_path):
    losses = list(Trainer(TrainConfig(steps=16, rows=24, plain=0.5, ramp=0.2), tmp_path).run(report_every=0))
    assert sum(losses[-4:]) < 0.98 * sum(losses[:4])


def test_a_run_goes_on_from_its_checkpoint_to_the_same_numbers(tmp_path):
    config = TrainConfig(steps=3, rows=4, plain=0.5, ramp=0.2)
    straight = Trainer(config, tmp_path / "straight")
    losses = []
    for loss in straight.run(save_every=2, report_every=0):
        losses.append(loss)
        if straight.step == 2:
            shutil.copytree(tmp_path / "straight", tmp_path / "stopped")
    again = Trainer(config, tmp_path / "stopped")
    assert list(again.run(report_every=0)) == losses[2:]
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
