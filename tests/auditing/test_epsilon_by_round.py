"""ε by round from a record: what `RunAuditor` said while the rounds came in."""

import dataclasses
import math

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe import AuditRecord
from fl_epe.accounting import (
    gaussian_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
)
from fl_epe.auditing import RoundFacts, RunAuditor, answers, epsilon_by_round
from fl_epe.auditing.record.parts import RunningScores
from fl_epe.checks import ArgumentError
from fl_epe.limit import limit_record
from fl_epe.schedules import Events, ParticipationLaw, Poisson
from fl_epe.schedules.sampled import BallsInBins

DIM, ROUNDS, CANARIES = 4000, 12, 24
MANY_DIM, MANY = 2000, 30


def _watched(*, planned: float | None):
    """A run of noise and canaries, each in one round: what was watched, and the record."""
    rng = np.random.default_rng(3)
    auditor = RunAuditor(CANARIES, 40, seed=7, delta=1e-3, planned=planned)
    theta = np.zeros(DIM, np.float32)
    auditor.begin(theta)
    seen = []
    for t in range(ROUNDS):
        present = [i for i in range(CANARIES) if i % ROUNDS == t]
        vectors = np.stack([auditor.canaries.vector(i) for i in present])
        noise = rng.standard_normal(DIM) * 0.4 / 10
        theta = (theta + 0.1 * vectors.sum(axis=0) + noise).astype(np.float32)
        auditor.observe(theta, RoundFacts(present, contribution=0.1), vectors)
        seen.append(auditor.epsilon_so_far())
    return seen, auditor.record()


@pytest.mark.parametrize(
    "planned", [float(CANARIES), None], ids=["planned", "not-planned"]
)
def test_it_is_what_was_said_during_the_run(planned):
    said, record = _watched(planned=planned)
    found = epsilon_by_round(record)
    assert [e.round for e in found] == list(range(1, ROUNDS + 1))
    assert {e.participations for e in found} == {1}
    assert [e.estimate for e in found[:-1]] == said[:-1]
    every = answers(record)[1].estimate
    assert found[-1].estimate == every  # with an interval for one look
    assert every.epsilon == pytest.approx(said[-1].epsilon, rel=1e-3)
    assert said[-1].low < every.low < every.high < said[-1].high


@pytest.mark.slow
def test_nothing_is_said_where_the_law_of_secret_rounds_is_not_known():
    record = limit_record(Poisson(20, 0.3), 1.0, 1e-3, num_canaries=40, seed=1)
    assert epsilon_by_round(record)
    unknown = record.with_values(canary_weights=np.ones(record.presence.shape))
    assert answers(unknown)[1].estimate is None
    assert epsilon_by_round(unknown) == []


LAWS = {
    "known": ParticipationLaw(8, 4.0),
    "coins": Poisson(8, 0.5).law(60),
    "blocks": BallsInBins(8, 4).law(60),
}


@pytest.mark.parametrize("name", LAWS)
def test_it_is_for_a_client_who_takes_part_as_often_as_planned(name):
    """Canaries of one to eight participations, a client of four; whose rounds may be secret."""
    rng = np.random.default_rng(8)
    auditor = RunAuditor(60, 40, seed=7, delta=1e-5, client=LAWS[name])
    auditor.begin(theta := np.zeros(DIM))
    for t in range(8):
        present = [i for i in range(60) if i % 8 >= t]
        total = auditor.canaries.combine(
            np.ones((1, len(present))), numbers=present
        )[0]
        theta = theta + total + rng.standard_normal(DIM)
        auditor.observe(theta, RoundFacts(present, contribution=1.0))
    found = auditor.epsilon_so_far()
    truth = {
        "known": gaussian_epsilon(1.0, 1e-5, 4),
        "coins": poisson_epsilon(1.0, 0.5, 8, 1e-5),
        "blocks": hidden_rounds_epsilon(
            LAWS["blocks"].events, np.ones(8), 1e-5
        ),
    }[name]
    assert found.low < truth < found.high
    assert found.epsilon == pytest.approx(truth, rel=0.2)
    assert found.adversary.knows_rounds is (name == "known")


