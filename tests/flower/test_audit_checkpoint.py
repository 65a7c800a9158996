"""`CanaryAudit(checkpoint=…)`: audits of server apps that are killed and started again."""

import contextlib
import dataclasses
import logging
import math
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_audits import DELTA, NODES, PLAIN, KilledError, fixed, run_until
from flower_clients import DIM, drifting_app, model
from flower_processes import PATIENCE, environment
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from killed_server import CANARIES, ROUNDS, Later

from fl_epe import AuditRecord, epsilon_from_record
from fl_epe.archive import read_archive, write_archive
from fl_epe.auditing import Adversary
from fl_epe.auditing.record.round_correlation import SKETCH_PARTS
from fl_epe.flower import CanaryAudit, InProcessGrid, canary_mod
from fl_epe.flower.checkpoint import Checkpoint, SavedAudit
from fl_epe.flower.client_canaries import CanaryOrder

KILLED = 5
SERVER = Path(__file__).parents[1] / "support" / "killed_server.py"


def start(strategy, arrays, rounds=ROUNDS, **settings):
    """`run_until`, with the settings of these tests."""
    settings = {
        "num_canaries": CANARIES,
        "delta": DELTA,
        "seed": 1,
        "max_share": 0.5,
        **settings,
    }
    return run_until(strategy, arrays, rounds, **settings)


@pytest.fixture(scope="module")
def uninterrupted() -> AuditRecord:
    """The record of a run that nothing interrupted."""
    return start(Later(), model())[0].record()


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    """The checkpoint of a run that was killed, and its models: made once, copied for each test."""
    folder = tmp_path_factory.mktemp("killed")
    _, models = start(Later(), model(), kill=KILLED, checkpoint=folder)
    return folder, models


@pytest.fixture
def killed(killed_once, tmp_path):
    """The models of a run that was killed; its checkpoint is in ``tmp_path``."""
    shutil.copytree(killed_once[0], tmp_path, dirs_exist_ok=True)
    return killed_once[1]


def _check_same(found: AuditRecord, expected: AuditRecord) -> None:
    np.testing.assert_array_equal(found.presence, expected.presence)
    for side in ("observed", "unobserved"):
        ours, theirs = getattr(found, side), getattr(expected, side)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        assert (ours.model_updates is None) == (theirs.model_updates is None)
        for name in ("means", "final", "displacement", "model_updates"):
            if getattr(theirs, name) is None:
                continue
            np.testing.assert_allclose(
                getattr(ours, name), getattr(theirs, name), atol=1e-6
            )
    np.testing.assert_allclose(
        found.norms.means, expected.norms.means, rtol=1e-5
    )
    np.testing.assert_allclose(
        found.norms.displacement, expected.norms.displacement, rtol=1e-5
    )
    np.testing.assert_allclose(
        found.mechanism.contributions,
        expected.mechanism.contributions,
        rtol=1e-5,
    )
    assert found.mechanism.cohort_size == expected.mechanism.cohort_size
    assert found.design.to_settings() == expected.design.to_settings()
    ours, theirs = (
        dataclasses.asdict(record.findings) for record in (found, expected)
    )
    assert theirs.pop("resumed_after") == ()
    assert len(ours.pop("resumed_after")) > 0
    assert (
        ours.pop("plan")[:2] == theirs.pop("plan")[:2]
    )  # the third sentence is about seconds
    assert ours == theirs
    assert found.provenance.seeds == expected.provenance.seeds
    for sees in ("final", "all"):
        ours, theirs = (
            epsilon_from_record(r, adversary=Adversary(sees))
            for r in (found, expected)
        )
        assert ours.epsilon == pytest.approx(theirs.epsilon, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.9]
)
@pytest.mark.parametrize(
    ("back", "rounds"),
    [
        pytest.param(
            KILLED, ROUNDS - KILLED, id="last-round", marks=pytest.mark.slow
        ),
        pytest.param(KILLED - 2, ROUNDS - KILLED + 2, id="two-rounds-before"),
    ],
)
def test_a_resumed_audit_is_that_of_an_uninterrupted_run(
    tmp_path, momentum, back, rounds
):
    uninterrupted, _ = start(
        Later(momentum=momentum), model(), participations=2
    )
    killed = Later(momentum=momentum)
    keywords = {"checkpoint": tmp_path, "participations": 2}
    _, models = start(killed, model(), kill=KILLED, **keywords)
    vector = None
    if momentum:
        vector = [
            (a.numpy() - b.numpy())
            / 0.5  # how the server moved in the round before
            for a, b in zip(
                models[back - 1].values(), models[back].values(), strict=True
            )
        ]
    again, _ = start(
        Later(back, momentum, vector),
        models[back],
        rounds,
        **keywords,
        seed=None,
    )
    _check_same(again.record(), uninterrupted.record())
    went_back = "round 3, the server went back to the model after this round: rounds 4 to 5, whose"
    assert [fault[: len(went_back)] for fault in again.faults] == [
        went_back
    ] * (back < KILLED)
    assert again.record().findings.resumed_after == (back,)


