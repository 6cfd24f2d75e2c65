import os

# Model hubs are never asked in tests, and no window is opened.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.tiny import load_tokenizer, save_model

BACKENDS = ("bridge", "hooked") if version("transformer-lens").startswith("3.") else ("bridge",)


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
        if (architecture, backend) not in loaded:
            loaded[architecture, backend] = load_model(folders(architecture), device="cpu", backend=backend)
            # Beside a Qwen2 model transformers turns any tokenizer into Qwen2's own class, words or not.
            if architecture == "qwen2":
                loaded[architecture, backend].tokenizer = load_tokenizer(folders("llama"))
        return loaded[architecture, backend]

    return model


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of real models and data; tests that use it are skipped where it is absent."""
    folder = Path(os.environ.get("CS_HEADS_REAL", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"real models and data are not at CS_HEADS_REAL={folder}")
    return folder
