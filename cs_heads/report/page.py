"""The page of findings: the answer first, then what bears it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cs_heads import plot
from cs_heads.analysis.atlas import Atlas
from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.faithfulness import Faithfulness
from cs_heads.analysis.losses import shared_line
from cs_heads.arguments import check_path
from cs_heads.plot.attention_patterns import load_script
from cs_heads.plot.maps import heads_caption
from cs_heads.plot.style import offscreen
from cs_heads.ranking import HeadRanking
from cs_heads.report.atlas_page import atlas_page
from cs_heads.report.findings import ATLAS, BROKEN, AtlasFindings, Findings, Section, broken_folder
from cs_heads.report.parts import (
    Part,
    facts_of,
    interval_of,
    mark_of,
    picture_of,
    render,
    section_of,
    table_of,
)
from cs_heads.units import Grid, HeadGrid, Unit

_MEANING = {
    "specific": "On unseen examples these heads do more harm than random heads of the same layers, and the controls "
    "lose little: they are heads of this task.",
    "shared": "On unseen examples these heads do more harm than random heads of the same layers, but they cannot be "
    "called heads of this task: the controls lose as much, or too much.",
    "localized": "On unseen examples these heads do more harm than random heads of the same layers: the task rests on "
    "them. Whether other tasks do as well is not known: too few controls could tell, or the difference is not certain.",
    "not localized": "On unseen examples these heads do not do clearly more harm than random heads of the same layers: "
    "the ranking is no evidence that the task rests on them.",
    "baseline too low": "The intact model does not do the task well enough for any ablation to show a drop.",
}

_UNREAD = "On unseen examples these heads do more harm than random heads of the same layers: the task rests on them."
"""What *localized* means in older results, whose verdicts did not read the controls."""


def write_report(findings: Findings | AtlasFindings | Atlas | str | Path, path: str | Path) -> Path:
    """Write the report of findings: one HTML file that opens anywhere.

    The heads and the verdict come first, then what broke, maps, curves, attention patterns, cost, provenance, and the
    command that makes it again; of an atlas its map, the matrix of losses, a table of skills, universal and shared
    heads, and the tree of skills. The page uses no network, can be printed, follows the reader's dark or light
    setting, and shows the user's own texts as texts.

    Args:
        findings: the findings, an atlas, or the folder that ``cs-heads find``, ``compare`` or ``atlas`` wrote with
            ``--out``.
        path: the file to write.

    Returns:
        The path.

    Raises:
        ValueError: for a folder without results, or with broken ones.
    """
    from jinja2 import TemplateError

    path = check_path("path", path)
    if isinstance(findings, Atlas):
        findings = AtlasFindings(findings)
    if isinstance(findings, Findings | AtlasFindings):
        page = _page(findings)
    else:
        folder = check_path("findings", findings)
        read = (AtlasFindings if (folder / ATLAS).is_file() else Findings).load(folder)
        try:
            page = _page(read)
        except (*BROKEN, TemplateError) as error:
            raise broken_folder(folder, error) from error
    path.write_text(page + "\n", encoding="utf-8")
    return path


def _page(findings: Findings | AtlasFindings) -> str:
    with offscreen():
        return atlas_page(findings) if isinstance(findings, AtlasFindings) else _findings_page(findings)


def _findings_page(findings: Findings) -> str:
    ranking, proof = findings.ranking, findings.proof
    word, title = _grid(findings).word, f"{findings.task} on {findings.model}"
    notes = [*findings.notes, *((proof or {}).get("notes", ())), *(() if ranking is None else ranking.notes)]
    return render(
        f"Which {word}s does {title} rest on?",
        title,
        word,
        ranking=ranking,
        heads=[] if ranking is None else [_chip(ranking, head) for head in ranking.order[: findings.k]],
        shared=[] if ranking is None else list(map(shared_line, ranking.shared_effects)),
        proof=proof,
        meaning=None if proof is None else _meaning(proof),
        broke=[] if proof is None else _proof_tables(proof),
        notes=notes,
        maps=_maps(findings),
        table=None if ranking is None else _heads_table(ranking, findings.k),
        curve=_curve(findings),
        comparison=_comparison(findings.comparison),
        attention=_attention(findings),
        sections=list(map(_section, findings.sections)),
        cost=_cost(findings),
        provenance=_provenance(findings),
        command=findings.command,
    )


def _chip(ranking: HeadRanking, head: Unit) -> Part:
    """A head with its mark, what it takes, and whether it is claimed."""
    more = {"importance": ranking.importance[head.layer, head.index], "claimed": head in ranking.claims}
    return {**mark_of(head), **more}


def _grid(findings: Findings) -> Grid:
    """Of the ranking, or of those compared; of heads where a page has neither."""
    if findings.ranking is not None:
        return findings.ranking.grid
    compared = () if findings.comparison is None else findings.comparison.methods.values()
    return next((one.ranking.grid for one in compared), HeadGrid(1, 1))


def _heads_table(ranking: HeadRanking, k: int) -> Part:
    """The first heads, and others that are claimed, with what else is known of each."""
    beyond = ranking.claimed_beyond(k)
    heads = [*ranking.order[:k], *beyond]
    columns, rows = ["rank", "head", "importance"], []
    frame: Any = ranking.to_frame().set_index("head").loc[list(map(str, heads))]
    for row in frame.itertuples():
        more = {"interval": interval_of(row.low, row.high)} if hasattr(row, "low") else {}
        more |= {"z": f"{row.z:.1f}"} if hasattr(row, "z") else {}
        more |= {"selected": f"{row.frequency:.2f}"} if hasattr(row, "frequency") else {}
        columns = [*columns[:3], *more]
        rows.append([row.rank, _chip(ranking, Unit.parse(row.Index)), f"{row.importance:+.3f}", *more.values()])
    others = ", and others that are claimed" if beyond else ""
    caption = f"The first heads{others}. Importance in {ranking.unit}; positive: the task does worse without the head."
    return table_of(caption, columns, rows, 2)


def _meaning(proof: dict[str, Any]) -> str:
    return _UNREAD if proof["verdict"] == "localized" and "specificity" not in proof else _MEANING[proof["verdict"]]


def _proof_tables(proof: dict[str, Any]) -> list[Part]:
    """What the heads take from the task and its controls, and the losses that a verdict rests on."""
    rows = [
        [
            f"{one['task']} (control)" if number else one["task"],
            *(f"{one[name]:.3f}" for name in ("baseline", "score")),
            f"{one['drop']:+.3f}",
            interval_of(one["low"], one["high"]),
        ]
        for number, one in enumerate((proof, *proof.get("controls", [])))
    ]
    drop, drops = proof["random_drop"], proof["random_drops"]
    scores = [f"{proof['baseline']:.3f}", f"{proof['baseline'] - drop:.3f}", f"{drop:+.3f}"]
    sets = f"{len(drops)} sets: {interval_of(min(drops), max(drops))}"
    rows.append([f"{proof['task']}, random heads of the same layers", *scores, sets])
    caption = f"Score on unseen examples, intact and with {', '.join(proof['heads'])} off."
    tables = [table_of(caption, ["task", "intact", "heads off", "drop", "95 % interval"], rows)]
    found = proof.get("specificity")
    if found:
        losses = {proof["task"]: found["own"]}
        losses |= {f"{name} (control)": loss for name, loss in found["controls"].items()}
        if len(found["controls"]) > 1:
            losses["mean of the controls"] = found["mean"]
            losses[f"largest of the controls ({found['worst']['control']})"] = found["worst"]
        losses["own minus mean of the controls"] = found["difference"]
        rows = [[name, f"{one['loss']:+.3f}", interval_of(one["low"], one["high"])] for name, one in losses.items()]
        caption = "Loss: share of the score above chance that is lost with the heads off, with its 95 % interval."
        tables.append(table_of(caption, ["task", "loss", "95 % interval"], rows))
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
                "intact score. Lines: 95 % intervals.",
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


def _comparison(compared: Comparison | None) -> Part | None:
    if compared is None:
        return None
    k, methods = compared.k, compared.methods
    random = float(compared.random_drop[k - 1])
    lost = {name: _control_drops(compared, name) for name in methods}
    controls = sorted({task for drops in lost.values() for task in drops})
    rows: list[list[str]] = []
    for name, one in methods.items():
        drop = f"{one.drops[k - 1]:+.3f}", interval_of(*one.curve[k - 1].interval)
        of_controls = [f"{lost[name][task]:+.3f}" if task in lost[name] else "" for task in controls]
        rows.append([name, _top(compared, name), f"{one.ranking.spent:,}", f"{one.seconds:.1f}", *drop, *of_controls])
    rows.append(["random heads", "", "", "", f"{random:+.3f}", "", *("" for _ in controls)])
    columns = ["method", "heads", "example-evaluations", "seconds", f"drop@{k}", "95 % interval", *controls]
    caption = f"Drops on unseen examples with the top {k} heads off; baseline {compared.baseline:.3f}."
    pictures = [
        picture_of(
            plot.drops(compared),
            f"Drop on unseen examples against the number of heads ablated, for {', '.join(methods)}.",
            "Points of score lost on unseen examples with the first k heads of each method off. Gray: random heads.",
        )
    ]
    if len(methods) > 1:
        pictures.append(
            picture_of(plot.agreement(compared), "Overlap of the top heads of each two methods.", "Heads in common.")
        )
    leading = compared.leading()
    return {
        "result": compared,
        "faithful": _faithful(compared.faithfulness),
        "leading": {name: _top(compared, name) for name in leading},
        "best": methods[leading[0]].curve[k - 1],
        "random": random,
        "table": table_of(caption, columns, rows, 2),
        "pictures": pictures,
        "maps": [
            picture_of(plot.heads(one.ranking, k), f"Importance of each head by {name}.", name)
            for name, one in methods.items()
        ],
    }


def _faithful(found: Faithfulness | None) -> Part | None:
    """How far the first units of each ranking are enough by themselves."""
    if found is None:
        return None
    rows = [
        [name, f"{cpr:.3f}", f"{cpr_low:.3f} to {cpr_high:.3f}", f"{cmd:.3f}", f"{cmd_low:.3f} to {cmd_high:.3f}"]
        for name, cpr, cpr_low, cpr_high, cmd, cmd_low, cmd_high in found.areas().itertuples(index=False)
    ]
    random = "" if found.random is None else f" Of {len(found.random)} random orders: mean, least and largest."
    told = ", ".join(f"{name}: {one.cpr:.2f}" for name, one in found.curves.items())
    return {
        "unit": found.unit,
        "leading": found.leading(),
        "best": found.curves[found.leading()[0]].cpr,
        "response": found.response,
        "table": table_of(
            f"Area under faithfulness (CPR, larger is better) and between it and 1 (CMD, smaller is better).{random}",
            ["method", "CPR", "95 % interval", "CMD", "95 % interval"],
            rows,
        ),
        "picture": picture_of(
            plot.faithfulness(found),
            f"Faithfulness against the share of {found.unit}s kept; area under each line (CPR): {told}.",
            f"What the first {found.unit}s of each ranking do by themselves, all others ablated, on unseen examples: 0 "
            "is as nothing kept, 1 as the intact model. Band: 95 % interval. Gray: random orders.",
        ),
    }


def _top(compared: Comparison, method: str) -> str:
    return " ".join(map(str, compared.methods[method].ranking.top(compared.k)))


def _control_drops(compared: Comparison, method: str) -> dict[str, float]:
    """What the controls of a method's heads lose, one column each; of the default ones the mean."""
    if not compared.default_controls:
        return {f"{task} (control)": drop for task, drop in compared.methods[method].controls.items()}
    found = compared.specificity(method)
    return {} if found is None else {f"loss, mean of {len(found.controls)} controls": found.mean.loss}


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
        backwards = findings.ranking.provenance.get("cost", {}).get("backwards")
        if backwards:
            lines.append(("of these backward passes", f"{backwards:,}"))
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
