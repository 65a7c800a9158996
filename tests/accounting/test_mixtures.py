"""ε of an average-case client: against integrals with many digits, and its laws."""

import math

import mpmath
import numpy as np
import pytest
import scipy

from fl_epe.accounting import (
    epsilon_two_gaussians,
    known_expected_score_epsilon,
    unknown_expected_score_epsilon,
)
from fl_epe.accounting.composed_gaussians import random_participations_epsilon
from fl_epe.accounting.mixtures import _Clients

DELTA = 1e-5
MIXTURES = {
    "equal": ([0.7, 0.7], [1.0, 1.0]),
    "many-stay-away": ([0.0, 2.0], [0.9, 0.1]),
    "most-stay-away": ([0.0, 3.0, 0.5], [0.9999, 5e-5, 5e-5]),
    "classes": ([0.2, 1.0, 6.0], [0.7, 0.29, 0.01]),
    "rare-giants": ([1.0, 40.0], [1 - 2e-5, 2e-5]),
    "all-large": ([20.0, 30.0, 44.0], [0.5, 0.3, 0.2]),
}


def _known_delta(sizes, epsilon, *, weights):
    """δ of clients of known expected scores."""
    clients = _Clients.of(sizes, weights)
    return clients.infinite_share + math.exp(clients.log_delta_known(epsilon))


def _unknown_delta(sizes, epsilon, *, weights):
    """δ of the mixture, of both directions the larger, at the scores with this log ratio."""
    clients = _Clients.of(sizes, weights)
    removed = clients.log_delta_removed(clients.score_of(epsilon))
    if (
        clients.log_zero_share >= -epsilon
    ):  # the likelihood ratio is nowhere as small as e^-ε
        return math.exp(removed)
    return math.exp(
        max(removed, clients.log_delta_added(clients.score_of(-epsilon)))
    )


def _integrated(sizes, shares, epsilon):
    """∫ (p − e^ε q)₊ and ∫ (q − e^ε p)₊ of the mixture p and q = N(0, 1), as sums over a grid."""
    score, step = np.linspace(-15, max(sizes) + 15, 200_001, retstep=True)
    sizes, shares = (
        np.array(sizes)[:, None],
        np.array(shares)[:, None] / np.sum(shares),
    )
    p = scipy.special.logsumexp(-((score - sizes) ** 2) / 2, axis=0, b=shares)
    q = -(score**2) / 2
    scale = step / np.sqrt(2 * np.pi)

    def excess(first, second):
        return scale * np.sum(
            np.exp(first) * -np.expm1(np.minimum(second + epsilon - first, 0))
        )

    return max(excess(p, q), excess(q, p))


@pytest.mark.parametrize("name", MIXTURES)
def test_unknown_expected_scores_against_integration(name):
    sizes, shares = MIXTURES[name]
    for epsilon in (0.0, 0.3, 2.0, 8.0):
        found = _unknown_delta(sizes, epsilon, weights=shares)
        assert found == pytest.approx(
            _integrated(sizes, shares, epsilon), rel=1e-5, abs=1e-12
        )


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("delta", [0.3, 1e-2, DELTA, 1e-30])
def test_epsilon_and_delta_are_inverse(name, delta):
    sizes, shares = MIXTURES[name]
    for epsilon_of, delta_of in (
        (known_expected_score_epsilon, _known_delta),
        (unknown_expected_score_epsilon, _unknown_delta),
    ):
        epsilon = epsilon_of(sizes, delta, weights=shares)
        found = delta_of(sizes, epsilon, weights=shares)
        assert found <= delta
        if epsilon > 0:
            slack = 1e-7 * (1 + epsilon)
            assert (
                delta_of(sizes, max(epsilon - slack, 0.0), weights=shares)
                > delta
            )


@pytest.mark.parametrize("epsilon", [1.0, 30.0, 300.0, 1000.0])
def test_known_expected_scores_with_many_digits(epsilon):
    sizes, shares = [0.0, 5.0, 20.0, 44.0], [0.2, 0.5, 0.2, 0.1]
    with mpmath.workdps(60):

        def one(m):
            return mpmath.ncdf(m / 2 - epsilon / m) - mpmath.exp(
                epsilon
            ) * mpmath.ncdf(-m / 2 - epsilon / m)

        pairs = zip(sizes[1:], shares[1:], strict=True)
        exact = sum(mpmath.mpf(w) * one(mpmath.mpf(m)) for m, w in pairs)
        found = _known_delta(sizes, epsilon, weights=shares)
        assert found == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("epsilon", [30.0, 300.0, 1000.0])
