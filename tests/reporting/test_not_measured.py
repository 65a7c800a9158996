"""Reports of runs that measured nothing, or whose model diverged: no 0, no NaN, nothing empty."""

import html
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
    write_unmeasured,
)
from fl_epe.reporting.report import headlines
from fl_epe.reporting.tables import table_rows

PLAN = ["2 canaries a round, 4% of the weight.", "About 1.2 s a round."]
FINISHED = "ε for somebody who has only the finished model"
EVERY = "ε for somebody who has every round's model"
NAN = np.full(40, np.nan)
DIVERGED = {"metrics": {"eval_round": np.arange(6.0), "eval_loss": np.append(np.ones(5), np.inf)}}


def _unmeasured(tmp_path, rounds: int = 6):
    return write_report(record_of(0, rounds, faults=("round 3, it broke",)), tmp_path)


def _card(page: str, words: str) -> str:
    """What the card with these words shows in large print."""
    (found,) = re.findall(rf"<b[^>]*>([^<]*)</b><span>{words}", html.unescape(page))
    return found


@pytest.mark.parametrize("rounds", [6, 0])
def test_a_run_without_canaries_has_no_number_anywhere(tmp_path, rounds: int):
    (tmp_path / "epsilon.png").write_bytes(b"of an earlier report")
    summary = _unmeasured(tmp_path, rounds)
    reason = "no canary took part in 6 rounds" if rounds else "the audit saw no round"
    written = json.loads((tmp_path / "report.json").read_text())
    assert (written["status"], written["reasons"]) == (NOT_MEASURED, [reason])
    for part in (
        written["final"],
        written["final"]["model"],
        written["final"]["paper"],
        written["all"],
        written["all"]["paper"],
    ):
        assert part["reason"] == reason
        numbers = [part[name] for name in ("epsilon", "low", "high", "lower_bound", "method")]
        assert numbers == [None] * 5
    assert written["final"]["bounds"] == written["all"]["bounds"] == []
    page = (tmp_path / "report.html").read_text()
    for words in (FINISHED, EVERY):
        assert _card(page, words) == NOT_MEASURED
    assert f'role="alert">Not measured: {reason}.</p>' in page
    assert page.index("round 3, it broke") < page.index('class="cards"')
    body = page[page.index("<main") : page.index("</main>")]
    assert not re.search(r"\b(nan|None)\b|<b[^>]*>(0|)<", re.sub(r'src="[^"]*"', "", body))
    text = as_text(summary)
    assert text.startswith(f"Not measured: {reason}.\n")
    assert "Nothing was measured, so it is not known" in text
    assert "- round 3, it broke" in text
    assert not re.search(r"\bnan\b|ε (≈|about) [0-9]", text)
    for cells in table_rows(summary):
        assert cells[2:5] == (NOT_MEASURED, "–", "–")
    assert not list(tmp_path.glob("*.png"))
    charts = 1 if rounds else 0  # the clip norm
    assert page.count('<figure id="') == page.count("data:image/svg") == charts


def test_a_run_without_a_record_is_reported_the_same_way(tmp_path):
    reason = "the audit could not read the model: 3 rounds, 3 times bfloat16"
    config = {"task": "a deployment", "noise_multiplier": 0.5, "plan": PLAN}
    summary = summarize_unmeasured(
        f"{reason}.", delta=1e-5, config=config, faults=["round 1, no model"]
    )
    write_unmeasured(summary, tmp_path / "new")
    written = json.loads((tmp_path / "new" / "report.json").read_text())
    assert (written["status"], written["reasons"]) == (NOT_MEASURED, [reason])
    assert written["final"]["epsilon"] is written["all"]["epsilon"] is None
    assert written["final"]["reason"] == written["all"]["reason"] == reason
    assert written["analytical"]["epsilon"] is None
    assert (written["delta"], written["noise_multiplier"]) == (1e-5, 0.5)
    assert (written["plan"], written["faults"]) == (PLAN, ["round 1, no model"])
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"report.json", "report.html"}
    page, text = (tmp_path / "new" / "report.html").read_text(), as_text(summary, details=True)
    assert _card(page, FINISHED) == NOT_MEASURED
    assert _card(page, "analytical ε") == "none known"
    for line in (f"Not measured: {reason}.", *PLAN, "round 1, no model"):
        assert line in page
        assert line in text
    assert not re.search(r"\b(nan|None)\b", page + text)
    same = summarize(record_of(0)).to_dict().keys()
    assert summarize_unmeasured("x", delta=0.1).to_dict().keys() == same == written.keys()


def test_one_headline_alone(tmp_path):
    record = make_record(
        **{
            "norms.displacement": np.nan,
            "norms.final": np.nan,
            "observed.final": NAN,
            "observed.displacement": NAN,
        }
    )
    summary = write_report(record, tmp_path)
    assert summary.status == "diverged"
    assert summary.reasons == ("the final model is not finite",)
    page = (tmp_path / "report.html").read_text()
    assert _card(page, FINISHED) == NOT_MEASURED
    found = summary.every_round.headline.estimate.epsilon
    assert _card(page, EVERY).startswith(f"{found:.1f}")
    text = as_text(summary)
    assert "The training went wrong" in text
    # A bound for every round, without one for the final model.
    assert '<th scope="row">weighted</th>' in page
    assert json.loads((tmp_path / "report.json").read_text())["all"]["epsilon"] == found


