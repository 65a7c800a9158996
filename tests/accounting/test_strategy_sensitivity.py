"""Sensitivity of strategies under participation patterns, against all sets of rounds."""

import itertools

import numpy as np
import pytest

from fl_epe.accounting import (
    gaussian_epsilon,
    sensitivity,
    strategy_bounds,
    upper_bounds,
)
from fl_epe.mechanism.strategies import banded, toeplitz, tree
from fl_epe.schedules import ParticipationLaw, make_schedule

ROUNDS = 10
MATRICES = {
    "identity": np.eye(ROUNDS),
    "tree": tree(ROUNDS).matrix(),
    "banded": banded(ROUNDS, 3).matrix(),
    "toeplitz": toeplitz(ROUNDS).matrix(),
    "negative": np.tril(
        np.random.default_rng(0).standard_normal((ROUNDS, ROUNDS))
    ),
}


def allowed(pattern):
    """All sets of rounds that a pattern allows, up to the largest ones."""
    if pattern.blocks:
        return {
            tuple(sorted(set(s)))
            for s in itertools.product(*(range(*b) for b in pattern.blocks))
        }
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(ROUNDS), count)
        for count in range(1, pattern.most + 1)
    )
    return {
        rounds
        for rounds in sets
        if all(
            b - a == pattern.separation
            if pattern.regular
            else b - a >= pattern.separation
            for a, b in itertools.pairwise(rounds)
        )
    }


def largest(matrix, pattern):
    products = np.abs(matrix.T @ matrix)
    return max(
        np.sqrt(products[np.ix_(s, s)].sum())
        for s in map(list, allowed(pattern))
    )


PATTERNS = {
    "once": ParticipationLaw(10, most=1),
    "any-3": ParticipationLaw(10, most=3),
    "apart": ParticipationLaw(10, most=3, separation=3),
    "regular": ParticipationLaw(10, most=3, separation=3, regular=True),
    "blocks": ParticipationLaw(10, most=2, blocks=((0, 5), (5, 10))),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", MATRICES)
def test_nobody_adds_more(name, pattern):
    matrix, pattern = MATRICES[name], PATTERNS[pattern]
    found, truth = sensitivity(matrix, pattern), largest(matrix, pattern)
    assert found >= truth * (1 - 1e-12)
    exact = (
        pattern.most == 1
        or pattern.regular
        or name == "identity"
        or (name == "banded" and pattern.separation == 3)
        or (name == "toeplitz" and not pattern.blocks)
    )
    if exact:
        assert found == pytest.approx(truth)
    assert found <= 1.3 * truth


@pytest.mark.parametrize(
    ("matrix", "pattern", "expected"),
    [
        # jax_privacy 2.0.0: get_min_sep_sensitivity_upper_bound, fixed_epoch_sensitivity,
        # get_sensitivity_banded and toeplitz.minsep_sensitivity_squared.
        (
            tree(64),
            ParticipationLaw(64, most=4, separation=16),
            2.507132682112035,
        ),
        (
            tree(64),
            ParticipationLaw(64, most=3, separation=4),
            2.4494897427831788,
        ),
        (
            tree(64),
            ParticipationLaw(64, most=4, separation=16, regular=True),
            2.507132682112035,
        ),
        (
            banded(64, 8),
            ParticipationLaw(64, most=3, separation=4),
            2.2208183411528055,
        ),
        (banded(64, 16), ParticipationLaw(64, most=4, separation=16), 2.0),
        (
            banded(64, 16),
            ParticipationLaw(64, most=3, separation=4),
            2.361853027958799,
        ),
        (
            toeplitz(64),
            ParticipationLaw(64, most=4, separation=16),
            2.5625298752160837,
        ),
        (
            toeplitz(64),
            ParticipationLaw(64, most=4, separation=8),
            2.8988920288665003,
        ),
        (
            toeplitz(64, 8),
            ParticipationLaw(64, most=64, separation=5),
            4.356105187198697,
        ),
    ],
)
def test_values_of_jax_privacy(matrix, pattern, expected):
    assert sensitivity(matrix.matrix(), pattern) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(
    "spec",
    [
        "epochs",
        "cyclic",
        "balls-in-bins",
        "min-separation:separation=5",
        "poisson",
        "capped:of=poisson,per_run=3",
        "drop-out:of=cyclic,rate=0.5",
    ],
)
def test_a_pattern_has_all_rounds_that_a_schedule_draws(spec):
    schedule = make_schedule(spec, 20, 2)
    pattern = schedule.law(30)
    rng = np.random.default_rng(1)
    for _ in range(20):
        here = np.zeros((20, 30), bool)
        for row, cohort in zip(here, schedule.cohorts(30, rng), strict=True):
            row[cohort] = True
        for client in here.T:
            rounds = np.flatnonzero(client)
            assert len(rounds) <= pattern.limit
            assert np.all(np.diff(rounds) >= pattern.separation)
            if pattern.regular:
                assert np.all(np.diff(rounds) == pattern.separation)
            if pattern.blocks:
                taken = [
                    a <= r < b
                    for r, (a, b) in zip(rounds, pattern.blocks, strict=False)
                ]
                assert all(taken)


@pytest.mark.parametrize(
    "spec", ["epochs", "cyclic", "min-separation:separation=5"]
)
def test_independent_noise_has_the_known_bound(spec):
    schedule = make_schedule(spec, 20, 2)
    bound, *_ = strategy_bounds(schedule.law(30), np.eye(20), 0.7, 1e-5)
    most = schedule.most_participations()
    assert bound.epsilon == pytest.approx(gaussian_epsilon(0.7, 1e-5, most))
    assert bound.epsilon >= min(
        b.epsilon for b in upper_bounds(schedule.law(30), 0.7, 1e-5)
    )
    assert (
        strategy_bounds(schedule.law(30), np.eye(20), 0.0, 1e-5)[0].epsilon
        == np.inf
    )
