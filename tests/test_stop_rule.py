"""`StopRule`: what may be asked for, and what is wrong with the rest."""

import re

import pytest

from fl_epe.config import RunConfig
from fl_epe.stop_rule import StopRule


@pytest.mark.parametrize(
    "text",
    ["epsilon-all-low > 8", "epsilon-all-low>8.0", " epsilon-all-low  >  8e0 "],
    ids=["plain", "tight", "loose"],
)
def test_a_rule_is_read_and_said(text):
    rule = StopRule.parse(text)
    assert rule == StopRule("epsilon-all-low", 8.0)
    assert StopRule.parse(str(rule)) == rule


def test_a_rule_is_met_by_an_interval_on_its_side():
    above, below = StopRule.parse("epsilon-all-low > 8"), StopRule.parse("epsilon-all-high < 2")
    assert above.met(8.1, 9)
    assert not above.met(8.0, 9)
    assert below.met(1, 1.9)
    assert not below.met(1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilon-all > 8", "name epsilon-all-low or epsilon-all-high.*epsilon-all does not"),
        ("epsilon-final-low > 8", "epsilon-final-low is not one"),
        ("epsilon-all-low < 8", "to have '>' after epsilon-all-low, got '<'"),
        ("epsilon-all-low >= 8", "to have '>' after epsilon-all-low, got '>='"),
        ("epsilon-all-high > 8", "to have '<' after epsilon-all-high, got '>'"),
        ("epsilon-all-low > 8 nats", "to be like 'epsilon-all-low > 8'"),
        ("epsilon-all-low > eight", "finite number >= 0, got 'eight'"),
        ("epsilon-all-low > nan", "finite number >= 0, got 'nan'"),
        ("epsilon-all-low > inf", "finite number >= 0, got 'inf'"),
        ("epsilon-all-low > -1", "finite number >= 0, got '-1'"),
        ("", "to be like"),
        ("8 < epsilon-all-low", "to be like"),
    ],
    ids=[
        *("no-end", "final", "low-below", "low-not-above", "high-above", "unit", "word"),
        *("nan", "inf", "negative", "empty", "turned-round"),
    ],
)
def test_another_text_is_refused_with_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=f"stop_when={re.escape(repr(text))}.*{message}"):
        RunConfig(clients=30, stop_when=text)


def test_coins_and_an_early_stop_do_not_go_together():
    with pytest.raises(
        ValueError, match="no stop_when='epsilon-all-low > 8' with inclusion='coin'"
    ):
        RunConfig(clients=30, stop_when="epsilon-all-low > 8", inclusion="coin")
