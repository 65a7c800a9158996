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
    CheckIn, window 10,000                   1.97   0.88
    CheckIn, window 100                      0.86   0.19
    TimeOfDay                                1.22   0.18
    Capped Poisson                           0.90   0.18
    Poisson with drop-out                    0.27   0.10
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

from fl_epe import schedules

CLIENTS, ROUNDS, COHORT = 10**7, 10**4, 1000
RATE = COHORT / CLIENTS

CASES: dict[str, Callable[[], schedules.Schedule]] = {
    "ShuffledEpochs": lambda: schedules.ShuffledEpochs(ROUNDS, 1.0),
    "Poisson": lambda: schedules.Poisson(ROUNDS, RATE),
    "FixedSize": lambda: schedules.FixedSize(ROUNDS, RATE),
    "MinSeparation, 1,000 rounds": lambda: schedules.MinSeparation(ROUNDS, RATE, 1000),
    "MinSeparation, 10,000 rounds": lambda: schedules.MinSeparation(ROUNDS, RATE, 10_000),
    "DeviceClasses": lambda: schedules.DeviceClasses(
        ROUNDS, (6 * RATE, RATE / 2), (1 / 11, 10 / 11)
    ),
    "Cyclic": lambda: schedules.Cyclic(ROUNDS, 1.0),
    "BallsInBins": lambda: schedules.BallsInBins(ROUNDS, 1),
    "CheckIn, window 10,000": lambda: schedules.CheckIn(ROUNDS, 10_000),
    "CheckIn, window 100": lambda: schedules.CheckIn(ROUNDS, 100, 0.01),
    "TimeOfDay": lambda: schedules.TimeOfDay(ROUNDS, RATE, 288),
    "Capped Poisson": lambda: schedules.Capped(schedules.Poisson(ROUNDS, RATE), 2, 1, 1000),
    "Poisson with drop-out": lambda: schedules.DropOut(schedules.Poisson(ROUNDS, RATE), 0.1),
}


def measure(name: str) -> None:
    schedule = CASES[name]()
    began = time.perf_counter()
    for _ in schedule.cohorts(CLIENTS, np.random.default_rng(0)):
        pass
    seconds = time.perf_counter() - began
    print(f"{name:<36}{seconds:9.2f}{peak_gib():7.2f}", flush=True)


def peak_gib() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def each_in_a_process(
    script: str, measure: Callable[[str], None], names: Iterable[str], header: str
) -> None:
    """Measure the case named on the command line, or start the script once for each name."""
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    print(header, flush=True)
    for name in names:
        subprocess.run([sys.executable, script, name], check=True)


if __name__ == "__main__":
    each_in_a_process(__file__, measure, CASES, f"{'schedule':<36}{'seconds':>9}{'GiB':>7}")
