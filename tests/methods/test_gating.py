import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.lens import encode_example, load_model
from cs_heads.methods import gating
from cs_heads.methods.gating.descent import Descent
from cs_heads.methods.gating.result import SCORES
from cs_heads.tasks import Task
from cs_heads.units import Head
from tests.known_heads import WORKING, hopeless_records, own_answers, rows_run
from tests.on_model import on_model
from tests.plain import gated_nll
from tests.tiny import make_tokenizer

causal_head_gating, contrastive_gating, fit_gates = map(
    on_model, (gating.causal_head_gating, gating.contrastive_gating, gating.fit_gates)
)

STEPS, BATCH = 6, 3
SHAPE = (3, 4)


@pytest.fixture(scope="module")
def task(model):
    return Task.from_records(own_answers(model, 60), "own answers").split(30)[0]


@pytest.fixture(scope="module")
def other(model):
    return Task.from_records(own_answers(model, 60, seed=9), "others").split(30)[0]


def encoded(model, task):
    rows = [encode_example(model.tokenizer, e.prompt, e.continuations) for e in task.examples]
    return [(row.prompt, row.continuations[0]) for row in rows]


class Plain:
    """Gating written out for one seed: plain Hugging Face, one row at a time, torch's Adam on the logits."""

    def __init__(self, folder, seed):
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        self.rng = np.random.default_rng(seed)
        self.start = torch.from_numpy(self.rng.uniform(1e-6, 1 - 1e-6, size=SHAPE)).float().logit()

    def draws(self, n, steps=STEPS):
        return [self.rng.permutation(n)[:BATCH] for _ in range(steps)]

    def nll(self, row, gates):
        return gated_nll(self.model, *row, gates)

    def descend(self, logits, draws, rates, loss_of, penalty, max_norm=1.0):
        logits = logits.clone().requires_grad_()
        adam = torch.optim.Adam([logits], lr=rates[0])
        losses = []
        for step, drawn in enumerate(draws):
            adam.param_groups[0]["lr"] = rates[0] + (rates[1] - rates[0]) * step / (len(draws) - 1)
            adam.zero_grad()
            loss = torch.stack([loss_of(i, torch.sigmoid(logits)) for i in drawn]).mean()
            (loss - penalty(logits)).backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_([logits], max_norm)
            adam.step()
            losses.append(loss.item())
        return logits.detach(), losses


def mean_clipped(strength):
    return lambda logits: strength * logits.clamp(-4, 4).mean()


@pytest.mark.usefixtures("few_steps")
def test_loss_and_gates_equal_an_independent_implementation(load_known, backend, task, known_folder):
    model = load_known(backend)
    found = fit_gates(model, task, n_seeds=2, steps=STEPS, batch_size=BATCH, seed=5)
    rows, plain = encoded(model, task), Plain(known_folder, 6)

    def loss(row, gates):
        return plain.nll(rows[row], gates)

    free, losses = plain.descend(plain.start, plain.draws(30), (0.1, 0.01), loss, mean_clipped(0))
    draws = plain.draws(30)
    plus, plus_losses = plain.descend(free, draws, (0.5, 0.1), loss, mean_clipped(0.1))
    minus, minus_losses = plain.descend(free, draws, (0.5, 0.1), loss, mean_clipped(-0.1))
    for phase, (logits, expected) in enumerate([(free, losses), (plus, plus_losses), (minus, minus_losses)]):
        # The second of two seeds.
        gates = (found.free, found.plus, found.minus)[phase][1]
        assert gates == pytest.approx(torch.sigmoid(logits).numpy(), abs=2e-3)
        assert found.losses[phase, 1] == pytest.approx(np.array(expected), abs=2e-3)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(
    ("options", "clipped", "moves"),
    [({}, 1.0, False), ({"max_norm": 1e-3}, 1e-3, False), ({"max_norm": None, "start_inside": True}, None, True)],
)
def test_gradients_are_clipped_and_starts_taken_inside_as_told(
    model, task, known_folder, monkeypatch, options, clipped, moves
):
    """By default no start is moved, as in the paper and its code, whose gradients are clipped to norm 1."""
    steps = 20  # in which what stands inside moves far
    plain = Plain(known_folder, 5)
    drawn = Descent.start

    def far_out(self):
        """The drawn start with one gate of an idle head beyond ±4, which is where the penalty ends."""
        logits = drawn(self)
        logits[:, 0, 0] = 6.0
        return logits

    monkeypatch.setattr(Descent, "start", far_out)
    found = fit_gates(model, task, steps=steps, batch_size=BATCH, seed=5, **options)
    rows = encoded(model, task)
    plain.start[0, 0] = 6.0
    begun = plain.start.clamp(-4, 4) if moves else plain.start

    def loss(row, gates):
        return plain.nll(rows[row], gates)

    free, _ = plain.descend(begun, plain.draws(30, steps), (0.1, 0.01), loss, mean_clipped(0), clipped)
    minus, _ = plain.descend(free, plain.draws(30, steps), (0.5, 0.1), loss, mean_clipped(-0.1), clipped)
    assert found.minus[0] == pytest.approx(torch.sigmoid(minus).numpy(), abs=2e-3)
    assert (found.minus[0, 0, 0] < 0.5) == moves, "the penalty moves what stands inside alone"
    assert found.provenance["gating"]["max_norm"] == clipped


