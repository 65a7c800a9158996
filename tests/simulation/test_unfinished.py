"""Runs that are stopped, whose disk is full, or whose checkpoint is broken: nothing is lost."""

import dataclasses
import errno
import logging
import threading
import time

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from tiny import Tiny

from fl_epe.archive import write_archive
from fl_epe.auditing import FaultKind
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import (
    InProcessGrid,
    Job,
    RunStoppedError,
    StopRequest,
    has_checkpoint,
    remove_checkpoint,
    run_on_grid,
    simulate,
    worker_app,
)
from fl_epe.simulation.checkpoint import previous_of, read_checkpoint

ROUNDS = 8
CONFIG = RunConfig(
    clients=20, rounds=ROUNDS, clients_per_round=5, num_canaries=12, unobserved=12,
    canary_participations=1,
    noise_multiplier=0.3,
)  # fmt: skip
JOB = Job(Tiny(), CONFIG, Seeds.derive(7))


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def whole():
    return simulate(JOB)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.npz"


def killed(path, after, **options):
    """Leave the files of a run that is killed after a round."""

    def kill(progress):
        if progress.round == after:
            raise KilledError

    with pytest.raises(KilledError):
        simulate(JOB, checkpoint=path, on_round=kill, **options)


def check_same(found, expected):
    ours, theirs = found.by_name(), expected.by_name()
    for name, value in theirs.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(ours[name], value, err_msg=name)
    for name in ("design.settings", "design.schedule", "provenance.faults"):
        assert ours[name] == theirs[name], name


def rounds_in(path):
    state = read_checkpoint(path)[1]
    return int(state["rounds_done"]) if state else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "newest", "before"),
    [pytest.param(1, 5, 4, id="1"), pytest.param(2, 4, 2, id="2")],
)
def test_two_checkpoints_are_kept(path, whole, every, newest, before):
    killed(path, 5, checkpoint_every=every)
    assert (rounds_in(path), rounds_in(previous_of(path))) == (newest, before)
    check_same(simulate(JOB, checkpoint=path), whole)


@pytest.mark.slow
def test_correlated_noise_goes_on_where_it_was(path, monkeypatch):
    config = dataclasses.replace(CONFIG, mechanism="banded:bands=4")
    monkeypatch.setitem(globals(), "JOB", Job(Tiny(), config, Seeds.derive(7)))
    killed(path, 5, checkpoint_every=1)
    assert (
        sum(name.startswith("noise.") for name in read_checkpoint(path)[1]) == 3
    )
    check_same(simulate(JOB, checkpoint=path), simulate(JOB))


def test_there_is_one_before_the_first_round_and_one_after_the_last(
    path, whole
):
    killed(path, 3, checkpoint_every=9999)
    assert rounds_in(path) == 0
    assert not previous_of(path).exists()
    killed(path, ROUNDS, checkpoint_every=9999)
    assert rounds_in(path) == ROUNDS
    check_same(simulate(JOB, checkpoint=path), whole)
    remove_checkpoint(path)
    assert not has_checkpoint(path)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "garbage", "missing"])
def test_the_one_before_is_used_and_named(path, whole, damage, caplog):
    killed(path, 5, checkpoint_every=2)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:1000] if damage == "cut" else content[::-1])
    seen = []
    with caplog.at_level(logging.WARNING):
        record = simulate(
            JOB, checkpoint=path, on_round=lambda done: seen.append(done.round)
        )
    assert seen[0] == 2
    assert (
        rounds_in(previous_of(path)) == 2
    )  # the broken one is not in its place
    assert f"{str(path)!r} to" in caplog.text
    assert (
        f"goes on from the checkpoint before it, {previous_of(path)}"
        in caplog.text
    )
    check_same(record, whole)
    remove_checkpoint(path)
    assert not list(path.parent.iterdir())


def test_where_both_are_broken_both_are_named(path):
    killed(path, 5, checkpoint_every=2)
    for broken in (path, previous_of(path)):
        broken.write_bytes(b"nothing")
    with pytest.raises(
        ValueError, match="The one before it cannot be used either"
    ) as refusal:
        simulate(JOB, checkpoint=path)
    for broken in (path, previous_of(path)):
        assert str(broken) in str(refusal.value)


