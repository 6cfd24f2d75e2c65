"""Studies made by hand, for pictures and reports."""

import numpy as np

from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.attention import HeadAttention, PromptAttention
from cs_heads.analysis.compare import Compared, Comparison
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.head_cards import Figure, HeadCard, HeadCards, Pair
from cs_heads.analysis.losses import TaskDrop
from cs_heads.analysis.random_comparison import RandomComparison
from cs_heads.ranking import HeadRanking
from cs_heads.report import Findings
from cs_heads.units import Head

HOSTILE = '<img src=x onerror="alert(1)">&<script>alert(2)</script>$x_1$'

SKILLS = (
    *("agreement", "antonyms", "bracket_closing", "capitals", "code", "copying", "gender", "indirect_object"),
    *("numbers", "past", "plural", "pronoun", "succession", "sums", "upper_case"),
)


def made_ranking(task="capitals", model="tiny") -> HeadRanking:
    importance = np.zeros((3, 4))
    importance[0, 1], importance[1, 2], importance[2, 3] = 0.5, 0.3, -0.2
    return HeadRanking(
        method="annealed",
        importance=importance,
        spent=1992,
        interval=np.stack([importance - 0.1, importance + 0.1], axis=-1),
        z=importance * 20,
        claims=(Head(0, 1),),
        shared=(Head(0, 0),),
        provenance={
            "task": {"name": task, "identity": "abc"},
            "model": {"name": model, "grid": [3, 4], "key_value_heads": 2, "revision": None},
            "seed": 7,
        },
        shared_effects=(
            {
                "head": "L0H0",
                "task": 0.32,
                "task_interval": [0.24, 0.4],
                "controls": 0.3,
                "controls_interval": [0.2, 0.4],
                "most": "succession",
            },
        ),
        notes=("few heads above zero",),
    )


def made_proof(verdict="localized", control="code") -> Confirmation:
    own = TaskDrop("capitals", 100, 0.0, 1.0, 0.04, (0.92, 0.99), None, (0.91, 0.98))
    other = TaskDrop(control, 100, 0.0, 0.97, 0.9, (0.01, 0.13), too_low="it guesses")
    reasons = ("on 100 unseen examples the score falls from 1.000 to 0.040", "p = 0.0001 (below 0.01)")
    heads = (Head(0, 1), Head(1, 2))
    beside = RandomComparison((0.0, 0.02), 0.01, 0, 0.004, 0.0001)
    found = {"heads": heads, "result": own, "random": beside, "controls": (other,)}
    return Confirmation(verdict=verdict, reasons=reasons, spent=1200, **found)


def made_drops(drops) -> tuple[TaskDrop, ...]:
    """A curve of these drops, of a baseline of .9."""
    return tuple(TaskDrop("capitals", 100, 0.0, 0.9, 0.9 - drop, (drop - 0.08, drop + 0.08)) for drop in drops)


def made_comparison() -> Comparison:
    def one(name: str, spent: int, drops: list[float]) -> Compared:
        ranking = HeadRanking(name, made_ranking().importance, spent=spent)
        return Compared(ranking, 1.5, made_drops(drops), {"code": TaskDrop("code", 100, 0.0, 0.9, 0.89, (-0.01, 0.03))})

    return Comparison(
        methods={"css": one("css", 10_100, [0.3, 0.5, 0.6]), "greedy": one("greedy", 63_100, [0.3, 0.6, 0.7])},
        random_drops=np.array([[0.0, 0.1, 0.2], [0.0, 0.0, 0.1]]),
        k=2,
        baseline=0.9,
        spent=4000,
        refused={"chg": "budget must be more"},
        provenance={"task": {"name": "capitals"}, "model": {"name": "tiny"}},
    )


def made_attention(prompt="Cuba is Havana. Sweden is") -> HeadAttention:
    tokens = ("<s>", *(f" {word}" for word in prompt.split(" ")))
    rng = np.random.default_rng(0)
    raw = np.tril(rng.random((2, 2, len(tokens), len(tokens))))
    intact, ablated = raw / raw.sum(axis=-1, keepdims=True)
    heads = (Head(0, 1), Head(1, 2))
    return HeadAttention(heads, heads, (PromptAttention(prompt, tokens, tuple(range(len(tokens))), intact, ablated),))


