"""Models side by side."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cs_heads.cli import main
from cs_heads.reproduce import PAPERS, reproduce, side_by_side
from tests.reproduce.conftest import table


def test_capabilities_of_two_models_are_laid_side_by_side_with_their_mean(study, tmp_path):
    one = study(names=["gsm8k", "boolq"])
    assert reproduce(one, ["find", "drops", "proof"]) == {}
    two = replace(one, out=tmp_path / "two")
    reproduce(two, ["find", "drops"])
    out = tmp_path
    left_out = side_by_side(PAPERS["cs"], {"first": one.out, "second": two.out}, out)
    assert left_out == {"scale.csv of second": "its last run did not make it"}
    found = pd.read_csv(out / "table-2.csv").set_index(["heads", "task", "measured"])
    drops = table(one, "drops").set_index(["heads", "task"])["score"]
    assert found.loc[("math", "gsm8k", "score"), "first"] == pytest.approx(drops["math", "gsm8k"])
    assert found.loc[("math", "General", "score"), "mean over models"] == pytest.approx(drops["math", "General"])
    assert (found["first"] == found["second"]).all()
    assert list(pd.read_csv(out / "scale.csv")["model"]) == ["first"]
    page = (out / "index.md").read_text(encoding="utf-8")
    assert "[second](two/index.md)" in page
    assert "**table-2**" in page


def test_what_an_earlier_run_with_other_settings_left_is_no_part_of_the_page(study, tmp_path):
    one = study(names=["gsm8k"])
    reproduce(one, ["drops"])
    reproduce(study(names=["gsm8k"], k=1), ["find"])
    assert (one.out / "drops.csv").is_file()
    page = tmp_path / "pages"
    page.mkdir()
    assert "drops.csv of first" in side_by_side(PAPERS["cs"], {"first": one.out}, page)
    assert "[first](../out/index.md)" in (page / "index.md").read_text(encoding="utf-8")


def test_gates_of_two_models_are_correlated_where_their_heads_are_counterparts(study, tmp_path):
    one = study("chg", ["commonsense_qa"])
    reproduce(one, ["kinds", "shares"])
    two = replace(one, out=tmp_path / "two", seed=1)
    reproduce(two, ["kinds", "shares"])
    assert side_by_side(PAPERS["chg"], {"first": one.out, "second": two.out}, tmp_path) == {}
    shares = pd.read_csv(tmp_path / "table-2.csv").set_index(["fit", "heads", "score"])
    own = table(one, "table-2").set_index(["fit", "heads"])
    key = ("common sense", "any")
    assert shares.loc[(*key, "interference"), "first"] == own.loc[key, "interference"]
    found = pd.read_csv(tmp_path / "correlation.csv").set_index(["score", "over"])
    scores = [table(each, "table-1-common-sense").set_index("head")["facilitation"] for each in (one, two)]
    wanted = np.corrcoef(scores[0], scores[1].loc[scores[0].index])[0, 1]
    assert found.loc[("facilitation", "heads, common-sense"), "r"] == pytest.approx(wanted)
    assert found.loc[("facilitation", "shares of table 2"), "n"] == 3


def test_the_command_takes_several_models_of_different_names(known_folder, data, tmp_path, capsys):
    copy = tmp_path / "copy"
    copy.symlink_to(known_folder)
    given = ["--paper", "cs", "--data", str(data), "--tasks", "gsm8k", "--quick", "--device", "cpu", "--n", "40"]
    sizes = ["--n-masks", "24", "--densities", ".17", "--k", "2", "--n-unseen", "20", "--steps", "drops"]
    # One that cannot be loaded ends no other.
    models = ["--model", str(known_folder), "--model", str(tmp_path / "none"), "--model", str(copy)]
    out = tmp_path / "out"
    assert main(["reproduce", *given, *sizes, *models, "--out", str(out)]) == 0
    assert f"left out {tmp_path / 'none'}: " in capsys.readouterr().out
    frame = pd.read_csv(out / "table-2.csv")
    assert {str(known_folder), str(copy)} <= {*frame}
    assert (out / "copy" / "index.md").is_file()
    assert main(["reproduce", *given, *models[:2], *models[:2], "--out", str(out)]) == 2
    assert "--model must name models whose last parts differ" in capsys.readouterr().err
