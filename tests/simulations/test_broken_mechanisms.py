"""`simulations/tramer_2022/broken_mechanisms.py`: detects bugs, passes correct versions."""

import pytest

from simulations.shared.audit_script import Settings
from simulations.tramer_2022 import broken_mechanisms
from simulations.tramer_2022.broken_examples import EXAMPLES
from simulations.tramer_2022.broken_mechanisms import (
    detect,
    doubling,
    sensitivity_table,
)

HOW = {"delta": 1e-5, "confidence": 0.99, "seed": 1}


def test_numbers_of_observations_double():
    assert doubling(1000) == [10, 20, 50, 100, 200, 500, 1000]
    assert doubling(60) == [10, 20, 50, 60]
    assert doubling(4) == [4]


def test_fewer_observations_are_the_first_of_many():
    """What is needed does not depend on how many there are, once they are enough."""
    few, many = (
        detect("clips-the-mean", most=n, count=2, bounds=["gdp"], **HOW)
        for n in (20, 50)
    )
    assert few.needed == many.needed == {("along the canary", "gdp"): 20}
    assert few.alarms == {("along the canary", "gdp"): 0}
    assert few.claim == pytest.approx(4.377, abs=1e-3)


def test_more_games_never_need_fewer_observations():
    one, four = (
        detect("wrong-clip-norm", most=100, count=n, bounds=["mean"], **HOW)
        for n in (1, 4)
    )
    method = ("along the canary", "mean")
    assert (four.needed[method] or 1000) >= (one.needed[method] or 1000)


def test_a_bug_that_does_not_leak_is_found_by_its_sign_test_alone():
    detection = detect(
        "adaptive-clip-sign", most=20, count=2, bounds=["gdp", "mean"], **HOW
    )
    assert detection.named == ("clip norm", "sign test")
    assert detection.needed.pop(detection.named) == 10
    assert set(detection.needed.values()) == {None}
    assert set(detection.alarms.values()) == {0}


def test_what_sanity_checks_of_the_sensitivity_find():
    rows = {row[0]: row[1:] for row in sensitivity_table().rows}
    assert {name for name, row in rows.items() if row[2]} == {
        "clips-the-mean",
        "sensitivity-over-batch",
        "weights-by-examples",
        "one-tensor-unclipped",
        "wrong-clip-norm",
    }
    missed = {name for name, row in rows.items() if row[2] and not row[3]}
    assert missed == {"clips-the-mean"}  # a batch is clipped as a whole
    for claimed, *_, correct, possible in rows.values():
        assert correct == pytest.approx(claimed)
        assert possible


def test_too_few_observations_are_no_failure(monkeypatch):
    monkeypatch.setattr(
        broken_mechanisms, "EXAMPLES", {"few-seeds": EXAMPLES["few-seeds"]}
    )
    result = broken_mechanisms.audit(Settings(observations=10, quick=True))
    assert result.passed is None
    assert "detects 0 of 1 broken mechanisms" in result.summary


@pytest.mark.weekly
def test_the_quick_audit_detects_every_bug():
    result = broken_mechanisms.audit(Settings(quick=True))
    assert result.passed
    assert "detects 12 of 12 broken mechanisms" in result.summary
    assert "of a correct version in 0 of 12 games" in result.summary
    *_, short = result.tables
    short_rows = {str(row[0]): row[-2:] for row in short.rows}
    for name in (
        "clips-the-mean",
        "sensitivity-over-batch",
        "one-tensor-unclipped",
    ):
        assert short_rows[name] == (0, 1), name
    for name in ("few-seeds", "shared-noise", "repeated-noise"):
        assert short_rows[name] == (1, 1), name
