"""What each schedule promises."""

import numpy as np
import pytest
from case_ids import in_words
from every_schedule import CLIENTS, TRACE, T, assert_near, sizes_of

from fl_epe.schedules import Capped, Poisson, ShuffledEpochs, presence
from fl_epe.schedules.availability import DeviceClasses
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import (
    BallsInBins,
    Cyclic,
    FixedSize,
    MinSeparation,
)


@pytest.mark.parametrize(
    ("rate", "population"), [(0.3, 10), (0.03, 10), (0.21, 33)]
)
def test_fixed_sizes_are_even_and_right_on_average(rate, population):
    seen = presence(FixedSize(T, rate), population, np.random.default_rng(0))
    assert seen.sum() == round(rate * population * T)
    assert np.ptp(seen.sum(axis=1)) <= 1


def test_fixed_size_draws_every_pair():
    seen = np.stack(
        [
            presence(FixedSize(1, 0.5), 4, np.random.default_rng(s))
            for s in range(1200)
        ]
    )
    pairs = seen[:, 0] @ np.array([1, 2, 4, 8])
    # six pairs, each with probability 1/6
    assert_near(pairs[:, None] == [3, 5, 9, 6, 10, 12], 1 / 6)


@pytest.mark.parametrize(
    ("rate", "separation"), [(0.125, 5), (0.25, 4), (0.3, 3), (0.2, 1)]
)
@pytest.mark.parametrize("population", [7, 40, 101])
def test_separation_is_kept(rate, separation, population):
    seen = presence(
        MinSeparation(60, rate, separation),
        population,
        np.random.default_rng(1),
    )
    for t in range(60):
        assert seen[t : t + separation].sum(axis=0).max() <= 1
    sizes = seen.sum(axis=1)
    assert np.ptp(sizes) <= 1
    # one client fewer where rounding would ask for a client who has not rested
    assert abs(sizes.sum() - rate * population * 60) <= 1


def test_separation_draws_uniformly_among_the_rested():
    schedule = MinSeparation(4, 0.25, 3)
    cohorts = [
        [int(c[0]) for c in schedule.cohorts(4, np.random.default_rng(s))]
        for s in range(2400)
    ]
    codes = np.array(cohorts) @ np.array([64, 16, 4, 1])
    valid = [
        64 * a + 16 * b + 4 * c + d
        for a, b, c, d in np.ndindex(4, 4, 4, 4)
        if len({a, b, c}) == len({b, c, d}) == 3
    ]
    assert len(valid) == 4 * 3 * 2 * 2
    assert_near(codes[:, None] == valid, 1 / len(valid))


def test_device_classes_have_their_rates_and_shares():
    schedule = DeviceClasses(400, (0.02, 0.5), (0.8, 0.2))
    counts = presence(schedule, 2000, np.random.default_rng(2)).sum(axis=0)
    busy = counts > 100  # 8 ± 3 and 200 ± 10
    assert np.mean(busy) == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 2000))
    assert_near(counts[busy] / 400, 0.5)
    assert_near(counts[~busy] / 400, 0.02)


@pytest.mark.parametrize(
    ("rounds", "epochs"), [(20, 4), (20, 3), (33, 2.5), (50, 7.3), (6, 6)]
)
@pytest.mark.parametrize("population", [1, 8, 30, 41])
def test_cyclic_gaps_are_constant(rounds, epochs, population):
    seen = presence(
        Cyclic(rounds, epochs), population, np.random.default_rng(3)
    )
    gap = rounds * population / round(epochs * population)
    gaps = np.concatenate(
        [np.diff(np.flatnonzero(client)) for client in seen.T]
    )
    assert set(gaps) <= {int(np.floor(gap)), int(np.ceil(gap))}
    assert set(seen.sum(axis=0)) <= {
        int(np.floor(epochs)),
        int(np.ceil(epochs)),
    }
    assert np.ptp(seen.sum(axis=1)) <= 1


