"""The page of findings: the answer first, then what bears it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cs_heads import plot
from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.losses import shared_line
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.arguments import check_path, in_line
from cs_heads.plot.attention_patterns import load_script
from cs_heads.plot.looks import same_looks
from cs_heads.plot.maps import heads_caption
from cs_heads.plot.style import offscreen
from cs_heads.ranking import HeadRanking
from cs_heads.report.atlas_page import atlas_page
from cs_heads.report.comparison import comparison_of
from cs_heads.report.findings import ATLAS, BROKEN, Findings, Section, broken_folder, load_atlas
from cs_heads.report.heads import chip_of, chip_terms, heads_table, interfering_note, shown_heads, told_of
from cs_heads.report.parts import (
    CONTROL,
    COST,
    Part,
    cells_of,
    facts_of,
    interval_of,
    note_of,
    picture_of,
    render,
    section_of,
    table_of,
)
from cs_heads.units import Grid, HeadGrid, Unit

_MEANING = {
    "specific": "On unseen examples these heads do more harm than random heads of the same layers, and the controls "
    "lose at most a third of what the task loses, on average: they are heads of this task.",
    "template-bound": "On unseen examples these heads do more harm than random heads of the same layers, but the same "
    "asked for in other words loses less than half of it: they serve the wording of the task, and not the skill.",
    "shared": "On unseen examples these heads do more harm than random heads of the same layers, but they cannot be "
    "called heads of this task: the controls lose more than a third of it on average, or one of them more than half.",
    "localized": "On unseen examples these heads do more harm than random heads of the same layers: the task rests on "
    "them. Whether other tasks do as well is not known: too few controls could tell, or the difference is not certain.",
    "not localized": "On unseen examples these heads do not do clearly more harm than random heads of the same layers: "
    "the ranking is no evidence that the task rests on them.",
    "baseline too low": "The intact model does not do the task well enough for any ablation to show a drop.",
}

_SCORES = {
    "intact": "score with no head off, from 0 to 1",
    "heads off": f"score with the heads ablated; a control is {CONTROL}",
    "drop": "the first less the second",
    "95 % interval": "of the drop",
}
_LOSSES = {
    "loss": "(intact - heads off) / (intact - guessing), the share of the score above guessing that is lost; 1: all",
    "95 % interval": "of the loss; below zero where the task may do better",
}


def write_report(
    findings: HeadRanking | Findings | Atlas | str | Path,
    path: str | Path,
    *,
    proof: Confirmation | None = None,
    curve: SparsityCurve | None = None,
    attention: HeadAttention | None = None,
) -> Path:
    """Write the report of findings: one HTML file that opens anywhere.

    The heads and the verdict come first, then what broke, maps, curves, attention patterns, cost, provenance, and the
    command that makes it again; of an atlas its map, the matrix of losses, a table of skills, universal and shared
    heads, and the tree of skills. The page uses no network, can be printed, follows the reader's dark or light
    setting, and shows the user's own texts as texts.

    Args:
        findings: a ranking, an atlas, or the folder that ``cs-heads find``, ``compare`` or ``atlas`` wrote with
            ``--out``; or ``Findings`` with all that goes into the page.
        path: the file to write.
        proof: beside a ranking, what ``cs.confirm`` said of it.
        curve: beside a ranking, what ``cs.sparsity_curve`` gave.
        attention: beside a ranking, what ``cs.attention`` gave.

    Returns:
        The path.

    Raises:
        ValueError: for a folder without results or with broken ones, results of another model or task than the
            ranking's, or results beside what is no ranking.
    """
    from jinja2 import TemplateError

    path = check_path("path", path)
    if isinstance(findings, HeadRanking):
        findings = _findings_of(findings, proof, curve, attention)
    elif (proof, curve, attention) != (None, None, None):
        raise ValueError(f"proof, curve and attention go beside a ranking, got findings {in_line(findings)}")
    if isinstance(findings, Findings | Atlas):
        page = _page(findings)
    else:
        if not isinstance(findings, str | Path):
            raise ValueError(f"findings must be a ranking, an atlas, or the path of a folder, got {in_line(findings)}")
        folder = Path(findings)
        read = load_atlas(folder) if (folder / ATLAS).is_file() else Findings.load(folder)
        try:
            page = _page(read)
        except (*BROKEN, TemplateError) as error:
            raise broken_folder(folder, error) from error
    path.write_text(page + "\n", encoding="utf-8")
    return path


def _findings_of(
    ranking: HeadRanking,
    proof: Confirmation | None,
    curve: SparsityCurve | None,
    attention: HeadAttention | None,
) -> Findings:
    if proof is not None and not isinstance(proof, Confirmation):
        raise ValueError(f"proof must be what confirm gives, got {in_line(proof)}")
    for name, given, kind, call in (
        ("curve", curve, SparsityCurve, "sparsity_curve"),
        ("attention", attention, HeadAttention, "attention"),
    ):
        if given is not None and not isinstance(given, kind):
            raise ValueError(f"{name} must be what {call} gives, got {in_line(given)}")
    told = None if proof is None else proof.to_dict()
    k = ranking.k
    if proof is not None:
        proved = (*proof.heads, *proof.passengers)
        if {*proved} != {*ranking.top(len(proved))}:
            first, others = (", ".join(map(str, heads)) for heads in (ranking.top(len(proved)), proved))
            raise ValueError(f"proof must be of the first heads of the ranking, {first}; it is of {others}")
        ranking, k = ranking.proved(proof.heads), len(proof.heads)
    return Findings(ranking, proof=told, curve=curve, attention=attention, k=k)


def _page(findings: Findings | Atlas) -> str:
    with offscreen():
        return atlas_page(findings) if isinstance(findings, Atlas) else _findings_page(findings)


def _findings_page(findings: Findings) -> str:
    with same_looks(*_head_lists(findings)):
        return _rendered(findings)


def _head_lists(findings: Findings) -> list[list[Unit]]:
    """The heads of each picture, the ranking's first: so they look the same in all of them."""
    ranking, compared, attention = findings.ranking, findings.comparison, findings.attention
    return [
        *([] if ranking is None else [shown_heads(ranking, findings.k)]),
        *([] if attention is None else [list(attention.heads)]),
        *([] if compared is None else [shown_heads(one.ranking, compared.k) for one in compared.methods.values()]),
    ]


