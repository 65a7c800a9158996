"""A record that is in several steps of a round's release: mixtures of Gaussians."""

import numpy as np
import pytest
import scipy
from dp_accounting.pld import privacy_loss_distribution

from fl_epe.accounting import gaussian_epsilon, hidden_rounds_epsilon, poisson_epsilon, upper_bounds
from fl_epe.auditing.statistics import mixture_ratios
from fl_epe.schedules import Event, Events, ParticipationLaw


def equal_steps(rounds, steps, rate, records=1):
    """The arguments of so many equal steps before each release."""
    return [np.ones(steps)] * rounds, [rate] * rounds, records


def accounted(deviation, steps, rate, rounds, delta):
    """By dp-accounting's mixture of Gaussians."""
    counts = np.arange(steps + 1)
    chances = scipy.stats.binom.pmf(counts, steps, rate)
    counts, chances = counts[chances > 1e-15], chances[chances > 1e-15]
    law = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        deviation, counts.tolist(), (chances / chances.sum()).tolist()
    )
    return law.self_compose(rounds).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("silos", "steps", "rounds", "rate", "z", "upload", "partner", "average", "last"),
    [
        (3, 20, 30, 0.02, 1.0, 2.152, 1.415, 1.116, 1.111),
        (3, 20, 30, 0.02, 0.6, 4.219, 2.648, 2.052, 2.023),
        (3, 100, 50, 0.01, 1.0, 3.043, 2.038, 1.619, 1.617),
        (10, 20, 30, 0.02, 1.0, 2.152, 0.597, 0.563, 0.562),
    ],
    ids=["three", "less-noise", "long", "ten"],
)
def test_the_linear_limit_of_silos(silos, steps, rounds, rate, z, upload, partner, average, last):
    for others, expected in ((1, upload), (silos - 1, partner), (silos, average)):
        deviation = z * np.sqrt(steps * others)
        signals = np.full(rounds, 1 / deviation)
        found = hidden_rounds_epsilon(
            Events.steps(*equal_steps(rounds, steps, rate)), signals, 1e-5
        )
        assert found == pytest.approx(expected, abs=6e-4)
        assert found == pytest.approx(accounted(deviation, steps, rate, rounds, 1e-5), rel=1e-3)
    whole = np.array([1 / (z * np.sqrt(steps * rounds * silos))])
    events = Events.steps(*equal_steps(1, steps * rounds, rate))
    assert hidden_rounds_epsilon(events, whole, 1e-5) == pytest.approx(last, abs=6e-4)


@pytest.mark.parametrize(("rate", "rounds", "signal"), [(0.3, 5, 1.0), (0.01, 40, 3.0)])
def test_one_step_a_round_is_a_coin(rate, rounds, signal):
    coins, steps = Events.coins(np.full(rounds, rate)), Events.steps(*equal_steps(rounds, 1, rate))
    signals = np.full(rounds, signal)
    exact = hidden_rounds_epsilon(coins, signals, 1e-4)
    assert hidden_rounds_epsilon(steps, signals, 1e-4) == pytest.approx(exact, rel=1e-9)


def test_who_is_in_every_step_is_known():
    found = hidden_rounds_epsilon(Events.steps(*equal_steps(4, 3, 1.0)), np.full(4, 0.5), 1e-5)
    assert found == pytest.approx(gaussian_epsilon(1 / (3 * 0.5), 1e-5, 4), rel=1e-3)


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("signal", [0.01, 0.4, 2.0, 30.0])
def test_it_is_between_one_step_and_all_of_them(signal, delta):
    """Rounded upwards, and finite whatever the signal."""
    signals = np.full(3, signal)
    found = hidden_rounds_epsilon(Events.steps(*equal_steps(3, 4, 0.25)), signals, delta)
    fewer = hidden_rounds_epsilon(Events.steps(*equal_steps(3, 1, 0.25)), signals, delta)
    most = gaussian_epsilon(1 / (4 * signal), delta, 3)
    assert fewer * (1 - 1e-6) <= found <= most * (1 + 1e-9)
    if 0.01 < signal < 10:
        assert found >= accounted(1 / signal, 4, 0.25, 3, delta) * (1 - 2e-3)


def test_the_likelihood_ratio_of_counts():
    rng = np.random.default_rng(2)
    events, scores = Events.steps(*equal_steps(3, 4, 0.3)), rng.standard_normal((3, 50))
    signal = np.array([[0.5], [1.0], [2.0]])
    counts = np.arange(5)
    chances = scipy.stats.binom.pmf(counts, 4, 0.3)
    exact = np.zeros(50)
    for row, a in zip(scores, signal[:, 0], strict=True):
        parts = chances * np.exp(counts * a * row[:, None] - (counts * a) ** 2 / 2)
        exact += np.log(parts.sum(axis=1))
    np.testing.assert_allclose(mixture_ratios(scores, events, signal), exact, rtol=1e-10)


def test_what_an_event_is():
    coin = Event(np.array([3]), np.array([0.2]), np.ones(1))
    twice = Event(np.array([3]), np.array([0.2]), np.full(1, 2.0))
    block = Event(np.arange(4), np.full(4, 0.25), np.ones(4))
    assert (coin.is_coin, coin.in_one_round, coin.is_uniform) == (True, True, False)
    assert (twice.is_coin, twice.in_one_round, twice.is_uniform) == (False, True, False)
    assert (block.is_coin, block.in_one_round, block.is_uniform) == (False, False, True)
    assert block.chance == 1
    mixed = Events.blocks([(0, np.array([0.1, 0.3]))])
    assert mixed.independent == ()


def test_the_law_of_records():
    law = ParticipationLaw.of_records(*equal_steps(30, 20, 0.02))
    assert (law.unit, law.hidden, law.adjacency) == ("record", True, "add-or-remove")
    assert law.participations == pytest.approx(12)
    *_, every_step = upper_bounds(law, 1.0, 1e-5)
    assert every_step.epsilon == pytest.approx(poisson_epsilon(1.0, 0.02, 600, 1e-5))
    half = law.first(15)
    assert (half.limit, half.coins.rounds) == (300, 300)
    assert half.participations == pytest.approx(6)
    assert half == ParticipationLaw.of_records(*equal_steps(15, 20, 0.02))
    assert not ParticipationLaw.of_records(*equal_steps(4, 3, 1.0)).hidden
