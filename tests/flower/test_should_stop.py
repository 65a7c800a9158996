"""A run that ends before its last round has the interval that holds after every round at once."""

import numpy as np
import pytest
from flower_audits import PLAIN, run_until
from flower_clients import drifting_app, model
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower

from fl_epe.auditing import answers
from fl_epe.flower import CanaryAudit, InProcessGrid

ROUNDS = 20


class MayStop(flower.FedAvg):
    """Asks a rule after each round, as Flower's own ``start`` does since 1.43."""

    def start(  # type: ignore[override]
        self, grid, initial_arrays, num_rounds=3, timeout=3600, should_stop=None
    ):
        arrays = initial_arrays
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(
                server_round, arrays, ConfigRecord(), grid
            )
            replies = grid.send_and_receive(messages, timeout=timeout)
            arrays, metrics = self.aggregate_train(server_round, replies)
            if should_stop is not None and should_stop(server_round, metrics):
                break
        return flower.Result(arrays=arrays)


def stopped(epsilon):
    audit = CanaryAudit(
        MayStop(**PLAIN), delta=1e-3, seed=1, noise_multiplier=1.0
    )
    rule = audit.stop_when(epsilon=epsilon)
    with InProcessGrid(drifting_app(), 10) as grid:
        audit.start(grid, model(), num_rounds=ROUNDS, should_stop=rule)
    return audit


def half_of(record):
    """Half the width of κ's interval of every round."""
    fit = answers(record)[1].fit
    return fit.high - fit.scale


def test_a_rule_ends_the_run_as_soon_as_it_is_shown():
    audit = stopped(1.0)
    record = audit.record()
    assert 1 < record.rounds < ROUNDS
    assert record.design.stop_when == "epsilon-all-low > 1"
    stop = record.findings.stopped
    assert stop.after == record.rounds
    assert stop.estimate.low > 1
    finished = record.with_values(num_rounds=record.rounds)
    assert half_of(record) > 1.2 * half_of(
        finished
    )  # which has the reaction's error besides
    assert "because of its scores" in " ".join(
        audit.report(details=True).split()
    )


@pytest.mark.slow
def test_a_rule_that_is_never_met():
    record = stopped(1e9).record()
    assert record.rounds == ROUNDS == record.design.num_rounds
    assert record.findings.stopped is None
    assert record.design.stop_when is None


def test_whatever_ends_a_run():
    """Here a rule of the user's on our metric, and a server app that was killed."""
    audit, models = run_until(
        flower.FedAvg(**PLAIN), model(), ROUNDS, 5, delta=1e-3, seed=1
    )
    record = audit.record()
    assert len(models) == record.rounds + 1 == 6
    assert record.findings.stopped is None
    finished = record.with_values(num_rounds=5)
    assert half_of(record) > 1.1 * half_of(finished)


def test_a_rule_never_ends_a_run_with_an_error():
    audit = CanaryAudit(flower.FedAvg(**PLAIN), delta=1e-3)
    assert audit.stop_when(epsilon=0.0)() is False  # before the first round
    audit._run.recording.auditor = None  # type: ignore[assignment]
    assert audit.stop_when(epsilon=0.0)(1, anything=np.ones(2)) is False
    assert "the rule to stop could not be evaluated" in audit.faults[0]
    for epsilon in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="epsilon="):
            audit.stop_when(epsilon=epsilon)
