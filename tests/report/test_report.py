import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib import pyplot as plt

from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import prove
from cs_heads.analysis.failures import FailureModes, Share
from cs_heads.analysis.faithfulness import faithfulness
from cs_heads.analysis.losses import Loss, Specificity, TaskDrop
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.plot.head_markers import head_looks, same_looks
from cs_heads.ranking import HeadRanking
from cs_heads.report import Findings, html, write_report
from cs_heads.report.findings import check_folder, check_same
from cs_heads.report.findings_page import _answer
from cs_heads.report.heads import head_chips, heads_table
from cs_heads.simulate import planted_world
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted
from tests.plot.studies import (
    HOSTILE,
    made_attention,
    made_comparison,
    made_drops,
    made_proof,
    made_ranking,
    made_study,
)


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += f"{data} "

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(self.text.split())


def read(study, path) -> Page:
    html = write_report(study, path).read_text(encoding="utf-8")
    page = Page(html)
    page.html = html
    assert page.open == []
    return page


@pytest.fixture
def report(tmp_path):
    return lambda study: read(study, tmp_path / "report.html")


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Page:
    """The page of a study with everything in it."""
    plt.close("all")
    page = read(made_study(), tmp_path_factory.mktemp("report") / "report.html")
    assert plt.get_fignums() == [], "a report opens no window and leaves no figure"
    return page


def test_the_answer_comes_first(full):
    words = full.words
    order = [
        "localized",
        "L0H1",
        "Importance of every head",
        "score falls from 1.000 to 0.040",
        "what breaks",
        "What broke",
        "The heads",
        "Curves",
        "look at",
        "Cost",
    ]
    places = [words.index(part) for part in [*order, "How to reproduce", "Provenance"]]
    assert places == sorted(places)


def test_every_number_of_the_proof_is_told(full):
    words = full.words
    assert "capitals +0.960 +0.910 to +0.980 1.000 0.040" in words
    assert "code (control) unknown – 0.970 0.900" in words
    assert "capitals, 2 sets of random heads of the same layers +0.010 – 1.000 0.990" in words
    told = "L0H0 (alone: task 0.32 (+0.24 to +0.40), controls 0.30 (+0.20 to +0.40); most: succession)"
    assert f"Left out before the proof, whatever its verdict, as controls need these heads as well: {told}." in words
    assert "few heads above zero" in words


def test_cost_provenance_and_command_are_told(full):
    words = full.words
    assert "to find (annealed) 1,992 example-evaluations" in words
    assert "to confirm 1,200 example-evaluations" in words
    assert "2 forward passes of one prompt" in words
    assert "model.grid [3, 4]" in words
    assert "revision" not in words  # not known, so not told
    assert "cs-heads find --model tiny --task capitals" in words


