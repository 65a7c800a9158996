"""Clients whose error has no text, or whose loss is not finite: the run goes on, they are named."""

import math

import pytest
from flower_audits import NODES, PLAIN, run
from flower_clients import drifting_app, model
from flwr.serverapp.strategy import FedAvg

from fl_epe.flower import InProcessGrid


class NoTextError(Exception):
    def __str__(self) -> str:
        raise AttributeError("no attribute 'reason'")


def raises(message, context, call_next):
    if context.node_config["partition-id"] == 3:
        raise NoTextError
    return call_next(message, context)


def loses_its_loss(message, context, call_next):
    reply = call_next(message, context)
    if context.node_config["partition-id"] == 3:
        reply.content["metrics"]["loss"] = math.nan
    return reply


def test_an_error_whose_text_raises_is_one_client_that_failed():
    with InProcessGrid(drifting_app([raises]), NODES) as grid:
        result = FedAvg(**PLAIN).start(grid, model(), num_rounds=2)
    assert len(result.train_metrics_clientapp) == 2
    audit, _ = run(
        FedAvg(**PLAIN), drifting_app([raises]), rounds=2, num_canaries=2
    )
    assert any("node 4: NoTextError" in fault for fault in audit.faults)


@pytest.mark.slow
def test_the_node_whose_loss_is_not_finite_is_named():
    audit, result = run(FedAvg(**PLAIN), drifting_app([loses_its_loss]))
    assert math.isnan(result.train_metrics_clientapp[1]["loss"])
    named = [
        fault
        for fault in audit.faults
        if "node 4: the loss of its training is nan" in fault
    ]
    assert len(named) == 6
    assert "node 4: the loss of its training is nan" in " ".join(
        audit.report(details=True).split()
    )
