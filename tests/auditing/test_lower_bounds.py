"""Lower bounds: the contract all of them keep, and each against its definition."""

import math
import re

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import BOUNDS, epsilon_lower_bound, lower_bound_by
from fl_epe.auditing.bounds import thresholds as threshold_bounds
from fl_epe.auditing.bounds.by_name import NoBoundWarning, _warn_of_jeffreys
from fl_epe.auditing.bounds.confidence_band import band_upper, local_level
from fl_epe.auditing.bounds.error_rates import (
    Sample,
    clopper_pearson_upper,
    count_errors,
    log_null_tail,
)
from fl_epe.auditing.bounds.thresholds import held_out

DELTA = 1e-5
DIM = 10_000
ALPHA = 0.05
COINS = {"one-run", "one-run-fdp", "order-statistic"}
VALID = [name for name, bound in BOUNDS.items() if bound.valid]
FREE = ["clopper-pearson", "simultaneous", "weighted"]  # of any distribution


def _delta(method):
    return 0.0 if method == "katz-log" else DELTA


def _scores(shift, count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1.0, count), rng.normal(0.0, 1.0, count)


def _bound(method, observed, unobserved, **options):
    return lower_bound_by(method, observed, unobserved, _delta(method), **options)


def _check_share(failures, trials, most=ALPHA):
    """At most that share of failures, give or take three standard errors."""
    assert failures / trials <= most + 3 * math.sqrt(most * (1 - most) / trials)


# The contract.


@pytest.mark.parametrize("method", BOUNDS)
def test_says_nothing_about_tied_scores(method):
    assert _bound(method, np.full(50, 0.1), np.full(40, 0.1)) == 0.0
    if method not in COINS:
        assert _bound(method, np.full(50, 0.01), None, dim=DIM) == 0.0


@pytest.mark.parametrize("method", BOUNDS)
def test_survives_few_and_partly_tied_scores(method):
    for observed, unobserved in (([0.0, 1.0], [0.0, 1.0]), ([1.0, 1.0, 2.0], [0.0, 0.0, 1.0])):
        assert 0 <= _bound(method, observed, unobserved) < np.inf
        if method not in COINS:
            assert 0 <= _bound(method, np.array(observed) / 100, None, dim=DIM) < np.inf


@pytest.mark.parametrize("method", BOUNDS)
def test_finds_a_strong_signal_and_not_its_mirror_image(method):
    observed, unobserved = _scores(3.0, 300, 1)
    assert 1.5 < _bound(method, observed, unobserved) < np.inf
    assert _bound(method, -observed, -unobserved) == 0.0
    if method not in COINS:
        cosines = observed / np.sqrt(DIM)
        assert 1.5 < _bound(method, cosines, None, dim=DIM) < np.inf
        assert _bound(method, -cosines, None, dim=DIM) == 0.0


@pytest.mark.parametrize("method", BOUNDS)
def test_scale_and_origin_of_scores_do_not_matter(method):
    observed, unobserved = _scores(1.5, 100, 2)
    plain = _bound(method, observed, unobserved)
    assert plain == pytest.approx(_bound(method, 8 * observed - 1, 8 * unobserved - 1), rel=1e-6)


@pytest.mark.parametrize("method", BOUNDS)
def test_more_confidence_says_less(method):
    observed, unobserved = _scores(1.5, 200, 3)
    more, less = (_bound(method, observed, unobserved, confidence=c) for c in (0.9999, 0.8))
    assert 0 < more < less


@pytest.mark.parametrize("method", BOUNDS)
def test_repeats_with_its_seed(method):
    observed, unobserved = _scores(1.0, 100, 4)
    assert _bound(method, observed, unobserved) == _bound(method, observed, unobserved, seed=0)


def test_a_split_depends_on_its_seed():
    observed, unobserved = _scores(1.0, 100, 4)
    assert len({_bound("gdp", observed, unobserved, seed=s) for s in range(5)}) > 1


@pytest.mark.parametrize("method", BOUNDS)
def test_table_describes_its_method(method):
    bound = BOUNDS[method]
    assert bound.description
    assert "\n" not in bound.description
    assert bound.assumption


# Validity, by simulation.


@pytest.mark.parametrize("method", VALID)
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_exceeds_the_truth_for_gaussians_no_more_often_than_it_says(method, shift):
    truth = epsilon_two_gaussians(0, 1, shift, 1, DELTA)
    trials = range(200)
    failures = [_bound(method, *_scores(shift, 60, (5, t)), seed=t) > truth for t in trials]
    _check_share(sum(failures), len(failures))


