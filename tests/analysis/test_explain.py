"""Head cards: known heads are named, by figures beside chance; of heads that do nothing nothing is said."""

import json
from html import escape
from importlib import import_module

import numpy as np
import pytest
from scipy.special import entr, expit
from transformer_lens.head_detector import detect_head

import cs_heads as cs
from cs_heads.analysis import HeadCards
from cs_heads.analysis.head_cards import Figure
from cs_heads.analysis.head_chance import bounds_of_others
from cs_heads.analysis.head_looks import EVERYWHERE, LOOKS, parts_of, tokens_looked_at, weights_everywhere
from cs_heads.analysis.head_words import head_in_words, together_in_words
from cs_heads.cli import main
from cs_heads.demo.planting import planted_heads
from cs_heads.lens.attention import attention_patterns, last_patterns
from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.circuits import Circuits
from cs_heads.tasks.worked_examples import Form
from cs_heads.units import Grid, Head
from tests.known_heads import before_forwards, own_answers
from tests.methods.planted import Planted
from tests.tiny import choice_records, make_tokenizer

A, B, C, FILLER = Head(0, 1), Head(1, 2), Head(2, 3), Head(3, 0)
QUIET = {"controls": None, "progress": False}


@pytest.fixture(scope="module")
def demo():
    return cs.load_model("demo", device="cpu"), cs.load_task("demo/capitals", n=60, seed=0)


@pytest.fixture(scope="module")
def capitals(demo):
    """The planted heads of the demo model, and one that the skill does not need."""
    return cs.explain(*demo, [*planted_heads("capitals"), Head(3, 5)], n=40, **QUIET)


@pytest.fixture(scope="module")
def task():
    """Choices whose answers a model of random weights does not know."""
    return cs.Task.from_records(choice_records(np.random.default_rng(0), 60)).split(30, seed=0)[0]


@pytest.fixture
def of_llama(load, folders, tmp_path):
    """Flags of a tiny model and of a file with what it says itself."""
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in own_answers(load("llama"), 60)), encoding="utf-8")
    return ["--model", str(folders("llama")), "--task", str(path), "--device", "cpu", "--n", "30", "--no-control"]


def test_planted_heads_write_against_the_shortcut_and_another_head_is_unclear(capitals):
    *planted, other = capitals.cards
    for card in planted:
        assert card["total"].clear
        assert card.words.startswith("Without it the answer loses ")
        assert card.demotes[0] == "Rome"
        assert "lowers 'Rome'" in card.words
        assert card["through others"].value == pytest.approx(card["total"].value - card["direct"].value)
        assert "nats for the answer; chance by 122 other heads: 0." in card.words
        assert card["Shapley value"].clear
        assert len(card.strip) == len(card.reads) == len(capitals.tokens)
    assert other.words.startswith("Unclear: without it the answer loses ")
    assert not any(figure.clear for figure in other.figures)
    assert capitals.words.startswith("Together they take 0.")
    assert "L3H5" not in map(str, capitals.least)


def test_cards_are_read_back_drawn_and_shown(capitals, tmp_path):
    capitals.save(tmp_path / "cards.json")
    assert HeadCards.load(tmp_path / "cards.json") == capitals
    assert {ax.get_title() for ax in capitals.plot().axes} == {"total effect", "off at one token, or span, alone", ""}
    shown = capitals._repr_html_()
    assert all(card.words.split(" (")[0] in shown for card in capitals.cards)
    assert shown.count("Reads what it writes from") == len(capitals.cards)
    assert f"least set: {', '.join(map(str, capitals.least))}</th>" in shown
    assert all(f"{pair.first} and {pair.second}, beyond their sum: {pair.kind}" in shown for pair in capitals.pairs)
    assert {pair.kind for pair in capitals.pairs} == {"overlap"}
    assert shown.count("raises most") == len(planted_heads("capitals")), "of heads that surely write"
    frame = capitals.to_frame()
    assert set(frame["head"]) == {*map(str, planted_heads("capitals")), "L3H5"}
    known = frame.dropna(subset="low")
    assert (known["low"] <= known["value"]).all()
    one_number = ("copying", "habit: ", "agreement: ")
    assert all(name.startswith(one_number) for name in frame[frame["low"].isna()]["name"])
    assert all(frame[name].dtype == float for name in ("value", "low", "controls", "written"))