def _rendered(findings: Findings) -> str:
    ranking, proof = findings.ranking, findings.proof
    word, title = _grid(findings).word, f"{findings.task} on {findings.model}"
    notes = [
        *findings.notes,
        *((proof or {}).get("notes", ())),
        *(() if ranking is None else (*ranking.notes, *interfering_note(ranking))),
    ]
    return render(
        f"Which {word}s does {title} rest on?",
        title,
        word,
        ranking=ranking,
        heads=[] if ranking is None else [chip_of(ranking, head) for head in shown_heads(ranking, findings.k)],
        chip_terms={} if ranking is None else chip_terms(ranking),
        shared=[] if ranking is None else list(map(shared_line, ranking.shared_effects)),
        proof=proof,
        meaning=None if proof is None else _meaning(proof),
        broke=[] if proof is None else _proof_tables(proof),
        notes=list(map(note_of, dict.fromkeys(notes))),
        maps=_maps(findings),
        table=None if ranking is None else heads_table(ranking, findings.k),
        curve=_curve(findings),
        comparison=comparison_of(findings.comparison),
        attention=_attention(findings),
        sections=list(map(_section, findings.sections)),
        cost=table_of(COST, [], _cost(findings), 2),
        provenance=_provenance(findings),
        command=findings.command,
    )


def _grid(findings: Findings) -> Grid:
    """Of the ranking, or of those compared; of heads where a page has neither."""
    if findings.ranking is not None:
        return findings.ranking.grid
    compared = () if findings.comparison is None else findings.comparison.methods.values()
    return next((one.ranking.grid for one in compared), HeadGrid(1, 1))


def _meaning(proof: dict[str, Any]) -> str:
    """What a verdict says."""
    but = f" But for {', '.join(proof['but_for'])}: of the same form, more than half."
    untold = " Whether that holds in other words was not measured." * (proof["verdict"] == "specific")
    return _MEANING[proof["verdict"]] + (but if proof["but_for"] else "") + ("" if proof["kin"] else untold)


def _proof_tables(proof: dict[str, Any]) -> list[Part]:
    """What the heads take from the task and its controls, and the losses that a verdict rests on."""
    rows = [
        [
            f"{one['task']}{role}",
            *(f"{one[name]:.3f}" for name in ("baseline", "score")),
            f"{one['drop']:+.3f}",
            interval_of(one["low"], one["high"]),
        ]
        for role, group in (("", [proof]), (" (kin)", proof["kin"]), (" (control)", proof["controls"]))
        for one in group
    ]
    drop, n_sets = proof["random_drop"], len(proof["random_drops"])
    scores = [f"{proof['baseline']:.3f}", f"{proof['baseline'] - drop:.3f}", f"{drop:+.3f}"]
    rows.append([f"{proof['task']}, random heads of the same layers ({n_sets} sets)", *scores, "–"])
    caption = f"Score on unseen examples, intact and with {', '.join(proof['heads'])} off."
    tables = [table_of(caption, ["task", "intact", "heads off", "drop", "95 % interval"], rows, 1, _SCORES)]
    found = proof.get("specificity")
    if found:
        losses = {proof["task"]: found["own"]}
        losses |= {f"{name} (control)": loss for name, loss in found["controls"].items()}
        if len(found["controls"]) > 1:
            losses["mean of the controls"] = found["mean"]
            losses[f"largest of the controls ({found['worst']['control']})"] = found["worst"]
        losses["own minus mean of the controls"] = found["difference"]
        rows = [[name, f"{one['loss']:+.3f}", interval_of(one["low"], one["high"])] for name, one in losses.items()]
        caption = "What each task loses with the heads off."
        tables.append(table_of(caption, ["task", "loss", "95 % interval"], rows, 1, _LOSSES))
    return tables


