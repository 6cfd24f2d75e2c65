"""Where the time of a measurement goes: operations of random masks on a task."""

import json
import shutil

import numpy as np

import cs_heads as cs
from cs_heads.analysis import Profile
from cs_heads.cli import main
from tests.integer_models import save_sorting_model
from tests.tiny import completion_records


def test_the_speed_is_held_against_that_of_a_matrix_product():
    seconds = {"aten::addmm": 7.0, **{f"aten::other{i}": 0.25 for i in range(12)}}
    found = Profile("tiny", "cpu", "float32", "own", 20, 10, seconds, 6 * 10**9, 2e9)
    assert (found.total, found.share_of_matrix_rate) == (10, 0.3)
    lines = str(found).splitlines()
    assert lines[0] == "20 random masks on 10 examples of own"
    assert [line.split() for line in (lines[1], *lines[-3:-1])] == [
        ["addmm", "7.000", "s", "70.0%"],
        ["3", "others", "0.750", "s", "7.5%"],
        ["all", "10.000", "s", "100.0%"],
    ]
    assert lines[-1] == "matrix rate 2 GFLOP/s (float32, cpu); the model: 30.0% of it"


def test_twenty_masks_or_as_many_as_fill_a_forward_are_measured_on_twenty_examples(load, backend):
    model, task = load("llama", backend), cs.Task.from_records(completion_records(np.random.default_rng(0), 30))
    found = cs.profile_model(model, task)
    n_tokens = sum(len(example.prompt) for example in cs.Experiment(model, task.take(20)).encoded)
    assert (found.n_masks, found.n_examples) == (max(20, -(-4096 // n_tokens)), 20)
    assert {"aten::addmm", "aten::mm"} & {*found.seconds}
    assert list(found.seconds.values()) == sorted(found.seconds.values(), reverse=True)
    assert 0 < found.share_of_matrix_rate < 1
    assert (found.dtype, found.device) == ("float32", "cpu")


def test_a_model_without_a_tokenizer_is_measured_on_random_tokens(tmp_path):
    found = cs.profile_model(cs.load_model(save_sorting_model(tmp_path), device="cpu"))
    assert (found.task, found.n_examples) == ("random tokens", 20)


def test_from_a_shell_the_profile_comes_after_the_checks(folders, capsys):
    folder = str(folders("llama"))
    assert main(["doctor", folder, "--device", "cpu", "--profile"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"model {folder}: "))
    assert lines[at + 2].endswith(" random masks on 20 examples of everyday/indirect_object")
    assert main(["doctor", folder, "--device", "cpu", "--profile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["share_of_matrix_rate"] > 0
    assert main(["doctor", folder, "--device", "cpu", "--json"]) == 0
    assert "profile" not in json.loads(capsys.readouterr().out)


def test_a_model_that_fails_a_check_is_not_profiled(folders, tmp_path, capsys):
    folder = shutil.copytree(folders("llama"), tmp_path / "broken")
    (folder / "model.safetensors").write_bytes(b"")
    assert main(["doctor", str(folder), "--device", "cpu", "--profile", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["profile"] is None
