"""Models over integers: prompts, choices and targets as token ids, answers inside a sequence, no tokenizer anywhere."""

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import cs_heads as cs
from cs_heads import Experiment, Task
from cs_heads.analysis.attention import attention, habits
from cs_heads.cli import main
from cs_heads.engine.plan import token_budget
from cs_heads.lens.abilities import abilities
from cs_heads.lens.forward import sample_logits
from cs_heads.lens.model import tokenizer_of
from tests.integer_models import DIGITS, HEADS, LENGTH, P, adding_model, addition, save_sorting_model, sorting
from tests.tiny import make_tokenizer

MASKS = np.random.default_rng(3).random((6, *HEADS)) < 0.3
NO_DEFAULTS = "no default controls: they are texts, and the model has no tokenizer"


@pytest.fixture(scope="module")
def sorting_folder(tmp_path_factory):
    return save_sorting_model(tmp_path_factory.mktemp("sorting"))


@pytest.fixture(scope="module")
def load_sorting(sorting_folder):
    return cache(lambda backend: cs.load_model(sorting_folder, device="cpu", backend=backend))


def adding(n=None, **more):
    return Task.from_records(addition()[:n], "addition", **more)


def sorted_lists(n=60, *, inside=False, **more):
    return Task.from_records(sorting(n, inside=inside), "sorting", **more)


def logits_of(model, prompts, mask):
    """Logits at every place of prompts of one length, each head of the mask zeroed by a hook of our own."""
    off = torch.from_numpy(mask)

    def zeroed(layer):
        return lambda z, hook: z * (~off[layer])[None, None, :, None]

    hooks = [(f"blocks.{layer}.attn.hook_z", zeroed(layer)) for layer in range(HEADS[0])]
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        return model(torch.tensor(prompts)).float()


def right_answers(model, task, mask):
    """By hand: of each example, which tokens of its target are the argmax, and their mean log-probability."""
    rows = [(e.prompt if e.positions else (*e.prompt, *e.target[:-1]), e.target, e.positions) for e in task.examples]
    logits = logits_of(model, [row for row, _, _ in rows], mask)
    hits, logprobs = [], []
    for (row, target, positions), each in zip(rows, logits, strict=True):
        places = list(positions) or list(range(len(row) - len(target), len(row)))
        hits.append((each[places].argmax(dim=-1) == torch.tensor(target)).float().numpy())
        logprobs.append(each[places].log_softmax(dim=-1)[range(len(target)), list(target)].mean())
    return np.array(hits), np.array(logprobs)


# Numbers, against forwards by hand


def test_a_model_over_integers_with_fewer_answers_than_tokens_is_scored_under_masks(backend):
    model, task = adding_model(backend), adding()
    experiment = Experiment(model, task)
    assert model.tokenizer is None
    assert experiment.baseline().mean() == 1
    for mask, scores, logprobs in zip(MASKS, experiment(MASKS), experiment.logprob(MASKS), strict=True):
        hits, by_hand = right_answers(model, task, mask)
        np.testing.assert_array_equal(scores, hits[:, 0])
        np.testing.assert_allclose(logprobs, by_hand, atol=1e-4)
    assert 0 < experiment(MASKS).mean() < 1
    margins, probabilities = (experiment.respond(MASKS, response=name) for name in ("margin", "probability"))
    expected = np.exp(experiment.logprob(MASKS))
    np.testing.assert_allclose(probabilities, np.minimum(expected, 1 / (1 + np.exp(-10))), atol=1e-6)
    assert ((margins > 0) == (probabilities > 0.5)).all()


