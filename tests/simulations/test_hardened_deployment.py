"""A deployment with TLS and node authentication, in which nodes lie, and nodes and servers die."""

import json
import stat

import deployment
import pytest
from deployment import DIES, LIES, NODES, ROUNDS

from fl_epe import AuditRecord
from fl_epe.auditing import FaultKind

pytestmark = [
    pytest.mark.slow,
    pytest.mark.superlink,
    pytest.mark.weekly,
]


def _said(record, *words):
    """The faults that have all these words."""
    return [
        fault
        for fault in record.provenance.faults
        if all(word in fault for word in words)
    ]


def test_the_record_says_what_happened(processes, tmp_path, capsys):
    output = tmp_path / "out"
    here = deployment.play(processes, output)
    told = capsys.readouterr().out
    for who, why in {
        "another CA": "CERTIFICATE_VERIFY_FAILED",
        "no key": "must be registered",
        "a key that is not registered": "Failed to activate SuperNode",
    }.items():
        assert any(
            why in line for line in told.splitlines() if f"with {who}:" in line
        ), told
    assert stat.S_IMODE((here.keys / "server.key").stat().st_mode) == 0o600

    # Its key is its identity: a SuperNode that returns is the one that was there before.
    victims, (liar, *_) = here.node_ids(DIES), here.node_ids(LIES)
    assert len(victims) == 2
    assert len(set(victims)) == 1

    record = AuditRecord.load(output / "record.npz")
    assert record.rounds == ROUNDS
    assert len(set(record.clients.ids.tolist())) == NODES
    assert record.findings.resumed_after == (1, 2)
    assert record.clients.absent.tolist() == [0, 1, 1, 1]
    assert _said(record, "round 1, ", f"node {liar} moved the model")
    assert _said(
        record, "round 2, ", f"node {victims[0]}: Error: Node Unavailable"
    )
    assert _said(
        record,
        "round 3, ",
        f"node {liar}: Expected num-examples=1000000 in (0, 1000]",
    )
    assert _said(
        record, "round 4, ", f"node {liar}: It answered NaN or infinite entries"
    )
    counts = record.provenance.fault_counts
    assert counts[FaultKind.DOMINANT_UPDATE] == 1
    assert counts[FaultKind.NO_ANSWER] == 1
    assert counts[FaultKind.NODE_FAILED] == 2

    # Four clients with a liar among them: there is an answer, which is not to be relied on.
    report = json.loads((output / "report.json").read_text())
    assert report["status"] == "unreliable"
    assert any(
        "most of the energy of all" in warning["text"]
        for warning in report["warnings"]
    )
    every = next(entry for entry in report["answer"] if entry["sees"] == "all")
    assert every["epsilon"] > 0
    assert (output / "final_model.npz").exists()
    assert not (
        output / "unfinished"
    ).exists()  # and the canaries' seed with it
    deployment.expel(here, liar)
