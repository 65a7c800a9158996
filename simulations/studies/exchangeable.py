"""Confidence limits for a rate from canaries that are exchangeable, but not independent.

In each of n independent runs K canaries hit a threshold or miss it. Their hits may be correlated,
so a run's share of hits varies from run to run by more than p·(1 − p)/K. For exchangeable hits the
variance is (μ₁ − μ₂)/K + μ₂ − μ₁², where μ₁ is the rate and μ₂ the probability that two canaries of
one run both hit (Pillutla et al. 2023, arXiv 2305.18447). Derivations: docs/notes/lifted.md.

Examples:
    >>> shares = np.array([0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6, 0.5])  # of 1,000 canaries each
    >>> limits = lower_limits(shares, 1000)
    >>> limits.betting < limits.independent
    True
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.checks import check_probability
from simulations.studies.lifted_runs import log_capital


@dataclasses.dataclass(frozen=True)
class LowerLimits:
    """Lower confidence limits of one rate, by what they assume about the canaries of a run.

    Attributes:
        independent: Clopper–Pearson, as if all n·K hits were independent.
        betting: any dependence inside a run, and any number of runs.
        bernstein: the same by an empirical Bernstein inequality; 0 for one run.
        wilson: second-order limits of Wilson's form, for exchangeable hits; asymptotic in the
            number of runs, 0 for one run.
    """

    independent: float
    betting: float
    bernstein: float
    wilson: float


def lower_limits(
    shares: ArrayLike, canaries: int, *, confidence: float = 0.95
) -> LowerLimits:
    """Lower limits of the rate behind the shares of hits in independent runs.

    Args:
        shares: share of hits in each run, in [0, 1], shape (n,).
        canaries: number K of canaries in each run, at least 2.
        confidence: one-sided, of each limit on its own.

    Raises:
        ValueError: for shares outside [0, 1], no run, or an argument out of range.
    """
    check_probability("confidence", confidence)
    hits = np.asarray(shares, np.float64)
    if hits.ndim != 1 or not hits.size or not np.all((hits >= 0) & (hits <= 1)):
        raise ValueError(
            f"Expected shares={hits} to be numbers in [0, 1], at least one."
        )
    if canaries < 2:
        raise ValueError(f"Expected canaries={canaries} >= 2.")
    alpha, several = 1 - confidence, hits.size > 1
    return LowerLimits(
        independent=_clopper_pearson(hits, canaries, alpha),
        betting=_betting(hits, alpha),
        bernstein=_bernstein(hits, alpha) if several else 0.0,
        wilson=_wilson(hits, canaries, alpha) if several else 0.0,
    )


def _clopper_pearson(hits: np.ndarray, canaries: int, alpha: float) -> float:
    total, hit_count = canaries * hits.size, canaries * float(hits.sum())
    return (
        float(scipy.special.betaincinv(hit_count, total - hit_count + 1, alpha))
        if hit_count
        else 0.0
    )


def _betting(hits: np.ndarray, alpha: float) -> float:
    """The mean against which a bet wins 1/α; smaller means are ruled out."""
    if not (mean := float(hits.mean())):
        return 0.0
    last = float(np.log(mean))
    # Where only one run of n has hits, the others cost at most n·ln(8/7) of the log capital.
    first = max(last + float(np.log(alpha)) - 5 - hits.size, -500.0)

    def excess(log_mean: float) -> float:
        return log_capital(hits, float(np.exp(log_mean))) + float(np.log(alpha))

    if excess(first) <= 0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, first, last, xtol=1e-12)))


def _bernstein(hits: np.ndarray, alpha: float) -> float:
    """Maurer and Pontil 2009, theorem 4; holds for every n."""
    logs = np.log(2 / alpha)
    width = np.sqrt(2 * hits.var(ddof=1) * logs / hits.size) + 7 * logs / (
        3 * (hits.size - 1)
    )
    return max(0.0, float(hits.mean() - width))


def _pairs(hits: np.ndarray, canaries: int) -> np.ndarray:
    """In each run, the share of pairs of canaries that both hit."""
    return np.asarray(hits * (canaries * hits - 1) / (canaries - 1))


def _wilson(hits: np.ndarray, canaries: int, alpha: float) -> float:
    """Solve n·(p̂ − p)² = z²·((p − μ₂)/K + μ₂ − p²), μ₂ at an upper limit; half the level each."""
    z, count = -float(scipy.special.ndtri(alpha / 2)), hits.size
    pairs = _pairs(hits, canaries)
    pair_rate = min(
        1.0, float(pairs.mean() + z * pairs.std(ddof=1) / np.sqrt(count))
    )
    rate = float(hits.mean())
    half = count * rate + z**2 / (2 * canaries)
    constant = count * rate**2 - z**2 * pair_rate * (1 - 1 / canaries)
    inside = half**2 - (count + z**2) * constant
    return max(0.0, float(half - np.sqrt(max(inside, 0.0))) / (count + z**2))
