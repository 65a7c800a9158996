"""Amplified bounds for correlated noise, against sampled mixtures and jax_privacy."""

import itertools

import numpy as np
import pytest

from fl_epe.accounting import (
    gaussian_epsilon,
    poisson_epsilon,
    strategy_bounds,
    tightest,
)
from fl_epe.accounting.composed_gaussians import _pld_epsilon
from fl_epe.mechanism.strategies import banded, toeplitz
from fl_epe.schedules import Capped, Poisson, make_schedule
from fl_epe.schedules.composed import DropOut

CLIENTS, DRAWS = 100, 100_000


def bounds(schedule, strategy, z=1.0, delta=1e-5):
    """ε for known and for unknown rounds."""
    found = strategy_bounds(schedule.law(CLIENTS), strategy.matrix(), z, delta)
    return tuple(
        tightest(found, rounds_known=known).epsilon for known in (True, False)
    )


def deltas(strategy, sets, shares, z, epsilon):
    """δ(ε) in both directions of a client with these sets of rounds, and standard errors."""
    rng = np.random.default_rng(0)
    here = np.zeros((len(strategy.rows), len(sets)))
    for column, rounds in zip(here.T, sets, strict=True):
        column[list(rounds)] = 1
    means = strategy.matrix() @ here / z
    seen = rng.standard_normal((DRAWS, len(means)))
    drawn = rng.choice(len(sets), DRAWS, p=shares)

    def losses(x):
        return np.log(np.exp(x @ means - np.sum(means**2, axis=0) / 2) @ shares)

    removed, added = losses(seen + means.T[drawn]), -losses(seen)
    gains = [
        np.maximum(-np.expm1(epsilon - each), 0) for each in (removed, added)
    ]
    return [(each.mean(), each.std() / np.sqrt(DRAWS)) for each in gains]


def check(strategy, sets, shares, z, delta, epsilon):
    truth = deltas(strategy, sets, np.asarray(shares), z, epsilon)
    assert all(mean <= delta + 4 * error for mean, error in truth)
    return max(truth)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "bands"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
)
@pytest.mark.parametrize("z", [0.6, 2.0])
def test_no_round_of_each_block_leaks_more(blocks, bands, z):
    length, delta = 4 * bands - 1, 5e-3
    schedule = make_schedule("balls-in-bins", blocks * length, blocks)
    strategy = banded(schedule.rounds, bands)
    known, unknown = bounds(schedule, strategy, z, delta)
    assert unknown < known
    sets = list(
        itertools.product(*(range(a, b) for a, b in schedule.law(1).blocks))
    )
    mean, error = check(
        strategy, sets, np.full(len(sets), 1 / len(sets)), z, delta, unknown
    )
    if bands == 1:  # then it is exact
        assert mean == pytest.approx(delta, abs=5 * error)


@pytest.mark.parametrize("bands", [1, 3, 4])
def test_coins_leak_as_much_as_with_independent_noise(bands):
    schedule, z, delta = DropOut(make_schedule("cyclic", 12, 3), 0.7), 0.6, 1e-2
    strategy = banded(12, bands)
    known, unknown = bounds(schedule, strategy, z, delta)
    assert known == pytest.approx(gaussian_epsilon(z, delta, 3))
    assert unknown == pytest.approx(poisson_epsilon(z, 0.3, 3, delta))
    assert unknown < known
    sets = [s for k in range(4) for s in itertools.combinations((1, 5, 9), k)]
    mean, error = check(
        strategy,
        sets,
        [0.3 ** len(s) * 0.7 ** (3 - len(s)) for s in sets],
        z,
        delta,
        unknown,
    )
    assert mean == pytest.approx(
        delta, rel=0.02, abs=5 * error
    )  # the grid's error is about 1%


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "rounds", "often", "bands", "z", "delta", "expected"),
    [
        # jax_privacy 2.0.0: DpsgdTrainingAccountant with cycle_length 16 and 8.
        (
            "drop-out:of=cyclic,rate=0.5",
            64,
            2,
            16,
            1.0,
            1e-5,
            6.676961019457809,
        ),
        (
            "drop-out:of=cyclic,rate=0.75",
            96,
            3,
            8,
            0.7,
            1e-6,
            13.879407496799544,
        ),
    ],
    ids=["two-rounds", "three-rounds"],
)
def test_coins_have_the_values_of_jax_privacy(
    spec, rounds, often, bands, z, delta, expected
):
    schedule = make_schedule(spec, rounds, often)
    found = strategy_bounds(
        schedule.law(320), banded(rounds, bands).matrix(), z, delta
    )
    assert expected * (1 - 1e-3) < found[-1].epsilon < expected * 1.01
    pattern = schedule.law(320)
    same = _pld_epsilon(
        z, pattern.coins.rate, pattern.coins.rounds, delta, False, 1e-4
    )  # on its grid
    assert same == pytest.approx(expected, rel=1e-6)


