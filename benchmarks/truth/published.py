"""Published models written into a GPT-2 of 64 heads with decoys: transformers that judge brackets.

    python -m benchmarks.truth.published FOLDER
    python -m benchmarks.truth.run --published FOLDER ... --out benchmarks/truth/models.csv

A folder is a checkout of one of these repositories. Nothing of them is part of this one.

- ``brian-naughton/verified-circuits``: transformers of two layers and two heads, trained until every string of
  brackets is judged right. Their weights are written into heads as they are.
- ``princeton-nlp/TransformerPrograms``: see ``transformer_programs``.

Which heads matter is measured, each off by itself. The first command compares every model of brackets with the
original, on all strings, and says what the original gets right with each set of its heads off.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .builder import BOS, CUES, NO, SHARP, YES, Builder, Form, HeadOp, UnitsOp, Variable
from .compiler import LOGIT
from .programs import Digits, Program, place
from .putting import placed, put
from .suite import Spec, TrueModel
from .transformer_programs import turned

PROGRAMS = {
    "rasp/hist": (4, 7),
    "rasp_categorical_only/reverse": (2, 5),
    "rasp_categorical_only/sort": (2, 5),
    "rasp_categorical_only/dyck1": (15, 8),
    "rasp_categorical_only/dyck2": (15, 8),
}
"""The positions whose answer is the task and its control, of each program."""
# What a cue adds to what it lets through, what a head never looks at, and what variables are divided by.
_GATE, _NEVER, _LARGE = 1000.0, -300.0, 64.0

CONTROL = place(3)
"""The control of brackets."""

Stream = list[tuple[Variable, np.ndarray]]
"""A sum of variables, each times a matrix."""


def read(stream: Stream, weights: np.ndarray) -> Stream:
    """A stream times a matrix."""
    return [(variable, matrix @ weights) for variable, matrix in stream]


def forms(left: Stream, right: Stream) -> list[Form]:
    """The product of two streams."""
    return [Form(a, one @ other.T, b) for (a, one), (b, other) in product(left, right)]


def weights(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The sizes and the weights of a model of brackets, from its file of hexadecimal numbers."""

    def numbers(given: Any) -> Any:
        return [numbers(each) for each in given] if isinstance(given, list) else float.fromhex(given)

    told = json.loads(file.read_text())
    return told["cfg"], {name: np.array(numbers(each)) for name, each in told["state_dict_hex"].items()}


def written(told: dict[str, Any], w: dict[str, np.ndarray]) -> Builder:
    """The operations of a model of brackets; under another cue the digit at a place, by a head of our own."""
    size, d_head = told["d"], told["d"] // told["heads"]
    builder = Builder(told["n"])
    stream: Stream = [(builder.digits[:2], w["tok.weight"]), (builder.places, np.pad(w["pos"], [(1, 1), (0, 0)]))]
    for block in range(told["layers"]):
        query, key, value, output = (w[f"blocks.{block}.W{each}.weight"].T for each in "qkvo")
        before = list(stream)
        for start in range(0, size, d_head):
            part = slice(start, start + d_head)
            scores = forms(read(before, query[:, part] / np.sqrt(d_head)), read(before, key[:, part]))
            found = builder.variable(d_head)
            moves = tuple(Form(each, matrix, found) for each, matrix in read(before, value[:, part] / _LARGE))
            builder.ops.append(HeadOp((*scores, *builder.at([0], _NEVER)), moves))
            stream.append((found, output[part] * _LARGE))
        (hidden, hidden_bias), (back, bias) = (
            (w[f"blocks.{block}.mlp{number}.weight"].T, w[f"blocks.{block}.mlp{number}.bias"]) for number in (1, 2)
        )
        found = builder.units(read(stream, hidden), hidden_bias, back / _LARGE)
        stream += [(found, np.eye(size) * _LARGE), (builder.one, bias[None])]
    pooled = builder.variable(size)
    everywhere = tuple(builder.at(range(1, builder.n + 1), 2 * SHARP))
    builder.ops.append(HeadOp(everywhere, tuple(Form(each, matrix / _LARGE, pooled) for each, matrix in stream)))
    said = np.zeros((size + 1, builder.logits.width))
    said[:, [NO, YES]] = np.concatenate([w["h2.weight"].T, w["h2.bias"][None]]) / LOGIT
    # Under another cue no hidden unit is above 0; the last one is 1 under this one.
    gate = np.append(np.full(size, _GATE), 1.0)[None]
    summed = np.pad(builder.n * _LARGE * w["h1.weight"].T, [(0, 0), (0, 1)])
    bias = np.append(w["h1.bias"] - _GATE, 0.0)
    builder.ops.append(UnitsOp(((pooled, summed), (builder.cues[:1], gate)), bias, said, builder.logits))
    builder.answer(CONTROL.write(builder), 1)
    return builder


