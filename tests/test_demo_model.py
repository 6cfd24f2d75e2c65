"""The demo model has its skills, and they rest on the heads they were planted in."""

import json
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.analysis.gating import score_of_heads
from cs_heads.demo import SKILLS, planted_heads
from cs_heads.lens.load import DEMO
from tests.plain import units_replaced
from tests.waiting import run_program

# Skills that every change is tried on; the others are of `make test-all`.
QUICK = ("capitals", "rhyme")


@pytest.fixture(scope="module")
def demo():
    return cs.load_model("demo", device="cpu")


@pytest.mark.lens
def test_logits_equal_plain_hugging_face_on_every_class(backend):
    model = cs.load_model("demo", device="cpu", backend=backend)
    hf = AutoModelForCausalLM.from_pretrained(DEMO)
    tokens = torch.tensor([AutoTokenizer.from_pretrained(DEMO)("The capital of Peru is")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).log_softmax(-1), hf(tokens).logits.log_softmax(-1), atol=1e-4, rtol=0)
    assert model.cfg.model_name == "demo"


def test_it_is_small_and_has_enough_heads_to_search(demo):
    assert (DEMO / "model.safetensors").stat().st_size <= 8 * 2**20
    assert cs.HeadGrid.from_model(demo) == cs.HeadGrid(8, 16)
    assert len(SKILLS) >= 6


def greedy_accuracy(hf, tokenizer, skill, heads=()):
    """Plain Hugging Face, one prompt at a time, the next token its own choice."""
    mask = cs.HeadGrid(8, 16).mask(heads)
    right = []
    with units_replaced(hf, "heads", mask), torch.no_grad():
        for example in cs.load_task(f"demo/{skill}", n=1).held_out.examples[:300]:
            logits = hf(torch.tensor([tokenizer(example.prompt)["input_ids"]])).logits[0, -1]
            options = tokenizer(list(example.continuations), add_special_tokens=False)["input_ids"]
            if len(options) == 1:
                right.append(int(logits.argmax()) == options[0][0])
            else:
                right.append(int(logits[[ids[0] for ids in options]].argmax()) == example.answer)
    return np.mean(right)


@pytest.mark.parametrize(
    "skill", [*QUICK, *(pytest.param(s, marks=pytest.mark.slow) for s in SKILLS if s not in QUICK)]
)
def test_a_skill_is_there_and_goes_with_its_planted_heads(skill):
    """At least .95 on 300 held-out prompts; 50 points less without its five heads."""
    hf, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO), AutoTokenizer.from_pretrained(DEMO)
    accuracy = greedy_accuracy(hf, tokenizer, skill)
    assert accuracy >= 0.95
    assert greedy_accuracy(hf, tokenizer, skill, planted_heads(skill)) <= accuracy - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("skill", SKILLS)
def test_other_skills_keep_their_accuracy(demo, skill):
    """Without the planted heads of one skill every other loses at most 10 points."""
    for other in SKILLS:
        task = cs.load_task(f"demo/{other}", n=1).held_out.take(100)
        experiment = cs.Experiment(demo, task, progress=False)
        drop = experiment.baseline().mean() - experiment(experiment.grid.mask(planted_heads(skill))[None]).mean()
        assert drop <= 0.1 if other != skill else drop >= 0.5


@pytest.mark.slow
def test_a_blind_search_finds_planted_heads(demo):
    """CSS with 200 masks: most of the five; on unseen examples the skill goes with them, and no other does."""
    for skill in ("capitals", "copying", "swearing", "rhyme"):
        task = cs.load_task(f"demo/{skill}", n=100, seed=0)
        found = cs.find_heads(demo, task, method="css", n_masks=200, seed=0, progress=False)
        assert len({*found.top(5)} & {*planted_heads(skill)}) >= 4
        others = [cs.load_task(f"demo/{other}", n=1) for other in SKILLS if other != skill]
        proof = cs.confirm(demo, task, found.top(5), controls=others, seed=0, progress=False)
        assert proof.verdict == "specific"
        assert proof.drop >= 0.5
        assert max(control.drop for control in proof.controls) <= 0.1


