"""Noise health: is the noise that a mechanism added the noise that it claims?

A canary shows what noise lets through, and misses noise that is wrong but hides it. `check_noise`
asks of noise at hand, `NoiseHealth` of that of a run: is there enough of it everywhere, is it
fresh, can nobody guess it, and has it its law. `PromisedNoise` asks it of noise that clients say
they add, from their replies alone. `Check` is one such question with its answer.

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
