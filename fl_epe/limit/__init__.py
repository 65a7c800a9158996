"""The high-dimensional limit, in which an audit is drawn from its exact law without any training.

It predicts the scores of a schedule, calibrates noise to a target ε, finds the clients that are
worst case, and compares participation schedules: write a `ComparisonPlan`, measure its cells with
`carry_out` and write a page with `write_comparison`. The command ``fl-epe compare`` does all
three.

Examples:
    >>> from fl_epe.limit import limit_record
    >>> from fl_epe.auditing import EVERY_ROUND, epsilon_from_record
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = limit_record(ShuffledEpochs(rounds=8, epochs=1), noise_multiplier=1.0, delta=1e-5)
    >>> 4 < epsilon_from_record(record, adversary=EVERY_ROUND).epsilon < 5  # the theory says 4.38
    True
    >>> from fl_epe.limit import ComparisonPlan
    >>> plan = ComparisonPlan(schedules=("epochs", "poisson"), noise_multipliers=(0.2, 0.4))
    >>> len(list(plan.cells()))
    12
"""

from fl_epe.limit.advice import (
    advice_lines,
    canary_lines,
    canary_table,
    exposure_lines,
    exposure_tables,
)
from fl_epe.limit.calibration import canary_advice, noise_for_epsilon
from fl_epe.limit.client import (
    ClientEpsilon,
    expected_record,
    median_client,
    worst_client,
)
from fl_epe.limit.client_exposure import exposure
from fl_epe.limit.page import print_comparison, write_comparison
from fl_epe.limit.plan import (
    DEFAULT_SCHEDULES,
    ComparisonPlan,
    limit_like,
    noise_multiplier_like,
    rounds_like,
    with_log,
)
from fl_epe.limit.runner import carry_out
from fl_epe.limit.simulated_record import limit_record

__all__ = [
    "DEFAULT_SCHEDULES",
    "ClientEpsilon",
    "ComparisonPlan",
    "advice_lines",
    "canary_advice",
    "canary_lines",
    "canary_table",
    "carry_out",
    "expected_record",
    "exposure",
    "exposure_lines",
    "exposure_tables",
    "limit_like",
    "limit_record",
    "median_client",
    "noise_for_epsilon",
    "noise_multiplier_like",
    "print_comparison",
    "rounds_like",
    "with_log",
    "worst_client",
    "write_comparison",
]