@pytest.mark.slow
def test_all_rounds_may_be_given_again_and_later_ones_are_not_measured(
    tmp_path, uninterrupted, killed
):
    again, models = start(
        Later(KILLED), killed[KILLED], ROUNDS, checkpoint=tmp_path
    )
    record = again.record()
    assert len(models) == ROUNDS + 1
    assert record.rounds == ROUNDS
    np.testing.assert_array_equal(record.presence, uninterrupted.presence)
    np.testing.assert_allclose(
        record.observed.means, uninterrupted.observed.means, atol=1e-6
    )
    assert (
        f"round {ROUNDS + 1}, this round and later ones are not measured"
        in again.faults[0]
    )


@pytest.mark.slow
def test_a_server_may_be_killed_again_and_again(tmp_path, uninterrupted):
    arrays = model()
    for rounds_done in range(ROUNDS):
        audit, models = start(
            Later(rounds_done),
            arrays,
            ROUNDS - rounds_done,
            kill=1,
            checkpoint=tmp_path,
            seed=1,
        )
        arrays = models[1]
    _check_same(audit.record(), uninterrupted)
    # Once more, after the last round: nothing is left but the report.
    after, _ = start(Later(ROUNDS), arrays, 0, checkpoint=tmp_path)
    _check_same(after.record(), uninterrupted)
    assert "every round" in after.report()


def _mixed_model() -> ArrayRecord:
    """Has a name with a slash, numbers that no canary moves, and float64."""
    arrays: dict[str, np.ndarray] = {
        "a/b:0": np.zeros((60, 50)),
        "head": np.zeros(7, np.float32),
        "scale": np.array(1.5, np.float32),
        "counts": np.arange(3),
    }
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


@pytest.mark.slow
def test_models_of_any_form_are_known_again(tmp_path):
    uninterrupted, _ = start(Later(), _mixed_model())
    _, models = start(Later(), _mixed_model(), kill=KILLED, checkpoint=tmp_path)
    again, _ = start(Later(KILLED), models[KILLED], 3, checkpoint=tmp_path)
    _check_same(again.record(), uninterrupted.record())


@pytest.mark.slow
def test_momentum_that_was_not_kept_begins_at_zero(tmp_path):
    _, models = start(
        Later(momentum=0.9), model(), kill=KILLED, checkpoint=tmp_path
    )
    again, _ = start(
        Later(KILLED, 0.9), models[KILLED], ROUNDS - KILLED, checkpoint=tmp_path
    )
    norms = again.record().norms
    assert norms.means[KILLED] == pytest.approx(
        norms.model_updates[KILLED] / 0.5, rel=1e-5
    )
    assert norms.means[KILLED + 1] != pytest.approx(
        norms.model_updates[KILLED + 1] / 0.5, rel=1e-2
    )


def test_a_strategy_that_is_only_hooked_goes_on_too(
    tmp_path, uninterrupted, killed
):
    audit = CanaryAudit(
        Later(KILLED),
        num_canaries=CANARIES,
        delta=DELTA,
        rounds=ROUNDS,
        checkpoint=tmp_path,
        max_share=0.5,
    )
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.attach().start(grid, killed[KILLED], num_rounds=ROUNDS - KILLED)
    _check_same(audit.record(), uninterrupted)


