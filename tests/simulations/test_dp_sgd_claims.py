"""`simulations/nasr_2023/dp_sgd_claims.py`, the smallest forms."""

import dataclasses

import pytest

from simulations.nasr_2023 import dp_sgd_claims

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning"
)


@pytest.mark.slow
def test_right_steps_are_not_found_fault_with():
    assert dp_sgd_claims.right_steps(20, steps=30) == {}


@pytest.mark.slow
def test_a_broken_run_is_told():
    setting, wrong = dp_sgd_claims.BROKEN["noise removed"]
    setting = dataclasses.replace(setting, epochs=1)
    audit, claim = dp_sgd_claims.audited(setting, 0, canaries=50, wrong=wrong)
    epsilon, fault = dp_sgd_claims.told(audit)
    assert "not measured" in epsilon
    assert "arrays without noise" in fault
    assert 1 < claim < 4


@pytest.mark.weekly
def test_half_of_the_noise_is_a_violation_and_right_noise_is_none():
    setting = dp_sgd_claims.Setting(batch=72, epochs=3, z=0.5)
    (false,) = dp_sgd_claims.verdicts(setting, 1, 1.0)
    assert false.claimed == pytest.approx(2.857, abs=0.01)
    assert false.verdict == "violated"
    right = dp_sgd_claims.verdicts(dataclasses.replace(setting, z=1.0), 1)
    assert right[0].verdict == "not violated"
    assert "1 not violated" in dp_sgd_claims.row(right)
