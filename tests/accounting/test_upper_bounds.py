"""Analytical ε against dp-accounting and against what each schedule must satisfy."""

import math
import re

import dp_accounting
import numpy as np
import pytest
import scipy
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fl_epe import delta_two_gaussians
from fl_epe.accounting import (
    fixed_size_epsilon,
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.accounting.composed_gaussians import (
    epsilon_of_losses,
    random_participations_epsilon,
)


@pytest.mark.parametrize(
    ("noise_multiplier", "delta", "epsilon"),
    [
        (4.22, 1e-6, 1.0),
        (1.54, 1e-6, 3.0),
        (0.541, 1e-6, 10.0),
        (0.0496, 341_000**-1.1, 299.0),
        (0.0986, 341_000**-1.1, 99.2),
        (0.2317, 341_000**-1.1, 29.3),
    ],
)
def test_gaussian_facts(noise_multiplier, delta, epsilon):
    assert gaussian_epsilon(noise_multiplier, delta) == pytest.approx(
        epsilon, rel=0.005
    )


@pytest.mark.parametrize("participations", [1, 4, 15])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 20.0])
def test_gaussian_is_dp_accountings(noise_multiplier, participations):
    standard_deviation = noise_multiplier / math.sqrt(participations)
    theirs = dp_accounting.get_epsilon_gaussian(standard_deviation, 1e-6)
    ours = gaussian_epsilon(noise_multiplier, 1e-6, participations)
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_gaussian_round_trip():
    epsilon = gaussian_epsilon(0.8, 1e-7, 3)
    assert delta_two_gaussians(
        0, 1, math.sqrt(3) / 0.8, 1, epsilon
    ) == pytest.approx(1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "epsilon_of",
    [
        pytest.param(lambda z: gaussian_epsilon(z, 1e-6, 2), id="gaussian"),
        pytest.param(lambda z: poisson_epsilon(z, 0.1, 10, 1e-6), id="poisson"),
        pytest.param(
            lambda z: fixed_size_epsilon(z, 1000, 100, 10, 1e-6),
            id="fixed-size",
        ),
    ],
)
def test_no_noise_no_privacy_and_more_noise_more(epsilon_of):
    assert epsilon_of(0.0) == math.inf
    values = [epsilon_of(z) for z in (0.3, 1.0, 3.0, 30.0)]
    assert values == sorted(values, reverse=True)


def test_who_never_takes_part_loses_nothing():
    assert gaussian_epsilon(0.0, 1e-6, 0) == 0.0
    assert poisson_epsilon(0.0, 0.0, 10, 1e-6) == 0.0
    assert poisson_epsilon(1.0, 0.1, 0, 1e-6) == 0.0


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_rate", "rounds"),
    [(1.0, 0.01, 500), (0.5, 0.3, 20), (5, 0.2, 100)],
)
def test_poisson_is_dp_accountings(noise_multiplier, sampling_rate, rounds):
    """Above their optimistic estimate, and close to their pessimistic one on a fine grid."""
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian)
    fine = PLDAccountant(value_discretization_interval=5e-5).compose(
        event, rounds
    )
    ours = poisson_epsilon(noise_multiplier, sampling_rate, rounds, 1e-6)
    assert ours == pytest.approx(fine.get_epsilon(1e-6), rel=0.005)
    optimistic = (
        dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sampling_rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=False,
        ).self_compose(rounds)
    )
    assert ours >= optimistic.get_epsilon_for_delta(1e-6)


def test_poisson_amplifies():
    whole = gaussian_epsilon(1.0, 1e-6, 20)
    assert poisson_epsilon(1.0, 1.0, 20, 1e-6) == whole
    assert poisson_epsilon(1.0, 0.99, 20, 1e-6) <= whole
    assert poisson_epsilon(1.0, 0.1, 20, 1e-6) < whole / 3


@pytest.mark.parametrize("noise_multiplier", [1e-9, 0.001, 0.02, 0.05])
def test_poisson_without_much_noise_ends(noise_multiplier):
    """Losses of millions of nats must not be cut into steps of a hundredth."""
    epsilon = poisson_epsilon(noise_multiplier, 0.0005, 2048, 1e-6)
    once, ever = (
        gaussian_epsilon(noise_multiplier, 1e-6, times) for times in (1, 2048)
    )
    assert (
        once < epsilon <= ever
    )  # some clients are drawn more than once in a run
    assert (epsilon < ever / 100) == (noise_multiplier > 0.01)


