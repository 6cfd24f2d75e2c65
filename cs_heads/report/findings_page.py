"""The page of findings: the answer first, then what bears it out."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from cs_heads import plot
from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.failures import FailureModes
from cs_heads.analysis.head_cards import HeadCards
from cs_heads.analysis.intervals import UNKNOWN, Interval
from cs_heads.analysis.losses import Loss, loss_of, shared_line
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.plot.attention_patterns import load_script
from cs_heads.plot.head_markers import same_looks
from cs_heads.ranking import HeadRanking
from cs_heads.report import html
from cs_heads.report.cards import cards_html
from cs_heads.report.comparison import comparison_answer, comparison_part
from cs_heads.report.findings import Findings
from cs_heads.report.heads import head_chips, head_map, heads_table, interfering_note
from cs_heads.units import Unit

# Prompts whose texts are shown.
_TEXTS = 5
_TERMS = {
    "intact": "score with no head off, from 0 to 1",
    "heads off": f"score with the heads ablated; a control is {html.CONTROL}",
    "loss": "(intact - heads off) / (intact - chance), the share of the score above chance that is lost; 1: all of it",
    "95 % interval": "of the loss; below zero where the task may do better",
}


def findings_page(findings: Findings) -> str:
    """The page of a search, a comparison, or both.

    Args:
        findings: what was found.
    """
    ranking, proof, compared = findings.ranking, findings.proof, findings.comparison
    title, about = f"{findings.task} on {findings.model}", ""
    if ranking is not None:
        confirmed = "" if proof is None else ", confirmed on unseen examples"
        about = f"Found by the method {ranking.method}{confirmed}."
    with same_looks(*_head_lists(findings)):
        sections = [
            ("The first heads, and what breaks", _pictures(findings)),
            ("Before you trust it", _notes(findings)),
            ("What broke, and what did not", None if proof is None else _proof_table(proof)),
            ("The heads", None if ranking is None else heads_table(ranking, findings.k)),
            ("Curves: how few heads it takes", _curve(findings.curve)),
            ("Curves: methods side by side", None if compared is None else comparison_part(compared)),
            ("What the heads look at", _attention(findings.attention)),
            ("What each head does", _cards(findings.cards)),
            ("What is written with the heads off", _texts(findings.texts)),
            ("Cost", html.cost(_cost(findings))),
            ("How to reproduce", html.reproduction(findings.command)),
            ("Provenance", html.provenance(findings.origins)),
        ]
        kind, verdict, answer = _answer(findings)
    word = findings.word
    question = f"Which {word}s does {title} rest on?"
    parts = {"kind": kind, "verdict": verdict, "answer": answer, "about": about}
    return html.render(sections, question=question, title=title, word=word, **parts)


def _head_lists(findings: Findings) -> list[list[Unit]]:
    """The heads of each picture, the ranking's first: so they look the same in all of them."""
    ranking, compared, attention = findings.ranking, findings.comparison, findings.attention
    return [
        *([] if ranking is None else [ranking.listed(findings.k)]),
        *([] if attention is None else [list(attention.heads)]),
        *([] if compared is None else [one.ranking.listed(compared.k) for one in compared.methods.values()]),
    ]


def _answer(findings: Findings) -> tuple[str, str, Markup]:
    """The color, the headline and the text of the box at the top."""
    ranking, proof = findings.ranking, findings.proof
    if ranking is None:
        assert findings.comparison is not None  # as Findings checks
        return "", *comparison_answer(findings.comparison)
    kind = verdict = ""
    parts: list[str] = [head_chips(ranking, findings.k), _map(findings, ranking)]
    if ranking.off:
        off = ", ".join(map(str, ranking.off))
        parts.append(html.paragraphs(f"Off throughout: {off}. What is called intact is the model without them."))
    if proof is None:
        said = "These heads have not been confirmed on unseen examples: a ranking alone is no proof."
        parts.append(html.paragraphs(said))
    else:
        kinds = {"template-bound": "localized", "not localized": "not", "baseline too low": "not"}
        kind, verdict = kinds.get(proof.verdict, proof.verdict), f"{proof.headline}{' (close)' if proof.close else ''}"
        n_first = next((place for place, line in enumerate(proof.reasons) if line.startswith("p ")), 2)
        first, figures = proof.reasons[:n_first], [*proof.reasons[n_first:], *proof.likely]
        if proof.close:
            first = (*first, f"close, since another verdict is compatible with the intervals: {proof.close_because}")
        if proof.passengers:
            given = len(proof.heads) + len(proof.passengers)
            verdict += f": {len(proof.heads)} of the {given} heads found"
        in_other_words = any(loss_of(one) is not None for one in proof.kin)
        too_much, random = _too_much(proof), f"random heads{proof.random.like}"
        parts.append(html.macro("meaning", proof.verdict, proof.but_for, in_other_words, too_much, random))
        parts.append(html.macro("listed", dict.fromkeys(first, ())))
        if figures:
            parts.append(html.macro("folded", {"Why: all figures": html.macro("listed", dict.fromkeys(figures, ()))}))
        parts.append(html.paragraphs(f"Next: {proof.next_step}."))
    if ranking.shared_effects:
        shared = "; ".join(map(shared_line, ranking.shared_effects))
        said = f"Left out before the proof, whatever its verdict, as controls need these heads as well: {shared}."
        parts.append(html.paragraphs(said))
    return kind, verdict, html.stacked(*parts)


