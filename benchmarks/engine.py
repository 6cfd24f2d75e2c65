"""The engine against other ways to the same numbers: one table, ratios in one run on one machine.

    python benchmarks/engine.py [--models gpt2-shape llama-shape demo stories260K] [--runs 5]
    python benchmarks/engine.py --memory
    python benchmarks/engine.py --tokens

Other ways: (a) one mask at a time through Hugging Face with patched heads, all examples in one batch, also
one example at a time and with the model loaded anew for each mask; (b) TransformerLens's ``run_with_hooks``, one mask
at a time; (c) masks batched, with all logits and nothing shared; (d) nnsight, where it is installed.
(e) is the ceiling: Hugging Face's fused forward of the same number of tokens without any hook.
Times are medians of interleaved runs; a ratio above 1 says how many times faster the engine is.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from engine_models import LARGE, SHAPES, RandomTexts, Subject, folder_of
from engine_rivals import batched_full_logits, generate_per_mask, hugging_face, nnsight_per_mask, run_with_hooks

from cs_heads import designs
from cs_heads.engine import Engine
from cs_heads.engine.forwards import Forwards
from cs_heads.engine.generation import Generation
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities
from cs_heads.text import TokenIds

Results = Sequence[np.ndarray | TokenIds]
"""The log-probabilities of each pair of mask and example, or its text; none where they are not compared."""
Way = Callable[[], Results]

EACH_ROW = "32 × 64 tokens, each row its mask"

FUSED = Abilities(extend=False, resume=False)
NO_RESUME = Abilities(resume=False)


def pairs_of(masks: np.ndarray, n_examples: int) -> tuple[PairMasks, np.ndarray]:
    """Every mask with every example."""
    return PairMasks(masks, np.repeat(np.arange(len(masks)), n_examples)), np.tile(np.arange(n_examples), len(masks))


def ready(engine: Engine) -> Engine:
    """The same engine, after it has tried its shortcuts on the model, which its first run would do else."""
    _ = engine.forwards
    return engine


def score(subject: RandomTexts, examples: list[EncodedExample], masks: np.ndarray, ideas: Abilities) -> Way:
    """The engine's way, made ready once: log-probabilities by pair and continuation."""
    engine = ready(Engine(subject.bridge, examples, ideas=ideas))

    def run() -> list[np.ndarray]:
        found = {pair: said[:, 0] for batch in engine.run(*pairs_of(masks, len(examples))) for pair, said in batch}
        return [found[pair] for pair in range(len(found))]

    return run


def write(subject: RandomTexts, examples: list[EncodedExample], masks: np.ndarray, *, n_tokens: int = 64) -> Way:
    """The engine's way to texts of ``n_tokens`` tokens."""
    forwards = Forwards(subject.bridge, examples)
    generation = Generation(forwards, [example.prompt for example in examples], lambda text: len(text) >= n_tokens)

    def texts() -> list[TokenIds]:
        found = dict(pair for batch in generation.run(*pairs_of(masks, len(examples))) for pair in batch)
        return [found[pair] for pair in range(len(found))]

    return texts


