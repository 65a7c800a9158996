"""A lower bound on substitute ε that reads error rates along the mechanism's own trade-off curve.

What "gdp" is for a Gaussian mechanism (Nasr et al. 2023), this is for T sampled Gaussian steps of
which only the sum is seen: the error rates at a held-out threshold rule out every noise multiplier
that is so large that nobody could err so rarely, and ε is that of the least one ruled out.

Examples:
    >>> from fl_epe.accounting import HiddenSubstitute
    >>> from fl_epe.auditing import games
    >>> pair = HiddenSubstitute(noise_multiplier=5.0, sampling_rate=0.25, rounds=100)
    >>> scores = games.play_hidden_state(pair, observations=500, seed=1)
    >>> 0 < hidden_substitute_lower_bound(scores, 0.25, 100, 1e-5) < pair.epsilon(1e-5)
    True
"""

from __future__ import annotations

import math

import scipy

from fl_epe.accounting import HiddenSubstitute
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.thresholds import gdp_rates
from fl_epe.auditing.scores import Scores
from fl_epe.checks import check_probability

_LOG_NOISE = (math.log(1e-3), math.log(1e6))  # what is looked at, over √T
_TOLERANCE = 1e-6


def hidden_substitute_lower_bound(
    scores: Scores,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> float:
    """ε at ``delta`` exceeds this at the stated confidence, if the mechanism is of the family.

    The family: ``rounds`` steps of a clipped sum with Gaussian noise of one unknown size, a secret
    coin of ``sampling_rate`` for the record in each, and a score that depends on the steps through
    their sum alone. The scores may be any function of that sum.

    Args:
        scores: of independent runs in the world with +C and in the one with −C.
        sampling_rate: q in (0, 1].
        rounds: number T of steps, at least 1.
        delta: in (0, 1).
        confidence: one-sided.
        seed: of the random split of the scores, a tenth of which choose the threshold.

    Returns:
        The bound in nats, at least 0; infinite if the rates rule out any noise at all.

    Raises:
        ValueError: if an argument is out of range, or there are no unobserved scores.
    """
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    HiddenSubstitute(1.0, sampling_rate, rounds)  # checks the others
    if scores.unobserved is None:
        raise ValueError("Expected scores of the other world, got unobserved=None.")
    sample = Sample(scores.observed, scores.unobserved, None, delta, 1 - confidence, seed)
    log_fpr, fnr = gdp_rates(sample)
    fpr = math.exp(log_fpr)
    if fpr + fnr >= 1:
        return 0.0

    def pair(log_noise: float) -> HiddenSubstitute:
        return HiddenSubstitute(math.exp(log_noise) * math.sqrt(rounds), sampling_rate, rounds)

    def excess(log_noise: float) -> float:
        return pair(log_noise).least_fnr(fpr) - fnr

    if excess(_LOG_NOISE[0]) >= 0:
        return math.inf
    if excess(_LOG_NOISE[1]) <= 0:
        return 0.0
    root = float(scipy.optimize.brentq(excess, *_LOG_NOISE, xtol=_TOLERANCE))
    return pair(root + _TOLERANCE).epsilon(delta)
