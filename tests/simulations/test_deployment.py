"""An app that is not ours, audited by three lines, on a SuperLink whose SuperNodes die."""

import importlib
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flower_processes import PATIENCE, flwr_start, superlink, supernode

from fl_epe import AuditRecord, epsilon_from_record
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, LEAST_FOR_NULL

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "simulations" / "apps" / "canary-audit"
NODES, ROUNDS, DEADLY = 3, 4, 2
CANARIES = 12  # three in a round, beside three clients
SETTINGS = {
    "num-server-rounds": ROUNDS,
    "min-nodes": NODES,
    "fraction-train": 1.0,
    "fraction-evaluate": 0.0,
    "noise-multiplier": 0.5,
    "num-sampled-clients": NODES + CANARIES // ROUNDS,
}


def _die_and_return(processes, victim, address):
    """Kill partition 0's SuperNode while it trains, and start it again."""
    processes.wait_for("supernode-0", "Receiving: train", times=DEADLY)
    processes.end(victim, signal.SIGKILL)
    assert (
        processes.log("supernode-0").count("Sending: train") == DEADLY - 1
    )  # it owes a reply
    supernode(processes, address, 0, NODES)


def _lost_rounds(record):
    found = [
        re.match(r"round (\d+), the strategy released no model", x)
        for x in record.provenance.faults
    ]
    return [int(match[1]) - 1 for match in found if match]


def test_too_few_nodes_end_the_app_with_a_hint(monkeypatch):
    monkeypatch.syspath_prepend(APP)
    server_app = importlib.import_module("canary_audit.server_app")
    grid = SimpleNamespace(get_node_ids=lambda: iter([1, 2]))
    server_app.check_nodes(grid, 2)
    with pytest.raises(
        RuntimeError, match=r"min-nodes=3 nodes, 2 are .*num-supernodes=3"
    ):
        server_app.check_nodes(grid, 3, seconds=-1)


@pytest.mark.weekly
@pytest.mark.superlink
def test_a_supernode_dies_and_returns_in_an_audited_run(processes, tmp_path):
    address = superlink(processes)
    victim, *_ = [supernode(processes, address, i, NODES) for i in range(NODES)]
    output = tmp_path / "out"
    app = shutil.copytree(APP, tmp_path / "app")
    server_app = app / "canary_audit" / "server_app.py"
    three_lines = server_app.read_text("utf-8")
    more = f"delta=1e-5, num_canaries={CANARIES}, max_share=0.5"
    assert "delta=1e-5" in three_lines  # ten clients are few, three far fewer
    server_app.write_text(three_lines.replace("delta=1e-5", more), "utf-8")
    run = flwr_start(processes, app, {**SETTINGS, "output": str(output)})
    _die_and_return(processes, victim, address)
    assert run.wait(PATIENCE) == 0, processes.log("run")

    printed = processes.log("run")
    assert "Strategy execution finished" in printed
    assert "theory allows" in printed
    assert (output / "final_model.pt").exists()
    assert (output / "report.html").exists()
    # Flower knows the SuperNode that returned by another id, and it has answered
    first_id, second_id = re.findall(
        r"SuperNode ID: (\d+)", processes.log("supernode-0")
    )
    assert first_id != second_id
    assert processes.log("supernode-0").count("Sending: train") > DEADLY - 1

    record = AuditRecord.load(output / "record.npz")
    lost = _lost_rounds(record)
    assert record.rounds == ROUNDS
    assert record.clients.absent.tolist() == [
        int(t == DEADLY - 1) for t in range(ROUNDS)
    ]
    # every round has its three canaries, each once; those of a lost round count as unobserved
    expected = [0 if t in lost else CANARIES // ROUNDS for t in range(ROUNDS)]
    assert record.presence.sum(axis=1).tolist() == expected
    assert np.array_equal(record.presence.sum(axis=0), np.ones(sum(expected)))
    scored = np.concatenate(
        [np.asarray(x.ids) for x in (record.observed, record.unobserved)]
    )
    assert sorted(scored) == list(range(CANARIES + LEAST_FOR_NULL))
    # ε so far in the metrics of every round that released a model, as it happens and in the result
    assert printed.count("'epsilon-all'") == 2 * (ROUNDS - len(lost))
    # Six equal shares: the noise multiplier is what it says, and ε is known. The interval
    # misses it with probability 1e-6.
    estimate = epsilon_from_record(
        record, adversary=EVERY_ROUND, confidence=1 - 1e-6
    )
    known = gaussian_epsilon(SETTINGS["noise-multiplier"], record.delta)
    assert estimate.low < known < estimate.high
