"""A privacy claim as a test: ``assert_private(run, epsilon, delta)``.

A failure disproves the claim at the given confidence and under the stated assumption. Passing does
not prove the claim: a better attack may get further. A true claim fails with probability at most
1 − confidence, so for 1% over a whole test suite use ``confidence=1 - 0.01 / tests``. This holds
only if a failed test is not repeated until it passes, and if the method is chosen in advance.
Methods without an assumption show gross violations only; "gdp" and "mean" show finer ones, if the
noise is Gaussian.

Examples:
    >>> rng = np.random.default_rng(0)
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=50)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5, method="gdp").violated
    False
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.bounds.by_name import BOUNDS, COIN_METHODS, NEED_GAUSSIAN, lower_bound
from fl_epe.auditing.bounds.error_rates import FloatArray
from fl_epe.auditing.bounds.lifted import lifted_lower_bound
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import epsilon_from_record, epsilon_of
from fl_epe.auditing.games import fixed, of_function, play_game, replaced_by
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores, pool
from fl_epe.auditing.statistics import scores_for_claim
from fl_epe.auditing.watched_claims import WatchedEvidence, watch_claim
from fl_epe.checks import check_probability

_ENDS = "epsilon", "low", "high"
_MOST_K_DELTA = 0.05  # "weighted" is the sharper bound up to this number of canaries times δ


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What an audit says about a claim of (ε, δ)-DP; ``str`` gives a short report.

    Attributes:
        claimed: the claimed ε in nats.
        delta: δ of the claim.
        confidence: of the lower bound (one-sided) and of the estimate's interval (two-sided).
        lower_bound: the true ε exceeds this, at that confidence and under the assumption.
        method: of the lower bound.
        assumption: of the lower bound, besides independent scores.
        estimate: the ε that the attack measured; not a proof.
        observed: number of observed scores.
        unobserved: number of unobserved scores; 0 with the exact null.
        statistic: the scores' statistic, in words.
        ceiling: the largest lower bound that this many scores can give.
        faults: how the run was seen to differ from what its privacy accounting assumes, as by
            `fl_epe.dp_sgd.audit_dp_sgd`.
    """

    claimed: float
    delta: float
    confidence: float
    lower_bound: float
    method: str
    assumption: str
    estimate: EpsilonEstimate
    observed: int
    unobserved: int
    statistic: str
    ceiling: float
    faults: tuple[str, ...] = ()

    @property
    def violated(self) -> bool:
        """Whether the claim is disproved."""
        return self.lower_bound > self.claimed

    def __str__(self) -> str:
        share, found = f"{100 * self.confidence:.6g}%", self.estimate
        interval = f"{found.low:.4g} to {found.high:.4g}"
        others = f"{self.unobserved} unobserved" if self.unobserved else "the exact null"
        limit = f"not violated; so many scores can show at most ε ≥ {self.ceiling:.4g}"
        faults = "".join(f"fault     {fault}\n" for fault in self.faults)
        return faults + (
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n"
            f"measured  ε = {found.epsilon:.4g}, {share} interval {interval} ({found.method})\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {share} confidence by {self.method!r}, "
            f"assuming {self.assumption}\n"
            f"scores    {self.observed} observed against {others}: {self.statistic}\n"
            f"verdict   {'violated' if self.violated else limit}"
        )


def scores_of(run: object) -> Scores:
    """The scores by which a run is tested.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable without
            arguments that returns one of these. The scores of a record are the matched filter; if
            no canary took part more than once, they are cosines and their null is exact. Where
            coins drew the rounds they are those of `scores_for_claim`, at unknown rounds.

    Raises:
        ValueError: if there are too few canaries, or neither unobserved scores nor an exact null.
        TypeError: if ``run`` is of another type.
    """
    found = _found(run)
    if isinstance(found, AuditRecord):
        return _scores_of_record(found)
    if not isinstance(found, Scores):
        kinds = "Scores, an AuditRecord, an object with record(), or a callable returning these"
        raise TypeError(f"Expected run of type {type(found).__name__} to be {kinds}.")
    if not found.boundable:
        raise ValueError("Expected unobserved scores, or cosines with their dim, got dim=None.")
    return found


