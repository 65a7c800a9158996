"""ε of an average-case client of a run: what it is made of, and what it falls back to."""

import dataclasses
import functools

import numpy as np
import pytest
from records import make_record

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import (
    epsilon_two_gaussians,
    known_expected_score_epsilon,
    unknown_expected_score_epsilon,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    Design,
    RunSchedules,
    ServerStep,
    average_case_client,
    epsilon_from_record,
    expected_score_fit,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Capped, Poisson, ShuffledEpochs

DELTA = 1e-5
SCHEDULE = Poisson(60, 0.05)


@functools.cache
def drawn(seed=0, z=0.5, schedule=SCHEDULE, canaries=1000):
    return limit_record(
        schedule, z, DELTA, num_canaries=canaries, unobserved=0, population=20_000, seed=seed
    )


@pytest.mark.parametrize("sees", [pytest.param("final", marks=pytest.mark.slow), "all"])
def test_the_law_of_the_schedule_and_the_scale_of_the_scores(sees):
    record = drawn()
    found = average_case_client(seen_by(record, Adversary(sees)))
    fit = expected_score_fit(seen_by(record, Adversary(sees)))
    counts = np.random.default_rng(0).binomial(60, 0.05, 10**6)
    unit = seen_by(record, Adversary(sees)).weights[0]
    sizes = np.sqrt(counts * unit) if sees == "all" else counts * unit
    for estimate, epsilon_of in (
        (found.known, known_expected_score_epsilon),
        (found.unknown, unknown_expected_score_epsilon),
    ):
        ends = [epsilon_of(k * sizes, DELTA) for k in (fit.scale, fit.low, fit.high)]
        # A million clients: about ten of them carry δ = 1e-5.
        given = [estimate.epsilon, estimate.low, estimate.high]
        np.testing.assert_allclose(given, ends, rtol=0.02)
    assert found.source == "schedule"
    assert not found.equal
    assert found.mean.epsilon < found.unknown.epsilon < found.known.epsilon
    assert found.canaries.epsilon <= found.worst_case.epsilon < found.largest.estimate.epsilon


@pytest.mark.parametrize("sees", ["final", "all"])
def test_equal_expected_scores_are_all_one_number(sees):
    record = drawn(schedule=ShuffledEpochs(60, 3))
    found = average_case_client(seen_by(record, Adversary(sees)))
    plain = epsilon_from_record(record, adversary=Adversary(sees))
    assert found.equal
    for name in ("known", "unknown", "mean", "canaries", "canaries_unknown", "worst_case"):
        estimate = getattr(found, name)
        for end in ("epsilon", "low", "high"):
            assert getattr(estimate, end) == pytest.approx(getattr(plain, end), rel=1e-3)
    assert found.largest.estimate.epsilon == pytest.approx(plain.epsilon, rel=1e-3)


def test_canaries_that_never_took_part_are_clients_too():
    record = drawn(schedule=Poisson(60, 0.01))
    sizes = seen_by(record, EVERY_ROUND).all_expected_scores
    assert len(sizes) == 1000
    assert np.mean(sizes == 0) > 0.3
    np.testing.assert_allclose(sizes[sizes > 0], seen_by(record, EVERY_ROUND).expected_scores)
    np.testing.assert_allclose(seen_by(record).all_expected_scores, seen_by(record).expected_scores)
    assert (
        average_case_client(seen_by(record, EVERY_ROUND)).canaries.epsilon
        < expected_score_fit(seen_by(record, EVERY_ROUND)).worst_case.epsilon
    )


def test_the_worst_case_of_more_clients_is_more_exposed():
    record = drawn()
    limits = [
        average_case_client(seen_by(record), clients=n).largest for n in (1, 10**4, 10**6, 10**7)
    ]
    epsilons = [limit.estimate.epsilon for limit in limits]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1]
    assert [limit.clients for limit in limits] == [1, 10**4, 10**6, 10**7]
    assert not any(limit.simulated for limit in limits)


@pytest.mark.parametrize("sees", ["final", "all"])
def test_without_a_schedule_the_canaries_stand_for_the_clients(sees):
    record = drawn().with_values(participation="deployment")
    found = average_case_client(seen_by(record, Adversary(sees)))
    assert found.source == "canaries"
    assert found.largest is None
    assert found.known.epsilon == found.canaries.epsilon
    # The spread of the expected scores widens the interval.
    assert found.known.low < found.canaries.low
    assert found.known.high > found.canaries.high
    scale = expected_score_fit(seen_by(record, Adversary(sees))).scale
    mean = scale * seen_by(record, Adversary(sees)).all_expected_scores.mean()
    assert found.mean.epsilon == pytest.approx(epsilon_two_gaussians(0, 1, mean, 1, DELTA))


