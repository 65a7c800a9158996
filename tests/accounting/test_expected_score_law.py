"""The law of one client's expected score: against simulated runs of every kind of schedule."""

import numpy as np
import pytest
import scipy
from case_ids import in_words
from every_schedule import CLIENTS, EVERY, RUNS, T, runs_of

from fl_epe.accounting import clients_law, expected_score_law
from fl_epe.schedules import Capped, Poisson, ShuffledEpochs, Trace
from fl_epe.schedules.sampled import (
    BallsInBins,
    BMinSep,
    MinSeparation,
    RandomAllocation,
)

WEIGHTS = {"equal": np.ones(T), "unequal": np.linspace(0.3, 2.0, T) ** 2}
WITHOUT_LAW = [
    schedule
    for schedule in EVERY
    if isinstance(schedule, Capped)
    and (
        schedule.per_window is not None
        or schedule.per_run is None
        or isinstance(
            schedule.schedule, BMinSep | RandomAllocation
        )  # rounds depend on each other
    )
]


def _mean(law):
    return float(law.expected_scores @ law.shares)


@pytest.mark.slow
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("schedule", EVERY, ids=in_words)
def test_simulated_runs_follow_the_law(schedule, weights):
    added = WEIGHTS[weights]
    events = schedule.law(CLIENTS).events
    if schedule in WITHOUT_LAW:
        assert events is None
        return
    law = expected_score_law(events, added)
    assert law.shares.sum() == pytest.approx(1, abs=1e-12)
    sums = np.einsum("t,rtc->rc", added, runs_of(schedule))  # (runs, clients)
    # Rounding up lifts an expected score by at most the lattice's step for each participation.
    slack = 0.004 * _mean(law)
    for level in (-1.0, *np.quantile(sums, [0.3, 0.6, 0.9, 0.99])):
        above = (sums > level + slack).mean(axis=1)
        below = (sums > level - slack).mean(axis=1)
        least, most = above.mean(), below.mean()
        error = (
            4.5 * max(above.std(), below.std()) / np.sqrt(RUNS)
            + 1.5 / RUNS / CLIENTS
        )
        expected = law.shares[law.expected_scores > level].sum()
        assert least - error <= expected <= most + error
    means = sums.mean(axis=1)
    error = 4.5 * means.std() / np.sqrt(RUNS) + 0.005 * means.mean()
    assert abs(means.mean() - _mean(law)) <= error


def test_equal_weights_give_the_binomial():
    law = expected_score_law(
        Poisson(60, 0.05).law(1000).events, np.full(60, 0.7)
    )
    exact = scipy.stats.binom.pmf(np.arange(len(law.shares)), 60, 0.05)
    np.testing.assert_allclose(
        law.expected_scores, 0.7 * np.arange(len(exact)), rtol=1e-12
    )
    np.testing.assert_allclose(law.shares[:-1], exact[:-1], rtol=1e-9)


def test_unequal_weights_against_every_subset():
    added = np.array([1.0, 0.37, 2.2, 0.05, 1.4, 0.8])
    law = expected_score_law(Poisson(6, 0.3).law(100).events, added)
    subsets = (np.arange(64)[:, None] >> np.arange(6)) & 1
    sums, shares = (
        subsets @ added,
        0.3 ** subsets.sum(axis=1) * 0.7 ** (6 - subsets.sum(axis=1)),
    )
    for level in np.linspace(0, 6, 40):
        exact = shares[sums > level].sum()
        rounded = shares[sums > level - 6 * 0.002].sum()
        found = law.shares[law.expected_scores > level].sum()
        assert (
            exact * (1 - 1e-12) <= found <= rounded * (1 + 1e-12)
        )  # never too small
    assert law.expected_scores[-1] == pytest.approx(added.sum())


def test_blocks_against_every_choice():
    added = np.array([1.0, 0.2, 0.5, 3.0, 0.7, 0.1])
    law = expected_score_law(BallsInBins(6, 2).law(100).events, added)
    sums = (added[:3, None] + added[None, 3:]).ravel()
    assert _mean(law) == pytest.approx(sums.mean(), rel=3e-3)
    assert sums.mean() <= _mean(law)
    assert law.expected_scores[-1] == pytest.approx(4.0)
    assert _mean(
        expected_score_law(ShuffledEpochs(6, 2).law(100).events, added)
    ) == pytest.approx(_mean(law))


@pytest.mark.parametrize("clients", [1, 100, 10**7])
def test_the_largest_of_many_is_the_quantile_of_the_union(clients):
    law = expected_score_law(
        Poisson(200, 0.02).law(clients).events, np.ones(200)
    )
    largest = law.largest(clients)
    assert largest is not None
    beyond = scipy.stats.binom.sf([largest, largest - 1], 200, 0.02) * clients
    assert beyond[0] <= 0.05 < beyond[1]


def test_the_largest_of_a_schedule_with_a_limit_is_the_limit():
    law = expected_score_law(
        Capped(Poisson(40, 0.5), per_run=3).law(10**6).events, np.ones(40)
    )
    assert law.largest(10**6) == 3
    law = expected_score_law(
        MinSeparation(40, 0.1, 5).law(1000).events, np.ones(40)
    )
    assert law.largest(10**9) == 8


def test_a_trace_is_its_own_law():
    law = expected_score_law(
        Trace([0, 1, 1], ["a", "a", "b"]).law(2).events, [1.0, 2.0]
    )
    np.testing.assert_array_equal(law.expected_scores, [2.0, 3.0])
    assert law.largest(2) == 3


def test_rounds_that_add_nothing_leave_nothing():
    law = expected_score_law(Poisson(5, 0.5).law(10).events, np.zeros(5))
    np.testing.assert_array_equal(law.expected_scores, [0.0])


def test_bad_arguments_are_named():
    for weights in (np.ones(4), [-1.0] * 5, [np.nan] * 5):
        with pytest.raises(ValueError, match="weights"):
            expected_score_law(Poisson(5, 0.5).law(10).events, weights)


def test_without_a_law_populations_are_simulated():
    schedule = Capped(Poisson(20, 0.2), per_window=1, window=3)
    law = clients_law(schedule, np.ones(20), 200, seed=1)
    assert law is not None
    assert law.populations == 59
    largest = law.largest(200)
    assert largest is not None
    assert largest == law.expected_scores[-1] <= 7
    fresh = [
        clients_law(schedule, np.ones(20), 200, seed=seed)
        for seed in range(2, 7)
    ]
    above = [law.shares[law.expected_scores > largest].sum() for law in fresh]
    assert np.mean(above) * 200 <= 0.15  # mean number above it
    assert clients_law(schedule, np.ones(20), 10**7) is None
    assert (
        expected_score_law(
            Poisson(20, 0.2).law(200).events, np.ones(20)
        ).largest(200)
        == 11.0
    )
