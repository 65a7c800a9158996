"""Real Flower processes on loopback: a SuperLink, SuperNodes, `flwr run`; ended by their ids."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

BIN = Path(sys.executable).parent
Popen: TypeAlias = "subprocess.Popen[bytes]"
PATIENCE = 600
"""Seconds to wait for a process: only one that hangs takes so long, on any machine."""


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: private home, no telemetry, nothing installed."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds, instead of 1
        "OMP_NUM_THREADS": "1",
    }


class Ports:
    """Ports for processes that must be told theirs, each held until `release`.

    They lie below those that the system hands out to anybody, and a lock on a file keeps other
    tests, which may run at the same time, from choosing the same ones.
    """

    FIRST, LAST = 20_000, 30_000

    def __init__(self) -> None:
        self._locks: list[int] = []

    def take(self) -> int:
        """A port that nobody listens on and no other test has taken."""
        folder = (
            Path(tempfile.gettempdir()) / f"fl_epe_test_ports_{os.getuid()}"
        )
        folder.mkdir(exist_ok=True)
        for port in range(self.FIRST, self.LAST):
            lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError:  # another test holds it, or somebody listens
                os.close(lock)
            else:
                self._locks.append(lock)
                return port
        raise OSError(
            f"Expected a free port from {self.FIRST} to {self.LAST - 1}, found none."
        )

    def release(self) -> None:
        """Let others have them."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()


class Processes:
    """Starts processes, each with a log of its own, and ends all of them in the end.

    Args:
        home: Flower's, and that of the logs.

    Attributes:
        latest: the newest process of each name.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = Ports()
        self._running: list[Popen] = []
        self.latest: dict[str, Popen] = {}

    def start(self, name: str, *command: str) -> Popen:
        """Start a process; one that is started again under its name continues the log."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=environment(self.home),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        self.latest[name] = process
        return process

    def log(self, name: str) -> str:
        """What a process has logged so far."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str, times: int = 1) -> None:
        """Wait until a process has logged a text so many times."""

        def logged() -> bool:
            return self.log(name).count(text) >= times

        self.wait_until(logged, name, f"log {text!r} {times} times")

    def wait_until(
        self, condition: Callable[[], bool], name: str, what: str
    ) -> None:
        """Wait for what a process does; fails at once where it has ended without doing it."""
        end = time.monotonic() + PATIENCE
        while True:
            ended = (
                self.latest[name].poll() is not None
            )  # before the last look, not after it
            if condition():
                return
            if ended or time.monotonic() > end:
                raise RuntimeError(f"{name} did not {what}:\n{self.log(name)}")
            time.sleep(0.2)

    def end(self, process: Popen, how: int = signal.SIGTERM) -> None:
        """End a process and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)

    def end_all(self) -> None:
        """End what still runs, the newest first."""
        for process in reversed(self._running):
            self.end(process)
        self.ports.release()


def superlink(
    processes: Processes,
    *options: str,
    certificates: Path | None = None,
    port: int = 0,
) -> str:
    """Start a SuperLink on loopback; returns its address, which "here" stands for in `flwr run`.

    Args:
        processes: among which it runs.
        options: more of them for the command.
        certificates: folder with ``ca.pem``, ``server.pem`` and ``server.key``; without one there
            is no TLS.
        port: of the API; 0 for any that is free.
    """
    port = port or processes.ports.take()
    address = f"127.0.0.1:{port}"
    connection(processes, "here", address, certificates)
    secure = ["--insecure"]
    if certificates is not None:
        files = {
            "ca-certfile": "ca.pem",
            "certfile": "server.pem",
            "keyfile": "server.key",
        }
        secure = [
            x
            for name, f in files.items()
            for x in (f"--ssl-{name}", str(certificates / f))
        ]
    processes.start(
        "superlink",
        "flower-superlink",
        *secure,
        "--disable-runtime-dependency-installation",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *options,
    )
    processes.wait_until(
        lambda: _listens(port), "superlink", f"listen on port {port}"
    )
    return address


def connection(
    processes: Processes, name: str, address: str, certificates: Path | None
) -> None:
    """Let ``name`` stand for a SuperLink in commands of `flwr`."""
    trust = "insecure = true"
    if certificates is not None:
        trust = f'root-certificates = "{certificates / "ca.pem"}"'
    path = processes.home / "config.toml"
    known = path.read_text() if path.exists() else ""
    if f"[superlink.{name}]" not in known:
        path.write_text(
            f'{known}[superlink.{name}]\naddress = "{address}"\n{trust}\n'
        )


def supernode(
    processes: Processes,
    address: str,
    partition: int,
    partitions: int,
    *options: str,
    config: str = "",
) -> Popen:
    """Start a SuperNode that holds one partition.

    Args:
        processes: among which it runs.
        address: of the SuperLink.
        partition: number of the partition; the node's log is called after it.
        partitions: how many there are.
        options: how it is to connect; without any there is no TLS.
        config: more of the node's configuration.
    """
    port = processes.ports.take()
    return processes.start(
        f"supernode-{partition}",
        "flower-supernode",
        *(options or ["--insecure"]),
        "--superlink",
        address,
        "--port",
        str(port),
        "--node-config",
        f"partition-id={partition} num-partitions={partitions} {config}".strip(),
    )


def ray_node(
    processes: Processes, name: str, *options: str, cpus: int = 1
) -> Popen:
    """Start a node of a Ray cluster, and wait until it runs."""
    process = processes.start(
        name,
        "ray",
        "start",
        "--block",
        f"--num-cpus={cpus}",
        "--disable-usage-stats",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",  # any, so that two nodes fit on one machine
        "--max-worker-port=0",
        f"--object-store-memory={200_000_000}",
        *options,
    )
    processes.wait_for(name, "Ray runtime started")
    return process


def flwr_start(
    processes: Processes, app: Path, settings: dict[str, object], *options: str
) -> Popen:
    """`flwr run` an app; what it streams goes to the log "run"."""
    config = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in settings.items()
    )
    return processes.start(
        "run",
        "flwr",
        "run",
        str(app),
        "here",
        "--stream",
        "--run-config",
        config,
        *options,
    )


def flwr_run(
    processes: Processes, app: Path, settings: dict[str, object], *options: str
) -> str:
    """`flwr run` an app to its end; returns what it printed."""
    flwr_start(processes, app, settings, *options).wait(PATIENCE)
    return processes.log("run")


def server_apps(processes: Processes) -> list[int]:
    """Numbers of the processes that run a server app for the SuperLink of these processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            home = str(processes.home).encode()
            if (
                b"serverapp" in words
                and home in (folder / "environ").read_bytes()
            ):
                found.append(int(folder.name))
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
