"""A record that is in several steps of a round's release: mixtures of Gaussians."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy
from dp_accounting.pld import privacy_loss_distribution

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import (
    gaussian_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
    tightest,
    unknown_expected_score_epsilon,
    upper_bounds,
)
from fl_epe.auditing import AuditRecord, answers
from fl_epe.auditing.scoring.statistics import mixture_ratios
from fl_epe.checks import ArgumentError
from fl_epe.schedules import Coins, Event, Events, ParticipationLaw


def equal_steps(rounds, steps, rate, records=1):
    """The arguments of so many equal steps before each release."""
    return [np.ones(steps)] * rounds, [rate] * rounds, records


def accounted(deviation, steps, rate, rounds, delta):
    """By dp-accounting's mixture of Gaussians."""
    counts = np.arange(steps + 1)
    chances = scipy.stats.binom.pmf(counts, steps, rate)
    counts, chances = counts[chances > 1e-15], chances[chances > 1e-15]
    law = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        deviation,
        counts.tolist(),
        (chances / chances.sum()).tolist(),
        value_discretization_interval=1e-3,  # a tenth of the time of the default's
    )
    return law.self_compose(rounds).get_epsilon_for_delta(delta)


@pytest.mark.weekly
@pytest.mark.parametrize(
    (
        "silos",
        "steps",
        "rounds",
        "rate",
        "z",
        "upload",
        "partner",
        "average",
        "last",
    ),
    [
        (3, 20, 30, 0.02, 1.0, 2.152, 1.415, 1.116, 1.111),
        (3, 20, 30, 0.02, 0.6, 4.219, 2.648, 2.052, 2.023),
        (3, 100, 50, 0.01, 1.0, 3.043, 2.038, 1.619, 1.617),
        (10, 20, 30, 0.02, 1.0, 2.152, 0.597, 0.563, 0.562),
    ],
    ids=["three", "less-noise", "long", "ten"],
)
def test_the_linear_limit_of_silos(
    silos, steps, rounds, rate, z, upload, partner, average, last
):
    for others, expected in (
        (1, upload),
        (silos - 1, partner),
        (silos, average),
    ):
        deviation = z * np.sqrt(steps * others)
        signals = np.full(rounds, 1 / deviation)
        found = hidden_rounds_epsilon(
            Events.steps(*equal_steps(rounds, steps, rate)), signals, 1e-5
        )
        assert found == pytest.approx(expected, abs=6e-4)
        assert found == pytest.approx(
            accounted(deviation, steps, rate, rounds, 1e-5), rel=1e-3
        )
    whole = np.array([1 / (z * np.sqrt(steps * rounds * silos))])
    events = Events.steps(*equal_steps(1, steps * rounds, rate))
    assert hidden_rounds_epsilon(events, whole, 1e-5) == pytest.approx(
        last, abs=6e-4
    )


@pytest.mark.parametrize(
    ("rate", "rounds", "signal"), [(0.3, 5, 1.0), (0.01, 40, 3.0)]
)
def test_one_step_a_round_is_a_coin(rate, rounds, signal):
    coins, steps = (
        Events.coins(np.full(rounds, rate)),
        Events.steps(*equal_steps(rounds, 1, rate)),
    )
    signals = np.full(rounds, signal)
    exact = hidden_rounds_epsilon(coins, signals, 1e-4)
    assert hidden_rounds_epsilon(steps, signals, 1e-4) == pytest.approx(
        exact, rel=1e-9
    )


def test_who_is_in_every_step_is_known():
    found = hidden_rounds_epsilon(
        Events.steps(*equal_steps(4, 3, 1.0)), np.full(4, 0.5), 1e-5
    )
    assert found == pytest.approx(
        gaussian_epsilon(1 / (3 * 0.5), 1e-5, 4), rel=1e-3
    )


@pytest.mark.weekly
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("signal", [0.01, 0.4, 2.0, 30.0])
def test_it_is_between_one_step_and_all_of_them(signal, delta):
    """Rounded upwards, and finite whatever the signal."""
    signals = np.full(3, signal)
    found = hidden_rounds_epsilon(
        Events.steps(*equal_steps(3, 4, 0.25)), signals, delta
    )
    fewer = hidden_rounds_epsilon(
        Events.steps(*equal_steps(3, 1, 0.25)), signals, delta
    )
    most = gaussian_epsilon(1 / (4 * signal), delta, 3)
    assert fewer * (1 - 1e-6) <= found <= most * (1 + 1e-9)
    if 0.01 < signal < 10:
        assert found >= accounted(1 / signal, 4, 0.25, 3, delta) * (1 - 2e-3)


