"""Time and memory of every schedule for a large deployment: 10⁷ clients, 10⁴ rounds of about 1,000.

    python benchmarks/schedules.py    # a minute

One pass over all rounds, each schedule in a process of its own; GiB is the peak memory of the whole
process. On two cores shared with other work, one thread, 2026-11-21::

    schedule                              seconds    GiB
    ShuffledEpochs                           0.74   0.25
    Poisson                                  0.21   0.10
    FixedSize                                0.23   0.10
    MinSeparation, 1,000 rounds              0.49   0.18
    MinSeparation, 10,000 rounds             0.65   0.25
    DeviceClasses                            0.80   0.18
    Cyclic                                   0.37   0.18
    BallsInBins                              0.76   0.31
    Capped Poisson                           0.90   0.18
    Poisson with drop-out                    0.27   0.10
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fl_epe.schedules import Schedule, make_schedule

CLIENTS, ROUNDS, COHORT = 10**7, 10**4, 1000

CASES: dict[str, dict[str, Any]] = {
    "ShuffledEpochs": {"kind": "epochs"},
    "Poisson": {"kind": "poisson"},
    "FixedSize": {"kind": "fixed-size"},
    "MinSeparation, 1,000 rounds": {
        "kind": "min-separation",
        "separation": 1000,
    },
    "MinSeparation, 10,000 rounds": {
        "kind": "min-separation",
        "separation": 10_000,
    },
    "DeviceClasses": {
        "kind": "device-classes",
        "rates": (12, 1),
        "shares": (1 / 11, 10 / 11),
    },
    "Cyclic": {"kind": "cyclic"},
    "BallsInBins": {"kind": "balls-in-bins"},
    "Capped Poisson": {"kind": "capped", "of": "poisson"}
    | {"per_run": 2, "per_window": 1, "window": 1000},
    "Poisson with drop-out": {"kind": "drop-out", "of": "poisson", "rate": 0.1},
}


def schedule_of(name: str) -> Schedule:
    """Everybody takes part once on average; 0.9 times with drop-out, and less with a cap."""
    times = 0.9 if "drop-out" in name else 1.0
    return make_schedule(rounds=ROUNDS, participations=times, **CASES[name])


def measure(name: str) -> None:
    schedule = schedule_of(name)
    began = time.perf_counter()
    for _ in schedule.cohorts(CLIENTS, np.random.default_rng(0)):
        pass
    seconds = time.perf_counter() - began
    print(f"{name:<36}{seconds:9.2f}{peak_gib():7.2f}", flush=True)


def peak_gib() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def each_in_a_process(
    script: str,
    measure: Callable[[str], None],
    names: Iterable[str],
    header: str,
) -> None:
    """Measure the case named on the command line, or start the script once for each name."""
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    print(header, flush=True)
    for name in names:
        subprocess.run([sys.executable, script, name], check=True)


if __name__ == "__main__":
    each_in_a_process(
        __file__, measure, CASES, f"{'schedule':<36}{'seconds':>9}{'GiB':>7}"
    )