def test_nothing_is_asked_of_the_network(full):
    page = full
    sources = [value for _, at in page.elements for name, value in at.items() if name in ("src", "href", "srcset")]
    assert all(source.startswith(("data:", "#part-")) for source in sources)
    assert not page.all("link")
    assert not re.search(r"@import|url\(|unpkg", page.html)
    [policy] = [at["content"] for at in page.all("meta") if at.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_the_texts_of_the_user_are_shown_as_texts(report):
    study = made_study(
        comparison=None,
        ranking=made_ranking(task=HOSTILE, model=HOSTILE),
        proof=made_proof(control=HOSTILE),
        attention=made_attention(HOSTILE),
        command=HOSTILE,
    )
    page = report(study)
    assert "alert(1)" in page.text
    assert not [at for at in page.all("img") if "onerror" in at]
    scripts = re.findall(r"<script>(.*?)</script>", page.html, flags=re.DOTALL)
    assert len(scripts) == 5
    assert [at["type"] for at in page.all("script") if "type" in at] == ["application/json"]
    assert not any(script.strip().startswith("alert") for script in scripts)


VERDICTS = {
    "specific": ("specific", "they are heads of this task. Whether that holds in other words was not measured."),
    "template-bound": ("localized", "they serve the wording of the task more than the skill."),
    "shared": (
        "shared",
        "they cannot be called heads of this task: the controls lose more than a third of",
    ),
    "localized": ("localized", "Whether other tasks do as well is not known: too few controls could tell"),
    "not localized": ("not", "the ranking is no evidence that the task rests on them."),
    "baseline too low": ("not", "The intact model does not do the task well enough for any ablation to show a drop."),
}


OWN, SAME, LESS = (Loss(loss, loss - 0.1, loss + 0.1) for loss in (0.96, 0.9, 0.1))
SHARED_WITH_ONE = Specificity(OWN, {"code": SAME, "copying": LESS})


@pytest.mark.parametrize("verdict", VERDICTS)
def test_each_verdict_is_told_in_words_too(verdict):
    """A reader given only the report can tell what it found."""
    findings = Findings(
        ranking=made_ranking(), proof=replace(made_proof(), verdict=verdict, specificity=SHARED_WITH_ONE), k=2
    )
    kind, headline, answer = _answer(findings)
    assert (kind, headline) == (VERDICTS[verdict][0], verdict)
    words = Page(answer).words
    assert [other for other, (_, said) in VERDICTS.items() if said in words] == [verdict]


def test_the_losses_that_a_verdict_rests_on_are_told(report):
    close = "the mean control loss may be above or below a third of the own loss"
    proof = replace(made_proof("shared"), specificity=SHARED_WITH_ONE, close_because=close, notes=("note of it",))
    words = report(Findings(ranking=made_ranking(), proof=proof, k=2)).words
    assert "shared (close)" in words
    assert f"close, since another verdict is compatible with the intervals: {close}" in words
    assert "the controls lose more than a third of what the task loses, on average, and code loses more" in words
    assert "mean of the controls that count +0.500 +0.429 to +0.571 – –" in words
    assert "largest of any control (here code) +0.900" in words
    assert "own minus mean of the controls +0.460 +0.338 to +0.582" in words
    assert "note of it" in words


def test_what_is_written_with_the_heads_off_stands_beside_what_the_intact_model_writes(report):
    none, all_ = ({"empty": Share(count, 20), "changed": Share(count, 20)} for count in (0, 20))
    written = {"intact": ("Paris", "Riga"), "t": ("", "Rome <b>")}
    prompts, right = ("Quiz:\nFrance is", "Latvia is"), ("Paris", "Riga")
    texts = FailureModes({"t": (Head(0, 1),)}, {"intact": none, "t": all_}, written, prompts, right, spent=40)
    words = report(Findings(ranking=made_ranking(), proof=made_proof(), texts=texts, k=2)).words
    assert "prompt right intact heads off France is Paris Paris (nothing) Latvia is Riga Riga Rome <b>" in words
    assert "clearly more with the heads off than of the intact model: empty 20, changed 20" in words
    assert "texts 40 example-evaluations" in words
    same = replace(texts, modes={"intact": none, "t": none})
    assert "No kind of failure is clearly more frequent" in report(Findings(ranking=made_ranking(), texts=same)).words


def test_one_control_that_loses_too_much_is_named_where_the_mean_is_little(report):
    losses = Specificity(OWN, {"code": SAME, **{name: Loss(0.0, -0.1, 0.1) for name in "abcd"}})
    proof = replace(made_proof("shared"), specificity=losses)
    words = report(Findings(ranking=made_ranking(), proof=proof, k=2)).words
    assert "heads of this task: code loses more than half of what the task loses." in words


def test_a_ranking_alone_is_no_proof(report):
    page = report(Findings(ranking=made_ranking(), k=2))
    assert "have not been confirmed on unseen examples: a ranking alone is no proof" in page.words
    assert "What broke" not in page.words
    assert len(page.all("img")) == 2


def test_heads_that_were_off_throughout_stand_with_the_answer(report):
    said = "Off throughout: L1H1. What is called intact is the model without them."
    ranking = replace(made_ranking(), off=(Head(1, 1),))
    words = report(Findings(ranking=ranking, proof=made_proof(), k=2)).words
    assert words.index("L0H1") < words.index(said) < words.index("On unseen examples")
    assert "Off throughout" not in report(Findings(ranking=made_ranking(), k=2)).words


def test_a_comparison_alone_is_led_by_the_method_whose_heads_take_the_most(report):
    page = report(Findings(comparison=made_comparison()))
    assert "Of 2 methods, the top 2 heads of greedy take the most from the task" in page.words
    assert "no control can tell what else they do" in page.words
    said = "The score falls from 0.900 to 0.300, by 0.600 (+0.520 to +0.680); random heads take 0.050."
    assert f"{said} greedy L0H1 L1H2 Copy names" in page.words
    assert "chg did not run: budget must be more" in page.words
    assert "greedy L0H1 L1H2 +0.600 +0.520 to +0.680 +0.010 63,100 1.5" in page.words
    assert "points" not in page.words.replace("endpoints", "")


@pytest.mark.parametrize(("drop", "leading"), [(0.6, "css, greedy"), (0.55, "greedy, css")])
def test_methods_that_the_interval_does_not_tell_apart_are_all_named(report, drop, leading):
    made = made_comparison()
    css = replace(made.methods["css"], curve=made_drops([0.3, drop, drop]))
    page = report(Findings(comparison=replace(made, methods={**made.methods, "css": css})))
    first, second = leading.split(", ")
    assert f"the top 2 heads of {first} take the most from the task" in page.words
    assert f"These examples cannot tell it apart from {second}." in page.words
    for one in (first, second):
        assert f"{one} L0H1 L1H2 Copy names" in page.words


def with_losses(own, controls) -> object:
    """The comparison with what the task and its control lose to the heads of each method, in shares above chance."""

    def drop(task, lost):
        return TaskDrop(task, 100, 0.0, 0.9, 0.9 * (1 - lost), (lost - 0.05, lost), loss_interval=(lost - 0.05, lost))

    made = made_comparison()
    methods = {
        name: replace(
            one,
            ranking=replace(one.ranking, notes=("rows are too few",)),
            curve=tuple(drop("capitals", own[name]) for _ in one.curve),
            control_drops={"code": drop("code", controls[name])},
        )
        for name, one in made.methods.items()
    }
    return replace(made, methods=methods)


def test_heads_that_every_task_needs_do_not_lead_a_comparison(report):
    compared = with_losses({"css": 0.8, "greedy": 0.95}, {"css": 0.1, "greedy": 0.9})
    assert compared.leading() == ("greedy",)
    assert compared.most_specific() == ("css",)
    words = report(Findings(comparison=compared)).words
    assert "the top 2 heads of css take the most from the task beyond what they take from its controls" in words
    assert "0.80 of the score above chance, of the controls 0.10 on average; difference 0.70 (" in words
    assert "The heads of greedy take more from the task (0.95), and the controls lose 0.90 with them" in words
    assert "cannot tell it apart" not in words
    assert "css: rows are too few greedy: rows are too few" in words
    assert re.search(r"css L0H1 L1H2 0\.80 0\.10 0\.70 \(", words)


def test_heads_carry_the_marker_they_have_in_the_pictures(full):
    shown = re.findall(r'<svg class="mark"[^>]*><path [^>]*fill="([^"]*)" d="([^"]*)"/></svg>', full.html)
    looks = head_looks(made_ranking().top(2)).values()
    assert [look.marker for look in looks] == ["s", "^"]
    marks = [html.mark(head) for head in made_ranking().top(2)]
    assert shown == 2 * [(mark["color"], mark["outline"]) for mark in marks]
    assert [mark["color"] for mark in marks] == [look.color for look in looks]
    heads = [Head(0, number) for number in range(12)]
    with same_looks(heads):
        assert len({html.mark(head)["outline"] for head in heads}) == 12


# Folders


PROOF = replace(made_proof(), provenance={"task": {"name": "capitals", "role": "confirming"}})


@pytest.fixture
def folder(tmp_path):
    """What find and compare write, by hand."""
    made_ranking().save(tmp_path / "ranking.json")
    record = {"heads": [{"head": "L0H1"}, {"head": "L1H2"}], "confirm": PROOF.to_dict(), "command": "cs-heads find"}
    (tmp_path / "result.json").write_text(json.dumps(record))
    made_attention().save(tmp_path / "attention.json")
    return tmp_path


def test_a_folder_is_read_as_the_study_it_holds(folder):
    study = Findings.load(folder)
    np.testing.assert_array_equal(study.ranking.importance, made_ranking().importance)
    assert (study.proof.to_dict(), study.command, study.k) == (PROOF.to_dict(), "cs-heads find", 2)
    assert study.attention.heads == made_attention().heads
    assert (study.task, study.model) == ("capitals", "tiny")
    assert study.comparison is None


def test_faithfulness_of_methods_stands_in_the_page_where_it_was_measured(report):
    rankings = {name: one.ranking for name, one in made_comparison().methods.items()}
    task = Planted(Grid(3, 4), {Head(0, 1): 0.5, Head(1, 2): 0.3})
    measured = faithfulness(None, task, rankings, n_random=2)
    page = report(Findings(comparison=replace(made_comparison(), faithfulness=measured)))
    assert "Faithfulness: are the first heads enough?" in page.words
    assert "By the score of the answers, the first heads of css, greedy are the most faithful (CPR" in page.words
    assert "Area under faithfulness (CPR, larger is better)" in page.words
    assert "Faithfulness" not in report(Findings(comparison=made_comparison())).words


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("result.json", None, "has no result.json or comparison.json"),
        ("ranking.json", None, "does not exist"),
        ("result.json", "[]", "holds no result"),
        ("attention.json", "{}", "is no saved attention"),
    ],
)
def test_a_folder_without_readable_results_is_refused(folder, name, text, message):
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        Findings.load(folder)