def test_the_likelihood_ratio_of_counts():
    rng = np.random.default_rng(2)
    events, scores = (
        Events.steps(*equal_steps(3, 4, 0.3)),
        rng.standard_normal((3, 50)),
    )
    signal = np.array([[0.5], [1.0], [2.0]])
    counts = np.arange(5)
    chances = scipy.stats.binom.pmf(counts, 4, 0.3)
    exact = np.zeros(50)
    for row, a in zip(scores, signal[:, 0], strict=True):
        parts = chances * np.exp(
            counts * a * row[:, None] - (counts * a) ** 2 / 2
        )
        exact += np.log(parts.sum(axis=1))
    np.testing.assert_allclose(
        mixture_ratios(scores, events, signal), exact, rtol=1e-10
    )


def test_what_an_event_is():
    coin = Event(np.array([3]), np.array([0.2]), np.ones(1))
    twice = Event(np.array([3]), np.array([0.2]), np.full(1, 2.0))
    block = Event(np.arange(4), np.full(4, 0.25), np.ones(4))
    assert (coin.is_coin, coin.in_one_round, coin.is_uniform) == (
        True,
        True,
        False,
    )
    assert (twice.is_coin, twice.in_one_round, twice.is_uniform) == (
        False,
        True,
        False,
    )
    assert (block.is_coin, block.in_one_round, block.is_uniform) == (
        False,
        False,
        True,
    )
    assert block.chance == 1
    (unequal,) = Events.blocks([(0, np.array([0.1, 0.3]))]).independent
    assert (unequal.is_coin, unequal.is_spread, unequal.is_uniform) == (
        False,
        True,
        False,
    )
    several = dataclasses.replace(
        Events.blocks([(0, np.ones(2) / 2)]), counts=np.array([1.0, 2.0])
    )
    assert several.independent == ()


def test_the_law_of_records():
    law = ParticipationLaw.of_records(*equal_steps(30, 20, 0.02))
    assert (law.unit, law.hidden, law.adjacency) == (
        "record",
        True,
        "add-or-remove",
    )
    assert law.participations == pytest.approx(12)
    *_, every_step = upper_bounds(law, 1.0, 1e-5)
    assert every_step.epsilon == pytest.approx(
        poisson_epsilon(1.0, 0.02, 600, 1e-5)
    )
    half = law.first(15)
    assert (half.limit, half.coins.rounds) == (300, 300)
    assert half.participations == pytest.approx(6)
    assert half == ParticipationLaw.of_records(*equal_steps(15, 20, 0.02))
    assert not ParticipationLaw.of_records(*equal_steps(4, 3, 1.0)).hidden


def test_one_step_of_one_record_in_every_release_is_plain_coins():
    events = Events.steps(
        [np.ones(1), np.empty(0), np.ones(1)], [0.1, 0.5, 0.2]
    )
    assert (events.counts, events.rounds.tolist()) == (None, [0, 2])
    np.testing.assert_allclose(events.chances, [0.1, 0.2])
    assert all(event.is_coin for event in events.independent)
    assert Events.steps(*equal_steps(3, 1, 0.1, records=2)).counts is not None


