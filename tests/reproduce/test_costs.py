"""What a protocol costs is said before it starts, and is no less than it takes."""

import pytest

from cs_heads.cli import main
from cs_heads.experiment.timing import N_EXAMPLES, N_MASKS
from cs_heads.reproduce import estimate, reproduce
from cs_heads.reproduce import tasks as sources
from cs_heads.reproduce.run import steps_of
from cs_heads.tasks import load_task

N = "example-evaluations"


@pytest.mark.parametrize(
    "steps",
    [
        ["universal"],
        *(
            pytest.param(steps, marks=pytest.mark.slow)
            for steps in (["find"], ["proof"], ["overlap", "generalization"])
        ),
    ],
)
def test_steps_cost_no_more_than_was_said_with_what_they_start_from(study, rows, steps):
    one = study(names=["gsm8k", "arithmetic", "swearing", "boolq"])
    said = estimate(one, steps_of("cs", steps))
    assert said[N].sum() > 0
    assert ((said["seconds"] > 0) == (said[N] > 0)).all(), "what runs takes time"
    rows.clear()
    reproduce(one, steps)
    assert 0 < sum(rows) <= said[N].sum()
    # What the steps started from is there now: no step pays for it again.
    again = estimate(one, steps_of("cs", ["overlap"]))
    assert again[N].sum() == 0


@pytest.mark.parametrize(
    "step", ["drops", *(pytest.param(step, marks=pytest.mark.slow) for step in ("proof", "sparsity", "methods"))]
)
def test_a_step_after_the_search_costs_no_more_than_was_said(study, rows, step):
    one = study(names=["gsm8k", "arithmetic", "swearing", "boolq"])
    reproduce(one, ["find"])
    said = estimate(one, steps_of("cs", [step]))
    rows.clear()
    reproduce(one, [step])
    assert 0 < sum(rows) <= said[N].sum()


def test_a_dry_run_probes_the_model_and_counts_the_rest(study, rows):
    one = study(names=["gsm8k", "arithmetic", "swearing", "boolq"])
    said = estimate(one, steps_of("cs"))
    assert sum(rows) <= (1 + N_MASKS) * N_EXAMPLES * len(one.tasks) < said[N].sum()
    by_step = said.set_index("step")
    # The heads of three tasks, on four tasks: a step before has run these with no head off.
    assert by_step.loc["drops", N] == 3 * 4 * 20
    # The drops have measured these heads on these tasks.
    assert by_step.loc["generalization", N] == 0
    assert [*said.loc[said["missing"] != "", "step"]] == ["published", "formats"]


def test_a_dry_run_says_the_cost_and_writes_nothing(known_folder, data, tmp_path, capsys):
    given = ["--paper", "cs", "--model", str(known_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(["reproduce", *given, "--n", "40", "--tasks", "gsm8k,boolq", "--dry-run", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "find " in said
    assert "example-evaluations" in said
    assert "generalization cannot be made: it needs a second task of one capability" in said
    assert "left out" not in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_which_task_needs_local_files(known_folder, data, tmp_path, capsys, monkeypatch):
    known = load_task(str(data / "boolq.jsonl"))
    monkeypatch.setattr(sources, "load_task", lambda *_, **__: known)
    given = ["--paper", "chg", "--model", str(known_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(["reproduce", *given, "--n", "40", "--steps", "kinds", "--dry-run", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "\nbigbench/subject_verb_agreement   left out: it is not on the hub and needs --data, a folder with" in said
