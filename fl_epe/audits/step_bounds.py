"""What the audits after Nasr et al. (2023) share: methods by name, noise for a target ε."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores, lower_bound

METHODS: Mapping[str, str] = types.MappingProxyType(
    {
        "gdp": "f-DP (CP)",
        "bayesian-gdp": "f-DP (Bayes)",
        "clopper-pearson": "(ε, δ) (CP)",
        "bayesian": "(ε, δ) (Bayes)",
        "katz-log": "(ε, 0) (Katz)",
    }
)
"""The paper's methods, and how its tables call them; "gdp" is the exact curve of one step."""

VALID = ("gdp", "clopper-pearson")
"""Those that keep their confidence."""

NOT_VALID = (
    "The Bayesian limits and Katz-log are no valid bounds: the first keep their level on average "
    "over a prior, the second only with many false positives, and for δ = 0, where the Gaussian "
    "mechanism has no finite ε."
)
"""A note for every table that shows them."""


def bounds(scores: Scores, delta: float, confidence: float) -> dict[str, float]:
    """The lower bound by each of `METHODS`; "katz-log" at δ = 0."""
    return {
        name: lower_bound(
            scores, 0.0 if name == "katz-log" else delta, confidence=confidence, method=name
        )
        for name in METHODS
    }


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The z of one Gaussian step that is exactly (ε, δ)-DP; ``inf`` for ε = 0."""
    if epsilon <= 0:
        return math.inf
    root = scipy.optimize.brentq(
        lambda log_z: gaussian_epsilon(math.exp(log_z), delta) - epsilon, -12.0, 15.0, xtol=1e-9
    )
    return math.exp(root)


def gaussian_scores(noise: float, count: int, rng: np.random.Generator) -> Scores:
    """What `play_game` gives for a noisy sum along a canary of the clip norm, drawn at once."""
    draws: NDArray[np.float64] = noise * rng.standard_normal((2, count))
    return Scores(1 + draws[0], draws[1], statistic="along the canary")


def sure(confidence: float, bounds: int) -> float:
    """The confidence at which all of this many bounds hold, with a hundredth of the doubt.

    An audit fails if a bound at this confidence exceeds the truth, so that chance hardly fails it.
    """
    return 1 - (1 - confidence) / (100 * bounds)
