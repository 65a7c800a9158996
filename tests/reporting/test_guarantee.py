"""The analytical ε of a report is the guarantee of the run's schedule."""

import dataclasses

import pytest

from fl_epe.accounting import gaussian_epsilon, tightest, upper_bounds
from fl_epe.auditing import Design
from fl_epe.config import RunConfig
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize
from fl_epe.reporting.notes import notes

CLASSES = 'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}'


def _record(spec, participations=3, with_schedule=True, **changes):
    config = RunConfig(
        clients=1000,
        clients_per_round=50,
        rounds=60,
        participation=spec,
        noise_multiplier=1.0,
        num_canaries=50,
        canary_participations=participations,
    )
    schedule = config.canary_schedule()
    record = limit_record(schedule, 1.0, 1e-5, num_canaries=50, unobserved=0, population=1000)
    design = Design.of(dataclasses.asdict(config) | changes) if with_schedule else Design()
    return schedule, record.with_values(design=design, canary_participations=participations)


def _note(summary):
    (note,) = [line for line in notes(summary) if line.startswith("Analytical ε")]
    return note


@pytest.mark.parametrize(
    ("spec", "participations"),
    [
        ("epochs", 3),
        ("epochs", 2.5),
        ("min-separation:separation=10", 3),
        pytest.param(CLASSES, 3, id="device-classes"),
        pytest.param("fixed-size", 3, marks=pytest.mark.slow),
        ("capped:of=poisson,per_run=2", 1),
        ("cyclic", 3),
    ],
)
def test_is_the_bound_of_a_comparison(spec, participations):
    schedule, record = _record(spec, participations)
    found = tightest(upper_bounds(schedule, 1.0, 1e-5, 1000), rounds_known=True)
    analytical = summarize(record).analytical
    assert (analytical.epsilon, analytical.adjacency) == (found.epsilon, found.adjacency)
    assert found.assumption in analytical.assumption


def test_does_not_depend_on_the_observed_canaries():
    """Nobody observed took part 6 times, but somebody may."""
    _, record = _record("min-separation:separation=10")
    assert record.presence.sum(axis=0).max() < 6
    summary = summarize(record)
    epsilon = summary.analytical.epsilon
    assert epsilon is not None
    assert gaussian_epsilon(1.0, 1e-5, 3) < epsilon < gaussian_epsilon(1.0, 1e-5, 6)
    assert "participations follow the schedule's law" in _note(summary)
    other = record.with_values(presence=record.presence[:, ::-1])
    assert summarize(other).analytical.epsilon == epsilon


def test_a_schedule_without_a_limit_has_the_law_of_its_participations():
    schedule, record = _record("min-separation:separation=1")
    assert schedule.most_participations() == record.rounds
    epsilon = summarize(record).analytical.epsilon
    assert epsilon is not None
    assert epsilon < gaussian_epsilon(1.0, 1e-5, record.rounds)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"participation": "cyclic"}, id="of-another-kind"),
        pytest.param({"participation": "no such"}, id="unknown"),
        pytest.param({"rounds": 10}, id="fewer-rounds"),
    ],
)
def test_settings_that_name_no_schedule_of_the_run(changes):
    _, record = _record("min-separation:separation=10", **changes)
    most = int(record.presence.sum(axis=0).max())
    summary = summarize(record)
    assert summary.analytical.epsilon == gaussian_epsilon(1.0, 1e-5, most)
    assert "the record names no schedule" in _note(summary)


def test_old_records_keep_the_count_and_say_so():
    _, record = _record("fixed-size", with_schedule=False)
    most = int(record.presence.sum(axis=0).max())
    summary = summarize(record)
    assert summary.analytical.epsilon == gaussian_epsilon(1.0, 1e-5, most)
    assert f"at most {most} times, the most of any observed canary" in _note(summary)