@pytest.mark.parametrize("method", [*FREE, "one-run"])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_exceeds_the_truth_for_randomized_response_no_more_often(method, epsilon):
    """All the evidence that ε allows sits in one bit: the hardest mechanism to stay below."""

    def draw(rng, member):
        return rng.random(60) + (rng.random(60) < 1 / (1 + math.exp(-member * epsilon)))

    failures = 0
    for trial in range(200):
        rng = np.random.default_rng((6, trial))
        failures += _bound(method, draw(rng, 1), draw(rng, -1), seed=trial) > epsilon
    _check_share(failures, 200)


@pytest.mark.parametrize("method", FREE)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_exceeds_the_truth_for_the_farthest_cosines_no_more_often(method, epsilon):
    """Cosines e^ε times as likely as the null's in its top 1/(1 + e^ε), e^−ε times below."""
    top, failures = 1 / (1 + math.exp(epsilon)), 0
    for trial in range(200):
        rng = np.random.default_rng((7, trial))
        high = rng.random(60) < top * math.exp(epsilon)
        null_quantile = np.where(high, 1 - top * rng.random(60), (1 - top) * rng.random(60))
        cosines = 2 * stats.beta.ppf(null_quantile, (DIM - 1) / 2, (DIM - 1) / 2) - 1
        failures += _bound(method, cosines, None, dim=DIM, seed=trial) > epsilon
    _check_share(failures, 200)


def test_published_sweep_is_not_valid():
    """Else the word "valid" in the table would mean little."""
    positive = [_bound("jeffreys", *_scores(0.0, 60, (8, t))) > 0 for t in range(200)]
    assert np.mean(positive) > 0.1


def test_sharper_than_the_peers():
    """The medians at μ = 1, δ = 1e-5, 500 + 500 scores: 1.72 and, with the Gaussian model, 3.61."""
    trials = [_scores(1.0, 500, (9, t)) for t in range(25)]
    free = [_bound("weighted", *scores) for scores in trials]
    model = [_bound("mean", *scores) for scores in trials]
    # Standard deviations of a bound: 0.35 and 0.33; of the median of 25 about a quarter of it.
    assert np.median(free) > 1.72 - 3 * 0.35 / 4
    assert np.median(model) > 3.61


# The defaults.


def test_the_default_is_a_valid_bound_on_any_scores():
    """At ε = 0 and with the exact null, where the published method fails in 74% of runs."""
    failures = 0
    for trial in range(200):
        observed, unobserved = _scores(0.0, 100, (21, trial))
        failures += epsilon_lower_bound(observed, unobserved, DELTA) > 0
        failures += epsilon_lower_bound(observed / np.sqrt(DIM), None, DELTA, dim=DIM) > 0
    _check_share(failures, 400)


def test_the_default_keeps_its_power_with_many_canaries():
    """1,000 canaries at δ = 0.005, as in the digits task, where "weighted" loses its power."""
    defaults, others = [], []
    for trial in range(5):
        observed, unobserved = _scores(3.0, 1000, (22, trial))
        defaults.append(epsilon_lower_bound(observed, unobserved, 0.005))
        others.append(epsilon_lower_bound(observed, unobserved, 0.005, method="weighted"))
        assert epsilon_lower_bound(observed / 100, None, 0.005, dim=DIM) > max(defaults)
    assert np.median(defaults) > 2 * np.median(others)


def test_the_published_method_says_once_that_it_is_no_bound():
    scores = _scores(1.0, 60, 23)
    _warn_of_jeffreys.cache_clear()
    with pytest.warns(NoBoundWarning, match="'jeffreys' is not a bound") as caught:
        found = [epsilon_lower_bound(*scores, DELTA, method="jeffreys") for _ in range(2)]
    assert [warning.filename for warning in caught] == [__file__]
    assert found == [_bound("jeffreys", *scores)] * 2


# Limits of rates.


def test_clopper_pearson_is_the_exact_interval_of_scipy():
    for errors, total in ((0, 10), (3, 10), (9, 10), (10, 10), (17, 1000)):
        exact = stats.binomtest(errors, total, alternative="less").proportion_ci(0.95, "exact").high
        limit = clopper_pearson_upper(np.array([float(errors)]), total, 0.05)[0]
        assert limit == pytest.approx(exact, rel=1e-9)


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
    assert outside == pytest.approx(ALPHA, abs=3 * math.sqrt(ALPHA * 0.95 / trials))


def test_band_costs_less_than_bonferroni_and_more_than_one_limit():
    assert ALPHA / 1000 < local_level(1000, ALPHA) < ALPHA


