"""Methods from outside, each by its authors' code, as scores of heads; one more, ACDC on nodes, is a few lines here.

    python3.12 -m venv rivals
    rivals/bin/pip install -c constraints-hooked.txt -e '.[hooked]' gim-explain==0.1.4 shapiq==1.8.0 \
        spectralexplain==0.0.4 lightgbm==4.7.0 xgboost-cpu==3.2.0
    git clone https://github.com/hannamw/EAP-IG eap-ig

In an environment of its own with TransformerLens 3.9, for EAP-IG and GIM run on ``HookedTransformer``; EAP-IG is of
commit 795f560, and shapiq asks for Python 3.12. What is measured under masks goes through this library's experiments.

- ``eap-ig``: node scores of EAP-IG (inputs; hannamw/EAP-IG, ``attribute_node``). Its clean prompts are the finding
  examples, each with another example of as many tokens and another answer as its corrupted prompt; the metric is the
  difference of the two answers' logits. Heads in the order of the score, which is how much the corrupted activation
  raises the loss.
- ``gim``: attribution of this library, signed gradients of gates, with backward passes as gim-explain modifies them.
- ``proxyspex``: the solver of ProxySPEX (spectralexplain, ``proxy_spex``) on random masks of this library and what the
  examples of each lost. Heads in the order of the first-order term of its Möbius transform: what the surrogate says of
  the head off alone. LightGBM splits no head that is off in fewer than 20 masks, hence many masks of few examples.
- ``kernelshap``, ``svarm``, ``oddshap``, ``proxyshap``, ``proxyspex-shapley``: Shapley values by shapiq
  (``KernelSHAP``, ``SVARM``, ``OddSHAP``, ``ProxySHAP`` and ``ProxySPEX`` with index SV, the last two from trees).
  Players are heads; a coalition is worth the mean score of four random examples with its heads kept.
- ``acdc-nodes``: from the last layer to the first, each head is pruned for good where that takes less than ``TAU`` of
  the score, as ACDC prunes edges (Conmy et al., arXiv 2304.14997). Heads kept, in the order of what they took.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

import cs_heads as cs
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.protocol import ExperimentLike

IG_STEPS = 5
DENSITY, PER_MASK = 0.05, 4
BATCH = 16
TAU = 0.02
"""Share of the examples that pruning a head may cost."""
SHAPLEY = {
    "kernelshap": "KernelSHAP",
    "svarm": "SVARM",
    "oddshap": "OddSHAP",
    "proxyshap": "ProxySHAP",
    "proxyspex-shapley": "ProxySPEX",
}
RIVALS = ("eap-ig", "gim", "proxyspex", *SHAPLEY, "acdc-nodes")


@dataclass(frozen=True)
class Scored:
    """What a method says of all heads.

    Attributes:
        scores: One number a head, the highest first.
        cost: What that took.
        said: What else is worth keeping.
        others: Other scores of the method, by name.
    """

    scores: np.ndarray
    cost: Cost
    said: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, np.ndarray] = field(default_factory=dict)


class _OnCpu(TorchFunctionMode):
    """Puts on the CPU what EAP-IG makes on ``"cuda"``, which it names in its code."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda" and not torch.cuda.is_available():
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def pairs_of(experiment: cs.Experiment, seed: int) -> list[tuple[tuple[int, ...], tuple[int, ...], list[int]]]:
    """Clean prompt, corrupted prompt of as many tokens, and the first tokens of their answers, which differ."""
    examples = [
        (each.prompt, each.continuations[example.answer][0])
        for each, example in zip(experiment.encoded, experiment.task.examples, strict=True)
    ]
    rng = np.random.default_rng(seed)
    pairs = []
    for clean, target in examples:
        others = [one for one in examples if len(one[0]) == len(clean) and one[1] != target]
        if others:
            corrupted, instead = others[rng.integers(len(others))]
            pairs.append((clean, corrupted, [target, instead]))
    return pairs


def eap_ig(experiment: cs.Experiment, model: Any, seed: int, folder: Path) -> Scored:
    """Node scores of EAP-IG; the model, a ``HookedTransformer``, is of no other use after it."""
    if str(folder / "src") not in sys.path:
        sys.path.insert(0, str(folder / "src"))
    from eap import attribute_node
    from eap.graph import Graph

    pairs = pairs_of(experiment, seed)
    batches = defaultdict(list)
    for pair in pairs:
        batches[len(pair[0])].append(pair)
    loader = [
        ([one[0] for one in some], [one[1] for one in some], torch.tensor([one[2] for one in some]))
        for same in batches.values()
        for some in (same[first : first + BATCH] for first in range(0, len(same), BATCH))
    ]

    def metric(logits: torch.Tensor, clean_logits: torch.Tensor, lengths: torch.Tensor, label: torch.Tensor) -> Any:
        last = logits[torch.arange(len(logits)), lengths - 1].gather(1, label)
        # A sum, for EAP-IG divides by the number of examples of all batches.
        return (last[:, 1] - last[:, 0]).sum()

    def tokenized(model: Any, prompts: list[tuple[int, ...]], max_length: int | None = None) -> tuple[Any, ...]:
        tokens = torch.tensor(prompts)
        return tokens, torch.ones_like(tokens), torch.full((len(tokens),), tokens.shape[1]), tokens.shape[1]

    for flag in ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "ungroup_grouped_query_attention"):
        setattr(model.cfg, flag, True)
    # The tokens that the library runs: no second tokenizer, no token more at the beginning.
    attribute_node.tokenize_plus = tokenized
    # EAP-IG's gradients begin at the embedding; no others are wanted of weights.
    model.requires_grad_(False)
    model.embed.W_E.requires_grad_(True)
    graph = Graph.from_model(model, node_scores=True)
    with torch.enable_grad(), _OnCpu():
        attribute_node.attribute_node(
            model, graph, loader, metric, method="EAP-IG-inputs", ig_steps=IG_STEPS, quiet=True
        )
    n_layers, n_heads = experiment.grid.shape
    scores = np.array(
        [[float(graph.nodes[f"a{layer}.h{head}"].score) for head in range(n_heads)] for layer in range(n_layers)]
    )
    cost = Cost(forwards=len(pairs) * (2 + IG_STEPS), backwards=len(pairs) * IG_STEPS)
    return Scored(scores, cost, {"pairs": len(pairs)}, {"by_size": np.abs(scores)})


