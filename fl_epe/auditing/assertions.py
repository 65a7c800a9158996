"""A privacy claim as a test: ``assert_private(run, epsilon, delta)``.

A failure disproves the claim at the given confidence and under the stated assumption. Passing does
not prove the claim: a better attack may get further. A true claim fails with probability at most
1 − confidence, so for 1% over a whole test suite use ``confidence=1 - 0.01 / tests``. This holds
only if a failed test is not repeated until it passes, and if the method is chosen in advance.

Examples:
    >>> from fl_epe.auditing.games import play
    >>> rng = np.random.default_rng(0)
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=50)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5, method="gdp").violated
    False
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fl_epe.auditing.evidence import Evidence, find_evidence, found_in, scores_of_record
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import Scores
from fl_epe.auditing.watched_claims import WatchedEvidence, watch_claim
from fl_epe.checks import raise_invalid


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
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
            took no part. `Scores` need such a null too. A record's canaries come in the order of
            their last rounds.
        epsilon: as in `find_evidence`.
        delta: as in `find_evidence`.
        confidence: as in `find_evidence`.
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
        found, dim = _one_by_one(run)
        evidence = watch_claim(found, epsilon, delta, confidence, dim=dim)
        if evidence.violated:
            raise AssertionError(str(evidence))
        scores, how = str(evidence.used), "betting"
    else:
        evidence = find_evidence(run, epsilon, delta, confidence, method=method)
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


def _one_by_one(run: object) -> tuple[Iterable[float], int | None]:
    """Scores in an order that does not depend on them, and the dimension of their exact null."""
    found = found_in(run)
    if isinstance(found, AuditRecord):
        found = found.in_order()
        last = [np.flatnonzero(rounds)[-1] for rounds in found.presence.T if rounds.any()]
        scores = scores_of_record(found)
        _check_watchable(scores)
        return scores.observed[np.argsort(last, kind="stable")].tolist(), scores.dim
    if isinstance(found, Scores):
        _check_watchable(found)
        return found.observed.tolist(), found.dim
    if isinstance(found, Iterable) and not isinstance(found, str | bytes):
        return found, None
    kinds = "scores one by one, Scores, an AuditRecord, or an object with record()"
    raise TypeError(f"Expected run of type {type(found).__name__} to be {kinds}.")


def _check_watchable(scores: Scores) -> None:
    """Refuse scores that cannot be looked at one by one, as their null is not N(0, 1)."""
    if not scores.standard_null:
        others = 0 if scores.unobserved is None else scores.unobserved.size
        raise_invalid(
            "dim",
            None,
            "to be the dimension of cosines for stop_early=True, as their null must be known: "
            f"{scores.observed.size} observed and {others} unobserved {scores.statistic} are "
            "compared all at once. Leave out stop_early, or give cosines with their dim",
        )