def test_a_loop_that_finds_its_model_itself_goes_on_too(
    tmp_path, uninterrupted, killed
):
    class Finds(Later):
        def start(self, grid):  # type: ignore[override]
            return super().start(grid, killed[self.done], ROUNDS - self.done)

    Finds.__name__ = (
        Later.__name__
    )  # the same strategy as far as the checkpoint knows
    keywords = {
        "num_canaries": CANARIES,
        "rounds": ROUNDS,
        "checkpoint": tmp_path,
        "max_share": 0.5,
    }
    with InProcessGrid(drifting_app(), NODES) as grid:
        with pytest.raises(
            ValueError, match=r"delta=0.5 to be 0.001, as in the audit in"
        ):
            CanaryAudit(Finds(KILLED), delta=0.5, **keywords).start(grid)
        audit = CanaryAudit(Finds(KILLED), delta=DELTA, **keywords)
        audit.start(grid)
    _check_same(audit.record(), uninterrupted)


def test_other_settings_of_a_hooked_strategy_are_a_fault_and_a_new_audit(
    tmp_path, killed
):
    saved_bytes = (tmp_path / "audit.npz").read_bytes()
    keywords = {
        "delta": DELTA,
        "rounds": 3,
        "checkpoint": tmp_path,
        "max_share": 0.5,
    }
    audit = CanaryAudit(Later(KILLED), num_canaries=12, **keywords)
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.attach().start(grid, killed[KILLED], num_rounds=3)
    assert audit.record().presence.sum(axis=0).tolist() == [1] * 12
    assert (
        "Expected num_canaries=12 to be 24, as in the audit in the checkpoint"
        in audit.faults[0]
    )
    assert (tmp_path / "audit-1.npz").read_bytes() == saved_bytes


@pytest.mark.slow
def test_canaries_of_clients_go_on(tmp_path):
    keywords = {
        "clients": 0.4,
        "checkpoint": tmp_path,
        "num_canaries": 4,
        "seed": 3,
    }
    app = drifting_app([canary_mod])
    audit, models = start(Later(), model(), kill=KILLED, app=app, **keywords)
    before = audit.record()
    again, _ = start(
        Later(KILLED),
        models[KILLED],
        ROUNDS - KILLED,
        app=app,
        **keywords | {"seed": None},
    )
    record = again.record()
    assert record.rounds == ROUNDS
    np.testing.assert_array_equal(record.observed.ids, before.observed.ids)
    np.testing.assert_array_equal(record.presence[:KILLED], before.presence)
    assert (
        record.presence.sum(axis=0).tolist()
        == [ROUNDS - 1] * record.num_canaries
    )


def test_clients_keep_their_canaries_and_what_they_answered(tmp_path):
    """Whoever is asked first after a restart: nobody is sent a second direction."""
    sent: list[dict[int, list[Any]]] = []

    def note(message, context, call_next):
        order = CanaryOrder.take_from(message.content)
        if order is not None:
            number = int(context.node_config["partition-id"])
            sent[-1].setdefault(number, []).append((order.number, order.seed))
            order.add_to(message.content.config_records["config"])
        return call_next(message, context)

    keywords = {"clients": 0.5, "checkpoint": tmp_path, "num_canaries": 5}
    app = drifting_app([note, canary_mod], fails=lambda node, t: node % 2 == 0)
    arrays, faults = model(), []
    for rounds_done, kill in ((0, 2), (2, 2), (4, None)):
        sent.append({})
        random.seed(
            rounds_done
        )  # Flower draws the order of the clients from it
        audit, models = start(
            Later(rounds_done),
            arrays,
            ROUNDS - rounds_done,
            kill=kill,
            app=app,
            **keywords,
        )
        arrays = models[-1]
        faults.append(
            [
                fault
                for fault in audit.faults
                if "answered with their canary" in fault
            ]
        )
    assert sent[0].keys() == sent[1].keys() == sent[2].keys()
    for client, orders in sent[0].items():
        assert {*orders, *sent[1][client], *sent[2][client]} == {orders[0]}
    assert len(faults[0]) == 1
    assert faults[0] == faults[1] == faults[2]
    after, _ = start(
        Later(ROUNDS), arrays, 0, app=app, **keywords
    )  # nobody is asked any more
    after.record()
    assert faults[0][0] in after.faults


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [ROUNDS, None])
def test_a_loop_of_starts_with_a_checkpoint_may_be_killed(
    tmp_path, rounds, uninterrupted
):
    """As one start: each of one round, and killed after five."""
    arrays = model()
    for half in (range(KILLED), range(KILLED, ROUNDS)):
        keywords = {
            "num_canaries": CANARIES,
            "delta": DELTA,
            "seed": 1,
            "max_share": 0.5,
        }
        strategy = Later(half.start)
        audit = CanaryAudit(
            strategy, **keywords, rounds=rounds, checkpoint=tmp_path
        )
        with InProcessGrid(drifting_app(), NODES) as grid:
            for rounds_done in half:
                strategy.done = rounds_done
                arrays = audit.start(grid, arrays, num_rounds=1).arrays
    if rounds is None:
        assert audit.report().startswith("Not measured")
        return
    _check_same(audit.record(), uninterrupted)
    assert audit.faults == []


