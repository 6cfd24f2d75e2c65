"""A real language model, SmolLM2-135M, under our engine and under plain Hugging Face."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cs_heads as cs
from cs_heads.lens.tokens import encode_prompt
from cs_heads.tasks import builtin_tasks, default_controls, default_kin
from tests.plain import plain_score

pytestmark = pytest.mark.real

OPPOSITES = """
left right;open closed;early late;fast slow;rich poor;young old;happy sad;light dark;hard soft;high low;long short;
wet dry;full empty;near far;strong weak;thick thin;loud quiet;clean dirty;good bad;black white;day night;first last;
inside outside;true false;buy sell;win lose;push pull;front back;begin end;north south;east west;male female;
brother sister;king queen;love hate;peace war;life death;question answer;winter summer;above below;before after;
more less;always never;yes no;come go;give take;laugh cry;tall short;deep shallow;sweet sour;smooth rough;wide narrow;
heavy light;cheap expensive;safe dangerous;simple complex;alive dead
"""

# Heads of the first layers that many skills rest on: zeroing them changes what the model says.
HEADS = ((1, 5), (1, 3), (20, 0))


@pytest.fixture(scope="module")
def model(smollm2):
    return cs.load_model(smollm2, device="cpu")


@pytest.fixture(scope="module")
def plain(smollm2):
    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


def test_the_model_sees_what_plain_transformers_shows_it(model, tokenizer):
    for prompt in ("The capital of France is", "def f(x):\n    return x +", "One, two,"):
        assert list(encode_prompt(model.tokenizer, prompt)) == tokenizer(prompt)["input_ids"]


@pytest.mark.slow
def test_it_passes_every_check(model, smollm2):
    checks = cs.check_model(model, reference=smollm2)
    assert [str(check) for check in checks if check.status != "ok"] == []
    found = {check.name: check.found for check in checks}
    assert found["heads"] == "30 layers × 9 heads, 3 key/value heads"
    assert found["BOS"] == "none prepended, as the tokenizer does by itself"


def test_a_head_off_is_its_slice_of_the_output_projection_zeroed(model, plain):
    task = cs.load_task("everyday/indirect_object", n=3)
    experiment = cs.Experiment(model, task, progress=False)
    masks = np.zeros((2, 30, 9), dtype=bool)
    masks[(1, *zip(*HEADS, strict=True))] = True
    masks[0, 1, 5] = True
    ours, greedy = experiment.logprob(masks), experiment(masks)
    for row, mask in enumerate(masks):
        for column, encoded in enumerate(experiment.encoded):
            target = encoded.continuations[0]
            logprob, right = plain_score(plain, encoded.prompt, target, mask)
            assert ours[row, column] == pytest.approx(logprob / len(target), abs=2e-3)
            assert greedy[row, column] == right
    assert np.abs(ours[1] - experiment.logprob(np.zeros((1, 30, 9), dtype=bool))[0]).min() > 0.01


def test_answers_of_everyday_skills_are_one_token(tokenizer):
    for name in builtin_tasks():
        if name.startswith("everyday/") and name not in ("everyday/sums", "everyday/capitals"):
            answers = {e.target for e in cs.load_task(name).examples}
            assert all(len(tokenizer(answer, add_special_tokens=False)["input_ids"]) == 1 for answer in answers), name


def test_heads_of_plurals_cost_plurals_much_and_other_skills_little(model):
    """Those that an atlas found; ``docs/benchmarks/atlas.md``."""

    def loss(skill: str) -> float:
        task = cs.load_task(f"everyday/{skill}", n=12)
        experiment = cs.Experiment(model, task, progress=False)
        masks = cs.designs.explicit(experiment.grid, [[], ["L8H1", "L20H5", "L9H4", "L15H4", "L16H1"]])
        intact, ablated = experiment(masks).mean(axis=1)
        return (intact - ablated) / (intact - task.chance)

    lost = loss("plural")
    assert lost > 0.6
    assert all(loss(control) < lost / 2 for control in ("agreement", "copying"))


@pytest.mark.slow
def test_heads_of_plurals_are_found_that_other_skills_on_average_can_do_without(smollm2):
    """Where plain sensing finds L1H3 to L1H5, a group that every skill needs."""
    model = cs.load_model(smollm2, device="cpu")
    task = cs.load_task("everyday/plural", seed=0)
    found = cs.find_heads(model, task, progress=False)
    assert not {cs.Head(1, 3), cs.Head(1, 4), cs.Head(1, 5)} & {*found.top(5)}
    proof = cs.confirm(model, task, found.top(5), exclude=found.shared, progress=False)
    # Upper case, which is asked by worked examples like plurals, may lose more than half as much.
    assert proof.verdict in ("specific", "shared")
    assert proof.specificity.own.loss >= 0.7
    assert proof.specificity.mean.loss <= 0.2


@pytest.mark.slow
def test_of_ones_own_opposites_the_head_of_the_skill_is_told_from_that_of_the_template(model):
    """A default control asks for the same in other words: L9H3 carries over to it, and L0H6 does not."""
    pairs = [pair.split() for pair in OPPOSITES.replace("\n", "").strip().split(";")]
    records = [{"prompt": f"big -> small\nup -> down\n{one} ->", "target": f" {other}"} for one, other in pairs]
    task = cs.Task.from_records(records, "opposites").split(12)[0]
    assert [kin.name for kin in default_kin(task, "smollm2")] == ["everyday/antonyms"]
    assert "everyday/antonyms" not in {control.name for control in default_controls(task, "smollm2")}
    # The past tense and the indirect object rest on L0H6, too.
    controls = [cs.load_task(f"everyday/{name}") for name in ("antonyms", "plural", "copying")]
    settings = {"controls": controls, "n": 60, "n_random": 40, "progress": False}
    skill, template = (cs.confirm(model, task, [head], **settings) for head in ("L9H3", "L0H6"))
    assert (skill.verdict, template.verdict) == ("specific", "template-bound")
    for proof in (skill, template):
        assert [each.task for each in proof.kin] == ["everyday/antonyms"]
        assert "everyday/antonyms" not in proof.specificity.controls
        assert any("ask for the same as the task: everyday/antonyms" in note for note in proof.notes)
        assert proof.result.loss > 0.9
    assert skill.kin[0].loss > 0.7
    assert template.kin[0].loss < 0.2