def made_cards(n_heads=2, n_tokens=12) -> HeadCards:
    """Cards with words and tokens as long as they get, and some that are odd."""
    rng, heads = np.random.default_rng(0), tuple(Head(number % 3, number % 4) for number in range(n_heads))
    ways = ("total", "direct", "through others", "at the last token", "elsewhere", "writes", "looks at the first token")
    said = "Without it the answer loses 1.50 (1.20 to 1.80) nats (chance by random heads of the same layers: 0.10)."
    tokens = [" $5", "↵\n", " né", " " + "x" * 40, "", *(f" word{number}" for number in range(n_tokens))][:n_tokens]
    cards = tuple(
        HeadCard(
            head,
            tuple(Figure(name, 1.5, 1.2, 1.8, 0.1, 0.99, 0.2, 0.5, clear=True) for name in ways),
            promotes=(HOSTILE, " Rome", " " + "x" * 40),
            demotes=(" Paris",),
            moves=((" France", " Paris"),),
            matches=((" is", " capital"),),
            strip=tuple(rng.normal(size=n_tokens)),
            reads=tuple(rng.normal(size=n_tokens)),
            words=f"{said} It raises ' {'x' * 40}' and lowers '$5' (1.50 nats for the answer; 95 of 100: 0.10).",
        )
        for head in heads
    )
    pairs = (Pair(str(heads[0]), str(heads[-1]), 0.2, 0.1, 0.3, "backup"),) if n_heads > 1 else ()
    together = "Together they take 0.60 (0.50 to 0.70) of right answers; L0H0 do nine tenths of that."
    harm = (Figure("all", 0.6, 0.5, 0.7, 0.1), Figure("least", 0.55, 0.45, 0.65, 0.1))
    provenance = {"model": {"name": "tiny", "grid": [3, 4]}}
    return HeadCards(cards, tuple(tokens), pairs, heads[:1], harm, together, spent=2900, provenance=provenance)


def made_study(**changes) -> Findings:
    given = {
        "ranking": made_ranking(),
        "proof": made_proof(),
        "comparison": made_comparison(),
        "attention": made_attention(),
        "command": "cs-heads find --model tiny --task capitals",
        "k": 2,
    }
    return Findings(**{**given, **changes})


def made_atlas(n_layers=8, n_heads=16, n_skills=5, k=2, folder="everyday/", shared=True) -> Atlas:
    """Skill ``i`` has the first heads of layer ``i + 1``; L0H0 is universal, L0H1 is shared by the first two skills.

    The first two skills have the shared head among their first ``k``; other heads take nothing.
    """
    names = [f"{folder}{name}" for name in SKILLS[:n_skills]]
    losses = np.zeros((n_skills, n_layers, n_heads))
    for place in range(n_skills):
        losses[place, place + 1, :k] = 0.8 / (1 + np.arange(k))
    losses[:, 0, 0] = 0.3
    if shared:
        losses[:2, 0, 1] = 0.5
        losses[[0, 1], [1, 2], k - 1] = 0.0
    provenance, kin = {"model": {"name": "tiny"}}, {names[0]: tuple(names[1:2]), names[1]: tuple(names[:1])}
    own = losses - losses.mean(axis=0)
    rankings = {
        name: HeadRanking("annealed jointly", row, spent=10, provenance=provenance)
        for name, row in zip(names, own, strict=True)
    }
    drops = {
        one: {
            other: TaskDrop(other, 100, 0.5, 1.0, 0.4 if one == other else 0.95, (0.0, 0.7), loss_interval=(0.0, 1.4))
            for other in names
        }
        for one in names
    }
    heads = {name: tuple(ranking.top(k)) for name, ranking in rankings.items()}
    measured = TaskDrops(heads, drops, dict.fromkeys(names, "own"), {name: name for name in names}, spent=10)
    errors = np.full_like(losses, 0.01)
    return Atlas(rankings, losses, errors, measured, {}, k, {}, kin=kin, spent=20, provenance=provenance)