def test_another_number_of_all_rounds_is_refused(tmp_path, killed):
    keywords = {
        "num_canaries": CANARIES,
        "delta": DELTA,
        "max_share": 0.5,
        "checkpoint": tmp_path,
    }
    audit = CanaryAudit(Later(KILLED), **keywords, rounds=9)
    with (
        InProcessGrid(drifting_app(), NODES) as grid,
        pytest.raises(ValueError, match="rounds=9 to be 8, as in the audit"),
    ):
        audit.start(grid, killed[KILLED], num_rounds=1)


def _other_model() -> ArrayRecord:
    arrays = {
        name: Array(array.numpy() - np.float32(0.01))
        for name, array in model().items()
    }
    return ArrayRecord(arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arrays",
    [
        pytest.param(_other_model(), id="other"),
        pytest.param(model(), id="initial"),
    ],
)
def test_another_run_begins_afresh_and_the_first_is_moved_aside(
    tmp_path, caplog, arrays, killed
):
    saved_bytes = (tmp_path / "audit.npz").read_bytes()
    with caplog.at_level(logging.WARNING, "flwr.fl_epe"):
        audit, _ = start(
            Later(), arrays, 4, checkpoint=tmp_path, seed=None, num_canaries=12
        )
    assert "of another run; a new one begins" in caplog.text
    record = audit.record()
    assert (record.rounds, record.num_canaries) == (4, 12)
    assert record.provenance.seeds["canary"] != 1
    assert (tmp_path / "audit-1.npz").read_bytes() == saved_bytes
    # A third one does not overwrite either of them.
    start(Later(), model(), 2, checkpoint=tmp_path, num_canaries=4)
    audits = sorted(path.name for path in tmp_path.glob("audit*"))
    assert audits == ["audit-1.npz", "audit-2.npz", "audit.npz"]
    assert (tmp_path / "audit-1.npz").read_bytes() == saved_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["audit", "start"])
@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_a_damaged_file_is_moved_aside_and_never_read_in_part(
    tmp_path, name, damage, killed
):
    (path,) = tmp_path.glob(f"{name}*.npz")
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    audit, _ = start(Later(), killed[KILLED], 3, checkpoint=tmp_path)
    record = audit.record()
    assert record.rounds == 3
    assert np.all(record.presence.sum(axis=0) == 1)
    if (name, damage) != ("audit", "missing"):  # as if there had been none
        assert re.search("the saved audit cannot be read, ", audit.faults[0])
        assert (tmp_path / "audit-1.npz").exists()
    assert record.findings.resumed_after == ()


@pytest.mark.slow
def test_a_run_killed_in_its_first_round_keeps_its_canaries(tmp_path):
    class Dies(Later):
        def configure_train(self, *keywords):
            raise KilledError

    audit = CanaryAudit(
        Dies(), num_canaries=CANARIES, delta=DELTA, checkpoint=tmp_path
    )
    with (
        InProcessGrid(drifting_app(), NODES) as grid,
        pytest.raises(KilledError),
    ):
        audit.start(grid, model(), num_rounds=ROUNDS)
    assert not list(tmp_path.iterdir())  # nothing was sent

    class Stops(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None, **newer):
            raise KeyboardInterrupt

    seeds = []
    for kind in (Stops, InProcessGrid):
        keywords = {
            "num_canaries": CANARIES,
            "delta": DELTA,
            "checkpoint": tmp_path,
        }
        audit = CanaryAudit(Later(), **keywords, max_share=0.5)
        with (
            kind(drifting_app(), NODES) as grid,
            contextlib.suppress(KeyboardInterrupt),
        ):
            audit.start(grid, model(), num_rounds=ROUNDS)
        (saved,), _ = read_archive(tmp_path / "audit.npz", "", texts=("audit",))
        seeds.append(saved["seed"])
    assert seeds[0] == seeds[1]
    record = audit.record()
    assert (record.rounds, record.findings.resumed_after) == (ROUNDS, (0,))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("num_canaries", {"num_canaries": 12}),
        ("delta", {"delta": 1e-4}),
        ("seed", {"seed": 2}),
        ("unobserved", {"unobserved": 7}),
        ("participations", {"participations": 2}),
        ("canary_norm", {"canary_norm": 1.0}),
        ("max_share", {"max_share": 0.6}),
        ("replies", {"replies": "model"}),
        ("num_examples", {"num_examples": 3.0}),
        ("leave_out", {"leave_out": ["layer.bias"]}),
        ("clients", {"clients": 0.5}),
    ],
)
def test_another_setting_is_refused_before_training(
    tmp_path, name, change, killed
):
    saved_bytes = (tmp_path / "audit.npz").read_bytes()
    with pytest.raises(
        ValueError, match=f"Expected .*{name}.* the audit in the checkpoint"
    ):
        start(
            Later(KILLED), killed[KILLED], ROUNDS, checkpoint=tmp_path, **change
        )
    assert (tmp_path / "audit.npz").read_bytes() == saved_bytes


