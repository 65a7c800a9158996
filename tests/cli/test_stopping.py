"""What ends a command early: signals, and a second process in the same folder."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from fl_epe.cli import guards
from fl_epe.cli.guards import (
    Stopped,
    exit_despite_threads,
    exit_status,
    stop_on_signals,
)
from fl_epe.cli.main import main
from fl_epe.files import LOCK, PART, locked
from fl_epe.simulation import DPFedAvg, StopRequest
from fl_epe.simulation.checkpoint import read_checkpoint
from fl_epe.wording import NODE_THREAD

PATIENCE = 600
"""Seconds to wait for a run: only one that hangs takes so long, on any machine."""

SMALL = [
    "run", "digits", "--num-clients", "120", "--clients-per-round", "4", "--num-canaries", "20",
    "--unobserved", "20", "--rounds", "100", "--seed", "3", "--checkpoint-every", "1",
]  # fmt: skip

HOLDER = """
import sys, time
from pathlib import Path
from fl_epe.files import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that is at work in a folder, and the folder."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "in\n"
    yield folder, process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [[*SMALL, "--output"], ["resume"], ["compare", "--output"]],
    ids=["run", "resume", "compare"],
)
def test_a_second_process_is_told_who_is_at_work(command, holder, capsys):
    folder, process = holder
    assert main([*command, str(folder)]) == 2
    assert (
        f"to be free: process {process.pid} is at work in it"
        in capsys.readouterr().err
    )


def test_the_lock_dies_with_its_process(holder):
    folder, process = holder
    process.kill()
    process.wait()
    assert (folder / LOCK).exists()
    with locked(folder):
        assert (folder / LOCK).read_text() == str(os.getpid())
    assert not (folder / LOCK).exists()


@pytest.mark.parametrize(
    "link", [os.symlink, os.link], ids=["link", "hard-link"]
)
def test_a_lock_that_is_a_link_leaves_what_it_points_to(link, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_text("mine")
    link(tmp_path / "mine", tmp_path / "run" / LOCK)
    with pytest.raises(OSError, match=LOCK), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    "words", [["resume"], ["run", "digits", "--rounds", "0", "--output"]]
)
def test_a_folder_without_a_run_keeps_every_file(words, tmp_path, capsys):
    """As downloads, beside a folder that ends in .part and a file called run.lock."""
    for name in ("film.part", "run.lock", f"film.mp4{PART}"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "x.part").mkdir()
    assert main([*words, str(tmp_path)]) == 2
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"film.part", "run.lock", f"film.mp4{PART}", "x.part"}
    assert (tmp_path / "run.lock").read_text() == "mine"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_is_an_interrupt_with_its_own_status(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
    try:
        with pytest.raises(Stopped) as stop, stop_on_signals():
            signal.raise_signal(number)
        assert exit_status(stop.value) == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_asks_and_the_second_ends():
    stop = StopRequest()
    stop.is_checked = True
    with stop_on_signals(stop) as came:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
    assert came == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_where_nobody_listens_or_everybody_waits_a_signal_ends_at_once():
    stop = StopRequest()
    with pytest.raises(Stopped), stop_on_signals(stop):
        signal.raise_signal(signal.SIGTERM)
    stop = StopRequest()
    stop.is_checked, stop.waiting_thread = True, threading.get_ident()
    with pytest.raises(Stopped), stop_on_signals(stop):
        signal.raise_signal(signal.SIGTERM)


def test_beside_a_node_at_work_the_process_ends_at_once(monkeypatch):
    """Python's own end would take the thread's C++ with it, and abort."""
    ended, done = list[int](), threading.Event()
    monkeypatch.setattr(os, "_exit", ended.append)
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    exit_despite_threads(130)
    assert ended == []
    node = threading.Thread(target=done.wait, name=NODE_THREAD)
    node.start()
    try:
        exit_despite_threads(130)
        assert ended == [130]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        done.set()
        node.join()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, before.get(number, signal.SIG_DFL))


def test_outside_the_main_thread_nothing_changes():
    found = []

    def enter():
        with stop_on_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_ctrl_c_has_the_status_of_its_signal():
    assert exit_status(KeyboardInterrupt()) == 130


def test_ctrl_c_before_the_first_round_says_how_to_go_on(
    tmp_path, monkeypatch, capsys
):
    def stop(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(DPFedAvg, "start", stop)
    output = tmp_path / "run"
    assert main([*SMALL, "--output", str(output)]) == 130
    printed = "".join(capsys.readouterr())
    assert f"Stopped. Continue with: fl-epe resume {output}" in printed


@pytest.fixture
def running(tmp_path):
    """A run of which a round is kept, and its folder."""
    output = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_epe", *SMALL, "--output", output],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {"PYTHONUNBUFFERED": "1", "FLWR_TELEMETRY_ENABLED": "0"},
    )
    lines = iter(process.stdout.readline, "")
    assert any("round 0/100" in line for line in lines)
    end = time.monotonic() + PATIENCE
    while not (output / "checkpoint-previous.npz").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    yield process, output
    process.kill()
    process.communicate()


def test_a_held_key_interrupts_the_clean_up_once(monkeypatch):
    monkeypatch.setattr(guards, "_SECONDS_OF_A_BURST", 1e9)
    ends = []
    with stop_on_signals() as received:
        for _ in range(9):
            try:
                signal.raise_signal(signal.SIGINT)
            except Stopped as end:
                ends.append(end)
    assert (len(ends), len(received)) == (2, 9)


def test_a_later_signal_interrupts_a_clean_up_that_hangs(monkeypatch):
    monkeypatch.setattr(guards, "_SECONDS_OF_A_BURST", 0.0)
    with stop_on_signals():
        for _ in range(4):
            with pytest.raises(Stopped):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.weekly
@pytest.mark.parametrize("signals", [2, 3, 9], ids=["two", "three", "nine"])
def test_a_second_signal_ends_a_run_at_once_and_as_the_first(signals, running):
    process, output = running
    for _ in range(signals):
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, printed
    assert f"Continue with: fl-epe resume {output}" in printed
    kept = {path.name for path in output.iterdir()}
    assert kept == {"checkpoint.npz", "checkpoint-previous.npz", "run.log"}
    assert read_checkpoint(output / "checkpoint.npz")


@pytest.mark.weekly
def test_a_run_that_is_terminated_says_how_to_go_on(running):
    process, output = running
    process.terminate()
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    folder = re.escape(str(output))
    said = rf"Stopped after round (\d+) of 100\. Continue with: fl-epe resume {folder}"
    (done,) = re.findall(said, printed)
    kept = {path.name for path in output.iterdir()}
    assert kept == {"checkpoint.npz", "checkpoint-previous.npz", "run.log"}
    assert (
        int(read_checkpoint(output / "checkpoint.npz")[1]["rounds_done"])
        == int(done)
        > 0
    )
    for name in kept - {
        "run.log"
    }:  # what is kept of a run has its secrets; the log has none
        assert (output / name).stat().st_mode & 0o077 == 0