def test_a_checkpoint_of_another_run_is_refused(path, whole):
    killed(path, 5, checkpoint_every=2)
    other = Job(
        Tiny(),
        dataclasses.replace(CONFIG, noise_multiplier=0.4),
        Seeds.derive(8),
    )
    differs = "other values of config.noise_multiplier, seeds.canary"
    with pytest.raises(ValueError, match=differs):
        simulate(other, checkpoint=path)
    with pytest.raises(ValueError, match="other values of evaluate_every"):
        simulate(dataclasses.replace(JOB, evaluate_every=1), checkpoint=path)
    with pytest.raises(ValueError, match=r"other values of options\.inputs"):
        simulate(dataclasses.replace(JOB, task=Tiny(inputs=7)), checkpoint=path)
    check_same(simulate(JOB, checkpoint=path), whole)


def test_a_full_disk_is_a_fault_and_the_run_goes_on(path, whole, monkeypatch):
    calls = []

    def full(path, *arguments, **named):
        calls.append(path)
        if len(calls) in (3, 4):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_archive(path, *arguments, **named)

    monkeypatch.setattr("fl_epe.simulation.checkpoint.write_archive", full)
    kept = []
    record = simulate(
        JOB,
        checkpoint=path,
        checkpoint_every=1,
        on_round=lambda _: kept.append(rounds_in(path)),
    )
    assert kept == [0, 1, 1, 1, 4, 5, 6, 7, 8]
    assert record.provenance.fault_counts == {
        FaultKind.CHECKPOINT_NOT_WRITTEN: 2
    }
    assert [fault.partition(",")[0] for fault in record.provenance.faults] == [
        "round 2",
        "round 3",
    ]
    np.testing.assert_array_equal(record.observed.means, whole.observed.means)


class Stopping(Tiny):
    """Somebody asks the run to stop while its clients train in the fourth round."""

    name = "tiny"

    def client(self, client_id):
        with LOCK:
            TRAINED.append(client_id)
            if len(TRAINED) == 17:
                REQUEST[0].ask()
        return super().client(client_id)


LOCK, TRAINED, REQUEST = threading.Lock(), list[int](), list[StopRequest]()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_run_that_is_asked_to_stop_keeps_its_rounds(path, whole, where):
    TRAINED.clear()
    REQUEST[:] = [StopRequest()]
    job = dataclasses.replace(JOB, task=Stopping())
    stops = []

    def run():
        with pytest.raises(RunStoppedError) as stop:
            simulate(
                job, checkpoint=path, checkpoint_every=9999, stop=REQUEST[0]
            )
        stops.append(stop.value)

    if where == "main":
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert (stops[0].rounds_done, stops[0].rounds, stops[0].is_saved) == (
        4,
        ROUNDS,
        True,
    )
    assert rounds_in(path) == 4
    check_same(simulate(JOB, checkpoint=path), whole)


def test_a_request_is_listened_to_while_rounds_are_done():
    request = StopRequest()
    assert not request.ask()
    assert request.asked
    request.is_checked = True
    assert request.ask()
    request.waiting_thread = threading.get_ident()
    assert not request.ask()


def test_whatever_ends_the_waiting_the_rounds_are_kept(path, whole):
    class Breaks(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None, **newer):
            messages = list(messages)
            if messages[0].metadata.group_id == "4":
                raise ConnectionError("the network is down")
            return super().send_and_receive(messages, timeout=timeout)

    app = worker_app(JOB.task, everyone=True)
    with Breaks(app, 2) as grid, pytest.raises(ConnectionError):
        run_on_grid(grid, JOB, checkpoint=path, checkpoint_every=9999)
    assert rounds_in(path) == 3
    check_same(simulate(JOB, checkpoint=path), whole)


@pytest.mark.slow
def test_a_node_that_hangs_loses_that_answer_alone():
    good, app = worker_app(JOB.task, everyone=True), ClientApp()
    app.query()(lambda message, context: good(message, context))

    @app.train()
    def train(message, context):
        if (context.node_id, message.metadata.group_id) == (1, "3"):
            threading.Event().wait()
        return good(message, context)

    began = time.monotonic()
    with InProcessGrid(app, 2) as grid:
        record = run_on_grid(grid, JOB, round_timeout=2)
    assert time.monotonic() - began > 2
    assert record.provenance.fault_counts == {FaultKind.NO_ANSWER: 1}
    assert record.provenance.faults == ("round 3, node 1: no answer in time",)
    assert record.clients.absent is not None
    assert np.flatnonzero(record.clients.absent).tolist() == [2]


@pytest.mark.parametrize("timeout", [0, -1.0, np.inf])
def test_the_timeout_is_positive(timeout):
    with pytest.raises(ValueError, match="Expected round_timeout="):
        simulate(JOB, round_timeout=timeout)
