"""What a run says of ε before its first round is an upper line, also for small models."""

import pytest

from simulations.studies import forecasts

pytestmark = pytest.mark.slow


def test_no_measured_epsilon_is_above_its_forecast():
    lines: list[str] = []
    results = forecasts.main(
        ["--tasks", "linear", "few-rows", "--seeds", "1", "--rounds", "20"],
        lines.append,
    )
    assert [forecast.dim for forecast in results] == [65, 65, 482, 482]
    assert all(forecast.holds for forecast in results)
    assert lines[-1] == "4 of 4 forecasts hold"
