"""Nodes that hide all others are named: in each round, and in what the model moved over the run."""

import types
from typing import Any

import numpy as np
import pytest
from flower_audits import DELTA, PLAIN, run, run_until
from flower_clients import drifting_app, model
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower

from fl_epe.auditing import FaultKind
from fl_epe.flower import dominance
from fl_epe.reporting import summarize

ENTRIES = 1000
ROUNDS = 20


def find_dominant(updates, noise=0.0):
    return dominance.find_dominant(dict(enumerate(updates)), noise)


def steps(rng, nodes, drift=0.0):
    """Updates of length about 1, with a part in common."""
    common = rng.standard_normal(ENTRIES)
    individual = rng.standard_normal((nodes, ENTRIES))
    return (drift * common + np.sqrt(1 - drift**2) * individual) / np.sqrt(
        ENTRIES
    )


@pytest.mark.parametrize("drift", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("nodes", [2, 3, 5, 30])
def test_ordinary_updates_do_not_dominate(nodes, drift):
    rng = np.random.default_rng(nodes)
    assert find_dominant(steps(rng, nodes, drift)) is None


def test_a_long_update_dominates_also_along_the_others_direction():
    updates = steps(np.random.default_rng(1), 5, drift=0.9)
    updates[3] *= 30
    assert find_dominant(updates).nodes == (3,)


def test_ids_of_nodes_stay_as_they_are():
    updates = steps(np.random.default_rng(1), 3) * np.array(
        [[30.0], [1.0], [1.0]]
    )
    ids = (11503249247729065957, 7, 2**63 - 1)
    dominant = dominance.find_dominant(dict(zip(ids, updates, strict=True)))
    assert str(dominant).startswith("node 11503249247729065957 moved")


def test_a_node_with_a_negative_id_is_one_node_after_a_restart():
    updates = types.SimpleNamespace(
        nodes=[-5, 2**63],
        weights=np.ones(2),
        entries=np.ones((2, ENTRIES)),
        noise=0.0,
    )
    contributions = dominance.NodeContributions(seed=1)
    contributions.add(updates, None)
    resumed = dominance.NodeContributions(seed=1)
    resumed.restore(contributions.state())
    for of_run in (contributions, resumed):
        of_run.add(updates, None)
    assert resumed.state()["ids"].tolist() == [2**64 - 5, 2**63]
    np.testing.assert_array_equal(
        resumed.state()["sums"], contributions.state()["sums"]
    )


def test_a_third_of_the_nodes_with_one_vector_dominates():
    updates = steps(np.random.default_rng(1), 30)
    updates[:10] = 3.9 * updates[0]
    dominant = find_dominant(updates)
    assert dominant.nodes == tuple(range(10))
    assert dominant.share == pytest.approx(39**2 / (39**2 + 20), rel=0.1)


def test_a_direction_of_most_nodes_is_what_they_learn():
    updates = steps(np.random.default_rng(1), 30)
    updates[:16] = 3.9 * updates[0]
    assert find_dominant(updates) is None


def test_noise_hides_others_too():
    updates = steps(np.random.default_rng(1), 5)
    updates[3] *= 30
    assert find_dominant(updates, noise=0.1) is not None
    assert find_dominant(updates, noise=1.0) is None


def test_idle_nodes_are_no_measure_of_length():
    updates = steps(np.random.default_rng(1), 30)
    updates[6:] = 0
    assert find_dominant(updates) is None


def lying(
    partitions,
    times=1.0,
    examples=None,
    rounds=range(1, ROUNDS + 1),
    together=False,
):
    """A mod of clients that lie about their size, or answer with long or with the same updates."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        t = int(message.content.config_records["config"]["server-round"])
        if (
            context.node_config["partition-id"] not in partitions
            or t not in rounds
        ):
            return reply
        sent = message.content.array_records["arrays"]
        dominant = reply.content.array_records["arrays"]
        rng = np.random.default_rng(t)
        lie = {}
        for name, array in dominant.items():
            old = sent[name].numpy()
            step = array.numpy() - old
            if together:
                step = rng.standard_normal(step.shape) * np.sqrt(0.1**2 / 4040)
            lie[name] = Array((old + times * step).astype("f4"))
        reply.content["arrays"] = ArrayRecord(lie)
        if examples:
            metrics = reply.content.metric_records["metrics"]
            reply.content["metrics"] = MetricRecord(
                {**metrics, "num-examples": examples}
            )
        return reply

    return mod


LIARS = {
    "liar-about-size": {"partitions": {4}, "examples": 10**7},
    "one-long-update": {"partitions": {4}, "times": 300.0, "rounds": {7}},
    "third-with-one-vector": {
        "partitions": set(range(10)),
        "times": 3.9,
        "together": True,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIARS.values(), ids=LIARS.keys())
def test_who_hides_the_others_in_the_final_model_is_named(lie):
    nodes = 30
    settings = {**PLAIN, "min_available_nodes": nodes}
    app = drifting_app([lying(**lie)])
    audit, _ = run(
        flower.FedAvg(**settings),
        app,
        rounds=ROUNDS,
        nodes=nodes,
        num_canaries=20,
    )
    summary = summarize(audit.record())
    # Beside one of nearly all weight a canary of median weight is too little to tell anything.
    assert summary.status == (
        "not measured" if "examples" in lie else "unreliable"
    )
    assert any(
        "over the whole run" in warning.text for warning in summary.warnings
    )
    assert any("over the whole run" in fault for fault in audit.faults)


def test_rounds_without_canaries_are_looked_at_too():
    settings = {**PLAIN, "min_available_nodes": 4}
    app = drifting_app([lying({2}, times=64.0)])
    audit, _ = run(
        flower.FedAvg(**settings),
        app,
        rounds=8,
        nodes=4,
        num_canaries=2,
        max_share=0.2,
    )
    assert (
        audit.record().provenance.fault_counts[FaultKind.DOMINANT_UPDATE] == 8
    )


def test_what_nodes_added_survives_a_restart(tmp_path):
    app = drifting_app([lying({4}, times=300.0, rounds={2})])
    settings: dict[str, Any] = {
        "num_canaries": 20,
        "delta": DELTA,
        "max_share": 1,
    }
    settings |= {"checkpoint": tmp_path, "app": app}
    _, models = run_until(
        flower.FedAvg(**PLAIN), model(), 6, kill=4, **settings
    )
    audit, _ = run_until(flower.FedAvg(**PLAIN), models[-1], 2, **settings)
    assert audit.record().rounds == 6
    assert any("over the whole run" in fault for fault in audit.faults)


@pytest.mark.slow
def test_a_client_with_most_of_the_weight_is_named():
    settings = {**PLAIN, "min_available_nodes": 12}
    app = drifting_app(
        examples=lambda partition: 1000 if partition == 5 else 10
    )
    audit, _ = run(
        flower.FedAvg(**settings), app, rounds=10, nodes=12, num_canaries=10
    )
    assert summarize(audit.record()).status == "unreliable"
    assert any("over the whole run" in fault for fault in audit.faults)


def test_honest_nodes_are_not_accused():
    audit, _ = run(
        flower.FedAvg(**{**PLAIN, "min_available_nodes": 4}),
        nodes=4,
        num_canaries=4,
    )
    assert (
        FaultKind.DOMINANT_UPDATE not in audit.record().provenance.fault_counts
    )
    assert not any("over the whole run" in fault for fault in audit.faults)


@pytest.mark.slow
def test_lost_updates_are_no_divergence_of_the_training():
    app = drifting_app(fails=lambda node, t: node % 5 < 4)
    audit, _ = run(
        flower.FedAvg(**{**PLAIN, "min_available_nodes": 20}), app, nodes=20
    )
    summary = summarize(audit.record())
    assert summary.status == "unreliable"
    assert any(
        "updates were lost" in warning.text for warning in summary.warnings
    )
    assert "Fix the training" not in audit.report()


@pytest.mark.slow
def test_clients_that_train_beside_idle_ones_are_not_accused():
    def idle(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] >= 4:
            reply.content["arrays"] = message.content.array_records["arrays"]
        return reply

    settings = {**PLAIN, "min_available_nodes": 20}
    audit, _ = run(flower.FedAvg(**settings), drifting_app([idle]), nodes=20)
    assert (
        FaultKind.DOMINANT_UPDATE not in audit.record().provenance.fault_counts
    )
