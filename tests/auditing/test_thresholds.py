"""Bounds by thresholds and by means are their formulas."""

import math

import numpy as np
import pytest
from gaussian_scores import ALPHA, DELTA, DIM, bound_of, gaussian_scores
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import epsilon_lower_bound
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.held_out import held_out


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
    assert bound_of("jeffreys", observed, unobserved) == pytest.approx(naive, rel=1e-9)
    cosines, null = observed / 100, stats.beta((DIM - 1) / 2, (DIM - 1) / 2)
    naive = _naive_sweep(cosines, lambda t: null.logsf((t + 1) / 2), cosines)
    assert bound_of("jeffreys", cosines, None, dim=DIM) == pytest.approx(naive, rel=1e-7)


def test_jeffreys_cap_of_a_thousand_canaries():
    """Perfect separation, the paper's 6.24 or so; with the exact null nothing caps it."""
    observed, unobserved = gaussian_scores(100.0, 1000, 12)
    limit = _jeffreys(0, 1000)
    cap = math.log((1 - DELTA - limit) / limit)
    assert cap == pytest.approx(6.25, abs=0.01)
    assert bound_of("jeffreys", observed, unobserved) == pytest.approx(cap, rel=1e-9)
    assert bound_of("jeffreys", observed / 1e4, None, dim=10**8) > 1000


def test_held_out_threshold_is_judged_by_the_other_scores():
    observed, unobserved = gaussian_scores(1.0, 200, 13)
    sample = Sample(observed, unobserved, None, DELTA, ALPHA, seed=3)
    choosing, judging = sample.split(0.1)
    assert choosing.observed.size == 20
    both = np.concatenate([choosing.observed, judging.observed])
    assert np.array_equal(np.sort(both), np.sort(observed))
    seen = []

    def bound(errors):
        seen.append(errors)
        return -np.abs(errors.missed - 90)

    errors = held_out(sample, bound)
    assert len(seen) == 1  # only forecasts, never the judges' counts
    assert (errors.observed, errors.unobserved) == (180, 180)
    assert errors.missed.shape == (1,)


@pytest.fixture
def judged(monkeypatch):
    """The errors that held-out methods were judged by, in the order of the calls."""
    seen = []

    def remember(*args):
        seen.append(held_out(*args))
        return seen[-1]

    for method in ("clopper_pearson", "gdp", "katz_log", "bayesian"):
        monkeypatch.setattr(f"fl_epe.auditing.bounds.{method}.held_out", remember)
    return seen


@pytest.mark.parametrize("shift", [0.8, 3.0])
def test_held_out_bounds_are_their_formulas(judged, shift):
    observed, unobserved = gaussian_scores(shift, 400, 14)
    bounds = [bound_of(m, observed, unobserved) for m in ("clopper-pearson", "gdp", "katz-log")]
    assert {(e.observed, e.unobserved) for e in judged} == {(360, 360)}
    level = 1 - math.sqrt(1 - ALPHA)
    rates = [
        [stats.beta.ppf(1 - level, e + 1, 360 - e) for e in (*errors.missed, *errors.false_alarms)]
        for errors in judged
    ]
    fnr, fpr = rates[0]
    ratio = max((1 - DELTA - fnr) / fpr, (1 - DELTA - fpr) / fnr)
    assert bounds[0] == pytest.approx(math.log(ratio), rel=1e-9)
    fnr, fpr = rates[1]
    mu = stats.norm.isf(fpr) - stats.norm.ppf(fnr)
    assert bounds[1] == pytest.approx(epsilon_two_gaussians(0, 1, mu, 1, DELTA), rel=1e-9)
    hits, alarms = 360 - judged[2].missed[0], judged[2].false_alarms[0]
    spread = math.sqrt(1 / hits - 1 / 360 + 1 / alarms - 1 / 360)
    katz = math.log(hits / alarms) - stats.norm.ppf(1 - ALPHA) * spread
    assert bounds[2] == pytest.approx(katz, rel=1e-9)