@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 4_050_748])
def test_null_tail(dim):
    cosines = np.concatenate([[-0.5, 0.0], np.geomspace(0.1, 30, 8) / np.sqrt(dim), [0.9]])
    cosines = cosines[cosines < 1]
    a = mp.mpf(dim - 1) / 2
    norm = mp.gamma(a + 0.5) / mp.gamma(a) / mp.sqrt(mp.pi)
    for cosine, log_tail in zip(cosines, log_null_tail(cosines, dim), strict=True):
        c = mp.mpf(abs(cosine))
        # ∫ (1 − x²)^(a − 1) = ∫ cos(θ)^(dim − 2), cut where it has fallen by e^−60.
        start, end = mp.asin(c), mp.acos(mp.sqrt(1 - c**2) * mp.exp(-30 / a))
        nodes = [start + (end - start) * k / 8 for k in range(9)]
        tail = norm * mp.quad(lambda angle: mp.cos(angle) ** (dim - 2), nodes)
        exact = float(mp.log(tail if cosine >= 0 else 1 - tail))
        assert log_tail == pytest.approx(exact, abs=1e-3 if exact < -600 else 1e-7)
        assert log_tail > exact - 1e-7


# Each method against its definition.


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
    observed, unobserved = _scores(shift, 80, 11)
    naive = _naive_sweep(
        observed,
        lambda t: math.log(_jeffreys(np.sum(unobserved >= t), 80)),
        [*observed, *unobserved],
    )
    assert _bound("jeffreys", observed, unobserved) == pytest.approx(naive, rel=1e-9)
    cosines, null = observed / 100, stats.beta((DIM - 1) / 2, (DIM - 1) / 2)
    naive = _naive_sweep(cosines, lambda t: null.logsf((t + 1) / 2), cosines)
    assert _bound("jeffreys", cosines, None, dim=DIM) == pytest.approx(naive, rel=1e-7)


def test_jeffreys_cap_of_a_thousand_canaries():
    """Perfect separation, the paper's 6.24 or so; with the exact null nothing caps it."""
    observed, unobserved = _scores(100.0, 1000, 12)
    limit = _jeffreys(0, 1000)
    cap = math.log((1 - DELTA - limit) / limit)
    assert cap == pytest.approx(6.25, abs=0.01)
    assert _bound("jeffreys", observed, unobserved) == pytest.approx(cap, rel=1e-9)
    assert _bound("jeffreys", observed / 1e4, None, dim=10**8) > 1000


def test_held_out_threshold_is_judged_by_the_other_scores():
    observed, unobserved = _scores(1.0, 200, 13)
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


def test_count_errors_counts():
    sample = Sample(np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0]), None, DELTA, ALPHA, 0)
    errors = count_errors(sample, np.array([0.0, 2.0, 3.0]))
    assert errors.missed.tolist() == [0, 1, 3]
    assert errors.false_alarms.tolist() == [2, 1, 0]


@pytest.fixture
def judged(monkeypatch):
    """The errors that held-out methods were judged by, in the order of the calls."""
    seen = []
    monkeypatch.setattr(
        threshold_bounds, "held_out", lambda *args: seen.append(held_out(*args)) or seen[-1]
    )
    return seen


@pytest.mark.parametrize("shift", [0.8, 3.0])
def test_held_out_bounds_are_their_formulas(judged, shift):
    observed, unobserved = _scores(shift, 400, 14)
    bounds = [_bound(m, observed, unobserved) for m in ("clopper-pearson", "gdp", "katz-log")]
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
    epsilon = _bound(method, *_scores(shift, 300, 15))
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
    cosines = _scores(1.0, 316, 17)[0] / np.sqrt(1e5)
    mu = np.sqrt(1e5) * cosines.mean() - stats.norm.ppf(0.95) / np.sqrt(316)
    exact = epsilon_two_gaussians(0, 1, mu, 1, DELTA)
    assert _bound("mean", cosines, None, dim=100_000) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("shift", [0.8, 5.0, 200.0])
def test_mean_of_two_groups_inverts_the_noncentral_t(shift):
    observed, unobserved = _scores(shift, 40, 18)
    bound = _bound("mean", observed, unobserved)
    t = stats.ttest_ind(observed, unobserved).statistic
    grid = np.linspace(0, t, 20001)[1:]  # noncentralities
    if t < 100:
        limit = grid[np.searchsorted(stats.nct.sf(t, 78, grid), ALPHA)]
    else:  # T·√(χ²/78) is the noncentrality, but for one unit of noise
        limit = t * np.sqrt(stats.chi2.ppf(ALPHA, 78) / 78)
    exact = epsilon_two_gaussians(0, 1, limit * np.sqrt(2 / 40), 1, DELTA)
    assert bound == pytest.approx(exact, rel=2e-3)


