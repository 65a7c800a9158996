"""The participation law: of every schedule it is what clients do, and nothing hangs on a name."""

import dataclasses

import numpy as np
import pytest
from case_ids import in_words
from every_schedule import EVERY, T, law_faults

from fl_epe.auditing import AuditedClient, AuditRecord, answers, claim_adversary
from fl_epe.checks import ArgumentError
from fl_epe.limit import limit_record
from fl_epe.schedules import (
    SCHEDULES,
    Events,
    ParticipationLaw,
    Poisson,
    Schedule,
    ShuffledEpochs,
)
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import BallsInBins, Cyclic, FixedSize


def kinds(base):
    """All kinds of schedules that are defined, by class."""
    for kind in base.__subclasses__():
        yield from kinds(kind)
        if (
            kind.__module__.startswith("fl_epe.")
            and not kind.__abstractmethods__
        ):
            yield kind


def test_every_schedule_has_a_name_and_a_row_of_the_table():
    assert set(SCHEDULES.values()) == set(kinds(Schedule))
    assert {schedule.kind for schedule in EVERY} == set(SCHEDULES)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", EVERY, ids=in_words)
def test_its_law_is_what_ten_thousand_clients_do(schedule):
    assert law_faults(schedule) == []


class FifthOfTheTruth(Poisson):
    """Its clients come five times as often as its law says."""

    def law(self, population):
        return dataclasses.replace(
            Poisson(self.rounds, self.rate / 5).law(population)
        )


class TwoOfAKind(Poisson):
    """Clients come in pairs, and the law promises coins that depend on nothing else."""

    def cohorts(self, population, rng):
        for _ in range(self.rounds):
            yield np.flatnonzero(
                np.repeat(rng.random(population // 2) < self.rate, 2)
            )


class FewerThanPromised(BallsInBins):
    """Its law promises a round in each half of the run alone."""

    def law(self, population):
        return BallsInBins(self.rounds, 2).law(population)


@pytest.mark.parametrize(
    ("liar", "fault"),
    [
        (FifthOfTheTruth(T, 0.2), "participations"),
        (TwoOfAKind(T, 0.2), "clients"),
        (FewerThanPromised(T, 4), "blocks"),
    ],
    ids=["rarer", "pairs", "blocks"],
)
def test_a_law_that_is_not_true_is_found(liar, fault):
    assert any(found.startswith(fault) for found in law_faults(liar))


class Tossed(Poisson):
    """Poisson sampling under a name of its own."""

    kind = "tossed"


def test_what_is_hidden_does_not_hang_on_a_name():
    found, known = (
        limit_record(made(20, 0.2), 1.0, 1e-3, num_canaries=40, seed=1)
        for made in (Tossed, Poisson)
    )
    assert found.mechanism.participation.name == "tossed"
    assert claim_adversary(found) == claim_adversary(known)
    for mine, other in zip(answers(found), answers(known), strict=True):
        assert mine.estimate == other.estimate
        assert mine.analytical == other.analytical
        assert mine.analytical.adjacency == "add-or-remove"


def test_a_record_says_its_law_by_value(tmp_path):
    record = limit_record(Tossed(20, 0.2), 1.0, 1e-3, num_canaries=40, seed=1)
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert loaded.mechanism.participation == record.mechanism.participation
    for mine, other in zip(answers(loaded), answers(record), strict=True):
        assert (mine.estimate, mine.analytical) == (
            other.estimate,
            other.analytical,
        )


def test_a_dropped_client_is_still_hidden():
    dropped, plain = (
        DropOut(Poisson(20, 0.4), 0.5).law(50),
        Poisson(20, 0.2).law(50),
    )
    assert dropped.hidden
    assert dropped.coins == plain.coins
    np.testing.assert_allclose(dropped.events.chances, plain.events.chances)
    assert not DropOut(Cyclic(20, 4), 0.5).law(50).hidden


@pytest.mark.parametrize(
    "schedule",
    [
        Poisson(20, 0.2),
        FixedSize(20, 0.25),
        BallsInBins(20, 4),
        ShuffledEpochs(20, 4),
    ],
    ids=in_words,
)
def test_a_run_that_ended_early_has_the_law_of_its_rounds(schedule):
    law = schedule.law(40)
    assert law.first(20) is law
    early = law.first(8)
    assert early.rounds == 8
    assert early.participations == pytest.approx(8 / 20 * law.participations)
    assert early.limit <= 8
    assert early.events.participations == pytest.approx(early.participations)
    assert all(end <= 8 for _, end in early.blocks)


def test_a_stopped_run_of_blocks_has_an_answer():
    whole = limit_record(
        BallsInBins(20, 4), 1.0, 1e-3, num_canaries=200, unobserved=2, seed=3
    )
    law = BallsInBins(50, 10).law(200)
    stopped = whole.with_values(participation=law, num_rounds=50)
    found, expected = (answers(record)[1] for record in (stopped, whole))
    assert found.estimate.epsilon == pytest.approx(expected.estimate.epsilon)
    assert AuditedClient.of(stopped).participations == 4


def test_counts_are_records_in_several_steps_of_a_round():
    """A record in 3 steps of each of 2 rounds, each by a coin: as six coins, added by round."""
    steps, rate = 3, 0.3
    chances = np.array([3 * rate * 0.7**2, 3 * rate**2 * 0.7, rate**3])
    rows = np.arange(3)
    events = Events(
        np.ones(1),
        np.zeros(6, np.int64),
        np.repeat([0, 1], 3),
        np.repeat([0, 1], 3),
        np.tile(chances, 2),
        np.tile(rows + 1.0, 2),
    )
    from fl_epe.accounting import expected_score_law

    found = expected_score_law(events, np.ones(2))
    coins = expected_score_law(
        Events.coins(np.full(2 * steps, rate)), np.ones(2 * steps)
    )
    np.testing.assert_allclose(found.expected_scores, coins.expected_scores)
    np.testing.assert_allclose(found.shares, coins.shares)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chances": np.array([0.5, 1.5])}, "chances"),
        ({"rounds": np.array([0])}, "one length"),
        ({"rounds": np.array([0, -1])}, "rounds"),
        ({"types": np.array([0, 3])}, "types"),
    ],
    ids=["chance", "rows", "round", "type"],
)
def test_events_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(Events.coins([0.5, 0.5]), **changes)
    with pytest.raises(ArgumentError, match="rounds=1"):
        ParticipationLaw(1, events=Events.coins([0.5, 0.5]))