def test_other_units_have_cards_of_what_means_something_for_them(demo):
    groups = cs.explain(*demo, ["L2KV3", "L3KV2"], units="kv", n=20, **QUIET)
    card = groups.cards[0]
    assert "nats (chance by random key/value groups of the same layers: " in card.words
    assert "lowers 'Rome'" in card.words
    assert {figure.name for figure in card.figures} >= {"total", "direct", "elsewhere", "Shapley value"}
    assert not any(figure.name.startswith(("looks", "habit", "copying")) for figure in card.figures)
    assert card["direct"].value + card["through others"].value == pytest.approx(card["total"].value)
    assert {ax.get_title() for ax in groups.plot().axes} == {"off at one token, or span, alone", ""}


def test_a_report_has_the_cards(capitals, tmp_path):
    importance = np.zeros((8, 16))
    importance[2, 6] = 0.5
    page = cs.write_report(cs.HeadRanking("css", importance, spent=0), tmp_path / "page.html", cards=capitals)
    text = page.read_text(encoding="utf-8")
    assert "What each head does" in text
    assert text.count(escape(capitals.cards[0].words.split(" (")[0])) == 2, "on the card, and where a reader points"


def test_a_shell_says_the_same(of_llama, tmp_path, capsys):
    given = ["explain", *of_llama, "--out", str(tmp_path / "out")]
    assert main([*given, "--heads", "L0H1", "L2H3", "--unseen", "20"]) == 0
    cards = HeadCards.load(tmp_path / "out" / "cards.json")
    said = capsys.readouterr().out
    assert all(f"{card.head}: {card.words}\n" in said for card in cards.cards)
    assert main(given) == 2
    assert "give the heads by --ranking FILE or by --heads L1H3 L1H4" in capsys.readouterr().err
    assert main([*given, "--heads", "L0H1", "L2H3", "--unseen", "20", "--dry-run"]) == 0
    most = int(capsys.readouterr().out.split("at most")[1].split()[0].replace(",", ""))
    assert cards.spent <= most
    assert main([*given, "--heads", "L99H0", "--dry-run"]) == 2
    assert "head L99H0 is not in the grid" in capsys.readouterr().err


def test_a_search_goes_on_to_say_what_its_heads_do(of_llama, tmp_path, capsys):
    given = ["find", *of_llama, "--method", "css", "--n-masks", "30", "--k", "2"]
    given += ["--no-curve", "--explain", "--out", str(tmp_path)]
    assert main([*given, "--dry-run"]) == 0
    assert "cards " in capsys.readouterr().out
    assert main(given) == 0
    proved = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["confirm"]["heads"]
    assert [str(card.head) for card in HeadCards.load(tmp_path / "cards.json").cards] == proved
    assert "What each head does" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_of_a_ranking_with_heads_off_throughout_nothing_is_said(load, task):
    ranking = cs.HeadRanking("css", np.zeros((3, 4)), spent=0, off=(Head(1, 1),))
    with pytest.raises(ValueError, match="heads must be found with no others off, got a ranking with L1H1 off"):
        cs.explain(load("llama"), task, ranking, **QUIET)
    for refuses in (cs.direct_effects, cs.interactions, cs.specificity, cs.sparsity_curve, cs.failures):
        with pytest.raises(ValueError, match="heads must be found with no others off"):
            refuses(load("llama"), task, ranking)