# jax_privacy 2.0.0: get_privacy_loss_sample of BallsInBinsSampling(16, 16), 100,000 losses of
# each direction, z = 0.8. The larger δ at ε = 1, and its standard error.
@pytest.mark.parametrize(
    ("bands", "delta", "error"), [(1, 8.11e-3, 1.7e-4), (4, 2.71e-2, 3.2e-4)]
)
def test_a_round_of_a_block_has_the_delta_of_jax_privacy(bands, delta, error):
    strategy, schedule = (
        toeplitz(16, bands),
        make_schedule("balls-in-bins", 16, 1),
    )
    assert bounds(schedule, strategy, 0.8, delta - 4 * error)[1] > 1
    if bands == 1:
        assert bounds(schedule, strategy, 0.8, delta + 4 * error)[1] < 1


@pytest.mark.parametrize(
    ("schedule", "bands"),
    [
        pytest.param(
            DropOut(make_schedule("cyclic", 12, 3), 0.5), 5, id="too-many-bands"
        ),
        pytest.param(
            Poisson(12, 0.5), 2, id="coins-in-rounds-beside-each-other"
        ),
        pytest.param(
            Capped(DropOut(make_schedule("cyclic", 12, 3), 0.5), 2),
            2,
            id="a-cap-depends-on-the-past",
        ),
        pytest.param(
            Capped(make_schedule("balls-in-bins", 12, 2), 1),
            1,
            id="a-capped-block",
        ),
        pytest.param(
            make_schedule("epochs", 12, 2), 1, id="clients-depend-on-each-other"
        ),
        pytest.param(make_schedule("cyclic", 12, 2), 2, id="no-coin"),
        pytest.param(
            make_schedule("balls-in-bins", 12, 4), 3, id="blocks-too-short"
        ),
        pytest.param(make_schedule("balls-in-bins", 12, 1), 12, id="all-bands"),
    ],
)
def test_nothing_is_amplified_without_a_theorem(schedule, bands):
    assert (
        len(
            strategy_bounds(
                schedule.law(CLIENTS), banded(12, bands).matrix(), 1.0, 1e-5
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    "schedule", [Poisson(12, 0.5), make_schedule("balls-in-bins", 12, 2)]
)
@pytest.mark.parametrize("z", [0.0, 1e-200, 1e-9, 1e-3, 1e4, 1e12])
def test_any_noise_has_a_bound(schedule, z):
    known, unknown = bounds(schedule, banded(12, 1), z)
    assert 0 <= unknown <= known


def test_dropping_out_of_a_block_weakens_nothing():
    inner = make_schedule("balls-in-bins", 64, 2)
    whole, thinned = (
        bounds(s, banded(64, 4)) for s in (inner, DropOut(inner, 0.5))
    )
    assert thinned == pytest.approx(whole)
    assert bounds(
        DropOut(DropOut(make_schedule("cyclic", 64, 2), 0.5), 0.5),
        banded(64, 4),
    )[1] == pytest.approx(poisson_epsilon(1.0, 0.25, 2, 1e-5))


def test_a_longer_column_costs_more():
    strategy = banded(64, 4)
    matrix = 2 * strategy.matrix()
    found = strategy_bounds(
        make_schedule("balls-in-bins", 64, 1).law(CLIENTS), matrix, 2.0, 1e-5
    )
    assert [b.epsilon for b in found] == pytest.approx(
        bounds(make_schedule("balls-in-bins", 64, 1), strategy)
    )