def test_where_few_canaries_carry_delta_those_unseen_might():
    found = average_case_client(
        seen_by(drawn(z=0.25).with_values(participation="deployment"), EVERY_ROUND)
    )
    assert found.few
    every_round = epsilon_two_gaussians(0, 1, np.sqrt(60) / 0.25, 1, DELTA)
    assert found.worst_case.epsilon < found.known.high < 1.1 * every_round


def test_a_schedule_without_a_law_is_simulated():
    schedule = Capped(Poisson(60, 0.05), per_window=1, window=10)
    record = drawn(schedule=schedule)
    given = RunSchedules(schedule, schedule, 500)
    found = average_case_client(seen_by(record), schedules=given)
    assert found.source == "schedule"
    assert found.largest.simulated
    assert found.largest.clients == 500
    assert found.mean.epsilon < found.known.epsilon < found.largest.estimate.epsilon


def test_schedules_come_from_the_settings_of_a_run():
    design = Design(num_clients=500, num_rounds=60, clients_per_round=24, schedule="poisson")
    record = drawn().with_values(design=design, canary_participations=3.0)
    found = RunSchedules.of(record)
    assert found.canaries == Poisson(60, 0.05)
    assert found.clients == Poisson(60, 24 / 500)
    assert found.population == 500
    assert average_case_client(seen_by(record)).largest.clients == 500
    assert RunSchedules.of(drawn().with_values(participation="deployment")) is None
    assert RunSchedules.of(record.with_values(schedule="no")) is None


def test_a_run_that_was_stopped_early_has_no_later_rounds():
    record = drawn()
    longer = RunSchedules(Poisson(100, 0.05), Poisson(100, 0.05), 1000)
    found = average_case_client(seen_by(record), schedules=longer)
    whole = average_case_client(seen_by(record), clients=1000)
    assert found.known.epsilon == pytest.approx(whole.known.epsilon, rel=1e-9)
    shorter = RunSchedules(Poisson(10, 0.05), Poisson(10, 0.05), 1000)
    assert average_case_client(seen_by(record), schedules=shorter).source == "canaries"


def test_expected_scores_that_are_not_known_are_an_error():
    with pytest.raises(ValueError, match="sgd"):
        average_case_client(seen_by(make_record(server=ServerStep("adam"))))


@pytest.mark.slow
def test_intervals_of_fresh_populations_cover_the_population():
    law = np.random.default_rng(1).binomial(60, 0.05, 10**6)
    unit = seen_by(drawn()).weights[0]
    exact = known_expected_score_epsilon(law * unit, DELTA)
    runs = [
        average_case_client(seen_by(drawn(seed, canaries=300)), clients=10).known
        for seed in range(60)
    ]
    covered = sum(run.low <= exact <= run.high for run in runs)
    assert covered >= 51  # binomial(60, 0.95) is smaller once in 500


def test_it_is_plain_data():
    values = dataclasses.asdict(average_case_client(seen_by(drawn())))
    assert values["known"]["confidence"] == 0.95


def test_clients_of_correlated_rounds_have_the_rounds_of_the_schedule():
    """Noise takes back a part of that of all rounds before."""
    dim, rounds, z = 2_000, 12, 0.4
    column = np.cumprod([0.7, *((2 * j - 1) / (2 * j) for j in range(1, rounds))])
    strategy = np.array(
        [[column[t - s] if s <= t else 0 for s in range(rounds)] for t in range(rounds)]
    )
    fresh = np.random.default_rng(0).standard_normal((rounds, dim))
    auditor = RunAuditor(60, 100, seed=1, delta=DELTA)
    theta = np.zeros(dim)
    auditor.begin(theta)
    for t, noise in enumerate(np.linalg.solve(strategy, z * fresh)):
        here = [i for i in range(60) if i % 4 == t % 4]
        theta = theta + auditor.canaries.combine(np.ones((1, len(here))), numbers=here)[0] + noise
        auditor.observe(theta, RoundFacts(here, 1.0, clip_norm=1.0, replies=1.0))
    record = auditor.record(participation="cyclic", canary_participations=3.0)
    view = seen_by(record, EVERY_ROUND)
    found = average_case_client(view)
    sizes = [np.linalg.norm(strategy[:, start::4].sum(axis=1)) / z for start in range(4)]
    truth = known_expected_score_epsilon(sizes, DELTA)
    assert found.source == "schedule"
    assert found.known.low < truth < found.known.high
    assert found.known.epsilon == pytest.approx(found.canaries.epsilon, rel=0.03)
    apart = epsilon_two_gaussians(0, 1, np.sqrt(3 * view.weights.mean()), 1, DELTA)
    assert apart < 0.8 * truth  # of the same rounds one by one
