"""A study to be killed: ``python -m tests.measure.study_to_kill MODEL TASK STORE OUT``.

It says how many results each batch has, before they are written.
"""

import json
import sys

import cs_heads as cs
from cs_heads.measure.engine import Engine


def announce(method):
    def announced(self, *arguments, **options):
        for batch in method(self, *arguments, **options):
            sys.stdout.write(f"{len(batch)}\n")
            sys.stdout.flush()
            yield batch

    return announced


def main(model: str, records: str, store: str, out: str) -> None:
    Engine.run = announce(Engine.run)
    loaded = cs.load_model(model, device="cpu")
    task = cs.load_task(records, n=40)
    settings = {"store": store, "progress": False, "batch_tokens": 400}
    results = []
    for options in ({"method": "css", "density": 0.17, "n_masks": 40}, {"method": "annealed", "budget": 1000}):
        found = cs.find_heads(loaded, task, k=2, **options, **settings)
        proof = cs.confirm(loaded, task, found.top(2), n=40, **settings)
        # Floats as they are, to the last bit.
        importance = [value.hex() for value in found.importance.ravel().tolist()]
        results.append([importance, found.spent, found.provenance, found.notes, proof.to_dict()])
    with open(out, "w", encoding="utf-8") as file:
        json.dump(results, file, sort_keys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