def test_another_strategy_is_refused(tmp_path, killed):
    for strategy, name in (
        (flower.FedAvg(**PLAIN), "strategy="),
        (Later(0, 0.5), "optimizer"),
    ):
        with pytest.raises(ValueError, match=name):
            start(strategy, killed[KILLED], checkpoint=tmp_path)


@pytest.mark.slow
def test_a_full_disk_is_a_fault_and_the_run_goes_on(
    tmp_path, monkeypatch, caplog, uninterrupted
):
    calls = []

    def full(path, *arguments, **named):
        calls.append(path)
        if len(calls) in (1, 5, 6):
            raise OSError(28, "No space left on device", str(path))
        write_archive(path, *arguments, **named)

    monkeypatch.setattr("fl_epe.flower.checkpoint.write_archive", full)
    with caplog.at_level(logging.WARNING, "flwr.fl_epe"):
        audit, models = start(Later(), model(), checkpoint=tmp_path)
    np.testing.assert_allclose(
        audit.record().observed.means, uninterrupted.observed.means, atol=1e-6
    )
    lost = [
        fault for fault in audit.faults if "No space left on device" in fault
    ]
    assert [fault.partition(",")[0] for fault in lost] == [
        "round 1",
        "round 3",
        "round 4",
    ]
    assert caplog.text.count("No space left") == 1
    again, _ = start(
        Later(6), models[6], 2, checkpoint=tmp_path
    )  # what was saved later is whole
    assert again.record().presence.sum() == CANARIES


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rounds_before",
        "check",
        "pop_saved",
        "note_continued",
        "save",
        "_read",
    ],
)
def test_whatever_fails_the_run_ends_with_an_audit(
    tmp_path, monkeypatch, name, killed
):
    saved_bytes = (tmp_path / "audit.npz").read_bytes()
    owner = SavedAudit if name in vars(SavedAudit) else Checkpoint

    def broken(*arguments):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(owner, name, broken)
    audit, last = start(Later(), killed[KILLED], ROUNDS, checkpoint=tmp_path)
    assert len(last) == ROUNDS + 1
    assert any("ours" in fault for fault in audit.faults)
    assert saved_bytes in {
        path.read_bytes() for path in tmp_path.glob("audit*.npz")
    }


@pytest.mark.slow
def test_what_is_kept_is_small_and_its_owner_s_alone(tmp_path):
    folder = tmp_path / "new"
    start(fixed(), model(), checkpoint=folder)
    (begin,) = folder.glob("start-*.npz")
    assert sorted(os.listdir(folder)) == ["audit.npz", begin.name]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    sketches = 4 * SKETCH_PARTS * ROUNDS
    size = (folder / "audit.npz").stat().st_size
    assert size < 4 * DIM + sketches + 4096  # else less than one model
    assert begin.stat().st_size < 4 * DIM + 4096


