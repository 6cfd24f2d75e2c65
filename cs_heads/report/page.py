"""The page: what stands where, the answer first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.losses import shared_line
from cs_heads.arguments import check_path
from cs_heads.plot.attention import load_script, plot_last_token, show_attention
from cs_heads.plot.comparison import plot_agreement, plot_drops
from cs_heads.plot.confirmation import plot_confirmation
from cs_heads.plot.head_map import describe_heads, plot_heads
from cs_heads.plot.sparsity import plot_sparsity
from cs_heads.plot.style import head_look, offscreen
from cs_heads.ranking import HeadRanking
from cs_heads.report.findings import BROKEN, Findings, broken_study
from cs_heads.report.pictures import Picture, drops_frame, losses_of, picture_of, plot_importance
from cs_heads.units import Head

_SIGNS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "X": "✖", "<": "◀", ">": "▶"}
"""The markers of pictures as letters."""

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

_KINDS = {"specific": "specific", "shared": "shared", "localized": "localized"}
"""How the answer is colored; any other verdict is none."""

_UNREAD = "On unseen examples these heads do more harm than random heads of the same layers: the task rests on them."
"""What *localized* meant where verdicts did not read the controls."""


def write_report(findings: Findings | str | Path, path: str | Path) -> Path:
    """Write the report of findings, or of the folder that ``find`` or ``compare`` wrote, and returns its path.

    One HTML file with everything in it: the heads and the verdict first, then what broke, maps, curves, attention
    patterns, cost, provenance, and how to do it again. It asks the network for nothing, can be printed, follows the
    reader's dark or light setting, and shows the user's own texts as texts. A folder without results or with
    broken ones raises ``ValueError``.
    """
    from jinja2 import TemplateError

    path = check_path("path", path)
    if isinstance(findings, Findings):
        page = _page(findings)
    else:
        study = Findings.load(check_path("findings", findings))
        try:
            page = _page(study)
        except (*BROKEN, TemplateError) as error:
            raise broken_study(findings, error) from error
    path.write_text(page + "\n", encoding="utf-8")
    return path


def _page(study: Findings) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with offscreen():
        return environment.get_template("report.html.j2").render(**_contents(study))


def _contents(study: Findings) -> dict[str, Any]:
    ranking = study.ranking
    return {
        "title": f"{study.task} on {study.model}",
        "heads": [] if ranking is None else _heads(ranking, ranking.order[: study.k]),
        "claimed": [] if ranking is None else _heads(ranking, ranking.claimed_beyond(study.k)),
        "method": None if ranking is None else ranking.method,
        "unit": None if ranking is None else ranking.unit,
        "off": [] if ranking is None else [str(head) for head in ranking.off],
        "shared": [] if ranking is None else [shared_line(effects) for effects in ranking.shared_effects],
        "proof": study.proof,
        "verdict": None if study.proof is None else study.proof["verdict"],
        "kind": None if study.proof is None else _KINDS.get(study.proof["verdict"], "not"),
        "meaning": None if study.proof is None else _meaning(study.proof),
        "broke": [] if study.proof is None else drops_frame(study.proof).to_dict("records"),
        "losses": [] if study.proof is None else losses_of(study.proof),
        "notes": [*study.notes, *((study.proof or {}).get("notes", ())), *(() if ranking is None else ranking.notes)],
        "maps": _maps(study),
        "curve": _curve(study),
        "comparison": _comparison(study),
        "attention": _attention(study),
        "sections": [_section(section) for section in study.sections],
        "cost": _cost(study),
        "provenance": _provenance(study),
        "command": study.command,
    }


def _meaning(proof: dict[str, Any]) -> str:
    return _UNREAD if proof["verdict"] == "localized" and "specificity" not in proof else _MEANING[proof["verdict"]]


def _heads(ranking: HeadRanking, heads: Sequence[Head]) -> list[dict[str, Any]]:
    shown: list[Any] = ranking.to_frame().set_index("head", drop=False).loc[[*map(str, heads)]].to_dict("records")
    return [
        {
            **row,
            "colour": head_look(head).colour,
            "mark": _SIGNS[head_look(head).marker],
            "claimed": head in ranking.claims,
        }
        for row, head in zip(shown, heads, strict=True)
    ]


def _maps(study: Findings) -> list[Picture]:
    ranking = study.ranking
    if ranking is None:
        return []
    names = ", ".join(map(str, ranking.top(min(study.k, ranking.grid.size))))
    verdict = None if study.proof is None else study.proof["verdict"]
    layers, heads = ranking.grid.shape
    pictures = [
        picture_of(
            plot_heads(ranking, study.k, verdict=verdict),
            f"Importance of each of the {layers} × {heads} heads; the first are {names}.",
            describe_heads(ranking, study.k),
        ),
        picture_of(
            plot_importance(ranking, study.k),
            f"Importance of the first heads with their intervals: {names}.",
            "The first heads with their intervals, where the method gives them.",
        ),
    ]
    if study.proof is not None:
        drops = drops_frame(study.proof)
        told = "; ".join(
            f"{row['task']}: {row['drop'] / row['baseline']:+.2f}"
            for row in drops.to_dict("records")
            if row["baseline"]
        )
        pictures.append(
            picture_of(
                plot_confirmation(drops, random=study.proof["random_drop"]),
                f"Share of the score lost with the heads off: {told}.",
                "What breaks with the heads off, on unseen examples, and what stays: score lost as a share of the "
                "intact score. Lines: 95 % intervals.",
            )
        )
    return pictures


def _curve(study: Findings) -> dict[str, Any] | None:
    """The score by number of heads off, and how many heads take half of what lies above chance."""
    curve = study.curve
    if curve is None:
        return None
    own = curve.drops[curve.own]
    told = ", ".join(f"{drop.score:.2f}" for drop in own)
    random = "" if curve.random_drops is None else " Grey: random heads of the same layers."
    return {
        "picture": picture_of(
            plot_sparsity(curve),
            f"Score with 0 to {len(own) - 1} heads off: {told}.",
            f"Score on unseen examples with the first k heads off. Band: 95 % interval of the drop.{random}",
        ),
        "half": curve.heads_for(0.5),
        "most": len(own) - 1,
        "notes": curve.notes,
    }


def _comparison(study: Findings) -> dict[str, Any] | None:
    compared = study.comparison
    if compared is None:
        return None
    rows: list[dict[str, Any]] = [
        {
            "method": name,
            "heads": " ".join(map(str, one.ranking.top(compared.k))),
            "spent": one.ranking.spent,
            "seconds": one.seconds,
            "drop": float(one.drops[compared.k - 1]),
            "interval": one.curve[compared.k - 1].interval,
            "controls": _controls(compared, name),
        }
        for name, one in compared.methods.items()
    ]
    pictures = [
        picture_of(
            plot_drops(compared),
            f"Drop on unseen examples against the number of heads ablated, for {', '.join(compared.methods)}.",
            "Points of score lost on unseen examples with the first k heads of each method off. Grey: random heads.",
        )
    ]
    if len(rows) > 1:
        pictures.append(
            picture_of(plot_agreement(compared), "Overlap of the top heads of each two methods.", "Heads in common.")
        )
    maps = [
        picture_of(plot_heads(one.ranking, compared.k), f"Importance of each head by {name}.", name)
        for name, one in compared.methods.items()
    ]
    return {
        "rows": rows,
        "best": [row for name in compared.leading() for row in rows if row["method"] == name],
        "k": compared.k,
        "baseline": compared.baseline,
        "random": float(compared.random_drop[compared.k - 1]),
        "controls": sorted({task for row in rows for task in row["controls"]}),
        "refused": compared.refused,
        "notes": compared.notes,
        "pictures": pictures,
        "maps": maps,
    }


def _controls(compared: Comparison, method: str) -> dict[str, float]:
    """What the controls of a method's heads lose, one column each; of the default ones the mean."""
    if not compared.default_controls:
        return {f"{task} (control)": drop for task, drop in compared.methods[method].controls.items()}
    found = compared.specificity(method)
    return {} if found is None else {f"loss, mean of {len(found.controls)} controls": found.mean.loss}


