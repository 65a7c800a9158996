"""The lower bound "lifted", for scores that may depend on each other in any way.

It counts a run as one trial, while other bounds count k canaries as k independent trials (Pillutla
et al. 2023, arXiv 2305.18447). It assumes that the score of a canary that did not take part is
distributed like the scores of the unobserved canaries of the same run, or as the exact null of a
cosine. Random canaries satisfy this by construction. Proof, and the cost of correlation:
docs/notes/lifted.md.
"""

import math

import numpy as np

from fl_epe.auditing.bounds.error_rates import Sample, log_null_tail
from fl_epe.checks import Floats

# With the exact null, three shares of the canaries are tested, each at a third of the level. The
# bound subtracts δ from α·s for a share s, so at the smallest share α·s is four times δ.
_NUM_SHARES = 3
_LARGEST_SHARE = 0.5
_MIN_RATIO_TO_DELTA = 4.0

# Relative rounding error of a share times a number of canaries.
_ROUNDING_OF_COUNT = 1e-9


def lifted(sample: Sample) -> float:
    """A bound on ε from one run whose scores may depend on each other in any way.

    Under (ε, δ)-DP the expected share of canaries with a p-value of at most x is at most
    e^ε·x + δ. If the share is s in this run, then its expectation is at least α·s, except with
    probability α (Markov's inequality). So ε is at least ln((α·s − δ)/x), where x is the largest
    p-value in the share of canaries with the smallest p-values.
    """
    log_p = log_p_values(sample)
    count = log_p.size
    alpha = sample.alpha
    # Against u unobserved scores a p-value is at least 1/(u + 1), so small shares give weak bounds,
    # and only the largest share is tested.
    shares = np.array([_LARGEST_SHARE])
    if sample.unobserved is None:
        alpha = sample.alpha / _NUM_SHARES
        smallest = max(_MIN_RATIO_TO_DELTA * sample.delta / alpha, 1 / count)
        shares = np.geomspace(
            min(smallest, _LARGEST_SHARE), _LARGEST_SHARE, _NUM_SHARES
        )
    epsilon = 0.0
    for share in shares:
        excess = alpha * share - sample.delta
        if excess > 0:
            num_in_share = math.ceil(share * count * (1 - _ROUNDING_OF_COUNT))
            log_largest_p = log_p[num_in_share - 1]
            epsilon = max(epsilon, float(np.log(excess) - log_largest_p))
    return epsilon


def log_p_values(sample: Sample) -> Floats:
    """The logarithm of each observed canary's p-value, sorted.

    For a canary that did not take part, P₀[p ≤ x] ≤ x. Against u unobserved scores, of which v
    are at least the canary's score, the p-value is (1 + v) / (u + 1).
    """
    if sample.unobserved is None:
        return np.sort(log_null_tail(sample.observed, sample.dim))
    total = sample.unobserved.size
    below = np.searchsorted(sample.unobserved, sample.observed, side="left")
    return np.sort(np.log((1 + total - below) / (total + 1)))
