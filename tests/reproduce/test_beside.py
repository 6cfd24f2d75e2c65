"""Models side by side."""

from dataclasses import replace

import pytest

from cs_heads.report import Findings
from cs_heads.reproduce import reproduce
from tests.reproduce.conftest import table


def test_models_side_by_side_need_no_step_before_and_go_without_what_is_not_there(study, tmp_path):
    (tmp_path / "bare" / "study" / "code").mkdir(parents=True)
    one = study(names=["gsm8k"])
    one = replace(one, beside={"bare": tmp_path / "bare"})
    left_out = reproduce(one, ["scale"])
    assert "holds no ranking.json" in left_out["scale of bare"]
    assert list(table(one, "scale")["model"]) == [one.name]
    curve = Findings.load(one.folder("math")).curve
    assert table(one, "scale")["heads for half"].item() == curve.heads_for(0.5) > 0
    two = replace(study(names=["gsm8k"]), out=tmp_path / "two", beside={"first": one.out})
    assert reproduce(two, ["scale"]) == {}
    both = table(two, "scale").drop(columns="model")
    assert both.iloc[0].equals(both.iloc[1])


def test_another_model_by_this_ones_name_is_refused(study, tmp_path):
    one = study(names=["gsm8k"])
    with pytest.raises(ValueError, match=f"beside must name other models than '{one.name}'"):
        replace(one, beside={one.name: tmp_path})


@pytest.mark.slow
def test_models_are_held_together_by_what_is_measured_now_and_not_by_what_lies_there(study):
    one = study(names=["gsm8k"])
    reproduce(one, ["scale"])
    changed = study(names=["gsm8k"], k=1)
    reproduce(changed, ["scale"])
    assert list(table(changed, "scale")["ablated"]) == [1]