@pytest.mark.parametrize("method", ["bayesian", "bayesian-gdp"])
@pytest.mark.parametrize("shift", [0.7, 12.0])
def test_credible_limit_has_its_posterior_mass(judged, method, shift):
    """Against draws from the posterior; at μ = 12 there are no errors at all."""
    epsilon = bound_of(method, *gaussian_scores(shift, 300, 15))
    errors = judged[0]
    assert (errors.missed[0] + errors.false_alarms[0] == 0) == (shift == 12.0)
    rng, draws = np.random.default_rng(16), 40_000
    fnr, fpr = (
        rng.beta(0.5 + e[0], 270.5 - e[0], draws) for e in (errors.missed, errors.false_alarms)
    )
    if method == "bayesian":
        respected = np.exp(epsilon) * fnr + fpr >= 1 - DELTA
        respected &= np.exp(epsilon) * fpr + fnr >= 1 - DELTA
    else:
        mu = np.maximum(stats.norm.isf(fpr) - stats.norm.ppf(fnr), 0.0)
        respected = epsilon_two_gaussians(0, 1, mu, 1, DELTA) <= epsilon
    error = math.sqrt(ALPHA * (1 - ALPHA) / draws)
    assert np.mean(respected) == pytest.approx(ALPHA, abs=4 * error)


def test_mean_with_the_exact_null():
    cosines = gaussian_scores(1.0, 316, 17)[0] / 1e5
    mu = 1e5 * cosines.mean() - stats.norm.ppf(0.95) / np.sqrt(316)
    exact = epsilon_two_gaussians(0, 1, mu, 1, DELTA)
    assert bound_of("mean", cosines, None, dim=10**10) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("shift", [0.8, 5.0, 200.0])
def test_mean_of_two_groups_inverts_the_noncentral_t(shift):
    observed, unobserved = gaussian_scores(shift, 40, 18)
    bound = bound_of("mean", observed, unobserved)
    t = stats.ttest_ind(observed, unobserved).statistic
    grid = np.linspace(0, t, 20001)[1:]  # noncentralities
    if t < 100:
        limit = grid[np.searchsorted(stats.nct.sf(t, 78, grid), ALPHA)]
    else:  # T·√(χ²/78) is the noncentrality, but for one unit of noise
        limit = t * np.sqrt(stats.chi2.ppf(ALPHA, 78) / 78)
    exact = epsilon_two_gaussians(0, 1, limit * np.sqrt(2 / 40), 1, DELTA)
    assert bound == pytest.approx(exact, rel=2e-3)


def test_mean_is_infinite_where_scores_have_no_spread():
    """By its assumption. `assert_private` refuses it there: two constants are no Gaussians."""
    assert bound_of("mean", np.full(5, 0.3), np.full(5, 0.1)) == np.inf


@pytest.mark.parametrize("method", ["bayesian", "bayesian-gdp"])
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_cosines_of_one_rule_out_every_level(method, dim):
    """No independent direction has a cosine of 1: at such a threshold the null's tail is empty."""
    cosines = np.array([0.9] * 50 + [1.0] * 20)
    bound = epsilon_lower_bound(cosines, None, 1e-5, dim=dim, method=method)
    assert bound >= 0  # and no warning, no error
    assert bound_of("mean", np.full(5, 0.1), np.full(5, 0.3)) == 0.0


@pytest.mark.parametrize("method", ["clopper-pearson", "gdp"])
@pytest.mark.parametrize("signal", [0.1, 0.5, 0.9])
def test_the_held_out_threshold_stays_among_loud_scores(method, signal):
    """Cosines near 1 spread less than 1/√d: a threshold placed by the null's spread misses them."""
    dim, rng = 10_000, np.random.default_rng(1)
    spread = (1 - signal**2) ** 1.5 / np.sqrt(dim)
    for _ in range(20):
        cosines = signal + spread * rng.standard_normal(1000)
        assert epsilon_lower_bound(cosines, None, 1e-5, dim=dim, method=method) > 20
