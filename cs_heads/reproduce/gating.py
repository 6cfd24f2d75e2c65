"""The steps of Nam et al. (arXiv 2505.13737): gates on all heads, their kinds, and what bears them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.plot.drawing import drawing
from cs_heads.reproduce import published
from cs_heads.reproduce.outputs import Output, measured, titled
from cs_heads.reproduce.reproduction import Part, Reproduction, Step, free
from cs_heads.tasks import Example, Task, finding_side
from cs_heads.text import shown
from cs_heads.units import Head

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.methods.gating.result import HeadGates
    from cs_heads.methods.mediation import Mediation

_WORDS = "function_vectors/"


def _capabilities(study: Reproduction) -> dict[str, HeadGates]:
    """Gates of the tasks of table 2; the word-to-word tasks are for figures 4 and 5."""
    return {name: gates for name, gates in study.gates.items() if name in study.finding}


def _kinds(study: Reproduction) -> list[Output]:
    from cs_heads.plot.gating import plot_trajectories
    from cs_heads.plot.roles import plot_roles

    outputs = []
    for name, gates in _capabilities(study).items():
        frame, title = gates.to_frame(), _title(study, name)
        heads = _first_heads(gates)
        outputs += [
            _output(study, name, "table-1", "facilitation, irrelevance and interference of every head", frame),
            _output(study, name, "figure-3b", "the same as a map", frame, drawing(titled(title, plot_roles), gates)),
            _output(
                study,
                name,
                "figure-1b",
                "paths of the gates of three heads, the first by each score",
                _paths(gates, heads),
                drawing(titled(title, plot_trajectories), gates, heads=list(heads.values())),
            ),
        ]
    return outputs


def _title(study: Reproduction, name: str) -> str:
    """The heads' name, and what they were found on."""
    return f"{name}: {study.label(study.finding[name])}"


def _output(study: Reproduction, name: str, number: str, about: str, *shown: Any) -> Output:
    """A table or figure of one task: the table, and what draws it."""
    return Output(f"{number}-{name.replace(' ', '-')}", f"{_title(study, name)}: {about}", *shown)


def _first_heads(gates: HeadGates) -> dict[str, Head]:
    """The first head by each score that is not the first by one before it."""
    from cs_heads.methods.gating.result import SCORES

    chosen: dict[str, Head] = {}
    for score in SCORES:
        order = np.argsort(-gates.score(score).mean(axis=0).ravel(), kind="stable")
        heads = (gates.ranking().grid.head(int(index)) for index in order)
        chosen[score] = next(head for head in heads if head not in chosen.values())
    return chosen


def _paths(gates: HeadGates, heads: Mapping[str, Head]) -> pd.DataFrame:
    import pandas as pd

    from cs_heads.methods.gating.result import PHASES

    rows = []
    for score, head in heads.items():
        for phase, name in enumerate(PHASES):
            path = gates.trajectory[phase, 0, :, head.layer, head.head]
            pairs = zip(gates.at.tolist(), path.tolist(), strict=True)
            rows += [{"by": score, "head": str(head), "phase": name, "step": t, "gate": g} for t, g in pairs]
    return pd.DataFrame(rows)


