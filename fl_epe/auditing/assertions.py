"""A privacy claim as a test: ``assert_private(run, epsilon, delta)``.

A failure disproves the claim at the given confidence and under the stated assumption. Passing does
not prove the claim: a better attack may get further. A true claim fails with probability at most
1 − confidence, so for 1% over a whole test suite use ``confidence=1 - 0.01 / tests``. This holds
only if a failed test is not repeated until it passes, and if the method is chosen in advance.

With ``stop_early=True`` a claim is tested after every score, and rejected as soon as it is
disproved. Nothing is assumed about observed scores but that they are independent. A gambler bets
against the claim on whether a score is above a threshold: under (ε, δ)-DP that happens with
probability at most q, which follows from ε, δ and the known null. A betting martingale that starts
at 1 reaches 1/α with probability at most α (Ville), so that the test is valid at every score at
once. The stakes are a mixture, as nobody knows the best ones (Waudby-Smith and Ramdas 2023), over
thresholds that are fixed beforehand. Derivation and measurements: docs/notes/watching.md.

Examples:
    >>> watched = watch_claim([3.0] * 100, epsilon=1.0, delta=1e-5)
    >>> watched.violated, watched.used
    (True, 3)
    >>> from fl_epe.auditing.games import play
    >>> rng = np.random.default_rng(0)
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=50)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5, method="gdp").violated
    False
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import scipy

from fl_epe.auditing.epsilon_estimate import Adversary
from fl_epe.auditing.evidence import Evidence, find_evidence, found_in, scores_of
from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import Scores
from fl_epe.checks import Floats, check_probability, raise_invalid

_THRESHOLDS = np.arange(0.0, 9.0, 0.5)  # of scores with null N(0, 1)
_PRIOR = 0.5  # of the beta law from which the stakes are drawn
_LARGEST = 700.0  # ε that no evidence reaches, in nats


@dataclasses.dataclass(frozen=True)
class WatchedEvidence:
    """What the scores so far say about a claim of (ε, δ)-DP, however often one looked.

    Attributes:
        claimed: the claimed ε in nats.
        delta: δ of the claim.
        confidence: of the lower bound, one-sided, at all scores at once.
        lower_bound: the true ε exceeds this.
        used: scores that were looked at; the claim was disproved by the last of them, or they are
            all that there were.
        ceiling: the largest lower bound that so many scores can give.
        violated: whether the claim is disproved.
    """

    claimed: float
    delta: float
    confidence: float
    lower_bound: float
    used: int
    ceiling: float
    violated: bool

    def __str__(self) -> str:
        return (
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {100 * self.confidence:.6g}% confidence by "
            "betting, at every score at once, assuming that scores are independent\n"
            f"scores    {self.used} observed against the known null\n"
            f"result    {'violated' if self.violated else 'not violated'}"
        )


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
        wealth = np.where(speaks, wealth, -np.inf)
        top = wealth.max()
        return float(top + np.log(np.mean(np.exp(wealth - top)))) if top > -math.inf else -math.inf


def _null_above(thresholds: Floats, dim: int | None) -> Floats:
    """P(score > threshold) of an unobserved canary: N(0, 1), or √dim times a cosine."""
    if dim is None:
        return np.asarray(scipy.special.ndtr(-thresholds))
    half = (dim - 1) / 2
    return np.asarray(scipy.special.betainc(half, half, (1 - thresholds / math.sqrt(dim)) / 2))


def watch_claim(
    scores: Iterable[float],
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    dim: int | None = None,
) -> WatchedEvidence:
    """Look at one score after the other, until they disprove the claim or end.

    Args:
        scores: of independent canaries that took part, in an order that does not depend on them;
            each N(0, 1) for one that did not. A generator is not asked for more than is needed.
        epsilon: the claim, in nats.
        delta: δ of the claim, in [0, 1).
        confidence: a true claim is called violated at any score with probability at most 1 − this.
        dim: if the scores are √dim·cosines with one vector, their dimension.

    Raises:
        ValueError: if an argument is out of range, or a score is not finite.
        NotMeasured: a `ValueError`, if all scores are 0.
    """
    if delta != 0:
        check_probability("delta", delta)
    check_probability("confidence", confidence)
    if not 0 <= epsilon < math.inf:
        raise_invalid("epsilon", epsilon, "in [0, inf)")
    watcher = _Betting(delta, 1 - confidence, dim)
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
        lower_bound=watcher.bound(),
        used=used,
        ceiling=watcher.ceiling(),
        violated=violated,
    )


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
    stop_early: bool = False,
) -> Evidence | WatchedEvidence:
    """Fail if a run disproves the claim that it was (ε, δ)-DP; passing does not prove it.

    With ``stop_early`` the scores are looked at one by one, and no more of them than it takes to
    disprove the claim (`watch_claim`); 1 − ``confidence`` is then the probability that a true claim
    is called violated at any of them. Without it they are looked at once, all together.

    Args:
        run: as in `find_evidence`. With ``stop_early`` also any iterable of scores, such as a
            generator that makes one canary after the other; each score N(0, 1) for a canary that
            took no part. `Scores` need such a null too. A record's canaries come by their numbers.
        epsilon: as in `find_evidence`.
        delta: as in `find_evidence`.
        confidence: as in `find_evidence`.
        adversary: as in `find_evidence`.
        method: as in `find_evidence`; only without ``stop_early``.
        stop_early: look after every score.

    Returns:
        The evidence of `find_evidence`, or that of `watch_claim`.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        ValueError, TypeError: as `find_evidence`; if so few scores cannot disprove the claim; and
            if a method that assumes Gaussian noise would, and the scores refute that.
    """
    evidence: Evidence | WatchedEvidence
    if stop_early:
        if method is not None:
            raise_invalid("method", method, "only for one look at all scores, not with stop_early")
        found, dim = _one_by_one(run, adversary)
        evidence = watch_claim(found, epsilon, delta, confidence, dim=dim)
        if evidence.violated:
            raise AssertionError(str(evidence))
        scores, how = str(evidence.used), "betting"
    else:
        evidence = find_evidence(
            run, epsilon, delta, confidence, adversary=adversary, method=method
        )
        if evidence.violated or evidence.faults:
            raise AssertionError(str(evidence))
        if evidence.refuted and evidence.lower_bound > epsilon:
            raise_invalid(
                "method",
                evidence.method,
                f"to go with Gaussian scores: Anderson–Darling has p = {evidence.gaussian_p:.2g}. "
                "Leave out method, for a bound without that assumption",
            )
        scores, how = f"{evidence.observed} + {evidence.unobserved}", evidence.method
    if evidence.ceiling <= epsilon:
        raise_invalid(
            "epsilon",
            epsilon,
            f"< {evidence.ceiling:.4g}, the largest bound that {scores} scores can give with "
            f"{how!r}. Use more canaries (or trials), or method='gdp' if the noise is Gaussian",
        )
    return evidence


def _one_by_one(run: object, adversary: Adversary | None) -> tuple[Iterable[float], int | None]:
    """Scores in an order that does not depend on them, and the dimension of their exact null."""
    found = found_in(run)
    if isinstance(found, AuditRecord):
        found = scores_of(found, adversary)
    if not isinstance(found, Scores):
        if isinstance(found, Iterable) and not isinstance(found, str | bytes):
            return found, None
        raise TypeError(
            f"Expected run of type {type(found).__name__} to be scores one by one, Scores, an "
            "AuditRecord, or an object with record()."
        )
    if not found.standard_null:
        others = 0 if found.unobserved is None else found.unobserved.size
        raise_invalid(
            "dim",
            None,
            "to be the dimension of cosines for stop_early=True, as their null must be known: "
            f"{found.observed.size} observed and {others} unobserved {found.statistic} are "
            "compared all at once. Leave out stop_early, or give cosines with their dim",
        )
    return found.observed.tolist(), found.dim
