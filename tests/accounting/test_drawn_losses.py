"""ε of secret rounds by drawn losses: against all sets of rounds, exact ε and misuse."""

import itertools

import numpy as np
import pytest

from fl_epe.accounting import (
    drawn_epsilon,
    poisson_epsilon,
    strategy_bounds,
    tightest,
)
from fl_epe.accounting.drawn_losses import secret_rounds
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import make_schedule

CLIENTS = 1000


def drawn(law, strategy, z, delta, **settings):
    """`drawn_epsilon` of a law that has one."""
    found = drawn_epsilon(law, strategy, z, delta, **settings)
    assert found is not None
    return found


def sets_of(spec, rounds, often):
    """All sets of rounds of a client, ``(sets, T)``, and their probabilities."""
    kind, *options = spec.split(":separation=")
    schedule = make_schedule(spec, rounds, often)
    found = {}
    if kind == "balls-in-bins":
        for each in itertools.product(
            *(range(*block) for block in schedule.law(1).blocks)
        ):
            found[each] = 1.0
    else:
        separation = int(options[0]) if options else 1
        rate = often / rounds
        coin = rate / (1 - (separation - 1) * rate)

        def follow(t, rested_at, chosen, chance):
            if t >= rounds:
                found[chosen] = found.get(chosen, 0) + chance
            elif t < rested_at:
                follow(t + 1, rested_at, chosen, chance)
            else:
                follow(t + 1, t + separation, (*chosen, t), chance * coin)
                if coin < 1:
                    follow(t + 1, rested_at, chosen, chance * (1 - coin))

        for wait in range(
            separation
        ):  # stationary: a participation before the run
            share = rate if wait else 1 - (separation - 1) * rate
            follow(0, wait, (), share)
    members = np.zeros((len(found), rounds))
    for row, chosen in zip(members, found, strict=True):
        row[list(chosen)] = 1
    shares = np.array(list(found.values()))
    return members, shares / shares.sum()


@pytest.mark.parametrize(
    ("spec", "rounds", "often", "mechanism"),
    [
        ("b-min-sep:separation=3", 10, 2, "banded:bands=3"),
        ("b-min-sep:separation=2", 9, 3, "banded:bands=4"),
        ("b-min-sep:separation=4", 9, 2, "independent"),
        ("b-min-sep:separation=3", 9, 3, "toeplitz:bands=2"),
        ("balls-in-bins", 9, 3, "banded:bands=3"),
        ("balls-in-bins", 10, 2, "toeplitz:bands=4"),
        ("balls-in-bins", 7, 2, "independent"),
        ("poisson", 8, 3, "banded:bands=2"),
    ],
)
def test_the_recursion_has_the_ratio_of_the_mixture_of_all_sets(
    spec, rounds, often, mechanism
):
    z = 0.7
    members, shares = sets_of(spec, rounds, often)
    strategy = strategy_matrix(mechanism, rounds)
    columns = np.eye(rounds) if strategy is None else strategy
    chain = secret_rounds(
        make_schedule(spec, rounds, often).law(CLIENTS), strategy, z
    )
    size = np.abs(columns) / np.minimum(np.linalg.norm(columns, axis=0), 1)
    products = size.T @ size
    scores = np.random.default_rng(1).normal(0, 2, (rounds, 6))
    sizes = np.einsum("is,st,it->i", members, products, members) / z**2
    expected = np.log(shares @ np.exp(members @ scores - sizes[:, None] / 2))
    np.testing.assert_allclose(
        chain.log_ratios(scores), expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    "spec", ["b-min-sep:separation=3", "balls-in-bins", "poisson"]
)
def test_drawn_clients_have_the_law_and_scores_their_covariance(spec):
    rounds, often, z, draws = 9, 3, 0.8, 40_000
    members, shares = sets_of(spec, rounds, often)
    strategy = strategy_matrix("toeplitz:bands=2", rounds)
    chain = secret_rounds(
        make_schedule(spec, rounds, often).law(CLIENTS), strategy, z
    )
    present = chain.presence(draws, np.random.default_rng(2))
    code = 2 ** np.arange(rounds)
    seen = (
        np.bincount((code @ present).astype(int), minlength=2**rounds) / draws
    )
    expected = np.zeros(2**rounds)
    expected[(members @ code).astype(int)] = shares
    assert (
        np.max(
            np.abs(seen - expected) / np.sqrt((expected + 1 / draws) / draws)
        )
        < 5
    )
    scores = chain._noise(draws, np.random.default_rng(3))
    assert np.cov(scores) == pytest.approx(chain.signals.toarray(), abs=0.05)
    loss_with, loss_without = chain.losses(draws, np.random.default_rng(4))
    # The mean likelihood ratio without the client is 1, and so is its inverse's with the client.
    for each in (np.exp(-loss_with), np.exp(-loss_without)):
        assert each.mean() == pytest.approx(
            1, abs=5 * each.std() / np.sqrt(draws)
        )


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
def test_the_bound_is_above_the_exact_epsilon_and_near_it(z):
    law = make_schedule("poisson", 24, 3).law(CLIENTS)
    exact = poisson_epsilon(z, 3 / 24, 24, 1e-2)
    found = [
        drawn(
            law, np.eye(24), z, 1e-2, draws=50_000, seed=seed, confidence=0.95
        )
        for seed in range(20)
    ]
    assert sum(each < exact for each in found) <= 2  # Chernoff's bound is wide
    assert np.median(found) == pytest.approx(exact, rel=0.08)


