"""Refuses what cannot fit into this machine's memory, or ends in no lifetime, before it begins.

The numbers are lower bounds: what is kept for certain, at the pace of a fast core. A command that
passes may still be too large.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError

if TYPE_CHECKING:
    from fl_epe.config import RunConfig

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_LONGEST = 100 * 86400.0
_SECONDS_A_COORDINATE = 5e-9  # to read it, change it and write it back
_SECONDS_A_ROUND = 5e-5  # to draw who takes part
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
    memory = machine_memory()
    _refuse_above(memory / 2**30, needed / 2**30, what, "GiB; this machine has {}", arguments)


def check_time(seconds: float, what: str, longest: float = _LONGEST, **arguments: Any) -> None:
    """Raise an `ArgumentError` if the arguments ask for something that takes longer than that."""
    _refuse_above(longest / 3600, seconds / 3600, what, "hours at least", arguments)


def _refuse_above(
    most: float, needed: float, what: str, unit: str, arguments: dict[str, Any]
) -> None:
    if needed > most:
        names = ", ".join(f"{{{name}}}" for name in arguments)
        reason = f"{what} would take {needed:,.4g} {unit.format(f'{most:,.4g}')}"
        raise ArgumentError(f"Expected smaller numbers than {names}: {reason}.", **arguments)


def check_training(config: RunConfig, dim: int, workers: int, backend: str) -> None:
    """Refuse a training run that cannot fit, or would never end.

    Args:
        config: of the run.
        dim: parameters of the model.
        workers: nodes.
        backend: "ray", if each of them is a process.
    """
    names = ("clients", "rounds", "clients_per_round", "local_epochs", "num_canaries", "unobserved")
    sizes = {name: getattr(config, name) for name in names}
    clients, rounds, cohort, epochs, canaries, unobserved = sizes.values()
    models = workers * (4 * dim + (300 << 20 if backend == "ray" else 64 << 10))
    scores = rounds * (2 * 8 * (canaries + unobserved) + canaries + 8 * cohort)
    check_memory(models + 24 * clients + scores, "the run", workers=workers, **sizes)
    blocks = 1  # rotated canaries are scored together
    if config.canary_kind == "sphere":
        blocks = -(-rounds * 4 * dim // SCORE_MEMORY)
    passes = rounds * cohort * epochs + (canaries + unobserved) * blocks
    check_time(passes * dim * _SECONDS_A_COORDINATE, "training on one core", **sizes)


def check_limit(
    rounds: int, clients: int | None, cells: int = 1, longest: float = _LONGEST
) -> None:
    """Refuse a measurement in the limit that cannot fit, or would never end."""
    given = {} if clients is None else {"clients": clients}
    needed = rounds * _BYTES_A_ROUND + 24 * (clients or 0)
    check_memory(needed, "the participation pattern", rounds=rounds, **given)
    check_time(cells * rounds * _SECONDS_A_ROUND, "drawing who takes part", longest, rounds=rounds)
