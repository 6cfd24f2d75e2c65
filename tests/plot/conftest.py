import pytest
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def no_figure_of_another_test():
    """A figure that a failing test or an example leaves open is not found by the next one."""
    plt.close("all")
    yield
    plt.close("all")
