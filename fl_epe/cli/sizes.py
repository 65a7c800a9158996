"""Refuses what cannot fit into this machine's memory, or ends in no lifetime, before it begins.

The numbers are lower bounds: what is kept for certain, at the pace of a fast core. A command that
passes may still be too large.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError

if TYPE_CHECKING:
    from fl_epe.config import RunConfig

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_LONGEST = 100 * 86400.0
_SECONDS_A_COORDINATE = 5e-9  # to read it, change it and write it back
_SECONDS_A_ROUND = 5e-5  # to draw who takes part
_BYTES_A_ROUND = 1000  # of the laws of all kinds of clients
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60))


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
        _refuse(
            f"{what} would take {in_bytes(needed)}; this machine has {in_bytes(memory)}", arguments
        )


def check_time(seconds: float, what: str, longest: float = _LONGEST, **arguments: Any) -> None:
    """Raise an `ArgumentError` if the arguments ask for something that takes longer than that."""
    if seconds > longest:
        _refuse(f"{what} would take {in_time(seconds)} at least", arguments)


def _refuse(reason: str, arguments: Mapping[str, Any]) -> NoReturn:
    names = [f"{{{name}}}" for name in arguments]
    listed = ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]
    raise ArgumentError(f"Expected smaller numbers than {listed}: {reason}.", **arguments)


def check_training(config: RunConfig, dim: int, workers: int, backend: str) -> None:
    """Refuse a training run that cannot fit, or would never end.

    Args:
        config: of the run.
        dim: parameters of the model.
        workers: nodes.
        backend: "ray", if each of them is a process.
    """
    each = 4 * dim + (300 << 20 if backend == "ray" else 64 << 10)
    check_memory(workers * each, "a model for each worker", workers=workers)
    check_memory(24 * config.clients, "the clients' order", clients=config.clients)
    names = ("rounds", "num_canaries", "unobserved", "clients_per_round")
    sizes = {name: getattr(config, name) for name in names}
    rounds, canaries, unobserved, cohort = sizes.values()
    kept = rounds * (2 * 8 * (canaries + unobserved) + canaries + 8 * cohort)
    check_memory(kept, "scores and cohorts of all rounds", **sizes)
    blocks = 1  # rotated canaries are scored together
    if config.canary_kind == "sphere":
        blocks = -(-rounds * 4 * dim // SCORE_MEMORY)
    passes = rounds * cohort * config.local_epochs + (canaries + unobserved) * blocks
    sizes = {"rounds": rounds, "clients_per_round": cohort, "local_epochs": config.local_epochs}
    sizes |= {"num_canaries": canaries, "unobserved": unobserved}
    check_time(passes * dim * _SECONDS_A_COORDINATE, "training on one core", **sizes)


def check_limit(
    rounds: int, clients: int | None, cells: int = 1, longest: float = _LONGEST
) -> None:
    """Refuse a measurement in the limit that cannot fit, or would never end."""
    check_memory(rounds * _BYTES_A_ROUND, "what each round adds", rounds=rounds)
    if clients is not None:
        check_memory(clients * 24, "the clients' order", clients=clients)
    check_time(cells * rounds * _SECONDS_A_ROUND, "drawing who takes part", longest, rounds=rounds)


def in_bytes(count: int) -> str:
    """A number of bytes for reading."""
    power = min(int(math.log2(max(count, 1)) / 10), len(_UNITS) - 1)
    return f"{count / 1024**power:.3g} {_UNITS[power]}"


def in_time(seconds: float) -> str:
    """A time for reading."""
    for name, length in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {name}"
    return f"{seconds:.3g} seconds"