def brackets(file: Path, seed: int = 0) -> TrueModel:
    """A model that says whether brackets are balanced."""
    told, w = weights(file)
    programs = (Program("balanced", balanced, CONTROL.write, _bits, choice=True), CONTROL)
    spec = Spec("published", 8, 8, seed, file.name.split(".")[0])
    return put(spec, written(told, w), programs, told["n"])


def balanced(x: Digits) -> bool:
    """Whether every closing bracket, 1, closes an opening one, 0, and none stays open."""
    depth = np.cumsum(1 - 2 * np.array(x))
    return bool(depth[-1] == 0 and depth.min() >= 0)


def _bits(rng: np.random.Generator, n: int) -> Any:
    """Any bits, or as many of both."""
    return rng.integers(2, size=n) if rng.random() < 0.5 else rng.permutation(np.arange(n) % 2)


def models(folder: Path) -> dict[str, Callable[[], TrueModel]]:
    """What can be made of a checkout, by name.

    Raises:
        ValueError: Nothing of the two repositories is there.
    """
    found: dict[str, Callable[[], TrueModel]] = {}
    # Ten brackets are balanced in 42 ways, which are no task.
    for file in sorted(folder.glob("certificates/dyck16*.weights.json")):
        found[file.name.split(".")[0]] = partial(brackets, file, seed=len(found))
    for name, positions in PROGRAMS.items():
        file = folder / "programs" / name / f"{Path(name).name}.py"
        if file.exists():
            found[name.replace("/", "-")] = partial(turned, file, positions, seed=len(found))
    if not found:
        raise ValueError(f"folder must be a checkout of verified-circuits or TransformerPrograms, got {folder}")
    return found


def compare(folder: Path, file: Path, n: int) -> list[str]:
    """A model of brackets beside the original: on ``n`` strings the decisions, and on all what sets of heads carry."""
    found = spec_from_file_location("original", folder / "vcirc" / "model.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    told, w = weights(file)
    original = module.TinyTransformer(**told)
    strings = torch.tensor([*product((0, 1), repeat=told["n"])])
    some = strings[torch.randperm(len(strings), generator=torch.Generator().manual_seed(0))[:n]]
    state = {name: torch.tensor(each, dtype=torch.float32) for name, each in w.items()}
    original.load_state_dict(state)
    model = placed(Spec("published", 8, 8, 0), written(told, w))[1]
    prompts = torch.nn.functional.pad(torch.nn.functional.pad(some + 1, (1, 0), value=BOS), (0, 1), value=CUES)
    truth = torch.tensor([balanced(string) for string in strings.tolist()])
    lines = []
    with torch.no_grad():
        said = torch.cat([model(each, use_cache=False).logits[:, -1, [NO, YES]] for each in prompts.split(512)])
        wrong = int((said.argmax(-1) != original(some).argmax(-1)).sum())
        lines.append(f"{file.name}: {wrong} of {len(some)} decisions are not those of the original")
        heads = [*product(range(told["layers"]), range(told["heads"]))]
        for on in product((1.0, 0.0), repeat=len(heads)):
            for (block, head), each in zip(heads, on, strict=True):
                matrix = f"blocks.{block}.Wo.weight"
                part = slice(head * told["d"] // told["heads"], (head + 1) * told["d"] // told["heads"])
                original.get_parameter(matrix)[:, part] = each * state[matrix][:, part]
            says = torch.cat([original(each).argmax(-1) == 1 for each in strings.split(8192)])
            off = [f"{block}.{head}" for (block, head), each in zip(heads, on, strict=True) if not each]
            rates = (float((says == truth)[truth == each].float().mean()) for each in (True, False))
            lines.append(f"  off {off}: right on {next(rates):.4f} of balanced, {next(rates):.4f} of other strings")
    return lines


def main() -> None:
    """Compare models of brackets with the originals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkout of verified-circuits")
    parser.add_argument("--strings", type=int, default=2**16, help="of each model that decisions are compared on")
    options = parser.parse_args()
    for file in sorted(options.folder.glob("certificates/*.weights.json")):
        print(*compare(options.folder, file, options.strings), sep="\n", flush=True)


if __name__ == "__main__":
    main()
