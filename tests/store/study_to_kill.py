"""A study to be killed: ``python -m tests.store.study_to_kill MODEL TASK STORE OUT``.

It says how many results each batch has, before they are written.
"""

import json
import sys
from pathlib import Path

import cs_heads as cs
from cs_heads.engine import Engine, generation


def announce(method):
    def announced(self, *arguments, **options):
        for batch in method(self, *arguments, **options):
            sys.stdout.write(f"{len(batch)}\n")
            sys.stdout.flush()
            yield batch

    return announced


def main(model: str, records: str, store: str, out: str) -> None:
    Engine.run, Engine.generate = announce(Engine.run), announce(Engine.generate)
    # Several batches of texts.
    generation._ROWS["cpu"] = 16
    loaded = cs.load_model(model, device="cpu")
    task = cs.load_task(records, n=40)
    settings = {"store": store, "progress": False, "batch_tokens": 400}
    results = []
    for options in ({"method": "css", "density": 0.17, "n_masks": 40}, {"method": "annealed", "budget": 1000}):
        found = cs.find_heads(loaded, task, k=2, **options, **settings, controls=None)
        proof = cs.confirm(loaded, task, found.top(2), n=40, **settings, controls=None)
        # Floats as they are, to the last bit.
        importance = [value.hex() for value in found.importance.ravel().tolist()]
        results.append([importance, found.spent, found.provenance, found.notes, proof.to_dict()])
    # One store is of one dtype and one ablation. In half precision texts are the same in the same batches alone.
    settings["store"] = str(Path(store).with_name("half.sqlite"))
    half = cs.load_model(model, device="cpu", dtype="bfloat16")
    experiment = cs.Experiment(half, task.generated(4).take(20), **settings)
    masks = cs.designs.stratified(experiment.grid, n_masks=3, density=0.17, seed=0)
    results.append([experiment(masks).tolist(), experiment.generate(masks).tolist(), experiment.spent])
    settings["store"] = str(Path(store).with_name("mean.sqlite"))
    found = cs.find_heads(loaded, task, k=2, method="css", density=0.17, n_masks=20, ablation="mean", **settings)
    results.append([[value.hex() for value in found.importance.ravel().tolist()], found.spent, found.provenance])
    with open(out, "w", encoding="utf-8") as file:
        json.dump(results, file, sort_keys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
