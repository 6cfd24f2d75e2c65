"""Models whose heads are known: they compute their programs, exactly those heads matter, and a search finds them."""

import json
import sys
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

import cs_heads as cs
from cs_heads.simulate import planted_world
from cs_heads.units import Grid, Head
from tests.waiting import run_program

if not (Path(__file__).parents[1] / "benchmarks" / "truth").is_dir():
    pytest.skip("the tests of benchmarks need a checkout", allow_module_level=True)

from benchmarks.truth import demo, published, trained
from benchmarks.truth.builder import BOS, CUES, NO, YES
from benchmarks.truth.compiler import compile_model
from benchmarks.truth.decoys import add_decoys
from benchmarks.truth.gating import faults, right, zeroed
from benchmarks.truth.judging import auc, coverage
from benchmarks.truth.programs import chain, place
from benchmarks.truth.putting import placed
from benchmarks.truth.rivals import acdc_nodes, pairs_of, shapley
from benchmarks.truth.run import loaded
from benchmarks.truth.suite import Spec, build, draft, specs
from benchmarks.truth.transformer_programs import turned

TEN = ("separate-1", "separate-4", "separate-7", "shared-1", "shared-4", "same-1", "redundant-4", "early-1")
TEN += ("none-1", "decoys-1")
made = cache(lambda name: build(next(spec for spec in specs() if spec.name == name)))


