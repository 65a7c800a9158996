"""The client whose ε is the answer, and the adversary of a claim."""

import numpy as np
import pytest
from records import make_record

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    AuditedClient,
    ClientLog,
    Design,
    NotMeasured,
    analytical,
    claim_adversary,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, ShuffledEpochs, make_schedule

UNEVEN = 'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}'


def log_of(counts, rounds):
    """Clients who take part in the first rounds, so often."""
    ids = [np.flatnonzero(np.array(counts) > t) for t in range(rounds)]
    return ClientLog(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))


def test_it_takes_part_as_often_as_the_median_client_of_the_log():
    record = make_record(clients=log_of([1, 1, 2, 5, 6], 6))
    client, most = (
        AuditedClient.of(record, worst_case=worst_case)
        for worst_case in (False, True)
    )
    assert (client.participations, most.participations) == (2, 6)
    assert client.patterns.sum(axis=0).tolist() == [2]
    assert client.patterns[:2].all()


def test_where_most_clients_never_come_it_is_one_of_those_who_do():
    record = make_record(clients=log_of([0, 0, 0, 0, 0, 1, 1, 2], 6))
    client, most = (
        AuditedClient.of(record, worst_case=worst_case)
        for worst_case in (False, True)
    )
    assert (client.participations, most.participations) == (1, 2)
    assert client.patterns.sum(axis=0).tolist() == [1, 1]
    design = make_record(design=Design(num_clients=100, clients_per_round=10.0))
    assert AuditedClient.of(design).participations == 1


def test_without_a_log_the_settings_tell_and_else_the_canaries():
    assert AuditedClient.of(make_record()).participations == 3
    told = make_record(client_participations=4.6)
    assert AuditedClient.of(told).participations == 5
    design = make_record(design=Design(num_clients=30, clients_per_round=10.0))
    assert AuditedClient.of(design).participations == 2


def test_a_claim_covers_whoever_the_schedule_lets_take_part_most_often():
    record = limit_record(ShuffledEpochs(20, 1.5), 1.0, 1e-5, num_canaries=20)
    assert AuditedClient.of(record, worst_case=True).participations == 2


@pytest.mark.parametrize(
    ("kind", "knows"),
    [
        ("epochs", True),
        (UNEVEN, True),
        ("poisson", False),
        ("fixed-size", False),
    ],
    ids=["epochs", "uneven", "poisson", "fixed-size"],
)
def test_the_adversary_of_a_claim_knows_rounds_that_are_not_hidden(kind, knows):
    record = limit_record(
        make_schedule(kind, 20, 4), 1.0, 1e-5, num_canaries=8, beside=40
    )
    assert claim_adversary(record) == Adversary("all", knows_rounds=knows)
    assert (AuditedClient.of(record).secret is None) == knows


def test_who_is_in_every_round_has_nothing_to_hide():
    assert claim_adversary(
        limit_record(Poisson(5, 1.0), 1.0, 1e-5)
    ).knows_rounds


def test_secret_rounds_without_a_law_have_no_client():
    record = make_record(
        participation=Poisson(6, 0.5).law(40), canary_weights=np.ones((6, 40))
    )
    with pytest.raises(NotMeasured, match="law of a client's secret rounds"):
        AuditedClient.of(record)
    assert AuditedClient.of(record, EVERY_ROUND).participations == 3


def test_a_run_that_stopped_keeps_the_rate_of_its_plan():
    planned = limit_record(
        make_schedule("fixed-size", 40, 4), 1.0, 1e-5, num_canaries=8
    )
    law = make_schedule("fixed-size", 80, 8).law(40)
    stopped = planned.with_values(
        design=Design(num_rounds=80), participation=law
    )
    client = AuditedClient.of(stopped)
    assert client.secret is not None
    chances = [event.chance for event in client.secret.independent]
    assert chances == pytest.approx([0.1] * 40)
    assert client.participations == pytest.approx(4)


@pytest.mark.parametrize("sees", ["final", "all"])
def test_its_expected_score_is_that_of_a_canary_with_as_many_rounds(sees):
    record = limit_record(
        ShuffledEpochs(60, 12), 1.0, 1e-5, num_canaries=13, beside=60
    )
    client, view = AuditedClient.of(record), seen_by(record, Adversary(sees))
    expected = np.sqrt(12) if sees == "all" else 12 / np.sqrt(60)
    assert client.expected_score(view) == pytest.approx(expected, rel=1e-6)
    whole = record.presence.sum(axis=0) == 12
    np.testing.assert_allclose(
        view.expected_scores.observed[whole], expected, rtol=1e-6
    )
    weights = np.full(record.presence.shape, 2.0)
    heavy = seen_by(record.with_values(canary_weights=weights), Adversary(sees))
    np.testing.assert_allclose(
        heavy.expected_scores.observed[whole], 2 * expected, rtol=0.01
    )
    assert client.expected_score(heavy) == pytest.approx(
        expected, rel=0.01
    )  # its own weight


@pytest.mark.parametrize("sees", ["final", "all"])
def test_of_clients_with_as_many_rounds_it_has_the_median_weight(sees):
    record = limit_record(
        ShuffledEpochs(20, 20), 1.0, 1e-5, num_canaries=13, beside=60
    )
    log = {
        "clients.ids": np.tile(np.arange(5), 20),
        "clients.offsets": np.arange(0, 101, 5),
    }
    sizes = np.array(
        [100.0, 0.0, 1.0, 2.0, 0.5]
    )  # the second one's replies do not count
    record = record.with_values(
        **log, **{"clients.weights": np.tile(sizes, 20)}
    )
    view = seen_by(record, Adversary(sees))
    unit = np.sqrt(20)
    assert AuditedClient.of(record).expected_score(view) == pytest.approx(
        unit, rel=1e-6
    )
    twice = record.with_values(
        **{"clients.weights": np.full(100, 2.0)}
    )  # asked twice a round
    client = AuditedClient.of(twice)
    assert client.participations == 20
    assert client.expected_score(
        seen_by(twice, Adversary(sees))
    ) == pytest.approx(2 * unit, rel=1e-6)
    theory = analytical(twice.mechanism, client, 1e-5).epsilon
    assert theory == pytest.approx(gaussian_epsilon(1 / (2 * unit), 1e-5))


@pytest.mark.parametrize("sees", ["final", "all"])
def test_expected_scores_are_sums_of_their_rounds(sees):
    record = limit_record(
        ShuffledEpochs(20, 3),
        0.5,
        1e-5,
        num_canaries=13,
        beside=60,
        momentum=0.5,
    )
    view = seen_by(record, Adversary(sees))
    scores = view.expected_scores
    assert scores.scale_is_known
    np.testing.assert_allclose(
        scores.parts.sum(axis=0), scores.observed, rtol=1e-9
    )
    np.testing.assert_allclose(
        scores.of(record.presence), scores.observed, rtol=1e-6
    )
    unknown = seen_by(
        record.with_values(clip_norms=np.full(20, np.nan)), Adversary("all")
    ).expected_scores
    assert not unknown.scale_is_known
    np.testing.assert_allclose(
        unknown.observed**2, record.presence.sum(axis=0), rtol=1e-9
    )
