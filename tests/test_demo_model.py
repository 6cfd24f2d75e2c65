"""The demo model has its skills, and they rest on the heads they were planted in."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.cli import main
from cs_heads.demo import SKILLS, planted_heads, planted_universal_heads
from cs_heads.lens.load import DEMO
from tests.plain import units_replaced

# Skills that every change is tried on; the others are of `make test-all`.
QUICK = ("capitals",)


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


def greedy_accuracy(hf, tokenizer, skill, heads=()):
    """Plain Hugging Face, one prompt at a time, the next token its own choice."""
    mask = cs.Grid(8, 16).mask(heads)
    right = []
    with units_replaced(hf, "heads", mask), torch.no_grad():
        for example in cs.load_task(f"demo/{skill}", n=1).held_out.examples[:100]:
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
    """At least .95 on 100 held-out prompts; 50 points less without its five heads."""
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
@pytest.mark.parametrize("skill", ["capitals", "multiple_choice"])
def test_annealed_sensing_finds_what_css_finds_for_a_fifth_of_its_cost(demo, skill):
    task = cs.load_task(f"demo/{skill}", n=100, seed=0)
    found = cs.find_heads(demo, task, controls=[cs.load_task("demo/code")], budget=2000, seed=0, progress=False)
    css = cs.find_heads(demo, task, method="css", n_masks=100, seed=0, progress=False)
    assert found.spent <= 2000 < css.spent / 5
    ours, theirs = (len({*ranking.top(5)} & {*planted_heads(skill)}) for ranking in (found, css))
    assert ours >= max(theirs, 4)


@pytest.mark.slow
def test_the_shell_finds_planted_heads_by_what_the_model_writes(capsys):
    arguments = ["find", "--model", "demo", "--device", "cpu", "--task", "demo/word_problems", "--generate"]
    assert main([*arguments, "--control", "demo/capitals", "--n", "60", "--budget", "2000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["spent"] <= 2000
    assert len({row["head"] for row in found["heads"]} & set(map(str, planted_heads("word_problems")))) >= 4
    assert found["confirm"]["verdict"] == "specific"


def test_planted_groups_do_not_overlap():
    heads = [head for skill in SKILLS for head in planted_heads(skill)] + planted_universal_heads()
    assert len(set(heads)) == len(heads) == 5 * len(SKILLS) + 1


@pytest.mark.parametrize("skill", SKILLS[:2])
def test_tasks_come_with_disjoint_sides(skill):
    task = cs.load_task(f"demo/{skill}", n=100, seed=3)
    assert (len(task), task.role, len(task.held_out), task.held_out.role) == (100, "finding", 400, "confirming")
    assert not {e.prompt for e in task.examples} & {e.prompt for e in task.held_out.examples}
    assert task == cs.load_task(f"demo/{skill}", n=100, seed=3)
    assert task != cs.load_task(f"demo/{skill}", n=100, seed=4)
