"""``run.log``: one JSON object a line, no seeds, and never a reason for a run to end."""

import errno
import json
import math
import os

import pytest
from small_run import ROUNDS, SEED, SMALL

from fl_epe import AuditRecord
from fl_epe.cli.main import main
from fl_epe.cli.run_log import RUN_LOG, RunLog, command_line, run_facts
from fl_epe.simulation import Progress

SMALL = [*SMALL, "--rounds", ROUNDS, "--seed", SEED, "--checkpoint-every", "2"]


def lines(directory):
    text = (directory / RUN_LOG).read_text("utf-8")
    assert text.endswith("\n")
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in text.splitlines()
    ]


def events(directory):
    return [line["event"] for line in lines(directory)]


@pytest.fixture(scope="module")
def folder(finished):
    return finished[0]


def test_a_line_for_everything_that_happens(folder):
    assert events(folder) == ["started", *["round"] * 5, "finished", "report"]
    times = [line["time"] for line in lines(folder)]
    assert times == sorted(times)


def test_rounds_have_the_numbers_of_the_record(folder):
    record = AuditRecord.load(folder / "record.npz")
    start, *rounds = [
        line for line in lines(folder) if line["event"] == "round"
    ]
    assert (start["round"], start["train_loss"]) == (0, None)
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]
    assert [line["train_loss"] for line in rounds] == record.metrics[
        "train_loss"
    ].tolist()
    assert [
        line["clip_norm"] for line in rounds
    ] == record.mechanism.clip_norms.tolist()
    assert rounds[-1]["eval_accuracy"] == record.metrics["eval_accuracy"][-1]
    for line in rounds:
        assert (
            line["epsilon-all-low"]
            <= line["epsilon-all"]
            <= line["epsilon-all-high"]
        )


def test_the_last_line_is_the_report(folder):
    report = json.loads((folder / "report.json").read_text("utf-8"))
    last = lines(folder)[-1]
    assert (last["status"], last["exit_status"]) == (
        report["status"],
        report["exit_status"],
    )


def test_no_seed_is_in_the_log_or_the_report(folder):
    for name in (RUN_LOG, "report.json", "report.html"):
        assert SEED not in (folder / name).read_text("utf-8")
    record = AuditRecord.load(folder / "record.npz")
    assert SEED not in str(record.provenance.commands)
    assert [str(seed) for seed in record.provenance.seeds.values()].count(
        SEED
    ) == 0


def test_the_record_has_the_command_and_the_dates(folder):
    run = AuditRecord.load(folder / "record.npz").provenance
    assert run.commands == (command_line([*SMALL, "--output", str(folder)]),)
    assert run.started == lines(folder)[0]["time"]
    assert str(run.started) <= str(run.ended) <= lines(folder)[-1]["time"]
    written = json.loads((folder / "report.json").read_text("utf-8"))["run"]
    assert (written["started"], written["ended"]) == (run.started, run.ended)
    assert written["commands"] == list(run.commands)


@pytest.mark.weekly
def test_a_run_that_goes_on_adds_to_its_log(tmp_path, monkeypatch, capsys):
    output = tmp_path / "run"

    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(AuditRecord, "save", full)
        assert main([*SMALL, "--output", str(output)]) == 1
    before = lines(output)
    assert before[-1]["event"] == "failed"
    assert main(["resume", str(output)]) in (0, 3)
    after = lines(output)
    assert after[: len(before)] == before
    assert [line["event"] for line in after[len(before) :]] == [
        "started",
        "round",
        "finished",
        "report",
    ]
    run = AuditRecord.load(output / "record.npz").provenance
    assert run.started == before[0]["time"]
    assert [command.split()[1] for command in run.commands] == ["run", "resume"]


@pytest.mark.weekly
def test_a_log_that_cannot_be_written_is_said_once(tmp_path, capsys):
    output = tmp_path / "run"
    (output / RUN_LOG).mkdir(parents=True)
    assert main([*SMALL, "--output", str(output)]) in (0, 3)
    assert capsys.readouterr().err.count("cannot be written") == 1
    run = AuditRecord.load(output / "record.npz").provenance
    assert len(run.commands) == 1


