"""`stop_when`: what may be asked for, and what is wrong with the rest."""

import re

import pytest

from fl_epe.config import RunConfig


@pytest.mark.parametrize(
    "text",
    [
        "epsilon-all-low > 8",
        "epsilon-all-low>8.0",
        " epsilon-all-low  >  8e0 ",
        "epsilon-all-low > +8.",
    ],
    ids=["plain", "tight", "loose", "signed"],
)
def test_a_rule_is_read(text):
    config = RunConfig(clients=30, stop_when=text)
    assert config.stops_at(8.1, 9)
    assert not config.stops_at(8.0, 9)


def test_a_rule_is_met_by_an_interval_on_its_side():
    below = RunConfig(clients=30, stop_when="epsilon-all-high < 2")
    assert below.stops_at(1, 1.9)
    assert not below.stops_at(1, 2)
    assert not RunConfig(clients=30).stops_at(100, 0)


@pytest.mark.parametrize(
    "text",
    [
        "epsilon-all > 8",
        "epsilon-final-low > 8",
        "epsilon-all-low < 8",
        "epsilon-all-low >= 8",
        "epsilon-all-high > 8",
        "epsilon-all-low > 8 nats",
        "epsilon-all-low > eight",
        "epsilon-all-low > nan",
        "epsilon-all-low > inf",
        "epsilon-all-low > -1",
        "",
        "8 < epsilon-all-low",
    ],
    ids=[
        *(
            "no-end",
            "final",
            "low-below",
            "low-not-above",
            "high-above",
            "unit",
            "word",
        ),
        *("nan", "inf", "negative", "empty", "turned-round"),
    ],
)
def test_another_text_is_refused_with_those_that_are_allowed(text):
    allowed = "to be 'epsilon-all-low > X' or 'epsilon-all-high < X', with a finite X >= 0"
    with pytest.raises(
        ValueError, match=f"stop_when={re.escape(repr(text))} {allowed}"
    ):
        RunConfig(clients=30, stop_when=text)


def test_coins_and_an_early_stop_do_not_go_together():
    with pytest.raises(
        ValueError,
        match="no stop_when='epsilon-all-low > 8' with inclusion='coin'",
    ):
        RunConfig(
            clients=30,
            stop_when="epsilon-all-low > 8",
            inclusion="coin",
            canary_design="paper",
        )
