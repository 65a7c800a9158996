"""Federations of few nodes: what a client leaks in rounds without canaries, and at any weight."""

import math
import types
from typing import Any

import numpy as np
import pytest
from flower_audits import PLAIN
from flower_clients import digits_app, digits_model, drifting_app, model
from flwr.serverapp import strategy as flower

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, AuditedClient, answers
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.seen_clients import SeenClients
from fl_epe.flower.sources import ServerCanaries

DELTA = 1e-5


def audited(nodes, rounds, app=None, z=1.0, seed=1, arrays=None, **fed_avg):
    settings = {
        **PLAIN,
        "min_train_nodes": nodes,
        "min_available_nodes": nodes,
        **fed_avg,
    }
    strategy: flower.Strategy = flower.FedAvg(**settings)
    if z:
        strategy = flower.DifferentialPrivacyServerSideFixedClipping(
            strategy, z, 0.1, nodes
        )
    audit = CanaryAudit(strategy, delta=DELTA, seed=seed)
    np.random.seed(seed)  # noqa: NPY002 - Flower's DP noise is the global generator's
    with InProcessGrid(app or drifting_app(), nodes) as grid:
        result = audit.start(grid, arrays or model(), num_rounds=rounds)
    return audit, result


@pytest.mark.slow
def test_a_client_adds_in_rounds_without_canaries_what_it_adds_in_others():
    record = audited(3, 30)[0].record()
    with_canaries = record.presence.any(axis=1)
    assert 0 < with_canaries.sum() < 30
    np.testing.assert_allclose(
        record.mechanism.contributions, 0.1 / 3, rtol=1e-6
    )
    record = audited(3, 30, digits_app(), z=0, arrays=digits_model())[
        0
    ].record()
    added = record.mechanism.contributions * (3 + record.presence.sum(axis=1))
    assert np.all(
        np.abs(np.diff(added)) < 0.3 * added[1:]
    )  # updates become shorter, slowly


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rounds"), [(3, 60), (5, 60), (3, 120)])
def test_the_score_of_a_client_is_that_of_the_noise(nodes, rounds):
    record = audited(nodes, rounds)[0].record()
    client = AuditedClient.of(record)
    view = client.view(record, EVERY_ROUND)
    theory = math.sqrt(
        client.participations
    )  # z is 1, and real updates hide next to nothing
    assert client.expected_score(view) == pytest.approx(theory, rel=0.02)
    every = answers(record, confidence=0.999)[
        1
    ]  # a run in twenty is outside of its 95%
    assert every.extrapolated
    assert every.fit.low < 1 < every.fit.high
    assert (
        every.estimate.low
        < gaussian_epsilon(1 / theory, DELTA)
        < every.estimate.high
    )


@pytest.mark.slow
def test_a_node_that_is_asked_twice_in_a_round_adds_twice():
    class Twice(flower.FedAvg):
        def configure_train(self, *arguments):
            first, second = (
                list(super(Twice, self).configure_train(*arguments))
                for _ in "ab"
            )
            return [*first, *second]

    strategy = flower.DifferentialPrivacyServerSideFixedClipping(
        Twice(**PLAIN), 1.0, 0.1, 20
    )
    audit = CanaryAudit(strategy, delta=DELTA, seed=1)
    with InProcessGrid(drifting_app(), 10) as grid:
        audit.start(grid, model(), num_rounds=12)
    every = answers(audit.record())[1]
    assert every.participations <= 12
    twice = AuditedClient.of(audit.record()).patterns
    assert every.analytical.epsilon == pytest.approx(
        gaussian_epsilon(
            1 / math.sqrt(np.mean(np.sum(twice**2, axis=0))), DELTA
        )
    )
    assert twice.max() == 2


SIZES = [round(10 * 1.4**i) for i in range(10)]


@pytest.mark.slow
def test_unequal_weights_are_those_of_the_median_client():
    theories = []
    for seed in (1, 2, 3):
        audit, _ = audited(
            10, 20, drifting_app(examples=lambda node: SIZES[node]), 0.3, seed
        )
        record = audit.record()
        assert (
            record.mechanism.canary_weights is None
        )  # canaries have the median weight
        theories.append(answers(record)[1].analytical.epsilon or math.inf)
    # A median client is replaced by canaries in one to five of its rounds.
    assert max(theories) < 1.3 * min(theories)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_replaced_before_it_is_known_what_clients_weigh(seed):
    """One of ten has nearly all the weight; without it the others would be the whole average."""
    app = drifting_app(examples=lambda node: 10**7 if node == 3 else 100)
    record = audited(10, 4, app, 0.3, seed)[0].record()
    assert not record.presence[0].any()
    assert record.presence.any()
    assert np.diff(record.clients.offsets)[0] == 10
    assert (answers(record)[1].analytical.epsilon or 0) < 0.01


def replaced(clients: int, known: dict[int, float]) -> set[int]:
    """Who is ever replaced by one canary in a round of so many clients."""
    clients_seen = SeenClients()
    clients_seen.note(0, known)
    settings = types.SimpleNamespace(identity=None, participations=None)
    source: Any = ServerCanaries(settings, None, None, 20)
    nodes = [types.SimpleNamespace(dst_node_id=node) for node in range(clients)]
    messages = [types.SimpleNamespace(metadata=node) for node in nodes]
    drawn = [
        source._choose_withheld(
            messages, 1, clients_seen, np.random.default_rng(i)
        )
        for i in range(200)
    ]
    replaced_messages = set().union(*drawn)
    return {
        node
        for node in range(clients)
        if id(messages[node]) in replaced_messages
    }


def test_who_never_answered_is_replaced_only_where_most_did_not():
    assert replaced(10, dict.fromkeys(range(9), 1.0)) == set(range(9))
    assert replaced(10, {**dict.fromkeys(range(8), 1.0), 8: 1e5}) == set(
        range(8)
    )
    assert replaced(10, {0: 1.0, 1: 9.0}) == {0, *range(2, 10)}


@pytest.mark.slow
@pytest.mark.parametrize("without", [10, 15, 19])
def test_canaries_beside_clients_of_no_weight_keep_to_their_share(without):
    app = drifting_app(examples=lambda node: 0 if node < without else 10)
    record = audited(20, 12, app, z=0)[0].record()
    weights = record.clients.weights
    assert sorted(set(weights.tolist())) == [0, 1]
    canaries = record.shares()
    assert np.all(
        canaries.sum(axis=1)
        <= 0.25 * (canaries.sum(axis=1) + 20 - without) + 1e-6
    )


def test_no_weight_at_all_raises_as_without_the_audit():
    app = drifting_app(examples=0)
    settings = {**PLAIN, "min_train_nodes": 10}
    with InProcessGrid(app, 10) as grid, pytest.raises(ZeroDivisionError):
        flower.FedAvg(**settings).start(grid, model(), num_rounds=2)
    with pytest.raises(ZeroDivisionError):
        audited(10, 2, app, z=0)


@pytest.mark.slow
def test_idle_clients_are_no_measure_of_a_client():
    app = digits_app([returns_the_model])
    audit, _ = audited(24, 20, app, z=0, arrays=digits_model())
    record = audit.record()
    assert record.presence.sum() > 20
    assert np.isfinite(record.mechanism.contributions).all()
    assert not [fault for fault in audit.faults if "no canary joined" in fault]


def returns_the_model(message, context, call_next):
    sent = message.content["arrays"]
    reply = call_next(message, context)
    if int(context.node_config["partition-id"]) < 16:
        reply.content["arrays"] = sent
    return reply