def test_mean_claims_nothing_where_scores_have_no_spread():
    """Two constants are no Gaussians, and five draws of each prove no infinite ε."""
    assert _bound("mean", np.full(5, 0.3), np.full(5, 0.1)) == 0


@pytest.mark.parametrize("method", ["bayesian", "bayesian-gdp"])
@pytest.mark.parametrize("dim", [2, 3, 10])
def test_cosines_of_one_rule_out_every_level(method, dim):
    """No independent direction has a cosine of 1: at such a threshold the null's tail is empty."""
    cosines = np.array([0.9] * 50 + [1.0] * 20)
    bound = epsilon_lower_bound(cosines, None, 1e-5, dim=dim, method=method)
    assert bound >= 0  # and no warning, no error
    assert _bound("mean", np.full(5, 0.1), np.full(5, 0.3)) == 0.0


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"delta": 1.5}, "Expected delta=1.5 in (0, 1).", id="delta=1.5-in-0,1"),
        pytest.param({"delta": 0.0}, "Expected delta=0.0 in (0, 1).", id="delta=0.0-in-0,1"),
        pytest.param({"delta": math.nan}, "Expected delta=nan in (0, 1).", id="delta=nan-in-0,1"),
        pytest.param(
            {"confidence": 1.0}, "Expected confidence=1.0 in (0, 1).", id="confidence=1.0-in-0,1"
        ),
        pytest.param(
            {"confidence": math.nan},
            "Expected confidence=nan in (0, 1).",
            id="confidence=nan-in-0,1",
        ),
        pytest.param(
            {"method": "best"},
            "Expected method='best' to be one of jeffreys, ",
            id="method=best-to-be-one-of-jeffreys",
        ),
        pytest.param(
            {"method": "katz-log"},
            "Expected delta=1e-05 to be 0 for method='katz-log'.",
            id="delta=1e-05-to-be-0-for-method=katz-log",
        ),
        pytest.param({"seed": -1}, "Expected seed=-1 >= 0.", id="seed=-1-at-least-0"),
        pytest.param(
            {"observed": [1.0]},
            "Expected observed.shape=(1,) to be (k,) with k >= 2.",
            id="observed.shape=1,to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"observed": []},
            "Expected observed.shape=(0,) to be (k,) with k >= 2.",
            id="observed.shape=0,to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"unobserved": [[1.0, 2.0]]},
            "Expected unobserved.shape=(1, 2) to be (k,) with k >= 2.",
            id="unobserved.shape=1,2-to-be-k,with-k-at-least-2",
        ),
        pytest.param(
            {"observed": [1.0, math.nan]},
            "Expected observed to be finite, got nan (1 such values).",
            id="observed-to-be-finite,got-nan-1-such-values",
        ),
        pytest.param(
            {"unobserved": [1.0, -math.inf]},
            "Expected unobserved to be finite, got -inf",
            id="unobserved-to-be-finite,got-inf",
        ),
        pytest.param(
            {"unobserved": None},
            "Expected unobserved scores or dim, got unobserved=None",
            id="unobserved-scores-or-dim,got-unobserved=None",
        ),
        pytest.param({"unobserved": None, "dim": 1}, "Expected dim=1 >= 2.", id="dim=1-at-least-2"),
        pytest.param(
            {"unobserved": None, "dim": 5},
            "Expected observed=3.0 in [-1, 1]",
            id="observed=3.0-in-1,1",
        ),
        pytest.param(
            {"unobserved": None, "dim": 5, "observed": [0.1, 0.2], "method": "one-run"},
            "Expected unobserved scores for this method, got unobserved=None.",
            id="unobserved-scores-for-this-method,got",
        ),
    ],
)
def test_bad_input_is_named(changes, message):
    arguments = {"observed": [1.0, 3.0], "unobserved": [0.0, 1.0], "delta": DELTA, **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        epsilon_lower_bound(**arguments)


@pytest.mark.parametrize("method", ["clopper-pearson", "gdp"])
@pytest.mark.parametrize("signal", [0.1, 0.5, 0.9])
def test_the_held_out_threshold_stays_among_loud_scores(method, signal):
    """Cosines near 1 spread less than 1/√d: a threshold placed by the null's spread misses them."""
    dim, rng = 10_000, np.random.default_rng(1)
    spread = (1 - signal**2) ** 1.5 / np.sqrt(dim)
    for _ in range(20):
        cosines = signal + spread * rng.standard_normal(1000)
        assert epsilon_lower_bound(cosines, None, 1e-5, dim=dim, method=method) > 20
