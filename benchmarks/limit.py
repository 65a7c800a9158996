"""Time and memory of the high-dimensional limit for a large deployment, up to ε-final and ε-all.

    python benchmarks/limit.py    # half a minute

10⁷ clients, 10⁴ rounds of about 1,000 clients, 2,000 canaries among the clients and 2,000
unobserved ones. GiB is the peak memory of the whole process. On two cores shared with other work,
2026-11-21::

    schedule                    ε-final    ε-all  seconds    GiB
    ShuffledEpochs                0.272    12.61     16.5   0.90
    Poisson                       0.273    16.40     13.4   0.84
    FixedSize                     0.273    16.35     13.5   0.84
"""

from __future__ import annotations

import time

from schedules import each_in_a_process, peak_gib, schedule_of

from fl_epe import epsilon_from_record
from fl_epe.limit import limit_record

NAMES = (
    "ShuffledEpochs",
    "Poisson",
    "FixedSize",
)


def measure(name: str) -> None:
    began = time.perf_counter()
    record = limit_record(
        schedule_of(name),
        0.5,
        1e-8,
        num_canaries=2000,
        unobserved=2000,
    )
    final = epsilon_from_record(record, statistic="displacement")
    every = epsilon_from_record(record, statistic="matched-filter")
    seconds = time.perf_counter() - began
    print(
        f"{name:<26}{final.epsilon:9.3f}{every.epsilon:9.2f}{seconds:9.1f}{peak_gib():7.2f}",
        flush=True,
    )


if __name__ == "__main__":
    header = (
        f"{'schedule':<26}{'ε-final':>9}{'ε-all':>9}{'seconds':>9}{'GiB':>7}"
    )
    each_in_a_process(__file__, measure, NAMES, header)