@pytest.mark.parametrize("inside", [False, True])
def test_answers_inside_a_sequence_are_all_right_or_right_by_share(load_sorting, backend, inside):
    model = load_sorting(backend)
    whole = Experiment(model, sorted_lists(inside=inside))
    share = Experiment(model, sorted_lists(inside=inside, accuracy="token"))
    assert model.tokenizer is None
    for mask, all_right, by_share in zip(MASKS, whole(MASKS), share(MASKS), strict=True):
        hits, logprobs = right_answers(model, whole.task, mask)
        np.testing.assert_array_equal(all_right, hits.all(axis=1))
        np.testing.assert_allclose(by_share, hits.mean(axis=1))
        np.testing.assert_allclose(whole.logprob(mask)[0], logprobs, atol=1e-4)
    assert (share(MASKS) > whole(MASKS)).any()
    # Of all tokens together, and of one of them in the geometric mean.
    np.testing.assert_allclose(whole.respond(MASKS), np.exp(LENGTH * whole.logprob(MASKS)), atol=1e-4)
    np.testing.assert_allclose(share.respond(MASKS), np.exp(whole.logprob(MASKS)), atol=1e-4)


def test_choices_of_token_ids(backend):
    model = adding_model(backend)
    records = [
        {"prompt": r["prompt"], "choices": [[(r["target"][0] + 1) % P], r["target"]], "answer": 1} for r in addition()
    ]
    task = Task.from_records(records, "which sum")
    logits = logits_of(model, [record["prompt"] for record in records], MASKS[0])[:, -1]
    wrong, right = ([logits[i, r["choices"][c][0]] for i, r in enumerate(records)] for c in (0, 1))
    np.testing.assert_array_equal(Experiment(model, task)(MASKS[0])[0], np.array(right) > np.array(wrong))


def test_means_of_answers_inside_a_sequence_are_those_of_answers_after_it(load_sorting):
    """What heads become is taken from the same tokens."""
    model = load_sorting("bridge")
    inside, after = (Experiment(model, sorted_lists(20, inside=each), ablation="mean") for each in (True, False))
    assert 0 < inside(MASKS).mean() < 1
    np.testing.assert_allclose(inside.logprob(MASKS), after.logprob(MASKS), atol=1e-4)


# Short contexts


@pytest.mark.parametrize("n_ctx", [1, 3])
def test_probes_fit_into_short_contexts(n_ctx):
    from transformer_lens.model_bridge import TransformerBridge

    shape = {"n_layers": 2, "n_heads": 2, "d_model": 8, "d_head": 4, "d_mlp": 8, "act_fn": "relu"}
    model = TransformerBridge.boot_native({**shape, "d_vocab": 5, "n_ctx": n_ctx, "normalization_type": "LN"})
    assert abilities(model).resume
    assert token_budget(model) > 0
    assert sample_logits(model).shape[1] == 5
    with pytest.warns(UserWarning, match="the same question has different answers"):
        task = Task.from_records([{"prompt": [1] * n_ctx, "target": [token]} for token in range(5)])
    assert Experiment(model, task).baseline().sum() == 1


# What is refused


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ({"prompt": [1, P + 1], "target": [1]}, f"token {P + 1} is none of those that the model reads, 0..{P}"),
        ({"prompt": [1], "target": [P]}, f"token {P} is none of those that the model answers with, 0..{P - 1}"),
        ({"prompt": [1, 2, 3, 4], "target": [1]}, "4 tokens do not fit into the model's context of 3"),
    ],
)
def test_tokens_that_a_model_does_not_know_or_hold_are_named_with_their_example(backend, record, fault):
    task = Task.from_records([*addition()[:2], record], "sums")
    with pytest.raises(ValueError, match=rf"task 'sums', example 2 \('\[1.*\): {fault}"):
        Experiment(adding_model(backend), task)


