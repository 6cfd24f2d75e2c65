import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads.lens import EncodedExample, encode_example, load_model
from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.differentiate import GradientExample, differentiable, gate_gradients
from cs_heads.lens.model import context_length
from tests.on_model import losses
from tests.plain import gated_nll
from tests.tiny import completion_records

SHAPE = (3, 4)


def rows(model, n, seed=0):
    records = completion_records(np.random.default_rng(seed), n, target_words=3)
    encoded = [encode_example(model.tokenizer, r["prompt"], [r["target"]]) for r in records]
    return [e.prompt for e in encoded], [e.continuations[0] for e in encoded]


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_loss_and_gradient_of_every_row_are_those_of_plain_hugging_face(load, folders, architecture, backend):
    model = load(architecture, backend)
    plain = AutoModelForCausalLM.from_pretrained(folders(architecture)).double()
    prompts, targets = rows(model, 5)
    gates = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
    # A gate of 1 has a gradient, too.
    gates[:2] = 1
    nll, gradient = gate_gradients(model, losses(prompts, targets), gates, TokenBudget(30), of="loss")
    for row in range(5):
        leaf = torch.from_numpy(gates[row]).double().requires_grad_()
        loss = gated_nll(plain, prompts[row], targets[row], leaf)
        (expected,) = torch.autograd.grad(loss, leaf)
        assert nll[row] == pytest.approx(loss.item(), abs=1e-4)
        np.testing.assert_allclose(gradient[row], expected, atol=2e-4, rtol=1e-3)


def test_weights_get_no_gradient_and_the_model_is_left_as_it_was(load, backend):
    model = load("llama", backend)
    trained = [parameter.requires_grad for parameter in model.parameters()]
    prompts, targets = rows(model, 3)
    gate_gradients(model, losses(prompts, targets), np.ones((3, *SHAPE), np.float32), TokenBudget(1000), of="loss")
    with differentiable(model):
        assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="stop"), differentiable(model):
        raise RuntimeError("stop")
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_bfloat16_weights_take_float32_gates(folders, load, backend):
    half = load_model(folders("llama"), device="cpu", dtype="bfloat16", backend=backend)
    whole = load("llama", backend)
    prompts, targets = rows(half, 6)
    asked = losses(prompts, targets), np.random.default_rng(1).random((6, *SHAPE), dtype=np.float32), TokenBudget(1000)
    (nll, gradient), (exact_nll, exact) = (gate_gradients(model, *asked, of="loss") for model in (half, whole))
    assert nll.dtype == gradient.dtype == np.float32
    np.testing.assert_allclose(nll, exact_nll, atol=0.15, rtol=0.05)
    assert np.corrcoef(gradient.flatten(), exact.flatten())[0, 1] > 0.99


# Batches


def test_rows_of_like_length_share_a_batch_and_each_row_has_its_turn():
    batches: list[list[int]] = []
    run_in_batches([3, 9, 2, 8, 3], TokenBudget(18), lambda batch: batches.append(batch.tolist()))
    assert batches == [[1, 3], [0, 4, 2]]


def test_a_batch_that_does_not_fit_is_halved_and_not_tried_again_by_calls_that_share_a_room():
    tried: list[int] = []

    def run(batch) -> None:
        tried.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    room = TokenBudget(32)
    for _ in range(2):
        run_in_batches([4] * 8, room, run)
    assert tried == [8, 4, 2, 2, 2, 2, 2, 2, 2, 2]


def test_a_row_that_does_not_fit_by_itself_ends_the_run():
    def run(batch) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(MemoryError, match="a row of 5 tokens does not fit into memory by itself"):
        run_in_batches([5, 4], TokenBudget(100), run)


