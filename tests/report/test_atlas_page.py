"""The page of an atlas."""

import json
import re
from dataclasses import replace

import pytest
from matplotlib import pyplot as plt

import cs_heads as cs
from cs_heads.plot.skills import skill_looks
from cs_heads.report import write_report
from tests.plot.studies import made_proof, made_ranking
from tests.report.atlases import OWN, made_atlas
from tests.report.test_report import Page, read


def told_atlas():
    """As the command line makes it."""
    return replace(made_atlas(), command="cs-heads atlas --model tiny", seconds=12.34)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    plt.close("all")
    page = read(told_atlas(), tmp_path_factory.mktemp("atlas") / "report.html")
    assert plt.get_fignums() == []
    return page


@pytest.fixture
def folder(tmp_path):
    told_atlas().save(tmp_path / "atlas.json")
    return tmp_path


def test_the_verdicts_and_the_mean_losses_come_first(page):
    words = page.words
    parts = ["Which heads of tiny serve which skill?", "4 skills: 3 specific, 1 not localized, 1 left out"]
    parts += ["the skill loses 0.70 of its score above chance on average, and the other skills 0.09", "Universal heads"]
    parts += ["Before you trust it", "Map", "What each skill loses", "Skills", "Shared heads", "Tree of skills"]
    parts += ["Left out", "Cost", "How to reproduce", "Provenance"]
    places = []
    for part in parts:
        places.append(words.index(part, places[-1] if places else 0))
    assert places == sorted(places)
    assert [at["class"] for at in page.all("div") if at.get("class", "").startswith("answer")] == ["answer localized"]


def test_each_skill_has_a_row_with_what_its_heads_take(page):
    assert "capitals L0H1 specific word_problems (0.30) 0.90 0.15 0.02" in page.words
    assert "rhyme L2H3 not localized word_problems (0.30) 0.10 0.10 0.02" in page.words


def test_universal_and_shared_heads_are_named_with_what_they_take(page):
    assert re.search(r"\S L0H3 capitals \(0.20\) rhyme \(0.50\) 0.35", page.words)
    assert re.search(r"\S L1H0 capitals \(0.30\), code \(0.12\) 2", page.words)
    assert "No controls of each other, since they share questions or ask for the same: capitals and code." in page.words


def test_universal_heads_that_are_among_the_first_of_a_skill_are_named_there(page, tmp_path):
    """As they may be where other skills weigh little."""
    found = made_atlas()
    found.losses[:, OWN[0].layer, OWN[0].index] = 0.9, 0.3, 0.3, 0.3
    words = read(found, tmp_path / "page.html").words
    assert "Among those of a skill are L0H1 of capitals." in words
    assert "of no skill in particular" not in words
    assert "U: universal; some are among these." in words
    assert "of no skill in particular" in page.words
    assert "U: universal." in page.words


def test_notes_that_differ_in_their_numbers_are_one_and_can_be_unfolded(tmp_path):
    found = made_atlas()
    rankings = {
        name: replace(ranking, notes=(f"{number} of 12 heads are on too few rows",))
        for number, (name, ranking) in enumerate(found.rankings.items(), start=3)
    }
    page = read(replace(found, rankings=rankings), tmp_path / "page.html")
    said = "every skill: … of … heads are on too few rows each of them capitals: 3 of 12 heads are on too few rows"
    assert said in page.words
    assert [at for at in page.all("details") if not at] == [{}]


def test_marks_are_those_of_the_map(page):
    looks = skill_looks(made_atlas().skills, made_atlas().linkage())
    for name, look in looks.items():
        mark = rf'<span class="square" style="background: {look.color}; color: \w+">{look.letter}</span>{name}</span>'
        assert re.search(mark, page.html)
    assert '<span class="square round" style="background: #333333; color: white">U</span>L0H3</span>' in page.html
    assert re.search(
        r'<span class="square edged" style="background: linear-gradient[^"]*">2</span>L1H0</span>', page.html
    )


def test_each_square_of_the_map_tells_what_skills_lose(page):
    [told] = re.findall(r'<script type="application/json">(.*?)</script>', page.html)
    texts = json.loads(told)
    assert texts[1] == "L0H1\nnumber 1 of capitals\ncapitals loses 0.60\nmean of all skills 0.15"
    assert texts[3].startswith("L0H3\nuniversal\nrhyme loses 0.50\nword_problems loses 0.40")


def test_what_is_left_out_cost_and_origin_are_told(page):
    words = page.words
    assert "skill why sums the intact model guesses" in words
    assert "to search 2,400 example-evaluations to prove 1,000 example-evaluations" in words
    assert "in all 3,400 example-evaluations, 12.3 s" in words
    assert "model.grid [3, 4]" in words
    assert "capitals choice, 100 finding examples, identity id-capitals" in words
    assert "The same command with the same versions gives the same heads: cs-heads atlas --model tiny" in words


# Folders


def test_a_folder_gives_the_page_of_the_atlas_it_holds(folder, page):
    assert read(folder, folder / "again.html").html == page.html
    loaded = cs.Atlas.load(folder / "atlas.json")
    assert loaded.to_dict() == json.loads(json.dumps(told_atlas().to_dict()))


def test_an_atlas_does_not_share_its_folder(folder):
    made_ranking().save(folder / "ranking.json")
    (folder / "result.json").write_text(json.dumps({"heads": [], "confirm": made_proof().to_dict()}))
    with pytest.raises(ValueError, match=r"has result\.json already: give an atlas a folder of its own"):
        write_report(folder, folder / "report.html")
    assert not (folder / "report.html").exists()


def test_skills_that_are_specific_but_for_others_are_counted_apart(tmp_path):
    known = told_atlas()
    proofs = known.proofs | {"capitals": replace(known.proofs["capitals"], but_for=("past",))}
    words = read(replace(known, proofs=proofs), tmp_path / "report.html").words
    assert "4 skills: 2 specific, 1 specific but for some, 1 not localized, 1 left out" in words
    assert "specific but for some : the same, but one or two skills of its form lose more than half as much" in words