def test_each_block_has_everybody_once():
    schedule = BallsInBins(T, 3)
    seen = presence(schedule, 100, np.random.default_rng(0))
    blocks = np.array_split(seen, 3)
    assert all(np.all(block.sum(axis=0) == 1) for block in blocks)
    # independent of each other: 200 runs × 100 clients who pick one of 7 rounds
    runs = [
        presence(schedule, 100, np.random.default_rng(s)) for s in range(200)
    ]
    sizes = np.stack([run[:7].sum(axis=1) for run in runs])
    variance = 100 / 7 * (6 / 7)
    # the sample variance of a normal has relative standard error sqrt(2 / (n - 1))
    assert sizes.var(axis=0, ddof=1).mean() == pytest.approx(
        variance, rel=4 * np.sqrt(2 / (200 * 7 - 1))
    )


def _naive_cap(seen, per_run, per_window, window):
    kept = np.zeros_like(seen)
    for t, i in np.argwhere(seen):
        before = kept[max(t - window + 1, 0) : t, i].sum()
        kept[t, i] = kept[:t, i].sum() < per_run and before < per_window
    return kept


@pytest.mark.parametrize(
    ("per_run", "per_window", "window"),
    [
        (3, None, None),
        (None, 1, 4),
        (None, 2, 7),
        (4, 2, 5),
        (9, 3, 100),
        (2, 1, 1),
    ],
)
@pytest.mark.parametrize(
    "inner", [Poisson(30, 0.4), Cyclic(30, 9)], ids=in_words
)
def test_caps_equal_the_naive_ones(inner, per_run, per_window, window):
    schedule = Capped(inner, per_run, per_window, window)
    seen = presence(schedule, 25, np.random.default_rng(9))
    everything = presence(inner, 25, np.random.default_rng(9))
    naive = _naive_cap(everything, per_run or 30, per_window or 1, window or 1)
    assert np.array_equal(seen, naive)
    assert seen.sum(axis=0).max() <= schedule.most_participations()
    for t in range(30 if window else 0):
        assert seen[t : t + window].sum(axis=0).max() <= per_window


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        (Capped(Poisson(20, 1.0), per_run=3), 3),
        (Capped(Poisson(20, 1.0), per_window=2, window=6), 8),
        (MinSeparation(20, 1 / 6, 6), 4),
        (BallsInBins(20, 3), 3),
    ],
    ids=in_words,
)
def test_the_most_is_reached(schedule, most):
    seen = presence(schedule, 300, np.random.default_rng(0))
    assert schedule.most_participations() == most
    assert seen.sum(axis=0).max() == most


def test_a_cap_that_cannot_matter_is_exact():
    for schedule in (
        Capped(ShuffledEpochs(20, 3), per_run=3),
        Capped(BallsInBins(20, 3), per_run=7, per_window=3, window=9),
        Capped(Poisson(20, 0.3), per_run=20, per_window=9, window=9),
    ):
        assert schedule.participations() == schedule.schedule.participations()


def test_a_cap_inside_a_cap_is_the_smaller_one():
    coins = Poisson(20, 0.3)
    for inner, outer in ((3, 5), (5, 3)):
        nested = Capped(Capped(coins, per_run=inner), per_run=outer)
        events = nested.law(CLIENTS).events
        assert events == Capped(coins, per_run=3).law(CLIENTS).events
        assert events is not None


def test_capped_participations_are_simulated():
    schedule = Capped(Poisson(T, 0.2), per_run=2)
    truth = sizes_of(schedule).sum() / CLIENTS
    error = 0.6 / np.sqrt(
        10_000
    )  # ten runs of 1,000 clients with 0, 1 or 2 participations each
    assert abs(schedule.participations() - truth) <= 4 * error
    capped = Capped(TRACE, per_run=3)
    counts = np.bincount(TRACE.client_ids)
    assert capped.participations() == pytest.approx(
        np.minimum(counts, 3).mean(), rel=1e-12
    )


def test_drop_outs_are_independent_coins():
    schedule = DropOut(Poisson(4000, 1.0), 0.25)
    seen = presence(schedule, 10, np.random.default_rng(0))
    assert_near(seen, 0.75)
    assert_near(seen[:, :5] & seen[:, 5:], 0.75**2)
