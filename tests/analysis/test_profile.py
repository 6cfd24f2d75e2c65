"""Where the time of a measurement goes: tokens, padding and multiplications of random masks on a task."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.analysis import Profile
from cs_heads.cli import main
from cs_heads.lens.timing import PARTS
from tests.integer_models import save_sorting_model
from tests.tiny import completion_records

SECONDS = dict(zip(PARTS, (2.0, 4.0, 1.0, 1.5, 1.0, 0.5), strict=True))
MEASURED = Profile("tiny", "cpu", "float32", "own", 20, 10, SECONDS, 3, 4000, 5000, 6 * 10**9, 2e9)


def a_task(n=30):
    return cs.Task.from_records(completion_records(np.random.default_rng(0), n))


def test_the_speed_is_held_against_that_of_a_matrix_product():
    assert MEASURED.total == 10
    assert MEASURED.padding == 1.25
    assert MEASURED.tokens_per_second == 400
    assert MEASURED.share_of_matrix_rate == 0.3
    assert str(MEASURED).splitlines() == [
        "20 random masks on 10 examples of own",
        "attention             2.000 s   20.0%",
        "MLP                   4.000 s   40.0%",
        "unembedding           1.000 s   10.0%",
        "rest of the model     1.500 s   15.0%",
        "hooks and gates       1.000 s   10.0%",
        "outside forwards      0.500 s    5.0%",
        "all                  10.000 s  100.0%",
        "tokens      4,000 in 3 forwards; with padding 1.25 times as many",
        "speed       400 tokens a second",
        "matrix rate 2 GFLOP/s (float32, cpu); the model: 30.0% of it",
    ]


def test_of_a_mixture_of_experts_no_share_is_guessed():
    found = replace(MEASURED, flops=None)
    assert found.share_of_matrix_rate is None
    assert str(found).endswith("the model: no share of it is known for a mixture of experts")


def test_twenty_masks_or_as_many_as_fill_a_forward_are_measured_on_twenty_examples(load, backend):
    model, task = load("llama", backend), a_task()
    found = cs.profile_model(model, task)
    n_tokens = sum(len(example.prompt) for example in cs.Experiment(model, task.take(20)).encoded)
    assert found.n_masks == max(20, -(-4096 // n_tokens))
    assert found.n_examples == 20
    assert tuple(found.seconds) == PARTS
    assert min(found.seconds.values()) > 0
    assert found.total == pytest.approx(sum(found.seconds.values()))
    assert 0 < found.tokens <= found.padded_tokens
    assert found.flops > 0
    assert (found.dtype, found.device) == ("float32", "cpu")


def test_tokens_are_those_that_forwards_run(load, backend, monkeypatch):
    """Prefixes of several examples once for a mask, none of the intact run before."""
    from cs_heads.engine import forwards

    run, counted = forwards.token_logprobs, []

    def counting(model, tokens, attention_mask, *arguments, **options):
        counted.append((int(attention_mask.sum()), attention_mask.numel()))
        return run(model, tokens, attention_mask, *arguments, **options)

    monkeypatch.setattr(forwards, "token_logprobs", counting)
    found = cs.profile_model(load("llama", backend), a_task())
    last = counted[-found.forwards :]
    assert (found.tokens, found.padded_tokens) == tuple(map(sum, zip(*last, strict=True)))


def test_a_model_without_a_tokenizer_is_measured_on_random_tokens(tmp_path):
    found = cs.profile_model(cs.load_model(save_sorting_model(tmp_path), device="cpu"))
    assert (found.task, found.n_examples) == ("random tokens", 20)


def test_from_a_shell_the_profile_comes_after_the_checks(folders, capsys):
    folder = str(folders("llama"))
    assert main(["doctor", folder, "--device", "cpu", "--profile"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"model {folder}: "))
    assert lines[at + 1] == ""
    assert lines[at + 2].endswith(" random masks on 20 examples of everyday/indirect_object")
    assert [line[:18].strip() for line in lines[at + 3 : at + 9]] == list(PARTS)
    assert main(["doctor", folder, "--device", "cpu", "--profile", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["profile"]["model"]
    assert said["profile"]["total"] == pytest.approx(sum(said["profile"]["seconds"].values()))
    assert main(["doctor", folder, "--device", "cpu", "--json"]) == 0
    assert "profile" not in json.loads(capsys.readouterr().out)


def test_a_model_that_fails_a_check_is_not_profiled(folders, tmp_path, capsys):
    folder = shutil.copytree(folders("llama"), tmp_path / "broken")
    (folder / "model.safetensors").write_bytes(b"")
    assert main(["doctor", str(folder), "--device", "cpu", "--profile", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["profile"] is None