def test_a_command_that_is_refused_leaves_no_log(tmp_path, capsys):
    words = [*SMALL, "--output", str(tmp_path / "run"), "--clip-norm", "-1"]
    assert main(words) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run", "digits", "--seed", "17"], "fl-epe run digits --seed …"),
        (["run", "--seed=17", "digits"], "fl-epe run --seed=… digits"),
        (["run", "--seed", "--seed", "17"], "fl-epe run --seed … 17"),
        (["run", "a b", "--seed"], "fl-epe run 'a b' --seed"),
        (
            ["run", "--seed", " 17", "a --seed b"],
            "fl-epe run --seed … 'a --seed b'",
        ),
    ],
    ids=["two-words", "one-word", "twice", "at-the-end", "with-blanks"],
)
def test_the_command_line_without_its_seed(words, shown):
    assert command_line(words) == shown


def _progress(done, **more):
    known = {
        "round": done,
        "rounds": 5,
        "loss": math.nan,
        "accuracy": 0.5,
        "clip_norm": math.inf,
        "canaries_seen": 3,
        "seconds_left": 1.0,
        "metric": "accuracy",
        "epsilons": {},
        "eval_loss": math.nan,
        "faults": (),
        "fault_counts": {},
    }
    return Progress(**{**known, **more})


def test_unknown_numbers_are_null_and_faults_are_told_once(tmp_path):
    log = RunLog(tmp_path, pytest.fail)
    log.progress(
        _progress(1, faults=("one",), fault_counts={"client failed": 1})
    )
    log.progress(
        _progress(2, faults=("one",), fault_counts={"client failed": 1})
    )
    epsilons = {
        "epsilon-all": 1.0,
        "epsilon-all-low": 0.0,
        "epsilon-all-high": math.inf,
    }
    more = {
        "faults": ("one", "two"),
        "fault_counts": {"client failed": 3},
        "epsilons": epsilons,
    }
    log.progress(_progress(3, **more))
    rounds = lines(tmp_path)
    assert rounds[0]["train_loss"] is rounds[0]["clip_norm"] is None
    assert (rounds[2]["epsilon-all"], rounds[2]["epsilon-all-high"]) == (
        1.0,
        None,
    )
    assert [line["faults"] for line in rounds] == [["one"], [], ["two"]]
    assert rounds[2]["fault_counts"] == {"client failed": 3}


def test_a_disk_that_fills_up_is_warned_about_once(tmp_path, monkeypatch):
    said: list[str] = []
    log = RunLog(tmp_path, said.append)
    log.progress(_progress(3))
    (tmp_path / RUN_LOG).unlink()
    (tmp_path / RUN_LOG).mkdir()
    log.note("round")
    (tmp_path / RUN_LOG).rmdir()
    log.note("round")
    assert len(said) == 1
    assert not (tmp_path / RUN_LOG).exists()


def test_the_log_of_an_earlier_run_in_the_folder_does_not_count(tmp_path):
    rows = [
        {
            "event": "started",
            "command": "fl-epe run old",
            "time": "2001-01-01T00:00:00Z",
        },
        {
            "event": "started",
            "command": "fl-epe run new",
            "time": "2002-01-01T00:00:00Z",
        },
        {
            "event": "started",
            "command": "fl-epe resume .",
            "time": "2003-01-01T00:00:00Z",
        },
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / RUN_LOG).write_text(text + "no JSON\n[1]\n", "utf-8")
    run = run_facts(tmp_path, "fl-epe resume .", "2003-01-01T00:00:00Z")
    assert run["commands"] == ("fl-epe run new", "fl-epe resume .")
    assert run["started"] == "2002-01-01T00:00:00Z"


def test_a_pipe_in_place_of_the_log_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / RUN_LOG)
    assert run_facts(tmp_path, "fl-epe run digits", "now")["commands"] == (
        "fl-epe run digits",
    )
