"""What the engine does on a GPU, against Hugging Face on the same weights: a table, and a JSON file.

    python benchmarks/gpu.py [--quick] [--models llama-3.2-1b llama-3.1-8b qwen2.5-7b] [--out FILE]
    python benchmarks/gpu.py --tiny --device cpu

Models of random weights, drawn on the device in bfloat16, in the shapes of real ones; nothing is downloaded. Ways to
the same numbers run in turn; times are medians, and a ratio says how many times as long as the engine a way takes. No
workload begins after nine minutes (``--quick``: two), and those left out are named; what has begun runs every way once.
The JSON file, ``gpu.json`` in the current folder if not said otherwise, counts the rounds: where there are none, the
time is that of the first run. What it needs beside torch and transformers, this package too,
``benchmarks/gpu_wheels.sh`` collects.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

_NEEDED = (
    *("torch", "transformers", "tokenizers", "accelerate", "transformer_lens", "jaxtyping", "einops", "lazy_loader"),
    *("numpy", "pandas", "scipy", "psutil", "tqdm", "safetensors", "cs_heads"),
)
_missing = ", ".join(name for name in _NEEDED if find_spec(name) is None)
if _missing:
    sys.exit(f"benchmarks/gpu.py needs packages that are not here: {_missing} (see benchmarks/gpu_wheels.sh)")
if find_spec("datasets") is None:
    # TransformerLens imports three names from it, for what is not done here; it and its needs are large.
    _stand_ins = {"arrow_dataset": "Dataset", "iterable_dataset": "IterableDataset", "load": "load_dataset"}
    _datasets = sys.modules["datasets"] = ModuleType("datasets")
    for _module, _name in _stand_ins.items():
        sys.modules[f"datasets.{_module}"] = ModuleType(f"datasets.{_module}")
        for _holder in (_datasets, sys.modules[f"datasets.{_module}"]):
            setattr(_holder, _name, type(_name, (), {}))

import numpy as np
import torch
import transformers
from engine import FUSED, NO_RESUME, hooked_rows, score, write
from engine_models import RandomTexts
from engine_rivals import generate_per_mask, hugging_face
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config
from transformers.initialization import no_init_weights

import cs_heads as cs
from cs_heads import designs
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.forward import last_logits
from cs_heads.lens.model import evaluating
from cs_heads.lens.timing import matrix_rate
from cs_heads.units import Grid

Way = Callable[[], Any]


@dataclass(frozen=True)
class Part:
    """One of ``of`` equal parts of a way that would take too long; its times are multiplied."""

    run: Way
    of: int

    def __call__(self) -> Any:
        """Run this part."""
        return self.run()


SHAPES: dict[str, Any] = {
    "llama-3.2-1b": lambda: LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        head_dim=64, vocab_size=128_256, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
    "llama-3.1-8b": lambda: LlamaConfig(
        hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128_256, max_position_embeddings=8192, tie_word_embeddings=False,
    ),
    "qwen2.5-7b": lambda: Qwen2Config(
        hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152_064, max_position_embeddings=8192, tie_word_embeddings=False,
    ),
    "tiny": lambda: LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=512, max_position_embeddings=512, tie_word_embeddings=True,
    ),
}  # fmt: skip

# What must hold on a GPU: times faster than one mask at a time, at least, by workload; the time over the unhooked
# forward at most; and at 8B the share of the matrix rate at least.
_FASTER = {"four short choices": 3.0, "256 shared tokens": 6.0}
_OVER_CEILING, _SHARE_AT_8B = 1.10, 0.40
_ONE_AT_A_TIME = "Hugging Face, one mask at a time"


@dataclass(frozen=True)
class Size:
    """How much is measured: rounds at most, seconds in all, and what a workload is made of."""

    rounds: int
    seconds: float
    rows: tuple[int, int] = (256, 64)
    examples: int = 32
    masks: int = 16
    singles: int = 48
    light_masks: int = 32
    tokens: int = 64
    gating: tuple[int, int] = (20, 4)
    shared: int = 256


FULL = Size(rounds=5, seconds=540.0)
QUICK = Size(2, 110.0, (128, 64), examples=16, masks=8, singles=24, light_masks=16, gating=(20, 2))
TINY = Size(1, 3600.0, (8, 16), examples=4, masks=3, singles=6, light_masks=3, tokens=8, gating=(20, 2), shared=32)


class Subject(RandomTexts):
    """One set of random weights twice: as plain Hugging Face, and as a bridge around a second shell."""

    def __init__(self, name: str, device: torch.device, dtype: torch.dtype) -> None:
        from transformer_lens.model_bridge import TransformerBridge

        self.name, self.device = name, device
        self.hf = _made(name, device, dtype)
        _draw(self.hf, device)
        shell = _made(name, torch.device("meta"), dtype)
        shell.load_state_dict(self.hf.state_dict(), assign=True)
        for path, buffer in self.hf.named_buffers():
            module, _, own = path.rpartition(".")
            shell.get_submodule(module)._buffers[own] = buffer
        shell.tie_weights()
        with tempfile.TemporaryDirectory() as folder:
            self.hf.config.save_pretrained(folder)
            words = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
            PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<unk>").save_pretrained(
                folder
            )
            # A bridge looks at the tokenizer's folder, once.
            tokenizer = AutoTokenizer.from_pretrained(folder)
            bridge = TransformerBridge.boot_transformers(folder, hf_model=shell, tokenizer=tokenizer, device=device)
        bridge.cfg.model_name = name
        self.bridge = cs.load_model(bridge)
        self.grid = Grid.from_model(self.bridge)
        self.rng = np.random.default_rng(0)

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return sum(p.numel() * p.itemsize for p in self.hf.parameters())

    @property
    def layer_weights(self) -> int:
        """Weights by which every token is multiplied; the unembedding meets those that are read alone."""
        return sum(p.numel() for path, p in self.hf.named_parameters() if ".layers." in path)


def _made(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model with memory for its weights and nothing in it; its rotary tables are computed."""
    with device, no_init_weights():
        model = AutoModelForCausalLM.from_config(SHAPES[name](), dtype=dtype, attn_implementation="sdpa")
    model.tie_weights()
    return model.eval().requires_grad_(False)