def test_a_shell_prices_no_cards_of_a_ranking_with_heads_off_throughout(tmp_path, said):
    cs.HeadRanking("css", np.zeros((3, 4)), spent=0, off=(Head(1, 1),)).save(tmp_path / "ranking.json")
    given = ["--model", "demo", "--task", "demo/capitals", "--ranking", tmp_path / "ranking.json"]
    assert "heads must be found with no others off, got a ranking with L1H1 off" in said("explain", *given, "--dry-run")
    assert "--explain goes without --off" in said("find", *given[:4], "--off", "L1H1", "--explain", "--dry-run")


def test_heads_that_take_nothing_beyond_chance_have_no_pairs_and_no_least_set(load, task):
    cards = cs.explain(load("llama"), task, ["L0H1", "L2H3"], n=30, **QUIET)
    assert cards.words.endswith("nothing beyond chance.")
    assert (cards.pairs, cards.least) == ((), ())


@pytest.mark.lens
def test_what_all_tokens_look_at_is_what_transformer_lens_detects(load, backend):
    model, row = load("llama", backend), (1, 4, 5, 4, 7, 5, 4)
    [found] = last_patterns(model, [row], TokenBudget(64), lambda _: weights_everywhere(None, row, {}))[1]
    text = model.tokenizer.decode(row[1:])
    assert model.to_tokens(text)[0].tolist() == list(row)
    for place, name in ((0, "previous_token_head"), (2, "duplicate_token_head"), (3, "induction_head")):
        assert found[place] == pytest.approx(detect_head(model, text, name).flatten().numpy(), abs=1e-5)
    shares = attention_patterns(model, row, [*Grid.from_model(model)])
    assert found[-1] == pytest.approx(entr(shares).sum(axis=2).mean(axis=1), abs=1e-5)
    assert np.isnan(found[5:7]).all(), "a prompt without parts"


def test_the_question_and_worked_examples_and_their_answers_are_told_apart():
    tokenizer, form = make_tokenizer(), Form.of(["the dog ,", "the king ,"])
    example = cs.Example("big small\nthe cat , runs\nthe bird , sees\nthe dog ,", (" runs", " sees"), asked="the dog ,")
    ids = tuple(tokenizer(example.prompt)["input_ids"])
    parts = parts_of(tokenizer, example, ids, None, form)
    parts["rest"] = tokens_looked_at(tokenizer, ids, [], [], parts)["looks at worked examples"]
    assert {name: "".join("x" if each else "-" for each in where) for name, where in parts.items()} == {
        "question": "-----------xxx",
        "worked examples": "---xxxxxxxx---",
        "worked answers": "------x---x---",
        "rest": "---xxx-xxx----",
    }


def test_a_heading_is_no_worked_example():
    tokenizer, form = make_tokenizer(), Form.of(["the dog ,", "the king ,"])
    example = cs.Example("big small\nthe dog ,", (" runs",), asked="the dog ,")
    ids = tuple(tokenizer(example.prompt)["input_ids"])
    assert [*parts_of(tokenizer, example, ids, None, form)] == ["question"]
    assert Form.of(["the dog", "the king"]) is None


@pytest.mark.parametrize("skill", ["plural", "past", "upper_case", "capitals", "antonyms", "kinds", "sums"])
def test_of_everyday_skills_each_worked_example_has_its_answer(skill):
    shown, bare = (cs.load_task(f"everyday/{skill}", n=20, shots=shots).examples for shots in (4, 0))
    form = Form.of([example.asked for example in shown])
    assert all(len(form.worked.findall(example.prompt)) == 4 for example in shown)
    assert not any(form.worked.search(example.prompt) for example in bare)


def test_what_is_written_stands_beside_what_is_looked_at(demo, capitals):
    [card, *_] = capitals.cards
    assert card["writes"].clear
    frame = cs.direct_effects(*demo, [card.head], n=40).by_source()
    from_first = frame[frame["position"] == 0]["writes"].sum() / frame["writes"].sum()
    assert card["looks at the first token"].written == pytest.approx(from_first, abs=1e-4)
    assert not any(np.isfinite(figure.written) for figure in capitals.cards[-1].figures)
    assert "of writes" in capitals._repr_html_()


