"""A model that knows nothing is at chance on every choice task that is made here."""

import pytest
from scipy.stats import binomtest

from cs_heads import Experiment, load_task
from cs_heads.lens import load_model
from tests.tiny import save_byte_model

N = 100
FUNCTIONS = ("antonym", "capitalize", "country-capital", "english-french", "present-past", "singular-plural")
FAST = [("ioi", {}), ("function_vectors/antonym", {"choices": 4, "format": "instruction"})]
SLOW = [
    ("symbolic/aba", {}),
    ("symbolic/abb", {}),
    ("symbolic/both", {}),
    ("induction", {"choices": 4, "length": 8}),
    ("rhyming", {"choices": 4}),
    *((f"function_vectors/{name}", {"choices": 4, "format": "instruction"}) for name in FUNCTIONS[1:]),
]


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory):
    """A model of random weights that reads any text, a byte a token."""
    return load_model(save_byte_model(tmp_path_factory.mktemp("bytes")), device="cpu")


def interval(model, task):
    """Whether chance lies in the 99 % interval of the score, and the score."""
    scores = Experiment(model, task, progress=False).baseline()
    bounds = binomtest(round(scores.sum()), len(scores)).proportion_ci(0.99)
    return bounds.low <= task.chance <= bounds.high, float(scores.mean())


@pytest.mark.parametrize(("name", "options"), [*FAST, *(pytest.param(*task, marks=pytest.mark.slow) for task in SLOW)])
def test_a_model_of_random_weights_is_at_chance(ignorant, name, options):
    task = load_task(name, n=40, **options)
    # Scored on the side there is more of.
    at_chance, score = interval(ignorant, task.held_out.take(N))
    assert at_chance, score


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_model_of_random_weights_is_at_chance_on_the_real_files(ignorant, real, name):
    folder = real / "data" / "function_vectors"
    task = load_task(f"function_vectors/{name}", n=20, choices=4, few_shot=2, data_files=folder)
    at_chance, score = interval(ignorant, task.held_out.take(N))
    assert at_chance, score


def test_a_task_that_gives_its_answer_away_would_be_caught(ignorant):
    task = load_task("ioi", n=40).held_out.take(N)
    right = type(task).from_records(
        [{"prompt": e.prompt, "choices": [f"{e.target}!!!!!!!!!!!!", e.target], "answer": 1} for e in task.examples]
    )
    at_chance, score = interval(ignorant, right)
    assert not at_chance
    assert score > 0.9
