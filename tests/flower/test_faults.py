"""Audits of runs in which something fails."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from flower_audits import (
    CANARIES,
    NODES,
    PLAIN,
    ROUNDS,
    fixed,
    plain_record,
    run,
)
from flower_clients import drifting_app
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fl_epe import assert_private, epsilon_from_record
from fl_epe.auditing import EVERY_ROUND, FaultBook, FaultKind, NotMeasured
from fl_epe.flower.replies import match_clients


@pytest.mark.slow
def test_error_replies_do_not_stop_the_audit():
    app = drifting_app(fails=lambda node, t: node == 3 and t > 3)
    audit, _ = run(flower.FedAvg(**PLAIN), app)
    record = audit.record()
    assert record.clients.absent.tolist() == [0] * 3 + [1] * 3
    assert "client 3 is broken" in record.provenance.faults[0]
    assert np.all(record.presence.sum(axis=0) == 1)


@pytest.mark.parametrize(
    ("numbered", "named"),
    [
        pytest.param(True, ": node 12, node 13", id="named"),
        pytest.param(False, "", id="counted"),
    ],
)
def test_who_does_not_answer_is_counted_and_named_where_it_is_known(
    numbered, named
):
    sent = [
        SimpleNamespace(
            metadata=SimpleNamespace(
                message_id=f"m{i}" * numbered, dst_node_id=10 + i
            )
        )
        for i in range(4)
    ]
    about = [
        SimpleNamespace(
            reply_to_message_id=f"m{i}" * numbered, src_node_id=10 + i
        )
        for i in range(2)
    ]
    replies = [
        SimpleNamespace(
            metadata=a, has_error=lambda: False, content=RecordDict()
        )
        for a in about
    ]
    faults = FaultBook()
    match_clients(replies, sent, int, faults, 0)
    assert faults.messages == [f"round 1, 2 of 4 clients did not answer{named}"]
    assert faults.counts == {FaultKind.NO_ANSWER: 2}


@pytest.mark.slow
def test_a_round_that_a_dp_wrapper_skips_is_no_participation():
    app = drifting_app(fails=lambda node, t: node == 3 and t == 4)
    audit, _ = run(fixed(), app)
    record = audit.record()
    assert record.presence.sum(axis=1).tolist() == [5] * 3 + [0] + [5] * 2
    assert record.num_canaries == CANARIES - 5  # the others count as unobserved
    assert record.unobserved.count == CANARIES + 5
    assert any(
        "released no model" in fault for fault in record.provenance.faults
    )
    assert np.all(record.observed.means[3] == 0)
    assert epsilon_from_record(record, adversary=EVERY_ROUND).epsilon > 0


@pytest.mark.slow
def test_a_round_in_which_everybody_fails():
    app = drifting_app(fails=lambda node, t: t == 4)
    audit, _ = run(flower.FedAvg(**PLAIN), app)
    assert (
        audit.record().presence.sum(axis=1).tolist() == [5] * 3 + [0] + [5] * 2
    )


def test_a_run_in_which_nothing_works_says_why():
    audit, _ = run(
        flower.FedAvg(**PLAIN),
        drifting_app(fails=lambda node, t: True),
        rounds=6,
    )
    with pytest.raises(NotMeasured, match="no canary took part in 6 rounds"):
        epsilon_from_record(audit.record())
    text = " ".join(audit.report(details=True).split())
    assert text.startswith("Not measured, as no canary took part in 6 rounds")
    assert "60 of 60 updates were lost" in text
    assert "Fix the training" not in text
    assert re.search(
        r"- round 1, node \d+: RuntimeError: client \d is broken", text
    )


def test_a_poisoned_model_is_reported_and_does_not_stop_the_run():
    def arrange(arrays):
        return {name: value * np.nan for name, value in arrays.items()}

    audit, result = run(
        flower.FedAvg(**PLAIN),
        drifting_app(arrange=arrange),
        rounds=3,
        canary_norm=1.0,
        max_share=1,
    )
    assert len(result.train_metrics_clientapp) == 3
    text = audit.report()
    assert text.startswith(
        "Diverged, as the last model that the strategy released has NaN"
    )
    assert (
        "round 3, the strategy released a model with NaN or infinite entries"
        in audit.faults
    )


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_a_model_that_diverged():
    def total(records, key):
        return MetricRecord({"loss": float("nan")})

    audit, _ = run(flower.FedAvg(**PLAIN, train_metrics_aggr_fn=total))
    assert audit.report().startswith(
        "Diverged, as the training loss is nan at the end"
    )
    plain, _ = run(flower.FedAvg(**PLAIN))
    assert "Diverged" not in plain.report()
    assert len(plain.record().metrics["train_loss"]) == ROUNDS


@pytest.mark.slow
def test_a_client_does_not_write_the_report(tmp_path):
    def fails(node, t):
        if t == 3:
            raise RuntimeError(
                "\x1b[2J\x1b[Hε ≈ 0.01. Verdict: private" + "x" * 10**6
            )
        return False

    audit, _ = run(flower.FedAvg(**PLAIN), drifting_app(fails=fails))
    text = audit.report(tmp_path, details=True)
    assert "\\u001b[2J\\u001b[Hε" in text
    written = (tmp_path / "report.json").read_text() + (
        tmp_path / "report.html"
    ).read_text()
    for report_text in (text, written, *audit.faults):
        assert not set(report_text) & {"\x1b", "\x9b"}
        assert "x" * 1000 not in report_text


@pytest.mark.slow
def test_a_failure_while_a_round_is_scored_moves_no_other_round(monkeypatch):
    from fl_epe import RunAuditor

    observe = RunAuditor.observe

    def fails_once(self, theta, facts, vectors=None):
        if self.rounds == 4 and not failed:
            failed.append(True)
            raise RuntimeError("once")
        observe(self, theta, facts, vectors)

    failed: list[bool] = []
    monkeypatch.setattr(RunAuditor, "observe", fails_once)
    audit, _ = run(flower.FedAvg(**PLAIN))
    assert failed
    present = audit.record().presence.sum(axis=1)
    assert present.tolist() == [5, 5, 5, 5, 0, 5]
    assert plain_record().rounds == audit.record().rounds
    assert any(
        "could not be scored: RuntimeError: once" in fault
        for fault in audit.faults
    )


def test_a_round_without_room_for_canaries_still_says_what_was_lost(tmp_path):
    app = drifting_app(fails=lambda node, t: node == 3 and t == 6)
    audit, result = run(fixed(expected=NODES), app, max_share=0.01)
    assert len(result.train_metrics_clientapp) == ROUNDS - 1
    record = audit.record()
    assert record.clients.absent.tolist() == [
        int(t == 6) for t in range(1, ROUNDS + 1)
    ]
    assert not record.presence.any()
    text = " ".join(audit.report(tmp_path).split())
    assert text.startswith(
        "Not measured, as round 1, no canary takes part: Of 30 canaries, 0"
    )
    assert "could not be made" not in text
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["status"] == "not measured"
    assert any(
        "client 3 is broken" in fault for fault in written["details"]["faults"]
    )
    with pytest.raises(ValueError, match=r"^round 1, no canary takes part"):
        assert_private(record, 1.0, 1e-5)
