"""Poisson sampling and shuffled epochs."""

import numpy as np
import pytest
from case_ids import in_words

from fl_epe.schedules import Poisson, ShuffledEpochs, presence

SCHEDULES = [
    ShuffledEpochs(10, 1),
    ShuffledEpochs(7, 3),
    ShuffledEpochs(9, 2.5),
    ShuffledEpochs(4, 4),
    Poisson(10, 0.3),
]


def _presence(schedule, population, seed):
    return presence(schedule, population, np.random.default_rng(seed))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=in_words)
class TestEverySchedule:
    def test_cohorts_are_sorted_distinct_and_known(self, schedule):
        cohorts = list(schedule.cohorts(23, np.random.default_rng(0)))
        assert len(cohorts) == schedule.rounds
        for cohort in cohorts:
            assert np.array_equal(cohort, np.unique(cohort))
            assert np.all((cohort >= 0) & (cohort < 23))

    def test_a_seed_repeats(self, schedule):
        assert np.array_equal(
            _presence(schedule, 23, 5), _presence(schedule, 23, 5)
        )

    def test_marginals_are_uniform(self, schedule):
        runs = 400
        mean = np.mean(
            [_presence(schedule, 12, seed) for seed in range(runs)], axis=0
        )
        expected = schedule.cohort_size(12) / 12
        # a share of `runs` coins: four standard deviations, 12 × T cells; rounding moves a
        # cohort's size by at most one
        tolerance = 4.5 * np.sqrt(expected * (1 - expected) / runs) + 1 / 12
        assert np.all(np.abs(mean - expected) <= tolerance)

    def test_mean_participations(self, schedule):
        counts = np.mean(
            [_presence(schedule, 40, seed).sum() / 40 for seed in range(200)]
        )
        # exact for epochs; Poisson: 200 × 40 participants with variance rounds/4 at most
        assert counts == pytest.approx(
            schedule.participations(),
            abs=4 * np.sqrt(schedule.rounds / 4 / 8000),
        )


@pytest.mark.parametrize(
    ("rounds", "epochs"), [(10, 1), (7, 3), (9, 2.5), (60, 7), (5, 5)]
)
def test_epochs_take_everybody_equally_often(rounds, epochs):
    seen = _presence(ShuffledEpochs(rounds, epochs), 31, 3)
    assert set(seen.sum(axis=0)) <= {
        int(np.floor(epochs)),
        int(np.ceil(epochs)),
    }
    assert np.ptp(seen.sum(axis=1)) <= 1


def test_poisson_rounds_are_independent_coins():
    seen = np.stack(
        [_presence(Poisson(2, 0.4), 10, seed) for seed in range(500)]
    )
    both = np.mean(seen[:, 0] & seen[:, 1])
    # 5,000 pairs of coins
    assert both == pytest.approx(0.16, abs=4 * np.sqrt(0.16 * 0.84 / 5000))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: ShuffledEpochs(0, 1),
            "Expected rounds=0 >= 1",
            id="rounds=0-at-least-1",
        ),
        pytest.param(
            lambda: ShuffledEpochs(3, 4),
            r"Expected epochs=4 in \(0, rounds=3\]",
            id="epochs=4-in-0,rounds=3",
        ),
        pytest.param(
            lambda: ShuffledEpochs(3, 0),
            r"Expected epochs=0 in \(0, rounds=3\]",
            id="epochs=0-in-0,rounds=3",
        ),
        pytest.param(
            lambda: Poisson(3, 1.5),
            r"Expected rate=1.5 in \(0, 1\]",
            id="rate=1.5-in-0,1",
        ),
    ],
)
def test_schedules_that_cannot_be_met(make, message):
    with pytest.raises(ValueError, match=message):
        make()
