"""Error rates of a threshold and their limits."""

import mpmath as mp
import numpy as np
import pytest
from gaussian_scores import ALPHA, DELTA
from scipy import stats

from fl_epe.auditing.bounds.error_rates import (
    Sample,
    clopper_pearson_upper,
    count_errors,
    log_null_tail,
)


def test_clopper_pearson_is_the_exact_interval_of_scipy():
    for errors, total in ((0, 10), (3, 10), (9, 10), (10, 10), (17, 1000)):
        exact = (
            stats.binomtest(errors, total, alternative="less")
            .proportion_ci(0.95, "exact")
            .high
        )
        limit = clopper_pearson_upper(np.array([float(errors)]), total, 0.05)[0]
        assert limit == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 4_050_748])
def test_null_tail(dim):
    cosines = np.concatenate(
        [[-0.5, 0.0], np.geomspace(0.1, 30, 8) / np.sqrt(dim), [0.9]]
    )
    cosines = cosines[cosines < 1]
    a = mp.mpf(dim - 1) / 2
    norm = mp.gamma(a + 0.5) / mp.gamma(a) / mp.sqrt(mp.pi)
    for cosine, log_tail in zip(
        cosines, log_null_tail(cosines, dim), strict=True
    ):
        c = mp.mpf(abs(cosine))
        # ∫ (1 − x²)^(a − 1) = ∫ cos(θ)^(dim − 2), cut where it has fallen by e^−60.
        start, end = mp.asin(c), mp.acos(mp.sqrt(1 - c**2) * mp.exp(-30 / a))
        nodes = [start + (end - start) * k / 8 for k in range(9)]
        tail = norm * mp.quad(lambda angle: mp.cos(angle) ** (dim - 2), nodes)
        exact = float(mp.log(tail if cosine >= 0 else 1 - tail))
        assert log_tail == pytest.approx(
            exact, abs=1e-3 if exact < -600 else 1e-7
        )
        assert log_tail > exact - 1e-7


def test_count_errors_counts():
    sample = Sample(
        np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0]), 0, DELTA, ALPHA
    )
    errors = count_errors(sample, np.array([0.0, 2.0, 3.0]))
    assert errors.missed.tolist() == [0, 1, 3]
    assert errors.false_alarms.tolist() == [2, 1, 0]
