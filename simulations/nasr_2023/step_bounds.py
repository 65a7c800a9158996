"""What the audits after Nasr et al. (2023) share: bounds by name."""

from __future__ import annotations

import types
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds.error_rates import Sample, count_errors
from fl_epe.auditing.bounds.thresholds import epsilon_limits, mu_limits
from simulations.nasr_2023.other_bounds import any_lower_bound

Floats = NDArray[np.float64]

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
        name: any_lower_bound(scores, delta, confidence=confidence, method=name)
        for name in METHODS
    }


def gaussian_scores(
    noise: float, count: int, rng: np.random.Generator
) -> Scores:
    """What `play_game` gives for a noisy sum along a canary of the clip norm, drawn at once."""
    draws: Floats = noise * rng.standard_normal((2, count))
    return Scores(1 + draws[0], draws[1], statistic="along the canary")


def sure(confidence: float, bounds: int) -> float:
    """The confidence at which all of this many bounds hold, with a hundredth of the doubt.

    An audit fails if a bound at this confidence exceeds the truth, so that chance hardly fails it.
    """
    return 1 - (1 - confidence) / (100 * bounds)


def lower_bounds_at(
    scores: Scores,
    thresholds: Floats,
    delta: float,
    *,
    confidence: float,
    method: str,
) -> Floats:
    """The lower bound at each threshold on the score, shape (j,), from all scores.

    At a threshold that was chosen without the scores each bound keeps its confidence on its own.
    The largest over many thresholds is not a bound, although papers report it.

    Args:
        scores: of two groups.
        thresholds: shape (j,), in the unit of the scores; "took part" is a score at or above.
        delta: target δ in (0, 1).
        confidence: one-sided.
        method: one of `VALID`.
    """
    sample = Sample(*scores.both(), 0, delta, 1 - confidence)
    errors = count_errors(sample, thresholds)
    if method == "clopper-pearson":
        return epsilon_limits(sample)(errors)
    return epsilon_of_shift(mu_limits(sample)(errors), delta)
