"""What `table2.py`, `table3.py`, `table5.py` and `dimensions.py` share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_epe import CanarySet

ONE_SHOT_DELTA = 1e-6
"""δ of Table 2 and of the reviewers' table."""

ONE_SHOT_NOISES = ((4.22, 1.0), (1.54, 3.0), (0.541, 10.0))
"""The noise multipliers of both, each with its analytical ε."""

PRINTED = {
    10**4: ("0.98 ± 0.41", "3.00 ± 0.46", "9.89 ± 0.71"),
    10**5: ("1.05 ± 0.23", "3.00 ± 0.31", "10.05 ± 0.41"),
    10**6: ("0.99 ± 0.14", "2.96 ± 0.15", "10.00 ± 0.23"),
    10**7: ("1.00 ± 0.07", "3.00 ± 0.08", "10.01 ± 0.10"),
}
"""ε as the paper's authors printed it, by dimension; Table 2 is the row of 10^6."""


STANDARD_ERRORS = 4
"""A script ends with status 1 if what it finds is further from what is expected."""


def cosines_with_noisy_sum(
    canaries: CanarySet, noise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Cosine of each canary with the sum of all canaries and the noise.

    Args:
        canaries: k of them, in d dimensions.
        noise: shape ``(d,)``, or ``(m, d)`` for several sums.

    Returns:
        shape ``(k,)`` or ``(m, k)``.
    """
    released = noise + canaries.combine(np.ones((1, canaries.count)))[0]
    return np.asarray(
        canaries.dot(released)
        / np.linalg.norm(released, axis=-1, keepdims=True)
    )


def mean_and_sd(values: Sequence[float], width: int = 0) -> str:
    """The mean, padded to ``width`` characters, and the standard deviation."""
    return f"{np.mean(values):{width}.2f} ± {np.std(values, ddof=1):.2f}"


def apart(
    found: Sequence[float], mean: float, sd: float, runs: float = math.inf
) -> bool:
    """Whether the mean of what was found is too far from what is expected.

    Args:
        found: a value of each run.
        mean: expected.
        sd: of a run, expected.
        runs: from how many runs ``mean`` and ``sd`` are.
    """
    error = sd * math.sqrt(1 / len(found) + 1 / runs)
    return not abs(np.mean(found) - mean) <= STANDARD_ERRORS * error
