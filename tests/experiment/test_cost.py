import pytest

from cs_heads.experiment.cost import BudgetTooSmallError, Cost, check_budget


def test_a_backward_pass_counts_as_much_as_a_forward_pass():
    assert Cost(forwards=30, backwards=10).spent == 40
    assert Cost(30, 10) + Cost(1, 2) == Cost(31, 12)


def test_a_refusal_names_least_and_reason_and_can_stand_beside_the_intact_run():
    for covered in (None, 1000, 1001):
        check_budget(covered, 1000, "1,000 heads")
    with pytest.raises(BudgetTooSmallError, match=r"must be 1,000 or more .* \(1,000 heads\), got 999$") as error:
        check_budget(999, 1000, "1,000 heads")
    beside = error.value.beside(50)
    assert (beside.budget, beside.least) == (1049, 1050)
    assert str(beside).endswith("(1,000 heads; the intact model: 50), got 1,049")


def test_a_budget_is_a_whole_number():
    with pytest.raises(ValueError, match=r"budget must be a whole number of example-evaluations, got 2000\.0"):
        check_budget(2000.0, 1, "")
