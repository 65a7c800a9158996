"""κ, its interval, and the two tests of whether one κ fits all canaries."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing import (
    EVERY_ROUND,
    AuditedClient,
    Scores,
    answers,
    scores_of,
    seen_by,
)
from fl_epe.auditing.answer.ladder_fit import client_fit, ladder_fit
from fl_epe.limit import limit_record
from fl_epe.reporting.reliability import warnings_of
from fl_epe.schedules import ShuffledEpochs


def record_of(seed=0, places=13, rounds=30, participations=12, **options):
    schedule = ShuffledEpochs(rounds, participations)
    return limit_record(
        schedule,
        1.0,
        1e-5,
        num_canaries=places,
        unobserved=2,
        beside=60,
        seed=seed,
        **options,
    )


def fit_of(record, scores=None):
    view = seen_by(record, EVERY_ROUND)
    return ladder_fit(view, scores or scores_of(view))


def test_it_is_least_squares_with_its_standard_error():
    record = record_of()
    view = seen_by(record, EVERY_ROUND)
    sizes, scores = view.expected_scores.observed, scores_of(view).observed
    fit = fit_of(record)
    assert fit.scale == pytest.approx(
        sizes @ scores / (sizes @ sizes), rel=1e-9
    )
    half = stats.norm.ppf(0.975) / np.sqrt(sizes @ sizes)
    assert (fit.low, fit.high) == pytest.approx(
        (fit.scale - half, fit.scale + half), rel=1e-6
    )


@pytest.mark.slow
def test_intervals_cover_and_tests_keep_their_level():
    fits = [fit_of(record_of(seed)) for seed in range(400)]
    inside = np.mean([fit.low < 1 < fit.high for fit in fits])
    assert abs(inside - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 400)
    for name in ("intercept_test", "trend_test"):
        rejected = sum(getattr(fit, name).rejects() for fit in fits)
        # 4 expected; a Poisson count above 12 has a chance of 0.03%.
        assert rejected <= 12


@pytest.mark.slow
def test_power_is_what_the_tests_find():
    """Scores grow half as much from one participation to many; the power is the rejection rate."""
    rejected = 0
    powers = list[float]()
    for seed in range(200):
        record = record_of(seed, places=60, participations=30)
        view = seen_by(record, EVERY_ROUND)
        sizes, scores = view.expected_scores.observed, scores_of(view)
        mean = (sizes.min() + sizes) / 2  # from the first rung on
        scores = dataclasses.replace(
            scores, observed=scores.observed - sizes + mean
        )
        fit = fit_of(record, scores)
        rejected += fit.intercept_test.rejects()
        powers.append(fit.intercept_test.power)
    assert rejected / 200 == pytest.approx(
        np.mean(powers), abs=3 * np.sqrt(0.25 / 200) + 0.05
    )


def test_canaries_that_are_alike_have_no_test_for_an_intercept():
    record = limit_record(
        ShuffledEpochs(10, 10), 1.0, 1e-5, num_canaries=5, unobserved=2
    )
    assert fit_of(record).intercept_test is None


@pytest.mark.parametrize("dim", [None, 10**6])
@pytest.mark.parametrize(
    "values", [np.zeros(13), np.full(13, -0.5), np.full(13, 1e5)]
)
def test_ties_and_extremes_have_finite_numbers(values, dim):
    record = limit_record(
        ShuffledEpochs(10, 2), 1.0, 1e-5, num_canaries=13, unobserved=2
    )
    if dim is None:
        scores = Scores(values, standard_null=True)
    else:
        scores = Scores.from_cosines(np.clip(values / np.sqrt(dim), -1, 1), dim)
    fit = fit_of(record, scores)
    assert fit.low <= fit.scale <= fit.high
    assert np.isfinite([fit.low, fit.scale, fit.high, fit.width]).all()
    assert np.sign(fit.scale) == np.sign(values[0])


def test_scores_that_are_certainly_wider_have_a_wider_interval():
    record = record_of(places=60)
    view = seen_by(record, EVERY_ROUND)
    sizes, scores = view.expected_scores.observed, scores_of(view)
    wide = dataclasses.replace(
        scores, observed=sizes + 3 * (scores.observed - sizes)
    )
    fit, plain = fit_of(record, wide), fit_of(record)
    assert fit.width == pytest.approx(3 * plain.width, rel=0.05)
    assert fit.high - fit.low == pytest.approx(
        fit.width * (plain.high - plain.low), rel=0.01
    )


def test_a_common_norm_of_the_residual_widens_it():
    record = record_of(places=60)
    scores = scores_of(seen_by(record, EVERY_ROUND))
    shared = fit_of(record, dataclasses.replace(scores, spread=3.0))
    assert shared.high - shared.low > 2.5 * (
        fit_of(record).high - fit_of(record).low
    )


def growing_less(seed, taken_back):
    """The view of a small model: canaries show up the less, the more often they take part."""
    schedule = ShuffledEpochs(60, 30)
    record = limit_record(
        schedule, 0.25, 1e-5, num_canaries=8, unobserved=2, beside=40, seed=seed
    )
    view = seen_by(record, EVERY_ROUND)
    sizes, scores = view.expected_scores.observed, scores_of(view)
    lost = taken_back * sizes * (sizes - sizes.min()) / np.ptp(sizes)
    view.computed_scores["matched-filter"] = dataclasses.replace(
        scores, observed=scores.observed - lost
    )
    return view, AuditedClient.of(record, EVERY_ROUND)


@pytest.mark.slow
def test_a_client_has_the_scale_of_canaries_that_took_part_as_often():
    """Training takes back 25% of what a frequent client adds, and nothing of a rare one."""
    inside, pooled_inside, truth = 0, 0, 0.75
    for seed in range(100):
        view, client = growing_less(seed, 1 - truth)
        pooled, fit = ladder_fit(view), client_fit(view, client)
        inside += fit.low < truth < fit.high
        pooled_inside += pooled.low < truth < pooled.high
    assert inside >= 88  # of 100 at 95%: fewer has a chance of 0.2%
    assert pooled_inside < inside


def test_where_one_scale_fits_it_is_that_of_all_canaries():
    for seed in range(20):
        view, client = growing_less(seed, 0.0)
        pooled = ladder_fit(view)
        assert (client_fit(view, client) == pooled) == (
            pooled.intercept_test.p_value > 0.05
        )


def test_beyond_the_canaries_no_line_is_followed():
    view, client = growing_less(0, 0.5)
    assert client_fit(view, client).ratio < 1
    farther = dataclasses.replace(client, patterns=2 * client.patterns)
    assert client_fit(view, farther).ratio == 1


def test_a_report_follows_those_canaries_with_a_caveat():
    """Neither the number, nor the time, nor the width of the scores is then a reason for doubt."""
    named = 0
    for seed in range(10):
        view, _ = growing_less(seed, 0.3)
        warnings = warnings_of(view.record, answers(view.record))
        assert {one.code for one in warnings} == {"caveat"}
        named += any(
            "as often as a client, κ is 0.9" in one.text for one in warnings
        )
    assert named >= 3  # where scores differ enough from one κ
