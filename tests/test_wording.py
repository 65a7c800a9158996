"""Numbers of things, as sentences have them."""

import math

import pytest

from fl_epe.wording import amount, counted, how_often


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(0, "0 rounds", id="none"),
        pytest.param(1, "1 round", id="one"),
        pytest.param(2.0, "2 rounds", id="whole"),
        pytest.param(4.81605, "4.82 rounds", id="average"),
        pytest.param(2048.0, "2,048 rounds", id="thousands"),
        pytest.param(math.nan, "unknown rounds", id="unknown"),
        pytest.param(9.9996, "10 rounds", id="nearly-whole"),
        pytest.param(1 + 1e-9, "1 round", id="nearly-one"),
    ],
)
def test_a_number_of_rounds(count, text):
    assert counted(count, "round") == text


def test_who_takes_part_once_does_so_no_1_times():
    assert [how_often(count) for count in (1, 1.0, 1.5)] == [
        "once",
        "once",
        "1.5 times",
    ]
    assert amount(1.0) == "1"
