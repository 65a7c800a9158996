"""Lower bounds that published audits use: valid where they say so, and their formulas."""

import math

import numpy as np
import pytest
from gaussian_scores import ALPHA, DELTA, gaussian_scores
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing.bounds.thresholds import held_out_errors
from simulations.nasr_2023 import other_bounds
from simulations.nasr_2023.other_bounds import OTHER_BOUNDS


def _bound(method, observed, unobserved, **options):
    delta = 0.0 if method == "katz-log" else DELTA
    return OTHER_BOUNDS[method](observed, unobserved, delta, **options)


@pytest.mark.parametrize("method", OTHER_BOUNDS)
def test_finds_a_strong_signal_and_not_its_mirror_image(method):
    observed, unobserved = gaussian_scores(3.0, 300, 1)
    assert 1.5 < _bound(method, observed, unobserved) < np.inf
    assert _bound(method, -observed, -unobserved) == 0.0
    assert _bound(method, unobserved[::-1], unobserved) == 0.0
    assert 1.5 < _bound(method, observed / 100, None, dim=10_000) < np.inf


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_mean_exceeds_the_truth_no_more_often_than_it_says(shift):
    truth = epsilon_two_gaussians(0, 1, shift, 1, DELTA)
    failed = sum(
        _bound("mean", *gaussian_scores(shift, 60, (5, t))) > truth
        for t in range(100)
    )
    assert failed <= stats.binom.ppf(0.999, 100, ALPHA)


@pytest.fixture
def judged(monkeypatch):
    """The errors that held-out methods were judged by, in the order of the calls."""
    seen = []

    def remember(*args):
        seen.append(held_out_errors(*args))
        return seen[-1]

    monkeypatch.setattr(other_bounds, "held_out_errors", remember)
    return seen


def test_katz_log_is_its_formula(judged):
    bound = _bound("katz-log", *gaussian_scores(0.8, 400, 14))
    hits, alarms = 360 - judged[0].missed[0], judged[0].false_alarms[0]
    spread = math.sqrt(1 / hits - 1 / 360 + 1 / alarms - 1 / 360)
    katz = math.log(hits / alarms) - stats.norm.ppf(1 - ALPHA) * spread
    assert bound == pytest.approx(katz, rel=1e-9)


@pytest.mark.parametrize("method", ["bayesian", "bayesian-gdp"])
@pytest.mark.parametrize("shift", [0.7, 12.0])
def test_credible_limit_has_its_posterior_mass(judged, method, shift):
    """Against draws from the posterior; at μ = 12 there are no errors at all."""
    epsilon = _bound(method, *gaussian_scores(shift, 300, 15))
    errors = judged[0]
    assert (errors.missed[0] + errors.false_alarms[0] == 0) == (shift == 12.0)
    rng, draws = np.random.default_rng(16), 40_000
    fnr, fpr = (
        rng.beta(0.5 + e[0], 270.5 - e[0], draws)
        for e in (errors.missed, errors.false_alarms)
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
    assert _bound("mean", cosines, None, dim=10**10) == pytest.approx(
        exact, rel=1e-9
    )


@pytest.mark.parametrize("shift", [0.8, 5.0, 200.0])
def test_mean_of_two_groups_inverts_the_noncentral_t(shift):
    observed, unobserved = gaussian_scores(shift, 40, 18)
    bound = _bound("mean", observed, unobserved)
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
    assert _bound("mean", np.full(5, 0.3), np.full(5, 0.1)) == np.inf


@pytest.mark.parametrize("method", ["bayesian", "bayesian-gdp"])
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_cosines_of_one_rule_out_every_level(method, dim):
    """No independent direction has a cosine of 1: at such a threshold the null's tail is empty."""
    cosines = np.array([0.9] * 50 + [1.0] * 20)
    bound = _bound(method, cosines, None, dim=dim)
    assert bound >= 0  # and no warning, no error
    assert _bound("mean", np.full(5, 0.1), np.full(5, 0.3)) == 0.0