def _found(run: object) -> object:
    found = run() if callable(run) and not hasattr(run, "record") else run
    return record() if callable(record := getattr(found, "record", None)) else found


def find_evidence(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    method: str | None = None,
) -> Evidence:
    """What a run says about the claim that it was (ε, δ)-DP.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable giving one; or
            a list of these from independent runs of one mechanism, for the bound "lifted", which
            counts each run as one trial (`lifted_lower_bound`).
        epsilon: the claim, in nats, at least 0; infinite if nothing is claimed.
        delta: δ of the claim, in (0, 1).
        confidence: a true claim is called violated with probability at most 1 − this.
        method: a valid one of `BOUNDS`, chosen before the scores are seen; by default "weighted"
            for up to 0.05 / δ observed canaries, where it is sharper, else "clopper-pearson".

    Raises:
        ValueError, TypeError: if an argument is out of range, or the run has no such scores.
    """
    _check_claim(epsilon, delta, confidence, method)
    if isinstance(run, list | tuple):
        return _evidence_of_runs(run, epsilon, delta, confidence, method)
    run = _found(run)
    scores = scores_of(run)
    method = method or _default_method(scores, delta)
    if scores.statistic == UNKNOWN_ROUNDS and method in NEED_GAUSSIAN:
        raise ValueError(
            f"Expected method={method!r} to be one for scores of any distribution, such as"
            f" 'weighted': {UNKNOWN_ROUNDS} are not Gaussian."
        )
    bound = functools.partial(lower_bound, delta=delta, confidence=confidence, method=method)
    return Evidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        lower_bound=bound(scores),
        method=method,
        assumption=BOUNDS[method].assumption,
        estimate=_estimate(run, scores, delta, confidence),
        observed=scores.observed.size,
        unobserved=_compared_with(scores, method),
        statistic=scores.statistic,
        ceiling=ceiling(scores, delta, confidence, method),
        faults=scores.faults,
    )


def _estimate(run: object, scores: Scores, delta: float, confidence: float) -> EpsilonEstimate:
    """Of the adversary whose scores these are."""
    if isinstance(run, AuditRecord) and scores.statistic == UNKNOWN_ROUNDS:
        how = {"threat": "all", "statistic": "likelihood-ratio", "confidence": confidence}
        return epsilon_from_record(run, delta, **how)  # type: ignore[arg-type]
    return epsilon_of(scores, delta, confidence=confidence)


def ceiling(scores: Scores, delta: float, confidence: float, method: str) -> float:
    """The largest lower bound that this many scores can give: that of a perfect attack.

    Args:
        scores: of which the numbers and the null count.
        delta: target δ in (0, 1).
        confidence: one-sided.
        method: a key of `BOUNDS`.
    """
    return _ceiling(*_numbers(scores), delta, confidence, method)


@functools.lru_cache(maxsize=256)  # many reports are of runs with as many canaries
def _ceiling(
    observed: int, unobserved: int, dim: int | None, delta: float, confidence: float, method: str
) -> float:
    perfect = _telling_all(observed, unobserved, dim)
    return lower_bound(perfect, delta, confidence=confidence, method=method)


def _evidence_of_runs(
    runs: Sequence[object], epsilon: float, delta: float, confidence: float, method: str | None
) -> Evidence:
    """What independent runs say, each counted as one trial."""
    if method not in (None, "lifted"):
        raise ValueError(f"Expected method={method!r} to be 'lifted', as there are several runs.")
    if not runs:
        raise ValueError("Expected run=[] to hold at least one run.")
    runs = [_found(run) for run in runs]
    found = [scores_of(run) for run in runs]
    bound = functools.partial(lifted_lower_bound, delta=delta, confidence=confidence)
    pooled = pool(found)
    each = [_estimate(run, one, delta, confidence) for run, one in zip(runs, found, strict=True)]
    ends = {name: float(np.mean([getattr(e, name) for e in each])) for name in _ENDS}
    mean = dataclasses.replace(each[0], **ends)  # type: ignore[arg-type]
    return Evidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        lower_bound=bound(found),
        method="lifted",
        assumption=f"{len(runs)} independent runs; {BOUNDS['lifted'].assumption}",
        estimate=mean
        if pooled.statistic == UNKNOWN_ROUNDS
        else epsilon_of(pooled, delta, confidence=confidence),
        observed=pooled.observed.size,
        unobserved=_compared_with(pooled, "lifted"),
        statistic=pooled.statistic,
        ceiling=bound([_telling_all(*_numbers(scores)) for scores in found]),
        faults=tuple(dict.fromkeys(fault for scores in found for fault in scores.faults)),
    )


