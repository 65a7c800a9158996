"""Refuses what cannot fit into this machine's memory before it begins.

The numbers are lower bounds: what is kept for certain. A command that passes may still be too
large.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.checks import ArgumentError

if TYPE_CHECKING:
    from fl_epe.config import RunConfig

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_BYTES_A_ROUND = 1000  # of the laws of all kinds of clients


def machine_memory() -> int:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, _CGROUPS):
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def check_memory(needed: int, what: str, **arguments: Any) -> None:
    """Raise an `ArgumentError` if the arguments ask for more bytes than this machine has.

    Args:
        needed: at least so many bytes.
        what: that takes them, e.g. "the scores".
        arguments: that decide how many, by name.
    """
    if needed > (memory := machine_memory()):
        names = ", ".join(f"{{{name}}}" for name in arguments)
        reason = f"{what} would take {needed / 2**30:,.4g} GiB; this machine has {memory >> 30:,}"
        raise ArgumentError(f"Expected smaller numbers than {names}: {reason}.", **arguments)


def check_training(config: RunConfig, dim: int, workers: int, backend: str) -> None:
    """Refuse a training run that cannot fit.

    Args:
        config: of the run.
        dim: parameters of the model.
        workers: nodes.
        backend: "ray", if each of them is a process.
    """
    names = ("clients", "rounds", "clients_per_round", "num_canaries", "unobserved")
    sizes = {name: getattr(config, name) for name in names}
    clients, rounds, cohort, canaries, unobserved = sizes.values()
    models = workers * (4 * dim + (300 << 20 if backend == "ray" else 64 << 10))
    scores = rounds * (2 * 8 * (canaries + unobserved) + canaries + 8 * cohort)
    check_memory(models + 24 * clients + scores, "the run", workers=workers, **sizes)


def check_limit(rounds: int | None, clients: int | None) -> None:
    """Refuse a measurement in the limit that cannot fit."""
    asked = {"rounds": rounds, "clients": clients}
    needed = _BYTES_A_ROUND * (rounds or 0) + 24 * (clients or 0)
    given = {name: number for name, number in asked.items() if number is not None}
    check_memory(needed, "the participation pattern", **given)
