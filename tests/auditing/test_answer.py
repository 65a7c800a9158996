"""The answer: ε of a client of the run, its proof and its theory, all of one client."""

import dataclasses
import math

import numpy as np
import pytest
from records import make_record

from fl_epe import epsilon_from_record
from fl_epe.accounting import (
    epsilon_of_shift,
    gaussian_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    STATISTICS,
    Adversary,
    AuditedClient,
    NotMeasured,
    answer,
    answers,
    client_epsilon,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.schedules import (
    Events,
    ParticipationLaw,
    ShuffledEpochs,
    make_schedule,
)

DELTA = 1e-5
SECRET = Adversary("all", knows_rounds=False)


def record_of(
    kind="epochs", participations=12, seed=0, z=1.0, places=11, **options
):
    schedule = make_schedule(kind, 60, participations)
    settings = {
        "num_canaries": places,
        "unobserved": 2,
        "beside": 100,
    } | options
    return limit_record(schedule, z, DELTA, seed=seed, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "epochs",
        pytest.param("poisson", marks=pytest.mark.weekly),
        pytest.param("min-separation:separation=2", marks=pytest.mark.slow),
    ],
    ids=["epochs", "poisson", "separated"],
)
def test_intervals_cover_the_truth(kind):
    inside, runs = np.zeros(2), 100
    for seed in range(runs):
        record = record_of(kind, 6, seed)
        client = AuditedClient.of(record)
        for i, found in enumerate(answers(record)):
            truth = client_epsilon(
                seen_by(record, Adversary(found.adversary.sees)),
                client,
                1.0,
                DELTA,
            )
            inside[i] += found.estimate.low <= truth <= found.estimate.high
    assert np.all(
        np.abs(inside / runs - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / runs)
    )


def test_the_truth_is_what_theory_says():
    record = record_of()
    client, view = AuditedClient.of(record), seen_by(record, EVERY_ROUND)
    truth = gaussian_epsilon(1 / math.sqrt(12), DELTA)
    assert client_epsilon(view, client, 1.0, DELTA) == pytest.approx(truth)
    final, every = answers(record)
    assert (
        final.analytical.epsilon
        == every.analytical.epsilon
        == pytest.approx(truth)
    )
    assert (
        client_epsilon(view, client, 0.0, DELTA)
        == client_epsilon(view, client, -1.0, DELTA)
        == 0
    )
    secret = record_of("poisson", 6)
    found = client_epsilon(
        seen_by(secret, EVERY_ROUND), AuditedClient.of(secret), 1.0, DELTA
    )
    assert found == pytest.approx(poisson_epsilon(1.0, 0.1, 60, DELTA))


def test_secret_rounds_are_never_looked_at():
    """The same scores, whoever took part: only κ is from known rounds."""
    final, every = answers(record_of("poisson", 6))
    assert not final.adversary.knows_rounds
    assert not every.adversary.knows_rounds
    assert every.participations == pytest.approx(6)
    assert not every.extrapolated
    known = answer(record_of("poisson", 6), EVERY_ROUND)
    assert known.estimate.epsilon > every.estimate.epsilon
    assert known.analytical.knows_rounds
    theory = [each.analytical.epsilon or 0.0 for each in (known, every)]
    assert theory[0] > theory[1] > 0


def test_an_adversary_who_does_not_know_the_rounds_of_an_epoch():
    record = record_of("epochs", 4)
    found, known = answer(record, SECRET), answer(record, EVERY_ROUND)
    assert found.estimate.epsilon < known.estimate.epsilon
    assert not found.analytical.knows_rounds
    odd = record.with_values(participation=ShuffledEpochs(60, 4.5).law(60))
    assert (
        answer(odd, SECRET).reason
        == "the law of a client's secret rounds is not known"
    )


def test_one_divided_place_is_extrapolated():
    few = answer(record_of(places=1, beside=10), EVERY_ROUND)
    assert few.extrapolated
    assert not answer(record_of(), EVERY_ROUND).extrapolated
    wide, narrow = (
        a.estimate.high - a.estimate.low
        for a in (few, answer(record_of(), EVERY_ROUND))
    )
    assert wide > 2 * narrow


def test_more_than_theory_allows_is_said():
    record = record_of(z=0.3).with_values(noise_multiplier=1.0)
    found = answer(record, EVERY_ROUND)
    assert found.exceeds_theory
    assert not found.contradicted
    assert not answer(record_of(), EVERY_ROUND).exceeds_theory


def test_a_proof_above_the_interval_contradicts_it():
    """Some canaries show up far more than the others: the mean says less than the proof."""
    record = record_of(places=11)
    means = record.observed.means.copy()
    means[:, 5:] = np.abs(means[:, 5:]) * -3
    means[:, :5] += 12 * record.presence[:, :5] / math.sqrt(record.dim)
    found = answer(record.with_values(**{"observed.means": means}), EVERY_ROUND)
    assert found.proved is not None
    assert found.estimate is not None
    doctored = dataclasses.replace(
        found,
        estimate=dataclasses.replace(found.estimate, high=found.proved - 0.1),
    )
    assert doctored.contradicted