def searched(out, names, *options):
    """What the benchmark says of models: in a process of its own, where shapes are not checked at every call."""
    program = [sys.executable, "-m", "benchmarks.truth.run", "--out", out, "--models", *names, *options]
    done = run_program(program, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    return pd.read_csv(out)


def check(lines):
    """The known heads are found, none else is said to be one, and what no head of its own carries is not specific."""
    assert lines.recall.mean() >= 0.9
    assert lines.model[(lines.wrong > 0) | (lines.wrong_claims > 0)].tolist() == []
    for line in lines.itertuples():
        assert line.verdict in line.right_verdict.split(" or "), line


def test_a_hundred_models_have_64_heads_or_more_and_a_third_of_them_twice_as_many():
    sizes = [spec.layers * spec.heads for spec in specs()]
    assert len({spec.name for spec in specs()}) == len(sizes) > 100
    assert min(sizes) >= 64
    assert sum(size >= 128 for size in sizes) * 3 >= len(sizes)


@pytest.mark.parametrize("name", TEN)
def test_programs_are_computed_and_exactly_the_known_heads_matter(name):
    assert faults(made(name), n=60, n_sets=0) == []


@pytest.mark.slow
def test_that_is_so_of_every_model():
    assert {spec.name: found for spec in specs() if (found := faults(build(spec)))} == {}


@pytest.mark.slow
def test_planted_heads_of_the_demo_model_are_needed_and_known():
    for skill, make in zip(demo.TASKS, demo.models().values(), strict=True):
        model = make()
        assert {*cs.demo.planted_heads(skill)} <= {*model.known}
        assert faults(model) == []


def test_the_default_search_finds_the_known_heads_and_says_nothing_wrong(tmp_path):
    lines = searched(tmp_path / "ten.csv", TEN)
    assert len(lines) == 10
    check(lines)
    assert lines.shared_wrong.sum() == 0


def test_more_examples_find_heads_and_the_same_ones_prove_them():
    few, many = made("early-1").task(0, 10), made("early-1").task(0, 10, 30)
    assert many.examples[:10] == few.examples
    assert many.held_out.examples == few.held_out.examples
    assert len({each.prompt for each in many.examples} - {each.prompt for each in few.held_out.examples}) == 40


def test_a_model_is_the_same_again():
    one, other = made("shared-3"), build(made("shared-3").spec)
    assert one.heads == other.heads
    assert one.shared
    for name, weights in one.model.state_dict().items():
        assert (weights == other.model.state_dict()[name]).all()


def test_masks_take_the_answers_that_plain_hugging_face_loses(backend):
    model, task = made("redundant-0"), made("redundant-0").task(n=40)
    off = [(), model.known[:1], model.twins[:1], model.twins, model.decoys]
    experiment = cs.Experiment(loaded(model, backend), task)
    scores = experiment(cs.designs.explicit(experiment.grid, off))
    for heads, each in zip(off, scores, strict=True):
        np.testing.assert_array_equal(each, right(model, 0, heads, n=80, seed=model.spec.seed)[:40])
    assert scores.mean(axis=1).tolist()[::2] == [1, 1, 1]
    assert scores[1].mean() < 0.5
    assert scores[3].mean() < 0.5


# How rankings are judged


def test_auc_counts_ties_half_as_scikit_learn_does():
    rng = np.random.default_rng(0)
    scores = rng.integers(4, size=(4, 5)).astype(float)
    heads = [Head(layer, index) for layer in range(4) for index in range(5)]
    known, decoys = heads[2:6], heads[8:]
    judged = roc_auc_score([True] * 4 + [False] * 12, [scores[head.layer, head.index] for head in known + decoys])
    assert auc(cs.HeadRanking("css", scores, spent=1), known, decoys) == pytest.approx(judged)
    assert np.isnan(auc(cs.HeadRanking("css", scores, spent=1), (), decoys))


def test_for_the_auc_chosen_heads_stand_first_then_shared_ones_and_last_those_that_were_off():
    scores, heads = np.array([[0.0, 0.9, 0.1, 0.5]]), [Head(0, index) for index in range(4)]
    found = cs.HeadRanking("annealed", scores, spent=1, chosen=(heads[0],), shared=(heads[2],), off=(heads[1],))
    # The order is 0, 2, 3, 1.
    areas = [auc(found, [head], [other for other in heads if other != head]) for head in heads]
    assert areas == pytest.approx([1, 0, 2 / 3, 1 / 3])


def test_intervals_are_held_against_what_heads_take_by_hand():
    model = made("redundant-0")
    interval = np.full((*(model.spec.layers, model.spec.heads), 2), np.nan)
    single = next(head for head in model.known if head not in model.twins)
    interval[single.layer, single.index] = 0.5, 1
    # A twin off alone takes nothing.
    interval[model.twins[0].layer, model.twins[0].index] = 0.1, 1
    interval[model.decoys[0].layer, model.decoys[0].index] = -0.1, 0.1
    interval[model.decoys[1].layer, model.decoys[1].index] = 0.1, 0.2
    found = cs.HeadRanking("annealed", np.zeros(interval.shape[:2]), spent=1, interval=interval)
    assert coverage(model, found) == {"intervals": 2, "held": 1, "other_intervals": 2, "other_held": 1}
    nats = cs.HeadRanking("gradient", np.zeros(interval.shape[:2]), spent=1, interval=interval, unit="nats")
    assert sum(coverage(model, nats).values()) == 0


# Methods from outside: what is ours


def test_pruning_from_the_last_layer_keeps_the_known_heads():
    model = build(Spec("separate", layers=5, heads=4, seed=9))
    experiment = cs.Experiment(loaded(model), model.task(n=20))
    found = acdc_nodes(experiment, 0, 8 * (1 + experiment.grid.size) + 7)
    assert {Head(*place) for place in np.argwhere(found.scores).tolist()} == {*model.known}
    assert found.cost.spent == 8 * (1 + experiment.grid.size)


def test_corrupted_prompts_are_as_long_and_have_another_answer():
    model = made("separate-9")
    pairs = pairs_of(cs.Experiment(loaded(model), model.task(n=20)), seed=0)
    answers = dict(zip(map(tuple, model.prompts(0, 40, model.spec.seed)[0]), model.task(n=20).examples, strict=False))
    assert len(pairs) == 20
    for clean, corrupted, (target, instead) in pairs:
        assert len(clean) == len(corrupted)
        assert target != instead
        assert {clean, corrupted} <= answers.keys()


def test_a_coalition_of_shapley_values_is_the_heads_kept_on_four_examples(monkeypatch):
    world = planted_world("main", Grid(5, 5), seed=0)

    class Alone:
        """Leaves out one player at a time, as often as the budget allows."""

        def __init__(self, n, random_state):
            self.n = n

        def approximate(self, budget, worth):
            worths = worth(np.resize(~np.eye(self.n, dtype=bool), (budget, self.n)))
            return {(player,): 1 - worths[player :: self.n].mean() for player in range(self.n)}

    monkeypatch.setitem(sys.modules, "shapiq", SimpleNamespace(Alone=Alone))
    found = shapley(world.task, 0, 4 * 500, "Alone")
    best = cs.HeadRanking("kernelshap", found.scores, found.cost.spent)[0]
    assert best in {*world.planted, *world.universal}
    assert found.cost.spent == 4 * 500


def two_programs(seed, layers=4, heads=4):
    """A draft of a chain and a place in a small model."""
    return draft(Spec("trained", layers, heads, seed), (chain(2), place(3)), np.random.default_rng(seed))


def interchanged(model, made, n=64):
    """The loss of a batch of interchange interventions, and the share that is right."""
    pools = trained.drawn(made.model(model), 100, seed=1)
    with torch.no_grad():
        found, share = trained.loss(model, trained.batch(made, pools, np.random.default_rng(0), n))
    return float(found), share


def test_interchange_interventions_say_which_heads_carry_the_variables():
    made, other, rng = two_programs(0), two_programs(1), np.random.default_rng(0)
    assert not {*made.heads[0]} & {*other.heads[0]}
    add_decoys(made.plan, made.builder, rng)
    model = compile_model(made.plan, made.builder, rng)
    assert interchanged(model, made)[1] == 1
    assert interchanged(model, other)[1] < 0.8


def test_training_lowers_the_interchange_loss(monkeypatch):
    monkeypatch.setattr(trained, "POOL", 256)
    made = two_programs(0)
    before, after = (interchanged(trained.train(made, steps, probed=True).model, made) for steps in (0, 60))
    assert after[0] < 0.85 * before[0]
    assert after[1] > before[1]


def written_brackets(folder, n=4, size=4, inner=6):
    """A file of a model of brackets with random weights, and what it says of strings."""
    rng = np.random.default_rng(0)
    shapes = {"tok.weight": (2, size), "pos": (n, size), "h1.weight": (size, size), "h1.bias": (size,)}
    shapes |= {"h2.weight": (2, size), "h2.bias": (2,)}
    for i in range(2):
        shapes |= {f"blocks.{i}.W{each}.weight": (size, size) for each in "qkvo"}
        shapes |= {f"blocks.{i}.mlp1.weight": (inner, size), f"blocks.{i}.mlp1.bias": (inner,)}
        shapes |= {f"blocks.{i}.mlp2.weight": (size, inner), f"blocks.{i}.mlp2.bias": (size,)}
    w = {name: rng.normal(size=shape) / 2 for name, shape in shapes.items()}
    hexadecimal = {name: np.vectorize(float.hex, otypes=[object])(each).tolist() for name, each in w.items()}
    told = {"cfg": {"n": n, "d": size, "heads": 2, "layers": 2}, "state_dict_hex": hexadecimal}
    (folder / "brackets.json").write_text(json.dumps(told))

    def says(x):
        z = w["tok.weight"][x] + w["pos"]
        for i in range(2):
            q, k, v = (np.split(z @ w[f"blocks.{i}.W{each}.weight"].T, 2, axis=1) for each in "qkv")
            scores = [np.where(np.tri(n) > 0, a @ b.T / np.sqrt(size / 2), -np.inf) for a, b in zip(q, k, strict=True)]
            heads = [np.exp(s) / np.exp(s).sum(axis=1, keepdims=True) @ b for s, b in zip(scores, v, strict=True)]
            z = z + np.concatenate(heads, axis=1) @ w[f"blocks.{i}.Wo.weight"].T
            hidden = np.maximum(z @ w[f"blocks.{i}.mlp1.weight"].T + w[f"blocks.{i}.mlp1.bias"], 0)
            z = z + hidden @ w[f"blocks.{i}.mlp2.weight"].T + w[f"blocks.{i}.mlp2.bias"]
        return np.maximum(z.sum(axis=0) @ w["h1.weight"].T + w["h1.bias"], 0) @ w["h2.weight"].T + w["h2.bias"]

    return folder / "brackets.json", says


def test_a_model_of_brackets_is_put_into_a_larger_one(tmp_path):
    file, says = written_brackets(tmp_path)
    numbers, model = placed(Spec("published", 8, 8, 0), published.written(*published.weights(file)))
    strings = list(product((0, 1), repeat=4))
    with torch.no_grad(), zeroed(model, {Head(i, j) for i in range(8) for j in range(8)} - {*numbers}):
        logits = model(torch.tensor([[BOS, *(1 + each for each in x), CUES] for x in strings])).logits[:, -1]
    np.testing.assert_allclose(logits[:, [NO, YES]], [says(list(x)) for x in strings], rtol=2e-3, atol=0.1)


PYTHON = """
import pandas as pd
def select_closest(keys, queries, test):
    chosen = []
    for i, query in enumerate(queries):
        near = [(abs(i - j) if i != j else len(keys), j) for j, key in enumerate(keys) if test(query, key)]
        chosen.append([j == (min(near)[1] if near else 0) for j in range(len(keys))])
    return chosen
def select(keys, queries, test):
    return [[test(query, key) for key in keys] for query in queries]
def aggregate(chosen, values):
    return [next(v for c, v in zip(row, values) if c) for row in chosen]
def aggregate_sum(chosen, values):
    return [sum(v for c, v in zip(row, values) if c) for row in chosen]
def run(tokens):
    weights = pd.read_csv("elsewhere.csv")
    positions = list(range(len(tokens)))
    ones = [1 for _ in tokens]
    def vowel(query, key):
        return key in "ae"
    attn_0_0_pattern = select_closest(tokens, tokens, vowel)
    attn_0_0_outputs = aggregate(attn_0_0_pattern, positions)
    def same(query, key):
        return query == key
    num_attn_0_0_pattern = select(tokens, tokens, same)
    num_attn_0_0_outputs = aggregate_sum(num_attn_0_0_pattern, ones)
    def far(position, near):
        return 2 if position > near else int(near == 3)
    mlp_0_0_outputs = [far(a, b) for a, b in zip(positions, attn_0_0_outputs)]
    def often(number):
        return int(number > 1)
    num_mlp_0_0_outputs = [often(a) for a in num_attn_0_0_outputs]
    def beside(far, position):
        return position == far + 1
    attn_1_0_pattern = select_closest(positions, mlp_0_0_outputs, beside)
    attn_1_0_outputs = aggregate(attn_1_0_pattern, tokens)
    known = dict(tokens=tokens, positions=positions, attn_0_0_outputs=attn_0_0_outputs,
                 mlp_0_0_outputs=mlp_0_0_outputs, num_mlp_0_0_outputs=num_mlp_0_0_outputs,
                 attn_1_0_outputs=attn_1_0_outputs)
    said = []
    for i in positions:
        logits = weights.loc[("ones", "_")] + num_attn_0_0_outputs[i] * weights.loc[("num_attn_0_0_outputs", "_")]
        said.append(str((logits + sum(weights.loc[(name, str(of[i]))] for name, of in known.items())).idxmax()))
    return said
"""


def written_python(folder):
    """A small Transformer Program, with random weights."""
    rows = [(name, of) for name in ("tokens", "attn_1_0_outputs") for of in ("<s>", *"abcdefgh")]
    rows += [(name, str(of)) for name in ("positions", "attn_0_0_outputs") for of in range(4)]
    rows += [(name, str(of)) for name in ("mlp_0_0_outputs", "num_mlp_0_0_outputs") for of in range(3)]
    rows += [("ones", "_"), ("num_attn_0_0_outputs", "_")]
    index = pd.MultiIndex.from_tuples(rows, names=["feature", "value"])
    weights = pd.DataFrame(np.random.default_rng(0).integers(5, size=(len(rows), 3)) * 1.0, index, ["X", "Y", "Z"])
    weights.loc[("ones", "_")] += [0, 1 / 3, 2 / 3]  # No two answers are as likely.
    (folder / "small").mkdir()
    weights.to_csv(folder / "small" / "small_weights.csv")
    (folder / "small" / "small.py").write_text(PYTHON)
    return folder / "small" / "small.py"


def test_a_transformer_program_is_put_into_a_gpt2(tmp_path):
    made = turned(written_python(tmp_path), (2, 3))
    assert made.known
    assert faults(made, n_sets=1) == []


def test_sums_of_other_numbers_than_ones_are_refused(tmp_path):
    file = written_python(tmp_path)
    file.write_text(
        PYTHON.replace("aggregate_sum(num_attn_0_0_pattern, ones)", "aggregate_sum(num_attn_0_0_pattern, positions)")
    )
    with pytest.raises(ValueError, match="programs must sum ones alone, got positions"):
        turned(file, (2, 3))
