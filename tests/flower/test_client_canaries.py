"""Canaries that live on clients: `canary_mod`, its orders, and secure aggregation."""

import numpy as np
import pytest
import secure_aggregation
from flower_clients import DIM, digits_app, digits_model, drifting_app, model
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flower

from fl_epe import CanarySet, epsilon_from_record
from fl_epe.auditing import EVERY_ROUND
from fl_epe.flower import CanaryAudit, ClientCanaries, InProcessGrid, canary_mod
from fl_epe.flower.client_canaries import (
    Acknowledgement,
    CanaryOrder,
    take_acknowledgement,
)
from fl_epe.simulation.flower_internals import ensure_task_identity

NODES, ROUNDS, CANARIES, DELTA = 24, 12, 8, 1e-3
PLAIN = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 2,
    "min_available_nodes": NODES,
}


def server_side(z=0.5, norm=0.1):
    return flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(**PLAIN), z, norm, NODES
    )


def client_side(z=0.5, norm=0.1):
    return flower.DifferentialPrivacyClientSideFixedClipping(
        flower.FedAvg(**PLAIN), z, norm, NODES
    )


def adaptive(z=0.5):
    return flower.DifferentialPrivacyClientSideAdaptiveClipping(
        flower.FedAvg(**PLAIN), z, NODES, initial_clipping_norm=0.1
    )


def run(strategy, app, arrays=None, **settings):
    settings = {"num_canaries": CANARIES, "seed": 1, "delta": DELTA, **settings}
    audit = CanaryAudit(strategy, **settings)
    np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
    with InProcessGrid(app, NODES) as grid:
        result = audit.start(
            grid, model() if arrays is None else arrays, num_rounds=ROUNDS
        )
    return audit, result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "mods", "length"),
    [
        (
            flower.FedAvg(**PLAIN),
            [],
            0.05,
        ),  # nothing clips: as long as the client's own update
        pytest.param(server_side(), [], 0.1, marks=pytest.mark.slow),
        (client_side(), [fixedclipping_mod], 0.1),
        pytest.param(
            adaptive(), [adaptiveclipping_mod], 0.1, marks=pytest.mark.slow
        ),
    ],
    ids=["nothing", "server", "client", "adaptive"],
)
def test_chosen_clients_answer_with_their_canary_from_the_second_round_on(
    strategy, mods, length
):
    audit, result = run(
        strategy,
        drifting_app([*mods, canary_mod], norm=0.05),
        clients=range(1, 9),
    )
    record = audit.record()
    assert record.mechanism.participation.name == "deployment"
    assert record.presence.sum(axis=1).tolist() == [0] + [CANARIES] * (
        ROUNDS - 1
    )
    assert record.design.canaries_come_from == "clients"
    # The signal in the first of them: the canary's share of what is released.
    first = record.observed.means[1] * record.norms.means[1]
    assert abs(first.mean() - length / NODES) < 4 * first.std() / np.sqrt(
        CANARIES
    )
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(
        (NODES - 1) / 2
    )
    assert audit.report()


