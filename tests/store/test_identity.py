"""What can change a number is part of its key; what cannot is not."""

import inspect
import json
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest

from cs_heads import Example, Experiment, Store, Task, load_model, methods
from cs_heads.lens import settings_of
from cs_heads.store import kept_work
from cs_heads.store.kept_work import KeptWork
from cs_heads.tasks.pairs import PromptPair
from tests.conftest import BACKENDS
from tests.known_heads import own_answers
from tests.on_model import on_model
from tests.scores import Alike
from tests.tiny import choice_task, completion_task, save_model, skip_unless_loaded, some_masks

MASKS = some_masks(3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


# Fields that a file has one value of


def test_cache_key_includes_the_ablation(load, path):
    """A result under one ablation never answers for another: not in the file, nor in its key."""
    Experiment(load("llama"), completion_task(6), store=path)(MASKS)
    with pytest.raises(ValueError, match="ablation is 'zero' there and 'mean' here"):
        Experiment(load("llama"), completion_task(6), store=path, ablation="mean")
    measured = {
        ablation: Experiment(
            load("llama"), completion_task(6), store=path.with_name(f"{ablation}.sqlite"), ablation=ablation
        ).logprob(MASKS)
        for ablation in ("zero", "mean")
    }
    assert not np.allclose(measured["zero"], measured["mean"])


def test_what_a_head_is_set_to_comes_from_the_whole_task(load, path):
    """Under mean ablation the same example in another task has another number, under zero ablation it has not."""
    for ablation, ran in (("mean", 9 + 3), ("zero", 0)):
        store = path.with_name(f"{ablation}.sqlite")
        Experiment(load("llama"), completion_task(6), ablation=ablation, store=store)(MASKS)
        part = Experiment(load("llama"), completion_task(6).take(3), ablation=ablation, store=store)
        part(MASKS)
        assert part.ran == ran


def another(what, load, tmp_path):
    """A model or a setting that differs in one thing, and how the refusal says so."""
    folder = save_model("llama", tmp_path / "other", seed=0)
    if what == "weight":
        model = load_model(folder, device="cpu")
        model.cfg.model_name = load("llama").cfg.model_name
        next(model.parameters()).data[0, 0] += 1e-3
        return {"model": model}, "weights is '[0-9a-f]{16}' there and '[0-9a-f]{16}' here"
    if what == "dtype":
        model = load_model(folder, device="cpu", dtype="bfloat16")
        model.cfg.model_name = load("llama").cfg.model_name
        return {"model": model}, "dtype is 'float32' there and 'bfloat16' here"
    if what == "name":
        return {"model": load_model(folder, device="cpu")}, "model is '.*' there and 'other' here"
    if what == "class":
        return {"model": load("llama", "hooked")}, "class is 'TransformerBridge' there and 'HookedTransformer' here"
    if what == "grid":
        return {"model": load("gpt2")}, "model is '.*' there and '.*' here"
    there, here = CHANGED[what]
    return {what: here}, f"{what} is {there!r} there and {here!r} here"


CHANGED = {"units": ("heads", "kv"), "positions": ("all", "last"), "prepend_bos": (True, False)}
STUDIES = ["weight", "dtype", "name", "grid", *CHANGED, *(["class"] if len(BACKENDS) > 1 else [])]


@pytest.mark.parametrize("what", STUDIES)
def test_another_study_is_refused_and_the_difference_named(load, path, tmp_path, what):
    Experiment(load("llama"), completion_task(6), store=path)(MASKS)
    given, said = another(what, load, tmp_path)
    said = rf"run\.sqlite' is of another study: {said}; give this study a file of its own"
    with pytest.raises(ValueError, match=said):
        Experiment(given.pop("model", load("llama")), completion_task(6), store=path, **given)


def test_what_the_tokenizer_prepends_by_itself_is_told_and_is_the_study_of_one_who_says_so(load, path):
    by_itself = Experiment(load("llama"), completion_task(6), store=path)
    by_itself(MASKS)
    asked = Experiment(load("llama"), completion_task(6), store=path, prepend_bos=True)
    asked(MASKS)
    assert (by_itself.ran, asked.ran) == (asked.spent, 0)
    for experiment in (by_itself, asked):
        assert experiment.provenance()["prepend_bos"] is True
        assert experiment.store.study["prepend_bos"] is True


def test_the_same_weights_in_another_place_are_the_same_study(load, path, tmp_path):
    """A folder may be moved between machines; name and weights tell the model."""
    Experiment(load("llama"), completion_task(6), store=path)(MASKS)
    moved = load_model(save_model("llama", tmp_path / load("llama").cfg.model_name.rsplit("/", 1)[-1]), device="cpu")
    again = Experiment(moved, completion_task(6), store=path)
    again(MASKS)
    assert again.ran == 0


def changed_config(folder, **fields):
    """The same weights with other settings."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


SETTINGS = {
    "rms_norm_eps": 0.5,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
}


@pytest.mark.parametrize("field", SETTINGS)
def test_the_same_weights_under_other_settings_are_another_study(backend, tmp_path, field):
    """Weights, name and dtype are the same; what is made of them is not."""
    plain = load_model(save_model("llama", tmp_path / "plain" / "tiny"), device="cpu", backend=backend)
    folder = changed_config(save_model("llama", tmp_path / "other" / "tiny"), **{field: SETTINGS[field]})
    other = load_model(folder, device="cpu", backend=backend)
    before = Experiment(plain, completion_task(6), store=tmp_path / "run.sqlite").logprob(MASKS)
    assert not np.allclose(Experiment(other, completion_task(6)).logprob(MASKS), before, atol=1e-4)
    with pytest.raises(ValueError, match=r"is of another study: settings\.\w+(\.\w+)* is .* there and .* here"):
        Experiment(other, completion_task(6), store=tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    "architecture", ["llama", *(pytest.param(a, marks=pytest.mark.slow) for a in ("gpt2", "gemma2"))]
)
def test_the_same_model_loaded_again_has_the_same_settings(backend, tmp_path, architecture):
    """Also after it has run, and from another folder; they are JSON as they stand."""
    skip_unless_loaded(architecture, backend)
    folders = [save_model(architecture, tmp_path / name / "tiny") for name in ("one", "two")]
    first, again = (load_model(folder, device="cpu", backend=backend) for folder in folders)
    before = settings_of(first)
    Experiment(first, completion_task(6))(MASKS)
    assert settings_of(first) == settings_of(again) == before == json.loads(json.dumps(before))


def test_a_rotary_table_that_was_changed_is_another_study(backend, tmp_path):
    model = load_model(save_model("llama", tmp_path / "tiny"), device="cpu", backend=backend)
    before = settings_of(model)
    tables = [b for name, b in model.named_buffers() if name.rpartition(".")[2] in ("inv_freq", "rotary_sin")]
    tables[0].mul_(1.1)
    after = settings_of(model)
    assert after.pop("buffers") != before.pop("buffers")
    assert after == before


# Fields in the key of an observation


def first(task, **changes):
    """The task with its first example changed."""
    return replace(task, examples=(replace(task.examples[0], **changes), *task.examples[1:]))


def with_prompts(task):
    """Another prompt before each wrong choice of the first example."""
    one = task.examples[0]
    return first(task, prompts=tuple(one.prompt if i == one.answer else "the dog sees" for i in range(3)))


def as_completion(task):
    """The right choice alone."""
    examples = tuple(replace(example, continuations=(example.target,), answer=0) for example in task.examples)
    return replace(task, kind="completion", examples=examples)


def unseen_beside(task):
    """Other questions, made of those of the task."""
    others = tuple(replace(example, prompt=f"{example.prompt} and") for example in task.examples)
    return replace(task, examples=others, role="confirming")


CHANGES = {
    "prompt": (lambda t: first(t, prompt="the dog sees"), 1),
    "prompts": (with_prompts, 1),
    "continuations": (lambda t: first(t, continuations=t.examples[0].continuations[::-1]), 1),
    "answer": (lambda t: first(t, answer=(t.examples[0].answer + 1) % 3), 0),
    "reference": (lambda t: first(t, reference="what a scorer reads"), 0),
    "length_normalized": (lambda t: replace(t, length_normalized=True), 0),
    "scorer": (lambda t: replace(t, scorer=Alike(0.5)), 0),
    "kind": (as_completion, 6),
    "examples": (lambda t: replace(t, examples=t.examples[::-1]), 0),
    "sequence": (
        lambda t: replace(t, examples=tuple(replace(e, sequence=str(i)) for i, e in enumerate(t.examples))),
        0,
    ),
    "asked": (lambda t: replace(t, examples=tuple(replace(e, asked=f"?{i}") for i, e in enumerate(t.examples))), 0),
    "name": (lambda t: replace(t, name="another name"), 0),
    "too_long": (lambda t: replace(t, too_long="truncate"), 0),
    "matched": (lambda t: replace(t, matched=True), 0),
    "role": (lambda t: replace(t, role="confirming"), 0),
    "held_out": (lambda t: replace(t, role="finding", held_out=unseen_beside(t)), 0),
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_a_task_measures_what_it_changes_and_nothing_else(load, path, field):
    change, n_examples = CHANGES[field]
    Experiment(load("llama"), choice_task(6), store=path)(MASKS)
    changed = Experiment(load("llama"), change(choice_task(6)), store=path)
    measured = changed.logprob(MASKS)
    assert changed.ran == 3 * n_examples
    np.testing.assert_allclose(measured, Experiment(load("llama"), change(choice_task(6))).logprob(MASKS), atol=1e-5)


def test_a_scorer_edited_between_two_runs_gives_the_new_score_with_no_forward_run(load, path):
    for score, ran in ((0.25, 18), (0.5, 0), (None, 0)):
        scorer = None if score is None else Alike(score)
        experiment = Experiment(load("llama"), replace(choice_task(6), scorer=scorer), store=path)
        expected = Experiment(load("llama"), choice_task(6))(MASKS) if score is None else np.full((3, 6), score)
        np.testing.assert_array_equal(experiment(MASKS), expected)
        assert experiment.ran == ran


def test_every_field_of_tasks_and_examples_is_tried():
    # Texts in test_store.py, chat templates in test_chat.py, answers inside a sequence in test_token_ids.py.
    tried = {*CHANGES, "max_new_tokens", "stop", "chat", "accuracy", "positions"}
    assert tried == {field.name for kind in (Task, Example) for field in fields(kind)}


@pytest.mark.parametrize("runtime", [{"batch_tokens": 40}, {"progress": False}])
def test_what_is_runtime_changes_no_key(load, path, runtime):
    first = Experiment(load("llama"), completion_task(6), store=path)
    first(MASKS)
    again = Experiment(load("llama"), completion_task(6), store=path, **runtime)
    np.testing.assert_array_equal(again.logprob(MASKS), first.logprob(MASKS))
    assert again.ran == 0


# Fields in the key of what is kept beside results


FIT = {"n_seeds": 1, "steps": 22, "batch_size": 2, "strength": 0.1, "max_norm": 1.0, "start_inside": False, "seed": 0}
SEARCHES = {
    methods.fit_gates: FIT,
    methods.contrastive_gating: {**FIT, "forget": 1},
    methods.gradient_importance: {},
    methods.mediation: {"n_pairs": 3},
}
# What says which masks and examples are asked for is in the key with these.
DESIGN = {
    methods.gradient_importance: {"budget", "seed", "signed", "controls"},
    methods.mediation: {"budget", "seed", "n_pairs"},
}
# The seed of its examples stands for a task.
OTHERS = {"task": 2, "n_seeds": 2, "steps": 21, "batch_size": 3, "strength": 0.2, "seed": 1, "forget": 3}
OTHERS |= {"max_norm": 0.5, "start_inside": True}
# For 20 of the 22 steps.
BUDGET = {methods.fit_gates: 24 + 20 * 12, methods.contrastive_gating: 24 + 20 * 8}


@pytest.mark.parametrize(
    "search",
    [
        pytest.param(each, marks=() if each in (methods.fit_gates, methods.gradient_importance) else pytest.mark.slow)
        for each in SEARCHES
    ],
    ids=lambda search: search.__name__,
)
def test_every_argument_of_a_search_is_in_the_key_of_what_it_keeps(load_known, path, tmp_path, monkeypatch, search):
    """Another value is a piece of work of its own; the same values are the same. A new argument must be declared."""
    save = KeptWork.save

    def begun(self, phase, state):
        save(self, phase, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(KeptWork, "save", begun)
    monkeypatch.setattr(kept_work, "_EVERY", 0.0)

    def run(**changes):
        given = {"model": load_known(), "task": 0, "store": path, **SEARCHES[search], **changes}
        for name in {"task", "forget"} & given.keys():
            given[name] = Task.from_records(own_answers(load_known(), 24, seed=given[name]), "own answers")
        with suppress(KeyboardInterrupt):
            on_model(search)(**given)
        return sum(Store.open(path).contents().kept.values())

    assert run() == run() == 1
    others = {**OTHERS, "budget": BUDGET.get(search)}
    identity = {*inspect.signature(search).parameters} - {"experiment"} - DESIGN.get(search, set()) | {"task"}
    for kept, field in enumerate(sorted(identity), start=2):
        assert run(**{field: others[field]}) == kept, field
    folder = save_model("llama", tmp_path / load_known().cfg.model_name.rsplit("/", 1)[-1])
    with pytest.raises(ValueError, match="is of another study: weights is "):
        run(model=load_model(folder, device="cpu"))


def test_what_is_carried_over_is_in_the_key_of_effects(load, path):
    """Each pair's own z, or the mean of all."""
    store = Experiment(load("llama"), completion_task(6), store=path).store
    pairs = [PromptPair("the cat sees", "the dog sees", " bird"), PromptPair("one two", "a king", " three")]
    for average_source in (False, True):
        found = methods.indirect_effects(load("llama"), pairs, average_source=average_source, store=path)
        expected = methods.indirect_effects(load("llama"), pairs, average_source=average_source)
        np.testing.assert_array_equal(found.effects, expected.effects)
    assert store.contents().kept == {"mediation": 2}