def test_unknown_expected_scores_with_many_digits(epsilon):
    sizes, shares = [5.0, 20.0, 44.0], [0.7, 0.2, 0.1]
    with mpmath.workdps(60):
        pairs = [
            (mpmath.mpf(m), mpmath.mpf(w))
            for m, w in zip(sizes, shares, strict=True)
        ]

        def ratio(x):
            return mpmath.log(
                sum(w * mpmath.exp(m * x - m * m / 2) for m, w in pairs)
            )

        def root(target):
            low, high = mpmath.mpf(-400), mpmath.mpf(400)
            for _ in range(250):
                middle = (low + high) / 2
                low, high = (
                    (middle, high) if ratio(middle) < target else (low, middle)
                )
            return low

        up, down = root(epsilon), root(-epsilon)
        scale = mpmath.exp(epsilon)
        removed = sum(
            w * mpmath.ncdf(m - up) for m, w in pairs
        ) - scale * mpmath.ncdf(-up)
        added = mpmath.ncdf(down) - scale * sum(
            w * mpmath.ncdf(down - m) for m, w in pairs
        )
        exact = float(max(removed, added))
    found = _unknown_delta(sizes, epsilon, weights=shares)
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("size", [1e-3, 0.3, 1.0, 7.0, 44.0, 450.0, 1e6])
def test_equal_expected_scores_are_two_gaussians(size):
    exact = epsilon_two_gaussians(0, 1, size, 1, DELTA)
    for epsilon_of in (
        known_expected_score_epsilon,
        unknown_expected_score_epsilon,
    ):
        assert epsilon_of([size] * 3, DELTA) == pytest.approx(exact, rel=1e-9)


def test_random_participations_are_a_mixture():
    z, pmf = 0.5, np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    exact = random_participations_epsilon(z, DELTA, pmf)
    found = known_expected_score_epsilon(
        np.sqrt(np.arange(5)) / z, DELTA, weights=pmf
    )
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_who_knows_the_expected_score_learns_more(seed):
    rng = np.random.default_rng(seed)
    sizes, shares = rng.gamma(0.7, 3, 12), rng.random(12)
    known = known_expected_score_epsilon(sizes, DELTA, weights=shares)
    unknown = unknown_expected_score_epsilon(sizes, DELTA, weights=shares)
    largest = epsilon_two_gaussians(0, 1, sizes.max(), 1, DELTA)
    assert 0 < unknown <= known * (1 + 1e-12) <= largest * (1 + 1e-9)


def test_order_repetition_and_the_scale_of_weights_do_not_matter():
    sizes, shares = [0.5, 3.0, 0.0, 3.0], [2.0, 1.0, 4.0, 1.0]
    for epsilon_of in (
        known_expected_score_epsilon,
        unknown_expected_score_epsilon,
    ):
        expected = epsilon_of([0.0, 0.5, 3.0], DELTA, weights=[0.5, 0.25, 0.25])
        assert epsilon_of(sizes, DELTA, weights=shares) == pytest.approx(
            expected, rel=1e-12
        )
        repeated = [0.0, 0.0, 0.5, 3.0]
        assert epsilon_of(repeated, DELTA) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_a_million_distinct_expected_scores_are_rounded_up_a_little():
    sizes = np.random.default_rng(0).gamma(2, 1, 60_000)
    for epsilon_of in (
        known_expected_score_epsilon,
        unknown_expected_score_epsilon,
    ):
        fine, whole = (
            epsilon_of(sizes[:50_000], DELTA),
            epsilon_of(sizes, DELTA),
        )
        doubled = epsilon_of(
            np.append(sizes[:50_000], sizes[:1] * (1 + 1e-12)), DELTA
        )
        assert fine < doubled < fine * 1.0003
        assert whole > 0


@pytest.mark.parametrize(
    "epsilon_of", [known_expected_score_epsilon, unknown_expected_score_epsilon]
)
def test_degenerate_expected_scores_have_defined_answers(epsilon_of):
    assert epsilon_of([0.0, 0.0], DELTA) == 0
    assert epsilon_of([math.inf, 0.0], DELTA) == math.inf
    assert epsilon_of([math.inf, 0.0], 0.6) == 0
    assert epsilon_of([1e139], DELTA) < math.inf
    assert epsilon_of([1e-300, 0.0], DELTA) == 0
    assert epsilon_of([5.0], DELTA, weights=[3]) == pytest.approx(
        33.1037, rel=1e-5
    )


@pytest.mark.parametrize(
    "epsilon_of", [known_expected_score_epsilon, unknown_expected_score_epsilon]
)
def test_bad_arguments_are_named(epsilon_of):
    for expected_scores in ([], [-1.0], [math.nan]):
        with pytest.raises(ValueError, match="expected_scores"):
            epsilon_of(expected_scores, DELTA)
    for weights in (
        [1.0],
        [1.0, -1.0],
        [0.0, 0.0],
        [math.inf, 1.0],
        [math.nan, 1.0],
    ):
        with pytest.raises(ValueError, match="weights"):
            epsilon_of([1.0, 2.0], DELTA, weights=weights)
    with pytest.raises(ValueError, match="delta"):
        epsilon_of([1.0], 0.0)
