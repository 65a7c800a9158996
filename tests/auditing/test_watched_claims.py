"""Claims that are tested after every score: true ones are spared, false ones cost fewer scores."""

import math
import re

import numpy as np
import pytest
import scipy
from records import make_record

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import EVERY_ROUND, NotMeasured, Scores, assert_private, seen_by
from fl_epe.auditing.assertions import _Betting, _null_above, watch_claim
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs

DELTA = 1e-3


def epsilon_of(shift):
    return float(epsilon_two_gaussians(0, 1, shift, 1, DELTA))


def false_alarms(draw, epsilon, confidence, runs=120, count=100):
    found = 0
    for seed in range(runs):
        scores = draw(np.random.default_rng(seed), count)
        found += watch_claim(scores, epsilon, DELTA, confidence).violated
    return found / runs


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_a_true_claim_is_spared_however_often_one_looks(shift):
    """Of Gaussian mechanisms, at the smallest ε that is true of them."""

    def draw(rng, count):
        return rng.normal(shift, 1, count)

    rate = false_alarms(draw, epsilon_of(shift), confidence=0.8)
    assert rate < 0.2 + 3 * math.sqrt(0.2 * 0.8 / 120)


@pytest.mark.slow
def test_betting_is_fair_to_the_worst_scores_that_a_claim_allows():
    """Scores are above 2 just as often as (ε, δ)-DP lets them be: no Gaussian is as bad."""
    epsilon = 1.0
    most = math.exp(epsilon) * scipy.special.ndtr(-2.0) + DELTA

    def draw(rng, count):
        return np.where(rng.random(count) < most, 2.25, -1.0)

    rate = false_alarms(draw, epsilon, confidence=0.8)
    assert rate < 0.2 + 3 * math.sqrt(0.2 * 0.8 / 120)


def test_a_false_claim_stops_the_scores():
    asked = []

    def scores():
        rng = np.random.default_rng(1)
        while True:
            asked.append(float(rng.normal(3, 1)))
            yield asked[-1]

    with pytest.raises(AssertionError, match=r"at every score at once[\s\S]*result    violated"):
        assert_private(scores(), 0.5, DELTA, stop_early=True)
    assert 2 <= len(asked) < 40
    found = watch_claim(iter(asked), 0.5, DELTA)
    assert found.used == len(asked)
    assert 0.5 < found.lower_bound < epsilon_of(3)


def test_the_bound_is_where_claims_begin_to_be_false():
    scores = np.random.default_rng(2).normal(2, 1, 300)
    bound = watch_claim(scores, 50.0, DELTA).lower_bound
    assert 0.5 < bound < epsilon_of(2)
    # The claims just below and above it, tested with all of the scores.
    below = [watch_claim(scores, bound * 0.999, DELTA)]
    above = watch_claim(scores, bound * 1.001, DELTA)
    assert below[0].violated
    assert below[0].lower_bound > bound * 0.999
    assert above.used == 300 or above.violated  # it may have been false before


def test_the_wealth_against_a_claim_is_an_integral():
    """By quadrature over the bettors of one threshold."""
    betting = _Betting(DELTA, 0.05, None)
    betting._thresholds, betting._null = np.array([1.0]), _null_above(np.array([1.0]), None)
    count, above, epsilon = 40, 17, 0.4
    null = float(betting._null[0])
    most = min(math.exp(epsilon) * null + DELTA, 1 - math.exp(-epsilon) * (1 - null - DELTA))

    def stake(p):
        odds = (p / most) ** above * ((1 - p) / (1 - most)) ** (count - above)
        return odds * scipy.stats.beta.pdf(p, 0.5, 0.5)

    expected = math.log(scipy.integrate.quad(stake, most, 1)[0])
    assert betting._log_wealth(epsilon, np.array([float(above)]), count) == pytest.approx(expected)


