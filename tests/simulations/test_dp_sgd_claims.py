"""`simulations/audits/dp_sgd_claims.py`, the smallest forms."""

import dataclasses

import dp_sgd_claims
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def test_right_steps_are_not_found_fault_with():
    assert dp_sgd_claims.right_steps(20, steps=30) == {}


def test_a_broken_run_is_told():
    setting, wrong = dp_sgd_claims.BROKEN["noise removed"]
    setting = dataclasses.replace(setting, epochs=1)
    audit, claim = dp_sgd_claims.audited(setting, 0, canaries=50, wrong=wrong)
    epsilon, fault = dp_sgd_claims.told(audit)
    assert "not measured" in epsilon
    assert "arrays without noise" in fault
    assert 1 < claim < 4
