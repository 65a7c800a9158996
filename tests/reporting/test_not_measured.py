"""Reports of runs that measured nothing, or whose model diverged: no 0, no NaN, nothing empty."""

import io
import json
import re

import numpy as np
import pytest
from records import make_record, record_of
from rich.console import Console

from fl_epe import AuditRecord
from fl_epe.auditing import FaultKind
from fl_epe.reporting import (
    NOT_MEASURED,
    as_text,
    print_report,
    summarize,
    summarize_unmeasured,
    write_report,
)

PLAN = ["2 canaries a round, 4% of the weight.", "About 1.2 s a round."]
NAN = np.full(40, np.nan)
DIVERGED = {
    "metrics": {
        "eval_round": np.arange(6.0),
        "eval_loss": np.append(np.ones(5), np.inf),
    }
}


@pytest.mark.parametrize("rounds", [6, 0])
def test_a_run_without_canaries_has_no_number_anywhere(tmp_path, rounds: int):
    (tmp_path / "epsilon.png").write_bytes(b"of an earlier report")
    summary = summarize(record_of(0, rounds, faults=("round 3, it broke",)))
    write_report(summary, tmp_path)
    reason = (
        "no canary took part in 6 rounds"
        if rounds
        else "the audit saw no round"
    )
    page, text = (tmp_path / "report.html").read_text(), as_text(summary)
    assert f'role="alert">Not measured, as {reason}: it is not known' in page
    body = page[page.index("<main") : page.index("</main>")]
    assert not re.search(r"\b(nan|None)\b", re.sub(r'src="[^"]*"', "", body))
    assert body.count(NOT_MEASURED) >= 2
    assert text.startswith(f"Not measured, as {reason}: it is not known")
    assert "1 fault during the run" in text
    assert "round 3, it broke" in page
    assert not re.search(r"\bnan\b|ε (≈|up to|=) [0-9]", text)
    assert not list(tmp_path.glob("*.png"))


def test_a_run_without_a_record_is_reported_the_same_way(tmp_path):
    reason = "the audit could not read the model: 3 rounds, 3 times bfloat16"
    config = {"task": "a deployment", "noise_multiplier": 0.5, "plan": PLAN}
    summary = summarize_unmeasured(
        f"{reason}.", delta=1e-5, config=config, faults=["round 1, no model"]
    )
    write_report(summary, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    assert (written["status"], written["run"]["task"]) == (
        NOT_MEASURED,
        "a deployment",
    )
    assert written["details"]["settings"] == {
        "task": "a deployment",
        "noise_multiplier": 0.5,
    }
    assert (written["details"]["plan"], written["details"]["faults"]) == (
        PLAN,
        ["round 1, no model"],
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.json",
        "report.html",
    }
    page, text = (
        (tmp_path / "report.html").read_text(),
        as_text(summary, details=True),
    )
    for line in (f"Not measured, as {reason}", *PLAN, "round 1, no model"):
        assert line in page
        assert line in " ".join(text.split())
    assert not re.search(r"\b(nan|None)\b", page[page.index("<main") :] + text)


def test_one_answer_alone(tmp_path):
    ends = dict.fromkeys(("norms.displacement", "norms.final"), np.nan)
    ends |= dict.fromkeys(("observed.final", "observed.displacement"), NAN)
    summary = summarize(make_record(**ends))
    write_report(summary, tmp_path)
    assert summary.status == "diverged"
    text = " ".join(as_text(summary).split())
    assert text.startswith(
        "Diverged, as the final model is not finite: the numbers below"
    )
    final, every = json.loads((tmp_path / "report.json").read_text())["answer"]
    assert (final["epsilon"], final["reason"]) == (
        None,
        "the final model is not finite",
    )
    assert every["epsilon"] == summary.answers[1].estimate.epsilon > 0
    assert "final model not measured" in text


def test_a_diverged_run_says_so_first_and_keeps_its_numbers(tmp_path):
    summary = summarize(make_record(**DIVERGED))
    write_report(summary, tmp_path)
    reason = "the loss on held-out data is inf at the end"
    assert [one.text for one in summary.warnings] == [reason]
    page = (tmp_path / "report.html").read_text()
    assert page.index(f'role="alert">Diverged, as {reason}') < page.index(
        'class="finding"'
    )
    assert as_text(summary).startswith(f"Diverged, as {reason}")
    assert summary.answers[0].estimate.epsilon > 0
    assert summarize(make_record()).status == "ok"


@pytest.mark.parametrize(
    ("options", "environment", "red"),
    [
        pytest.param({"force_terminal": True}, {}, True, id="terminal"),
        pytest.param(
            {"force_terminal": True}, {"NO_COLOR": "1"}, False, id="NO_COLOR"
        ),
        pytest.param({}, {}, False, id="file"),
    ],
)
def test_red_is_for_terminals(options, environment, red: bool):
    file = io.StringIO()
    environment = {"TERM": "xterm-256color", **environment}
    console = Console(file=file, width=100, _environ=environment, **options)
    print_report(console, summarize(record_of(0)))
    first = file.getvalue().splitlines()[0]
    assert "Not measured, as no canary took part in 6 rounds" in first
    assert ("31m" in first) is red


def test_faults_are_text_and_are_counted_by_kind(tmp_path):
    faults = tuple(
        f"round {t}, [bold]not audited[/bold] <b>x</b>" for t in range(1, 8)
    )
    counts = {
        str(FaultKind.NO_ANSWER): 12,
        "a kind of tomorrow": 3,
        str(FaultKind.ANSWERED_TWICE): 0,
    }
    record = make_record(faults=faults, fault_counts=counts, plan=PLAN)
    record = AuditRecord.load(record.save(tmp_path / "record.npz"))
    summary = summarize(record)
    write_report(summary, tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["details"]["fault_counts"] == counts
    told = (
        "15 faults during the run: 12 no answer in time, 3 a kind of tomorrow."
    )
    assert told in " ".join(as_text(summary).split())
    page, text = (
        (tmp_path / "report.html").read_text(),
        as_text(summary, details=True),
    )
    assert "[bold]not audited[/bold] &lt;b&gt;x" in page
    assert FaultKind.NO_ANSWER.meaning in " ".join(text.split())
    assert str(FaultKind.ANSWERED_TWICE) not in page + text
    assert page.count(PLAN[0]) == 1  # not among the settings once more
    for quiet in (make_record(), make_record(fault_counts={"x": 0})):
        assert "fault" not in as_text(summarize(quiet))
    assert all(kind.meaning.endswith(".") for kind in FaultKind)