@pytest.mark.slow
def test_planted_heads_facilitate_more_than_others(demo):
    """Causal head gating, a tenth of its steps: Welch's t-test over heads."""
    task = cs.load_task("demo/rhyme", n=100, seed=0)
    gates = cs.methods.fit_gates(cs.Experiment(demo, task, progress=False), steps=50, batch_size=32)
    test = score_of_heads(gates, planted_heads("rhyme"))
    assert test.inside > test.outside + 0.2
    assert test.p < 0.01
    assert not (gates.kind == "interference").any()


@pytest.mark.slow
def test_methods_side_by_side_find_planted_heads(demo):
    task = cs.load_task("demo/capitals", n=40, seed=0)
    methods = ("css", "one-shot", "gradient", "attribution")
    compared = cs.compare(demo, task, methods=methods, n=40, controls=[cs.load_task("demo/copying")], progress=False)
    for one in compared.methods.values():
        assert len({*one.ranking.top(5)} & {*planted_heads("capitals")}) >= 3
        assert one.drops[4] > compared.random_drop[4] + 0.4
        assert one.controls["demo/copying"] <= 0.2


@pytest.mark.slow
def test_contrastive_gates_stay_open_where_the_retained_skill_lives_and_shut_where_the_other_does(demo):
    task, forget = (cs.load_task(f"demo/{skill}", n=60, seed=0) for skill in ("capitals", "code"))
    settings = {"forget": forget, "steps": 40, "batch_size": 24, "progress": False}
    found = cs.find_heads(demo, task, method="contrastive", **settings)
    assert set(found.top(3)) <= set(planted_heads("capitals"))
    assert max(found.importance[head.layer, head.head] for head in planted_heads("code")) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("skill", ["capitals", "multiple_choice"])
def test_annealed_sensing_finds_what_css_finds_for_a_fifth_of_its_cost(demo, skill):
    task = cs.load_task(f"demo/{skill}", n=100, seed=0)
    found = cs.find_heads(demo, task, controls=[cs.load_task("demo/code")], budget=2000, seed=0, progress=False)
    css = cs.find_heads(demo, task, method="css", n_masks=100, seed=0, progress=False)
    assert found.spent <= 2000 < css.spent / 5
    ours, theirs = (len({*ranking.top(5)} & {*planted_heads(skill)}) for ranking in (found, css))
    assert ours >= max(theirs, 4)


@pytest.mark.slow
def test_planted_heads_are_found_and_proved_by_what_the_model_writes(demo):
    task = cs.load_task("demo/word_problems", generate=True)
    found = cs.find_heads(demo, task, controls=[cs.load_task("demo/capitals", generate=True)])
    assert len(set(found.top(5)) & set(planted_heads("word_problems"))) >= 4
    proof = cs.confirm(demo, task, found.top(5), controls=None)
    assert proof.verdict == "localized"


@pytest.mark.parametrize("skill", SKILLS)
def test_tasks_come_with_disjoint_sides(skill):
    task = cs.load_task(f"demo/{skill}", n=100, seed=3)
    assert (len(task), task.role, len(task.held_out), task.held_out.role) == (100, "finding", 400, "confirming")
    assert not {e.prompt for e in task.examples} & {e.prompt for e in task.held_out.examples}
    assert task == cs.load_task(f"demo/{skill}", n=100, seed=3)
    assert task != cs.load_task(f"demo/{skill}", n=100, seed=4)


def test_the_demo_runs_from_a_shell(tmp_path):
    """The main job in a process of its own, with few masks."""
    arguments = ["find", "--model", "demo", "--task", "demo/swearing", "--n", "30", "--budget", "1300", "--json"]
    done = run_program([sys.executable, "-m", "cs_heads.cli", *arguments, "--out", tmp_path / "report"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["baseline"] > 0.9
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        *("result.json", "ranking.json", "heads.png"),
        *("attention.json", "curve.json", "report.html", "run.toml"),
    }