def test_long_runs_are_thinned_out_evenly_with_their_last_round():
    record = make_record()
    assert [e.round for e in epsilon_by_round(record, max_rounds=3)] == [
        1,
        4,
        6,
    ]
    assert [e.participations for e in epsilon_by_round(record)] == [
        1,
        1,
        1.5,
        2,
        2.5,
        3,
    ]
    thin = epsilon_by_round(record, max_rounds=2)[-1]
    assert thin == epsilon_by_round(record)[-1]
    with pytest.raises(ArgumentError, match="max_rounds=0"):
        epsilon_by_round(record, max_rounds=0)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(record_of(0), id="nobody"),
        pytest.param(record_of(0, 0), id="no-rounds"),
        pytest.param(record_of(1), id="one"),
    ],
)
def test_nothing_measured_is_no_number(record: AuditRecord):
    assert epsilon_by_round(record) == []


def test_no_number_before_two_canaries_took_part():
    presence = make_record().presence.copy()
    presence[0] = False
    presence[0, 0] = True
    found = epsilon_by_round(make_record(presence=presence))
    assert found[0].round == 2
    assert all(math.isfinite(e.estimate.epsilon) for e in found)


def _watched_often(correlation=0.0, rounds=6, contribution=0.1):
    """A record, and the estimates that were shown while it was made."""
    rng, shown = np.random.default_rng(5), []
    auditor = RunAuditor(
        *(MANY, 200),
        seed=1,
        delta=1e-3,
        planned=3 * MANY,
        kind="sphere",
        client=ParticipationLaw(8, 4.0),
    )
    auditor.begin(theta := np.zeros(MANY_DIM, np.float32))
    same = rng.standard_normal(MANY_DIM)
    for t in range(rounds):
        present = [i for i in range(MANY) if i % 2 == t % 2]
        mean = correlation * same + rng.standard_normal(MANY_DIM)
        weights = np.full((1, len(present)), contribution, np.float32)
        mean = mean / 4 + auditor.canaries.combine(weights, numbers=present)[0]
        theta = (theta + mean).astype(np.float32)
        auditor.observe(
            theta, RoundFacts(present, contribution=contribution, clip_norm=1.0)
        )
        shown.append(auditor.epsilon_so_far())
    return auditor.record(canary_participations=3.0), shown


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 3.0])
@pytest.mark.parametrize(
    "contribution", [0.1, 2.0], ids=["a-small-part", "a-large-part"]
)
def test_with_several_participations_it_is_what_was_said(
    contribution, correlation, tmp_path
):
    record, said = _watched_often(
        contribution=contribution, correlation=correlation
    )
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert [each.estimate for each in epsilon_by_round(loaded)[:-1]] == said[
        :-1
    ]
    # Of a record that nobody watched it is what would have been said.
    unwatched = dataclasses.replace(record, running=RunningScores())
    if not correlation:
        for ours, theirs in zip(
            epsilon_by_round(unwatched)[:-1], said, strict=False
        ):
            assert ours.estimate.epsilon == pytest.approx(
                theirs.epsilon, rel=1e-5
            )
            assert ours.estimate.high == pytest.approx(theirs.high, rel=1e-5)


def test_the_delta_and_the_confidence_that_are_asked_for():
    loose, tight = (
        epsilon_by_round(make_record(), 1e-6, confidence=c)[-1].estimate
        for c in (0.5, 0.99)
    )
    assert loose.delta == tight.delta == 1e-6
    assert tight.low < loose.low < loose.high < tight.high
    with pytest.raises(ArgumentError, match="delta=2"):
        epsilon_by_round(make_record(), 2.0)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(None, id="none"),
        pytest.param(Events.coins(np.full(8, 0.2), rest=3), id="resting"),
        pytest.param(Events.coins(np.repeat([0.0, 0.5], [8, 4])), id="later"),
    ],
)
def test_nothing_is_said_of_secret_rounds_without_a_law(events):
    """Neither an ε as if the client were in every round, nor an error that ends the run."""
    law = ParticipationLaw(12, 2.0, hidden=True, events=events)
    auditor = RunAuditor(20, 20, seed=7, delta=1e-5, client=law)
    auditor.begin(theta := np.zeros(DIM))
    rng = np.random.default_rng(8)
    for _ in range(8):
        total = auditor.canaries.combine(np.ones((1, 2)), numbers=[0, 1])[0]
        theta = theta + total + rng.standard_normal(DIM)
        auditor.observe(theta, RoundFacts([0, 1], contribution=1.0))
    assert auditor.epsilon_so_far() is None