def _check_claim(epsilon: float, delta: float, confidence: float, method: str | None) -> None:
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon={epsilon} >= 0.")
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    valid = [name for name, bound in BOUNDS.items() if bound.valid]
    if method not in (None, *valid):
        raise ValueError(f"Expected method={method!r} to be valid, one of {', '.join(valid)}.")


def _default_method(scores: Scores, delta: float) -> str:
    return "weighted" if scores.observed.size * delta <= _MOST_K_DELTA else "clopper-pearson"


def _compared_with(scores: Scores, method: str) -> int:
    """Number of unobserved scores that a bound uses; 0 with the exact null."""
    exact = scores.dim is not None and method not in COIN_METHODS
    return 0 if exact or scores.unobserved is None else scores.unobserved.size


@overload
def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    method: str | None = None,
    stop_early: Literal[False] = False,
    planned: float | None = None,
) -> Evidence: ...


@overload
def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    method: str | None = None,
    stop_early: Literal[True],
    planned: float | None = None,
) -> WatchedEvidence: ...


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    method: str | None = None,
    stop_early: bool = False,
    planned: float | None = None,
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
        method: as in `find_evidence`; with ``stop_early`` "betting" (the default; any distribution)
            or "mean" (Gaussian scores).
        stop_early: look after every score.
        planned: with ``stop_early``, how many scores there will be, if ``run`` does not say.

    Returns:
        The evidence of `find_evidence`, or that of `watch_claim`.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        ValueError, TypeError: as `find_evidence`; and if so few scores cannot disprove the claim.
    """
    if stop_early:
        return _assert_watched(run, epsilon, delta, confidence, method, planned)
    if planned is not None:
        raise ValueError(f"Expected no planned={planned} without stop_early=True.")
    evidence = find_evidence(run, epsilon, delta, confidence, method=method)
    if evidence.violated or evidence.faults:
        raise AssertionError(str(evidence))
    if evidence.ceiling <= epsilon:
        raise ValueError(
            f"Expected epsilon={epsilon} < {evidence.ceiling:.4g}, the largest bound that "
            f"{evidence.observed} + {evidence.unobserved} scores can give with "
            f"method={evidence.method!r}. Use more canaries (or trials), or method='gdp' or 'mean' "
            "if the noise is Gaussian."
        )
    return evidence


def _assert_watched(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float,
    method: str | None,
    planned: float | None,
) -> WatchedEvidence:
    scores, dim = _one_by_one(run)
    evidence = watch_claim(
        scores, epsilon, delta, confidence, method=method, planned=planned, dim=dim
    )
    if evidence.violated:
        raise AssertionError(str(evidence))
    if evidence.ceiling <= epsilon:
        raise ValueError(
            f"Expected epsilon={epsilon} < {evidence.ceiling:.4g}, the largest bound that "
            f"{evidence.used} scores can give with method={evidence.method!r}. Use more canaries "
            "(or trials), or method='mean' if the noise is Gaussian."
        )
    return evidence


def _one_by_one(run: object) -> tuple[Iterable[float], int | None]:
    """Scores in an order that does not depend on them, and the dimension of their exact null."""
    found = _found(run)
    if isinstance(found, AuditRecord):
        found = found.in_order()
        last = [np.flatnonzero(rounds)[-1] for rounds in found.presence.T if rounds.any()]
        scores = _scores_of_record(found)
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
        raise ValueError(
            f"Expected scores with a known null for stop_early=True, got {scores.observed.size} "
            f"observed and {others} unobserved {scores.statistic} with dim=None. Two groups are "
            "compared all at once: leave out stop_early, or give cosines with their dim."
        )
    if scores.null is not None:
        width, count = scores.null
        raise ValueError(
            f"Expected scores with a known null for stop_early=True, but the {count} unobserved "
            f"ones of this run are {width:.3g} times as wide as N(0, 1), and their width is only "
            "measured: leave out stop_early."
        )


def play(
    aggregate: Callable[[list[FloatArray]], ArrayLike],
    updates: Sequence[ArrayLike],
    canary: ArrayLike,
    *,
    trials: int,
    baseline: ArrayLike | None = None,
    seed: int = 0,
) -> Scores:
    """Scores of the one-round membership game for an aggregation function.

    The smallest case of `fl_epe.auditing.games.play_game`: it audits one step (Nasr et al. 2023,
    Tramèr et al. 2022). ``aggregate`` gets the updates and, in
    random order, the canary or the baseline; it must draw fresh noise in every call.

    Args:
        aggregate: from n + 1 updates, each of shape (d,), to what is released, shape (d,).
        updates: of the other clients, n ≥ 0 of shape (d,).
        canary: the update to hide, shape (d,); scores are inner products with its direction.
        trials: number of calls with the canary, and without it, at least 2; none may affect others.
        baseline: replaces an absent canary, shape (d,); zeros by default (zero-out adjacency).
        seed: of the order of calls.

    Raises:
        ValueError: for a wrong shape, a value that is not finite, or an argument out of range.
    """
    if trials < 2:
        raise ValueError(f"Expected trials={trials} >= 2.")
    present = _vector("canary", canary)
    if not (norm := float(np.linalg.norm(present))):
        raise ValueError(f"Expected canary of norm={norm} > 0, with some entry that is not 0.")
    absent = _vector("baseline", 0 * present if baseline is None else baseline, present.size)
    others = [_vector(f"updates[{i}]", vector, present.size) for i, vector in enumerate(updates)]

    def release(vectors: list[FloatArray]) -> FloatArray:
        return _vector("aggregate(...)", aggregate(vectors), present.size)

    return play_game(
        of_function(release),
        replaced_by(absent),
        fixed(present),
        observations=trials,
        others=others,
        seed=seed,
    )


def _scores_of_record(record: AuditRecord) -> Scores:
    taken, unobserved = record.presence.sum(axis=0), record.unobserved.count
    if (participants := int(np.count_nonzero(taken))) < 2:
        reason = record.provenance.config.get("not_measured")
        why = f": {reason}" if reason else "."
        raise ValueError(f"Expected {participants=} >= 2 among the canaries{why}")
    faults = tuple(record.provenance.config.get("step_faults") or ())
    scores = dataclasses.replace(scores_for_claim(record.in_order()), faults=faults)
    if not scores.boundable:
        most = f"a canary took part {taken.max()} times"
        raise ValueError(f"Expected {unobserved=} >= 2, as {most}.")
    # No coins decided who took part, and the exact null needs no unobserved canaries.
    return scores if scores.dim is None else dataclasses.replace(scores, unobserved=None)


def _numbers(scores: Scores) -> tuple[int, int, int | None]:
    """How many are observed and unobserved, and their dimension."""
    count = 0 if scores.unobserved is None else scores.unobserved.size
    return scores.observed.size, count, scores.dim


def _telling_all(observed: int, unobserved: int, dim: int | None) -> Scores:
    """So many scores of a perfect attack; not all equal, as equal scores give a bound of 0."""
    null = np.linspace(0.0, 0.5, unobserved) if unobserved else None
    if dim is not None:
        return Scores.from_cosines(np.append(np.ones(observed - 1), 1 - 1e-15), dim, null)
    return Scores(np.full(observed, 1e150), None if null is None else 2 * null)


def _vector(name: str, values: ArrayLike, size: int | None = None) -> FloatArray:
    vector = np.array(values, np.float64)
    if vector.ndim != 1 or size not in (None, vector.size) or not np.all(np.isfinite(vector)):
        raise ValueError(f"Expected {name}.shape={vector.shape} to be ({size or 'd'},), finite.")
    return vector
