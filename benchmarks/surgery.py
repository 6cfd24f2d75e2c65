"""Taking out heads beside taking out a direction: what both cost other skills and plain text, at the same own loss.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/surgery.py --model models/smollm2 --texts stories.txt --out surgery.jsonl
    python benchmarks/surgery.py --table surgery.jsonl

The heads of an everyday skill are those proved in ``--heads``, a file of ``specificity.py`` (seed 0, ``annealed+``).
The direction is that of the skill's prompts: the mean residual at their last token less that of all other skills'
prompts, 16 finding examples of each. It is taken from the input of one of three layers (``LAYERS``): the one where
projecting it out takes most from the skill beyond what it takes from the others on average, in score, on 20 and 6
finding examples. A share alpha of it is projected out of the residual at every position, after the embedding and after
every block. alpha is found by halving, so that the skill loses as much as with the heads off; where all of the
direction takes less, alpha is 1.

Losses are of 60 unseen examples of each skill: the share of the score above chance that is lost; in means it is within
0..1, and skills that show no drop by their baseline are left out. Texts are the first 20 lines of ``--texts``, cut to
100 words: the mean KL(intact || without) of the next token, in nats. ``--out`` gets a record for each measurement, with
the score of every example; what is there already is not run again. Means of residuals are kept beside it.

``--table`` also says how well intervals cover: each task's examples are split into halves at random, 20 times, and each
half states its drop with a 95 % interval. The halves have no example in common, so the interval of the difference of
the two drops (``weighted_sum``) should hold 0 in 95 of 100.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from specificity import FAMILY, records

import cs_heads as cs
from cs_heads.analysis import TextChange
from cs_heads.analysis.losses import Loss, Specificity, TaskDrop, loss_of, task_drop, weighted_sum
from cs_heads.lens.forward import Tokens, logits_at, pad
from cs_heads.lens.gates import hooked, reading
from cs_heads.lens.model import evaluating
from cs_heads.lens.tokens import encode_prompt
from cs_heads.tasks import builtin_tasks

HEADS = Path(__file__).parent / "real" / "smollm2" / "specificity.jsonl"
SKILLS = ("agreement", "succession", "copying")
LAYERS = (8, 15, 22)
N_MEAN, N_OWN, N_OTHER, N_UNSEEN = 16, 20, 6, 60
N_TEXTS, N_WORDS, N_HALVINGS, N_SPLITS = 20, 100, 4, 20


class Study:
    """A model, the everyday skills, and all that is measured, kept in a file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out, self.done = options.out, records(options.out)
        self.model = cs.load_model(options.model, dtype="float32")
        self.here: cs.Experiment | None = None
        self.intact: list[torch.Tensor] = []
        names = [name.removeprefix(FAMILY) for name in builtin_tasks() if name.startswith(FAMILY)]
        names.remove("sums")  # the model cannot do them
        self.tasks = {name: cs.load_task(FAMILY + name, seed=0) for name in names}
        lines = options.texts.read_text(encoding="utf-8").splitlines()
        cut = [" ".join(line.split()[:N_WORDS]) for line in lines if line.strip()][:N_TEXTS]
        self.texts = [encode_prompt(self.model.tokenizer, text) for text in cut]

    def kept(self, make: Callable[[], dict[str, Any]], **key: Any) -> dict[str, Any]:
        """The record of a key, made where the file has none."""
        for record in self.done:
            if key.items() <= record.items():
                return record
        record = key | make()
        self.done.append(record)
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def scores(self, task: cs.Task) -> dict[str, Any]:
        """Those of all examples of a task, of the model as it is now."""
        self.here = self.here.on(task) if self.here else cs.Experiment(self.model, task, progress=False)
        return {"scores": self.here.baseline().tolist()}

    @contextmanager
    def during(self, cut: AbstractContextManager[Any]) -> Iterator[None]:
        """A block in which the model is cut; one experiment on it serves all tasks."""
        before, self.here = self.here, None
        with cut:
            yield
        self.here = before

    def finding(self, name: str, n: int, **key: Any) -> float:
        """The mean score of the first finding examples of a skill."""
        record = self.kept(lambda: self.scores(self.tasks[name].take(n)), side="finding", task=name, n=n, **key)
        return float(np.mean(record["scores"]))

    def unseen(self, name: str, **key: Any) -> Float[np.ndarray, " example"]:
        """The scores of unseen examples of a skill."""
        task = self.tasks[name].held_out
        assert task is not None
        return np.array(self.kept(lambda: self.scores(task.take(N_UNSEEN)), side="unseen", task=name, **key)["scores"])

    def loss(self, name: str, **key: Any) -> float:
        """The share of its score above chance that a skill loses."""
        found = loss_of(drop(name, self.unseen(name, way="intact"), self.unseen(name, **key), self.tasks[name].chance))
        assert found is not None
        return found.loss

    def logits(self, tokens: Tokens) -> torch.Tensor:
        """Of every token of a text."""
        with evaluating(self.model):
            return logits_at(self.model, *pad([tokens]))

    def moved(self, cut: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
        """How far a cut moves the texts."""

        def changed(tokens: Tokens) -> torch.Tensor:
            with cut():
                return self.logits(tokens)

        self.intact = self.intact or [self.logits(text) for text in self.texts]
        before = iter(self.intact)
        return TextChange.of(self.texts, lambda _: next(before), changed).to_dict()


def drop(name: str, intact: Any, off: Any, chance: float) -> TaskDrop:
    """What one task loses."""
    return task_drop(name, chance, [(intact, off)])


def means(study: Study) -> Float[np.ndarray, "skill layer d"]:
    """The mean residual at the last token of the prompts of each skill."""
    file = study.out.with_suffix(".npy")
    if not file.exists():
        found = np.zeros((len(study.tasks), len(LAYERS), study.model.cfg.d_model))
        for mean, task in zip(found, study.tasks.values(), strict=True):
            rows = [encode_prompt(study.model.tokenizer, example.prompt) for example in task.examples[:N_MEAN]]
            last = torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])

            def read(layer: int, residual: torch.Tensor, mean: Any = mean, last: Any = last) -> None:
                mean[LAYERS.index(layer)] = residual[last].mean(dim=0).numpy()

            names = {layer: f"blocks.{layer}.hook_resid_pre" for layer in LAYERS}
            with evaluating(study.model), reading(study.model, read, names):
                logits_at(study.model, *pad(rows), last)
        np.save(file, found)
    return np.load(file)