def _maps(findings: Findings) -> list[Part]:
    ranking, proof = findings.ranking, findings.proof
    if ranking is None:
        return []
    names = ", ".join(map(str, ranking.top(min(findings.k, ranking.grid.size))))
    layers, heads = ranking.grid.shape
    pictures = [
        picture_of(
            plot.heads(ranking, findings.k, verdict=None if proof is None else proof["verdict"]),
            f"Importance of each of the {layers} × {heads} {ranking.grid.word}s; the first are {names}.",
            heads_caption(ranking, findings.k),
            cells_of(ranking.grid, told_of(ranking)),
        ),
        picture_of(
            plot.importance(ranking, findings.k),
            f"Importance of the first heads with their intervals: {names}.",
            "The first heads with their intervals, where the method gives them.",
        ),
    ]
    if proof is not None:
        import pandas as pd

        rows = [proof, *proof.get("controls", [])]
        told = "; ".join(f"{row['task']}: {row['drop'] / row['baseline']:+.2f}" for row in rows if row["baseline"])
        pictures.append(
            picture_of(
                plot.confirmation(pd.DataFrame(rows), random=proof["random_drop"]),
                f"Share of the score lost with the heads off: {told}.",
                "What breaks with the heads off, on unseen examples, and what stays: score lost as a share of the "
                "intact score. Black lines: 95 % intervals. Gray: random heads.",
            )
        )
    return pictures


def _curve(findings: Findings) -> Part | None:
    """The score by number of heads off, and how many heads take half of what lies above chance."""
    curve = findings.curve
    if curve is None:
        return None
    own = curve.drops[curve.own]
    told = ", ".join(f"{drop.score:.2f}" for drop in own)
    random = "" if curve.random_drops is None else " Gray: random heads of the same layers."
    return {
        "picture": picture_of(
            plot.sparsity(curve),
            f"Score with 0 to {len(own) - 1} heads off: {told}.",
            f"Score on unseen examples with the first k heads off. Band: 95 % interval of the drop.{random}",
        ),
        "half": curve.heads_for(0.5),
        "n_heads": len(own) - 1,
        "notes": curve.notes,
    }


def _attention(findings: Findings) -> Part | None:
    attention = findings.attention
    if attention is None:
        return None
    prompts = []
    for number, one in enumerate(attention.prompts):
        looked = [(str(head), one.looks_at(row)) for row, head in enumerate(attention.heads)]
        told = "; ".join(f"{head} at {seen[0][0].strip()!r}, {100 * seen[0][1]:.0f} %" for head, seen in looked)
        picture = picture_of(plot.last_token(attention, number), f"What the last token looks at: {told}.")
        prompts.append({"prompt": one.prompt, "picture": picture, "view": plot.show_attention(attention, number).html})
    return {"prompts": prompts, "script": load_script(), "off": list(map(str, attention.off))}


def _section(section: Section) -> Part:
    frame, table = section.frame, None
    if frame is not None:
        rows = [[f"{x:.3f}" if isinstance(x, float) else x for x in row] for row in frame.itertuples(index=False)]
        table = table_of("", list(map(str, frame.columns)), rows, frame.shape[1])
    picture = None if section.picture is None else picture_of(section.picture, section.title)
    return section_of(section.title, section.text, picture, table)


def _cost(findings: Findings) -> list[tuple[str, str]]:
    spent, took = "{:,} example-evaluations".format, {name: f", {s:.1f} s" for name, s in findings.seconds.items()}
    lines = []
    if findings.ranking is not None:
        lines.append((f"to find ({findings.ranking.method})", spent(findings.ranking.spent) + took.get("find", "")))
        if findings.ranking.backwards:
            lines.append(("of these backward passes", f"{findings.ranking.backwards:,}"))
    if findings.proof is not None:
        lines.append(("to confirm", spent(findings.proof["spent"]) + took.get("confirm", "")))
    if findings.curve is not None:
        lines.append(("curve of 0, 1, ... heads off", spent(findings.curve.spent)))
    if findings.comparison is not None:
        for name, one in findings.comparison.methods.items():
            lines.append((f"to find ({name})", f"{spent(one.ranking.spent)}, {one.seconds:.1f} s"))
        lines.append(("to judge all methods", spent(findings.comparison.spent)))
    if findings.attention is not None:
        runs = 2 if findings.attention.off else 1
        lines.append(("attention patterns", f"{runs * len(findings.attention.prompts)} forward passes of one prompt"))
    return lines


def _provenance(findings: Findings) -> list[tuple[str, list[tuple[str, str]]]]:
    """Where each part is from, as far as it says; nested records as lines: ``model.name``, ``model.grid``, ..."""
    parts = {
        "the ranking": None if findings.ranking is None else findings.ranking.provenance,
        "the proof": (findings.proof or {}).get("provenance"),
        "the comparison": None if findings.comparison is None else findings.comparison.provenance,
    }
    return [(name, facts_of(record)) for name, record in parts.items() if record]