def test_half_a_confidence_is_less_often_right():
    law = make_schedule("poisson", 24, 3).law(CLIENTS)
    few, many = (
        drawn(
            law, np.eye(24), 1.0, 1e-2, draws=20_000, seed=0, confidence=level
        )
        for level in (0.5, 0.999)
    )
    assert few < many


def test_correlated_noise_amplifies_more_than_the_reduction_says():
    law, strategy = (
        make_schedule("balls-in-bins", 64, 2).law(CLIENTS),
        strategy_matrix("banded:bands=4", 64),
    )
    theorem = tightest(
        strategy_bounds(law, strategy, 1.0, 1e-2), rounds_known=False
    ).epsilon
    assert drawn(law, strategy, 1.0, 1e-2, draws=30_000, seed=0) < 0.6 * theorem


@pytest.mark.parametrize(
    ("spec", "bands"),
    [
        ("fixed-size", 1),  # clients depend on each other
        ("epochs", 1),
        ("cyclic", 1),  # nothing is hidden
        ("k-out-of-t", 1),
        ("capped:of=poisson,per_run=2", 1),
        ("min-separation:separation=3", 1),
        ("poisson", 3),  # three rounds may share noise
        ("b-min-sep:separation=2", 5),
        ("balls-in-bins", 12),
    ],
)
def test_other_laws_have_no_drawn_epsilon(spec, bands):
    law = make_schedule(spec, 12, 3).law(CLIENTS)
    strategy = strategy_matrix(f"toeplitz:bands={bands}", 12)
    assert drawn_epsilon(law, strategy, 1.0, 1e-2, draws=10_000, seed=0) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draws": 100}, "draws=100 more than 757"),
        ({"draws": 0}, "draws"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ],
    ids=["too-few-draws", "no-draws", "delta", "confidence", "no-noise"],
)
def test_what_cannot_be_bounded_is_refused(changed, message):
    law = make_schedule("poisson", 12, 3).law(CLIENTS)
    values = {
        "noise_multiplier": 1.0,
        "delta": 1e-2,
        "draws": 10_000,
        "seed": 0,
    } | changed
    with pytest.raises(ValueError, match=message):
        drawn_epsilon(law, np.eye(12), **values)


def test_little_noise_overflows_nothing():
    law = make_schedule("b-min-sep:separation=4", 40, 8).law(CLIENTS)
    assert 0 < drawn(law, np.eye(40), 0.05, 1e-2, draws=2000, seed=0) < np.inf