@contextmanager
def without(model: Any, direction: Float[np.ndarray, " d"], alpha: float) -> Iterator[None]:
    """A share of a direction is projected out of the residual at every position."""
    unit = torch.tensor(direction / np.linalg.norm(direction), dtype=torch.float32)

    def project(residual: torch.Tensor, hook: Any) -> torch.Tensor:
        return residual - alpha * (residual @ unit)[..., None] * unit

    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(model.cfg.n_layers))]
    with hooked(model, dict.fromkeys(names, project)):
        yield


def chosen_layer(study: Study, skill: str, direction: Callable[[int], Any]) -> int:
    """Where projecting the direction out takes most from the skill beyond what it takes from others."""
    sizes = {name: N_OWN if name == skill else N_OTHER for name in study.tasks}
    before = {name: study.finding(name, n, way="intact") for name, n in sizes.items()}
    gains = []
    for layer in LAYERS:
        with study.during(without(study.model, direction(layer), 1.0)):
            after = {
                name: study.finding(name, n, way="direction", skill=skill, layer=layer) for name, n in sizes.items()
            }
        lost = {name: before[name] - after[name] for name in sizes}
        own = lost.pop(skill)
        gains.append(own - float(np.mean(list(lost.values()))))
    return LAYERS[int(np.argmax(gains))]


def matched_alpha(study: Study, skill: str, direction: Any, wanted: float) -> float:
    """The share of a direction that takes as much from its skill as is wanted, or all of it."""

    def loss(alpha: float) -> float:
        with study.during(without(study.model, direction, alpha)):
            return study.loss(skill, way="direction", skill=skill, alpha=alpha)

    low, high, tried = 0.0, 1.0, {1.0: loss(1.0)}
    if tried[1.0] <= wanted:
        return 1.0
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        tried[middle] = loss(middle)
        low, high = (middle, high) if tried[middle] < wanted else (low, middle)
    return min(sorted(tried), key=lambda alpha: abs(tried[alpha] - wanted))


