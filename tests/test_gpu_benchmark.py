"""The benchmark of a GPU runs to its end without one, on a tiny model, and says what it needs."""

import json
import sys
from pathlib import Path

import pytest

from tests.waiting import run_program

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"

if not SCRIPT.is_file():
    pytest.skip("benchmarks/gpu.py is not here: its tests need a checkout", allow_module_level=True)


def test_missing_packages_are_named():
    # Without its site-packages Python finds none of them.
    done = run_program([sys.executable, "-I", "-S", SCRIPT, "--tiny"])
    assert done.returncode == 1
    assert "benchmarks/gpu.py needs packages that are not here: torch, transformers" in done.stderr
    assert "benchmarks/gpu_wheels.sh" in done.stderr


def test_shapes_of_real_models_are_not_run_on_a_cpu():
    done = run_program([sys.executable, SCRIPT, "--device", "cpu"])
    assert done.returncode == 2
    assert "on a CPU only --tiny ends in reasonable time" in done.stderr


LOST = """
import sys, torch
sys.path.insert(0, {folder!r})
import gpu

def lost():
    raise torch.AcceleratorError("CUDA error: the device is lost\\nmore of it")

def workloads(subject, size):
    first = {{"engine": list, "Hugging Face, no hook (the ceiling)": list}}
    return {{"first": first, "second": {{"engine": lost}}}}

gpu.workloads = workloads
sys.argv = ["gpu.py", "--tiny", "--models", "tiny", "llama-3.2-1b", "--device", "cpu", "--out", {out!r}]
gpu.main()
"""


def test_what_was_measured_before_a_device_is_lost_is_kept(tmp_path):
    out = tmp_path / "gpu.json"
    done = run_program([sys.executable, "-c", LOST.format(folder=str(SCRIPT.parent), out=str(out))])
    assert done.returncode == 1
    assert (
        "benchmarks/gpu.py did not measure all: tiny: AcceleratorError: CUDA error: the device is lost" in done.stderr
    )
    found = json.loads(out.read_text())
    assert list(found["models"]) == ["tiny"]
    assert found["models"]["tiny"]["tokens_per_second"] > 0
    assert list(found["models"]["tiny"]["workloads"]) == ["first"]
    assert found["faults"] == ["tiny: AcceleratorError: CUDA error: the device is lost"]


LATE = """
import sys
sys.path.insert(0, {folder!r})
import gpu

now = [0.0]

def takes(seconds):
    def way():
        now[0] += seconds
        return []
    return way

def workloads(subject, size):
    first = {{"engine": takes(10_000), "Hugging Face, no hook (the ceiling)": takes(5000)}}
    return {{"first": first, "second": {{"engine": takes(1)}}, "third": {{"engine": takes(1)}}}}

gpu.workloads, gpu.perf_counter = workloads, lambda: now[0]
sys.argv = ["gpu.py", "--tiny", "--device", "cpu"]
gpu.main()
"""


def test_when_time_is_up_first_runs_count_and_further_workloads_are_named(tmp_path):
    done = run_program([sys.executable, "-c", LATE.format(folder=str(SCRIPT.parent))], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<!-- tiny: left out for want of time: second, third -->" in done.stdout
    # The file that is written where none is named.
    found = json.loads((tmp_path / "gpu.json").read_text())["models"]["tiny"]
    assert found["left_out"] == ["second", "third"]
    assert list(found["workloads"]) == ["first"]
    ways = found["workloads"]["first"].values()
    assert [(way["rounds"], way["seconds"], way["ratio"]) for way in ways] == [(0, 10_000, 1), (0, 5000, 0.5)]


@pytest.mark.slow
def test_it_runs_to_its_end_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = run_program([sys.executable, SCRIPT, "--tiny", "--device", "cpu", "--out", out])
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["device"], found["profile"]) == ("no GPU: cpu", "tiny")
    measured = found["models"]["tiny"]["workloads"]
    assert len(measured) == 6
    assert found["faults"] == []
    assert all(way["rounds"] == 1 for ways in measured.values() for way in ways.values())
    assert found["models"]["tiny"]["share_of_matrix_rate"] > 0
    for ways in measured.values():
        assert "engine" in ways
        assert len(ways) > 1
        # Log-probabilities of all ways are the same.
        assert all((way["difference"] or 0) < 1e-4 and way["seconds"] > 0 for way in ways.values())