def test_more_heads_than_six_have_cards_of_their_own_alone(load, task):
    heads = [Head(layer, head) for layer in (0, 1) for head in range(4)][:7]
    cards = cs.explain(load("llama"), task, heads, n=20, **QUIET)
    assert len(cards.cards) == 7
    assert (cards.words, cards.least) == ("", ())
    assert "what heads do together is measured of 6 at most, here are 7" in cards.notes


def test_a_few_answers_that_begin_alike_do_no_harm(load):
    records = choice_records(np.random.default_rng(0), 120)
    records[3::4] = [{**record, "choices": [" cat dog", " cat bird"], "answer": 0} for record in records[3::4]]
    task = cs.Task.from_records(records).split(60, seed=0)[0]
    cards = cs.explain(load("llama"), task, ["L0H1", "L2H3"], n=60, **QUIET)
    assert any("begin with the same token" in note for note in cards.notes)


@pytest.mark.slow
def test_of_random_heads_nothing_is_said_in_95_of_100_tries(load):
    said = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        model = load(["gpt2", "llama", "qwen2"][seed % 3])
        task = cs.Task.from_records(choice_records(rng, 60)).split(30, seed=0)[0]
        grid = Grid.from_model(model)
        heads = [grid.unit(int(place)) for place in rng.choice(grid.size, 2, replace=False)]
        cards = cs.explain(model, task, heads, n=30, seed=seed, **QUIET)
        nothing = cards.words.endswith("chance.")
        said += not nothing or any(not card.words.startswith("Unclear") for card in cards.cards)
    assert said <= 5


def test_where_other_units_run_out_nothing_is_chance(load, task):
    """Three MLP layers there are, and all are explained."""
    cards = cs.explain(load("llama"), task, ["L0MLP", "L1MLP", "L2MLP"], units="mlp", n=20, **QUIET)
    assert cards.words.endswith("of right answers: too few others tell what is chance.")
    assert (cards.pairs, cards.least) == ((), ())
    assert "there are no 3 other MLP layers" in cards.notes
    assert all("too few other MLP layers tell what is chance" in card.words for card in cards.cards)
    assert not any(figure.clear for card in cards.cards for figure in card.figures)


def test_every_wrong_answer_in_the_prompt_is_looked_at_on_the_task_and_on_its_controls(load):
    words, names = [" cat", " dog", " bird"], ("a", "king", "big", "small", "red", "one", "two")
    records = [
        {
            "prompt": f"the {one} the {other} the{words[i - 1]} and the{words[i]} and the{words[i - 2]} and the",
            "choices": words,
            "answer": i,
        }
        for one in names
        for other in names
        for i in range(3)
    ]
    kept = {"task": records[:70], "control": records[70:]}
    task, control = (cs.Task.from_records(each, name).split(25, seed=0)[0] for name, each in kept.items())
    cards = cs.explain(load("llama"), task, ["L0H1"], controls=[control], n=20, progress=False)
    figures = {figure.name: figure for figure in cards.cards[0].figures}
    right, wrong = (figures[f"looks at {what}"] for what in ("the right answer", "wrong answers"))
    assert 1.2 * right.value < wrong.value < 4 * right.value
    assert 1.2 * right.controls < wrong.controls < 4 * right.controls


def words(total: float, *others: Figure) -> str:
    """What is said of a head with a clear total effect, all of it at the last token and written by itself."""
    bounds = sorted((0.9 * total, 1.1 * total))
    clear = [Figure(name, total, *bounds, 0.3, clear=True) for name in ("total", "direct", "at the last token")]
    return head_in_words(
        [*clear, Figure("elsewhere", 0.0, 0.0, 0.0), *others], ["a"], ["b"], "random heads", others="9 other heads"
    )