@pytest.mark.parametrize(("architecture", "extend"), [("gpt2", False), ("qwen2", True)])
def test_gradients_of_probabilities_are_those_of_plain_hugging_face(load, folders, architecture, backend, extend):
    """Of two choices after a prompt that begins alike, and of whole targets; with what they share run once, or not."""
    model = load(architecture, backend)
    plain = AutoModelForCausalLM.from_pretrained(folders(architecture)).double()
    texts, targets = rows(model, 6)
    begin = texts[0][:3]
    prompts = [(*begin, *text[:2]) for text in texts]
    choices = [EncodedExample(p, (t, (t[0], 7, 3)), merged=False) for p, t in zip(prompts, targets, strict=True)]
    wholes = [EncodedExample(p, (t,), merged=False) for p, t in zip(prompts, targets, strict=True)]
    asked = [
        [GradientExample(one, 1, (1.0, 0.5)) for one in choices[:3]],
        [GradientExample(one, 0, (1.0, 1.0)) for one in choices[3:5]],
        [GradientExample(one, 0, (0.5,)) for one in wholes[:4]],
        [GradientExample(wholes[5], 0, (1.0,))],
    ]
    gates = np.random.default_rng(0).random((len(asked), *SHAPE), dtype=np.float32)
    values, gradient = gate_gradients(model, asked, gates, TokenBudget(60), extend=extend)
    for row, examples in enumerate(asked):
        leaf = torch.from_numpy(gates[row]).double().requires_grad_()
        probabilities = []
        for one in examples:
            scored = [
                -scale * len(target) * gated_nll(plain, one.tokens.prompt, target, leaf)
                for scale, target in zip(one.scales, one.tokens.continuations, strict=True)
            ]
            share = scored[0] if len(scored) == 1 else torch.stack(scored).log_softmax(0)[one.answer]
            probabilities.append(share.exp())
        mean = torch.stack(probabilities).mean()
        assert values[row] == pytest.approx(mean.item(), abs=1e-5)
        np.testing.assert_allclose(gradient[row], *torch.autograd.grad(mean, leaf), atol=2e-4, rtol=2e-3)


def test_rows_that_begin_alike_for_long_and_for_short_fit_into_the_context_together(load, backend):
    model = load("gpt2", backend)
    context = context_length(model)
    long, short = EncodedExample(tuple([5] * (context - 2)), ((7, 3), (9, 4)), merged=False), (5, 6, 7)
    asked = [
        [GradientExample(long, 1, (1.0, 1.0))],
        [
            GradientExample(EncodedExample((*short, *[i] * (context // 2)), ((8,),), merged=False), 0, (1.0,))
            for i in (3, 4)
        ],
    ]
    gates = np.random.default_rng(0).random((2, *SHAPE), dtype=np.float32)
    values, gradient = gate_gradients(model, asked, gates, TokenBudget(10_000), extend=True)
    for row in range(2):
        alone = gate_gradients(model, asked[row : row + 1], gates[row : row + 1], TokenBudget(10_000), extend=True)
        np.testing.assert_allclose(values[row], alone[0][0], atol=1e-6)
        np.testing.assert_allclose(gradient[row], alone[1][0], atol=1e-5)


def test_gradients_of_probabilities_that_are_known_are_not_run_again(load, backend):
    model = load("llama", backend)
    prompts, targets = rows(model, 4)
    asked = [
        [GradientExample(EncodedExample(p, (t,), merged=False), 0, (1.0,))]
        for p, t in zip(prompts, targets, strict=True)
    ]
    gates, done = np.ones((4, *SHAPE), dtype=np.float32), []
    known = np.full_like(gates, np.nan)
    known[1] = 7
    values, gradient = gate_gradients(model, asked, gates, TokenBudget(1000), done=done.append, measured=known)
    assert np.isnan(values).tolist() == [False, True, False, False]
    assert (gradient[1] == 7).all()
    assert np.isfinite(gradient).all()
    assert sum(done) == 3


def test_texts_that_are_alike_but_whose_prompts_end_elsewhere_are_gated_each_at_its_own_tokens(load, backend):
    model = load("llama", backend)
    short, long = (
        EncodedExample((5, 6, 7), ((8, 9),), merged=False),
        EncodedExample((5, 6, 7, 8), ((9,),), merged=False),
    )
    gates = np.random.default_rng(0).random((1, *SHAPE), dtype=np.float32)
    for off_at in ("all", "last", "prompt"):
        both, *each = (
            gate_gradients(
                model, [[GradientExample(one, 0, (1.0,)) for one in some]], gates, TokenBudget(99), off_at=off_at
            )[1]
            for some in ((short, long), (short,), (long,))
        )
        np.testing.assert_allclose(both, np.mean(each, axis=0), atol=1e-6)
