"""`simulations/studies/false_convictions.py` and `plug_in_claims.py`, the smallest forms."""

import pytest

from fl_epe.auditing import find_evidence
from simulations.studies import false_convictions, plug_in_claims
from simulations.studies.few_nodes import Cell

EPOCHS = [
    cell
    for cell in false_convictions.AT_CLAIM
    if cell.name.startswith("epochs")
]


@pytest.mark.slow
def test_right_runs_are_acquitted_and_false_claims_are_found():
    (right,) = EPOCHS
    (false,) = (
        cell for cell in false_convictions.FALSE if cell.name == right.name
    )
    private = [
        cell for cell in false_convictions.BELOW if cell.name == right.name
    ]
    assert not any(right.evidence(seed).violated for seed in range(10))
    assert not any(
        cell.evidence(seed).violated for cell in private for seed in range(10)
    )
    assert all(false.evidence(seed).violated for seed in range(10))
    (line,) = false_convictions.lines((right,), 2)
    assert "violated   0 of 2" in line


@pytest.mark.slow
def test_shorter_updates_halve_the_expected_scores():
    half = next(cell for cell in false_convictions.BELOW if cell.length == 0.5)
    evidence = half.evidence(0)
    assert evidence.estimate is not None
    assert evidence.estimate.high < evidence.claimed


@pytest.mark.slow
def test_the_table_is_the_accounting():
    for noise in (0.5, 1.07, 3.3, 9.0):
        arguments = noise, 0.1, 10, 1e-5
        exact = false_convictions._exact(*arguments)
        assert false_convictions.poisson_epsilon(*arguments) == pytest.approx(
            exact, rel=1e-4
        )


@pytest.mark.slow
def test_a_tenth_of_the_noise_is_found_in_a_federation():
    with plug_in_claims.with_noise(0.1):
        record = plug_in_claims.run(Cell(40, 1, 20, 1), 0)
    evidence = find_evidence(record, plug_in_claims.allowed(record), 1e-5)
    assert evidence.violated
    assert evidence.faults
    assert (
        plug_in_claims.counted(["violated", "undecided", "violated"])
        == "2 violated, 1 undecided"
    )
