"""Confidence sequences: they hold at every look at once, and cost little."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.auditing.estimate import confidence_sequence as module
from fl_epe.auditing.estimate.confidence_sequence import (
    boundary,
    boundary_height,
    crossing_probability,
    widening,
)


def walked(height, steps, points=300):
    """The crossing probability by following a walk's density: below, then above the truth.

    First at the grid's times alone, then below the chords of the boundary, which lie beneath it.
    """
    start = min((8.0 / height) ** (1 / (module.EXPONENT - 0.5)), 0.02)
    times = np.geomspace(start, 1, steps + 1)
    tops = height * times**module.EXPONENT
    nodes, weights = np.polynomial.legendre.leggauss(points)
    out = []
    for chords in (False, True):
        half = (tops[0] + 8.5 * math.sqrt(start)) / 2
        values = tops[0] + half * (nodes - 1)
        sizes = weights * half
        density = np.exp(-(values**2) / 2 / start) / math.sqrt(
            2 * math.pi * start
        )
        for step in range(steps):
            gap = times[step + 1] - times[step]
            half = (tops[step + 1] + 8.5 * math.sqrt(times[step + 1])) / 2
            later = tops[step + 1] + half * (nodes - 1)
            moves = np.exp(-((later[:, None] - values) ** 2) / 2 / gap)
            if chords:
                room = (tops[step + 1] - later)[:, None] * (tops[step] - values)
                moves *= -np.expm1(-2 * room / gap)
            density = moves @ (density * sizes) / math.sqrt(2 * math.pi * gap)
            values = later
            sizes = weights * half
        out.append(1 - float(density @ sizes))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("height", [1.2, 2.0, 2.4, 2.7])
def test_the_crossing_probability_lies_between_two_bounds(height):
    below, above = walked(height, 150)
    assert below < crossing_probability(height) < above * (1 + 1e-4)
    assert above < 1.001 * crossing_probability(height)


@pytest.mark.parametrize("height", [1.0, 2.4, 4.0, 6.0])
def test_the_integral_equation_is_solved_from_above(height):
    """A finer grid finds less, and the difference is below the error that is stated."""
    here = crossing_probability(height)
    fine = crossing_probability(height, 3200)
    assert fine <= here * (1 + 1e-6)
    assert here - fine < 2 * module._RELATIVE_ERROR * here


def test_without_a_slope_the_probability_is_known():
    for height in (1.5, 2.2414, 3.0):
        known = 2 * scipy.special.ndtr(-height)
        assert crossing_probability(height, exponent=0.0) == pytest.approx(
            known, rel=2e-3
        )


def test_the_height_is_that_of_its_error():
    for error in (0.4, 0.0225, 0.009, 1e-6):
        found = crossing_probability(boundary_height(error))
        assert error * (1 - 2 * module._RELATIVE_ERROR) < found < error
    for error in (0.0, 1e-10, 0.5, math.nan):
        with pytest.raises(ValueError, match="Expected error="):
            boundary_height(error)


def ever_above(heights, looks, runs, seed):
    """Share of random walks that are above the boundary at any of the looks."""
    rng = np.random.default_rng(seed)
    steps = np.sqrt(np.diff(looks, prepend=0.0))
    walks = np.cumsum(rng.standard_normal((runs, len(looks))) * steps, axis=1)
    return float(np.mean(np.any(walks > heights, axis=1)))


LOOKS = np.concatenate([np.geomspace(1, 100, 150), np.geomspace(101, 1e5, 150)])


@pytest.mark.parametrize("horizon", [3.0, 100.0, 1e6])
@pytest.mark.parametrize("planned", [True, False])
def test_a_boundary_holds_for_ever_wherever_it_is_tight(horizon, planned):
    """Also long after the planned end, or long before it."""
    error = 0.1
    runs = 4000
    above = ever_above(
        boundary(LOOKS, error, horizon, planned), LOOKS, runs, seed=1
    )
    assert above < error + 3 * math.sqrt(error * (1 - error) / runs)


@pytest.mark.slow
def test_a_boundary_is_nearly_reached_as_often_as_it_may_be():
    """Up to the planned end: 2.25% of walks on a fine grid, less what crosses between looks."""
    looks = np.geomspace(0.01, 100, 1000)
    runs = 20_000
    above = ever_above(boundary(looks, 0.025, 100.0), looks, runs, seed=2)
    assert 0.019 < above < 0.0225 + 3 * math.sqrt(0.0225 / runs)


def test_the_width_at_the_planned_end():
    once = 1.959964
    assert boundary(1000.0, 0.025, 1000.0) / math.sqrt(1000) < 1.22 * once
    assert boundary(1000.0, 0.025, 1100.0) / math.sqrt(1000) < 1.26 * once
    assert boundary(100.0, 0.025, 100.0, planned=False) / 10 < 1.6 * once
    assert boundary(0.0, 0.025, 10.0) == math.inf


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="error=0"):
        boundary(1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="horizon=inf"):
        boundary(1.0, 0.1, math.inf)


def test_a_run_that_stops_where_one_look_misleads():
    """The worst rule: end as soon as an interval for one look excludes the truth."""
    rounds = 100
    runs = 4000
    walks = np.cumsum(
        np.random.default_rng(3).standard_normal((runs, rounds)), axis=1
    )
    scores = walks / np.sqrt(np.arange(1, rounds + 1))
    beyond = np.abs(scores) > 1.959964
    ends = np.where(beyond.any(axis=1), beyond.argmax(axis=1), rounds - 1)
    found = np.abs(scores[np.arange(runs), ends])
    wider = np.array([widening((t + 1) / rounds, 0.95) for t in range(rounds)])
    assert np.mean(found > 1.959964) > 0.3
    assert np.mean(found > 1.959964 * wider[ends]) < 0.05
    assert np.mean(np.any(np.abs(scores) > 1.959964 * wider, axis=1)) < 0.05
