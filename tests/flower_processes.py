"""Real Flower processes for tests: a SuperLink, SuperNodes, `flwr run`; ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

BIN = Path(sys.executable).parent
Popen: TypeAlias = "subprocess.Popen[bytes]"


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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Processes:
    """Starts processes, each with a log of its own, and ends all of them in the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._running: list[Popen] = []

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
        return process

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str, times: int = 1, seconds: float = 120) -> None:
        """Wait until a process has logged a text so many times."""
        end = time.monotonic() + seconds
        while self.log(name).count(text) < times:
            if time.monotonic() > end:
                raise TimeoutError(f"{name} did not log {text!r} {times} times:\n{self.log(name)}")
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
        for process in reversed(self._running):
            self.end(process)


def superlink(processes: Processes, *options: str) -> str:
    """Start a SuperLink on loopback; returns its address, which "here" stands for in `flwr run`."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    (processes.home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    processes.start(
        "superlink",
        "flower-superlink",
        "--insecure",
        "--disable-runtime-dependency-installation",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *options,
    )
    _wait_for_port(port)
    return address


def supernode(processes: Processes, address: str, partition: int, partitions: int) -> Popen:
    """Start a SuperNode that holds one partition."""
    (port,) = free_ports(1)
    return processes.start(
        f"supernode-{partition}",
        "flower-supernode",
        "--insecure",
        "--superlink",
        address,
        "--port",
        str(port),
        "--node-config",
        f"partition-id={partition} num-partitions={partitions}",
    )


def flwr_start(
    processes: Processes, app: Path, settings: dict[str, object], *options: str
) -> Popen:
    """`flwr run` an app; what it streams goes to the log "run"."""
    config = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in settings.items()
    )
    return processes.start(
        "run", "flwr", "run", str(app), "here", "--stream", "--run-config", config, *options
    )


def flwr_run(processes: Processes, app: Path, settings: dict[str, object], *options: str) -> str:
    """`flwr run` an app to its end; returns what it printed."""
    flwr_start(processes, app, settings, *options).wait(240)
    return processes.log("run")


def _wait_for_port(port: int, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens on port {port}")