@pytest.mark.usefixtures("few_steps")
def test_contrastive_gates_equal_an_independent_implementation(model, task, other, known_folder):
    found = contrastive_gating(model, task, forget=other, steps=STEPS, batch_size=BATCH, seed=5)
    plain = Plain(known_folder, 5)
    kept, lost = encoded(model, task), encoded(model, other)

    def loss(row, gates):
        return (plain.nll(kept[row], gates) - plain.nll(lost[row], gates)).clamp(min=-5)

    shut, _ = plain.descend(plain.start, plain.draws(30), (0.1, 0.01), loss, mean_clipped(-0.1))
    assert found.importance == pytest.approx(torch.sigmoid(shut).numpy(), abs=2e-3)
    assert (found.method, found.unit) == ("contrastive", "gate")
    # One seed has no range.
    assert found.interval is None


@pytest.mark.usefixtures("few_steps")
def test_a_seed_fits_the_same_gates_alone_and_among_others(known_folder, task):
    """In float64, where no rounding of a batch can add up; also where the caller has gradients off."""
    model = load_model(known_folder, device="cpu", dtype=torch.float64)
    with torch.no_grad():
        together = fit_gates(model, task, n_seeds=2, steps=STEPS, batch_size=BATCH, seed=3)
    alone = fit_gates(model, task, steps=STEPS, batch_size=BATCH, seed=4)
    for name in ("free", "plus", "minus"):
        assert getattr(alone, name)[0] == pytest.approx(getattr(together, name)[1], abs=1e-6)
    assert not np.allclose(together.free[0], together.free[1])


# What the gates say


HARMFUL, HARM = Head(1, 2), 0.2


@pytest.fixture(scope="module")
def harmed(tmp_path_factory, known_folder):
    """The folder of the known model with head L1H2, idle before, writing what nobody asked for."""
    folder = tmp_path_factory.mktemp("harmed")
    sound = AutoModelForCausalLM.from_pretrained(known_folder)
    written = sound.model.layers[HARMFUL.layer].self_attn.o_proj.weight.data
    d_head = sound.model.layers[HARMFUL.layer].self_attn.head_dim
    columns = slice(HARMFUL.head * d_head, (HARMFUL.head + 1) * d_head)
    noise = torch.randn(written[:, columns].shape, generator=torch.Generator().manual_seed(1))
    written[:, columns] = HARM * noise
    sound.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(harmed, model):
    """The task's answers are those of the model without the harmful head."""
    task = Task.from_records(own_answers(model, 80), "own answers")
    return fit_gates(load_model(harmed, device="cpu"), task, n_seeds=2, steps=40, batch_size=8)


def test_heads_that_work_facilitate_a_harmful_one_interferes_and_others_are_irrelevant(fitted):
    kinds = {kind: {Head(*index) for index in np.argwhere(fitted.kind == kind).tolist()} for kind in SCORES}
    assert (kinds["facilitation"], kinds["interference"]) == ({*WORKING}, {HARMFUL})
    assert len(kinds["irrelevance"]) == 9
    assert (fitted.ranking().order[-1], {*fitted.ranking().top(2)}) == (HARMFUL, {*WORKING})
    assert fitted.always("interference")[HARMFUL.layer, HARMFUL.head] > 0.5
    assert min(fitted.always("facilitation")[head.layer, head.head] for head in WORKING) > 0.7
    assert max(fitted.any("facilitation")[head.layer, head.head] for head in kinds["irrelevance"]) < 0.3


def test_the_ranking_is_facilitation_less_interference_with_its_range_over_seeds(fitted):
    assert fitted.score("irrelevance") == pytest.approx(fitted.plus * (1 - fitted.minus))
    with pytest.raises(ValueError, match="name must be one of facilitation, irrelevance, interference, got 'other'"):
        fitted.score("other")
    ranking = fitted.ranking()
    each = fitted.minus - (1 - fitted.plus)
    assert ranking.importance == pytest.approx(each.mean(axis=0))
    assert ranking.interval[..., 0] == pytest.approx(each.min(axis=0))
    assert ranking.interval[..., 1] == pytest.approx(each.max(axis=0))
    assert ranking.frequency == pytest.approx((fitted.minus > 0.5).mean(axis=0))


