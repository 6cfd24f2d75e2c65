"""Causal head gating on a tiny model, and two word tasks in two formats."""

import json
from itertools import pairwise

import pytest

from cs_heads.reproduce import estimate, published, reproduce
from cs_heads.reproduce import gating as steps
from cs_heads.reproduce.gating import _mediation, instructed
from cs_heads.reproduce.run import steps_of
from cs_heads.tasks import Task, load_task
from cs_heads.tasks.function_vectors import INSTRUCTIONS
from tests.reproduce.conftest import TINY, WORDS, table
from tests.tiny import WORDS as WORDLIST


@pytest.mark.slow
def test_every_step_of_gating_that_its_tasks_allow_runs(study):
    one = study("chg", ["commonsense_qa", "openmathinstruct2"])
    assert set(reproduce(one)) == {"mediating", "contrasts", "rules"}
    assert (one.out / "figure-2-common-sense.png").is_file()
    shares = table(one, "table-2").set_index(["fit", "heads"])
    known = published.GATED["math", "any"][0]
    assert shares.loc[("math", "any"), f"facilitation, published {published.GATED_MODELS[0]}"] == known
    for name in ("table-1-math", "figure-1b-math", "figure-2-math", "figure-3a-math", "seeds"):
        assert len(table(one, name))


def test_heads_that_mediate_and_contrasts_are_made_of_two_word_tasks(study, rows):
    one = study("chg", ["openmathinstruct2", *WORDS])
    said = estimate(one, steps_of("chg", ["mediating", "contrasts"]))
    left_out = reproduce(one, ["mediating", "contrasts"])
    figure = table(one, "figure-4").set_index(["task", "mediate"])
    assert (figure["pairs"] == TINY.n_pairs).all()
    assert {*figure.index} == {(name, by) for name in WORDS for by in ("3 sigmas", "significant")}
    for name, by in figure.index:
        heads = table(one, f"figure-4-{name.rpartition('/')[2]}")
        chosen = heads["significant"] if by == "significant" else heads["sigmas"] >= 3
        assert figure.loc[(name, by), "mediating"] == chosen.sum()
        # Where no test can be made it is said why.
        assert figure["t"].isna()[name, by] == (f"test of {name}, {by}" in left_out)
        assert (one.out / f"figure-4-{name.rpartition('/')[2]}.png").is_file()
    held_out = table(one, "figure-5")
    assert set(held_out["held_out"]) == {"antonym", "present-past"}
    assert set(held_out["measured"]) == {"shots", "instruction"}
    # The model prefers the answer in both formats, so only the gates break it.
    assert (held_out["baseline"] == 1.0).all()
    assert 0 < sum(rows) <= said["example-evaluations"].sum()


@pytest.mark.slow
def test_contrasts_cut_short_go_on_from_the_fits_there_are(study, rows):
    one = study("chg", ["openmathinstruct2", *WORDS])
    reproduce(one, ["contrasts"])
    whole = sum(rows)
    (one.out / "figure-5.csv").unlink()
    rows.clear()
    reproduce(study("chg", ["openmathinstruct2", *WORDS]), ["contrasts"])
    assert sum(rows) < whole / 10


def test_answers_that_begin_with_the_same_token_are_no_pair(study):
    one = study("chg", ["openmathinstruct2"])
    answers = [" cat", " cat dog", " dog", " bird"]
    records = [{"prompt": f"the {word}", "target": answers[i % 4]} for i, word in enumerate(WORDLIST)]
    one.tasks["words"] = Task.from_records(records, "words").split(12)[0]
    one.out.mkdir()
    found = _mediation(one, "words")
    assert (found.unit, len(found.effects)) == ("nats", TINY.n_pairs)


def test_mediation_is_of_the_words_that_the_gates_were_fitted_to(study, tmp_path, monkeypatch):
    """Words of a user's file, and none of the list that comes with the library."""
    path = tmp_path / "present-past.json"
    words = [{"input": word, "output": other} for word, other in pairwise(WORDLIST)]
    path.write_text(json.dumps(words), encoding="utf-8")
    one = study("chg", ["openmathinstruct2"])
    one.tasks[WORDS[1]] = load_task(WORDS[1], data_files=str(path), few_shot=2)
    seen = []
    run = steps.indirect_effects

    def watched(model, pairs, **options):
        seen.extend(pairs)
        return run(model, pairs, **options)

    monkeypatch.setattr(steps, "indirect_effects", watched)
    one.out.mkdir()
    _mediation(one, WORDS[1])
    assert len(seen) == TINY.n_pairs
    used = {word for pair in seen for line in pair.clean.splitlines() for word in line.split()[1:]}
    fitted = {example.target.strip() for example in one.tasks[WORDS[1]].examples}
    assert used <= {*WORDLIST}
    assert {pair.target.strip() for pair in seen} <= fitted
    assert all(pair.clean.count("Q: ") == 3 for pair in seen)


def test_the_instruction_asks_for_the_same_word_as_the_examples(study):
    one = study("chg", ["openmathinstruct2", *WORDS])
    task = one.tasks[WORDS[1]]
    changed = instructed(task, "present-past").examples[0]
    shown, asked = (part.split("\nA:") for part in task.examples[0].prompt.removeprefix("Q: ").split("\n\nQ: "))
    worked = f"Word: {shown[0]}\nAnswer:{shown[1]}"
    assert changed.prompt == f"{INSTRUCTIONS['present-past']}\n{worked}\n\nWord: {asked[0]}\nAnswer:"
    assert changed.target == task.examples[0].target


def test_gates_are_counted_with_the_step_that_needs_them(study):
    one = study("chg", ["commonsense_qa", "openmathinstruct2"])
    alone = estimate(one, steps_of("chg", ["shares"]))
    both = estimate(one, steps_of("chg", ["kinds", "shares"]))
    fitted = 6 * TINY.n_seeds * TINY.steps * TINY.batch_size + 40
    assert [*alone["example-evaluations"]] == [fitted * len(one.tasks)]
    assert [*both["example-evaluations"]] == [fitted * len(one.tasks), 0]
