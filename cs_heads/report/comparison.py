"""Methods side by side on a page: which leads, their drops and their maps."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from cs_heads import plot
from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.faithfulness import Faithfulness
from cs_heads.analysis.losses import marked
from cs_heads.report import html
from cs_heads.report.heads import head_map

_WEIGHED = {
    "own loss": "share of the score above chance that the task loses",
    "controls' loss": f"the same of the controls, on average; a control is {html.CONTROL}",
    "difference": "own loss less controls' loss: methods are weighed by it; a loss above 1 (↓) counts as 1",
}


def comparison_answer(compared: Comparison) -> tuple[str, Markup]:
    """The methods that lead, and what is said of them and of their heads.

    Args:
        compared: the methods.
    """
    leading = compared.most_specific() or compared.leading()
    blocks: list[str] = [html.paragraphs(*answer_of(compared))]
    for name in leading:
        marks = [html.mark(head) for head in compared.methods[name].ranking.top(compared.k)]
        blocks += [html.paragraphs(name, kind="caption"), html.macro("chips", marks, f"the heads of {name}, in order")]
    return " or ".join(leading), html.stacked(*blocks)


def comparison_part(compared: Comparison) -> Markup:
    """Curves, the table of methods, faithfulness where it was measured, and the map of each method.

    Args:
        compared: the methods.
    """
    methods = compared.methods
    shown = [
        html.picture(
            plot.drops(compared),
            f"Drop on unseen examples against the number of heads ablated, for {', '.join(methods)}.",
            "Score (0 to 1) lost on unseen examples with the first k heads of each method off. Bands: 95 % intervals. "
            "Gray: random heads, mean and range.",
        )
    ]
    if len(methods) > 1:
        about = "Overlap of the top heads of each two methods."
        shown.append(html.picture(plot.agreement(compared), about, "Heads in common."))
    refused = [f"{name} did not run: {reason}" for name, reason in compared.refused.items()]
    maps = [
        head_map(one.ranking, compared.k, f"Importance of each head by {name}.", f"{name}.")
        for name, one in methods.items()
    ]
    return html.stacked(
        html.pictures(*shown),
        _table(compared),
        html.paragraphs(*refused, *compared.notes, kind="soft"),
        None if compared.faithfulness is None else _faithful(compared.faithfulness),
        Markup("<h3>Maps by method</h3>"),
        html.pictures(*maps, kind="columns"),
    )


def _table(compared: Comparison) -> Markup:
    k, weighed = compared.k, list(_WEIGHED) if compared.most_specific() else []
    # Of the default controls the mean loss stands with the methods.
    named = [] if compared.default_controls else sorted(next(iter(compared.methods.values())).controls)
    controls, rows = [f"{task} (control)" for task in named], list[list[str]]()
    for name, one in compared.methods.items():
        found, losses = compared.specificity(name), ["–"] * len(_WEIGHED)
        if found is not None:
            losses = [marked(found.own.loss), f"{found.mean.loss:.2f}", str(found.difference)]
        lost = [f"{one.controls[task]:+.3f}" for task in named]
        heads = " ".join(map(str, one.ranking.top(k)))
        drop = [f"{one.drops[k - 1]:+.3f}", html.interval(*one.curve[k - 1].interval)]
        cost = [f"{one.ranking.spent:,}", f"{one.seconds:.1f}"]
        rows.append([name, heads, *(losses if weighed else []), *drop, *lost, *cost])
    blank, random = [""] * len(weighed), f"{compared.random_drop[k - 1]:+.3f}"
    rows.append(["random heads", "", *blank, random, "", *("" for _ in controls), "", ""])
    columns = ["method", "heads", *weighed, f"drop@{k}", "95 % interval", *controls, "example-evaluations", "seconds"]
    terms = {
        **_WEIGHED,
        f"drop@{k}": "score (0 to 1) that the task loses",
        "95 % interval": "of that drop",
        **dict.fromkeys(controls, "score that this control loses"),
        "example-evaluations": "cost of the search: one mask on one example each",
    }
    caption = f"With the top {k} heads of each method off, on unseen examples; intact score {compared.baseline:.3f}."
    return html.table(caption, columns, rows, 2, terms)


def _faithful(found: Faithfulness) -> Markup:
    """How far the first units of each ranking are enough by themselves."""
    unit, leading = found.unit, found.leading()
    tied = f" for {leading[0]}; these examples cannot tell them apart" if len(leading) > 1 else ""
    said = (
        f"By the {found.response} of the answers, the first {unit}s of {', '.join(leading)} are the most faithful "
        f"(CPR {found.curves[leading[0]].cpr:.3f}{tied})."
    )
    rows = [
        [name, f"{cpr:.3f}", f"{cpr_low:.3f} to {cpr_high:.3f}", f"{cmd:.3f}", f"{cmd_low:.3f} to {cmd_high:.3f}"]
        for name, cpr, cpr_low, cpr_high, cmd, cmd_low, cmd_high in found.areas().itertuples(index=False)
    ]
    random = "" if found.random is None else f" Of {len(found.random)} random orders: mean, least and largest."
    caption = f"Area under faithfulness (CPR, larger is better) and between it and 1 (CMD, smaller is better).{random}"
    told = ", ".join(f"{name}: {one.cpr:.2f}" for name, one in found.curves.items())
    picture = html.picture(
        plot.faithfulness(found),
        f"Faithfulness against the share of {unit}s kept; area under each line (CPR): {told}.",
        f"What the first {unit}s of each ranking do by themselves, all others ablated, on unseen examples: 0 is as "
        "nothing kept, 1 as the intact model. Band: 95 % interval. Gray: random orders.",
    )
    return html.stacked(
        Markup("<h3>Faithfulness: are the first {}s enough?</h3>").format(unit),
        html.paragraphs(said),
        html.pictures(picture),
        html.table(caption, ["method", "CPR", "95 % interval", "CMD", "95 % interval"], rows),
    )


def answer_of(compared: Comparison) -> list[str]:
    """Which method's heads are the task's: what the task loses with them off, and what its controls lose.

    Where no control can tell, what the task loses alone, which heads that everything needs would lead.

    Args:
        compared: the methods.
    """
    k, leading = compared.k, compared.most_specific()
    by_drop = compared.leading()
    first = (leading or by_drop)[0]
    among = f"Of {len(compared.methods)} methods" if len(compared.methods) > 1 else "On unseen examples"
    lost = compared.methods[first].curve[k - 1]
    score = (
        f"The score falls from {compared.baseline:.3f} to {lost.score:.3f}, by {lost.drop:.3f} "
        f"({html.interval(*lost.interval)}); random heads take {compared.random_drop[k - 1]:.3f}."
    )
    said = f"{among}, the top {k} heads of {first} take the most from the task"
    found, more = compared.specificity(first), compared.specificity(by_drop[0])
    if not leading or found is None:
        return [f"{said}; no control can tell what else they do.", *_tied(by_drop, first), score]
    said += (
        f" beyond what they take from its controls: {marked(found.own.loss)} of the score above chance, of the "
        f"controls {found.mean.loss:.2f} on average; difference {found.difference}."
    )
    others = []
    if by_drop[0] not in leading and more is not None:
        others = [
            f"The heads of {by_drop[0]} take more from the task ({marked(more.own.loss)}), and the controls lose "
            f"{more.mean.loss:.2f} with them: they serve other tasks too."
        ]
    return [said, *_tied(leading, first), *others, score]


def _tied(leading: Sequence[str], first: str) -> list[str]:
    others = [name for name in leading if name != first]
    return [f"These examples cannot tell it apart from {', '.join(others)}."] if others else []
