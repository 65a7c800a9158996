"""What an audit adds to each round's metrics, and what clients cannot put in its place."""

import pytest
from flower_audits import PLAIN, fixed, run
from flower_clients import drifting_app
from flwr.app import MetricRecord
from flwr.serverapp import strategy as flower

from fl_epe.flower import canary_mod
from fl_epe.noise import NoiseHealth
from fl_epe.reporting import as_text, summarize

FAKE = {"epsilon-final": 0.0, "epsilon-all": 0.0, "epsilon-unreliable": 0.0}


class Kept:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.rounds = []

    def log(self, round_number, values):
        self.rounds.append(dict(values))

    def close(self, summary):
        pass


def faking(message, context, call_next):
    reply = call_next(message, context)
    metrics = reply.content.metric_records["metrics"]
    reply.content["metrics"] = MetricRecord({**metrics, **FAKE})
    return reply


def test_metrics_of_clients_are_not_taken_for_the_audits():
    logger = Kept()
    audit, result = run(
        flower.FedAvg(**PLAIN), drifting_app([faking]), log_to=[logger]
    )
    for metrics in (*result.train_metrics_clientapp.values(), *logger.rounds):
        assert metrics["clients-epsilon-final"] == 0
        assert metrics.get("epsilon-final", 1) > 0
        assert metrics.get("epsilon-all", 1) > 0
    assert sum("audit's names" in fault for fault in audit.faults) == 1


def test_metrics_of_clients_are_renamed_where_nothing_is_measured():
    settings = {**PLAIN, "min_available_nodes": 2}
    logger = Kept()
    run(
        flower.FedAvg(**settings),
        drifting_app([faking]),
        nodes=2,
        max_share=0.01,
        log_to=[logger],
    )
    assert logger.rounds
    assert not any(FAKE.keys() & values.keys() for values in logger.rounds)


@pytest.mark.slow
def test_each_round_says_whether_its_epsilon_is_to_be_relied_on():
    heavy = drifting_app(
        examples=lambda partition: 10**6 if partition == 4 else 10
    )
    for app, unreliable in ((drifting_app(), 0), (heavy, 1)):
        more = {**PLAIN, "min_available_nodes": 40}
        _, result = run(
            flower.FedAvg(**more),
            app,
            nodes=40,
            num_canaries=20,
            rounds=10,
            max_share=0.1,
        )
        for metrics in result.train_metrics_clientapp.values():
            if "epsilon-all" in metrics:
                assert metrics["epsilon-unreliable"] == unreliable
                assert metrics["epsilon-faulty"] == 0


@pytest.mark.slow
def test_noise_is_looked_at_after_powers_of_two(monkeypatch):
    """Each look may be wrong, and what one costs grows with the rounds."""
    looks, look = [], NoiseHealth.findings

    def counted(health):
        looks.append(health)
        return look(health)

    monkeypatch.setattr(NoiseHealth, "findings", counted)
    audit, result = run(fixed(), rounds=9)
    assert all(
        "epsilon-faulty" in metrics
        for metrics in result.train_metrics_clientapp.values()
    )
    audit.record()
    assert len(looks) == 5  # after 1, 2, 4 and 8 rounds, and for the record


@pytest.mark.slow
def test_node_and_error_of_a_fault_are_on_the_first_screen():
    app = drifting_app(fails=lambda node, t: (node, t) == (3, 2))
    more = {**PLAIN, "min_available_nodes": 40}
    audit, _ = run(
        flower.FedAvg(**more), app, nodes=40, num_canaries=20, delta=1e-6
    )
    text = " ".join(as_text(summarize(audit.record())).split())
    assert "The first fault: round 2, node" in text
    assert "client 3 is broken" in text


def test_nodes_that_were_canaries_are_recorded():
    audit, _ = run(fixed(), drifting_app([canary_mod]), clients=[1, 2, 3])
    nodes = audit.record().design.settings["canary_nodes"]
    assert nodes == [1, 2, 3]
    assert "canary_nodes" not in as_text(summarize(audit.record()))
