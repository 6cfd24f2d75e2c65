"""Head cards beside other ways to what they say: plain Hugging Face, another backend, heads that were planted."""

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.demo.planting import planted_heads, planted_universal_heads
from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.circuits import logits_written
from cs_heads.units import Grid, Head
from tests.lens.test_direct import difference
from tests.plain import units_replaced
from tests.tiny import N_HEADS, N_LAYERS, WORDS, choice_records, make_hf_model

ROOM = TokenBudget(512)
QUIET = {"controls": None, "progress": False}


def test_off_at_the_question_or_the_worked_examples_is_what_hugging_face_gives_with_it_off_there(load, backend):
    """Three words of heading, two worked examples of five words each, and a question of four."""
    rng, examples, verbs = np.random.default_rng(0), {}, (" runs", " sees", " sleeps")
    while len(examples) < 60:
        one, other, asked = (f"the {' '.join(rng.choice(WORDS[:18], 2))} ," for _ in range(3))
        first, second = rng.choice(verbs, 2)
        prompt = f"{' '.join(rng.choice(WORDS[:18], 3))}\n{one}{first}\n{other}{second}\n{asked}"
        examples[asked] = cs.Example(prompt, verbs, int(rng.integers(3)), asked=asked)
    task = cs.Task("worked", "choice", tuple(examples.values())).split(30, seed=0)[0]
    model, plain, heads = load("llama", backend), make_hf_model("llama"), ["L0H1", "L1H2"]
    effects = cs.direct_effects(model, task, heads, n=20)
    cards = cs.explain(model, task, heads, n=20, **QUIET).cards
    assert {len(row) for row in effects.prompts} == {18}
    rows = [*zip(effects.prompts, effects.answers, strict=True)]
    intact = [difference(plain, *each) for each in rows]
    for card in cards:
        mask = Grid(N_LAYERS, N_HEADS).mask([card.head])
        for name, where in (("at the question", range(14, 18)), ("at the worked examples", range(4, 14))):
            with units_replaced(plain, "heads", mask, where=where):
                off = [difference(plain, *each) for each in rows]
            assert card[name].value == pytest.approx(np.mean(intact) - np.mean(off), abs=1e-4)
            assert abs(card[name].value) > 1e-3


def test_cards_are_the_same_on_both_backends(load, backend):
    """Where there is one alone, they are the same a second time."""
    task = cs.Task.from_records(choice_records(np.random.default_rng(0), 60)).split(30, seed=0)[0]
    heads = [Head(0, 1), Head(2, 3)]
    found, bridge = (cs.explain(load("llama", each), task, heads, n=25, **QUIET) for each in (backend, "bridge"))
    for mine, other in zip(found.cards, bridge.cards, strict=True):
        assert [figure.name for figure in mine.figures] == [figure.name for figure in other.figures]
        for one, same in zip(mine.figures, other.figures, strict=True):
            for name in ("value", "low", "high", "chance"):
                assert getattr(one, name) == pytest.approx(getattr(same, name), abs=1e-4, nan_ok=True), one.name
        assert mine.strip == pytest.approx(other.strip, abs=1e-4)
        assert (mine.words, mine.promotes, mine.moves) == (other.words, other.promotes, other.moves)


def test_a_neuron_has_a_card_of_what_means_something_for_it():
    model, task = cs.load_model("demo", device="cpu"), cs.load_task("demo/capitals", n=60, seed=0)
    cards = cs.explain(model, task, ["L6N207"], units="neurons", n=20, **QUIET)
    [card] = cards.cards
    assert card["total"].clear
    assert "nats (chance by random neurons of the same layers: " in card.words
    assert {figure.name for figure in card.figures} >= {"total", "direct", "elsewhere", "Shapley value"}
    assert not any(figure.name.startswith(("looks", "habit", "copying")) for figure in card.figures)
    assert card["direct"].value + card["through others"].value == pytest.approx(card["total"].value)


def test_a_head_that_writes_he_or_she_raises_she_after_names_of_girls(real):
    model = cs.load_model(real / "models" / "stories260K", device="cpu")
    task = cs.load_task("everyday/he_she")
    [card] = cs.explain(model, task, ["L4H2"], n=60, **QUIET).cards
    assert card["total"].clear
    assert card["writes"].clear
    assert card["writes"].percentile > 0.95
    # The mean of both names neither.
    assert "it writes toward the right answer, by tokens that differ from prompt to prompt (" in card.words.lower()
    # What it writes after names of girls, and what after those of boys.
    effects = cs.direct_effects(model, task, ["L4H2"], n=60)
    first = np.array(model.tokenizer.convert_ids_to_tokens(effects.answers[:, 0].tolist()))
    he, she = (
        logits_written(model, [effects.prompts[i] for i in np.flatnonzero(first == word)], [Head(4, 2)], ROOM)[1][0]
        for word in ("▁he", "▁she")
    )
    most = model.tokenizer.convert_ids_to_tokens(np.argsort(she - he)[::-1][:4].tolist())
    assert {"▁she", "▁She", "▁her"} <= {*most}


@pytest.mark.slow
@pytest.mark.parametrize("skill", ["capitals", "agreement"])
def test_all_planted_heads_have_a_clear_total_and_of_sets_of_five_others_nothing_is_said(skill):
    model, own = cs.load_model("demo", device="cpu"), planted_heads(skill)
    cards = cs.explain(model, cs.load_task(f"demo/{skill}", n=60, seed=0), own, n=30, **QUIET)
    assert all(card["total"].clear for card in cards.cards)
    assert all(card.words.startswith("Without it the answer loses ") for card in cards.cards)
    grid, said = Grid.from_model(model), []
    others = [head for head in grid.units(np.ones(grid.shape, bool)) if head not in (*own, *planted_universal_heads())]
    for seed in range(50):
        chosen = [others[place] for place in np.random.default_rng(seed).choice(len(others), 5, replace=False)]
        cards = cs.explain(model, cs.load_task(f"demo/{skill}", n=60, seed=seed), chosen, n=20, seed=seed, **QUIET)
        unclear = all(card.words.startswith("Unclear") for card in cards.cards)
        said += [] if unclear and cards.words.endswith("chance.") else [cards]
    assert len(said) <= 2, said
