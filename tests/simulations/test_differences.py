"""`simulations/studies/differences.py`: intervals of differences hold, and equal runs are equal."""

import math

import pytest

from simulations.studies import differences

pytestmark = pytest.mark.weekly


@pytest.mark.parametrize(
    "name",
    ["equal, 30 and 1000", "both 0", "0 and small", "large"],
    ids=["equal", "0", "small", "large"],
)
def test_intervals_of_independent_runs_hold(name):
    runs = 300
    covers, called = differences.independent(name, runs)
    error = 3 * math.sqrt(0.05 * 0.95 / runs)
    assert covers > 0.95 - error
    first, _, second, _ = differences.INDEPENDENT[name]
    if first == second:
        assert called < 0.05 + error


def test_runs_that_share_their_chance_need_the_other_interval():
    runs = 300
    squares, anything = differences.shared(-1.0, runs)
    assert squares < 0.9
    assert anything > 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs)


def test_three_equal_runs_are_rarely_told_apart():
    runs = 100
    for share in differences.whole("epochs", 3, runs).values():
        assert share < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_every_table_is_printed():
    lines: list[str] = []
    differences.main(2, 1, lines.append)
    assert [line[:2] for line in lines if line[0] != " "] == ["1.", "2.", "3."]
    expected = differences.__doc__.partition("Expected::")[2].splitlines()
    rows = [
        line[:40].strip() for line in expected if line.startswith("       ")
    ]
    assert rows == [line[:36].strip() for line in lines if line[0] == " "]
