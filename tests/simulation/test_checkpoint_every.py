"""`CheckpointEvery`: what may be asked for, and what is wrong with the rest."""

import pytest

from fl_epe.simulation.checkpoint_every import CheckpointEvery


@pytest.mark.parametrize(
    ("text", "interval", "said"),
    [
        pytest.param(10, CheckpointEvery(rounds=10), "10", id="number"),
        pytest.param("10", CheckpointEvery(rounds=10), "10", id="rounds"),
        pytest.param("30s", CheckpointEvery(seconds=30.0), "30s", id="seconds"),
        pytest.param(" 5 min ", CheckpointEvery(seconds=300.0), "5min", id="minutes"),
        pytest.param("0.5h", CheckpointEvery(seconds=1800.0), "30min", id="hours"),
    ],
)
def test_an_interval_is_read_and_said(text, interval, said):
    assert CheckpointEvery.parse(text) == interval
    assert str(interval) == said
    assert CheckpointEvery.parse(said) == interval


@pytest.mark.parametrize(
    "text", [pytest.param("", id="empty"), "often", "5m", "0s", "-3min", "1e3s", "nans"]
)
def test_what_is_no_interval_is_refused_by_name(text):
    with pytest.raises(
        ValueError, match=r"checkpoint_every=.* to be a number of rounds such as 10"
    ):
        CheckpointEvery.parse(text)


@pytest.mark.parametrize("text", [0, "0", "-2"])
def test_rounds_are_positive(text):
    with pytest.raises(ValueError, match="Expected checkpoint_every="):
        CheckpointEvery.parse(text)


def test_rounds_or_time_decide():
    assert [CheckpointEvery(rounds=3).due(done, 1e9) for done in (2, 3, 4)] == [False, True, True]
    assert [CheckpointEvery(seconds=60).due(99, waited) for waited in (59.9, 60)] == [False, True]