# Half precision


@pytest.mark.usefixtures("few_steps")
def test_bfloat16_weights_are_gated_in_float32(known_folder, task):
    model = load_model(known_folder, device="cpu", dtype="bfloat16")
    found = fit_gates(model, task, steps=STEPS, batch_size=BATCH)
    # Between two neighbouring gates in bfloat16 there are many in float32.
    assert len(np.unique(found.trajectory[0, 0, :, 0, 1])) > 5


# Cost and budget


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 19}, "steps must be an integer of 20 or more, got 19"),
        ({"strength": 0.0}, r"strength must be positive, got 0\.0"),
        ({"max_norm": 0.0}, r"max_norm must be positive, got 0\.0"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_model_runs(model, task, other, wrong, message):
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        fit_gates(model, task, **wrong)
    with rows_run(model) as more, pytest.raises(ValueError, match="forget must be a task of 30 examples, the pairs of"):
        contrastive_gating(model, task, forget=other.take(29))
    assert rows == more == []


# The contrast with controls


@pytest.fixture(scope="module")
def small(model):
    """Another task, of 25 examples."""
    return Task.from_records(own_answers(model, 25, seed=11), "small")


@pytest.mark.usefixtures("few_steps")
def test_chg_is_the_ranking_of_its_fits_with_controls_less_the_mean_of_theirs(model, task, other, small):
    settings = {"steps": STEPS, "batch_size": BATCH, "seed": 4, "n_seeds": 2}
    ranking = causal_head_gating(model, task, controls=[other, small], **settings)
    fits = [fit_gates(model, each, **settings) for each in (task, other, small)]
    own, *rest = (fit.minus - (1 - fit.plus) for fit in fits)
    each = own - (rest[0] + rest[1]) / 2
    np.testing.assert_array_equal(ranking.importance, each.mean(axis=0))
    np.testing.assert_array_equal(ranking.interval, np.stack([each.min(axis=0), each.max(axis=0)], axis=-1))
    np.testing.assert_array_equal(ranking.frequency, (each > 0.5).mean(axis=0))
    assert ranking.spent == sum(fit.cost.spent for fit in fits)
    assert ranking.provenance["controls"] == ["others", "small"]
    assert ranking.unit == "facilitation - interference, less that of the controls"


@pytest.mark.usefixtures("no_short_cuts", "few_steps")
def test_a_budget_shortens_the_fits_of_task_and_controls_alike(model, task, small):
    a_step = 6 * (BATCH + BATCH)
    settings = {"steps": 60, "batch_size": BATCH, "controls": [small]}
    with rows_run(model) as rows:
        ranking = causal_head_gating(model, task, budget=55 + 7 * a_step + 5, **settings)
    assert sum(rows) == ranking.spent - ranking.backwards
    assert ranking.spent == 55 + 7 * a_step
    assert ranking.provenance["gating"]["steps"] == 7
    assert ranking.notes[-1] == "the budget covers 7 of 60 steps in each phase: gates may not have settled"
    refused = rf"budget must be {55 + 6 * a_step:,} or more .*\(the intact model: 55; 6 steps in each of 3 phases of 2"
    with rows_run(model) as rows, pytest.raises(ValueError, match=refused):
        causal_head_gating(model, task, budget=54 + 6 * a_step, **settings)
    assert rows == []


@pytest.mark.usefixtures("no_short_cuts", "few_steps")
def test_a_control_that_the_model_cannot_do_is_left_out_of_chg_with_a_note(model, task, small):
    hard = Task.from_records(hopeless_records(100), "hard")
    with rows_run(model) as rows:
        ranking = causal_head_gating(model, task, steps=STEPS, batch_size=BATCH, controls=[hard, small])
    assert ranking.provenance["controls"] == ["small"]
    assert ranking.notes[-1].startswith("control 'hard' is left out: the intact model scores ")
    assert ranking.backwards == 2 * 3 * STEPS * BATCH
    # Choices are two rows each, of an example.
    assert ranking.spent == 30 + 100 + 25 + 2 * 6 * STEPS * BATCH
    assert sum(rows) >= ranking.spent - ranking.backwards
    with rows_run(model) as rows, pytest.raises(BaselineTooLowError, match="controls: the model can do none of them"):
        causal_head_gating(model, task, steps=STEPS, batch_size=BATCH, controls=[hard])
    # The intact runs and no fit.
    assert sum(rows) <= 30 + 2 * 100