def _shares(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.gating import taxonomy
    from cs_heads.plot.taxonomy import plot_taxonomy

    found = taxonomy(_capabilities(study))
    frame = found.to_frame()
    for column, model in enumerate(published.GATED_MODELS):
        known = [published.GATED.get(key) for key in zip(frame["fit"], frame["heads"], strict=True)]
        frame[f"facilitation, published {model}"] = [None if row is None else row[column] for row in known]
    about = f"share of heads of each kind, in every seed and in any; published: {published.CHG_SOURCE}"
    return [Output("table-2", about, frame, drawing(plot_taxonomy, found))]


def _toggles(study: Reproduction) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.gating import toggle_curves
    from cs_heads.plot.taxonomy import plot_toggle_curves

    about = "log-probability with the first heads shut less that with them open, all others at G+"
    outputs = []
    for name, gates in _capabilities(study).items():
        curves = toggle_curves(study.experiment(study.unseen(study.finding[name])), gates)
        frame = pd.concat([curve.to_frame() for curve in curves], ignore_index=True)
        plot = titled(_title(study, name), plot_toggle_curves)
        outputs.append(_output(study, name, "figure-2", about, frame, drawing(plot, curves)))
    return outputs


def _distribution(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.gating import score_distribution
    from cs_heads.plot.taxonomy import plot_score_ecdf

    about = "share of heads whose score is so large or less"
    return [
        _output(
            study,
            name,
            "figure-3a",
            about,
            score_distribution(gates, cumulative=True).reset_index(),
            drawing(titled(_title(study, name), plot_score_ecdf), gates),
        )
        for name, gates in _capabilities(study).items()
    ]


def _agreement(study: Reproduction) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.gating import seed_agreement

    frames = [seed_agreement(gates).assign(task=name) for name, gates in _capabilities(study).items()]
    return [Output("seeds", "how alike two seeds are (section 4.2)", pd.concat(frames, ignore_index=True))]


def _mediating(study: Reproduction) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.gating import score_of_heads
    from cs_heads.plot.gating import plot_group

    about = "facilitation of heads that mediate against that of all others (largest over seeds; Welch, one-sided)"
    outputs, rows = [], []
    for name in study.controls:
        if name not in study.gates:
            continue
        found = _mediation(study, name)
        heads = found.heads()
        row: dict[str, Any] = {"task": name, "pairs": len(found.effects), "mediating": len(heads)}
        row |= {"inside": None, "outside": None, "t": None, "p": None}
        if 2 <= len(heads) <= study.grid.size - 2:
            test = score_of_heads(study.gates[name], heads, over="any")
            row |= {"inside": test.inside, "outside": test.outside, "t": test.t, "p": test.p}
            frame = study.gates[name].to_frame()
            frame["mediates"] = frame["head"].isin(list(map(str, heads)))
            label = study.label(name)
            picture = drawing(titled(label, plot_group), test)
            file = f"figure-4-{name.rpartition('/')[2]}"
            outputs.append(Output(file, f"{label}: {about}", frame, picture))
        else:
            study.left_out[f"figure-4 of {name}"] = (
                f"{len(heads)} of {study.grid.size} heads mediate, and a test needs two or more on either side"
            )
        rows.append(row)
    if not rows:
        return []
    return [Output("figure-4", about, measured(study, pd.DataFrame(rows))), *outputs]


def _mediation(study: Reproduction, name: str) -> Mediation:
    from cs_heads.methods.mediation import function_vector_effects, indirect_effects, task_pairs
    from cs_heads.tasks import function_vectors

    task, n = finding_side(study.tasks[name]), study.settings.n_pairs
    if task.name == name and name.startswith(_WORDS):
        pairs = function_vectors.pairs(task.name.removeprefix(_WORDS), n, study.seed)
        return function_vector_effects(study.model, pairs, progress=study.progress)
    return indirect_effects(study.model, task_pairs(study.model, task, n, study.seed), progress=study.progress)


def _contrasts(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.gating import held_out_contrasts
    from cs_heads.plot.taxonomy import plot_contrasts

    settings = study.settings
    shots = {name.removeprefix(_WORDS): study.tasks[name] for name in _word_tasks(study)}
    found = held_out_contrasts(
        study.model,
        {"shots": shots, "instruction": {name: instructed(task, name) for name, task in shots.items()}},
        n=min(len(study.unseen(name)) for name in _word_tasks(study)),
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=study.seed,
        progress=study.progress,
        store=study.store,
    )
    about = "a word task that gates were not fitted to, in the format they retain and in the other"
    return [Output("figure-5", about, found.to_frame(), drawing(plot_contrasts, found))]


def _word_tasks(study: Reproduction) -> list[str]:
    """The paper's word tasks, as far as they are asked by worked examples: from those the other format is made."""
    return [name for name, task in study.tasks.items() if name.startswith(_WORDS) and _in_shots(task)]


def _in_shots(task: Task) -> bool:
    prompts = [shown(example.prompt) for example in task.examples]
    return all("Q: " in prompt and prompt.endswith("\nA:") for prompt in prompts)


def instructed(task: Task, name: str) -> Task:
    """The same words asked for by an instruction in place of worked examples."""
    from cs_heads.tasks.function_vectors import INSTRUCTIONS

    instruction = INSTRUCTIONS[name]

    def changed(example: Example) -> Example:
        word = shown(example.prompt).rpartition("Q: ")[2].removesuffix("\nA:")
        return replace(example, prompt=f"{instruction}\nWord: {word}\nAnswer:")

    held_out = None if task.held_out is None else instructed(task.held_out, name)
    return replace(task, examples=tuple(map(changed, task.examples)), held_out=held_out)


def fit_cost(study: Reproduction) -> dict[str, int]:
    """The gates of every task, and the intact runs before them."""
    settings = study.settings
    each = 6 * settings.n_seeds * settings.steps * settings.batch_size
    return {name: each + len(study.tasks[name]) for name in (*study.finding.values(), *study.controls)}


def _toggle_cost(study: Reproduction) -> dict[str, int]:
    points = len(np.unique(np.linspace(1, study.grid.size // 2, 12).round()))
    masks = 3 * 2 * points * study.settings.n_seeds
    return {name: masks * len(study.unseen(name)) for name in study.finding.values()}


def _mediating_cost(study: Reproduction) -> dict[str, int]:
    return dict.fromkeys(study.controls, study.settings.n_pairs * (study.grid.size + 2))


def _contrasts_cost(study: Reproduction) -> dict[str, int]:
    settings = study.settings
    each = 2 * 8 * settings.steps * settings.batch_size
    return {name: each + 8 * len(study.unseen(name)) for name in _word_tasks(study)}


def _seeds(study: Reproduction) -> str | None:
    return None if study.settings.n_seeds > 1 else "two seeds or more"


def _two_words(study: Reproduction) -> str | None:
    return None if len(_word_tasks(study)) > 1 else "two word-to-word tasks or more, by worked examples"


def _has_words(study: Reproduction) -> str | None:
    return None if study.controls else "a word-to-word task"


_GATES: tuple[Part, ...] = ("gates",)

STEPS: tuple[Step, ...] = (
    Step("kinds", "gates of every head: facilitating, irrelevant or interfering", _kinds, free, uses=_GATES),
    Step("shares", "how many heads are of each kind", _shares, free, uses=_GATES),
    Step("toggles", "heads shut and opened in the order of each score", _toggles, _toggle_cost, uses=_GATES),
    Step("distribution", "how the scores are spread", _distribution, free, uses=_GATES),
    Step("seeds", "how alike the seeds are", _agreement, free, _seeds, _GATES),
    Step("mediating", "heads that mediate, and their facilitation", _mediating, _mediating_cost, _has_words, _GATES),
    Step(
        "contrasts", "one format kept, the other forgotten, on tasks held out", _contrasts, _contrasts_cost, _two_words
    ),
)
"""The protocol, in order."""
