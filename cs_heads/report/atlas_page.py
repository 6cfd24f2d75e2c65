"""The page of an atlas: which heads serve which skill."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from cs_heads import plot
from cs_heads.analysis.atlas_result import Atlas
from cs_heads.lens.model import without_place
from cs_heads.plot.atlas import SPLITS
from cs_heads.plot.skills import UNIVERSAL, SkillLook, skill_looks
from cs_heads.plot.style import letter_on
from cs_heads.report import html
from cs_heads.report.cards import cards_html
from cs_heads.report.heads import interfering_note
from cs_heads.units import Unit

_ALONE = "In brackets: what the {} takes among others that are off, as a share of the score above chance."
# Losses that are told of a head that is pointed at.
_LARGEST = 4
# Skills that are named beside a note.
_NAMED = 3
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")


def atlas_page(found: Atlas) -> str:
    """The page of an atlas.

    Args:
        found: the atlas.
    """
    word, model = found.grid.word, without_place(found.provenance.get("model", {}).get("name", "a model"))
    left_out = list(found.left_out.items())
    sections = [
        ("Before you trust it", html.note_list(notes_of(found))),
        ("Map", _map(found, word)),
        ("What each skill loses", _matrix(found, word)),
        ("Skills", _skills(found, word)),
        (f"What each {word} does", _cards(found)),
        (f"Universal {word}s", _universal(found, word)),
        (f"Shared {word}s", _shared(found, word)),
        ("Tree of skills", _tree(found, word)),
        ("Left out", html.table("", ["skill", "why"], left_out, 2) if left_out else None),
        ("Cost", html.cost(_cost(found))),
        ("How to reproduce", html.reproduction(found.command)),
        ("Provenance", _provenance(found)),
    ]
    verdicts = set(_verdicts(found))
    kind = "localized" if any(proof.localized for proof in found.proofs.values()) else "not"
    return html.render(
        sections,
        question=f"Which {word}s of {model} serve which skill?",
        title=f"Atlas of {model}",
        word=word,
        about="",
        kind="specific" if verdicts == {"specific"} else kind,
        verdict=verdicts_of(found),
        answer=_answer(found, word, verdicts),
    )


def notes_of(found: Atlas) -> dict[str, Sequence[str]]:
    """What a reader should know before trusting an atlas; what is said of several skills stands once.

    Notes that differ in their numbers alone are one, with those of each skill to be unfolded.

    Args:
        found: the atlas.
    """
    said: dict[str, dict[str, str]] = {}
    for name in found.skills:
        ranking = found.rankings[name]
        for note in dict.fromkeys((*found.proofs[name].notes, *ranking.notes, *interfering_note(ranking))):
            if note not in found.notes:
                said.setdefault(_NUMBER.sub("…", note), {})[name] = note
    notes: dict[str, Sequence[str]] = dict.fromkeys(found.notes, ())
    for alike, of_skills in said.items():
        n, different = len(of_skills), len({*of_skills.values()}) > 1
        every = n == len(found.skills)
        names = "every skill" if every else ", ".join(of_skills) if n <= _NAMED else f"{n} skills"
        folded = different or (n > _NAMED and not every)
        each = [f"{name}: {note}" for name, note in of_skills.items()] if folded else []
        notes[f"{names}: {alike if different else next(iter(of_skills.values()))}"] = each
    return notes


def verdicts_of(found: Atlas) -> str:
    """How many skills have each verdict, in words.

    Args:
        found: the atlas.
    """
    counted = Counter(_verdicts(found)).most_common()
    left_out = [f"{len(found.left_out)} left out"] if found.left_out else []
    return f"{len(found.skills)} skills: {', '.join([*(f'{n} {verdict}' for verdict, n in counted), *left_out])}"


def _verdicts(found: Atlas) -> list[str]:
    return [f"{proof.verdict} but for some" if proof.but_for else proof.verdict for proof in found.proofs.values()]


def clusters_of(found: Atlas) -> str:
    """The clusters of two skills or more, in words.

    Args:
        found: the atlas.
    """
    groups = [" + ".join(group) for group in found.clusters() if len(group) > 1]
    return "; ".join(groups) or "none, each skill is alone"


def _answer(found: Atlas, word: str, verdicts: Collection[str]) -> Markup:
    own, others = found.means()
    meaning = (
        f"With the {word}s of a skill off, on unseen examples the skill loses {own:.2f} of its score above chance on "
        f"average, and the other skills {others:.2f}."
    )
    universal = f"Universal {word}s, which most skills need{'' if found.universal else ': none.'}"
    marks = list(map(_universal_mark, found.universal))
    return html.stacked(
        html.paragraphs(meaning, universal),
        html.macro("chips", marks, f"universal {word}s") if marks else None,
        html.macro("verdicts", verdicts),
    )


def _universal_mark(head: Unit) -> html.Mark:
    """A universal head as on the map: a dark disc with a U."""
    from matplotlib.colors import to_hex

    return {"head": str(head), "letter": "U", "color": to_hex(UNIVERSAL), "ink": "white", "round": True}


def _shared_mark(head: Unit, looks: Sequence[SkillLook], n: int) -> html.Mark:
    """A shared head as on the map: in the colors of its skills, with their number."""
    width = 100 / len(looks)
    bands = ", ".join(
        f"{look.color} {width * place:.0f}% {width * (place + 1):.0f}%" for place, look in enumerate(looks)
    )
    color = f"linear-gradient(90deg, {bands})"
    return {"head": str(head), "letter": str(n), "color": color, "ink": "black", "edged": True}


def _told(found: Atlas) -> dict[str, str]:
    """What is told of each head that a reader points at: what it takes from skills, the largest first."""
    first: dict[Unit, list[str]] = {}
    for name, heads in found.heads.items():
        for rank, head in enumerate(heads, start=1):
            first.setdefault(head, []).append(f"number {rank} of {name}")
    words: dict[Unit, list[str]] = {}
    for name, cards in found.cards.items():
        for card in cards.cards:
            words.setdefault(card.head, []).append(f"{name}: {card.words}")
    universal, told = set(found.universal), {}
    for head in found.grid:
        losses = found.losses[:, head.layer, head.index]
        largest = [place for place in np.argsort(-losses, kind="stable")[:_LARGEST] if losses[place] > 0]
        lines = [*first.get(head, []), *(["universal"] if head in universal else [])]
        lines += [f"{found.skills[place]} loses {losses[place]:.2f}" for place in largest]
        told[str(head)] = "\n".join(
            [str(head), *lines, f"mean of all skills {losses.mean():.2f}", *words.get(head, [])]
        )
    return told


def _map(found: Atlas, word: str) -> Markup:
    told = "; ".join(f"{name}: {' '.join(map(str, heads))}" for name, heads in found.heads.items())
    caption = (
        f"Color: the skill that loses most to a {word}, among others that are off, beyond the mean of the "
        f"skills. Framed: the {word}s of each skill, which are proved below. U: universal"
        f"{'; some are among these' if _kept(found) else ''}."
    )
    alt = f"The {word}s of each skill: {told}."
    picture = html.picture(plot.atlas(found), alt, caption, found.grid, _told(found))
    return html.pictures(picture, kind="pictures beside")


def _matrix(found: Atlas, word: str) -> Markup:
    matrix = found.matrix()
    told = "; ".join(f"{name}: {_share(matrix.loc[name, name])}" for name in found.skills)
    caption = (
        f"Share of the score above chance that each skill (across) loses on unseen examples with the "
        f"{word}s of a skill (down) off: 1 leaves nothing above chance, and more turns a choice into its opposite."
    )
    if matrix.isna().to_numpy().any():
        caption += " White: nothing is above chance for certain that could be lost."
    return html.pictures(html.picture(plot.skill_matrix(found), f"Own losses: {told}.", caption))


def _skills(found: Atlas, word: str) -> Markup:
    rows: list[list[Any]] = []
    looks = skill_looks(found.skills, found.linkage())
    for row in found.to_frame().to_dict("records"):
        name, look = row["skill"], looks[row["skill"]]
        mark = {"head": name, "letter": look.letter, "color": look.color, "ink": letter_on(look.color)}
        worst = f"{row['loses most']} ({_share(row['loss of that'])})" if row["loss of that"] > 0 else "–"
        numbers = (row["own loss"], row["others' mean loss"], row["random"], row["frequency"], row["again"])
        rows.append([mark, row["heads"], row["verdict"], worst, *map(_share, numbers)])
    columns = ["skill", f"{word}s", "verdict", "other that loses most"]
    columns += ["own loss", "others' mean", f"random {word}s", "frequency", "verdict again"]
    caption = (
        f"Losses on unseen examples with the {word}s of each skill off, as shares of the score above chance; random "
        f"{word}s are of the same layers where these have others enough."
    )
    terms = {
        "frequency": "in how many of the resamples of the search these are, on average",
        "verdict again": "how often the verdict is the same where losses are drawn anew, as on other examples",
        "own loss": "share of its score above chance that the skill loses: 1 is all of it",
        "others' mean": "what the other skills lose, on average",
        f"random {word}s": f"loss of the skill with {found.k} random {word}s off",
    }
    return html.table(caption, columns, rows, 4, terms)


def _cards(found: Atlas) -> Markup | None:
    """Of each skill the cards of its heads, folded."""
    return (
        html.macro("folded", {name: cards_html(cards) for name, cards in found.cards.items()}) if found.cards else None
    )


def _universal(found: Atlas, word: str) -> Markup:
    if not found.universal:
        return html.paragraphs(f"No {word} is one that most skills need.")
    rows = []
    for head in found.universal:
        losses = found.losses[:, head.layer, head.index]
        least, most = int(losses.argmin()), int(losses.argmax())
        ends = [f"{found.skills[place]} ({_share(losses[place])})" for place in (least, most)]
        rows.append([_universal_mark(head), *ends, _share(losses.mean())])
    text = (
        f"More than half of the skills need these {word}s, and all together clearly lose more than a tenth on average. "
        f"{_kept(found) or 'They are of no skill in particular.'}"
    )
    columns = [word, "skill that loses least", "skill that loses most", "mean loss"]
    return html.stacked(html.paragraphs(text), html.table(_ALONE.format(word), columns, rows, 3))


def _kept(found: Atlas) -> str:
    """Which universal heads are among those of skills, where other skills weigh little or rows came late."""
    of = {head: [name for name, heads in found.heads.items() if head in heads] for head in found.universal}
    told = "; ".join(f"{head} of {', '.join(names)}" for head, names in of.items() if names)
    return f"Among those of a skill are {told}." if told else ""


def _shared(found: Atlas, word: str) -> Markup:
    if not found.shared:
        return html.paragraphs(f"No {word} serves several skills and not most.")
    looks, rows = skill_looks(found.skills, found.linkage()), []
    for head, names in found.shared.items():
        losses = {name: found.losses[found.skills.index(name), head.layer, head.index] for name in names}
        order = sorted(names, key=lambda name: -losses[name])
        kept = [looks[name] for name in looks if name in order[:SPLITS]]
        told = ", ".join(f"{name} ({_share(losses[name])})" for name in order)
        rows.append([_shared_mark(head, kept, len(names)), told, len(names)])
    text = f"These {word}s serve two skills or more, but not most."
    return html.stacked(html.paragraphs(text), html.table(_ALONE.format(word), [word, "skills", "number"], rows, 2))


def _tree(found: Atlas, word: str) -> Markup:
    kin = {frozenset((name, other)) for name, others in found.kin.items() for other in others}
    told = ", ".join(" and ".join(sorted(pair)) for pair in sorted(kin, key=sorted))
    text = f"Skills that need the same {word}s join early. Clusters: {clusters_of(found)}."
    if kin:
        text += f" No controls of each other, since they share questions or ask for the same: {told}."
    caption = (
        f"Distance: 1 less the cosine of what the {word}s of any skill take from each beyond the mean; 1: apart. "
        f"A {word} that most skills need brings none together."
    )
    picture = html.picture(plot.skill_tree(found), f"Tree of skills. Clusters: {clusters_of(found)}.", caption)
    return html.stacked(html.paragraphs(text), html.pictures(picture, kind="pictures beside"))


def _cost(found: Atlas) -> list[tuple[str, str]]:
    spent = "{:,} example-evaluations".format
    search = found.provenance.get("search", {}).get("spent")
    lines = [] if search is None else [("to search", spent(search)), ("to prove", spent(found.spent - search))]
    took = "" if found.seconds is None else f", {found.seconds:.1f} s"
    if found.cards:
        lines.append(("head cards, beside", spent(sum(cards.spent for cards in found.cards.values()))))
    return [*lines, ("in all", f"{spent(found.spent)}{took}")]


def _provenance(found: Atlas) -> Markup:
    """Of the atlas, and a line of each skill."""
    # The task is that of the first experiment, and skills have lines of their own.
    known = {key: value for key, value in found.provenance.items() if key not in ("task", "tasks", "kin")}
    skills = {
        name: f"{task['kind']}, {task['n_examples']} finding examples, identity {task['identity']}"
        for name, task in found.provenance.get("tasks", {}).items()
    }
    return html.provenance({"the atlas": known, "the skills": skills})


def _share(value: Any) -> str:
    """A loss, marked where it is below chance; a dash where there is none."""
    return "–" if np.isnan(value) else f"{round(value, 2) + 0.0:.2f}{' (below chance)' if value > 1 else ''}"