def test_where_the_answer_gains_so_do_its_parts():
    assert "the answer gains 0.50 (0.45 to 0.55) nats" in words(-0.5)
    assert "all of it what the head writes itself (0.50), all of it at the last token (0.50)" in words(-0.5)


@pytest.mark.parametrize(("part", "said"), [(0.39, "most of it"), (0.401, "all of it"), (0.49, "all of it and more")])
def test_a_part_that_is_larger_than_the_whole_is_said_to_be(part, said):
    """Places are known of the first examples, which lose more."""
    values = {"total": 0.4, "direct": part, "at the last token": 0.8, "elsewhere": 0.05}
    figures = [Figure(name, value, 0.01, 1.0, 0.02, clear=name != "elsewhere") for name, value in values.items()]
    told = head_in_words(figures, [], [], "random heads", others="9 other heads", n_placed=30)
    assert f", {said} what the head writes itself ({part:.2f}), on the first 30 examples 0.85, most of it at" in told
    assert "most of it at the last token (0.80)." in told


def test_a_head_that_lowers_what_it_reads_is_said_to():
    lowers = Figure("copying", -0.9, np.nan, np.nan, 0.5, clear=True)
    assert "lowers what it reads (-0.90; chance by 9 other heads: 0.50 either way)" in words(0.9, lowers)


@pytest.mark.parametrize("name", [*LOOKS, *EVERYWHERE])
def test_each_look_has_words_of_its_own(name):
    look = Figure(name, 0.9, 0.8, 1.0, 0.3, clear=True)
    assert f"looks at {LOOKS.get(name, name.removeprefix('at every token: '))}" in words(0.9, look)


@pytest.mark.parametrize(
    ("drops", "groups", "said"),
    [
        ({C: 0.2}, {(A, B): 0.5}, "Beyond the sum of each, L0H1 and L1H2 (+0.50, +0.40 to +0.60) back each other up."),
        ({A: 0.3, B: 0.2, C: 0.2}, {}, ""),
    ],
)
def test_fillers_and_backups_are_named_with_intervals(drops, groups, said):
    found = cs.interactions(None, Planted(Grid(4, 4), drops, groups=groups), [A, B, C, FILLER])
    words = together_in_words(found, 0.1)
    assert "(Shapley value): L3H0 (0.00, -0.06 to 0.06)." in words
    assert words.endswith(said or "to 0.06).")
    assert words.startswith("Together they take 0.70 (0.61 to 0.79) of right answers")
    assert "; L0H1, L1H2, L2H3 do at least nine tenths of that: 0.70 (0.61 to 0.79)." in words


def test_what_heads_take_together_is_compared_with_20_sets_of_as_many(load, task, monkeypatch):
    drawn = []
    module = import_module("cs_heads.analysis.explain")
    plain = module.measured
    monkeypatch.setattr(
        module, "measured", lambda experiment, masks, at: drawn.append(masks) or plain(experiment, masks, at)
    )
    cs.explain(load("llama"), task, ["L0H1", "L1H0", "L2H3"], n=20, **QUIET)
    assert [len(np.unique(masks, axis=0)) for masks in drawn] == [20]
    assert (drawn[0].sum(axis=(1, 2)) == 3).all()


def test_bounds_hold_for_all_figures_and_heads_together():
    """Figures of one head go together in part; few of them have heavy tails."""
    rng, n, k = np.random.default_rng(0), 265, 5
    said = 0
    for _ in range(200):
        normal = rng.normal(size=(20, n + k)) + rng.normal(size=n + k)
        shares = expit(normal * rng.uniform(0.5, 2, (20, 1)) - 2)
        figures = {
            "writes": np.exp(2 * rng.normal(size=n + k)),
            **{str(place): row for place, row in enumerate(shares)},
        }
        bounds = bounds_of_others({name: each[k:] for name, each in figures.items()}, {}, 0.05 / k)
        said += any((each[:k] > bounds[name]).any() for name, each in figures.items())
    assert 0 < said <= 16


