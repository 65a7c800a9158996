"""A band around all error rates at once."""

import math

import numpy as np
import pytest
from gaussian_scores import ALPHA
from scipy import stats

from fl_epe.auditing.bounds.thresholds import band_upper, local_level


def _probability_of_band(limits):
    """P[at least i of n uniforms ≤ limitᵢ, for each i]: binomial, one limit after the other."""
    n = len(limits)
    chances, last = {0: 1.0}, 0.0
    for i, limit in enumerate(limits, 1):
        share = (limit - last) / (1 - last)
        chances, last = (
            {
                now: sum(
                    chance * stats.binom.pmf(now - before, n - before, share)
                    for before, chance in chances.items()
                )
                for now in range(i, n + 1)
            },
            limit,
        )
    return sum(chances.values())


@pytest.mark.parametrize("total", [1, 2, 7, 15])
def test_band_has_its_confidence(total):
    counts = np.arange(float(total))
    limits = band_upper(counts, total, ALPHA)
    confidence = _probability_of_band(limits)
    assert 1 - ALPHA <= confidence < 1 - ALPHA * 0.99
    assert band_upper(np.array([total]), total, ALPHA)[0] == 1.0


def test_band_of_many_scores_has_its_confidence():
    total, trials = 400, 4000
    limits = band_upper(np.arange(float(total)), total, ALPHA)
    ordered = np.sort(np.random.default_rng(10).random((trials, total)), axis=1)
    outside = np.mean(np.any(ordered > limits, axis=1))
    assert outside == pytest.approx(
        ALPHA, abs=3 * math.sqrt(ALPHA * 0.95 / trials)
    )


def test_band_costs_less_than_bonferroni_and_more_than_one_limit():
    assert ALPHA / 1000 < local_level(1000, ALPHA) < ALPHA
