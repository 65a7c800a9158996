"""Noise health: is the noise that a mechanism added the noise that it claims?

Scores of canaries do not detect noise that is wrong but hides the canaries, such as noise from a
seed that can be guessed. `check_noise` checks the noise itself, and `NoiseHealth` that of a run:
its amount in each array, round and coordinate, its independence, its distribution, and whether its
seed can be guessed. `PromisedNoise` tests noise that clients promise to add, from their replies
alone. A `Check` is the result of one check.

Examples:
    >>> import numpy as np
    >>> released = np.random.default_rng(2718281828).normal(0, 0.5, (100, 10))
    >>> told(check_noise(released, std=1.0)), told(check_noise(released, std=0.5))
    ('not as claimed', 'as claimed')
"""

from fl_epe.noise.check import (
    Check,
    Outcome,
    Severity,
    fault,
    faults,
    sentences,
    severity_of,
    told,
)
from fl_epe.noise.health import RUN_LEVEL, NoiseHealth, check_noise
from fl_epe.noise.promised import LocalDp, LocalEpsilon, PromisedNoise

__all__ = [
    "RUN_LEVEL",
    "Check",
    "LocalDp",
    "LocalEpsilon",
    "NoiseHealth",
    "Outcome",
    "PromisedNoise",
    "Severity",
    "check_noise",
    "fault",
    "faults",
    "sentences",
    "severity_of",
    "told",
]