def _attention(study: Findings) -> dict[str, Any] | None:
    attention = study.attention
    if attention is None:
        return None
    prompts = []
    for number, one in enumerate(attention.prompts):
        looked = [(str(head), one.looks_at(row)) for row, head in enumerate(attention.heads)]
        told = "; ".join(f"{head} at {seen[0][0].strip()!r}, {100 * seen[0][1]:.0f} %" for head, seen in looked)
        picture = picture_of(plot_last_token(attention, number), f"What the last token looks at: {told}.")
        prompts.append({"prompt": one.prompt, "picture": picture, "view": show_attention(attention, number).html})
    return {"prompts": prompts, "script": load_script(), "off": [str(head) for head in attention.off]}


def _section(section: Any) -> dict[str, Any]:
    return {
        "title": section.title,
        "text": section.text,
        "picture": None if section.picture is None else picture_of(section.picture, section.title),
        "columns": [] if section.frame is None else [str(name) for name in section.frame.columns],
        "rows": [] if section.frame is None else [list(row) for row in section.frame.itertuples(index=False)],
    }


def _cost(study: Findings) -> list[tuple[str, str]]:
    lines = []
    took = {name: f", {value:.1f} s" for name, value in study.seconds.items()}
    if study.ranking is not None:
        spent = f"{study.ranking.spent:,} example-evaluations{took.get('find', '')}"
        lines.append((f"to find ({study.ranking.method})", spent))
        passes = study.ranking.provenance.get("cost", {})
        if passes.get("backwards"):
            lines.append(("of these backward passes", f"{passes['backwards']:,}"))
    if study.proof is not None:
        lines.append(("to confirm", f"{study.proof['spent']:,} example-evaluations{took.get('confirm', '')}"))
    if study.curve is not None:
        lines.append(("curve of 0, 1, ... heads off", f"{study.curve.spent:,} example-evaluations"))
    if study.comparison is not None:
        for name, one in study.comparison.methods.items():
            lines.append((f"to find ({name})", f"{one.ranking.spent:,} example-evaluations, {one.seconds:.1f} s"))
        lines.append(("to judge all methods", f"{study.comparison.spent:,} example-evaluations"))
    if study.attention is not None:
        runs = 2 if study.attention.off else 1
        lines.append(("attention patterns", f"{runs * len(study.attention.prompts)} forward passes of one prompt"))
    return lines


def _provenance(study: Findings) -> list[tuple[str, list[tuple[str, str]]]]:
    """Of each part that says where it is from, under its name."""
    parts = {
        "the ranking": None if study.ranking is None else study.ranking.provenance,
        "the proof": None if study.proof is None else study.proof.get("provenance"),
        "the comparison": None if study.comparison is None else study.comparison.provenance,
    }
    return [(name, _flat(record)) for name, record in parts.items() if record]


def _flat(record: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    """A nested record as lines: ``model.name``, ``model.grid``, ..."""
    lines: list[tuple[str, str]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{before}{name}.")
        elif value is not None:
            lines.append((f"{before}{name}", str(value)))
    return lines