def _draw(model: Any, device: torch.device) -> None:
    """Random weights, drawn where they lie; larger than at the start of training, so that heads matter."""
    generator = torch.Generator(device).manual_seed(0)
    for path, parameter in model.named_parameters():
        if path.endswith("norm.weight"):
            parameter.fill_(1)
        else:
            parameter.normal_(0, 2 / model.config.hidden_size**0.5, generator=generator)


def workloads(subject: Subject, size: Size) -> dict[str, dict[str, Way]]:
    """What is measured, by workload: ways by name, the engine's first."""
    grid, hf = subject.grid, subject.hf
    drawn = designs.stratified(grid, size.masks, 0.05, seed=0)
    short = subject.examples(size.examples, (20, 30), choices=4)
    few_shot = subject.examples(size.examples // 2, (12, 20), choices=2, shared=size.shared)
    plain = subject.examples(size.examples, (20, 30), choices=1)
    single = designs.single(grid)[:: max(1, grid.size // size.singles)]
    openings = subject.examples(8, (20, 30), choices=1)
    light = np.unique(designs.stratified(grid, size.light_masks, max(0.02, 1 / grid.size), seed=0), axis=0)
    rows = [EncodedExample(subject.text(size.rows[1], size.rows[1]), ((3,),), False) for _ in range(size.rows[0])]
    tokens = torch.tensor([example.prompt for example in rows], device=subject.device)

    def ceiling() -> list[Any]:
        with torch.no_grad():
            hf(tokens, use_cache=False, logits_to_keep=1)
        return []

    def per_mask(examples: list[EncodedExample], masks: np.ndarray) -> Way:
        return lambda: hugging_face(hf, examples, masks)

    return {
        f"{size.rows[0]} × {size.rows[1]} tokens, each row its mask": {
            "engine": hooked_rows(subject, rows),
            "Hugging Face, no hook (the ceiling)": ceiling,
        },
        "four short choices": {
            "engine": score(subject, short, drawn, Abilities()),
            "engine, nothing shared": score(subject, short, drawn, FUSED),
            _ONE_AT_A_TIME: per_mask(short, drawn),
        },
        f"{size.shared} shared tokens": {
            "engine": score(subject, few_shot, drawn[: len(drawn) // 2 or 1], Abilities()),
            _ONE_AT_A_TIME: per_mask(few_shot, drawn[: len(drawn) // 2 or 1]),
        },
        "single-head sweep": {
            "engine": score(subject, plain, single, Abilities()),
            "engine without resuming": score(subject, plain, single, NO_RESUME),
            _ONE_AT_A_TIME: per_mask(plain, single),
        },
        f"{size.tokens}-token generation, 2 % off": {
            "engine": write(subject, openings, light, n_tokens=size.tokens),
            f"Hugging Face generate, {len(light)} times one mask": Part(
                lambda: generate_per_mask(hf, openings, light[:1], size.tokens), len(light)
            ),
        },
        "gating, 8 seeds": {
            "engine": gating(subject, size, 8),
            "8 times one seed by itself": Part(gating(subject, size, 1), 8),
        },
    }


def gating(subject: Subject, size: Size, n_seeds: int) -> Way:
    """Causal head gating of so many seeds at once, on prompts whose targets are what the intact model says."""
    steps, batch_size = size.gating
    prompts = [subject.text(20, 30) for _ in range(32)]
    with evaluating(subject.bridge):
        targets = last_logits(subject.bridge, prompts).argmax(dim=1).tolist()
    records = [{"prompt": prompt, "target": (target,)} for prompt, target in zip(prompts, targets, strict=True)]
    task = cs.Task.from_records(records, "gpu")

    def run() -> list[Any]:
        experiment = cs.Experiment(subject.bridge, task, progress=False)
        cs.methods.fit_gates(experiment, n_seeds=n_seeds, steps=steps, batch_size=batch_size)
        return []

    return run


@dataclass
class Measured:
    """Of one way: seconds of each round, most bytes beyond the weights, and waits of the host for the device."""

    of: int = 1
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    beyond_weights: int | None = None
    peak: int | None = None
    waits: int | None = None
    result: Any = None

    @property
    def median(self) -> float:
        """Seconds, of all parts; those of the first run where time did not last for a round."""
        return statistics.median(self.seconds or [self.first]) * self.of


def measure(ways: dict[str, Way], rounds: int, until: float, device: torch.device) -> dict[str, Measured]:
    """Run each way once for warmth and memory, then all in turn while there is time."""
    found = {name: Measured(way.of if isinstance(way, Part) else 1) for name, way in ways.items()}
    for name, way in ways.items():
        start = _now(device)
        found[name].result = _warm(way, found[name], device)
        found[name].first = _now(device) - start
    took = 0.0
    for _ in range(rounds):
        begin = perf_counter()
        # After the first runs a round where some time is left; after a round another where as long a one fits.
        if begin + took > until:
            break
        for name, way in ways.items():
            start = _now(device)
            found[name].result = way()
            found[name].seconds.append(_now(device) - start)
        took = perf_counter() - begin
    return found


def _warm(way: Way, measured: Measured, device: torch.device) -> Any:
    if device.type != "cuda":
        return way()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = way()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    measured.waits = sum("synchroniz" in str(warning.message) for warning in said)
    measured.beyond_weights = torch.cuda.max_memory_allocated(device) - before
    measured.peak = torch.cuda.max_memory_reserved(device)
    return result


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def difference(ours: Any, theirs: Any) -> float | None:
    """Median difference of a log-probability, in nats; of texts, the share that differs; None where there is none."""
    if not ours or not theirs or len(ours) != len(theirs):
        return None
    if isinstance(ours[0], tuple):
        return float(np.mean([a != b for a, b in zip(ours, theirs, strict=True)]))
    return float(np.median(np.abs(np.concatenate(ours) - np.concatenate(theirs))))


def model_reports(
    name: str, device: torch.device, dtype: torch.dtype, size: Size, until: float
) -> Iterator[dict[str, Any]]:
    """What is measured of one model, longer by a workload each time; rows of the table are printed as they come."""
    begin = _now(device)
    subject = Subject(name, device, dtype)
    able = abilities(subject.bridge)
    report: dict[str, Any] = {
        "seconds_to_make": round(_now(device) - begin, 2),
        "heads": list(subject.grid.shape),
        "weights_bytes": subject.weights,
        "matrix_flops_per_second": matrix_rate(device, dtype),
        "abilities": asdict(able),
        "workloads": {},
        "left_out": [],
    }
    ways = workloads(subject, size)
    for number, (workload, each) in enumerate(ways.items()):
        if perf_counter() >= until:
            report["left_out"] = list(ways)[number:]
            print(f"<!-- {name}: left out for want of time: {', '.join(report['left_out'])} -->", flush=True)
            yield report
            return
        # What is left of the time, in equal parts.
        share = (until - perf_counter()) / (len(ways) - number)
        found = measure(each, size.rounds, perf_counter() + share, device)
        engine = found["engine"]
        # Of the first workload each way takes the same products.
        flops = 0 if number else 2 * subject.layer_weights * size.rows[0] * size.rows[1]
        report["workloads"][workload] = {
            way: {
                "seconds": measured.median,
                "rounds": len(measured.seconds),
                "ratio": measured.median / engine.median,
                "difference": difference(engine.result, measured.result),
                "share_of_matrix_rate": flops / measured.median / report["matrix_flops_per_second"] or None,
                "beyond_weights_bytes": measured.beyond_weights,
                "peak_bytes": measured.peak,
                "host_waits": measured.waits,
            }
            for way, measured in found.items()
        }
        if not number:
            report["tokens_per_second"] = size.rows[0] * size.rows[1] / engine.median
            report["share_of_matrix_rate"] = report["workloads"][workload]["engine"]["share_of_matrix_rate"]
        for way, row in report["workloads"][workload].items():
            print(_line(name, workload, way, row), flush=True)
        yield report


_HEADER = (
    "| model | workload | way | seconds | ratio | difference | of the matrix rate | GiB beyond weights |"
    " GiB at the peak | host waits |\n|---|---|---|---|---|---|---|---|---|---|"
)


def _line(name: str, workload: str, way: str, row: dict[str, Any]) -> str:
    beyond, peak = (
        "" if row[which] is None else f"{row[which] / 2**30:.2f}" for which in ("beyond_weights_bytes", "peak_bytes")
    )
    shown = "" if row["difference"] is None or way == "engine" else f"{row['difference']:.0e}"
    share = "" if row["share_of_matrix_rate"] is None else f"{row['share_of_matrix_rate']:.0%}"
    waits = "" if row["host_waits"] is None else row["host_waits"]
    cells = [name, workload, way, f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", shown, share, beyond, peak, waits]
    return f"| {' | '.join(map(str, cells))} |"


def verdicts(models: dict[str, Any]) -> list[str]:
    """What must hold on a GPU, and whether it does, model by model; nothing of workloads that were not reached."""
    said = []
    for name, report in models.items():
        found = report.get("workloads", {})
        for workload, least in _FASTER.items():
            if workload in found:
                ratio = found[workload][_ONE_AT_A_TIME]["ratio"]
                holds = f"≥ {least:g}: {ratio >= least}"
                said.append(f"{name}: {workload}: one mask at a time takes {ratio:.2f} times as long ({holds})")
        if report.get("left_out"):
            said.append(f"{name}: left out for want of time: {', '.join(report['left_out'])}")
        if found:
            over = 1 / found[next(iter(found))]["Hugging Face, no hook (the ceiling)"]["ratio"]
            share, at_8b = report["share_of_matrix_rate"], " (≥ {:.0%}: {})"
            said.append(f"{name}: {over:.2f} times the unhooked forward (≤ {_OVER_CEILING}: {over <= _OVER_CEILING})")
            said.append(
                f"{name}: {share:.0%} of the matrix rate"
                + (at_8b.format(_SHARE_AT_8B, share >= _SHARE_AT_8B) if name == "llama-3.1-8b" else "")
            )
    return said


def main() -> None:
    """Measure, print the table and what holds, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=None)
    parser.add_argument("--quick", action="store_true", help="two minutes: smaller workloads, fewer rounds, two models")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: shows that everything runs, also on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="default: bfloat16, on a CPU float32")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the JSON file (gpu.json)")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype_name = options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
    dtype = getattr(torch, dtype_name)
    size = TINY if options.tiny else QUICK if options.quick else FULL
    usual = ["tiny"] if options.tiny else ["llama-3.2-1b", "llama-3.1-8b"] if options.quick else [*SHAPES][:3]
    names = options.models or usual
    if device.type == "cpu" and not options.tiny:
        parser.error("on a CPU only --tiny ends in reasonable time")
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else f"no GPU: {device.type}"
    begin = perf_counter()
    print(f"{card}; torch {torch.__version__}, transformers {transformers.__version__}; {dtype_name}\n")
    print(_HEADER)
    models: dict[str, Any] = {}
    faults: list[str] = []

    def save() -> list[str]:
        """Write what there is by now."""
        said = verdicts(models) if device.type == "cuda" else ["What must hold on a GPU is not judged here."]
        versions = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cs_heads": version("cs-heads"),
        }
        profile = "tiny" if options.tiny else "quick" if options.quick else "full"
        result = {"device": card, "profile": profile, "dtype": dtype_name, "versions": versions, "models": models}
        options.out.write_text(json.dumps(result | {"verdicts": said, "faults": faults}, indent=1) + "\n")
        return said

    for number, name in enumerate(names):
        until = begin + size.seconds * (number + 1) / len(names)
        try:
            for report in model_reports(name, device, dtype, size, until):
                models[name] = report
                save()
        except Exception as error:  # want of memory, or a device that is lost: what was measured stays
            faults.append(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            print(f"<!-- {faults[-1]} -->")
            traceback.print_exc()
            save()
            if not isinstance(error, torch.OutOfMemoryError):
                break
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print("", *save(), f"{perf_counter() - begin:.0f} s in all", sep="\n")
    if faults:
        sys.exit(f"benchmarks/gpu.py did not measure all: {'; '.join(faults)}")


if __name__ == "__main__":
    main()