def workloads(subject: Subject) -> dict[str, dict[str, Way]]:
    """What is measured, by workload: ways by name, the engine's first."""
    many, grid = (4 if subject.small else 1), subject.grid
    drawn = designs.stratified(grid, 16 if subject.small else 2, 0.05, seed=0)
    short = subject.examples(8 * many, (20, 30), choices=4)
    few_shot = subject.examples(8, (12, 20), choices=2, shared=256)
    single = designs.single(grid)[:: max(1, grid.size // 48)]
    plain = subject.examples(8 * many, (20, 30), choices=1)
    openings = subject.openings()
    light = np.unique(designs.stratified(grid, 128 if subject.small else 12, max(0.02, 1 / grid.size), seed=0), axis=0)

    def ways(examples: list[EncodedExample], masks: np.ndarray) -> dict[str, Way]:
        return {
            "engine": score(subject, examples, masks, Abilities()),
            "(a) one mask at a time": lambda: hugging_face(subject.hf, examples, masks),
            "(b) run_with_hooks": lambda: run_with_hooks(subject.bridge, examples, masks),
            "(c) batched, all logits": lambda: batched_full_logits(subject.bridge, examples, masks),
        }

    found: dict[str, dict[str, Way]] = {
        "short choice prompts": ways(short, drawn)
        | {
            "(a) one example at a time": lambda: hugging_face(subject.hf, examples=short, masks=drawn, batched=False),
            "(a) reloading": lambda: hugging_face(subject.hf, short, drawn, reload=subject.folder),
        },
        "single-head sweep": {
            "engine": score(subject, plain, single, Abilities()),
            "engine without resuming": score(subject, plain, single, NO_RESUME),
        },
        "64-token generation, 2 % off": {
            "engine": write(subject, openings, light),
            "Hugging Face generate, per mask": lambda: generate_per_mask(subject.hf, openings, light, 64),
        },
    }
    if subject.bridge.cfg.n_ctx >= 320:
        found["256 shared tokens"] = ways(few_shot, drawn[: len(drawn) // 2])
    nnsight = nnsight_per_mask(subject.hf)
    if nnsight is not None:
        found["short choice prompts"]["(d) nnsight"] = lambda: nnsight(short, drawn)
    batch = [EncodedExample(subject.text(64, 64), ((3,),), False) for _ in range(32)]
    tokens = torch.tensor([example.prompt for example in batch], device=subject.hf.device)

    def ceiling() -> Results:
        with torch.no_grad():
            subject.hf(tokens, use_cache=False, logits_to_keep=1)
        return []

    found[EACH_ROW] = {
        "engine": hooked_rows(subject, batch),
        "(e) Hugging Face, no hook": ceiling,
    }
    return found


def hooked_rows(subject: RandomTexts, batch: list[EncodedExample]) -> Way:
    """One row an example, each under its own mask of 5 % of the heads, nothing shared."""
    engine = ready(Engine(subject.bridge, batch, ideas=FUSED))
    masks = designs.stratified(subject.grid, len(batch), 0.05, seed=1)
    return lambda: [
        said[:, 0] for results in engine.run(PairMasks.of(masks), np.arange(len(batch))) for _, said in results
    ]


def compare(ways: dict[str, Way], runs: int) -> dict[str, tuple[float, float | None]]:
    """Median seconds of each way over interleaved runs, and the largest difference from the engine's numbers."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Results] = {}
    for _ in range(runs):
        for name, way in ways.items():
            begin = time.perf_counter()
            results[name] = way()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - begin)
    engine = results["engine"]
    return {name: (statistics.median(seconds[name]), _difference(engine, results[name])) for name in ways}


def _difference(ours: Results, theirs: Results) -> float | None:
    """Largest difference of a log-probability; of texts, the share that differs; None where nothing is compared."""
    if not theirs:
        return None
    if isinstance(ours[0], tuple):
        return float(np.mean([a != b for a, b in zip(ours, theirs, strict=True)]))
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(ours, theirs, strict=True))


def rate(subject: Subject, seconds: float, n_tokens: int) -> str:
    """Tokens a second, and the share of the rate of a large matrix product on the same device and dtype."""
    weight = next(subject.bridge.parameters())
    n = 8192 if weight.device.type == "cuda" else 2048
    a = torch.randn(n, n, device=weight.device, dtype=weight.dtype)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        a @ a
        if weight.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    # Embeddings are not multiplied, and the unembedding only where logits are read.
    layers = sum(p.numel() for name, p in subject.hf.named_parameters() if ".h." in name or ".layers." in name)
    share = 2 * layers * n_tokens / seconds / (2 * n**3 / min(times))
    return f"{n_tokens / seconds:.0f} tokens/s, {share:.0%} of the rate of a large matrix product"


def memory(way: str) -> None:
    """Peak memory beyond the weights of 32 rows × 256 tokens × 50,257 logits; run in a process of its own."""
    subject = Subject("gpt2-shape", "cpu")
    del subject.hf
    examples = [EncodedExample(subject.text(256, 256), ((3,),), False) for _ in range(32)]
    masks = designs.stratified(subject.grid, 1, 0.05, seed=0)
    run = score(subject, examples, masks, Abilities()) if way == "engine" else None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if run is None:
        batched_full_logits(subject.bridge, examples, masks, rows=32)
    else:
        run()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def tokens(subject: Subject, runs: int) -> None:
    """Seconds by tokens of one forward: prompts that share nothing, and prompts that share 60 tokens."""
    sizes = (256, 512, 1024, 2048, 4096)
    masks = designs.stratified(subject.grid, 12, 0.05, seed=0)
    # From the first layer on.
    masks[:, 0, 0] = True
    for name, shared, own in (("nothing shared", 0, (20, 40)), ("60 tokens shared", 60, (6, 10))):
        examples = subject.examples(24, own, choices=1, shared=shared)
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(runs):
            for size in sizes:
                engine = ready(Engine(subject.bridge, examples, size))
                begin = time.perf_counter()
                for _ in engine.run(*pairs_of(masks, len(examples))):
                    pass
                seconds[size].append(time.perf_counter() - begin)
        found = " | ".join(f"{statistics.median(seconds[size]):.2f}" for size in sizes)
        print(f"| {subject.name} | {name} | {found} |", flush=True)


def main() -> None:
    """Print the table, or compare the memory of the engine and of (c)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=[*SHAPES, "demo", "stories260K"])
    parser.add_argument("--only", default="", help="run workloads whose name holds this alone")
    parser.add_argument("--skip", nargs="*", default=[], help="leave out workloads whose name holds one of these")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", action="store_true", help="peak memory, each way in a fresh process")
    parser.add_argument("--tokens", action="store_true", help="seconds by tokens of one forward: 256, 512, ... 4096")
    parser.add_argument("--memory-of", choices=["engine", "full"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        memory(arguments.memory_of)
        return
    if arguments.memory:
        for way in ("engine", "full"):
            ran = subprocess.run(
                [sys.executable, __file__, "--memory-of", way], stdout=subprocess.PIPE, check=True, text=True
            )
            print(f"{way}: {float(ran.stdout.split()[-1]):.0f} MiB beyond the weights")
        return
    if not arguments.tokens:
        print("| model | workload | way | seconds | engine is faster | difference |\n|---|---|---|---|---|---|")
    for name in arguments.models:
        if not (name in SHAPES | LARGE or folder_of(name).exists()):
            continue
        subject = Subject(name, arguments.device)
        if arguments.tokens:
            tokens(subject, arguments.runs)
            continue
        for workload, ways in workloads(subject).items():
            if arguments.only not in workload or any(part in workload for part in arguments.skip):
                continue
            found = compare(ways, arguments.runs)
            for way, (seconds, difference) in found.items():
                ratio = seconds / found["engine"][0]
                shown = "" if difference is None else f"{difference:.0e}"
                print(f"| {name} | {workload} | {way} | {seconds:.2f} | {ratio:.2f} | {shown} |", flush=True)
            if workload == EACH_ROW:
                print(f"<!-- {name}: {rate(subject, found['engine'][0], 32 * 64)} -->", flush=True)


if __name__ == "__main__":
    main()
