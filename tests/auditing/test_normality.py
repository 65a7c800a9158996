"""The test for Gaussian scores."""

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing import anderson_darling


class TestAndersonDarling:
    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_statistic_equals_scipy(self):
        scores = np.random.default_rng(3).standard_normal(137)
        expected = stats.anderson(scores, method="interpolate").statistic
        assert anderson_darling(scores).statistic == pytest.approx(expected, rel=1e-12)

    def test_p_values_are_uniform_for_gaussians(self):
        rng = np.random.default_rng(4)
        p = [anderson_darling(rng.normal(3, 7, 200)).p_value for _ in range(2000)]
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000)

    def test_finds_mixtures(self):
        rng = np.random.default_rng(5)
        mixed = np.concatenate([rng.standard_normal(500), rng.normal(4, 1, 500)])
        assert anderson_darling(mixed).p_value < 1e-6

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            pytest.param(np.zeros(3), r"scores\.shape=\(3,\)", id="scores.shape=3"),
            pytest.param(
                np.zeros(30),
                r"scores=0\.0 not to be all the same",
                id="scores=0.0-not-to-be-all-the-same",
            ),
            pytest.param(np.full(30, np.nan), "scores to be finite", id="scores-to-be-finite"),
        ],
    )
    def test_errors(self, scores, message):
        with pytest.raises(ValueError, match=message):
            anderson_darling(scores)