def test_a_folder_that_is_not_there_is_not_said_to_lack_a_file(tmp_path):
    with pytest.raises(ValueError, match="nowhere' does not exist: give what find, compare or atlas wrote"):
        Findings.load(tmp_path / "nowhere")


def test_results_at_hand_make_the_page_that_the_findings_make(tmp_path):
    world = planted_world("main", Grid(8, 8), seed=0)
    ranking = HeadRanking("css", np.linspace(1, 0, 64).reshape(8, 8), spent=0)
    proof = prove(world.unseen, ranking.top(5), controls=[world.control])
    told = write_report(ranking, tmp_path / "told.html", proof=proof)
    proved = ranking.proved(proof.heads)
    page = read(Findings(proved, proof=proof, k=len(proof.heads)), tmp_path / "as.html")
    assert Page(told.read_text(encoding="utf-8")).words == page.words
    assert proof.verdict in page.words
    of_others = prove(world.unseen, ranking.top(7)[2:])
    with pytest.raises(ValueError, match=r"proof must be of the first heads of the ranking, L0H0, L0H1.*it is of L0H2"):
        write_report(ranking, tmp_path / "others.html", proof=of_others)


# Several results in one folder, and folders of other commands


def test_results_of_different_models_or_tasks_do_not_go_into_one_report(folder):
    for change in ({"task": "sums"}, {"model": "another"}):
        with pytest.raises(ValueError, match=r"results of different (models|tasks) cannot go into one report: name '"):
            made_study(ranking=made_ranking(**change))
    for name, other in (("revision", "main"), ("dtype", "torch.bfloat16"), ("grid", [9, 9])):
        known = {"name": "tiny", "revision": "first", "dtype": "torch.float32", "grid": [2, 2]}
        check_same({"model": known}, {"model": dict(known)})
        with pytest.raises(ValueError, match=f"results of different models cannot go into one report: {name} "):
            check_same({"model": known}, {"model": {**known, name: other}})
    with pytest.raises(
        ValueError, match="results of different settings cannot go into one report: prepend_bos True and"
    ):
        check_same({"prepend_bos": True}, {"prepend_bos": False})
    origin = {"task": {"name": "sums", "role": "confirming"}, "model": {"name": "tiny"}}
    with pytest.raises(ValueError, match=r"out .* has a result\.json already: results of different tasks"):
        check_folder(folder, "result.json", origin)
    # Where a model lies is no part of what it is.
    assert made_study(ranking=made_ranking(model="/somewhere/tiny/")).model == "tiny"