def test_of_few_other_heads_the_farthest_of_all_is_the_bound():
    others = {"writes": np.array([0.1, 0.5, 0.2]), "copying": np.array([0.2, 0.3, 0.6])}
    assert bounds_of_others(others, {"copying": 0.7}, 0.01) == pytest.approx({"writes": 0.5, "copying": 0.7})


def test_the_prompt_shown_is_one_of_middle_length_on_which_the_heads_do_what_they_do_on_average(load, task):
    heads = ["L0H1", "L2H3"]
    cards, effects = (
        cs.explain(load("llama"), task, heads, n=30, **QUIET),
        cs.direct_effects(load("llama"), task, heads),
    )
    lengths = [len(row) for row in effects.prompts]
    shortest, longest = np.quantile(lengths, (0.25, 0.75))
    assert min(lengths) < shortest <= longest < max(lengths)
    far = np.abs(effects.total - effects.total.mean(axis=0)).sum(axis=1)
    nearest = min((row for row, n in enumerate(lengths) if shortest <= n <= longest), key=far.__getitem__)
    assert cards.tokens == effects.texts[nearest]


def test_every_forward_of_a_prompt_is_counted(load, task):
    """Of seven heads, so with no subsets of them; random tokens are longer than prompts, others are single."""
    heads, rows = [Head(layer, head) for layer in (0, 1) for head in range(4)][:7], list[int]()
    control = cs.Task.from_records(choice_records(np.random.default_rng(9), 60), "other").split(30, seed=0)[0]
    cs.direct_effects(load("llama"), task, heads)  # tries what the model allows
    with before_forwards(load("llama"), lambda tokens: rows.append(len(tokens) * (1 < tokens.shape[1] < 40))):
        cards = cs.explain(load("llama"), task, heads, controls=[control], n=20, progress=False)
    assert cards.spent == sum(rows)


def test_tokens_by_themselves_agree_with_a_task_or_do_not():
    rng = np.random.default_rng(0)
    z, matches, rows = (
        rng.normal(size=(1, 6, 4)),
        rng.normal(size=(1, 6, 6)),
        rng.permuted(np.tile(range(6), (30, 1)), axis=1),
    )
    circuits = Circuits(tuple(range(6)), z, np.zeros((1, 2, 2)), matches, np.zeros((1, 1)))
    scores = np.stack([np.exp(matches[0, row[-1], row]) for row in rows])
    patterns = scores / scores.sum(axis=1, keepdims=True)
    made = np.stack([pattern @ z[0, row] for pattern, row in zip(patterns, rows, strict=True)])
    assert circuits.agreement(0, rows.tolist(), [*patterns], made) == pytest.approx((1, 1))
    written, looked = circuits.agreement(0, rows.tolist(), [*rng.permutation(patterns)], rng.normal(size=made.shape))
    assert abs(written) < 0.4
    assert abs(looked) < 0.4
    assert np.isnan(circuits.agreement(0, [(0, 7)], [*patterns], made)).all()


@pytest.mark.parametrize(("found", "shown"), [((0.9, 0.2), (True, False)), ((0.4, 0.6), (False, True))])
def test_pairs_of_words_are_of_heads_that_write_and_where_single_tokens_agree(demo, monkeypatch, found, shown):
    monkeypatch.setattr(Circuits, "agreement", lambda *_: found)
    writer, _, other = cs.explain(*demo, [*planted_heads("capitals")[:2], Head(3, 5)], n=30, **QUIET).cards
    assert (writer["direct"].clear, other["direct"].clear) == (True, False)
    assert (bool(writer.moves), bool(writer.matches)) == shown
    assert (other.moves, other.matches) == ((), ())
    for card in (writer, other):
        assert (card["agreement: OV circuit"].value, card["agreement: QK circuit"].value) == found
        assert ("copying" in {figure.name for figure in card.figures}) == shown[0]
