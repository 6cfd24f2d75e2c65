import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.patch import PatchPoint, encode_point, patch_gradients, patched_effects, record_z
from tests.plain import last_logprobs, z_changed

ROOM = TokenBudget(1000)
CLEAN = [PatchPoint((1, 5, 9, 7), (1, 3), (4, 6)), PatchPoint((1, 8, 8, 3, 12, 6), (2, 5), (9, 5))]
CORRUPTED = [PatchPoint((1, 4, 4, 11, 6), (2, 4), (4, 6)), PatchPoint((1, 7, 13), (1, 2), (9, 5))]


@pytest.fixture(params=["gpt2", "qwen2"])
def both(request, load, folders, backend):
    """The model, and the same one in plain Hugging Face."""
    return load(request.param, backend), AutoModelForCausalLM.from_pretrained(folders(request.param))


def plain_z(plain, point):
    """z ``[layer, point, head, d_head]`` at a prompt's positions."""
    kept = []

    def keep(layer, z):
        kept.append(z[list(point.positions)])
        return z

    with torch.no_grad(), z_changed(plain, keep):
        last_logprobs(plain, point.prompt)
    return torch.stack(kept)


def plain_effect(plain, clean, corrupted, strength):
    """The measure with z moved by ``strength`` [layer, head] towards that of the clean run, by hand."""
    source = plain_z(plain, clean)

    def mix(layer, z):
        z = z.clone()
        here = z[list(corrupted.positions)]
        z[list(corrupted.positions)] = here + strength[layer][:, None] * (source[layer] - here)
        return z

    with z_changed(plain, mix):
        logprob = last_logprobs(plain, corrupted.prompt)
    first = logprob[corrupted.answers[0]]
    return first.exp() if len(corrupted.answers) == 1 else first - logprob[corrupted.answers[1]]


@pytest.mark.parametrize("n_answers", [1, 2])
def test_rows_of_a_batch_carry_their_own_patches_as_by_hand(both, n_answers):
    model, plain = both
    source, pair = record_z(model, CLEAN, ROOM), np.array([1, 0, 1, 1, 0])
    corrupted = [PatchPoint(p.prompt, p.positions, p.answers[:n_answers]) for p in CORRUPTED]
    strength = np.random.default_rng(0).random((5, 3, 4), dtype=np.float32)
    # One head alone, wholly.
    strength[0] = np.eye(12)[7].reshape(3, 4)
    done: list[int] = []
    found = patched_effects(model, corrupted, source, pair, strength, room=TokenBudget(9), done=done.append)
    with torch.no_grad():
        moved = torch.from_numpy(strength)
        by_hand = [plain_effect(plain, CLEAN[p], corrupted[p], moved[r]).item() for r, p in enumerate(pair)]
    assert found == pytest.approx(by_hand, abs=1e-4)
    assert len(done) > 1
    assert sum(done) == 5


def test_the_gradient_of_a_patch_is_that_of_a_small_step(both):
    model, plain = both
    gradient = patch_gradients(model, CORRUPTED, record_z(model, CLEAN, ROOM), ROOM)
    plain = plain.double()
    h = 3e-3  # Hugging Face norms in float32 whatever the dtype: no smaller step is exact
    with torch.no_grad():
        for row, (layer, head) in [(0, (0, 1)), (0, (2, 3)), (1, (1, 0)), (1, (2, 1))]:
            step = torch.zeros(3, 4, dtype=torch.double)
            step[layer, head] = h
            up, down = (plain_effect(plain, CLEAN[row], CORRUPTED[row], sign * step).item() for sign in (1, -1))
            assert gradient[row, layer, head].item() == pytest.approx((up - down) / (2 * h), abs=2e-3, rel=1e-2)


# Places in a text


def test_a_place_is_the_last_token_up_to_there(load):
    tokenizer = load("llama").tokenizer
    point = encode_point(tokenizer, "the cat sees . a dog", [" cat", " dog"], ends=(7, 14))
    assert [tokenizer.convert_ids_to_tokens(point.prompt[i]) for i in point.positions] == ["cat", "."]
    assert tokenizer.convert_ids_to_tokens(list(point.answers)) == ["cat", "dog"]


def test_answers_that_begin_alike_are_refused(load):
    with pytest.raises(ValueError, match="answers ' cat sees', ' cat runs' begin with the same token"):
        encode_point(load("llama").tokenizer, "the", [" cat sees", " cat runs"])


def test_a_place_inside_a_token_is_refused(load):
    with pytest.raises(ValueError, match=r"place 5 of prompt 'the cat' lies inside a token"):
        encode_point(load("llama").tokenizer, "the cat", [" sees"], ends=(5,))
