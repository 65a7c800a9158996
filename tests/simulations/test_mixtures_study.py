"""`simulations/studies/mixtures.py`: its quick form, on a few settings."""

import mixtures
import numpy as np
import pytest

from fl_epe.auditing import EVERY_ROUND, FINAL_MODEL

pytestmark = pytest.mark.slow


def test_the_engine_meets_the_integration(monkeypatch):
    monkeypatch.setattr(mixtures, "NOISES", (0.5,))
    monkeypatch.setattr(mixtures, "SCHEDULES", {"poisson": mixtures.SCHEDULES["poisson"]})
    rows = mixtures.compare()
    assert len(rows) == 2
    assert max(row.worst for row in rows) < 1e-3
    assert all(row.mean < row.unknown < row.known for row in rows)


@pytest.mark.parametrize("name", ["poisson", pytest.param("fixed size", id="fixed-size")])
def test_statements_about_the_largest_hold(name):
    found = mixtures.extremes(name, 10**4, 20)
    assert found is not None
    limit, held, simulated = found
    assert not simulated
    assert 12 < limit < 18
    assert held >= 0.8  # 20 populations at 95%: fewer once in 400


def test_intervals_cover():
    schedule = mixtures.SCHEDULES["poisson"]
    shares = mixtures.cover(schedule, 0.25, EVERY_ROUND, 20)
    assert shares["regression"] >= 0.8
    assert shares["sd of regression"] < shares["sd of mean score"]


@pytest.mark.parametrize("name", [pytest.param("device classes", id="device-classes"), "capped"])
def test_intervals_cover_where_participations_differ_more(name, capsys):
    mixtures.main(["--only", f"{name}, all, z = 0.25", "--populations", "20", "--first", "300"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}, all, z = 0.25, 20 populations: ")
    assert float(printed.split()[-1].rstrip("%")) >= 80  # fewer once in 400


def test_schedules_do_not_share_randomness():
    poisson, capped = (
        mixtures._population(mixtures.SCHEDULES[name], 0.5, FINAL_MODEL, 0)
        for name in ("poisson", "capped")
    )
    assert not np.any(poisson.observed.displacement == capped.observed.displacement)


def test_the_largest_of_clients_by_coins_is_drawn_from_their_law():
    schedule = mixtures.SCHEDULES["poisson"]
    rng = np.random.default_rng(0)
    drawn = [mixtures.largest_of(schedule, np.ones(60), 500, rng) for _ in range(300)]
    slow = []
    for _ in range(300):
        counts = np.zeros(500)
        for cohort in schedule.cohorts(500, rng):
            counts[cohort] += 1
        slow.append(counts.max())
    assert abs(np.mean(drawn) - np.mean(slow)) < 5 * np.std(slow) * np.sqrt(2 / 300)