def test_as_many_examples_of_one_side_must_be_the_same():
    def proof(**task):
        origin = {"task": {"name": "capitals", "role": "confirming", "n_examples": 100, **task}}
        return replace(made_proof(), provenance=origin)

    judged = {"task": {"name": "capitals", "role": "confirming", "n_examples": 100, "identity": "b"}}
    compared = replace(made_comparison(), provenance=judged)
    assert made_study(proof=proof(identity="b"), comparison=compared).proof.result.score == 0.04
    assert made_study(proof=proof(identity="c", n_examples=50), comparison=compared).proof.result.score == 0.04
    with pytest.raises(ValueError, match=r"results of different tasks .*: identity 'c' and 'b'"):
        made_study(proof=proof(identity="c"), comparison=compared)


def test_claimed_heads_beyond_the_first_k_stand_in_the_table(report):
    ranking = replace(made_ranking(), claims=(Head(0, 1), Head(2, 3)))
    assert ranking.order.index(Head(2, 3)) > 0
    words = report(Findings(ranking=ranking, k=1)).words
    assert "The first heads, and others that are claimed, the most important first." in words
    place = ranking.order.index(Head(2, 3)) + 1
    assert re.search(rf"L2H3 {place} -0.200 -0.300 to -0.100", words)
    assert "L2H3 -0.200 ✓ Copy names" in words, "a claimed head stands with the answer"