def test_each_card_is_that_of_its_row():
    summary = summarize(make_record())
    cards = {words: (value, interval) for value, words, interval in headlines(summary)}
    rows = {cells[:2]: cells for cells in table_rows(summary)}
    for words, key in (
        (FINISHED, ("final model", "displacement")),
        (EVERY, ("every round", "matched filter")),
    ):
        assert cards[words] == rows[key][2:4]
    assert len({cells[2] for cells in rows.values()}) == 4  # so that another row would show


def test_a_row_without_its_comparison_says_so():
    record = make_record(
        **{
            "unobserved.means": np.zeros((6, 1)),
            "unobserved.final": np.zeros(1),
            "unobserved.displacement": np.zeros(1),
        }
    )
    summary = summarize(record)
    assert summary.status == "ok"
    rows = {cells[:2]: cells for cells in table_rows(summary)}
    assert rows["every round", "paper's maximum"][2] == NOT_MEASURED
    reason = "only 1 canary was left out for comparison; this statistic needs at least 2"
    assert f"“every round, paper's maximum” was not measured: {reason}." in " ".join(
        as_text(summary).split()
    )
    assert summary.to_dict()["all"]["paper"]["reason"] == reason


def test_a_diverged_run_says_so_first_and_keeps_its_numbers(tmp_path):
    summary = write_report(make_record(**DIVERGED), tmp_path)
    written = json.loads((tmp_path / "report.json").read_text())
    reason = "the loss on held-out data is inf at the end"
    assert (written["status"], written["reasons"]) == ("diverged", [reason])
    assert written["final"]["epsilon"] > 0
    page = (tmp_path / "report.html").read_text()
    assert page.index(f'role="alert">Diverged: {reason}') < page.index('class="finding"')
    assert as_text(summary).startswith(f"Diverged: {reason}.")
    assert summarize(make_record()).status == "ok"
    assert "alert" not in as_text(summarize(make_record()))


@pytest.mark.parametrize(
    ("options", "environment", "red"),
    [
        pytest.param({"force_terminal": True}, {}, True, id="terminal"),
        pytest.param({"force_terminal": True}, {"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({}, {}, False, id="file"),
    ],
)
def test_red_is_for_terminals(options, environment, red: bool):
    file = io.StringIO()
    environment = {"TERM": "xterm-256color", **environment}
    console = Console(file=file, width=100, _environ=environment, **options)
    print_report(console, summarize(record_of(0)))
    first = file.getvalue().splitlines()[0]
    assert "Not measured: no canary took part in 6 rounds." in first
    assert ("31m" in first) is red


@pytest.mark.slow
def test_faults_and_plan_stand_before_the_numbers(tmp_path):
    faults = tuple(f"round {t}, [bold]not audited[/bold] <b>x</b>" for t in range(1, 8))
    record = make_record(faults=faults, plan=PLAN, settings={"other": "shown"})
    summary = write_report(record, tmp_path)
    page = (tmp_path / "report.html").read_text()
    text = as_text(summary, details=True)
    table = text.index("Empirical ε")
    for line in (*faults[:5], "… and 2 more; report.json has all.", *PLAN):
        assert text.index(line) < table
    assert text.index("Plan:") < text.index(PLAN[0])
    assert faults[5] not in text
    assert page.index("[bold]not audited[/bold] &lt;b&gt;x") < page.index('class="cards"')
    assert "<h2>Plan</h2>" in page
    assert page.count(PLAN[0]) == 1  # not among the settings once more
    assert "other" in page
    quiet = summarize(make_record())
    assert "Plan" not in as_text(quiet, details=True)
    assert "Faults" not in as_text(quiet)


@pytest.mark.slow
def test_faults_are_counted_by_kind_wherever_a_report_is_read(tmp_path):
    counts = {str(FaultKind.NO_ANSWER): 12, "a kind of tomorrow": 3, str(FaultKind.TWICE): 0}
    record = make_record(faults=("x",), fault_counts=counts)
    record = AuditRecord.load(record.save(tmp_path / "record.npz"))
    summary = write_report(record, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["fault_counts"] == counts
    text = as_text(summary)
    assert "Faults by kind, 15 in all" in text
    assert re.search(r"no answer in time +12 *\n *a kind of tomorrow +3 *\n", text)
    page = (tmp_path / "report.html").read_text()
    assert "Faults by kind: 15 in all" in page
    assert page.index("no answer in time") < page.index("a kind of tomorrow")
    assert FaultKind.NO_ANSWER.meaning in page
    assert str(FaultKind.TWICE) not in page + text
    for quiet in (make_record(), make_record(fault_counts={"x": 0})):
        assert "Faults by kind" not in as_text(summarize(quiet))
    assert all(kind.meaning.endswith(".") for kind in FaultKind)


def test_unknown_numbers_are_null():
    record = make_record(cohort_size=np.nan, clip_norms=np.full(6, np.nan))
    written = json.loads(json.dumps(summarize(record).to_dict(), allow_nan=False))
    assert written["cohort_size"] is written["canary_share"] is None