@pytest.mark.weekly
@pytest.mark.parametrize("replace_one", [False, True])
@pytest.mark.parametrize(("rate", "rounds"), [(0.25, 40), (0.01, 300)])
def test_poisson_falls_with_noise_also_where_losses_are_large(
    rate, rounds, replace_one
):
    """Losses around 745 nats, whose e^−loss vanishes, are those of z between 0.1 and 0.2."""
    noise = np.geomspace(0.03, 0.4, 24)
    values = [
        poisson_epsilon(z, rate, rounds, 1e-5, replace_one=replace_one)
        for z in noise
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > 1000 > values[-1]


@pytest.mark.parametrize("noise_multiplier", [0.12, 0.125, 0.128, 0.13])
def test_poisson_with_little_noise_is_slightly_below_known_rounds(
    noise_multiplier,
):
    """The coins hide at most ln(1/q) in each round of a client.

    In 40 rounds a client of rate 1/4 takes part at most 30 times, except with probability 10⁻⁹.
    """
    law = scipy.stats.binom.pmf(np.arange(41), 40, 0.25)
    known = random_participations_epsilon(noise_multiplier, 1e-5, law)
    epsilon = poisson_epsilon(noise_multiplier, 0.25, 40, 1e-5)
    assert known - 30 * math.log(4) < epsilon < known


def test_losses_are_read_as_dp_accounting_reads_them():
    make = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism
    losses = make(
        0.8, sampling_prob=0.2, value_discretization_interval=1e-3
    ).self_compose(20)
    for delta in (1e-9, 1e-5, 0.1, 0.9):
        theirs = losses.get_epsilon_for_delta(delta)
        assert epsilon_of_losses(losses, delta) == pytest.approx(
            theirs, rel=1e-6
        )


def test_losses_that_are_infinite_too_often_have_no_epsilon():
    losses = (
        dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
            0.1, value_discretization_interval=0.1, log_mass_truncation_bound=-5
        )
    )
    assert epsilon_of_losses(losses, 1e-4) == math.inf


@pytest.mark.parametrize("other", [-1.0, -0.6, 0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    ("rate", "noise"), [(0.02, 1.0), (0.3, 2.0), (0.3, 0.5)]
)
def test_fixed_size_holds_whatever_the_others_send(rate, noise, other):
    """By the divergence of a round, on a grid; δ is chosen, and ε is then below the bound."""
    line = np.linspace(-12 - 2 / noise, 12 + 2 / noise, 200_001)
    masses = [
        scipy.stats.norm.pdf(line - x / noise) * (line[1] - line[0])
        for x in (1, 0, other)
    ]
    present, absent = (
        rate * mass + (1 - rate) * masses[2] for mass in masses[:2]
    )
    bound = fixed_size_epsilon(noise, 1000, round(1000 * rate), 1, 1e-4)
    deltas = [
        np.maximum(one - math.exp(bound) * two, 0).sum()
        for one, two in ((present, absent), (absent, present))
    ]
    assert max(deltas) <= 1e-4 * (1 + 1e-6)
    if other == -1:  # the worst
        assert max(deltas) == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            (-1.0, 100, 10, 5, 1e-5), "noise_multiplier=-1.0", id="noise"
        ),
        pytest.param(
            (1.0, 100, 200, 5, 1e-5), "cohort=200 from 1 to 100", id="too-large"
        ),
        pytest.param(
            (1.0, 100, 0, 5, 1e-5), "cohort=0 from 1 to 100", id="empty"
        ),
        pytest.param((1.0, 100, 10, 5, 1.5), "delta=1.5", id="delta"),
    ],
)
def test_fixed_size_refuses_what_it_has_no_answer_for(given, message):
    with pytest.raises(ValueError, match=message):
        fixed_size_epsilon(*given)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1.0, 2.0, 4.0])