def test_a_share_of_the_clients_is_chosen_by_hashing():
    chosen = [
        [node for node in range(4000) if canaries.number(node) is not None]
        for canaries in (
            ClientCanaries(4000, 0, seed, 0.1) for seed in (1, 1, 2)
        )
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert abs(len(chosen[0]) - 400) < 4 * np.sqrt(4000 * 0.1 * 0.9)
    few = ClientCanaries(3, 0, 1, 1.0)
    assert [few.number(node) for node in (9, 7, 9, 8, 6)] == [0, 1, 0, 2, None]


def test_a_client_that_comes_back_under_another_node_id_keeps_its_canary():
    canaries = ClientCanaries(4, 0, 1, [3, 5], identity=lambda node: node % 10)
    assert [canaries.number(node) for node in (13, 25, 43, 44)] == [
        0,
        1,
        0,
        None,
    ]


@pytest.mark.slow
def test_only_canary_clients_hear_of_the_audit():
    """The server's messages to real clients are the very objects that the strategy made."""
    heard = []

    def listen(message, context, call_next):
        config = dict(message.content["config"])
        reply = call_next(message, context)
        heard.append((context.node_id, config, dict(message.content["config"])))
        return reply

    run(server_side(), drifting_app([listen, canary_mod]), clients=[1, 2, 3])
    ordered_nodes = {
        node
        for node, before, _ in heard
        if any("canary" in key for key in before)
    }
    assert ordered_nodes == {1, 2, 3}
    assert not any("canary" in key for _, _, inside in heard for key in inside)


def test_a_kind_that_there_is_not():
    with pytest.raises(ValueError, match="canary_kind='cube' to be one of"):
        CanaryAudit(
            flower.FedAvg(**PLAIN),
            num_canaries=4,
            delta=1e-2,
            canary_kind="cube",
        )


@pytest.mark.slow
def test_both_kinds_find_the_same():
    records = [
        run(
            server_side(),
            drifting_app([canary_mod]),
            clients=[1, 2, 3],
            canary_kind=kind,
        )[0].record()
        for kind in ("rotation", "sphere")
    ]
    assert [record.provenance.canary_kind for record in records] == [
        "rotation",
        "sphere",
    ]
    assert not np.allclose(records[0].observed.means, records[1].observed.means)
    np.testing.assert_array_equal(records[0].presence, records[1].presence)


@pytest.mark.slow
def test_without_an_order_the_mod_does_nothing():
    plain, _ = run(server_side(), drifting_app())
    with_mod, _ = run(server_side(), drifting_app([canary_mod]))
    np.testing.assert_allclose(
        with_mod.record().observed.means,
        plain.record().observed.means,
        atol=1e-6,
    )


def test_the_reply_keeps_its_form_and_carries_the_canary():
    ensure_task_identity(0)
    sent = model({"w": (30, 4), "b": (4,)})
    config = ConfigRecord({"rate": 0.5})
    CanaryOrder(number=5, count=9, seed=2**100, norm=3.0).add_to(config)
    message = Message(
        RecordDict({"arrays": sent, "config": config}), 7, "train"
    )

    def app(message, context):
        assert dict(message.content["config"]) == {"rate": 0.5}
        arrays = ArrayRecord(
            {
                k: Array(v.numpy() + 1)
                for k, v in message.content["arrays"].items()
            }
        )
        metrics = MetricRecord({"loss": 0.25, "num-examples": 11})
        return Message(
            RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message
        )

    context = Context(0, 7, {}, RecordDict(), {})
    reply = canary_mod(message, context, app)
    assert dict(reply.content["metrics"]) == {"loss": 0.25, "num-examples": 11}
    flat = np.concatenate(
        [a.numpy().ravel() for a in reply.content["arrays"].values()]
    )
    np.testing.assert_allclose(
        flat, 3 * CanarySet(124, 9, 2**100).vector(5), rtol=1e-6
    )


@pytest.mark.slow
def test_a_canary_client_that_fails_is_absent():
    app = drifting_app([canary_mod], fails=lambda node, t: node == 2 and t > 3)
    audit, _ = run(
        flower.FedAvg(**PLAIN), app, clients=[2, 3, 4]
    )  # partition 2 is node 3
    assert audit.record().presence.sum(axis=0).tolist() == [11, 2, 11]


def as_line(text):
    return " ".join(text.split())


def answer_of(order, content, app):
    """What `canary_mod` makes of the app's reply to a message with this content."""
    ensure_task_identity(0)
    order.add_to(content.config_records["config"])
    message = Message(content, 7, "train")
    return canary_mod(message, Context(0, 7, {}, RecordDict(), {}), app)


def other_arrays(message, context):
    unlike = ArrayRecord({"other": Array(np.zeros(3, np.float32))})
    content = {"arrays": unlike, "metrics": MetricRecord({"loss": 0.5})}
    return Message(RecordDict(content), reply_to=message)


def test_a_reply_that_is_not_like_the_message_goes_out_as_it_is():
    order = CanaryOrder(number=0, count=2, seed=1, acknowledge=True)
    for arrays in ({"arrays": model()}, {}):
        content = RecordDict({**arrays, "config": ConfigRecord()})
        reply = answer_of(order, content, other_arrays)
        np.testing.assert_array_equal(
            reply.content["arrays"]["other"].numpy(), np.zeros(3)
        )
        assert take_acknowledgement(reply.content) is Acknowledgement.UNFIT
        assert dict(reply.content["metrics"]) == {"loss": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mod"),
    [
        (client_side, fixedclipping_mod),
        pytest.param(adaptive, adaptiveclipping_mod, marks=pytest.mark.slow),
    ],
    ids=["fixed", "adaptive"],
)
def test_outside_a_clipping_mod_a_client_answers_for_itself(make, mod):
    """There nothing would clip a canary that is made to be clipped."""
    audit, result = run(
        make(), drifting_app([canary_mod, mod], norm=0.05), clients=range(1, 9)
    )
    assert "Not measured, as 0 of 8 canary clients" in as_line(audit.report())
    assert "put it last in mods" in as_line(audit.report())
    with InProcessGrid(drifting_app([mod], norm=0.05), NODES) as grid:
        np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
        plain = make().start(grid, model(), num_rounds=ROUNDS)
    for (
        name,
        array,
    ) in result.arrays.items():  # Flower sums in an order of its own
        np.testing.assert_allclose(
            array.numpy(), plain.arrays[name].numpy(), atol=1e-5
        )


def test_without_canary_mod_nothing_is_measured():
    audit, result = run(
        flower.FedAvg(**PLAIN), drifting_app(), clients=range(1, 9)
    )
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert not any(
        "epsilon" in key for key in result.train_metrics_clientapp[ROUNDS]
    )
    assert as_line(audit.report()).count(
        "0 of 8 canary clients answered with their canary"
    )
    assert "is canary_mod installed?" in as_line(audit.report())


@pytest.mark.slow
def test_canary_clients_that_never_answer_are_counted():
    app = drifting_app([canary_mod], fails=lambda node, t: node in (5, 6))
    audit, _ = run(flower.FedAvg(**PLAIN), app, clients=range(1, 9))
    assert audit.record().num_canaries == 6
    assert (
        "6 of 8 canary clients answered with their canary" in audit.faults[-1]
    )
    assert (
        epsilon_from_record(audit.record(), adversary=EVERY_ROUND).epsilon > 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mods"),
    [
        pytest.param(server_side, [], marks=pytest.mark.slow),
        (client_side, [fixedclipping_mod]),
    ],
    ids=["server-clips", "client-clips"],
)
def test_client_mod_and_server_injection_agree(make, mods):
    """The same training of real digits, the same eight canaries in all rounds from the second."""
    norm = 0.5
    by_clients, _ = run(
        make(norm=norm),
        digits_app([*mods, canary_mod]),
        digits_model(),
        clients=range(1, 9),
    )
    by_server, _ = run(
        make(norm=norm), digits_app(mods), digits_model(), participations=ROUNDS
    )
    assert not by_clients.faults
    records = [by_clients.record(), by_server.record()]
    for record in records:
        assert np.all(record.presence[1:])
    for scores in (
        [r.observed.means[1:] for r in records],
        [r.observed.final for r in records],
    ):
        # 88 cosines with the rounds' means; 8 with the final model.
        error = np.sqrt(sum(s.var(ddof=1) / s.size for s in scores))
        assert abs(scores[0].mean() - scores[1].mean()) < 3 * error
    per_round = records[0].observed.means[1:]  # there is a signal to agree on
    assert per_round.mean() > 5 * per_round.std() / np.sqrt(per_round.size)


@pytest.mark.slow
def test_secure_aggregation_is_audited_without_reading_a_reply():
    record, strategy = secure_aggregation.audit(
        clients=12,
        num_canaries=6,
        rounds=8,
        noise_multiplier=0.5,
        seed=1,
        delta=1e-2,
    )
    assert strategy.sums_seen == [1] * 8  # twelve replies, one sum
    assert record.presence.shape == (8, 6)
    assert np.all(record.presence)
    scores = record.observed.means * np.sqrt(record.dim)
    # What is released is noise (0.5·C, in each coordinate) and the clients' sum; canaries are
    # half of it, so that a score is at most what noise and canaries alone leave of 1/z.
    assert scores.mean() * np.sqrt(scores.size) > 5
    estimate = epsilon_from_record(record, adversary=EVERY_ROUND)
    assert estimate.low > 0


@pytest.mark.slow
def test_under_secure_aggregation_canaries_are_those_of_plain_averaging():
    """The same clients, the same noise: what masks hide is not lost."""
    record, _ = secure_aggregation.audit(
        clients=12,
        num_canaries=6,
        rounds=4,
        noise_multiplier=0.0,
        seed=1,
        delta=1e-2,
    )
    # Without noise each canary's cosine is its share of the mean's norm, exactly but for overlap.
    share = secure_aggregation.CLIP_NORM / 12 / record.norms.means[0]
    error = 1 / np.sqrt(record.dim * 6)
    assert abs(record.observed.means[0].mean() - share) < 4 * error


def test_dimension_of_the_tests_model():
    assert sum(array.numpy().size for array in model().values()) == DIM
