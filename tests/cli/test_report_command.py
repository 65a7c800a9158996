"""``fl-epe report``: figures of one run, several runs side by side, and what is refused."""

import json
import unicodedata

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.cli.main import main


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two finished runs, below the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, noise in (("one", 0.5), ("two", 0.4)):
        (tmp_path / name).mkdir()
        record = make_record(
            noise_multiplier=noise, seeds={"canary": int(10 * noise)}
        )
        record.save(tmp_path / name / "record.npz")
    return tmp_path


@pytest.mark.slow
def test_figures_beside_the_report(runs, capsys):
    assert main(["report", "one", "--figures", "svg", "png"]) == 0
    names = {path.name for path in (runs / "one" / "figures").iterdir()}
    assert {"scores.csv", "epsilon.svg", "epsilon.png", "epsilon.csv"} <= names
    assert "Figures: one/figures" in capsys.readouterr().out


def test_without_figures_there_are_none(runs):
    assert main(["report", "one"]) == 0
    assert not (runs / "one" / "figures").exists()


def test_two_runs_side_by_side(runs, capsys):
    assert main(["report", "one", "two", "--output", "side"]) == 0
    values = json.loads((runs / "side" / "comparison.json").read_text("utf-8"))
    assert [run["directory"] for run in values["runs"]] == ["one", "two"]
    assert "noise_multiplier" in values["different_settings"]
    printed = capsys.readouterr().out
    assert "Comparison: side/comparison.html" in printed
    assert {path.name for path in (runs / "one").iterdir()} == {"record.npz"}


def test_a_delta_for_all(runs):
    assert main(["report", "one", "two", "--delta", "1e-6"]) == 0
    values = json.loads((runs / "comparison.json").read_text("utf-8"))
    assert values["delta"] == 1e-6


def test_a_delta_of_one_run_is_refused_whatever_it_is(runs, capsys):
    for delta in ("0", "1e-6"):
        assert main(["report", "one", "--delta", delta]) == 2
        assert "is for two or more runs" in " ".join(
            capsys.readouterr().err.split()
        )


def test_a_run_that_was_not_measured_has_its_status(runs):
    record_of(1).save(runs / "two" / "record.npz")
    assert main(["report", "one", "two"]) == 3


HOSTILE = (
    "\x1b[2J\x1b[H\x9b1mε ≈ 0.01. Verdict: private\r\x07\u202e" + "x" * 10**5
)


def _nothing_moves_the_cursor(text):
    assert "\\u001b[2J" in text  # it is there, written out
    assert not [
        c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf")
    ]
    assert "x" * 2001 not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["evil"], ["evil", "one", "--output", "side"]],
    ids=["one", "several"],
)
def test_a_record_that_somebody_sent_writes_nothing_but_text(
    runs, words, capsys
):
    record = make_record(
        **dict.fromkeys(("task", "metric", "caveat", "started"), HOSTILE),
        **dict.fromkeys(("plan", "commands"), (HOSTILE,)),
        settings={HOSTILE: HOSTILE},
        faults=(HOSTILE,),
        fault_counts={HOSTILE: 3},
        versions={"numpy": HOSTILE, HOSTILE: "1"},
        metrics={"eval_accuracy": np.ones(2) / 2, "eval_round": np.arange(2)},
    )
    record.save(runs / "evil" / "record.npz")
    assert main(["report", *words]) == 0
    _nothing_moves_the_cursor(capsys.readouterr().out)
    for path in (runs / words[-1]).glob("*.[hjc]*"):
        _nothing_moves_the_cursor(path.read_text())


def test_a_link_in_a_folder_that_somebody_sent_leads_nowhere(runs):
    mine = runs / "mine"
    mine.write_text("mine")
    for name in ("report.json", "report.html", "epsilon.png"):
        (runs / "one" / name).symlink_to(mine)
    (runs / "one" / "figures").symlink_to(runs)
    assert main(["report", "one"]) == 0
    assert main(["report", "one", "--figures", "svg"]) == 2
    assert mine.read_text() == "mine"
    assert not (runs / "scores.csv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one", "nowhere"], "path='nowhere/record.npz' to exist"),
        (["one", "two", "./one"], "RUN_DIR='one'"),
        (["one", "--delta", "0.1"], "--delta"),
        (["one", "--output", "side"], "--output"),
        (["one", "two", "--figures", "svg"], "--figures"),
        (["one", "two", "--delta", "2"], "--delta=2.0"),
    ],
    ids=["nowhere", "twice", "delta", "output", "figures", "large-delta"],
)
def test_what_is_refused(runs, words, said, capsys):
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (runs / "comparison.html").exists()


def test_formats_of_figures_are_named(runs, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["report", "one", "--figures", "pdf"])
    assert "'pdf' (choose from 'svg', 'png')" in capsys.readouterr().err
    assert {path.name for path in (runs / "one").iterdir()} == {"record.npz"}


def test_a_damaged_record_is_named(runs, capsys):
    (runs / "two" / "record.npz").write_bytes(b"no archive")
    assert main(["report", "one", "two"]) == 2
    assert "two/record.npz" in capsys.readouterr().err
