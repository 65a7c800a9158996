"""`in_the_wild/audit_flower_dp.py`, reduced: what it finds in Flower's wrappers and ours."""

import dataclasses
import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.weekly

CANARIES, SEED = 80, 1


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("simulations.in_the_wild.audit_flower_dp")


@pytest.fixture(scope="module")
def checks(script):
    return importlib.import_module("simulations.in_the_wild.flower_dp_checks")


@pytest.fixture(scope="module")
def findings(script):
    """Of every case, by its name."""
    return {
        case.name: script.examine(case, CANARIES, SEED) for case in script.CASES
    }


def test_no_control_is_accused(findings):
    controls = [
        finding for finding in findings.values() if finding.case.control
    ]
    assert len(controls) == 4
    # An honest case passes in 99% of all seeds at least; this one is fixed.
    assert {finding.verdict for finding in controls} <= {
        "no violation found",
        "too few canaries to tell",
    }
    for finding in controls:
        assert finding.evidence.lower_bound <= finding.case.claimed


def test_one_heavy_client_is_proved_to_break_the_promise(findings):
    finding = findings["1,000 examples"]
    assert finding.verdict == "violation, proved"
    assert (
        finding.evidence.assumption == "independent scores, of any distribution"
    )
    # 4 canaries of 1,000 examples among 20 clients of 1: a share of nearly 1/4 and not 1/24.
    assert finding.evidence.estimate.low > 5 * finding.case.claimed


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("1,000 examples", id="1,000-examples"),
        pytest.param("half lost", id="half-lost"),
        pytest.param("FedAdam", id="FedAdam"),
    ],
)
def test_an_accountant_refuses_what_it_cannot_account(findings, name):
    assert findings[f"{name}, accountant"].verdict.startswith("refused: ")


def test_noise_that_is_taken_back_is_seen_through(findings):
    evidence = findings["FedAvgM, momentum 0.9"].evidence
    assert evidence.estimate.epsilon > evidence.claimed
    assert evidence.estimate.low > 3  # 2.6 without whitening


def test_the_same_seed_gives_the_same_bound(script, findings):
    again = script.examine(script.CASES[0], CANARIES, SEED)
    assert again.evidence == findings[script.CASES[0].name].evidence


def test_the_tables_name_every_case(script, findings, capsys, monkeypatch):
    monkeypatch.setattr(script, "examine", lambda case, *_: findings[case.name])
    script.main(["--quick", "--tables", "13", "--seeds", "2"])
    printed = capsys.readouterr().out
    for case in script.CASES:
        assert printed.count(f"{case.name} ") >= (2 if case.control else 1)
    assert printed.count("2 of 2") == 4
    assert "nan" not in printed.split("Table 3")[0]


def test_the_clip_norm_of_ours_finds_the_median(checks):
    rows = checks.trajectories(45, SEED)
    assert len(rows) == 6
    for row in rows:
        assert row.clip_norms.shape == (45,)
        near = row.verdict == "at the median"
        assert near == (abs(row.clip_norms[-1] - 1) <= checks.CLOSE)
        if row.name.startswith("fl_epe"):
            assert near


def test_an_odd_round_never_raises(checks):
    for check in checks.CHECKS:
        well, words = check.result()
        assert isinstance(well, (bool, np.bool_))
        assert words, check.name
    broken = dataclasses.replace(check, run=lambda: 1 / 0)
    assert broken.result() == (
        False,
        "raises ZeroDivisionError: division by zero",
    )
