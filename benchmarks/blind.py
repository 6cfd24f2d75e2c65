"""Ten reports of searches in planted worlds, for a reader who must tell what was planted.

    python benchmarks/blind.py --out pages --key key.json

Two each are *specific*, *template-bound*, *shared*, *passengers* (one head does it) and *nothing* (no head does). The
pages do not say which; the key does. A world counts whose verdict is right: what is asked is whether the page tells it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

import cs_heads as cs
from cs_heads.analysis.confirm import Confirmation, prove
from cs_heads.report import write_report
from cs_heads.simulate import planted_world

KINDS = {
    "specific": ("even", "specific"),
    "template-bound": ("even", "template-bound"),
    "shared": ("even", "shared"),
    "passengers": ("one_head", "specific"),
    "nothing": ("no_structure", "not localized"),
}
"""The scenario of each kind, and the verdict that is right."""
K = 5


def searched(kind: str, seed: int) -> tuple[cs.HeadRanking, Confirmation]:
    """A search in a world of this kind, and its proof."""
    made = planted_world(KINDS[kind][0], cs.Grid(16, 16), n_controls=5, seed=seed)
    if kind == "shared":
        made = replace(made, others=(made.own, made.own, *made.others[2:]))
    # One example more draws all anew, and the heads stay.
    fresh = replace(made, n_examples=made.n_examples + 1, n_unseen=100)
    seen, unseen = [*made.controls], [*fresh.controls]
    for controls in (seen, unseen):
        for letter, control in zip("ABCDE", controls, strict=True):
            control.name = f"skill {letter}"
    kin = [unseen.pop()] if kind == "template-bound" else []
    for other in kin:
        other.name = "the same in other words"
    found = cs.methods.annealed(made.task, controls=seen[: len(unseen)], k=K, seed=seed)
    proof = prove(fresh.unseen, found.top(K), exclude=found.shared, controls=unseen, kin=kin, seed=seed)
    return found, proof


def main() -> None:
    """Write the pages and the key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pages")
    parser.add_argument("--key", type=Path, required=True, help="file of the key")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kinds = np.random.default_rng(options.seed).permutation([*KINDS] * 2).tolist()
    for number, kind in enumerate(kinds):
        for seed in count(1000 * (1 + options.seed) + 20 * number):
            found, proof = searched(kind, seed)
            if proof.verdict == KINDS[kind][1] and (kind != "passengers" or proof.passengers):
                break
        write_report(found, options.out / f"report{number}.html", proof=proof)
    options.key.write_text(json.dumps(kinds) + "\n")


if __name__ == "__main__":
    main()