def test_the_wealth_falls_with_epsilon_and_its_expectation_is_at_most_one():
    betting = _Betting(DELTA, 0.05, None)
    scores = np.random.default_rng(3).normal(1.5, 1, 100)
    for score in scores:
        betting.add(score)
    wealth = [betting._log_wealth(e, betting._above, 100) for e in np.linspace(0, 8, 200)]
    assert wealth[0] > 10
    assert np.all(np.diff(np.exp(wealth)) <= 0)
    # For one threshold, over the law of the counts at the edge of the claim.
    one = _Betting(DELTA, 0.05, None)
    one._thresholds, one._null = np.array([0.5]), _null_above(np.array([0.5]), None)
    epsilon = 0.3
    most = min(
        math.exp(epsilon) * one._null[0] + DELTA,
        1 - math.exp(-epsilon) * (1 - one._null[0] - DELTA),
    )
    total = sum(
        scipy.stats.binom.pmf(n, 30, most)
        * math.exp(one._log_wealth(epsilon, np.array([float(n)]), 30))
        for n in range(31)
    )
    assert 0.1 < total <= 1


def test_the_null_of_cosines_is_exact():
    thresholds = np.array([0.0, 1.0, 2.0])
    uniform = (1 - thresholds[:2] / np.sqrt(3)) / 2  # cosines in three dimensions are uniform
    np.testing.assert_allclose(_null_above(thresholds[:2], 3), uniform, rtol=1e-12)
    np.testing.assert_allclose(
        _null_above(thresholds, 10**6), _null_above(thresholds, None), rtol=1e-4
    )
    assert len(_Betting(DELTA, 0.05, 10)._null) == 7  # thresholds up to 3 < √10


def test_a_record_comes_in_the_order_of_its_canaries():
    record = limit_record(
        ShuffledEpochs(20, 2), 0.5, DELTA, num_canaries=100, population=1000, seed=4
    )
    truth = epsilon_of(2 * math.sqrt(2))
    found = assert_private(record, truth * 1.05, DELTA, stop_early=True)
    assert found.used == 100
    with pytest.raises(AssertionError) as accused:
        assert_private(record, truth / 2, DELTA, stop_early=True)
    (used,) = map(int, re.findall(r"scores +(\d+) observed", str(accused.value)))
    assert used < 60
    scores = seen_by(record, EVERY_ROUND).scores().observed
    first = watch_claim(scores[:used], truth / 2, DELTA)
    assert first.violated
    assert first.used == used
    assert not watch_claim(scores[: used - 1], truth / 2, DELTA).violated


def test_cosines_and_objects_with_a_record():
    cosines = np.random.default_rng(5).normal(0, 1e-2, 50)
    scores = Scores.from_cosines(cosines, 10_000)
    assert assert_private(scores, 1.0, DELTA, stop_early=True).used == 50
    assert assert_private(lambda: scores, 1.0, DELTA, stop_early=True).used == 50
    record = make_record()
    assert assert_private(record, 20.0, 0.01, stop_early=True).used > 1


def test_what_cannot_be_watched_is_refused():
    two = Scores(np.arange(5.0), np.arange(5.0))
    with pytest.raises(ValueError, match="null must be known"):
        assert_private(two, 1.0, DELTA, stop_early=True)
    with pytest.raises(TypeError, match="run of type int"):
        assert_private(3, 1.0, DELTA, stop_early=True)
    with pytest.raises(ValueError, match="method='gdp' only for one look"):
        assert_private([0.0, 1.0], 1.0, DELTA, method="gdp", stop_early=True)
    with pytest.raises(ValueError, match="finite, got nan after 1"):
        assert_private([0.0, math.nan], 1.0, DELTA, stop_early=True)
    with pytest.raises(ValueError, match=r"epsilon=60.0 < \d.*largest bound"):
        assert_private([0.0, 1.0, 0.5], 60.0, DELTA, stop_early=True)
    with pytest.raises(ValueError, match="epsilon=-1"):
        watch_claim([0.0], -1.0, DELTA)
    with pytest.raises(NotMeasured, match="all of 3 scores are 0"):
        assert_private([0.0, 0.0, 0.0], 1.0, DELTA, stop_early=True)
    nothing = watch_claim([], 1.0, DELTA)
    assert (nothing.used, nothing.lower_bound) == (0, 0.0)