def measure(options: argparse.Namespace) -> None:
    """Both cuts of each skill."""
    study = Study(options)
    found = {r["skill"]: r["proved"] for r in records(options.heads) if r["method"] == "annealed+" and r["seed"] == 0}
    by_skill, names = means(study), list(study.tasks)
    for name in names:
        study.unseen(name, way="intact")
    for skill in options.skills:

        def direction(layer: int, own: int = names.index(skill)) -> Any:
            here = by_skill[:, LAYERS.index(layer)]
            return here[own] - np.delete(here, own, axis=0).mean(axis=0)

        with study.during(cs.ablated(study.model, found[skill])):
            wanted = study.loss(skill, way="heads", skill=skill)
        layer = chosen_layer(study, skill, direction)
        alpha = matched_alpha(study, skill, direction(layer), wanted)
        study.kept(dict, skill=skill, heads=" ".join(found[skill]), layer=layer, alpha=alpha)
        ways: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
            "heads": (partial(cs.ablated, study.model, found[skill]), {}),
            "direction": (partial(without, study.model, direction(layer), alpha), {"alpha": alpha}),
        }
        for way, (cut, key) in ways.items():
            with study.during(cut()):
                for name in names:
                    study.unseen(name, way=way, skill=skill, **key)
            study.kept(partial(study.moved, cut), text=skill, way=way, **key)


def read(done: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, tuple[Any, Any]]]:
    """By skill and way the scores of each task, intact and without."""
    unseen = [record for record in done if record.get("side") == "unseen"]
    before = {r["task"]: np.array(r["scores"]) for r in unseen if r["way"] == "intact"}
    alphas = {r["skill"]: r["alpha"] for r in done if "heads" in r}
    found: dict[tuple[str, str], dict[str, tuple[Any, Any]]] = {}
    for r in unseen:
        if r.get("skill") in alphas and r.get("alpha", alphas[r["skill"]]) == alphas[r["skill"]]:
            found.setdefault((r["skill"], r["way"]), {})[r["task"]] = before[r["task"]], np.array(r["scores"])
    return found


def tables(done: list[dict[str, Any]]) -> str:
    """What each cut costs, and how often two halves of the examples agree."""
    lines = [
        "| skill | taken out | own loss | others' mean loss | others' largest loss | KL per token | perplexity |",
        "|---|---|---|---|---|---|---|",
    ]
    names = [r["task"] for r in done if r.get("side") == "unseen" and r["way"] == "intact"]
    chances, held = {name: cs.load_task(FAMILY + name, seed=0).chance for name in names}, list[tuple[bool, bool]]()
    what = {r["skill"]: r for r in done if "heads" in r}
    for (skill, way), tasks in read(done).items():
        drops = {name: drop(name, *pair, chances[name]) for name, pair in tasks.items()}
        found = Specificity.of(drops.pop(skill), drops.values())
        text = next(r for r in done if r.get("text") == skill and r["way"] == way)
        if found is None:
            continue
        cut = (
            what[skill]["heads"]
            if way == "heads"
            else "direction of layer {layer}, alpha {alpha:.2f}".format(**what[skill])
        )
        moved = Loss(text["kl"], text["kl_low"], text["kl_high"])
        lines.append(
            f"| {skill} | {cut} | {found.own} | {found.mean} | {found.worst_control} {found.worst} "
            f"| {moved.loss:.4f} ({moved.low:.4f} to {moved.high:.4f}) "
            f"| {text['perplexity']:.2f} to {text['perplexity_without']:.2f} |"
        )
        held += [each for name, pair in tasks.items() for each in halves(name, pair, chances[name])]
    said = []
    for label, some in (("all", held), ("those with a drop of .10 or more", [pair for pair in held if pair[1]])):
        share = f"{np.mean([agree for agree, _ in some]):.3f}" if some else "unknown"
        said.append(f"{label}: {share} of {len(some)} splits ({len(some) // N_SPLITS} pairs of a cut and a task)")
    return "\n".join([*lines, "", "The interval of the difference of two halves holds 0, of", *said])


def halves(name: str, pair: tuple[Any, Any], chance: float) -> Iterator[tuple[bool, bool]]:
    """By split, whether two halves agree, and whether there is a drop of .10 or more."""
    rng = np.random.default_rng(0)
    for _ in range(N_SPLITS):
        drops = []
        for half in np.array_split(rng.permutation(len(pair[0])), 2):
            one = drop(name, pair[0][half], pair[1][half], chance)
            drops.append(Loss(one.drop, min(one.interval[0], one.drop), max(one.interval[1], one.drop)))
        difference = weighted_sum(drops, [1.0, -1.0])
        yield difference.low <= 0 <= difference.high, bool(np.mean(pair[0] - pair[1]) >= 0.1)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or name")
    parser.add_argument("--heads", type=Path, default=HEADS, help="records of specificity.py, proved")
    parser.add_argument("--texts", type=Path, help="neutral texts, one a line")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line")
    parser.add_argument("--table", type=Path, help="print the tables of these results, and run nothing")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS))
    options = parser.parse_args()
    if options.table:
        print(tables(records(options.table)))
    else:
        measure(options)


if __name__ == "__main__":
    main()
