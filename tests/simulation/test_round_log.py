"""What happened in each round, as it is told while a run is going."""

import logging

import numpy as np

from fl_epe.auditing import FaultKind
from fl_epe.simulation.dp_fedavg import Plan
from fl_epe.simulation.round_log import RoundLog


def test_faults_of_one_kind_are_told_once(caplog):
    log = RoundLog(Plan([np.arange(3)], np.ones((1, 2), bool), np.arange(2), 2))
    with caplog.at_level(logging.WARNING):
        for client in range(48):
            log.add_fault(
                FaultKind.CLIENT_FAILED, f"client {client}: no memory"
            )
        log.add_fault(FaultKind.NO_ANSWER, "node 1: no answer")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "Round 1, client 0: no memory (faults of this kind are counted)",
        "Round 1, node 1: no answer (faults of this kind are counted)",
    ]
    assert log.faults.counts == {"client failed": 48, "no answer in time": 1}
    assert len(log.faults.messages) == 49
