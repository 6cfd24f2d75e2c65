"""The steps of Nam et al. (arXiv 2505.13737): gates on all heads, their kinds, and what bears them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.reproduce import published
from cs_heads.reproduce.study import Output, Step, Study, free
from cs_heads.tasks import Example, Task, finding_side
from cs_heads.views.drawing import drawing

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.methods.gating.result import HeadGates
    from cs_heads.methods.mediation import Mediation

_WORDS = "function_vectors/"


def _capabilities(study: Study) -> dict[str, HeadGates]:
    """Gates of the tasks of table 2; the word-to-word tasks are for figures 4 and 5."""
    return {name: gates for name, gates in study.gates.items() if name in study.finding}


def _kinds(study: Study) -> list[Output]:
    from cs_heads.views.gating import plot_trajectories
    from cs_heads.views.roles import plot_roles

    outputs = []
    for name, gates in _capabilities(study).items():
        label = name.replace(" ", "-")
        frame = gates.to_frame()
        outputs += [
            Output(f"table-1-{label}", f"{name}: facilitation, irrelevance and interference of every head", frame),
            Output(f"figure-3b-{label}", f"{name}: the same as a map", frame, drawing(plot_roles, gates)),
            Output(
                f"figure-1b-{label}",
                f"{name}: paths of the gates of three heads, the first by each score",
                _paths(gates),
                drawing(plot_trajectories, gates),
            ),
        ]
    return outputs


def _paths(gates: HeadGates) -> pd.DataFrame:
    import pandas as pd

    from cs_heads.methods.gating.result import PHASES, SCORES

    rows = []
    for score in SCORES:
        head = gates.ranking().grid.head(int(gates.score(score).mean(axis=0).argmax()))
        for phase, name in enumerate(PHASES):
            path = gates.trajectory[phase, 0, :, head.layer, head.head]
            pairs = zip(gates.at.tolist(), path.tolist(), strict=True)
            rows += [{"by": score, "head": str(head), "phase": name, "step": t, "gate": g} for t, g in pairs]
    return pd.DataFrame(rows)


def _shares(study: Study) -> list[Output]:
    from cs_heads.analysis.taxonomy import taxonomy
    from cs_heads.views.taxonomy import plot_taxonomy

    found = taxonomy(_capabilities(study))
    frame = found.to_frame()
    for column, model in enumerate(published.GATED_MODELS):
        known = [published.GATED.get(key) for key in zip(frame["fit"], frame["heads"], strict=True)]
        frame[f"facilitation, published {model}"] = [None if row is None else row[column] for row in known]
    about = f"share of heads of each kind, in every seed and in any; published: {published.CHG_SOURCE}"
    return [Output("table-2", about, frame, drawing(plot_taxonomy, found))]


def _toggles(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.taxonomy import toggle_curves
    from cs_heads.views.taxonomy import plot_toggle_curves

    rows, pictures = [], []
    for name, gates in _capabilities(study).items():
        curves = toggle_curves(study.experiment(study.unseen(study.finding[name])), gates)
        rows += [curve.to_frame().assign(task=name) for curve in curves]
        pictures.append(drawing(plot_toggle_curves, curves))
    about = "log-probability with the first heads shut less that with them open, all others at G+"
    return [Output("figure-2", about, pd.concat(rows, ignore_index=True), pictures[0])]


def _distribution(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.gating import score_distribution
    from cs_heads.views.taxonomy import plot_score_ecdf

    gates = _capabilities(study)
    frames = [score_distribution(g, cumulative=True).reset_index().assign(task=n) for n, g in gates.items()]
    about = "share of heads whose score is so large or less"
    picture = drawing(plot_score_ecdf, next(iter(gates.values())))
    return [Output("figure-3a", about, pd.concat(frames, ignore_index=True), picture)]


def _agreement(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.taxonomy import seed_agreement

    frames = [seed_agreement(gates).assign(task=name) for name, gates in _capabilities(study).items()]
    return [Output("seeds", "how alike two seeds are (section 4.2)", pd.concat(frames, ignore_index=True))]


def _mediating(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.gating import score_of_heads
    from cs_heads.views.gating import plot_group

    rows, picture = [], None
    for name in study.controls:
        if name not in study.gates:
            continue
        found = _mediation(study, name)
        heads = found.heads()
        row = {"task": name, "pairs": len(found.effects), "mediating": len(heads)}
        if 2 <= len(heads) <= study.grid.size - 2:
            test = score_of_heads(study.gates[name], heads, over="any")
            row |= {"inside": test.inside, "outside": test.outside, "t": test.t, "p": test.p}
            picture = picture or drawing(plot_group, test)
        rows.append(row)
    about = "facilitation of heads that mediate against that of all others (largest over seeds; Welch, one-sided)"
    return [Output("figure-4", about, pd.DataFrame(rows), picture)] if rows else []


def _mediation(study: Study, name: str) -> Mediation:
    from cs_heads.methods.mediation import function_vector_effects, indirect_effects
    from cs_heads.tasks import function_vectors
    from cs_heads.tasks.pairs import counterparts

    task, n = finding_side(study.tasks[name]), study.settings.n_pairs
    if task.name.startswith(_WORDS):
        pairs = function_vectors.pairs(task.name.removeprefix(_WORDS), n, study.seed)
        return function_vector_effects(study.model, pairs, progress=study.progress)
    return indirect_effects(study.model, counterparts(task, n, study.seed), progress=study.progress)


def _contrasts(study: Study) -> list[Output]:
    from cs_heads.analysis.contrast import held_out_contrasts
    from cs_heads.views.taxonomy import plot_contrasts

    settings = study.settings
    shots = {name: study.tasks[name] for name in _word_tasks(study)}
    found = held_out_contrasts(
        study.model,
        {"shots": shots, "instruction": {name: _instructed(task) for name, task in shots.items()}},
        n=min(len(study.unseen(name)) for name in shots),
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=study.seed,
        progress=study.progress,
    )
    about = "a word task that gates were not fitted to, in the format they retain and in the other"
    return [Output("figure-5", about, found.to_frame(), drawing(plot_contrasts, found))]


def _word_tasks(study: Study) -> list[str]:
    return [name for name, task in study.tasks.items() if task.name.startswith(_WORDS)]


def _instructed(task: Task) -> Task:
    """The same words asked for by an instruction in place of worked examples."""
    from cs_heads.tasks.function_vectors import INSTRUCTIONS

    instruction = INSTRUCTIONS[task.name.removeprefix(_WORDS)]

    def changed(example: Example) -> Example:
        word = example.prompt.rpartition("Q: ")[2].removesuffix("\nA:")
        return replace(example, prompt=f"{instruction}\nWord: {word}\nAnswer:")

    held_out = None if task.held_out is None else _instructed(task.held_out)
    return replace(task, examples=tuple(map(changed, task.examples)), held_out=held_out)


def _fit_cost(study: Study) -> dict[str, int]:
    settings = study.settings
    each = 6 * settings.n_seeds * settings.steps * settings.batch_size
    return {name: each + len(study.tasks[name]) for name in (*study.finding.values(), *study.controls)}


def _toggle_cost(study: Study) -> dict[str, int]:
    points = len(np.unique(np.linspace(1, study.grid.size // 2, 12).round()))
    masks = 3 * 2 * points * study.settings.n_seeds
    return {name: masks * len(study.unseen(name)) for name in study.finding.values()}


def _mediating_cost(study: Study) -> dict[str, int]:
    return dict.fromkeys(study.controls, study.settings.n_pairs * (study.grid.size + 2))


def _contrasts_cost(study: Study) -> dict[str, int]:
    settings = study.settings
    each = 2 * 8 * settings.steps * settings.batch_size
    return {name: each + 8 * len(study.unseen(name)) for name in _word_tasks(study)}


def _seeds(study: Study) -> str | None:
    return None if study.settings.n_seeds > 1 else "two seeds or more"


def _two_words(study: Study) -> str | None:
    return None if len(_word_tasks(study)) > 1 else "two word-to-word tasks or more, in two formats"


def _has_words(study: Study) -> str | None:
    return None if study.controls else "a word-to-word task"


STEPS: tuple[Step, ...] = (
    Step("kinds", "gates of every head: facilitating, irrelevant or interfering", _kinds, _fit_cost),
    Step("shares", "how many heads are of each kind", _shares, free),
    Step("toggles", "heads shut and opened in the order of each score", _toggles, _toggle_cost),
    Step("distribution", "how the scores are spread", _distribution, free),
    Step("seeds", "how alike the seeds are", _agreement, free, _seeds),
    Step("mediating", "heads that mediate, and their facilitation", _mediating, _mediating_cost, _has_words),
    Step(
        "contrasts", "one format kept, the other forgotten, on tasks held out", _contrasts, _contrasts_cost, _two_words
    ),
)
"""The protocol, in order."""
