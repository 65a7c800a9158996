"""report.json is as its schema says, whatever the run was."""

import dataclasses
import json
import math

import jsonschema
import pytest
from records import limit_with_clients, make_record, record_of
from schemas import shipped_schema

from fl_epe.auditing import EarlyStop, EpsilonEstimate
from fl_epe.reporting import (
    as_report,
    summarize,
    summarize_unmeasured,
    write_report,
)
from fl_epe.reporting.charts import answer_cells
from fl_epe.reporting.report_json import answer_values
from fl_epe.reporting.sentences import marked_cells

STOP = EarlyStop(3, EpsilonEstimate(1.0, 0.5, 2.0, 1e-3, 0.95, "m"))
RECORDS = {
    "epochs": limit_with_clients,
    "secret": lambda: limit_with_clients("poisson"),
    "large-delta": lambda: limit_with_clients(delta=0.005),
    "stopped": lambda: make_record(stopped=STOP, stop_when="x", num_rounds=6),
    "few": lambda: record_of(1),
    "no-rounds": lambda: record_of(0, 0),
    "no-noise": lambda: make_record(
        noise_multiplier=0.0, sum_noise_multiplier=0.0
    ),
    "told": lambda: make_record(
        started="2026-01-31T23:59:59Z",
        commands=("a",),
        settings={"odd": float("nan")},
    ),
}


@pytest.fixture(scope="module")
def schema():
    return shipped_schema("report")


@pytest.fixture(scope="module", params=[*RECORDS, "no-record"])
def report(request):
    summary = (
        summarize_unmeasured(
            "the model was never seen", delta=1e-3, config={"plan": ["a"]}
        )
        if request.param == "no-record"
        else summarize(RECORDS[request.param]())
    )
    return request.param, json.loads(
        json.dumps(as_report(summary), allow_nan=False)
    )


@pytest.mark.slow
def test_it_is_as_the_schema_says(schema, report):
    jsonschema.validate(report[1], schema)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": "fine"}, id="status"),
        pytest.param({"answer": []}, id="answer"),
        pytest.param({"more": 1}, id="more"),
        pytest.param({"warnings": ["text"]}, id="warnings"),
    ],
)
def test_the_schema_refuses_other_things(schema, change):
    written = as_report(summarize(make_record()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(json.dumps(written | change)), schema)


def test_an_unmeasured_answer_has_a_reason_and_no_number(report):
    name, written = report
    missing = name in ("few", "no-rounds", "no-record")
    assert (written["status"] == "not measured") is missing
    assert written["exit_status"] == (3 if missing else 0)
    for entry in written["answer"]:
        assert (entry["reason"] is not None) is missing
        assert (entry["epsilon"] is None) is missing
        if missing:
            assert entry["low"] is entry["high"] is entry["proved"] is None


def test_where_nothing_is_proved_there_is_no_number():
    """As in the table, where ε ≥ 0 would say nothing."""
    summary = summarize(limit_with_clients())
    one = dataclasses.replace(
        summary.answers[0], proved=0.0, proof="simultaneous"
    )
    assert answer_values(one, 1e-3)["proved"] is None
    assert answer_cells(one)[2] == marked_cells(one)[2] == "–"
    two = dataclasses.replace(one, proved=0.5)
    assert answer_values(two, 1e-3)["proved"] == 0.5


def test_what_is_infinite_is_named(report):
    name, written = report
    for entry in written["answer"]:
        assert entry["unbounded"] == (
            ["analytical"] if name == "no-noise" else []
        )
        assert all(entry[name] is None for name in entry["unbounded"])


def test_the_run_is_told(report):
    name, written = report
    if name == "told":
        assert written["run"]["commands"] == ["a"]
        assert written["run"]["started"] == "2026-01-31T23:59:59Z"
    if name == "stopped":
        assert written["run"]["stopped_by"] == "x"
        assert [one["code"] for one in written["warnings"]] == ["stopped"]


def test_epsilon_at_a_usual_delta_stands_beside_that_of_a_large_one(report):
    name, written = report
    if name == "no-record":
        return
    small = written["details"]["at_small_delta"]
    assert bool(small) is (written["answer"][0]["delta"] > 1e-4)
    for large, entry in zip(written["answer"], small, strict=False):
        assert entry["delta"] == 1e-5
        assert entry["epsilon"] is None or entry["epsilon"] > large["epsilon"]


def test_the_file_is_what_is_said(tmp_path):
    summary = summarize(make_record())
    write_report(summary, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert written == json.loads(json.dumps(as_report(summary)))
    entry = written["answer"][1]
    assert entry["epsilon"] == summary.answers[1].estimate.epsilon
    assert math.isfinite(entry["analytical"])


def test_a_run_that_is_no_table_is_refused(tmp_path):
    record = make_record(commands="fl-epe run digits")
    record.save(tmp_path / "record.npz")
    with pytest.raises(ValueError, match=r"provenance\.commands"):
        type(record).load(tmp_path / "record.npz")