def _too_much(proof: Confirmation) -> str:
    """What the controls lose that is too much for *specific*."""
    found = proof.specificity
    if found is None:
        return ""
    heavier = found.by_form
    which = "the controls" if heavier is found else "the controls in the form of the task"
    lost = [] if heavier.is_mean_little else [f"{which} lose more than a third of what the task loses, on average"]
    if found.shared_with:
        lose = "loses" if len(found.shared_with) == 1 else "lose"
        lost.append(f"{', '.join(found.shared_with)} {lose} more than half of what the task loses")
    return ", and ".join(lost)


def _notes(findings: Findings) -> Markup | None:
    notes = [] if findings.proof is None else [*findings.proof.notes]
    if findings.ranking is not None:
        notes += [*findings.ranking.notes, *interfering_note(findings.ranking)]
    if findings.comparison is not None:
        of_methods = findings.comparison.methods.items()
        notes += [f"{name}: {note}" for name, one in of_methods for note in one.ranking.notes]
    return html.note_list(dict.fromkeys(notes, ()))


def _proof_table(proof: Confirmation) -> Markup:
    """What the heads take from the task, its kin and its controls, and what the verdict compares."""
    roles = {"": [proof.result], " (kin)": proof.kin, " (control)": proof.controls}
    rows = [
        [f"{one.task}{role}", *_loss(one.loss, one.loss_interval), f"{one.baseline:.3f}", f"{one.score:.3f}"]
        for role, group in roles.items()
        for one in group
    ]
    own, drop = proof.result, proof.random.drop
    name = f"{own.task}, {len(proof.random.drops)} sets of random heads{proof.random.like}"
    rows.insert(1, [name, *_loss(drop / own.above_chance), f"{own.baseline:.3f}", f"{own.baseline - drop:.3f}"])
    found = proof.specificity
    if found is not None:
        compared: dict[str, Loss] = {"own minus mean of the controls": found.difference}
        if len(found.controls) > 1:
            largest = {f"largest of any control (here {found.worst_control})": found.worst}
            compared = {"mean of the controls that count": found.mean, **largest, **compared}
        rows += [[name, *_loss(one.loss, (one.low, one.high)), "–", "–"] for name, one in compared.items()]
    caption = f"Scores and losses on unseen examples, with {', '.join(map(str, proof.heads))} off."
    columns = ["task", "loss", "95 % interval", "intact", "heads off"]
    return html.table(caption, columns, rows, 1, {**_TERMS, **({"kin": html.KIN} if proof.kin else {})})


def _loss(loss: float, interval: Interval = UNKNOWN) -> list[str]:
    return [
        "unknown" if np.isnan(loss) else f"{loss:+.3f}{' (below chance)' if loss > 1 else ''}",
        html.interval(*interval),
    ]


def _pictures(findings: Findings) -> Markup | None:
    ranking, proof, k = findings.ranking, findings.proof, findings.k
    if ranking is None:
        return None
    names = ", ".join(map(str, ranking.top(min(k, ranking.grid.size))))
    shown = [
        html.picture(
            plot.importance(ranking, k),
            f"Importance of the first heads with their intervals: {names}.",
            "The first heads with their intervals, where the method gives them.",
        ),
    ]
    if proof is not None:
        drops = [drop for drop in (proof.result, *proof.kin, *proof.controls) if not np.isnan(drop.loss)]
        told = "; ".join(f"{drop.task}: {drop.loss:+.2f}" for drop in drops)
        shown.append(
            html.picture(
                plot.confirmation(proof),
                f"Loss with the heads off: {told}.",
                "What breaks with the heads off, on unseen examples, and what stays: the share of each score above "
                "chance that is lost. Black lines: 95 % intervals. Gray: random heads.",
            )
        )
    return html.pictures(*shown, kind="columns")


def _map(findings: Findings, ranking: HeadRanking) -> Markup:
    layers, heads = ranking.grid.shape
    names = ", ".join(map(str, ranking.top(min(findings.k, ranking.grid.size))))
    about = f"Importance of each of the {layers} × {heads} {ranking.grid.word}s; the first are {names}."
    verdict = None if findings.proof is None else findings.proof.verdict
    shown = head_map(ranking, findings.k, about, verdict=verdict, cards=findings.cards)
    return html.pictures(shown, kind="pictures beside")