def proxyspex(experiment: Any, seed: int, budget: int) -> Scored:
    """What ProxySPEX's surrogate says, from random masks."""
    from spectralexplain import Interactions
    from spectralexplain.utils import proxy_spex

    n = (budget - experiment.n_examples) // PER_MASK
    masks = cs.designs.bernoulli(experiment.grid, n, DENSITY, seed=seed)
    examples = few_examples(experiment, n, np.random.default_rng(seed))
    intact = experiment.baseline()
    kept = (experiment(masks, examples) - intact[examples]).mean(axis=1)
    if not np.ptp(kept):
        # It fails where no mask takes anything.
        return Scored(np.zeros(experiment.grid.shape), Cost(forwards=experiment.spent), {"masks": n})
    start = process_time()
    fourier = proxy_spex((masks.reshape(n, -1).astype(int), kept), max_order=5)
    solver = process_time() - start
    effects = {}
    for index in ("mobius", "fourier"):
        terms = Interactions(fourier, range(experiment.grid.size), index, n, order=5).interactions
        first = [np.real(terms.get((head,), 0.0)) for head in range(experiment.grid.size)]
        effects[index] = np.array(first).reshape(experiment.grid.shape)
    said = {"masks": n, "terms": len(fourier), "first_order": int((effects["mobius"] != 0).sum())}
    # A Fourier term is of (-1) ** off: minus half of what the head moves on average.
    return Scored(
        -effects["mobius"],
        Cost(forwards=experiment.spent),
        said | {"solver_cpu_seconds": round(solver, 1)},
        {"by_fourier": effects["fourier"]},
    )


def few_examples(experiment: ExperimentLike, n: int, rng: np.random.Generator) -> np.ndarray:
    """For each of so many masks four random examples."""
    return np.stack([rng.permutation(experiment.n_examples)[:PER_MASK] for _ in range(n)])


def shapley(experiment: Any, seed: int, budget: int, approximator: str) -> Scored:
    """First-order Shapley values by an approximator of shapiq."""
    import shapiq

    rng = np.random.default_rng(seed)

    def worth(coalitions: np.ndarray) -> np.ndarray:
        masks = ~np.asarray(coalitions, dtype=bool).reshape(-1, *experiment.grid.shape)
        return experiment(masks, few_examples(experiment, len(masks), rng)).mean(axis=1)

    options = {"index": "SV", "max_order": 1} if approximator in ("ProxySHAP", "ProxySPEX") else {}
    solver = getattr(shapiq, approximator)(n=experiment.grid.size, random_state=seed, **options)
    values = solver.approximate(budget // PER_MASK, worth)
    scores = np.array([values[head,] for head in range(experiment.grid.size)])
    return Scored(scores.reshape(experiment.grid.shape), Cost(forwards=experiment.spent))


def acdc_nodes(experiment: Any, seed: int, budget: int, tau: float = TAU) -> Scored:
    """Heads that pruning from the last layer to the first keeps, by what each took when it was tried."""
    n = min(experiment.n_examples, budget // (1 + experiment.grid.size))
    examples = np.random.default_rng(seed).permutation(experiment.n_examples)[None, :n]
    pruned, took = np.zeros(experiment.grid.shape, dtype=bool), np.zeros(experiment.grid.shape)
    current = experiment(pruned[None], examples).mean()
    for layer, head in reversed(list(np.ndindex(*experiment.grid.shape))):
        pruned[layer, head] = True
        score = experiment(pruned[None], examples).mean()
        if current - score < tau:
            current = score
        else:
            pruned[layer, head], took[layer, head] = False, current - score
    return Scored(took, Cost(forwards=experiment.spent))


def ranked(method: str, model: Any, task: cs.Task, budget: int, *, hooked: Any, folder: Path) -> cs.HeadRanking:
    """The heads of a task by one of ``RIVALS``.

    Args:
        method: Its name.
        model: What masks are run on.
        task: With the examples that find heads.
        budget: Example-evaluations; EAP-IG and GIM take what they need.
        hooked: Loads a ``HookedTransformer``.
        folder: A copy of hannamw/EAP-IG.
    """
    if method == "gim":
        from gim import GIM

        model = hooked()
        with GIM(model):
            return cs.find_heads(model, task, method="attribution", controls=None)
    experiment = cs.Experiment(model, task, progress=False)
    if method == "eap-ig":
        found = eap_ig(experiment, hooked(), 0, folder)
    elif method == "proxyspex":
        found = proxyspex(experiment, 0, budget)
    elif method == "acdc-nodes":
        found = acdc_nodes(experiment, 0, budget)
    else:
        found = shapley(experiment, 0, budget, SHAPLEY[method])
    return cs.HeadRanking(method, found.scores, found.cost.spent, grid=experiment.grid, backwards=found.cost.backwards)
