"""Methods side by side on a page: which leads, their drops and their maps."""

from __future__ import annotations

from collections.abc import Sequence

from cs_heads import plot
from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.faithfulness import Faithfulness
from cs_heads.report.heads import told_of
from cs_heads.report.parts import CONTROL, Part, cells_of, interval_of, mark_of, picture_of, table_of


def comparison_of(compared: Comparison | None) -> Part | None:
    """What the template is given of a comparison; None where there is none."""
    if compared is None:
        return None
    k, methods = compared.k, compared.methods
    random = float(compared.random_drop[k - 1])
    lost = {name: _control_drops(compared, name) for name in methods}
    controls = sorted({task for drops in lost.values() for task in drops})
    weighed = list(_WEIGHED) if compared.most_specific() else []
    rows: list[list[str]] = []
    for name, one in methods.items():
        drop = f"{one.drops[k - 1]:+.3f}", interval_of(*one.curve[k - 1].interval)
        of_controls = [f"{lost[name][task]:+.3f}" if task in lost[name] else "" for task in controls]
        losses = _losses(compared, name) if weighed else []
        rows.append(
            [name, _top(compared, name), *losses, *drop, *of_controls, f"{one.ranking.spent:,}", f"{one.seconds:.1f}"]
        )
    rows.append(["random heads", "", *("" for _ in weighed), f"{random:+.3f}", "", *("" for _ in controls), "", ""])
    columns = ["method", "heads", *weighed, f"drop@{k}", "95 % interval", *controls, "example-evaluations", "seconds"]
    caption = f"With the top {k} heads of each method off, on unseen examples; intact score {compared.baseline:.3f}."
    terms = {**_WEIGHED, f"drop@{k}": "score (0 to 1) that the task loses", "95 % interval": "of that drop"}
    terms |= dict.fromkeys(controls, "score that this control loses")
    terms |= {"example-evaluations": "cost of the search: one mask on one example each"}
    pictures = [
        picture_of(
            plot.drops(compared),
            f"Drop on unseen examples against the number of heads ablated, for {', '.join(methods)}.",
            "Score (0 to 1) lost on unseen examples with the first k heads of each method off. Bands: 95 % intervals. "
            "Gray: random heads, mean and range.",
        )
    ]
    if len(methods) > 1:
        pictures.append(
            picture_of(plot.agreement(compared), "Overlap of the top heads of each two methods.", "Heads in common.")
        )
    leading = compared.most_specific() or compared.leading()
    return {
        "result": compared,
        "faithful": _faithful(compared.faithfulness),
        "leading": leading,
        "answer": answer_of(compared),
        "heads": [{"method": name, "heads": list(map(mark_of, methods[name].ranking.top(k)))} for name in leading],
        "table": table_of(caption, columns, rows, 2, terms),
        "pictures": pictures,
        "maps": [
            picture_of(
                plot.heads(one.ranking, k),
                f"Importance of each head by {name}.",
                f"{name}.",
                cells_of(one.ranking.grid, told_of(one.ranking)),
            )
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


_WEIGHED = {
    "own loss": "share of the score above guessing that the task loses",
    "controls' loss": f"the same of the controls, on average; a control is {CONTROL}",
    "difference": "own loss less controls' loss: methods are weighed by it",
}


def _losses(compared: Comparison, method: str) -> list[str]:
    """Own loss, mean control loss and their difference; dashes where no control can tell."""
    found = compared.specificity(method)
    if found is None:
        return ["–"] * len(_WEIGHED)
    return [f"{one.loss:.2f}" for one in (found.own, found.mean)] + [str(found.difference)]


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
        f"({interval_of(*lost.interval)}); random heads take {compared.random_drop[k - 1]:.3f}."
    )
    if not leading:
        line = (
            f"{among}, the top {k} heads of {first} take the most from the task; no control can tell what else they do."
        )
        return [line, *_tied(by_drop, first), score]
    found = compared.specificity(first)
    assert found is not None  # as most_specific says
    line = (
        f"{among}, the top {k} heads of {first} take the most from the task beyond what they take from its controls: "
        f"{found.own.loss:.2f} of the score above guessing, of the controls {found.mean.loss:.2f} on average; "
        f"difference {found.difference}."
    )
    more = compared.specificity(by_drop[0])
    others = []
    if by_drop[0] not in leading and more is not None:
        others = [
            f"The heads of {by_drop[0]} take more from the task ({more.own.loss:.2f}), and the controls lose "
            f"{more.mean.loss:.2f} with them: they serve other tasks too."
        ]
    return [line, *_tied(leading, first), *others, score]


def _tied(leading: Sequence[str], first: str) -> list[str]:
    others = [name for name in leading if name != first]
    return [f"These examples cannot tell it apart from {', '.join(others)}."] if others else []


def _control_drops(compared: Comparison, method: str) -> dict[str, float]:
    """What each control given loses; of the default ones the mean loss stands with the methods."""
    if compared.default_controls:
        return {}
    return {f"{task} (control)": drop for task, drop in compared.methods[method].controls.items()}
