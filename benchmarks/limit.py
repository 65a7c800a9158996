"""The limit engine at the size of a large deployment, from the schedule to ε-final and ε-all.

    python benchmarks/limit.py    # half a minute

10⁷ clients, 10⁴ rounds of about 1,000, 2,000 canaries among the clients and 2,000 unobserved; the
peak memory is the whole process's. On two cores shared with other work, 2026-11-21::

    schedule                    ε-final    ε-all  seconds    GiB
    ShuffledEpochs                0.272    12.61     16.5   0.90
    Poisson                       0.273    16.40     13.4   0.84
    FixedSize                     0.273    16.35     13.5   0.84
    CheckIn, window 10,000        0.274    14.14     24.2   0.88
    TimeOfDay                     0.270    15.95     14.2   0.84
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from schedules import CASES, CLIENTS

from fl_epe import epsilon_from_record
from fl_epe.asymptotics import limit_record

NAMES = ("ShuffledEpochs", "Poisson", "FixedSize", "CheckIn, window 10,000", "TimeOfDay")


def measure(name: str) -> None:
    began = time.perf_counter()
    record = limit_record(
        CASES[name](), 0.5, 1e-8, num_canaries=2000, unobserved=2000, population=CLIENTS
    )
    final = epsilon_from_record(record)
    every = epsilon_from_record(record, threat="all")
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name:<26}{final.epsilon:9.3f}{every.epsilon:9.2f}{seconds:9.1f}{peak:7.2f}", flush=True
    )


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    print(f"{'schedule':<26}{'ε-final':>9}{'ε-all':>9}{'seconds':>9}{'GiB':>7}", flush=True)
    for name in NAMES:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