def _curve(curve: SparsityCurve | None) -> Markup | None:
    """The score by number of heads off, and how many heads take half of what lies above chance."""
    if curve is None:
        return None
    own, half = curve.drops[curve.own], curve.heads_for(0.5)
    most = len(own) - 1
    if half is None:
        said = f"The first {most} heads take less than half of what the score has above chance."
    else:
        said = f"{half} head{'s take' if half != 1 else ' takes'} half of what the score has above chance."
    random = (
        "" if curve.random_drops is None else " Gray: random heads, of the same layers where these have others enough."
    )
    picture = html.picture(
        plot.sparsity(curve),
        f"Score with 0 to {most} heads off: {', '.join(f'{drop.score:.2f}' for drop in own)}.",
        "Score on unseen examples with the first k heads off (of a ranking: by rank). Band: 95 % interval of the "
        f"drop.{random}",
    )
    return html.stacked(html.paragraphs(said, *curve.notes), html.pictures(picture, kind="pictures beside"))


def _attention(attention: HeadAttention | None) -> Markup | None:
    if attention is None:
        return None
    prompts = []
    for number, one in enumerate(attention.prompts):
        looked = [(str(head), one.looks_at(row)) for row, head in enumerate(attention.heads)]
        told = "; ".join(f"{head} at {seen[0][0].strip()!r}, {100 * seen[0][1]:.0f} %" for head, seen in looked)
        picture = html.picture(plot.last_token(attention, number), f"What the last token looks at: {told}.")
        view = plot.show_attention(attention, number).html
        prompts.append({"prompt": one.prompt, "picture": html.pictures(picture), "view": view})
    off = ", ".join(map(str, attention.off))
    said = (
        f"Attention of the last token, where the answer is read, in percent: intact, and with {off or 'no heads'} off. "
        "A head's own ablation leaves its attention as it is; what changes is that of heads in later layers."
    )
    return html.stacked(html.paragraphs(said), Markup(load_script()), html.macro("prompts", prompts, off))


def _cards(cards: HeadCards | None) -> Markup | None:
    if cards is None:
        return None
    alt = "Where the heads lie, what the answer loses without each by which way, and with each off at one token alone."
    return html.stacked(cards_html(cards), html.pictures(html.picture(plot.head_cards(cards), alt)))


def _texts(texts: FailureModes | None) -> Markup | None:
    """A few prompts with what the model writes intact and with the heads off, and failures that are more frequent."""
    if texts is None or not texts.texts:
        return None
    frame = texts.text_frame().head(_TEXTS)
    names = dict.fromkeys(texts.heads, "heads off")
    rows = [[str(value).strip() or "(nothing)" for value in row] for row in frame.itertuples(index=False)]
    [found] = texts.heads
    seen = {mode: share for mode, share in texts.modes[found].items() if texts.beyond_intact(found, mode)}
    n = next(iter(texts.modes[found].values())).n
    said = f"Of {n} texts, clearly more with the heads off than of the intact model: " + ", ".join(
        f"{mode} {share.count}" for mode, share in seen.items()
    )
    said = f"{said}." if seen else f"No kind of failure is clearly more frequent in {n} texts than of the intact model."
    columns = [names.get(name, name) for name in map(str, frame)]
    caption = "The last line of a prompt that no head was found on, and how the model goes on."
    return html.stacked(html.table(caption, columns, rows, len(columns), {}), html.paragraphs(said))


def _cost(findings: Findings) -> list[tuple[str, str]]:
    spent, took = "{:,} example-evaluations".format, {name: f", {s:.1f} s" for name, s in findings.seconds.items()}
    lines = []
    if findings.ranking is not None:
        lines.append((f"to find ({findings.ranking.method})", spent(findings.ranking.spent) + took.get("find", "")))
        if findings.ranking.backwards:
            lines.append(("of these backward passes", f"{findings.ranking.backwards:,}"))
    if findings.proof is not None:
        lines.append(("to confirm", spent(findings.proof.spent) + took.get("confirm", "")))
    if findings.curve is not None:
        lines.append(("curve of 0, 1, ... heads off", spent(findings.curve.spent)))
    if findings.comparison is not None:
        for name, one in findings.comparison.methods.items():
            lines.append((f"to find ({name})", f"{spent(one.ranking.spent)}, {one.seconds:.1f} s"))
        lines.append(("to judge all methods", spent(findings.comparison.spent)))
    if findings.cards is not None:
        lines.append(("head cards", spent(findings.cards.spent)))
    if findings.texts is not None:
        lines.append(("texts", spent(findings.texts.spent)))
    if findings.attention is not None:
        runs = 2 if findings.attention.off else 1
        lines.append(("attention patterns", f"{runs * len(findings.attention.prompts)} forward passes of one prompt"))
    return lines