def every_subset(weights, rate, rounds):
    """The law of the sum of a record's steps, one row for each subset of them."""
    inside = np.array(list(itertools.product([0, 1], repeat=len(weights))))[1:]
    drawn = inside.sum(axis=1)
    chances = rate**drawn * (1 - rate) ** (len(weights) - drawn)
    events = np.repeat(np.arange(rounds), len(drawn))
    return Events(
        np.ones(1),
        np.zeros(len(events), np.int64),
        events,
        events,
        np.tile(chances, rounds),
        np.tile(inside @ weights, rounds),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights",
    [
        1 - 0.9 ** np.arange(8, 0, -1.0),
        0.4 ** np.arange(8.0),
        np.linspace(0.1, 1, 8),
    ],
    ids=["momentum", "decay", "linear"],
)
@pytest.mark.parametrize(
    ("rate", "signal", "delta"),
    [(0.02, 0.2, 1e-5), (0.5, 0.3, 1e-5), (0.1, 3.0, 1e-9)],
    ids=["rare", "often", "strong"],
)
def test_unequal_steps_are_as_the_sum_over_all_subsets(
    weights, rate, signal, delta
):
    """Rounded up, by less than 0.5%."""
    signals = np.full(5, signal)
    exact = hidden_rounds_epsilon(
        every_subset(weights, rate, 5), signals, delta
    )
    events = Events.steps([weights] * 5, [rate] * 5)
    assert len(events.rounds) <= 5 * 100
    found = hidden_rounds_epsilon(events, signals, delta)
    assert exact * (1 - 1e-9) <= found <= exact * 1.005
    mean = rate * weights.sum()
    assert events.counts is not None
    assert events.chances @ events.counts == pytest.approx(5 * mean)


def test_nearly_equal_steps_are_as_equal_ones():
    steps = np.ones(100)
    steps[0] = 1 - 1e-9
    signals = np.full(3, 0.2)
    found = hidden_rounds_epsilon(
        Events.steps([steps] * 3, [0.02] * 3), signals, 1e-5
    )
    exact = hidden_rounds_epsilon(
        Events.steps(*equal_steps(3, 100, 0.02)), signals, 1e-5
    )
    assert found == pytest.approx(exact, rel=2e-3)


def test_releases_of_their_own_steps_and_rates():
    steps, rates = (
        [np.ones(4), np.empty(0), 2 * np.ones(3), np.array([0.5, 1.0])],
        [0.1, 0, 1, 0.3],
    )
    law = ParticipationLaw.of_records(steps, rates)
    assert (law.rounds, law.most, law.hidden) == (4, 9, True)
    assert law.participations == pytest.approx(4 * 0.1 + 3 + 2 * 0.3)
    assert law.events is not None
    assert law.events.counts is not None
    assert law.events.counts[law.events.rounds == 2].tolist() == [6.0]
    assert np.unique(law.events.rounds).tolist() == [0, 2, 3]
    assert law.first(2) == dataclasses.replace(
        ParticipationLaw.of_records(steps[:2], rates[:2]), coins=Coins(4, 1.0)
    )
    assert ParticipationLaw.of_records([np.empty(0)], [0.1]).participations == 0


def test_theory_composes_the_rates_of_all_steps():
    law = ParticipationLaw.of_records(
        [np.ones(20)] * 4 + [np.ones(5)] * 8, [0.02] * 4 + [0.1] * 8
    )
    found = tightest(upper_bounds(law, 1.0, 1e-5), rounds_known=False).epsilon
    assert found < poisson_epsilon(1.0, 0.1, 120, 1e-5)
    assert found > poisson_epsilon(1.0, 0.1, 40, 1e-5)
    coins = Events.coins([0.02] * 80 + [0.1] * 40)
    assert found == hidden_rounds_epsilon(coins, np.ones(120), 1e-5)


def test_a_person_of_several_records():
    law = ParticipationLaw.of_records(*equal_steps(6, 5, 0.05, records=3))
    assert (law.unit, law.coins, law.most) == ("person of 3 records", None, 30)
    assert law.participations == pytest.approx(30 * (1 - 0.95**3))
    # As three coins in each of five steps.
    assert law.events == Events.steps(*equal_steps(6, 15, 0.05))
    known, unknown = upper_bounds(law, 1.5, 1e-5)
    assert known.epsilon == gaussian_epsilon(0.5, 1e-5, 30)
    assert not unknown.rounds_known
    one = poisson_epsilon(1.5, 0.05, 30, 1e-5)
    assert one < unknown.epsilon < known.epsilon
    # In a step two or three records at once are more than as many steps.
    assert unknown.epsilon > poisson_epsilon(1.5, 0.05, 90, 1e-5)
    uploads = hidden_rounds_epsilon(
        law.events, np.full(6, 1 / (1.5 * np.sqrt(5))), 1e-5
    )
    assert uploads < unknown.epsilon
    assert law.first(2) == ParticipationLaw.of_records(
        *equal_steps(2, 5, 0.05, records=3)
    )


