"""How wide scores are where that is not 1: canaries that overlap, rounds that agree.

Two things are known of the scores of a run beside their values. `mean_spread` says how far the mean
of overlapping canaries' scores varies, as one length of what hides them is behind all of them.
`with_measured_null` divides scores by the standard deviation of the unobserved ones where that is
certainly more than 1, as where the means of successive rounds agree with each other. Derivations:
docs/notes/other-canaries.md.

Examples:
    >>> found = mean_spread(count=1000, dim=10_000, shifts=np.array([3.0]), noise=np.array([1.0]))
    >>> round(found**2, 6)
    1.45
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.scores import Scores

Floats = NDArray[np.float64]

LEAST_CERTAINTY = 0.999
"""One-sided confidence that a null is wider than N(0, 1), below which scores stay as they are."""

LEAST_FOR_NULL = 20
"""Unobserved canaries whose scores find a null that is 1.5 times too wide."""


def mean_spread(count: int, dim: int, shifts: Floats, noise: Floats, cosine: float = 0.0) -> float:
    """Standard deviation of √k times the mean score of k canaries, each alone with what hides it.

    The direction of what hides them adds 1. Its length varies from run to run by the noise in it
    and moves all scores at once, by ``m/√(2d)`` for a mean score m: with many canaries in a
    dimension that is more than the rest. A score is √d·cosine, which a length moves the less the
    closer the cosine is to 1.

    Args:
        count: number of canaries, k.
        dim: their dimension d.
        shifts: ``(T,)``, what each released vector contributes to the mean score.
        noise: ``(T,)``, the noise's share of the energy that hides canaries in each of them.
        cosine: of a canary with a vector that holds it.
    """
    lengths = (1 - (1 - noise) ** 2) / (2 * dim)  # relative variance, for noise and a fixed vector
    rest = 1 - min(cosine, 1.0) ** 2
    return float(rest * np.sqrt(rest + count * np.sum(shifts**2 * lengths)))


def with_measured_null(scores: Scores) -> Scores:
    """Scores whose null is N(0, 1) again, if unobserved ones are certainly wider than that.

    Both sides are divided by the root mean square of the unobserved scores, which `Scores.null`
    keeps, if a χ² test says with `LEAST_CERTAINTY` that it is above 1. In one of a thousand runs
    with a right null it does so by chance. The interval of an estimate allows for the error of
    the measurement.
    """
    others = scores.unobserved
    if others is None:
        return scores
    square, count = float(np.mean(others**2)), len(others)
    if count * square <= scipy.stats.chi2.ppf(LEAST_CERTAINTY, count):
        return scores
    width = float(np.sqrt(square))
    return dataclasses.replace(
        scores, observed=scores.observed / width, unobserved=others / width, null=(width, count)
    )


def null_interval(width: float, count: int, confidence: float) -> tuple[float, float]:
    """Interval for a standard deviation that ``count`` scores of mean 0 were measured to have."""
    tails = np.array([1 + confidence, 1 - confidence]) / 2
    low, high = width * np.sqrt(count / scipy.stats.chi2.ppf(tails, count))
    return float(low), float(high)
