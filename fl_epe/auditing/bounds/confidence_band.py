"""A confidence band for a whole distribution function: upper limits that hold at all thresholds.

Clopper–Pearson limits at one corrected level η (an "equal local levels" band, Aldor-Noiman et al.
2013), so that the threshold may be chosen afterwards. Derivation: docs/notes/lower-bounds.md.

Examples:
    >>> 1e-4 < local_level(total=1000, alpha=0.05) < 0.01
    True
"""

from __future__ import annotations

import functools

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import FloatArray, clopper_pearson_upper

_NODE_RATIO = 1.1  # limits are computed at counts that grow by this factor from either end
_LOG_TOLERANCE = 1e-3


def band_upper(errors: FloatArray, total: int, alpha: float) -> FloatArray:
    """Upper limits of a rate at any number of thresholds, which hold all together.

    Args:
        errors: scores beyond each threshold, any shape, integers in [0, total].
        total: number of scores.
        alpha: probability that at least one limit is below its true rate.
    """
    nodes = _nodes(total)
    limits = np.append(clopper_pearson_upper(nodes, total, local_level(total, alpha)), 1.0)
    return np.asarray(limits[np.searchsorted(nodes, errors)])


@functools.lru_cache
def local_level(total: int, alpha: float) -> float:
    """The level η of each limit at which the band of ``total`` scores has level ``alpha``."""
    nodes = _nodes(total)

    def excess(log_level: float) -> float:
        limits = clopper_pearson_upper(nodes, total, float(np.exp(log_level)))
        return _probability_below(nodes, limits, total) - (1 - alpha)

    low, high = np.log(alpha / nodes.size), np.log(alpha)
    if excess(low) <= 0 or nodes.size == 1:
        return float(np.exp(low))
    return float(
        np.exp(scipy.optimize.brentq(excess, low, high, xtol=_LOG_TOLERANCE) - _LOG_TOLERANCE)
    )


def _probability_below(nodes: FloatArray, limits: FloatArray, total: int) -> float:
    """P[U₍ⱼ₊₁₎ ≤ limitⱼ for every node j] for ordered uniforms, or slightly less.

    ``ahead`` holds the probability of each surplus of points over j + 1.
    """
    rates = total * np.diff(limits, prepend=0.0)
    required = np.diff(nodes + 1, prepend=0.0).astype(int)
    longest = int(7 * np.sqrt(total)) + 40
    ahead = np.ones(1)
    for rate, more in zip(rates, required, strict=True):
        arrivals = _poisson(np.arange(np.ceil(rate + 10 * np.sqrt(rate)) + 25), rate)
        ahead = np.convolve(ahead, arrivals)[more : more + longest]
    missing = total - (nodes[-1] + 1) - np.arange(float(ahead.size))
    possible = missing >= 0
    last = _poisson(missing[possible], total * (1 - limits[-1]))
    return float(ahead[possible] @ last / _poisson(np.array([float(total)]), total)[0])


def _poisson(counts: FloatArray, rate: float) -> FloatArray:
    return np.asarray(
        np.exp(scipy.special.xlogy(counts, rate) - rate - scipy.special.gammaln(counts + 1))
    )


def _nodes(total: int) -> FloatArray:
    """The error counts at which limits are computed; other counts use the next larger one."""
    steps = int(np.log(total / 2 + 1) / np.log(_NODE_RATIO)) + 1
    counts = np.round(_NODE_RATIO ** np.arange(steps))
    counts = counts[counts <= total / 2]
    return np.unique(np.concatenate([[0.0], counts, total - counts]))
