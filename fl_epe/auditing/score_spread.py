"""How wide scores are where that is not 1: canaries that overlap, rounds that agree.

`check_known_variance` and `check_sign` refuse scores that no estimate fits. `mean_spread` says how
far the mean of overlapping canaries' scores varies, as one length of what hides them is behind all
of them. `with_measured_null` divides scores by the standard deviation of the unobserved ones where
that is certainly more than 1, as where the means of successive rounds agree with each other.
Derivations: docs/notes/other-canaries.md.

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

from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.scores import Scores
from fl_epe.auditing.shifted_cosines import LEAST_DIM

Floats = NDArray[np.float64]

LEAST_CERTAINTY = 0.999
"""One-sided confidence that scores are wider than their law, below which they stay as they are."""

_WRONG_SIGN = 1e-6  # probability of observed scores so far below unobserved ones by chance

LEAST_FOR_NULL = 20
"""Unobserved canaries whose scores find a null that is 1.5 times too wide."""


def mean_spread(count: int, dim: int, shifts: Floats, noise: Floats) -> float:
    """Standard deviation of √k times the mean shift of k canaries, each alone with what hides it.

    The direction of what hides them adds 1. Its length varies from run to run by the noise in it
    and moves all shifts at once, by ``μ/√(2d)`` for a shift μ: with many canaries in a
    dimension that is more than the rest.

    Args:
        count: number of canaries, k.
        dim: their dimension d.
        shifts: ``(T,)``, what each released vector contributes to the mean shift.
        noise: ``(T,)``, the noise's share of the energy that hides canaries in each of them.
    """
    lengths = (1 - (1 - noise) ** 2) / (2 * dim)  # relative variance, for noise and a fixed vector
    return float(np.sqrt(1 + count * np.sum(shifts**2 * lengths)))


def wider_than_known(scores: Scores) -> str | None:
    """How wide scores are, in words, if they are certainly wider than N(μ, 1).

    Their mean then does not tell ε: canaries with different expected scores are a mixture, and the
    largest of them decide ε. Where these are known up to a factor (`Scores.expected`), they are
    taken out first. The χ² test has the level 1 − `LEAST_CERTAINTY`. What it finds:
    ``benchmarks/estimators.py --dims``.
    """
    sizes = np.ones_like(scores.observed)
    if scores.expected is not None and scores.expected.any():
        sizes = scores.expected
    deviates = scores.deviates(scores.shift(0.0, sizes) * sizes)
    freedom = len(deviates) - 1
    square = float(np.sum((deviates - deviates.mean()) ** 2)) / freedom
    if scores.null is None:
        p = scipy.stats.chi2.sf(square * freedom, freedom)
    else:
        p = scipy.stats.f.sf(square, freedom, scores.null[1])
    if p >= 1 - LEAST_CERTAINTY:
        return None
    return (
        f"observed {scores.statistic} are {np.sqrt(square):.2f} times as wide as known variance "
        f"allows (χ² test, p = {p:.1g}), as where canaries take part unequally: ε of their mean is "
        "smaller than that of the most exposed"
    )


def check_known_variance(scores: Scores) -> None:
    """Refuse scores that are `wider_than_known`, and cosines in few dimensions.

    Raises:
        NotMeasured: with the reason.
    """
    if scores.dim is not None and scores.dim < LEAST_DIM:
        raise NotMeasured(
            f"the cosines are in {scores.dim} dimensions; an estimate needs at least {LEAST_DIM}"
        )
    if reason := wider_than_known(scores):
        raise NotMeasured(reason)


def check_sign(scores: Scores) -> None:
    """Refuse observed scores that are far below unobserved ones (p < 10⁻⁶): ε would be 0.

    Raises:
        NotMeasured: with both medians.
    """
    null = 0.0
    if scores.standard_null:
        z = float(scores.deviates(0.0).mean()) * np.sqrt(len(scores.observed))
        p = scipy.special.ndtr(z / max(scores.spread, 1.0))
    else:
        observed, unobserved = scores.both()
        null = float(np.median(unobserved))
        p = 1.0
        if np.ptp(np.concatenate([observed, unobserved])) > 0:
            p = scipy.stats.mannwhitneyu(observed, unobserved, alternative="less").pvalue
    if p < _WRONG_SIGN:
        raise NotMeasured(
            f"observed {scores.statistic} are far below unobserved ones (median "
            f"{np.median(scores.observed):.4g} against {null:.4g}), and larger scores must mean "
            "that a canary took part; negate them, or swap the two sides"
        )


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
