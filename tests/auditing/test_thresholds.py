"""Bounds by thresholds are their formulas."""

import math

import numpy as np
import pytest
from gaussian_scores import ALPHA, DELTA, DIM, bound_of, gaussian_scores
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import epsilon_lower_bound
from fl_epe.auditing.bounds import thresholds
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.thresholds import held_out_errors


def _jeffreys(errors, total):
    return stats.beta.ppf(1 - ALPHA, errors + 0.5, total - errors + 0.5)


def _naive_sweep(observed, log_fpr_at, thresholds):
    best = 0.0
    for threshold in thresholds:
        fnr = _jeffreys(np.sum(observed < threshold), observed.size)
        log_fpr = log_fpr_at(threshold)
        for numerator, log_denominator in (
            (1 - DELTA - fnr, log_fpr),
            (1 - DELTA - math.exp(log_fpr), math.log(fnr)),
        ):
            if numerator > 0:
                best = max(best, math.log(numerator) - log_denominator)
    return best


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0, 5.0])
def test_jeffreys_is_the_published_sweep(shift):
    observed, unobserved = gaussian_scores(shift, 80, 11)
    naive = _naive_sweep(
        observed,
        lambda t: math.log(_jeffreys(np.sum(unobserved >= t), 80)),
        [*observed, *unobserved],
    )
    assert bound_of("jeffreys", observed, unobserved) == pytest.approx(
        naive, rel=1e-9
    )
    cosines, null = observed / 100, stats.beta((DIM - 1) / 2, (DIM - 1) / 2)
    naive = _naive_sweep(cosines, lambda t: null.logsf((t + 1) / 2), cosines)
    assert bound_of("jeffreys", cosines, None, dim=DIM) == pytest.approx(
        naive, rel=1e-7
    )


def test_jeffreys_cap_of_a_thousand_canaries():
    """Perfect separation, the paper's 6.24 or so; with the exact null nothing caps it."""
    observed, unobserved = gaussian_scores(100.0, 1000, 12)
    limit = _jeffreys(0, 1000)
    cap = math.log((1 - DELTA - limit) / limit)
    assert cap == pytest.approx(6.25, abs=0.01)
    assert bound_of("jeffreys", observed, unobserved) == pytest.approx(
        cap, rel=1e-9
    )
    assert bound_of("jeffreys", observed / 1e4, None, dim=10**8) > 1000


def test_held_out_threshold_is_judged_by_the_other_scores():
    observed, unobserved = gaussian_scores(1.0, 200, 13)
    sample = Sample(observed, unobserved, 0, DELTA, ALPHA)
    choosing, judging = sample.split(0.1)
    assert choosing.observed.size == 20
    both = np.concatenate([choosing.observed, judging.observed])
    assert np.array_equal(np.sort(both), np.sort(observed))
    seen = []

    def bound(errors):
        seen.append(errors)
        return -np.abs(errors.missed - 90)

    errors = held_out_errors(sample, bound)
    assert len(seen) == 1  # only forecasts, never the judges' counts
    assert (errors.observed, errors.unobserved) == (180, 180)
    assert errors.missed.shape == (1,)


@pytest.fixture
def judged(monkeypatch):
    """The errors that held-out methods were judged by, in the order of the calls."""
    seen = []

    def remember(*args):
        seen.append(held_out_errors(*args))
        return seen[-1]

    monkeypatch.setattr(thresholds, "held_out_errors", remember)
    return seen


@pytest.mark.parametrize("shift", [0.8, 3.0])
def test_held_out_bounds_are_their_formulas(judged, shift):
    observed, unobserved = gaussian_scores(shift, 400, 14)
    bounds = [
        bound_of(m, observed, unobserved) for m in ("clopper-pearson", "gdp")
    ]
    assert {(e.observed, e.unobserved) for e in judged} == {(360, 360)}
    level = 1 - math.sqrt(1 - ALPHA)
    rates = [
        [
            stats.beta.ppf(1 - level, e + 1, 360 - e)
            for e in (*errors.missed, *errors.false_alarms)
        ]
        for errors in judged
    ]
    fnr, fpr = rates[0]
    ratio = max((1 - DELTA - fnr) / fpr, (1 - DELTA - fpr) / fnr)
    assert bounds[0] == pytest.approx(math.log(ratio), rel=1e-9)
    fnr, fpr = rates[1]
    mu = stats.norm.isf(fpr) - stats.norm.ppf(fnr)
    assert bounds[1] == pytest.approx(
        epsilon_two_gaussians(0, 1, mu, 1, DELTA), rel=1e-9
    )


@pytest.mark.parametrize("method", ["clopper-pearson", "gdp"])
@pytest.mark.parametrize("signal", [0.1, 0.5, 0.9])
def test_the_held_out_threshold_stays_among_loud_scores(method, signal):
    """Cosines near 1 spread less than 1/√d: a threshold placed by the null's spread misses them."""
    dim, rng = 10_000, np.random.default_rng(1)
    spread = (1 - signal**2) ** 1.5 / np.sqrt(dim)
    for _ in range(20):
        cosines = signal + spread * rng.standard_normal(1000)
        assert (
            epsilon_lower_bound(cosines, None, 1e-5, dim=dim, method=method)
            > 20
        )
