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


@pytest.mark.slow
def test_it_runs_to_its_end_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = run_program([sys.executable, SCRIPT, "--tiny", "--device", "cpu", "--out", out])
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["device"], found["profile"]) == ("no GPU: cpu", "tiny")
    measured = found["models"]["tiny"]["workloads"]
    assert len(measured) == 6
    for ways in measured.values():
        assert "engine" in ways
        assert len(ways) > 1
        # Log-probabilities of all ways are the same.
        assert all((way["difference"] or 0) < 1e-4 and way["seconds"] > 0 for way in ways.values())
