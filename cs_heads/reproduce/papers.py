"""The papers as data: their tasks, the role of each, the settings, and the demo model's tasks in their place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cs_heads.arguments import check_integer

Form = Literal["letters", "full"]

SETTINGS = ("prepend_bos", "dtype", "batch_tokens", "progress")
"""What a reproduction may set of how a call measures."""


@dataclass(frozen=True)
class PaperTask:
    """A task of a paper and its roles.

    Args:
        name: its name in the paper, and among the built-in tasks.
        heads: name of the heads that are found on it (None: it is only measured).
        sibling: name of the heads whose capability it shares.
        suite: the mean over tasks that it belongs to.
        form: the form its questions are answered in.
        demo: the demo model's task in its place (None: there is none).
        demo_options: what that task is loaded with.
        n: finding examples in the paper (None: as ``share`` says, or 100).
        share: of all examples, those that gates are fitted to (None: 100 examples).
        options: what the task is loaded with to be the paper's.
        local: whether it is read from local files only.
        own_words: whether its words come with the library, so that it needs no files.
        rules: whether gates are fitted to it with the seeds of ``n_rule_seeds``.
        quick: whether a quick run has it, where no tasks are named.
    """

    name: str
    heads: str | None = None
    sibling: str | None = None
    suite: str | None = None
    form: Form | None = None
    demo: str | None = None
    demo_options: dict[str, Any] = field(default_factory=dict)
    n: int | None = None
    share: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    local: bool = False
    own_words: bool = False
    rules: bool = False
    quick: bool = True


@dataclass(frozen=True)
class PaperSettings:
    """How much is measured; the defaults are the papers' protocol, which docs/reproduce.md holds beside it row by row.

    Args:
        n: finding examples a task, fewer where it has no more (None: the paper's).
        n_masks: numbers of masks to search over.
        densities: densities to search over.
        k: heads to ablate.
        max_heads: heads in the curve over their number.
        n_unseen: unseen examples a task (None: all).
        max_new_tokens: tokens of a text at most (None: as many as the task allows).
        n_universal: examples on which candidates for universal heads are tried.
        budget: example-evaluations of each method compared (None: its default).
        n_seeds: seeds of gates.
        n_rule_seeds: seeds of gates of the identity rules.
        steps: optimizer steps of each phase of gates.
        batch_size: examples a step of gates.
        n_pairs: pairs of prompts for mediation.
        n_toggled: heads toggled at most in the order of each score.
        n_points: numbers of heads at which that is measured.

    Raises:
        ValueError: for a number below the least allowed, or an empty list.
    """

    n: int | None = None
    n_masks: tuple[int, ...] = (100, 200, 400)
    densities: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1)
    k: int = 5
    max_heads: int = 10
    n_unseen: int | None = None
    max_new_tokens: int | None = None
    n_universal: int = 50
    budget: int | None = None
    n_seeds: int = 10
    n_rule_seeds: int = 20
    steps: int = 500
    batch_size: int = 64
    n_pairs: int = 50
    n_toggled: int = 50
    n_points: int = 50

    def __post_init__(self) -> None:
        least = {"n": 20, "k": 1, "max_heads": self.k, "n_unseen": 20, "n_universal": 1, "n_seeds": 1, "n_pairs": 2}
        least |= {"n_rule_seeds": 1, "n_toggled": 1, "n_points": 1, "max_new_tokens": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, smallest)
        for name in ("n_masks", "densities"):
            if not getattr(self, name):
                raise ValueError(f"{name} must hold one value or more, got none")

    def changed(self, **values: Any) -> PaperSettings:
        """The settings with other values in place.

        Args:
            **values: By the name of a setting its value; None leaves it as it is.
        """
        given = {name: value for name, value in values.items() if value is not None}
        # The curve has k heads at least.
        return replace(self, **{"max_heads": max(self.max_heads, given.get("k", self.k)), **given})


QUICK = PaperSettings(
    n=40,
    n_masks=(100,),
    densities=(0.05,),
    n_unseen=40,
    max_new_tokens=64,
    n_universal=20,
    budget=2_000,
    n_seeds=2,
    n_rule_seeds=2,
    n_points=3,
    steps=20,
    batch_size=4,
    n_pairs=4,
)
"""To see that all runs: one design instead of twelve, 40 examples of a side, short texts, short fits of two seeds."""


@dataclass(frozen=True)
class Paper:
    """A paper: its name here, title, arXiv id, and tasks in its order."""

    name: str
    title: str
    arxiv: str
    tasks: tuple[PaperTask, ...]

    def task(self, name: str) -> PaperTask:
        """The task with this name; an unknown one raises ``ValueError``."""
        found = next((task for task in self.tasks if task.name == name), None)
        if found is None:
            known = ", ".join(task.name for task in self.tasks)
            raise ValueError(f"task {name!r} is none of paper {self.name!r}: {known}")
        return found


CS = Paper(
    "cs",
    "Compressed Sensing for Capability Localization in Large Language Models",
    "2603.03335",
    (
        PaperTask("gsm8k", heads="math", demo="demo/word_problems"),
        PaperTask(
            "arithmetic", heads="arithmetic", sibling="math", demo="demo/word_problems", demo_options={"generate": True}
        ),
        PaperTask("mbpp", heads="code", suite="Code", demo="demo/code"),
        PaperTask("humaneval_instruct", sibling="code", suite="Code"),
        PaperTask("hellaswag", suite="General", form="full", demo="demo/copying"),
        PaperTask("boolq", suite="General", form="full", demo="demo/agreement"),
        PaperTask("arc_challenge", suite="General", form="full", demo="demo/capitals"),
        PaperTask("mmlu", suite="General", form="letters", demo="demo/multiple_choice"),
        PaperTask("swearing", heads="swear", options={"max_new_tokens": 512}, own_words=True, demo="demo/swearing"),
        PaperTask("rhyming", heads="rhyme", options={"max_new_tokens": 64}, own_words=True, demo="demo/rhyme"),
        PaperTask("wmdp_bio", heads="bio", form="letters", demo="demo/multiple_choice"),
        PaperTask("wmdp_chem", heads="chem", form="letters"),
        PaperTask("wmdp_cyber", heads="cyber", form="letters"),
    ),
)
"""Bair et al.: math, code (found on MBPP, section 5.2), swearing and rhyming heads, and multiple-choice knowledge."""

_WORDS = ("antonym", "capitalize", "country-capital", "english-french", "present-past", "singular-plural")

TRAINED = 0.9
"""Share of a set that gates are fitted to."""
RULE_SHOTS = 4
"""Triples that an identity rule is shown by."""

CHG = Paper(
    "chg",
    "Causal Head Gating",
    "2505.13737",
    (
        PaperTask("bigbench/linguistic_mappings", heads="linguistic mappings", suite="syntax", share=TRAINED),
        PaperTask("bigbench/tense", heads="tense", suite="syntax", share=TRAINED),
        PaperTask(
            "bigbench/subject_verb_agreement",
            heads="agreement",
            suite="syntax",
            share=TRAINED,
            demo="demo/agreement",
            local=True,
        ),
        PaperTask("commonsense_qa", heads="common sense", share=TRAINED, demo="demo/multiple_choice"),
        PaperTask(
            "openmathinstruct2",
            heads="math",
            n=50_000,
            options={"n_records": 1_000_000, "shortest": 55_050},
            demo="demo/word_problems",
        ),
        *(
            PaperTask(
                f"function_vectors/{name}",
                share=TRAINED,
                demo={"country-capital": "demo/capitals"}.get(name),
                quick=name in ("antonym", "country-capital"),
            )
            for name in _WORDS
        ),
        PaperTask("symbolic/both", options={"few_shot": RULE_SHOTS}, own_words=True, rules=True),
    ),
)
"""Nam et al.: gates on syntax, common sense and mathematics, six word-to-word tasks in two formats, and identity rules.

Gates are fitted to 50,000 problems, the shortest of 55,050, and to nine tenths of other sets.
"""

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (CS, CHG)}
"""The papers that can be reproduced, by name."""
