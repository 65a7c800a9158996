"""Noise health: is the noise that a mechanism added the noise that it claims?

A canary shows what noise lets through, and misses noise that is wrong but hides it. `Check` is one
question about a mechanism, with its answer.
"""

from fl_epe.noise.check import Check, Outcome, Severity

__all__ = ["Check", "Outcome", "Severity"]
