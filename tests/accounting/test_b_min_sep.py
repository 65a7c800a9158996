"""b-min-sep: coins, and a rest after each participation, which nobody is told."""

import math

import numpy as np
import pytest

from fl_epe.accounting import (
    gaussian_epsilon,
    poisson_epsilon,
    tightest,
    upper_bounds,
)
from fl_epe.accounting.unknown_rounds import hidden_rounds_epsilon
from fl_epe.schedules import Events, make_schedule, presence

DELTA = 1e-3


def theory(rounds, participations, separation, noise):
    spec = f"b-min-sep:separation={separation}"
    law = make_schedule(spec, rounds, participations).law(1000)
    return tightest(upper_bounds(law, noise, DELTA), rounds_known=False)


def log_ratios(scores, chances, separation, signal):
    """Logarithm of the likelihood ratio by a forward recursion, of scores ``(T, draws)``."""
    likelihoods = np.exp(signal * scores - signal**2 / 2)
    rested = np.ones(scores.shape[1])
    resting = [np.zeros(scores.shape[1])] * (separation - 1)
    for chance, likelihood in zip(chances, likelihoods, strict=True):
        resting.append(rested * chance * likelihood)
        rested = rested * (1 - chance) + resting.pop(0)
    return np.log(rested + sum(resting))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("participations", "separation", "noise"),
    [(2, 3, 1.0), (2.5, 4, 0.7), (2.5, 4, 2.0), (4, 1, 1.0)],
)
def test_theory_is_above_the_exact_ratio_and_below_coins_that_do_not_rest(
    participations, separation, noise
):
    rounds, draws = 12, 100_000
    schedule = make_schedule(
        f"b-min-sep:separation={separation}", rounds, participations
    )
    members = presence(schedule, draws, np.random.default_rng(44))
    scores = np.random.default_rng(45).standard_normal((rounds, draws))
    law = schedule.law(draws)
    chances = law.events.chances
    present = log_ratios(
        scores + members / noise, chances, separation, 1 / noise
    )
    absent = log_ratios(scores, chances, separation, 1 / noise)
    assert np.exp(absent).mean() == pytest.approx(
        1, abs=6 * np.exp(absent).std() / draws**0.5
    )
    found = theory(rounds, participations, separation, noise)
    assert (found.adjacency, found.rounds_known) == ("add-or-remove", False)
    assert found.epsilon <= poisson_epsilon(
        noise, chances.max(), rounds, DELTA
    ) * (1 + 2e-3)
    assert found.epsilon <= gaussian_epsilon(noise, DELTA, law.limit)
    for losses in (present, -absent):
        excess = -np.expm1(np.minimum(found.epsilon - losses, 0))
        assert excess.mean() < DELTA + 3 * excess.std() / math.sqrt(draws)


def test_rounds_of_one_event_with_equal_chances_are_what_uniform_ones_are():
    """The same event by two computations: one law of all rounds, or the sum of each round's."""
    uniform = Events.blocks([(0, np.full(5, 0.1))])
    nearly = Events.blocks([(0, 0.1 + np.array([1, -1, 1, -1, 0]) * 1e-9)])
    assert uniform.independent[0].is_uniform
    assert not nearly.independent[0].is_uniform
    for signal in (0.3, 1.0, 3.0):
        signals = np.full(5, signal)
        expected = hidden_rounds_epsilon(uniform, signals, 1e-6)
        assert hidden_rounds_epsilon(nearly, signals, 1e-6) == pytest.approx(
            expected, rel=1e-3
        )


def test_unequal_chances_lie_between_those_of_the_largest_and_of_the_smallest():
    chances = np.array([0.05, 0.2, 0.1])
    found = [
        hidden_rounds_epsilon(
            Events.blocks([(0, each)]), np.array([1.0, 0.5, 2.0]), 1e-5
        )
        for each in (
            np.full(3, chances.min()),
            chances,
            np.full(3, chances.max()),
        )
    ]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]


def test_it_begins_in_the_state_in_which_it_stays():
    schedule = make_schedule("b-min-sep:separation=6", 40, 5)
    sizes = presence(schedule, 40_000, np.random.default_rng(0)).mean(axis=1)
    assert sizes == pytest.approx(
        np.full(40, 5 / 40), abs=5 * math.sqrt(0.125 * 0.875 / 40_000)
    )


def test_too_many_participations_are_refused():
    with pytest.raises(ValueError, match="1/separation"):
        make_schedule("b-min-sep:separation=6", 12, 3)