def test_a_text_task_needs_a_tokenizer_and_says_so_in_one_line(load_sorting):
    words = Task.from_records([{"prompt": "the cat", "target": " runs"}] * 2, "words")
    with pytest.raises(ValueError, match=r"^task 'words' is made of texts: the model has no tokenizer .*token ids$"):
        Experiment(load_sorting("bridge"), words)
    with pytest.raises(ValueError, match=r"^the model has no tokenizer"):
        attention(load_sorting("bridge"), ["the cat"], ["L0H0"])
    with pytest.raises(ValueError, match=r"^task 'sorting' can be scored but not written out: the model has no tok"):
        Experiment(load_sorting("bridge"), sorted_lists()).generate(MASKS[:1])
    with pytest.raises(ValueError, match="prepend_bos must be left out for prompts of token ids"):
        Experiment(load_sorting("bridge"), sorted_lists(), prepend_bos=True)


def test_what_reads_texts_does_not_apply_to_token_ids_nor_token_accuracy_to_texts():
    for change in ({"length_normalized": True}, {"chat": "on"}):
        with pytest.raises(ValueError, match=r"length_normalized applies to|chat must be off"):
            replace(adding(), **change)
    with pytest.raises(ValueError, match=r"accuracy 'token' is for completions over token ids.* of texts"):
        Task.from_records([{"prompt": "one", "target": " two three"}], accuracy="token")
    with pytest.raises(ValueError, match="task 'task' mixes texts and token ids"):
        Task.from_records([{"prompt": [1, 2], "target": [1]}, {"prompt": "1 2", "target": " 3"}])


def test_a_made_up_tokenizer_without_words_is_none():
    """transformers gives one to a folder without any: it would read every text as nothing, in silence."""
    inner = Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>"))
    hollow = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", unk_token="<s>")
    words = make_tokenizer()
    for tokenizer, expected in ((hollow, None), (None, None), (words, words)):
        assert tokenizer_of(SimpleNamespace(tokenizer=tokenizer)) is expected


# Splits and stores


def sequences_on_both_sides(records, n):
    finding, unseen = Task.from_records(records, "sequences").split(n, seed=1)
    assert min(len(finding), len(unseen)) > len(records) // 4
    a, b = ({e.prompt[:LENGTH] for e in side.examples} for side in (finding, unseen))
    with pytest.raises(ValueError, match="share no question"):
        finding.with_holdout(replace(finding, role="whole", held_out=None))
    return a & b


