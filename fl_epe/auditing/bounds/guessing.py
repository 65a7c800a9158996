"""Lower bounds on ε from scores that may depend on each other: of one run, and of its guesses.

"lifted" counts a run as one trial, where other bounds count k canaries as k independent ones, as
only runs are independent for certain (Pillutla et al. 2023, arXiv 2305.18447). What it needs is
that a canary's score, had the canary not taken part, is distributed like those of the unobserved
canaries of the same run, or as the exact null of a cosine. Random canaries have that by
construction. Proof, and what correlation costs: docs/notes/lifted.md.

"one-run" is for canaries that were included by independent fair coins. The attack guesses "in" for
the canaries with the highest scores, "out" for as many with the lowest, and abstains on the rest
(Steinke, Nasr, Jagielski 2023). Each ε has its own number of guesses, fixed before any score is
seen, and the bound is the end of the range from 0 in which every ε is rejected. Why no correction
is needed: docs/notes/lower-bounds.md.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy

from fl_epe.auditing.bounds.error_rates import FloatArray, Sample, log_null_tail

_TOLERANCE = 1e-4
_LARGEST = 1e6
_CELL = 0.1  # of the values that one test is for; above 2 a twentieth of the value
_LARGEST_SHARE = 0.5  # of the canaries whose scores are to exceed a threshold
_LEAKS = 4.0  # the smallest limit of such a share, over δ
_SHARES = 3  # how many shares are tried, each at a third of the level

Margin = Callable[[float], float]
Labels = npt.NDArray[np.bool_]


def one_run(sample: Sample) -> float:
    """(ε, δ) from the number of right guesses (Steinke et al. 2023)."""
    labels = sorted_labels(sample)

    def at(epsilon: float) -> Margin:
        guesses, _ = guess_design(labels.size, sample.alpha, epsilon)
        right = right_guesses(labels, guesses)
        return lambda value: (
            steinke_p_value(value, labels.size, guesses, right, sample.delta) - sample.alpha
        )

    return first_accepted(at)


def steinke_p_value(
    epsilon: float, num_canaries: int, guesses: int, right: int, delta: float
) -> float:
    """The largest probability of at least ``right`` right ``guesses`` under (ε, δ)-DP.

    Steinke et al. 2023: β + 2·m·δ·max_i P[v > B ≥ v − i]/i, with B ~ Bin(r, q) the right guesses at
    δ = 0, q = 1/(1 + e^−ε) and β = P[B ≥ v]. It is near 1 unless 2·m·δ is small.
    """
    if right == 0:
        return 1.0
    q = scipy.special.expit(epsilon)
    tail = scipy.special.bdtrc(np.arange(right - 1, -2, -1), guesses, q)
    by_leaks = np.max((tail[1:] - tail[0]) / np.arange(1, right + 1))
    return float(min(1.0, tail[0] + 2 * num_canaries * delta * by_leaks))


def first_accepted(at: Callable[[float], Margin]) -> float:
    """The end of the range of rejected values that starts at 0.

    Args:
        at: gives the test designed for a value: an increasing function that is negative at the
            values that it rejects. Each cell of values uses the test of its upper end.
    """
    for low, high in itertools.pairwise(_cells()):
        margin = at(high)
        if margin(high) < 0:
            continue
        if margin(low) >= 0:
            return low
        return max(
            low, float(scipy.optimize.brentq(margin, low, high, xtol=_TOLERANCE)) - _TOLERANCE
        )
    return _LARGEST


def sorted_labels(sample: Sample) -> Labels:
    """Whether observed, from the highest score to the lowest, ties in random order; shape (m,)."""
    observed, unobserved = sample.both()
    scores = np.concatenate([observed, unobserved])
    shuffled = sample.rng(2).permutation(scores.size)
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    return order < observed.size


def right_guesses(labels: Labels, guesses: int) -> int:
    """Number of right guesses, half of them "in" from the top, half "out" from the bottom."""
    half = guesses // 2
    return int(labels[:half].sum() + (~labels[labels.size - half :]).sum())


def guess_design(num_canaries: int, alpha: float, epsilon: float) -> tuple[int, float]:
    """How many guesses to test ``epsilon`` with; tuned to Gaussian scores, valid for all.

    Returns:
        An even number of guesses, and the shift between two unit Gaussians that a test of that
        ``epsilon`` detects in half of the runs.
    """
    epsilons, guesses, shifts = _designs(num_canaries, alpha)
    index = min(int(np.searchsorted(epsilons, epsilon)), epsilons.size - 1)
    return int(guesses[index]), float(shifts[index])


@functools.lru_cache
def _designs(num_canaries: int, alpha: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Values of ε, increasing, with the guesses and the shift of `guess_design` at each."""
    shifts = np.geomspace(0.02, 40.0, 120)
    guesses = np.unique([_even(count) for count in np.geomspace(2, num_canaries, 60)])
    confident = confidence_quantile(guesses / num_canaries, shifts[:, np.newaxis])
    right = guesses * (1 - wrong_share(confident, shifts[:, np.newaxis]))
    limits = scipy.special.logit(scipy.special.betaincinv(right, guesses - right + 1, alpha))
    epsilons = np.maximum.accumulate(np.max(limits, axis=1))
    return epsilons, guesses[np.argmax(limits, axis=1)], shifts


def confidence_quantile(share: FloatArray, shift: FloatArray | float) -> FloatArray:
    """The distance from the middle of N(0, 1) and N(shift, 1) beyond which ``share`` lies."""
    low = np.zeros(np.broadcast_shapes(np.shape(share), np.shape(shift)))
    high = low + np.max(shift) / 2 + 40
    for _ in range(55):
        middle = (low + high) / 2
        beyond = share_beyond(middle, shift) > share
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return low


def share_beyond(distance: FloatArray, shift: FloatArray | float) -> FloatArray:
    """The share of N(0, 1) and N(shift, 1) together farther than ``distance`` from the middle."""
    return np.asarray(
        scipy.special.ndtr(shift / 2 - distance) + scipy.special.ndtr(-distance - shift / 2)
    )


def wrong_share(distance: FloatArray, shift: FloatArray | float) -> FloatArray:
    """Of the scores farther than ``distance`` from the middle, the share on the wrong side."""
    right = scipy.special.log_ndtr(shift / 2 - distance)
    return np.asarray(scipy.special.expit(scipy.special.log_ndtr(-distance - shift / 2) - right))


def _even(count: float) -> int:
    return max(2, 2 * int(count / 2))


def _cells() -> Iterator[float]:
    edge = 0.0
    while edge < _LARGEST:
        yield edge
        edge += max(_CELL, edge / 20)


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
