"""An audit can be switched off, and says what it cost."""

import numpy as np
import pytest
from flower_clients import drifting_app, model
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid

NODES, ROUNDS = 10, 6


class Clock:
    """Goes on by a millisecond whenever it is looked at, and by what a strategy waits."""

    now = 0.0

    def __call__(self):
        self.now += 1e-3
        return self.now


CLOCK = Clock()


class Waits(flower.FedAvg):
    def aggregate_train(self, server_round, replies):
        CLOCK.now += 100.0
        return super().aggregate_train(server_round, replies)


def averaging(cls=flower.FedAvg):
    return cls(fraction_evaluate=0.0, min_available_nodes=NODES)


def final_of(strategy):
    with InProcessGrid(drifting_app(), NODES) as grid:
        result = strategy.start(grid, model(), num_rounds=ROUNDS)
    return result.arrays, result.train_metrics_clientapp


@pytest.mark.parametrize("attached", [False, True])
def test_switched_off_the_strategy_runs_as_if_there_were_no_audit(
    attached, tmp_path
):
    plain, metrics = final_of(averaging())
    strategy = averaging()
    audit = CanaryAudit(
        strategy, delta=1e-5, enabled=False, checkpoint=tmp_path / "audit"
    )
    arrays, audited_metrics = final_of(audit.attach() if attached else audit)
    for name, array in plain.items():
        np.testing.assert_allclose(
            array.numpy(), arrays[name].numpy(), atol=1e-6
        )
    assert metrics.keys() == audited_metrics.keys()
    assert all(
        dict(metrics[t]) == pytest.approx(dict(audited_metrics[t]))
        for t in metrics
    )
    assert not (tmp_path / "audit").exists()
    text = " ".join(audit.report(tmp_path / "report").split())
    assert text.startswith("Not measured, as the audit was off (enabled=False)")
    assert audit.faults == []


def test_the_report_says_what_a_round_of_the_audit_cost(monkeypatch):
    monkeypatch.setattr("time.perf_counter", CLOCK)
    audit = CanaryAudit(averaging(Waits), delta=1e-5, seed=1)
    final_of(audit)
    provenance = audit.record().provenance
    assert provenance.seconds is not None
    assert 0 < provenance.seconds < 50  # the strategy's own 100 s are not in it
    largest_cohort = audit.record().presence.sum(axis=1).max()
    assert provenance.canary_bytes == largest_cohort * 2 * 4 * 4040
    text = " ".join(audit.report(details=True).split())
    assert f"The audit took {provenance.seconds:.2g} s a round" in text
