"""The test for Gaussian scores."""

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing.scoring.assumptions import anderson_darling, gaussian_test


class TestAndersonDarling:
    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_statistic_equals_scipy(self):
        scores = np.random.default_rng(3).standard_normal(137)
        expected = stats.anderson(scores, method="interpolate").statistic
        assert anderson_darling(scores) == pytest.approx(expected, rel=1e-12)

    def test_p_values_are_uniform_for_gaussians(self):
        rng = np.random.default_rng(4)
        p = [gaussian_test(rng.normal(3, 7, 200)).p_value for _ in range(2000)]
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 4 * np.sqrt(
            0.05 * 0.95 / 2000
        )

    def test_finds_mixtures(self):
        rng = np.random.default_rng(5)
        mixed = np.concatenate(
            [rng.standard_normal(500), rng.normal(4, 1, 500)]
        )
        assert gaussian_test(mixed).p_value < 1e-6

    def test_few_or_equal_scores_are_not_tested(self):
        assert gaussian_test(np.arange(7.0)) is None
        assert gaussian_test(np.zeros(30)) is None