def test_theory_of_a_person_is_a_mixture_of_gaussians():
    law = ParticipationLaw.of_records(*equal_steps(1, 1, 0.1, records=3))
    *_, found = upper_bounds(law, 2.0, 1e-5)
    times = np.arange(4)
    chances = scipy.stats.binom.pmf(times, 3, 0.1)
    exact = unknown_expected_score_epsilon(times / 2, 1e-5, weights=chances)
    assert found.epsilon == pytest.approx(exact, rel=1e-4)


def test_a_person_of_unequal_steps():
    weights = np.array([1.0, 0.5])
    signals = np.full(2, 0.5)
    found = hidden_rounds_epsilon(
        Events.steps([weights] * 2, [0.2] * 2, 3), signals, 1e-5
    )
    steps = np.repeat(weights, 3)  # a coin for each record in each step
    exact = hidden_rounds_epsilon(every_subset(steps, 0.2, 2), signals, 1e-5)
    assert exact <= found <= exact * 1.005


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": [0.1]}, "rates"),
        ({"rates": [0.1, 1.5]}, "rates"),
        ({"rates": [0.1, float("nan")]}, "rates"),
        ({"steps": [np.ones(2), np.array([-1.0, 2.0])]}, "steps"),
        ({"steps": [np.ones(2), np.array([np.nan])]}, "steps"),
        ({"steps": [np.ones(2), np.array([np.inf])]}, "steps"),
        ({"records": 0}, "records"),
        ({"records": 1.5}, "records"),
    ],
    ids=[
        "few",
        "rate",
        "nan-rate",
        "negative",
        "nan",
        "infinite",
        "none",
        "half",
    ],
)
def test_laws_of_records_that_cannot_be_are_refused(changes, message):
    good = {"steps": [np.ones(2)] * 2, "rates": [0.1, 0.2], "records": 1}
    with pytest.raises(ArgumentError, match=message):
        ParticipationLaw.of_records(**(good | changes))


def once_a_round(law, seed=3):
    """The record of a silo without dynamics, in whose rounds each canary is once or not at all."""
    rng = np.random.default_rng(seed)
    auditor = RunAuditor(200, 2, seed=seed, delta=1e-5, client=law, window=1)
    model = np.zeros(3000)
    auditor.begin(model)
    for steps in law.local.counts:
        present = np.flatnonzero(rng.random(200) < 0.05).tolist()
        vectors = auditor.canaries.vectors(present)
        noise = 0.8 * np.sqrt(steps) * rng.standard_normal(3000)
        model = model + vectors.sum(axis=0) + noise
        facts = RoundFacts(
            present, contribution=1.0, weights=[1.0] * len(present)
        )
        auditor.observe(model, facts, vectors)
    return auditor.record(noise_multiplier=0.8, sum_noise_multiplier=0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "may_be_twice", [False, True], ids=["one-step", "a-second-step"]
)
def test_canaries_that_were_once_in_each_of_their_rounds_have_an_answer(
    may_be_twice,
):
    """Also where the law would have allowed them to be in two steps of a round."""
    steps = [np.ones(1)] * 29 + [np.ones(1 + may_be_twice)]
    law = ParticipationLaw.of_records(steps, [0.05] * 30)
    assert (law.events.counts is not None) is may_be_twice
    record = once_a_round(law)
    assert record.mechanism.canary_weights is None
    signals = 1 / (0.8 * np.sqrt(law.local.counts))
    exact = hidden_rounds_epsilon(law.events, signals, 1e-5)
    final, every = answers(record)
    assert every.estimate.low < exact < every.estimate.high
    assert final.estimate is not None
    assert every.analytical.epsilon is not None
    assert every.analytical.epsilon >= exact * (1 - 1e-6)


def test_a_record_of_a_person_is_kept_in_a_file(tmp_path):
    law = ParticipationLaw.of_records([np.ones(1)] * 10, [0.05] * 10, records=2)
    record = once_a_round(law)
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert loaded.mechanism.participation == law
    assert loaded.mechanism.participation.local.records == 2
    for mine, other in zip(answers(loaded), answers(record), strict=True):
        assert (mine.estimate, mine.analytical) == (
            other.estimate,
            other.analytical,
        )
