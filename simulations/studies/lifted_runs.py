"""The bound "lifted" from several independent runs of one mechanism (Pillutla et al. 2023).

Examples:
    >>> runs = [Scores(np.full(50, 3.0), np.linspace(-2, 2, 1000)) for _ in range(8)]
    >>> lifted_lower_bound(runs[:1], 1e-5) < lifted_lower_bound(runs, 1e-5)
    True
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import scipy

from fl_epe.auditing import Scores
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.lifted import log_p_values
from fl_epe.checks import Floats, check_probability, raise_invalid

_BETS = (
    np.arange(1, 9) / 8
)  # shares of the capital that are bet, if there are several runs
_LARGEST_SHARE = 0.5  # of the canaries whose scores are to exceed a threshold
_LEAKS = 4.0  # the smallest limit of such a share, over δ
_SHARES = 3  # how many shares are tried, each at a third of the level


def lifted_lower_bound(
    runs: Sequence[Scores], delta: float, *, confidence: float = 0.95
) -> float:
    """A lower bound on ε from independent runs of one mechanism, with any dependence inside a run.

    In each run the scores of the canaries may depend on each other in any way. The runs must be
    independent: fresh canaries, fresh noise. One run is enough for a bound; more runs lower the
    price of not assuming independence, which is at least ln(1/(1 − confidence)) / runs.

    Args:
        runs: the scores of each run, each with unobserved scores or an exact null.
        delta: target δ in [0, 1).
        confidence: one-sided.

    Returns:
        The bound in nats, at least 0.

    Raises:
        ValueError: for no run, an argument out of range, or scores without anything to compare.
    """
    if delta != 0:
        check_probability("delta", delta)
    check_probability("confidence", confidence)
    if not runs:
        raise_invalid("runs", [], "to hold the scores of at least one run")
    for number, scores in enumerate(runs):
        if not scores.boundable:
            wanted = "to be scores, or dim=None to be a number of dimensions"
            raise_invalid(f"runs[{number}].unobserved", None, wanted)
    return _from_samples(
        [_sample(scores, delta, 1 - confidence) for scores in runs]
    )


def _sample(scores: Scores, delta: float, alpha: float) -> Sample:
    if scores.dim is None:
        return Sample(*scores.both(), 0, delta, alpha)
    return Sample(scores.cosines, None, scores.dim, delta, alpha)


def _from_samples(samples: list[Sample]) -> float:
    """The largest bound over a few shares of high-scoring canaries, each at a part of the level."""
    runs, delta = [log_p_values(sample) for sample in samples], samples[0].delta
    ranks = any(sample.unobserved is not None for sample in samples)
    count = (
        1 if ranks and len(runs) == 1 else _SHARES
    )  # a rank is at least 1 of u + 1
    part = samples[0].alpha / count
    factor = mean_limit_factor(len(runs), part)
    smallest = max(_LEAKS * delta / factor, 1 / min(run.size for run in runs))
    shares = np.geomspace(
        min(smallest, _LARGEST_SHARE), _LARGEST_SHARE, _SHARES
    )[-count:]
    candidates = np.unique(np.concatenate(runs))
    bounds = [0.0]
    for limit in (
        factor * shares
    ):  # of a mean share, if each run shows the share
        first = (
            _first_convincing(runs, candidates, limit, part)
            if limit > delta
            else None
        )
        if first is not None:
            bounds.append(float(np.log(limit - delta) - first))
    return max(bounds)


def _first_convincing(
    runs: list[Floats], candidates: Floats, limit: float, alpha: float
) -> float | None:
    """The least log p-value at which the runs' shares contradict a mean of ``limit`` or less."""
    low, high = (
        0,
        candidates.size,
    )  # shares rise with the p-value, and so does the capital
    while low < high:
        middle = (low + high) // 2
        shares = np.array(
            [
                np.searchsorted(run, candidates[middle], side="right")
                / run.size
                for run in runs
            ]
        )
        if log_capital(shares, limit) >= -np.log(alpha) - 1e-9:
            high = middle
        else:
            low = middle + 1
    return float(candidates[low]) if low < candidates.size else None


def log_capital(shares: Floats, mean: float) -> float:
    """Log of the capital of one who bets, starting with 1, that shares in [0, 1] exceed ``mean``.

    The capital's expectation is at most 1 if the shares are independent with means of ``mean`` or
    less, so that it reaches 1/α with probability at most α (Waudby-Smith and Ramdas 2023).

    Args:
        shares: one for each run, shape (n,).
        mean: the mean that is tested, above 0.
    """
    bets = _bets(len(shares))[:, np.newaxis]
    with np.errstate(
        divide="ignore"
    ):  # who bets all on a run without hits loses all
        gains = np.log1p(bets * (shares / mean - 1)).sum(axis=1)
    if len(gains) == 1:  # a tenth of the time of a sum of one
        return float(gains[0])
    return float(scipy.special.logsumexp(gains) - np.log(len(gains)))


def _bets(runs: int) -> Floats:
    return np.ones(1) if runs == 1 else _BETS


@functools.lru_cache
def mean_limit_factor(runs: int, alpha: float) -> float:
    """The lower limit of a mean over the share that is seen in every one of the runs.

    α for one run, by Markov's inequality; it rises to 1 with the number of runs.
    """

    def excess(log_factor: float) -> float:
        return log_capital(np.ones(runs), float(np.exp(log_factor))) + float(
            np.log(alpha)
        )

    root = scipy.optimize.brentq(excess, np.log(alpha) - 3.0, 0.0, xtol=1e-13)
    return float(np.exp(root))
