import ast
import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import cs_heads
from tests.waiting import run_program

PACKAGE = Path(cs_heads.__file__).parent

# What takes a tenth of a second or more to import.
HEAVY = {
    *("torch", "transformer_lens", "transformers", "matplotlib", "pandas", "sklearn", "scipy", "circuitsvis"),
    *("ray", "lm_eval", "jaxtyping", "beartype", "einops", "tqdm", "jinja2", "numpy", "sqlite3", "pyarrow"),
}

# A line that breaks each contract of pyproject.toml, and the module it is put into.
BROKEN = {
    "A room imports from its own floor or below": ("lens.load", "from cs_heads.engine import Engine"),
    "No modules or rooms import each other": ("lens.model", "from cs_heads.lens.load import load_model"),
    "Masks know nothing": ("designs", "import cs_heads.lens.gates"),
    "Rankings know nothing": ("ranking", "from cs_heads.designs import single"),
    "The lens knows nothing": ("lens", "from ..tasks import Task"),
    "Methods know nothing of each other": ("methods.greedy", "from .annealing import measurements"),
    "The whole package": ("plot.guides", "import cs_heads as cs"),
    "TransformerLens and transformers": ("tasks.load", "if TYPE_CHECKING:\n    import transformers"),
    "lm-eval": ("tasks.data_files", "import lm_eval"),
    "Ray": ("experiment.experiment", "import ray"),
    "Drawing": ("cli", "from matplotlib.figure import Figure"),
    "CircuitsVis": ("analysis.attention", "import circuitsvis as cv"),
    "Templates": ("analysis.failures", "from jinja2 import Template"),
    "Statistics": ("lens.logprobs", "from scipy import stats"),
    "Torch": ("methods.find", "def f():\n    from torch import Tensor"),
}


@pytest.fixture
def lint(tmp_path):
    """Runs import-linter with the contracts of pyproject.toml on a copy of the package."""
    copy = tmp_path / "cs_heads"
    shutil.copytree(PACKAGE, copy, ignore=lambda folder, names: {n for n in names if Path(n).suffix not in ("", ".py")})

    def run(lines: dict[str, str]) -> str:
        for module, line in lines.items():
            path = copy.joinpath(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            with path.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")
        command = [
            Path(sys.executable).parent / "lint-imports",
            "--no-cache",
            "--config",
            PACKAGE.parent / "pyproject.toml",
        ]
        return run_program(command, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"}).stdout

    return run


def verdicts(said: str) -> dict[str, str]:
    """KEPT or BROKEN by the name of the contract."""
    return dict(re.findall(r"^(.+?) (KEPT|BROKEN)\b", said, flags=re.MULTILINE))


def test_modules_keep_the_import_contracts(lint):
    said = lint({})
    assert set(verdicts(said).values()) == {"KEPT"}, said


def test_each_contract_sees_what_breaks_it(lint):
    said = lint({**dict(BROKEN.values()), "attic": ""})
    found = verdicts(said)
    assert set(found.values()) == {"BROKEN"}, said
    assert len(found) == len(BROKEN)
    for name in BROKEN:
        assert any(contract.startswith(name) for contract in found), name
    for module, _ in BROKEN.values():
        assert f"cs_heads.{module} " in said, module
    assert "attic" in said


# A light import


def run_python(code: str) -> str:
    run = run_program([sys.executable, "-c", code])
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_imports_nothing_heavy():
    """What a user waits for; ``benchmarks/importing.py`` takes the time."""
    loaded = set(run_python("import sys, cs_heads; print(*sys.modules)").split())
    assert "cs_heads" in loaded
    assert not HEAVY & loaded


WRONG = {
    "k": ["--k", "0"],
    "off": ["--off", "head"],
    "out": ["--out", f"{__file__}/out"],
    "task": ["--task", "demo/nothing"],
    "option of the task": ["--task-option", "choices=4"],
    "no number": ["--k", "five"],
}


def test_a_wrong_argument_is_refused_without_importing_what_runs_models():
    """Who mistypes one does not wait for seconds; nor who asks for help."""
    code = f"""
import sys
from cs_heads.cli import main
heavy = {{"torch", "transformer_lens", "transformers", "sklearn", "scipy.stats", "pandas"}}
for name, wrong in {WRONG!r}.items():
    try:
        status = main(["find", "--model", "demo", "--task", "demo/code", *wrong])
    except SystemExit as end:
        status = end.code
    print(name, status, *(heavy & set(sys.modules)))
print("screen of an atlas", main(["atlas", "--model", "demo", "--screen", "gradient"]), *(heavy & set(sys.modules)))
main(["find", "--help"])
print("help", *(heavy & set(sys.modules)))
"""
    said = run_python(code).splitlines()
    assert [line for line in said if line in {f"{name} 2" for name in WRONG}] == [f"{name} 2" for name in WRONG]
    assert "screen of an atlas 2" in said
    assert said[-1] == "help"


# The public names


def stub_exports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of each name that a stub exports."""
    package = ".".join(["cs_heads", *path.relative_to(PACKAGE).parent.parts])
    return [
        (f"{package}.{node.module}" if node.module else package, alias.name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_every_exported_name_resolves_to_what_its_stub_says(stub):
    package = importlib.import_module(".".join(["cs_heads", *stub.relative_to(PACKAGE).parent.parts]))
    exports = stub_exports(stub)
    assert sorted(package.__all__) == sorted(name for _, name in exports)
    for module, name in exports:
        source = importlib.import_module(module)
        submodule = f"{module}.{name}"
        expected = importlib.import_module(submodule) if source is package else getattr(source, name)
        assert getattr(package, name) is expected