@pytest.mark.weekly
def test_a_process_that_is_killed_in_a_round_goes_on_in_another_one(tmp_path):
    paths = [
        str(SERVER.parent),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    keywords = environment(tmp_path) | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths))
    }
    command = [sys.executable, str(SERVER), str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        first = subprocess.Popen(
            [*command, str(KILLED + 1)], env=keywords, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "waits").exists():
            assert first.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        first.kill()
        assert first.wait() == -signal.SIGKILL
    again = subprocess.run(
        command, env=keywords, capture_output=True, timeout=PATIENCE, text=True
    )
    assert again.returncode == 0, again.stderr
    assert f"goes on after round {KILLED} of {ROUNDS}" in again.stderr
    record = AuditRecord.load(tmp_path / "record.npz")
    uninterrupted, _ = start(
        Later(), model(), seed=record.provenance.seeds["canary"]
    )
    _check_same(record, uninterrupted.record())


def test_clients_may_be_numbers_of_numpy(tmp_path):
    app, clients = drifting_app([canary_mod]), np.arange(1, 9)
    audit, _ = start(
        flower.FedAvg(**PLAIN),
        model(),
        2,
        app=app,
        clients=clients,
        checkpoint=tmp_path,
    )
    assert (tmp_path / "audit.npz").is_file()
    assert not [fault for fault in audit.faults if "saved" in fault]


def test_no_debugger_shows_the_seed(tmp_path):
    audit, _ = start(
        flower.FedAvg(**PLAIN), model(), 1, seed=918273645, checkpoint=tmp_path
    )
    assert "918273645" not in repr(vars(audit))


@pytest.mark.slow
@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("back", [KILLED, KILLED - 1])
def test_rounds_in_blocks_are_those_of_an_uninterrupted_run(
    tmp_path, monkeypatch, uninterrupted, block, back
):
    monkeypatch.setattr("fl_epe.flower.checkpoint._ROUNDS_PER_FILE", block)
    _, models = start(Later(), model(), kill=KILLED, checkpoint=tmp_path)
    assert len(list(tmp_path.glob("rounds-*.npz"))) == KILLED // block
    _, arrays = read_archive(tmp_path / "audit.npz", "", texts=("audit",))
    assert len(arrays["scores"]) == KILLED % block  # others were written before
    _, models = start(Later(back), models[back], 2, kill=2, checkpoint=tmp_path)
    again, _ = start(
        Later(back + 2), models[2], ROUNDS - back - 2, checkpoint=tmp_path
    )
    _check_same(again.record(), uninterrupted)


@pytest.mark.slow
def test_a_damaged_block_is_never_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_epe.flower.checkpoint._ROUNDS_PER_FILE", 2)
    _, models = start(Later(), model(), kill=KILLED, checkpoint=tmp_path)
    sorted(tmp_path.glob("rounds-*.npz"))[0].unlink()
    audit, _ = start(Later(), models[KILLED], 3, checkpoint=tmp_path)
    assert audit.record().rounds == 3
    assert "the saved audit cannot be read, " in audit.faults[0]


def test_a_loss_that_is_not_finite_is_so_after_a_restart(tmp_path):
    def lose(message, context, call_next):
        reply = call_next(message, context)
        reply.content["metrics"]["loss"] = math.nan
        return reply

    app = drifting_app([lose])
    _, models = start(Later(), model(), kill=2, app=app, checkpoint=tmp_path)
    again, _ = start(
        Later(2), models[2], 1, kill=1, app=app, checkpoint=tmp_path
    )
    assert np.isnan(again.record().metrics["train_loss"]).tolist() == [True] * 3


HOLDER = """
import sys, time
from pathlib import Path
from fl_epe.files import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def other_app(tmp_path):
    """Another process that keeps its audit in ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_server_app_is_told_who_keeps_its_audit_there(
    other_app, tmp_path
):
    refusal = rf"checkpoint='{re.escape(str(tmp_path))}' to be free: process {other_app.pid} "
    with pytest.raises(ValueError, match=refusal):
        start(fixed(), model(), checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fl-epe.lock"]
    other_app.kill()
    other_app.wait()
    audit, _ = start(fixed(), model(), checkpoint=tmp_path)
    assert audit.faults == []
    assert (tmp_path / "audit.npz").exists()
    assert not (tmp_path / "fl-epe.lock").exists()  # which is the next one's


@pytest.mark.slow
def test_names_in_an_audit_stay_in_its_folder(killed, tmp_path):
    """As in a folder that somebody else wrote."""
    (audit,), arrays = read_archive(
        tmp_path / "audit.npz", "an audit", schema=1, texts=("audit",)
    )
    write_archive(
        tmp_path / "audit.npz",
        arrays,
        {"audit": audit | {"blocks": ["../rounds"]}},
        schema=1,
    )
    again, _ = start(Later(), killed[KILLED], checkpoint=tmp_path)
    assert any("leads out of it" in fault for fault in again.faults)
