"""The page of an atlas: which heads serve which skill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from cs_heads import plot
from cs_heads.analysis.atlas import Atlas
from cs_heads.report.findings import AtlasFindings
from cs_heads.report.parts import Part, facts_of, mark_of, picture_of, render, section_of, table_of


def atlas_page(findings: AtlasFindings) -> str:
    """The page of an atlas.

    Args:
        findings: the atlas, and how it was made.
    """
    found = findings.atlas
    word = next(iter(found.rankings.values())).grid.word
    model = found.provenance.get("model", {}).get("name", "a model")
    return render(
        f"Which {word}s of {model} serve which skill?",
        f"Atlas of {model}",
        word,
        atlas=_answer(found, word),
        notes=notes_of(found),
        sections=[
            _map(found, word),
            _matrix(found, word),
            _skills(found, word),
            _universal(found, word),
            _shared(found, word),
            _tree(found, word),
            *_left_out(found),
        ],
        cost=_cost(findings),
        provenance=_provenance(found),
        command=findings.command,
    )


def notes_of(found: Atlas) -> list[str]:
    """What a reader should know before trusting an atlas; what is said of several skills stands once.

    Args:
        found: the atlas.
    """
    said: dict[str, list[str]] = {}
    for name in found.skills:
        for note in dict.fromkeys((*found.proofs[name].notes, *found.rankings[name].notes)):
            said.setdefault(note, []).append(name)
    of_skills = [
        f"{'every skill' if len(names) == len(found.skills) else ', '.join(names)}: {note}"
        for note, names in said.items()
        if note not in found.notes
    ]
    return [*found.notes, *of_skills]


def verdicts_of(found: Atlas) -> str:
    """How many skills have each verdict, in words.

    Args:
        found: the atlas.
    """
    counted = Counter(proof.verdict for proof in found.proofs.values()).most_common()
    left_out = [f"{len(found.left_out)} left out"] if found.left_out else []
    return f"{len(found.skills)} skills: {', '.join([*(f'{n} {verdict}' for verdict, n in counted), *left_out])}"


def clusters_of(found: Atlas) -> str:
    """The clusters of two skills or more, in words.

    Args:
        found: the atlas.
    """
    groups = [" + ".join(group) for group in found.clusters() if len(group) > 1]
    return "; ".join(groups) or "none, each skill is alone"


def _answer(found: Atlas, word: str) -> Part:
    verdicts = {proof.verdict for proof in found.proofs.values()}
    kind = "localized" if any(proof.localized for proof in found.proofs.values()) else "not"
    own, others = found.means()
    return {
        "verdict": verdicts_of(found),
        "kind": "specific" if verdicts == {"specific"} else kind,
        "meaning": f"With the first {found.k} {word}s of a skill off, on unseen examples the skill loses {own:.2f} of "
        f"its score above chance on average, and the other skills {others:.2f}.",
        "universal": list(map(mark_of, found.universal)),
    }


def _map(found: Atlas, word: str) -> Part:
    told = "; ".join(f"{name}: {' '.join(map(str, heads))}" for name, heads in found.heads.items())
    caption = (
        f"Color: the skill that loses most to a {word}, among others that are off, beyond the mean of the skills. With "
        f"a letter: the first {found.k} {word}s of each skill, which are proved below. U: universal."
    )
    return section_of(
        "Map", picture=picture_of(plot.atlas(found), f"The first {word}s of each skill: {told}.", caption)
    )


def _matrix(found: Atlas, word: str) -> Part:
    matrix = found.matrix()
    told = "; ".join(f"{name}: {_share(matrix.loc[name, name])}" for name in found.skills)
    caption = (
        f"Share of the score above chance that each skill (across) loses on unseen examples with the first {found.k} "
        f"{word}s of a skill (down) off: 1 leaves nothing above chance, and more turns a choice into its opposite."
    )
    drawn = plot.skill_matrix(found)
    return section_of("What each skill loses", picture=picture_of(drawn, f"Own losses: {told}.", caption))


def _skills(found: Atlas, word: str) -> Part:
    rows = []
    for row in found.to_frame().to_dict("records"):
        worst = row["loses most"] if row["loss of that"] > 0 else None
        numbers = (row["own loss"], row["others' mean loss"], row["random"])
        rows.append(
            [
                row["skill"],
                row["heads"],
                row["verdict"],
                "–" if worst is None else f"{worst} ({_share(row['loss of that'])})",
                *map(_share, numbers),
            ]
        )
    columns = ["skill", f"{word}s", "verdict", "other that loses most", "own loss", "others' mean", f"random {word}s"]
    caption = (
        f"Losses on unseen examples with the {word}s of each skill off, as shares of the score above chance; random "
        f"{word}s are of the same layers."
    )
    return section_of("Skills", table=table_of(caption, columns, rows, 4))


def _universal(found: Atlas, word: str) -> Part:
    title = f"Universal {word}s"
    if not found.universal:
        return section_of(title, f"No {word} is one that most skills need.")
    rows = []
    for head in found.universal:
        losses = found.losses[:, head.layer, head.index]
        least, most = int(losses.argmin()), int(losses.argmax())
        ends = [f"{found.skills[place]} ({_share(losses[place])})" for place in (least, most)]
        rows.append([mark_of(head), *ends, _share(losses.mean())])
    text = (
        f"More than half of the skills need these {word}s, and all together clearly lose more than a tenth on average. "
        "They are of no skill in particular."
    )
    columns = [word, "skill that loses least", "skill that loses most", "mean loss"]
    return section_of(title, text, table=table_of(_ALONE.format(word), columns, rows, 3))


def _shared(found: Atlas, word: str) -> Part:
    title = f"Shared {word}s"
    if not found.shared:
        return section_of(title, f"No {word} serves several skills and not most.")
    places = {name: place for place, name in enumerate(found.skills)}
    rows = []
    for head, names in found.shared.items():
        losses = {name: found.losses[places[name], head.layer, head.index] for name in names}
        order = sorted(names, key=lambda name: -losses[name])
        rows.append([mark_of(head), ", ".join(f"{name} ({_share(losses[name])})" for name in order), len(names)])
    text = f"These {word}s serve two skills or more, but not most."
    return section_of(title, text, table=table_of(_ALONE.format(word), [word, "skills", "number"], rows, 2))


_ALONE = "In brackets: what the {} takes among others that are off, as a share of the score above chance."


def _tree(found: Atlas, word: str) -> Part:
    kin = {frozenset((name, other)) for name, others in found.kin.items() for other in others}
    told = ", ".join(" and ".join(sorted(pair)) for pair in sorted(kin, key=sorted))
    text = f"Skills that need the same {word}s join early. Clusters: {clusters_of(found)}."
    if kin:
        text += f" No controls of each other, since they share questions or ask for the same: {told}."
    caption = f"Distance: 1 less the cosine of what the {word}s surely take from each skill beyond the mean; 1: apart."
    picture = picture_of(plot.skill_tree(found), f"Tree of skills. Clusters: {clusters_of(found)}.", caption)
    return section_of("Tree of skills", text, picture)


def _left_out(found: Atlas) -> Iterable[Part]:
    if found.left_out:
        yield section_of("Left out", table=table_of("", ["skill", "why"], map(list, found.left_out.items()), 2))


def _cost(findings: AtlasFindings) -> list[tuple[str, str]]:
    found, spent = findings.atlas, "{:,} example-evaluations".format
    search = found.provenance.get("search", {}).get("spent")
    lines = [] if search is None else [("to search", spent(search)), ("to prove", spent(found.spent - search))]
    took = "" if findings.seconds is None else f", {findings.seconds:.1f} s"
    return [*lines, ("in all", f"{spent(found.spent)}{took}")]


def _provenance(found: Atlas) -> list[tuple[str, list[tuple[str, str]]]]:
    """Of the atlas, and a line of each skill."""
    # The task is that of the first experiment, and skills have lines of their own.
    known = {key: value for key, value in found.provenance.items() if key not in ("task", "tasks", "kin")}
    skills = [
        (name, f"{task['kind']}, {task['n_examples']} finding examples, identity {task['identity']}")
        for name, task in found.provenance.get("tasks", {}).items()
    ]
    return [("the atlas", facts_of(known)), *([("the skills", skills)] if skills else [])]


def _share(value: Any) -> str:
    """A loss; a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:.2f}"
