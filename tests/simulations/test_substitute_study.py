"""`simulations/pradhan_2025/substitute.py`: what is measured about substitute adjacency."""

import pytest

from simulations.pradhan_2025 import substitute

pytestmark = pytest.mark.slow


def test_the_accountant_is_what_is_integrated():
    assert substitute.accountant_table(substitute.QUICK) < 0.01


def test_the_worst_case_is_above_add_or_remove_and_within_substitute(capsys):
    rows = substitute.worst_case_table(substitute.QUICK)
    assert len(rows) == len(substitute.QUICK.worst)
    for apart, bound, promised in rows:
        assert apart < bound < promised
    assert "Worst-case" in capsys.readouterr().out


def test_the_ratio_to_add_or_remove_is_largest_at_little_noise_without_sampling():
    rows = substitute.ratio_table(substitute.QUICK)
    ratios = [ratio for _, _, ratio in rows]
    assert all(1 < ratio < 4 for ratio in ratios)
    assert ratios[1] == max(ratios) > 2  # z = 1, q = 1


def test_bounds_hold_in_the_quick_form():
    shares = substitute.validity_table(substitute.QUICK)
    assert max(shares) <= 0.3  # of 10 seeds, each above with probability 5% at most