# What a reader can do with the page


def test_the_contents_lead_to_every_part(full):
    titles = re.findall(r'<h2 id="(part-\d+)">(.*?)</h2>', full.html)
    assert len(titles) == 9
    assert re.findall(r'<a href="#(part-\d+)">(.*?)</a>', full.html) == titles


def test_each_square_of_a_map_tells_the_figures_of_its_head(full):
    [told, *_] = re.findall(r'<script type="application/json">(.*?)</script>', full.html)
    texts = json.loads(told)
    assert len(texts) == 12
    shown = "L0H1\nrank 1\nimportance +0.500\ninterval +0.400 to +0.600\nz 10.0\nclaimed yes"
    assert texts[1] == shown
    assert texts[0].endswith("shared: controls need it too")
    [style] = [at["style"] for at in full.all("div") if at.get("class") == "cells"][:1]
    left, top, width, height = (float(number) for number in re.findall(r"([\d.]+)%", style))
    assert 0 < left < left + width < 100
    assert 0 < top < top + height < 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told, proof: proof.update(heads=["L99H1"]), "head L99H1 is not in the grid"),
        (lambda told, proof: proof.update(drop=0.123), "drop must be .*, by its other fields, got 0.123"),
        (lambda told, proof: told.update(heads=5), "heads of '.*result.json' must be a list, got 5"),
    ],
)
def test_impossible_numbers_in_a_folder_are_refused_by_name(folder, change, message):
    told = json.loads((folder / "result.json").read_text())
    change(told, told["confirm"])
    (folder / "result.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=message):
        Findings.load(folder)


# The curve


def test_the_curve_stands_after_the_pictures_and_says_how_many_heads_take_half(report, folder):
    grid = Grid(3, 4)
    task = Planted(grid, {Head(0, 1): 0.3, Head(1, 2): 0.3}, baseline=0.9)
    curve = measure_sparsity([Column("capitals", "own", (task,))], [Head(0, 1), Head(1, 2), Head(2, 3)], n_random=2)
    (folder / "curve.json").write_text(json.dumps(curve.to_dict()))
    study = replace(Findings.load(folder), seconds={"find": 3.25, "confirm": 1.0})
    page = report(study)
    assert "2 heads take half of what the score has above chance" in page.words
    assert page.words.index("what breaks") < page.words.index("how few heads it takes") < page.words.index("look at")
    assert "0.90, 0.60, 0.30, 0.30" in [at["alt"] for at in page.all("img")][3]
    assert f"curve of 0, 1, ... heads off {curve.spent:,} example-evaluations" in page.words
    assert "1,992 example-evaluations, 3.2 s" in page.words
    noted = replace(study, curve=replace(curve, notes=("most is 3, half of the heads",)))
    assert "most is 3, half of the heads" in report(noted).words
    short = replace(study, curve=measure_sparsity([Column("capitals", "own", (task,))], [Head(0, 1)]))
    assert "The first 1 heads take less than half" in report(short).words


def test_the_table_of_heads_has_the_order_of_map_and_chips():
    """The first by rank is chosen or clear, and need not be the most important."""
    ranking = HeadRanking("annealed", np.array([[0.2, 0.4, 0.1]]), spent=800, z=np.array([[9.0, 8.0, 1.0]]))
    for block in (heads_table(ranking, 2), head_chips(ranking, 2)):
        assert re.findall(r"L0H\d", Page(block).text)[:2] == ["L0H1", "L0H0"]
