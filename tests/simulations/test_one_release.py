"""Cosines of canaries that share one release: ε of one of them alone."""

import numpy as np
import pytest

from fl_epe import CanarySet, epsilon_from_cosines, epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.claims.score_file import bare_scores, summarize_scores
from fl_epe.reporting.score_report import score_warnings
from simulations.studies.one_release import (
    epsilon_together,
    shift_interval,
    shift_of_one,
)

DELTA = 1e-5


def cosines_of_the_mechanism(dim, count, z, seed=0):
    """Cosines of all canaries with their noisy sum, and the length of the sum without noise."""
    canaries = CanarySet(dim, count, seed)
    total = canaries.vectors(range(count)).astype(float).sum(axis=0)
    released = total + z * np.random.default_rng((1, seed)).standard_normal(dim)
    return canaries.dot(released) / np.linalg.norm(released), float(
        np.linalg.norm(total)
    )


def together(cosines, dim, sum_norm=None):
    return epsilon_together(
        Scores.from_cosines(cosines, dim), DELTA, sum_norm=sum_norm
    )


def test_the_shift_is_that_of_one_canary():
    assert shift_of_one(3.0, 10, 10**9) == pytest.approx(3.0, rel=1e-6)
    assert shift_of_one(1 / np.sqrt(0.01 + 0.1), 1000, 10_000) == pytest.approx(
        10.0
    )
    # a sum that is longer than expected says that less was added to it
    assert shift_of_one(0.7, 1000, 1000, np.sqrt(1000) * 1.05) < shift_of_one(
        0.7, 1000, 1000
    )
    assert shift_of_one(1.0, 1000, 1000) == np.inf


@pytest.mark.parametrize(
    ("dim", "count", "z"), [(10_000, 1000, 0.1), (1000, 1000, 1.0)]
)
def test_epsilon_is_that_of_the_gaussian_mechanism(dim, count, z):
    cosines, sum_norm = cosines_of_the_mechanism(dim, count, z)
    truth = epsilon_two_gaussians(0, 1, 1 / z, 1, DELTA)
    hidden = epsilon_from_cosines(cosines, dim, DELTA)
    assert hidden.high < 0.9 * truth
    for norm in (None, sum_norm):
        estimate = together(cosines, dim, norm)
        assert estimate.low < truth < estimate.high
        assert estimate.low < estimate.epsilon < estimate.high
        assert "projected out" in estimate.method
    assert estimate.epsilon == pytest.approx(truth, rel=0.1)


def test_few_canaries_have_the_plain_estimate():
    cosines = np.array([2.0, 3.0, 4.0, 3.0]) / 1e4
    plain, projected = (
        epsilon_from_cosines(cosines, 10**8, DELTA),
        together(cosines, 10**8),
    )
    for name in ("epsilon", "low", "high"):
        assert getattr(projected, name) == pytest.approx(
            getattr(plain, name), rel=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_intervals_cover(known):
    dim, count, shift, runs = 500, 500, 2.0, 300
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(runs):
        # the sum of random directions has nearly a gamma-distributed square
        square = count * rng.gamma(dim / 2, 2 / dim) if count > 1 else 1.0
        along = np.sqrt(square) + rng.standard_normal() / shift
        beside = np.sqrt(rng.chisquare(dim - 1)) / shift
        mean = np.sqrt(dim * square) / count * along / np.hypot(along, beside)
        low, high = shift_interval(
            mean, count, dim, 0.95, np.sqrt(square) if known else None
        )
        covered += low <= shift <= high
    error = np.sqrt(0.95 * 0.05 / runs)
    assert covered / runs == pytest.approx(0.95, abs=3 * error)


def test_without_the_sum_there_may_be_no_upper_end():
    cosines, sum_norm = cosines_of_the_mechanism(1000, 1000, 0.1)
    assert together(cosines, 1000).high == np.inf
    estimate = together(cosines, 1000, sum_norm)
    assert (
        estimate.low
        < epsilon_two_gaussians(0, 1, 10, 1, DELTA)
        < estimate.high
        < 130
    )


def test_scores_below_zero_are_no_signal():
    estimate = together([-0.2, -0.3], 100)
    assert (estimate.epsilon, estimate.low) == (0, 0)


def test_bad_arguments_are_named():
    for bad in (0.0, 3.0, np.nan):
        with pytest.raises(ValueError, match=f"sum_norm={bad}"):
            together([0.01, 0.02], 100, bad)
    with pytest.raises(
        ValueError, match="too large; each was in a release of its own"
    ):
        together(np.full(1000, 0.5), 1000)
    with pytest.raises(ValueError, match="dim=None"):
        epsilon_together(Scores(np.ones(3)), DELTA)
    with pytest.raises(
        ValueError, match=r"sum_norm=0.001 >= 0.5, as 50 cosines of 0.01"
    ):
        together(np.full(50, 0.01), 10_000, 1e-3)


def _summary(cosines, dim):
    return summarize_scores(bare_scores(cosines, None, dim), DELTA)


def test_bare_scores_say_that_their_canaries_may_overlap():
    summary = _summary(cosines_of_the_mechanism(1000, 1000, 1.0)[0], 1000)
    assert "hide each other" in score_warnings(summary)[0].text
    assert summary.overlap == pytest.approx(0.5, abs=0.1)
    assert score_warnings(_summary([0.01, 0.02], 100)) == []
    # Canaries that each had a release of their own cannot be most of one.
    released = np.random.default_rng(1).normal(
        0, np.sqrt(3 / 1000), (1000, 1000)
    )
    released[:, 0] += 1
    cosines = released[:, 0] / np.linalg.norm(released, axis=1)
    assert np.mean(cosines) == pytest.approx(0.5, abs=0.01)
    assert score_warnings(_summary(cosines, 1000)) == []
