"""Status 0 only if something was measured, of a model that trained; else 3, and the reason."""

import dataclasses
import json

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.auditing import NotMeasured
from fl_epe.cli.main import main

DIVERGED = {"metrics": {"train_loss": np.append(np.ones(5), np.nan)}}
RECORDS = {
    "measured": (make_record, 0, "ok"),
    "no-canary": (lambda: record_of(0), 3, "not measured"),
    "diverged": (lambda: make_record(**DIVERGED), 3, "diverged"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
def test_report(kind: str, tmp_path, capsys):
    make, expected, status = RECORDS[kind]
    make().save(tmp_path / "record.npz")
    assert main(["report", str(tmp_path)]) == expected
    printed = capsys.readouterr().out.strip()
    assert printed.startswith(status.capitalize()) is (expected == 3)
    assert "\x1b[" not in printed  # not a terminal
    assert (
        json.loads((tmp_path / "report.json").read_text())["status"] == status
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
def test_run(kind: str, tmp_path, capsys, monkeypatch):
    make, expected, status = RECORDS[kind]
    monkeypatch.setattr("fl_epe.flower.simulate", lambda *_, **__: make())
    output = tmp_path / "run"
    assert main(["run", "digits", "--output", str(output)]) == expected
    assert (output / "record.npz").exists()
    assert json.loads((output / "report.json").read_text())["status"] == status
    assert (f"{status.capitalize()}, as" in capsys.readouterr().out) is (
        expected == 3
    )


SCORES = {
    "one": "observed,unobserved\n3,1\n,2\n",
    "no-member": "score,member\n3,0\n4,0\n",
    "one-left-out": "score,member\n3,1\n4,1\n1,0\n",
}


@pytest.mark.parametrize("kind", SCORES)
def test_estimate(kind: str, tmp_path, capsys):
    path = tmp_path / "scores.csv"
    path.write_text(SCORES[kind])
    reason = {
        "one": "there is only 1 score of a canary that took part; an ε needs at least 2",
        "no-member": "there is no score of a canary that took part; an ε needs at least 2",
        "one-left-out": "there is only 1 score of a canary that did not take part; an ε needs at "
        "least 2, or --dim if the scores are cosines",
    }[kind]
    assert main(["estimate", str(path)]) == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"Not measured: {reason}.\n")
    assert main(["estimate", str(path), "--json"]) == 3
    written = json.loads(capsys.readouterr().out)
    assert (written["status"], written["answer"]) == ("not measured", None)
    assert written["warnings"] == [{"code": "not-measured", "text": reason}]


def test_estimate_of_enough_scores(tmp_path, capsys):
    path = tmp_path / "scores.csv"
    path.write_text("observed,unobserved\n3,1\n4,2\n")
    assert main(["estimate", str(path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["status"], written["warnings"]) == ("ok", [])
    assert written["answer"]["epsilon"] >= 0


@pytest.mark.parametrize(
    "failure", ["none", "not_measured", "diverged", "skipped"]
)
def test_compare(failure: str, tmp_path, capsys, monkeypatch):
    from fl_epe.limit import measure as room
    from fl_epe.limit import runner

    def measure(plan, cell):
        if cell.participations == 1 and failure == "not_measured":
            raise NotMeasured("no canary took part in 16 rounds")
        if cell.participations == 1 and failure == "skipped":
            raise ValueError("too few rounds")
        diverged = (
            "the training loss is nan at the end"
            if failure == "diverged"
            else None
        )
        at_once = {"diverged": diverged if cell.participations == 1 else None}
        return dataclasses.replace(room.measure(plan, cell), **at_once)

    monkeypatch.setattr(runner, "measure", measure)
    grid = "--schedules cyclic --noise-multipliers 0.3 --participations 1 2 --workers 1"
    size = "--rounds 16 --clients 100"
    expected = 3 if failure in ("not_measured", "diverged") else 0
    assert (
        main(
            ["compare", *grid.split(), *size.split(), "--output", str(tmp_path)]
        )
        == expected
    )
    printed = " ".join(capsys.readouterr().out.split())
    failures = "Not measured, or diverged: 1 of 2 rows; see the notes."
    assert (failures in printed) is (expected == 3)


def test_compare_without_any_epsilon(tmp_path, capsys, monkeypatch):
    from fl_epe.limit import runner

    reason = "no canary took part in 16 rounds"

    def measure(*_):
        raise NotMeasured(reason)

    monkeypatch.setattr(runner, "measure", measure)
    grid = "--schedules cyclic poisson --noise-multipliers 0.3 --participations 1 --workers 1"
    assert main(["compare", *grid.split(), "--output", str(tmp_path)]) == 3
    assert "Not measured, or diverged: 2 of 2 rows" in capsys.readouterr().out
    page = (tmp_path / "compare.html").read_text()
    assert (
        page.count(f"not measured: {reason}") == 6
    )  # two tables and the notes
    assert "δ = " not in page
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    "command", ["run", "resume", "report", "estimate", "compare"]
)
def test_help_says_so(command: str, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "3 ε was not measured or the model diverged" in " ".join(
        capsys.readouterr().out.split()
    )
