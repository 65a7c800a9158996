"""What a report says of an average-case client: the headline, and who has more."""

import functools
import math

import pytest

from fl_epe.auditing import Adversary, ServerStep, average_case_client, epsilon_from_record, seen_by
from fl_epe.limit import limit_record
from fl_epe.reporting import as_text, summarize
from fl_epe.schedules import Poisson, ShuffledEpochs

DELTA = 1e-5


@functools.cache
def _summary(schedule, **changes):
    record = limit_record(schedule, 0.5, DELTA, num_canaries=200, unobserved=50)
    record = record.with_values(**changes)
    return record, summarize(record)


@pytest.mark.parametrize("sees", ["final", "all"])
def test_the_headline_is_a_average_case_client_whose_rounds_are_known(sees):
    record, summary = _summary(Poisson(60, 0.05))
    found, values = average_case_client(seen_by(record, Adversary(sees))), summary.to_dict()[sees]
    mine = values if sees == "final" else values["known_rounds"]
    assert mine["epsilon"] == found.known.epsilon
    assert (mine["low"], mine["high"]) == (found.known.low, found.known.high)
    assert (
        values["mean_score"]["epsilon"]
        == epsilon_from_record(record, adversary=Adversary(sees)).epsilon
    )
    told = values["average_case_client"]
    assert told["expected_scores_of"] == "schedule"
    assert not told["equal"]
    for name in ("known", "unknown", "mean", "canaries", "canaries_unknown", "worst_case"):
        assert told[name]["epsilon"] == getattr(found, name).epsilon
    assert told["largest"]["clients"] == 10**6
    assert told["largest"]["high"] == found.largest.estimate.high


def test_each_number_stands_in_a_sentence_of_its_own():
    text = " ".join(as_text(_summary(Poisson(60, 0.05))[1], 10_000, details=True).split())
    for words in (
        "is for one client picked at random, whose rounds the adversary knows",
        "if the adversary does not know the client's rounds",
        "A client that took part as strongly as the average one has ε =",
        "The worst case of the 200 canaries of this run has ε =",
        "With 95% confidence, none of 1,000,000 clients who follow the clients' schedule has an ε",
    ):
        assert words in text


def test_equal_expected_scores_are_told_once_and_change_no_number():
    record, summary = _summary(ShuffledEpochs(60, 3))
    values = summary.to_dict()
    for sees in ("final", "all"):
        assert (
            values[sees]["epsilon"]
            == epsilon_from_record(record, adversary=Adversary(sees)).epsilon
        )
        assert values[sees]["average_case_client"]["equal"]
        assert "mean_score" not in values[sees]
    text = as_text(summary, width=10_000, details=True)
    assert text.count("all clients leave the same trace there") == 2
    assert "picked at random" not in text


def test_without_a_schedule_the_report_says_whom_the_canaries_stand_for():
    text = as_text(_summary(Poisson(60, 0.05), participation="deployment")[1], 10_000, details=True)
    assert "the canaries stand for the clients" in text
    assert "none of" not in text


def test_unknown_expected_scores_leave_the_mean_score():
    record = limit_record(Poisson(60, 0.05), 0.5, DELTA, num_canaries=200, unobserved=0)
    cosines = record.observed.means
    record = record.with_values(
        server=ServerStep("adam"),
        **{"observed.deltas": cosines, "unobserved.deltas": record.unobserved.means},
    )
    summary = summarize(record)
    assert "average_case_client" not in summary.to_dict()["final"]
    assert summary.final.headline.estimate == epsilon_from_record(record)
    assert summary.final.headline.estimate.high == math.inf  # 0 to 8 participations
