"""The bound for scores that depend on each other in any way, from one run and from several."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import BOUNDS
from simulations.studies.lifted_runs import (
    lifted_lower_bound,
    log_capital,
    mean_limit_factor,
)

DIM, DELTA = 10**4, 1e-5


def _cosines(scores):
    return Scores.from_cosines(np.asarray(scores) / math.sqrt(DIM), DIM)


def _exceeds(draw, truth, delta=DELTA, trials=120):
    """Bounds above the truth, and how many a confidence of 95% allows in 99.9% of seeds."""
    above = sum(
        lifted_lower_bound(draw(np.random.default_rng((1, t))), delta) > truth
        for t in range(trials)
    )
    assert above <= stats.binom.ppf(0.999, trials, 0.05)


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_holds_for_correlated_scores_and_the_exact_null(shared):
    def draw(rng):
        common = math.sqrt(shared) * rng.normal()
        return [
            _cosines(1 + common + math.sqrt(1 - shared) * rng.normal(size=60))
        ]

    _exceeds(draw, epsilon_two_gaussians(0, 1, 1, 1, DELTA))


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("epsilon", [0.0, 2.0])
def test_holds_for_copies_of_one_randomized_response(runs, epsilon):
    """All canaries of a run are copies of one: as dependent as can be."""
    top = 1 / (1 + math.exp(epsilon))

    def draw(rng):
        drawn = []
        for _ in range(runs):
            high = rng.random() < top * math.exp(epsilon)
            level = 1 - top * rng.random() if high else (1 - top) * rng.random()
            drawn.append(
                _cosines(
                    np.full(50, stats.norm.ppf(level)) + 1e-9 * rng.random(50)
                )
            )
        return drawn

    _exceeds(draw, epsilon + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 4])
def test_ranks_hold_where_all_canaries_of_a_run_share_a_shift(runs):
    def draw(rng):
        shifts = 5 * rng.normal(size=runs)
        return [
            Scores(s + rng.normal(size=80), s + rng.normal(size=99))
            for s in shifts
        ]

    _exceeds(draw, 0.0)


def test_one_run_is_worth_what_the_note_says():
    """ln((α/2 − δ)·(u + 1)) for flawless ranks."""
    bound = BOUNDS["lifted"](np.full(40, 1.0), np.zeros(999), DELTA)
    assert bound == pytest.approx(math.log((0.025 - DELTA) * 1000))
    scores = np.random.default_rng(0).normal(4, 1, 1000) / 1000
    exact = BOUNDS["lifted"](scores, None, DELTA, dim=10**6)
    weighted = BOUNDS["weighted"](scores, None, DELTA, dim=10**6)
    assert 0.7 * weighted < exact < weighted


def test_more_runs_show_more():
    rng = np.random.default_rng(0)
    runs = [
        Scores(rng.normal(3, 1, 200), rng.normal(0, 1, 400)) for _ in range(16)
    ]
    bounds = [lifted_lower_bound(runs[:n], DELTA) for n in (1, 4, 16)]
    assert bounds == sorted(bounds)
    assert bounds[0] + 1 < bounds[-1] < epsilon_two_gaussians(0, 1, 3, 1, DELTA)
    of_one_run = BOUNDS["lifted"](*runs[0].both(), DELTA)
    assert lifted_lower_bound(runs[:1], DELTA) == pytest.approx(
        of_one_run, rel=1e-12
    )


def test_confidence_costs():
    scores = np.random.default_rng(1).normal(4, 1, 300) / 100
    more, less = (
        BOUNDS["lifted"](scores, None, DELTA, dim=DIM, confidence=c)
        for c in (0.999, 0.9)
    )
    assert 0 < more < less


def test_the_factor_is_that_of_markov_for_one_run_and_rises_to_one():
    factors = [mean_limit_factor(n, 0.05) for n in (1, 2, 5, 20, 1000)]
    assert factors[0] == pytest.approx(0.05)
    assert factors == sorted(factors)
    assert 0.95 < factors[-1] < 1


@pytest.mark.slow
def test_the_capital_is_fair():
    """Its mean is 1 at the true mean, whatever the law of a share."""
    rng = np.random.default_rng(2)
    shares = rng.beta(0.5, 1.5, (4_000, 3))
    capitals = np.exp([log_capital(row, 0.25) for row in shares])
    assert abs(capitals.mean() - 1) < 4 * capitals.std() / math.sqrt(
        len(capitals)
    )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"runs=\[\]"):
        lifted_lower_bound([], DELTA)
    with pytest.raises(ValueError, match=r"runs\[1\]"):
        lifted_lower_bound([_cosines([1.0, 2.0]), Scores(np.ones(3))], DELTA)
