"""A privacy claim that is tested after every score, and rejected as soon as it is disproved.

`assert_private` does so with ``stop_early=True``. Two methods, both valid at every score at once:

- "betting" assumes nothing about observed scores but that they are independent. It bets against
  the claim on whether a score is above a threshold: under (ε, δ)-DP that happens with probability
  at most q, which follows from ε, δ and the known null. A betting martingale that starts at 1
  reaches 1/α with probability at most α (Ville). The stakes are a mixture, as nobody knows the best
  ones (Waudby-Smith and Ramdas 2023), over thresholds that are fixed beforehand.
- "mean" assumes Gaussian scores of variance 1, and uses the boundary of `confidence_sequence`.

Derivation and measurements: docs/notes/watching.md.

Examples:
    >>> watched = watch_claim([3.0] * 100, epsilon=1.0, delta=1e-5)
    >>> watched.violated, watched.used
    (True, 3)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sized
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing.epsilon_estimate import shift_of_epsilon
from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.sequential import UNPLANNED, Boundary, WatchedMean
from fl_epe.checks import check_positive, check_probability

Floats = NDArray[np.float64]

_THRESHOLDS = np.arange(0.0, 9.0, 0.5)  # of scores with null N(0, 1)
_PRIOR = 0.5  # of the beta law from which the stakes are drawn
_LARGEST = 700.0  # ε that no evidence reaches, in nats

WATCHED_METHODS = {
    "betting": "nothing else about the scores of canaries that took part",
    "mean": "Gaussian scores with the null's variance",
}
"""Methods for a claim that is watched, and what each assumes besides independent scores."""


@dataclasses.dataclass(frozen=True)
class WatchedEvidence:
    """What the scores so far say about a claim of (ε, δ)-DP, however often one looked.

    Attributes:
        claimed: the claimed ε in nats.
        delta: δ of the claim.
        confidence: of the lower bound, one-sided, at all scores at once.
        method: a key of `WATCHED_METHODS`.
        lower_bound: the true ε exceeds this.
        used: scores that were looked at; the claim was disproved by the last of them, or they are
            all that there were.
        planned: how many were planned; ``None`` without a plan.
        more: how many more would disprove the claim if scores stay as they are; infinite if none.
        ceiling: the largest lower bound that so many scores can give.
        violated: whether the claim is disproved.
    """

    claimed: float
    delta: float
    confidence: float
    method: str
    lower_bound: float
    used: int
    planned: float | None
    more: float
    ceiling: float
    violated: bool

    def __str__(self) -> str:
        share = f"{100 * self.confidence:.6g}%"
        of = "" if self.planned is None else f" of {self.planned:g}"
        result = "violated" if self.violated else "not violated"
        if not self.violated and math.isfinite(self.more):
            result += f"; about {math.ceil(self.more)} more canaries like these would disprove it"
        elif not self.violated:
            result += "; more canaries like these would not disprove it"
        return (
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {share} confidence by {self.method!r}, "
            f"at every score at once, assuming {WATCHED_METHODS[self.method]}\n"
            f"scores    {self.used}{of} observed against the known null\n"
            f"result    {result}"
        )


class _Watcher(Protocol):
    def add(self, score: float) -> None: ...
    def disproves(self, epsilon: float) -> bool: ...
    def bound(self) -> float: ...
    def more(self, epsilon: float) -> float: ...
    def ceiling(self) -> float: ...


class _Betting:
    """Counts of scores above each threshold; the wealth against any ε follows from them."""

    def __init__(self, delta: float, error: float, dim: int | None) -> None:
        self._delta, self._limit = delta, -math.log(error)
        thresholds = _THRESHOLDS if dim is None else _THRESHOLDS[dim > _THRESHOLDS**2]
        self._thresholds, self._null = thresholds, _null_above(thresholds, dim)
        self._above, self._count = np.zeros(len(thresholds)), 0

    def add(self, score: float) -> None:
        self._above += score > self._thresholds
        self._count += 1

    def disproves(self, epsilon: float) -> bool:
        return self._log_wealth(epsilon, self._above, self._count) >= self._limit

    def bound(self) -> float:
        return self._bound(self._above, self._count)

    def ceiling(self) -> float:
        return self._bound(np.full(len(self._null), float(self._count)), self._count)

    def more(self, epsilon: float) -> float:
        """Doubles the scores until they are enough, and then halves the step."""
        if self.disproves(epsilon):
            return 0.0
        if not self._count:
            return math.inf
        shares, enough = self._above / self._count, 2.0 * self._count
        while self._log_wealth(epsilon, shares * enough, enough) < self._limit:
            enough *= 2
            if enough > 1e12:
                return math.inf
        low = enough / 2
        while enough - low > 0.5:
            middle = (low + enough) / 2
            reached = self._log_wealth(epsilon, shares * middle, middle) >= self._limit
            low, enough = (low, middle) if reached else (middle, enough)
        return enough - self._count

    def _bound(self, above: Floats, count: float) -> float:
        """The wealth falls with ε, so this is where it crosses the limit, from below."""
        if not count or self._log_wealth(0.0, above, count) < self._limit:
            return 0.0
        low, high = 0.0, _LARGEST
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            found = self._log_wealth(middle, above, count) >= self._limit
            low, high = (middle, high) if found else (low, middle)
        return low

    def _log_wealth(self, epsilon: float, above: Floats, count: float) -> float:
        """Of the mixture of martingales, which are 0 at thresholds that favour the claim."""
        null, delta = self._null, self._delta
        most = np.minimum(
            np.exp(epsilon) * null + delta, -np.expm1(-epsilon) + (null + delta) * np.exp(-epsilon)
        )
        most = np.minimum(most, 1.0)
        below = count - above
        speaks = above > most * count
        with np.errstate(divide="ignore", invalid="ignore"):
            wealth = (
                scipy.special.betaln(above + _PRIOR, below + _PRIOR)
                - scipy.special.betaln(_PRIOR, _PRIOR)
                + np.log(scipy.special.betaincc(above + _PRIOR, below + _PRIOR, most))
                - scipy.special.xlogy(above, most)
                - scipy.special.xlog1py(below, -most)
            )
        if not speaks.any():
            return -math.inf
        wealth = np.where(speaks, wealth, -np.inf)
        top = wealth.max()
        return float(top + np.log(np.mean(np.exp(wealth - top)))) if top > -math.inf else -math.inf


_shift = functools.lru_cache(1)(shift_of_epsilon)  # asked for after every score


def _null_above(thresholds: Floats, dim: int | None) -> Floats:
    """P(score > threshold) of an unobserved canary: N(0, 1), or √dim times a cosine."""
    if dim is None:
        return np.asarray(scipy.special.ndtr(-thresholds))
    half = (dim - 1) / 2
    return np.asarray(scipy.special.betainc(half, half, (1 - thresholds / math.sqrt(dim)) / 2))


class _Mean:
    """The mean of Gaussian scores, against the shift that the claim allows."""

    def __init__(self, delta: float, error: float, planned: float | None) -> None:
        self._delta, self._total, self._count = delta, 0.0, 0
        self._boundary = Boundary(error, planned or UNPLANNED, planned is not None)

    def add(self, score: float) -> None:
        self._total += score
        self._count += 1

    def disproves(self, epsilon: float) -> bool:
        return self._low() > _shift(epsilon, self._delta)

    def bound(self) -> float:
        low = max(self._low(), 0.0)
        return float(epsilon_two_gaussians(0.0, 1.0, low, 1.0, self._delta))

    def _low(self) -> float:
        if not self._count:
            return 0.0
        return (self._total - float(self._boundary.at(self._count))) / self._count

    def ceiling(self) -> float:
        return math.inf

    def more(self, epsilon: float) -> float:
        boundary = self._boundary
        watched = WatchedMean(
            self._total,
            self._count,
            boundary.horizon,
            boundary.planned,
            confidence=1 - 2 * boundary.error,
        )
        return watched.more_until_above(_shift(epsilon, self._delta))


def watch_claim(
    scores: Iterable[float],
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    method: str | None = None,
    planned: float | None = None,
    dim: int | None = None,
) -> WatchedEvidence:
    """Look at one score after the other, until they disprove the claim or end.

    Args:
        scores: of independent canaries that took part, in an order that does not depend on them;
            each N(0, 1) for one that did not. A generator is not asked for more than is needed.
        epsilon: the claim, in nats.
        delta: δ of the claim, in [0, 1); above 0 for "mean".
        confidence: a true claim is called violated at any score with probability at most 1 − this.
        method: a key of `WATCHED_METHODS`, chosen before the scores are seen; "betting" by default.
        planned: how many scores there will be, known before they are seen: "mean" is tightest at
            it. By default the length of ``scores``, if it has one.
        dim: if the scores are √dim·cosines with one vector, their dimension.

    Raises:
        ValueError: if an argument is out of range, or a score is not finite.
        NotMeasured: a `ValueError`, if all scores are 0.
    """
    if delta != 0 or method == "mean":
        check_probability("delta", delta)
    check_probability("confidence", confidence)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"Expected epsilon={epsilon} in [0, inf).")
    method = method or "betting"
    if method not in WATCHED_METHODS:
        names = ", ".join(WATCHED_METHODS)
        raise ValueError(
            f"Expected method={method!r} to be one that may be watched, {names}: other bounds are"
            " for one look."
        )
    if planned is None and isinstance(scores, Sized) and len(scores):
        planned = len(scores)
    if planned is not None:
        check_positive("planned", planned)
    error = 1 - confidence
    watcher: _Watcher = _Betting(delta, error, dim)
    if method == "mean":
        watcher = _Mean(delta, error, planned)
    used, violated, told = 0, False, False
    for score in scores:
        value = float(score)
        if not math.isfinite(value):
            raise ValueError(f"Expected scores to be finite, got {value} after {used} of them.")
        watcher.add(value)
        told = told or value != 0
        used += 1
        if violated := watcher.disproves(epsilon):
            break
    if used and not told:
        raise NotMeasured(f"all of {used} scores are 0: no canary reached what was released")
    return WatchedEvidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        method=method,
        lower_bound=watcher.bound(),
        used=used,
        planned=planned,
        more=0.0 if violated else watcher.more(epsilon),
        ceiling=watcher.ceiling(),
        violated=violated,
    )
