"""k out of t: a uniform subset of the rounds, which nobody is told."""

import itertools
import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import (
    expected_score_law,
    poisson_epsilon,
    tightest,
    upper_bounds,
)
from fl_epe.auditing import answers
from fl_epe.limit import limit_record
from fl_epe.schedules import make_schedule, presence

DELTA = 1e-3


def theory(kind, rounds, count, noise):
    law = make_schedule(kind, rounds, count).law(1000)
    return tightest(upper_bounds(law, noise, DELTA), rounds_known=False)


def test_every_subset_is_as_likely():
    seen = presence(
        make_schedule("k-out-of-t", 4, 2), 30_000, np.random.default_rng(0)
    )
    codes, counts = np.unique(np.array([1, 2, 4, 8]) @ seen, return_counts=True)
    assert codes.tolist() == [3, 5, 6, 9, 10, 12]
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("rounds", "count"), [(7, 1), (7, 3), (7, 7), (40, 5)])
def test_the_number_of_rounds_is_certain_and_their_weights_are_those_of_all_subsets(
    rounds, count
):
    events = make_schedule("k-out-of-t", rounds, count).law(10).events
    law = expected_score_law(events, np.ones(rounds))
    assert law.expected_scores.tolist() == [count]
    weights = np.arange(1.0, rounds + 1)
    law = expected_score_law(events, weights)
    if rounds < 10:
        sums = [sum(each) for each in itertools.combinations(weights, count)]
        values, numbers = np.unique(sums, return_counts=True)
        assert law.expected_scores == pytest.approx(values, rel=1e-3)
        assert law.shares == pytest.approx(numbers / len(sums))
    assert law.expected_scores @ law.shares == pytest.approx(
        weights.mean() * count, rel=1e-3
    )


def test_a_run_that_ends_early_has_a_hypergeometric_number():
    events = make_schedule("k-out-of-t", 12, 4).law(10).first(5).events
    law = expected_score_law(events, np.ones(5))
    expected = scipy.stats.hypergeom(12, 4, 5).pmf(law.expected_scores)
    assert law.shares == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_theory_is_above_the_exact_ratio_and_below_coins(noise):
    """The likelihood ratio of all 15 subsets, drawn."""
    rng, draws, rounds, count = np.random.default_rng(44), 100_000, 6, 2
    subsets = np.array(list(itertools.combinations(range(rounds), count)))
    scores = rng.standard_normal((draws, rounds))
    own = subsets[rng.integers(len(subsets), size=draws)]
    present = scores.copy()
    np.put_along_axis(
        present, own, np.take_along_axis(present, own, 1) + 1 / noise, 1
    )

    def ratio(seen):
        terms = seen / noise - 0.5 / noise**2
        sums = terms[:, subsets].sum(axis=2)
        return scipy.special.logsumexp(sums, axis=1) - math.log(len(subsets))

    found = theory("k-out-of-t", rounds, count, noise)
    assert (found.adjacency, found.rounds_known) == ("zero-out", False)
    assert found.epsilon == pytest.approx(
        theory("balls-in-bins", rounds, count, noise).epsilon
    )
    assert found.epsilon < poisson_epsilon(noise, count / rounds, rounds, DELTA)
    for losses in (ratio(present), -ratio(scores)):
        excess = -np.expm1(np.minimum(found.epsilon - losses, 0))
        assert excess.mean() < DELTA + 3 * excess.std() / math.sqrt(draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "count"),
    [("k-out-of-t", 4), ("b-min-sep:separation=4", 3)],
    ids=["k", "b"],
)
def test_canaries_measure_it(spec, count):
    """Of schedules whose rounds depend on each other, by events that lose at least as much."""
    schedule = make_schedule(spec, 24, count)
    record = limit_record(
        schedule, 1.0, num_canaries=200, unobserved=2, delta=1e-5, seed=3
    )
    _, every = answers(record)
    assert not every.adversary.knows_rounds
    assert every.reason == ""
    assert every.estimate is not None
    assert every.analytical.epsilon is not None
    assert every.estimate.low < every.analytical.epsilon < every.estimate.high
    assert (every.proved or 0) < every.analytical.epsilon


def test_the_number_must_be_whole():
    with pytest.raises(ValueError, match=r"participations=2\.5"):
        make_schedule("k-out-of-t", 10, 2.5)
