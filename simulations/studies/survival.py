"""Does a run survive being killed? Runs are killed with SIGKILL, again and again, and resumed.

    python simulations/studies/survival.py            # all parts in full
    python simulations/studies/survival.py --quick    # a few runs in process and of the plug-in
    python simulations/studies/survival.py --parts ray --runs 20

Every run is a process of its own (forked from one that has imported everything), which is killed
one to three times (once under Ray): at a random moment after a random round, or the instant that
the file of a checkpoint appears under its temporary name. After one kill in five the newest
checkpoint is also damaged: cut off, or overwritten with garbage. Then the run is started again, as
a user would, until it ends. Its record must be that of the run that nobody killed, to the last bit:
every array, every setting, every fault.

- "in process": `simulate` on a small task, seven configurations in turn (participation, optimizer,
  clipping, statistics, kinds of canaries, intervals of checkpoints, one of them by time);
- "options": the same, and every start has other options (workers, threads of torch and of BLAS,
  interval of checkpoints, timeout); but for the mean training loss, which may differ by 1e-12;
- "ray": one of the same (which, the seed says) under Flower's Ray simulation, with two workers; the
  killed process is the one that holds the server app;
- "plug-in": a server app around Flower's FedAvg with `CanaryAudit(checkpoint=…)`, which keeps its
  own model. It may be killed between the two files, so that model and audit differ by a round: then
  the audit goes back, says so among its faults, and all else must be equal. Its newest audit is
  never damaged here: where the app's model is newer than the audit's previous file, a new one
  begins.

`survival_faults.py` is about everything that is less than a kill. Expected (2026-11-22, two cores
shared with other work; seeds 2027 in process, 2026, and for Ray 2028 and 2029 with 10 runs each)::

    in process 100 of 100 (rotated canaries alone) equal to the last bit after 190 kills, 77 of
               them while a file was written; 32 newest checkpoints damaged (103 s)
    options    40 of 40 equal to the last bit after 76 kills, 38 of them while a file was written;
               10 newest checkpoints damaged (seed 2026, 2026-11-23; 250 s on a loaded machine)
    ray        20 of 20 equal to the last bit after 20 kills, 10 of them while a file was written; 4
               newest checkpoints damaged (25 and 28 minutes at a time)
    plug-in    10 of 10 equal to the last bit after 13 kills, 5 of them while a file was written; 2
               audits went back a round (90 s)

It found that a name kept by a hard link is no second file: a kill between two renames left both
names on one checkpoint, which the damage then broke for both. Now a new file takes its place first.
And a damaged newest checkpoint took the place of the sound one at the next; it is renamed now.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import scipy.stats  # noqa: F401 - loaded late by what is forked, and so in every process again
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from threadpoolctl import threadpool_limits
from torch.nn import functional

from fl_epe import AuditRecord
from fl_epe.config import RunConfig
from fl_epe.files import PART
from fl_epe.flower import CanaryAudit
from fl_epe.seeding import Seeds
from fl_epe.simulation import InProcessGrid, Job, simulate
from fl_epe.tasks import ClientData, LossSum, Task

CLASSES, EXAMPLES = 5, 10
RAY_START = 600.0
"""Seconds after which a process that says nothing is taken for one that hangs."""


@dataclasses.dataclass(frozen=True)
class Blobs(Task):
    """Softmax regression on synthetic clusters: small, and as real to the run as any other task."""

    name: ClassVar[str] = "blobs"
    clients: int = 20
    inputs: int = 2000

    @property
    def num_clients(self) -> int:
        """See `Task`."""
        return self.clients

    def model(self) -> torch.nn.Module:
        """See `Task`."""
        return torch.nn.Linear(self.inputs, CLASSES)

    def client(self, client_id: int) -> ClientData:
        """See `Task`."""
        self.check_client(client_id)
        return self._examples(client_id)

    def held_out(self) -> ClientData:
        """See `Task`."""
        return self._examples(10**6)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """See `Task`."""
        return LossSum(
            loss=functional.cross_entropy(outputs, targets, reduction="sum"),
            correct=int((outputs.argmax(1) == targets).sum()),
            examples=len(targets),
        )

    def _examples(self, number: int) -> ClientData:
        rng = np.random.default_rng((17, number))
        targets = rng.integers(0, CLASSES, EXAMPLES)
        centres = np.random.default_rng(5).standard_normal(
            (CLASSES, self.inputs)
        )
        values = centres[targets] + rng.standard_normal((EXAMPLES, self.inputs))
        return ClientData(
            torch.tensor(values, dtype=torch.float32), torch.tensor(targets)
        )


BASE = RunConfig(
    clients=20, rounds=10, clients_per_round=5, num_canaries=12, unobserved=12, delta=1e-2,
    noise_multiplier=0.3, canary_participations=1,
)  # fmt: skip
CONFIGS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({"participation": "poisson"}, 2),
    ({"server_optimizer": "adam", "server_learning_rate": 0.01}, 3),
    ({"clipping": "fixed", "server_momentum": 0.0}, 4),
    ({"full_knowledge": True, "canary_participations": 2}, 5),
    ({"inclusion": "coin"}, 7),
    ({"canary_kind": "sphere", "full_knowledge": True}, 2),
]
"""Changes of `BASE`, and how often a checkpoint is kept."""

Start = Callable[[Path, Callable[[int], None]], None]
"""Runs to the end in a folder, and calls back with the number of rounds after each of them."""


@dataclasses.dataclass
class Tally:
    """What happened to the runs of a part."""

    runs: int = 0
    same: int = 0
    kills: int = 0
    while_writing: int = 0
    damaged: int = 0
    went_back: int = 0
    different: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.same} of {self.runs} equal to the last bit after {self.kills} kills, "
            f"{self.while_writing} of them while a file was written; {self.damaged} newest "
            f"checkpoints damaged; {self.went_back} audits went back a round"
        )


def differences(found: AuditRecord, expected: AuditRecord) -> list[str]:
    """Names of what two records do not share, to the last bit."""
    ours, theirs = found.by_name(), expected.by_name()
    return [name for name in theirs if not _same(ours[name], theirs[name])]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same(one[key], other[key]) for key in one
        )
    return bool(one == other or (one != one and other != other))  # NaN is NaN


def spawn(start: Start, folder: Path) -> tuple[int, int]:
    """Start a run in a process of its own; returns its number and a pipe with its rounds."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    os.close(reader)
    os.setsid()
    with (folder / "log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    status = 1
    try:
        start(folder, lambda done: _tell(writer, done))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _tell(writer: int, done: int) -> None:
    os.write(writer, bytes([done]))


def end(process: int, folder: Path) -> bool:
    """Wait for a run; whether it ended by itself."""
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, (folder / "log").read_text()
    return True


def kill_once(
    start: Start,
    folder: Path,
    rounds: int,
    rng: np.random.Generator,
    files: tuple[str, ...],
) -> tuple[bool, bool]:
    """Start a run and kill it; whether it died, and whether it was writing a file."""
    process, reader = spawn(start, folder)
    while_writing = rng.random() < 0.4
    after = int(rng.integers(0, rounds))
    begun, times = time.monotonic(), list[float]()
    os.set_blocking(reader, False)

    def is_writing() -> bool:
        return any(any(folder.glob(f"{name}.*{PART}")) for name in files)

    while (
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        is None
    ):
        assert time.monotonic() - begun < RAY_START, (
            folder / "log"
        ).read_text()
        try:
            signal_bytes = os.read(reader, 100)
        except BlockingIOError:
            signal_bytes = b""
        times += [time.monotonic()] * len(signal_bytes)
        if (signal_bytes and signal_bytes[-1] >= after) or (
            times and len(times) > after
        ):
            if not while_writing:
                pace = (times[-1] - times[0]) / max(1, len(times) - 1)
                time.sleep(rng.random() * max(pace, 0.002))
                break
            if is_writing():
                break
        else:
            time.sleep(0.0002)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    writing = is_writing()
    os.close(reader)
    return not end(process, folder), writing


def damage(path: Path, rng: np.random.Generator) -> bool:
    """Cut a file off, or overwrite a part of it; whether there was one with one before it."""
    if (
        not path.exists()
        or not path.with_name(f"{path.stem}-previous.npz").exists()
    ):
        return False
    content = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        content = content[: int(rng.integers(0, len(content)))]
    else:
        at = int(rng.integers(0, len(content)))
        content[at : at + 64] = rng.bytes(64)
    if bytes(content) == path.read_bytes():
        return False
    path.write_bytes(content)
    return True


def survive(
    start: Start,
    folder: Path,
    rounds: int,
    rng: np.random.Generator,
    tally: Tally,
    files: tuple[str, ...] = ("checkpoint.npz",),
    damaging: bool = True,
    most_kills: int = 3,
) -> AuditRecord:
    """Kill a run once or more, start it again each time, and return its record."""
    kills = int(rng.integers(1, most_kills + 1))
    died = 0
    while died < kills:
        if (folder / "record.npz").exists():  # it was faster than the kill
            if died:
                break
            shutil.rmtree(folder)
            folder.mkdir()
        dead, writing = kill_once(start, folder, rounds, rng, files)
        died += dead
        tally.kills += dead
        tally.while_writing += dead and writing
        if dead and damaging and rng.random() < 0.2:
            tally.damaged += damage(folder / files[0], rng)
    if not (folder / "record.npz").exists():
        process, reader = spawn(start, folder)
        assert end(process, folder)
        os.close(reader)
    return AuditRecord.load(folder / "record.npz")


def training(
    number: int, backend: str = "in-process", seed: int | None = None
) -> Start:
    """A run of configuration ``number`` on the small task.

    With ``seed`` each start has other options.
    """
    changes, every = CONFIGS[number % len(CONFIGS)]
    job = Job(
        Blobs(), dataclasses.replace(BASE, **changes), Seeds.derive(number), 3
    )

    def start(folder: Path, tell: Callable[[int], None]) -> None:
        more: dict[str, Any] = {"checkpoint_every": every}
        if seed is not None:
            begun = len(list(folder.glob("start-*")))
            (folder / f"start-{begun}").touch()
            rng = np.random.default_rng((seed, begun))
            torch.set_num_threads(int(rng.integers(1, 4)))
            threadpool_limits(int(rng.integers(1, 4)))
            more = {
                "workers": int(rng.integers(1, 5)),
                "checkpoint_every": (1, 2, 5, 9999)[rng.integers(4)],
                "round_timeout": float(rng.integers(60, 3600)),
            }
        record = simulate(
            job,
            backend=backend,
            checkpoint=folder / "checkpoint.npz",
            on_round=lambda done: tell(done.round),
            **more,
        )
        record.save(folder / "record.npz")

    return start


NODES, SHAPE, PLUG_IN_ROUNDS = 6, (40, 101), 12


def drifting_app() -> ClientApp:
    """Each client answers with the model plus a random step of its own."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        done = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        rng = np.random.default_rng(
            (17, int(context.node_config["partition-id"]), done)
        )
        model = message.content.array_records["arrays"]["w"].numpy()
        step = 0.1 * rng.standard_normal(model.shape) / np.sqrt(model.size)
        content = RecordDict(
            {
                "arrays": ArrayRecord(
                    {"w": Array((model + step).astype(np.float32))}
                ),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )
        return Message(content, reply_to=message)

    return app


class Later(flower.FedAvg):
    """FedAvg that goes on after ``done`` rounds and asks its nodes in one order."""

    def __init__(self, done: int = 0) -> None:
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=NODES
        )
        self.done = done

    def configure_train(self, server_round: int, *given: Any) -> list[Message]:
        """As FedAvg does."""
        messages = super().configure_train(server_round + self.done, *given)
        return sorted(
            messages, key=lambda message: message.metadata.dst_node_id
        )


def server_app(folder: Path, tell: Callable[[int], None]) -> None:
    """What somebody's server app does: it keeps its model every round, and goes on from it."""

    def keep(server_round: int, arrays: ArrayRecord) -> None:
        part = folder / "part.npy"
        np.save(part, arrays["w"].numpy())
        part.replace(folder / f"model-{done + server_round:03}.npy")
        tell(done + server_round)

    models = sorted(folder.glob("model-*.npy"))
    done = int(models[-1].stem[6:]) if models else 0
    start = np.load(models[-1]) if models else np.zeros(SHAPE, np.float32)
    audit = CanaryAudit(
        Later(done),
        num_canaries=12,
        delta=1e-3,
        seed=3,
        checkpoint=folder / "audit",
    )
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.start(
            grid,
            ArrayRecord({"w": Array(start)}),
            num_rounds=PLUG_IN_ROUNDS - done,
            evaluate_fn=keep,
        )
    audit.record().save(folder / "record.npz")


def without_its_interruption(record: AuditRecord) -> tuple[AuditRecord, bool]:
    """A record of the plug-in as if nobody had interrupted it, and whether it went back a round."""
    back = [
        fault
        for fault in record.provenance.faults
        if "the server went back" in fault
    ]
    faults = tuple(
        fault for fault in record.provenance.faults if fault not in back
    )
    changes = {
        "resumed_after": (),
        "plan": (),
        "faults": faults,
        "fault_counts": {},
    }
    return record.with_values(**changes), bool(back)  # the plan has seconds


def whole(start: Start, folder: Path) -> AuditRecord:
    """The record of a run that nobody kills."""
    folder.mkdir()
    process, reader = spawn(start, folder)
    assert end(process, folder)
    os.close(reader)
    return AuditRecord.load(folder / "record.npz")


def with_its_loss(record: AuditRecord, expected: AuditRecord) -> AuditRecord:
    """A record with the training loss of another, if both are those of one run.

    The mean of rounded numbers has other last bits with another number of workers.
    """
    loss = expected.metrics["train_loss"]
    assert np.allclose(record.metrics["train_loss"], loss, rtol=1e-12, atol=0)
    return dataclasses.replace(
        record, metrics={**record.metrics, "train_loss": loss}
    )


def measure(part: str, runs: int, seed: int, root: Path) -> Iterator[Tally]:
    """Kill and resume ``runs`` runs of a part; yields the tally after each of them."""
    rng, tally = np.random.default_rng(seed), Tally()
    kinds = {"ray": 1, "plug-in": 1}.get(part, len(CONFIGS))
    references: dict[int, AuditRecord] = {}
    for number in range(runs):
        which = seed % len(CONFIGS) if part == "ray" else number % kinds
        folder = root / f"{part}-{number}"
        folder.mkdir()
        if part == "plug-in":
            start: Start = server_app
        else:
            start = training(which, "ray" if part == "ray" else "in-process")
        if which not in references:
            references[which] = whole(start, root / f"{part}-whole-{which}")
        if part == "options":
            start = training(which, seed=seed + number)
        expected, back = references[which], False
        if part == "plug-in":
            files: tuple[str, ...] = ("audit/audit.npz", "audit/start.npz")
            record = survive(
                start, folder, PLUG_IN_ROUNDS, rng, tally, files, damaging=False
            )
            record, back = without_its_interruption(record)
            expected, _ = without_its_interruption(expected)
        else:
            most_kills = (
                1 if part == "ray" else 3
            )  # as each start of Ray takes a minute
            record = survive(
                start, folder, BASE.rounds, rng, tally, most_kills=most_kills
            )
        if part == "options":
            record = with_its_loss(record, expected)
        differ = differences(record, expected)
        tally.runs += 1
        tally.same += not differ
        tally.went_back += back
        tally.different += [f"run {number}: {name}" for name in differ]
        shutil.rmtree(folder)
        yield tally


def main(
    parts: list[str], runs: int | None, seed: int, quick: bool
) -> Counter[str]:
    """Print a line for each part; returns how many of its runs were equal."""
    full = {"in process": 100, "options": 40, "ray": 20, "plug-in": 10}
    few = {"in process": 7, "plug-in": 2}
    same: Counter[str] = Counter()
    for part in parts or list(few if quick else full):
        with tempfile.TemporaryDirectory() as root:
            begun, tally = time.monotonic(), Tally()
            count = runs or (few if quick else full).get(part, 2)
            for tally in measure(part, count, seed, Path(root)):
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{part}: {tally}", end=end, file=sys.stderr, flush=True)
            same[part] = tally.same
            print(
                f"{part:10} {tally} ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
            for line in tally.different:
                print(f"  different: {line}", flush=True)
    return same


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a few runs, without Ray"
    )
    kinds = ["in process", "options", "ray", "plug-in"]
    parser.add_argument("--parts", nargs="+", default=[], choices=kinds)
    parser.add_argument(
        "--runs", type=int, help="of each part (default: 100, 40, 20 and 10)"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the moments"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)  # a process with several threads cannot be forked
    print(f"seed of the moments: {given.seed}", flush=True)
    main(given.parts, given.runs, given.seed, given.quick)
