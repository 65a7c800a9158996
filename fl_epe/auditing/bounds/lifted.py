"""A bound for scores of one run that depend on each other in any way (lifted DP).

The other bounds count k canaries as k independent trials. This one counts a run as one trial, as
only runs are independent for certain (Pillutla et al. 2023, arXiv 2305.18447). What it needs is
that a canary's score, had the canary not taken part, is distributed like those of the unobserved
canaries of the same run, or as the exact null of a cosine. Random canaries have that by
construction. Proof, and what correlation costs: docs/notes/lifted.md.
"""

from __future__ import annotations

import math

import numpy as np

from fl_epe.auditing.bounds.error_rates import FloatArray, Sample, log_null_tail

_LARGEST_SHARE = 0.5  # of the canaries whose scores are to exceed a threshold
_LEAKS = 4.0  # the smallest limit of such a share, over δ
_SHARES = 3  # how many shares are tried, each at a third of the level


def lifted(sample: Sample) -> float:
    """ε from one run whose scores may depend on each other in any way.

    If a share of the canaries has p-values of at most x, the mean of that share is above α times
    it, except with probability α (Markov's inequality), and at most e^ε·x + δ.
    """
    p_values, best = log_p_values(sample), 0.0
    count = _SHARES if sample.unobserved is None else 1  # a rank is at least 1 of u + 1
    alpha = sample.alpha / count
    smallest = max(_LEAKS * sample.delta / alpha, 1 / p_values.size)
    for share in np.geomspace(min(smallest, _LARGEST_SHARE), _LARGEST_SHARE, _SHARES)[-count:]:
        if alpha * share > sample.delta:
            last = math.ceil(share * p_values.size * (1 - 1e-9)) - 1
            best = max(best, float(np.log(alpha * share - sample.delta) - p_values[last]))
    return best


def log_p_values(sample: Sample) -> FloatArray:
    """Log of each observed canary's p-value, sorted: P₀[p ≤ x] ≤ x if it did not take part.

    Against u unobserved scores it is the rank (1 + those not below it) / (u + 1).
    """
    if sample.unobserved is None:
        return np.sort(log_null_tail(sample.observed, sample.dim))
    others = np.sort(sample.unobserved)
    below = np.searchsorted(others, sample.observed, side="left")
    return np.sort(np.log((1 + others.size - below) / (others.size + 1)))
