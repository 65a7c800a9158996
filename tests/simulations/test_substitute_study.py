"""`substitute.py` of Pradhan et al. (2025) in small, and the accountant that it trusts."""

import pytest
from substitute_quadrature import epsilon_by_quadrature

from fl_epe.accounting import poisson_epsilon
from simulations.pradhan_2025 import substitute
from simulations.shared.audit_script import Settings

pytestmark = pytest.mark.slow

QUICK = Settings(quick=True)


@pytest.mark.parametrize("rounds", [1, 50])
def test_the_accountant_is_what_is_integrated(rounds):
    accounted = poisson_epsilon(1.0, 0.25, rounds, 1e-5, replace_one=True)
    integrated = epsilon_by_quadrature(
        1.0, 0.25, rounds, 1e-5, outputs=200_001, cells=2**17
    )
    assert accounted == pytest.approx(integrated, rel=1e-5)


def test_the_worst_case_is_above_add_or_remove_and_within_substitute():
    assert substitute.audit(QUICK).passed
    for (
        _,
        _,
        _,
        add_or_remove,
        _,
        bound,
        _,
        promised,
        _,
    ) in substitute.worst_case(QUICK):
        assert add_or_remove < bound < promised


def test_the_ratio_to_add_or_remove_is_largest_at_little_noise_without_sampling():
    ratios = [row[-1] for row in substitute.ratios(QUICK)]
    assert all(1 < ratio < 4 for ratio in ratios)
    assert ratios[1] == max(ratios) > 2  # z = 1, q = 1