@pytest.mark.filterwarnings("ignore:task 'sequences'.*different answers")
def test_a_sequence_stays_on_one_side_of_a_split_whatever_is_asked_of_it():
    """With other targets or choices after it, and with and without places in it."""
    targets = [{"prompt": r["prompt"], "target": [digit]} for r in sorting(20) for digit in r["target"]]
    choices = [{**record, "choices": [record["target"], [DIGITS]], "answer": 0} for record in targets]
    for record in choices:
        del record["target"]
    placed = [{**record, "target": record["target"][:1], "positions": [LENGTH]} for record in sorting(20)]
    for records in (targets, choices, [*placed, *targets]):
        assert not sequences_on_both_sides(records, len(records) // 2)


def test_answers_one_by_one_stay_on_one_side_of_a_split_where_records_name_their_sequence():
    grown = [
        {"prompt": [*record["prompt"], *record["target"][:i]], "target": [answer], "sequence": number}
        for number, record in enumerate(sorting(20))
        for i, answer in enumerate(record["target"])
    ]
    unnamed = [{name: record[name] for name in ("prompt", "target")} for record in grown]
    assert sequences_on_both_sides(unnamed, 40)
    assert not sequences_on_both_sides(grown, 40)
    # One that is asked of two sequences holds these together.
    assert not sequences_on_both_sides([*grown, *unnamed], 80)


def test_unseen_examples_of_a_sequence_that_heads_are_found_on_are_refused():
    records = [{"prompt": [i, i], "target": [i], "sequence": i // 2} for i in range(4)]
    first, second = (Task.from_records(records[i::2], "pairs") for i in range(2))
    with pytest.raises(ValueError, match=r"share no sequence with task 'pairs'; 2 of 2 do"):
        first.with_holdout(second)


def test_stores_tell_places_apart_and_find_what_they_have(load_sorting, tmp_path):
    path, model = tmp_path / "run.sqlite", load_sorting("bridge")
    first = sorted_lists(10, inside=True)
    results = Experiment(model, first, store=path)(MASKS)
    again = Experiment(model, first, store=path)
    np.testing.assert_array_equal(again(MASKS), results)
    assert again.ran == 0
    moved = replace(
        first, examples=tuple(replace(e, positions=tuple(p - 1 for p in e.positions)) for e in first.examples)
    )
    # The share of right tokens is another score of the same observations.
    for other, ran in ((moved, 60), (replace(first, accuracy="token"), 0), (sorted_lists(10), 60)):
        experiment = Experiment(model, other, store=path)
        experiment(MASKS)
        assert experiment.ran == ran
    assert "[" in cs.Store.open(path).to_frame()["prompt"].iloc[0]


# Everything downstream


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(
            ("annealed", {"budget": 600, "n_bootstraps": 0}),
            ("chg", {"steps": 20, "batch_size": 8}),
            ("mediation", {"n_pairs": 4}),
        ),
        *(pytest.param(name, {"budget": 600}, marks=pytest.mark.slow) for name in ("css", "greedy", "one-shot")),
    ],
)
def test_methods_rank_the_heads_of_a_model_over_integers(load_sorting, method, options):
    task = sorted_lists(80, inside=True, accuracy="token").split(40)[0]
    found = cs.find_heads(load_sorting("bridge"), task, k=2, method=method, **options)
    assert np.isfinite(found.importance).all()
    assert np.abs(found.importance).max() > 0
    said = [note for note in found.notes if "control" in note]
    assert len(said) == 1
    assert said[0].startswith(NO_DEFAULTS) == (method == "annealed")


def test_heads_are_found_and_confirmed_without_a_tokenizer(backend):
    model, task = adding_model(backend), adding().split(32)[0]
    control = Task.from_records([{**record, "prompt": record["prompt"][::-1]} for record in addition()], "backwards")
    found = cs.find_heads(model, task, k=2, budget=600, n_bootstraps=0)
    proof = cs.confirm(model, task, found.top(2), n_random=3)
    assert [note.startswith(NO_DEFAULTS) for note in proof.notes if "control" in note] == [True]
    by_hand, _ = right_answers(model, task.held_out, found.grid.mask(proof.heads))
    assert proof.result.score == pytest.approx(by_hand.mean())
    beside = cs.confirm(model, task, found.top(2), controls=[control], n_random=3)
    assert beside.controls[0].task == "backwards"


def test_patterns_show_the_ids_where_there_are_no_words(load_sorting, backend):
    prompts = [example.prompt for example in sorted_lists(2).examples]
    shown = attention(load_sorting(backend), prompts, ["L0H0", "L1H2"])
    assert shown.prompts[0].prompt == str(list(prompts[0]))
    assert shown.prompts[0].tokens == tuple(map(str, prompts[0]))
    assert str(DIGITS) in cs.plot.show_attention(shown).html
    assert len(habits(load_sorting(backend), n=2)) == HEADS[0] * HEADS[1]


# The command line


@pytest.mark.slow
def test_the_command_finds_heads_of_a_file_of_token_ids(sorting_folder, tmp_path, capsys):
    task, out = tmp_path / "ids.jsonl", tmp_path / "found"
    task.write_text("".join(json.dumps(record) + "\n" for record in sorting(120, inside=True)), encoding="utf-8")
    command = ["find", "--model", str(sorting_folder), "--task", str(task), "--k", "2", "--budget", "600"]
    assert main([*command, "--task-option", "accuracy=token", "--no-curve", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count(NO_DEFAULTS) == 1
    assert "\nprompts are token ids, as they are given\n" in said
    result = json.loads((out / "result.json").read_text())
    assert len(result["heads"]) == 2
    kept = json.loads((out / "attention.json").read_text())["prompts"][0]
    assert kept["tokens"] == [str(token) for token in kept["ids"]]