def test_what_was_not_measured_has_a_reason_and_its_theory():
    nobody = record_of().with_values(presence=np.zeros((60, 14), bool))
    found = answer(nobody, EVERY_ROUND)
    assert found.reason == "no canary took part in 60 rounds"
    assert (found.estimate, found.proved, found.scores) == (None, None, None)
    assert found.analytical.epsilon == pytest.approx(
        gaussian_epsilon(1 / math.sqrt(12), DELTA)
    )
    assert not found.contradicted
    assert not found.exceeds_theory
    silent = record_of().with_values(**{"observed.means": np.zeros((60, 14))})
    assert answer(silent, EVERY_ROUND).reason.startswith("every score is 0")
    away = record_of()
    away = away.with_values(
        **{"observed.means": -10 * np.abs(away.observed.means)}
    )
    assert "far below unobserved ones" in answer(away, EVERY_ROUND).reason


def test_weights_of_canaries_count():
    record = record_of("epochs", 4)
    light = record.with_values(
        canary_weights=np.full(record.presence.shape, 0.5)
    )
    plain, found = answer(record, EVERY_ROUND), answer(light, EVERY_ROUND)
    assert found.fit.scale == pytest.approx(
        2 * plain.fit.scale, rel=1e-6
    )  # expected half as much
    # The client's weight is not theirs: its score is twice what it would be at their κ of 1.
    assert found.estimate.epsilon == pytest.approx(
        float(epsilon_of_shift(2 * plain.fit.scale * 2.0, DELTA)), rel=1e-6
    )
    assert found.analytical.epsilon == pytest.approx(plain.analytical.epsilon)


def test_lost_replies_leave_fewer_rounds():
    record = record_of()
    presence = record.presence.copy()
    presence[30:] = False
    means = record.observed.means - (record.presence & ~presence) / math.sqrt(
        record.dim
    )
    lost = record.with_values(**{"presence": presence, "observed.means": means})
    found = answer(lost, EVERY_ROUND)
    truth = gaussian_epsilon(1 / math.sqrt(12), DELTA)
    assert found.extrapolated
    assert found.estimate.low < truth < found.estimate.high


def test_the_number_of_a_record_is_that_of_its_answer():
    for record in (record_of(), record_of("poisson", 6)):
        final, every = answers(record)
        assert epsilon_from_record(record) == every.estimate
        assert (
            epsilon_from_record(record, adversary=final.adversary)
            == final.estimate
        )
        other = epsilon_from_record(record, statistic="displacement")
        assert other.adversary == FINAL_MODEL
        assert "known variance" in other.method
    nobody = record.with_values(presence=np.zeros(record.presence.shape, bool))
    with pytest.raises(NotMeasured, match="no canary took part"):
        epsilon_from_record(nobody)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["poisson", "balls-in-bins"])
def test_secret_rounds_of_unequal_signals(kind):
    """A coin's rounds count as they are, and not as their root mean square (29.1 for 33.7)."""
    signals = np.array([0.4, 0.6, 0.8, 1.1, 1.6, 2.2, 3.0, 3.9])
    real = RealUpdates(1 / signals**2 - 0.01, 0.0)
    schedule = make_schedule(kind, 8, 4)
    record = limit_record(
        schedule, 0.1, DELTA, num_canaries=200, unobserved=2, real=real
    )
    estimate = answer(record, SECRET).estimate
    truth = hidden_rounds_epsilon(schedule.law(200).events, signals, DELTA)
    assert estimate.low < truth < estimate.high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "rounds", "participations", "measured"),
    [(0.5, 8, 4, False), (0.1, 12, 1, False), (0.01, 60, 3, True)],
    ids=["half", "rare", "little"],
)
def test_secret_rounds_that_are_correlated(
    share, rounds, participations, measured
):
    """Rounds that share half of their energy had ε = 15 where it is 6.6 by enumeration."""
    record = limit_record(
        make_schedule("poisson", rounds, participations), 1.0, DELTA
    )
    half = np.linalg.cholesky((1 - share) * np.eye(rounds) + share)
    factor = [
        np.pad(row[t::-1], (0, rounds - 1 - t)) for t, row in enumerate(half)
    ]
    shared = record.with_values(**{"correlation.factor": np.array(factor)})
    found = answer(shared, SECRET)
    if measured:
        plain = answer(record, SECRET).fit
        assert found.fit.high - found.fit.low > plain.high - plain.low
    else:
        assert found.estimate is None
        assert found.reason.startswith(
            "noise or other clients' updates are correlated between rounds"
        )
    assert answer(shared, EVERY_ROUND).estimate is not None


def test_arguments():
    record = make_record()
    for name, options in {
        "delta=2": {"delta": 2},
        "confidence=1": {"confidence": 1},
    }.items():
        with pytest.raises(ValueError, match=name):
            answers(record, **options)
    with pytest.raises(ValueError, match="name a statistic"):
        answer(record, STATISTICS["full-knowledge"])


def test_a_law_that_would_take_minutes_is_not_measured():
    """Of records in hundreds of steps of rounds that weigh differently."""
    rounds = 200
    record = limit_record(
        make_schedule("poisson", rounds, 20), 1.0, DELTA, momentum=0.9
    )
    record = record.with_values(
        participation=ParticipationLaw(
            rounds,
            20.0,
            hidden=True,
            events=Events.steps([np.ones(300)] * rounds, [0.01] * rounds),
        ),
        canary_weights=np.ones(record.presence.shape),
    )
    final = answer(record, dataclasses.replace(SECRET, sees="final"))
    assert final.estimate is None
    assert "would take minutes" in final.reason
