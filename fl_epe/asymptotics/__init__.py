"""The high-dimensional limit, in which an audit is drawn from its exact law without any training.

It predicts the scores of a schedule, calibrates noise to a target ε and finds the clients that are
most exposed.

Examples:
    >>> from fl_epe.asymptotics import limit_record
    >>> from fl_epe.auditing import epsilon_from_record
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = limit_record(ShuffledEpochs(rounds=8, epochs=1), noise_multiplier=1.0, delta=1e-5)
    >>> 4 < epsilon_from_record(record, threat="all").epsilon < 5  # the theory says 4.38
    True
"""

from fl_epe.asymptotics.calibration import NoiseAdvice, noise_for_epsilon
from fl_epe.asymptotics.canaries_needed import CanaryAdvice, canaries_for_epsilon, shift_of
from fl_epe.asymptotics.client_exposure import CapEffect, ExposedClient, Exposure, caps, exposure
from fl_epe.asymptotics.expected_scores import LimitSetting, ServerSetting, limit_like
from fl_epe.asymptotics.simulated_record import (
    RealUpdates,
    limit_footprints,
    limit_record,
    limit_weights,
)

__all__ = [
    "CanaryAdvice",
    "CapEffect",
    "ExposedClient",
    "Exposure",
    "LimitSetting",
    "NoiseAdvice",
    "RealUpdates",
    "ServerSetting",
    "canaries_for_epsilon",
    "caps",
    "exposure",
    "limit_footprints",
    "limit_like",
    "limit_record",
    "limit_weights",
    "noise_for_epsilon",
    "shift_of",
]