def test_fixed_size_composes(noise):
    """Beside the losses of the worst updates, drawn; docs/notes/fixed-size.md has more."""
    rng, rate, rounds = np.random.default_rng(44), 0.1, 20
    shifts = np.where(rng.random((100_000, rounds)) < rate, 1, -1) / noise
    scores = shifts + rng.standard_normal(shifts.shape)
    here, there = (sign * scores / noise - 0.5 / noise**2 for sign in (1, -1))
    rest = math.log(1 - rate) + there
    ratio = np.logaddexp(math.log(rate) + here, rest) - np.logaddexp(
        math.log(rate), rest
    )
    bound = fixed_size_epsilon(noise, 1000, 100, rounds, 1e-2)
    excess = -np.expm1(np.minimum(bound - ratio.sum(axis=1), 0))
    error = excess.std() / math.sqrt(len(excess))
    assert 0.008 - 3 * error < excess.mean() < 0.01 + 3 * error


def test_fixed_size_is_above_coins_and_below_what_renyi_allows():
    """Of replace-one, of which zero-out is a case (Wang, Balle, Kasiviswanathan 2019)."""
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 20, dp_accounting.GaussianDpEvent(0.5)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    renyi = (
        RdpAccountant(neighboring_relation=relation)
        .compose(event, 50)
        .get_epsilon(1e-6)
    )
    found = fixed_size_epsilon(1.0, 1000, 20, 50, 1e-6)
    assert poisson_epsilon(1.0, 0.02, 50, 1e-6) < found < 0.6 * renyi


def test_fixed_size_is_never_worse_than_without_sampling():
    whole = gaussian_epsilon(1.0, 1e-6, 10)
    assert fixed_size_epsilon(1.0, 100, 100, 10, 1e-6) == whole
    assert fixed_size_epsilon(1.0, 100, 90, 10, 1e-6) <= whole


@pytest.mark.parametrize(
    "noise_multiplier", [5e-324, 1e-300, 1e-160, 1e-140, 1e-100, 1e-20]
)
def test_hardly_any_noise(noise_multiplier):
    """A defined answer: above that of one participation, or infinite where it would overflow."""
    epsilon = random_participations_epsilon(
        noise_multiplier, 1e-5, [0.5, 0.25, 0.25]
    )
    assert epsilon >= gaussian_epsilon(noise_multiplier, 1e-5)
    assert math.isinf(epsilon) == (noise_multiplier <= 1e-140)
    assert fixed_size_epsilon(noise_multiplier, 100, 10, 10, 1e-5) >= epsilon
    assert poisson_epsilon(noise_multiplier, 0.1, 10, 1e-5) >= gaussian_epsilon(
        noise_multiplier, 1e-5
    )


@pytest.mark.parametrize("noise_multiplier", [1e20, 1e100, 1e300])
def test_a_great_deal_of_noise(noise_multiplier):
    assert (
        random_participations_epsilon(noise_multiplier, 1e-5, [0.5, 0.25, 0.25])
        == 0
    )
    assert fixed_size_epsilon(noise_multiplier, 100, 10, 10, 1e-5) == 0
    assert poisson_epsilon(noise_multiplier, 0.1, 10, 1e-5) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda: gaussian_epsilon(-1.0, 1e-6),
            "Expected noise_multiplier=-1.0 >= 0 and finite.",
            id="noise_multiplier=-1.0-at-least-0-and-finite",
        ),
        pytest.param(
            lambda: gaussian_epsilon(math.nan, 1e-6),
            "Expected noise_multiplier=nan >= 0",
            id="noise_multiplier=nan-at-least-0",
        ),
        pytest.param(
            lambda: gaussian_epsilon(1.0, 0.0),
            "Expected delta=0.0 in (0, 1).",
            id="delta=0.0-in-0,1",
        ),
        pytest.param(
            lambda: gaussian_epsilon(1.0, 1e-6, -1),
            "Expected participations=-1 >= 0.",
            id="participations=-1-at-least-0",
        ),
        pytest.param(
            lambda: poisson_epsilon(1.0, 1.5, 1, 1e-6),
            "Expected sampling_rate=1.5 in [0, 1].",
            id="sampling_rate=1.5-in-0,1",
        ),
        pytest.param(
            lambda: poisson_epsilon(1.0, 0.5, -1, 1e-6),
            "Expected rounds=-1 >= 0.",
            id="rounds=-1-at-least-0",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
