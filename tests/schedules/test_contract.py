"""What every schedule has in common."""

import hashlib
import subprocess
import sys
from pathlib import Path

import missing
import numpy as np
import pytest
from case_ids import in_words
from every_schedule import (
    CLIENTS,
    EVERY,
    RUNS,
    T,
    assert_near,
    runs_of,
    sizes_of,
)

from fl_epe.schedules import SCHEDULES, Capped, presence


def digests():
    """A hash of every schedule's cohorts."""
    return [
        hashlib.sha256(
            presence(schedule, 23, np.random.default_rng(3)).tobytes()
        ).hexdigest()
        for schedule in EVERY
    ]


@pytest.mark.parametrize("schedule", EVERY, ids=in_words)
class TestEverySchedule:
    @pytest.mark.parametrize("population", [0, 1, 5, 23])
    def test_cohorts_are_sorted_distinct_and_known(self, schedule, population):
        cohorts = list(schedule.cohorts(population, np.random.default_rng(0)))
        assert len(cohorts) == schedule.rounds
        for cohort in cohorts:
            assert cohort.dtype == np.int64
            assert np.array_equal(cohort, np.unique(cohort))
            assert np.all((cohort >= 0) & (cohort < population))

    @pytest.mark.slow
    def test_every_round_has_its_expected_size(self, schedule):
        sizes = sizes_of(schedule)
        if sizes is not None:
            assert_near(runs_of(schedule).sum(axis=2), sizes)

    @pytest.mark.slow
    def test_everybody_takes_part_as_often_as_expected(self, schedule):
        # 40 clients × 19 schedules, so that one in a thousand beyond 4 is no surprise
        assert_near(
            runs_of(schedule).sum(axis=1), schedule.participations(), errors=4.5
        )

    def test_the_mean_is_as_expected(self, schedule):
        counts = runs_of(schedule).sum(axis=1)
        means = counts.mean(axis=1)
        # `Capped` simulates its mean, with ten runs of 1,000 clients
        simulated = (
            counts.std() / np.sqrt(10_000)
            if isinstance(schedule, Capped)
            else 0.0
        )
        error = np.hypot(means.std(ddof=1) / np.sqrt(RUNS), simulated)
        assert abs(means.mean() - schedule.participations()) <= 4 * error + 1e-9

    def test_nobody_takes_part_more_than_the_most(self, schedule):
        most = schedule.most_participations()
        assert 1 <= most <= T
        assert runs_of(schedule).sum(axis=1).max() <= most
        for population in (1, 3, 7):
            seen = presence(schedule, population, np.random.default_rng(8))
            assert seen.sum(axis=0).max() <= most

    def test_some_clients_take_part_as_all_do(self, schedule):
        # canaries among the clients: the first quarter against the others, run by run
        seen, k = runs_of(schedule), CLIENTS // 4
        counts = seen.sum(axis=1)
        middle = (np.arange(T)[:, None] * seen).sum(axis=1)
        for statistic in (counts, counts**2, counts == counts.max(), middle):
            assert_near(
                statistic[:, :k].mean(axis=1) - statistic[:, k:].mean(axis=1), 0
            )

    def test_neighbours_are_strangers(self, schedule):
        # any two clients meet as often as any other two
        seen = runs_of(schedule)
        near, far = (
            seen & np.roll(seen, by, axis=2) for by in (1, CLIENTS // 2)
        )
        assert_near(near.mean(axis=(1, 2)) - far.mean(axis=(1, 2)), 0)

    def test_a_seed_repeats_and_another_differs(self, schedule):
        first, again, other = (
            presence(schedule, 23, np.random.default_rng(s)) for s in (5, 5, 6)
        )
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_hashable_and_equal(self, schedule):
        assert schedule in {schedule}
        assert SCHEDULES[schedule.kind] is type(schedule)


@pytest.mark.slow
def test_another_process_draws_the_same():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import test_contract; print(*test_contract.digests())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=missing.environment(),
    )
    assert run.stdout.split() == digests()
