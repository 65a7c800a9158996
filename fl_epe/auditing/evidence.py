"""What a run says about a claim of (ε, δ)-DP: a lower bound, what it assumes, an estimate.

`assert_private` makes a test of a claim. A failure disproves the claim at the given confidence and
under the stated assumption. Passing does not prove it: a better attack may get further. A true
claim fails with probability at most 1 − confidence, so for 1% over a whole test suite use
``confidence=1 - 0.01 / tests``. This holds only if a failed test is not repeated until it passes,
and if the method is chosen in advance.

Methods without an assumption show gross violations only; "gdp" shows finer ones, if the noise
is Gaussian. Scores that are not Gaussian refute that, and then nothing is called violated;
too few cannot, so the evidence says what it assumes.

Examples:
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(5, 1, 200), rng.normal(0, 1, 200))
    >>> find_evidence(scores, epsilon=1.0, delta=1e-5).violated
    True
    >>> from fl_epe.auditing.games import play
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=50)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5, method="gdp").violated
    False
"""

import dataclasses

import numpy as np

from fl_epe.auditing.answer import answer
from fl_epe.auditing.assumptions import gaussian_test
from fl_epe.auditing.audited_client import AuditedClient, claim_adversary
from fl_epe.auditing.bounds import BOUNDS, ceiling, lower_bound, method_by_design
from fl_epe.auditing.bounds.error_rates import normal_scores
from fl_epe.auditing.claim_scores import scores_for_claim
from fl_epe.auditing.epsilon_estimate import Adversary, EpsilonEstimate
from fl_epe.auditing.estimators import epsilon_of
from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores, in_moderate_units
from fl_epe.checks import check_probability, raise_invalid


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
        estimate: the ε that the attack measured; not a proof. ``None`` at δ = 0, or if none was.
        observed: number of observed scores.
        unobserved: number of unobserved scores; 0 with the exact null.
        statistic: the scores' statistic, in words.
        ceiling: the largest lower bound that this many scores can give.
        gaussian_p: p-value of the Anderson–Darling test, for a method that assumes Gaussian noise;
            ``None`` for another, or if there are too few scores.
        faults: how the run was seen to differ from what its privacy accounting assumes, as by
            `fl_epe.dp_sgd.audit_dp_sgd`.
        adversary: of the claim, the bound and the estimate; ``None`` for bare scores.
        participations: of the client that the claim covers; ``None`` for bare scores.
    """

    claimed: float
    delta: float
    confidence: float
    lower_bound: float
    method: str
    assumption: str
    estimate: EpsilonEstimate | None
    observed: int
    unobserved: int
    statistic: str
    ceiling: float
    gaussian_p: float | None = None
    faults: tuple[str, ...] = ()
    adversary: Adversary | None = None
    participations: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether the scores refute that the noise is Gaussian, at the same confidence."""
        return self.gaussian_p is not None and self.gaussian_p < 1 - self.confidence

    @property
    def violated(self) -> bool:
        """Whether the claim is disproved, under an assumption that is not refuted."""
        return self.lower_bound > self.claimed and not self.refuted

    def _result(self) -> str:
        tested = f" (Anderson–Darling: p = {self.gaussian_p:.2g})" if self.gaussian_p else ""
        if self.refuted:
            return f"not tested: the scores are not Gaussian{tested}"
        if not self.violated:
            return f"not violated; so many scores can show at most ε ≥ {self.ceiling:.4g}"
        gaussian = BOUNDS[self.method].gaussian
        return "violated" + (f", if the noise is Gaussian{tested}" if gaussian else "")

    def _of_whom(self) -> str:
        if self.adversary is None:
            return ""
        times = "once" if self.participations == 1 else f"{self.participations:.3g} times"
        rounds = f"{times}, and the adversary knows when"
        if not self.adversary.knows_rounds:
            rounds = f"{times} on average, and the adversary does not know when"
        sees = "the final model is" if self.adversary.sees == "final" else "every round's model is"
        return f"covers    whoever takes part {rounds}; {sees} seen\n"

    def __str__(self) -> str:
        share, found = f"{100 * self.confidence:.6g}%", self.estimate
        measured = "not measured"
        if found is not None:
            measured = f"ε = {found.epsilon:.4g}, {share} interval {found.low:.4g} to "
            measured += f"{found.high:.4g} ({found.method})"
        elif not self.delta:
            measured += ": Gaussian noise has no finite ε at δ = 0"
        others = f"{self.unobserved} unobserved" if self.unobserved else "the exact null"
        faults = "".join(f"fault     {fault}\n" for fault in self.faults)
        return faults + (
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n{self._of_whom()}"
            f"measured  {measured}\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {share} confidence by {self.method!r}, "
            f"assuming {self.assumption}\n"
            f"scores    {self.observed} observed against {others}: {self.statistic}\n"
            f"result    {self._result()}"
        )


def scores_of(run: object, adversary: Adversary | None = None) -> Scores:
    """The scores by which a run is tested.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable without
            arguments that returns one of these. A record's are those of `scores_for_claim`.
        adversary: of the claim, for a record.

    Raises:
        ValueError: if a record has neither unobserved canaries nor an exact null.
        NotMeasured: a `ValueError`, if too few canaries took part.
        TypeError: if ``run`` is of another type.
    """
    found = _found_in(run)
    if not isinstance(found, AuditRecord):
        if not isinstance(found, Scores):
            kinds = "Scores, an AuditRecord, an object with record(), or a callable returning these"
            raise TypeError(f"Expected run of type {type(found).__name__} to be {kinds}.")
        if adversary is not None:
            wanted = "for a record alone: scores do not say who sees what"
            raise_invalid("adversary", adversary, wanted)
        return found
    scores = scores_for_claim(found, adversary)
    if not scores.boundable:
        wanted = f">= 2, as a canary took part {found.presence.sum(axis=0).max()} times"
        raise_invalid("unobserved", found.unobserved.count, wanted)
    return scores


def _found_in(run: object) -> object:
    """What a run is, after calls: `Scores`, an `AuditRecord`, or something else."""
    found = run() if callable(run) and not hasattr(run, "record") else run
    return record() if callable(record := getattr(found, "record", None)) else found


def find_evidence(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
) -> Evidence:
    """What a run says about the claim that it was (ε, δ)-DP.

    A claim about a record covers the client that takes part most often. Canaries that take part
    more often, or are heavier than any client, do not count.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable giving one.
        epsilon: the claim, in nats, at least 0; infinite if nothing is claimed.
        delta: δ of the claim, in [0, 1); above 0 for methods that assume Gaussian noise.
        confidence: a true claim is called violated with probability at most 1 − this.
        adversary: of a claim about a record: by default the one of privacy accounting, who sees
            every round's model and knows a client's rounds, unless sampling hides them.
        method: a valid one of `BOUNDS`, chosen before the scores are seen; by default the one that
            suits the number of scores and δ (`method_by_design`).

    Raises:
        ValueError, TypeError: if an argument is out of range, or the run has no such scores.
        NotMeasured: a `ValueError`, if all scores are equal, or have no spread and the method
            assumes Gaussian ones.
    """
    if not epsilon >= 0:
        raise_invalid("epsilon", epsilon, ">= 0")
    check_probability("confidence", confidence)
    valid = [name for name, bound in BOUNDS.items() if bound.valid]
    if method not in (None, *valid):
        raise_invalid("method", method, f"to be valid, one of {', '.join(valid)}")
    BOUNDS[method or "weighted"].check_delta(delta)
    run = _found_in(run)
    scores = scores_of(run, adversary)
    method = method or method_by_design(scores, delta, confidence) or "clopper-pearson"
    if scores.statistic == UNKNOWN_ROUNDS and BOUNDS[method].gaussian:
        wanted = "to be one for scores of any distribution, such as 'weighted'"
        raise_invalid("method", method, f"{wanted}: {UNKNOWN_ROUNDS} are not Gaussian")
    _check_measured(scores, method)
    lower = lower_bound(scores, delta, confidence=confidence, method=method)
    estimate, participations, faults = None, None, tuple[str, ...]()
    if isinstance(run, AuditRecord):
        faults = run.findings.step_faults
        adversary = adversary or claim_adversary(run)
        client = AuditedClient.of(run, adversary, most=True)
        participations = client.participations
        if delta:
            estimate = answer(run, adversary, delta, confidence, client).estimate
    elif delta:
        estimate = epsilon_of(scores, delta, confidence=confidence)
    return Evidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        lower_bound=lower,
        method=method,
        assumption=BOUNDS[method].assumption,
        estimate=estimate,
        observed=scores.observed.size,
        unobserved=_compared_with(scores, method),
        statistic=scores.statistic,
        ceiling=ceiling(scores, delta, confidence, method),
        gaussian_p=_gaussian_p(scores, method) if BOUNDS[method].gaussian else None,
        faults=faults,
        adversary=adversary,
        participations=participations,
    )


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
) -> Evidence:
    """Fail if a run disproves the claim that it was (ε, δ)-DP; passing does not prove it.

    Arguments are those of `find_evidence`, whose evidence is returned.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        ValueError, TypeError: as `find_evidence`; if so few scores cannot disprove the claim; and
            if a method that assumes Gaussian noise would, and the scores refute that.
    """
    found = find_evidence(run, epsilon, delta, confidence, adversary=adversary, method=method)
    if found.violated or found.faults:
        raise AssertionError(str(found))
    if found.refuted and found.lower_bound > epsilon:
        wanted = f"to go with Gaussian scores: Anderson–Darling has p = {found.gaussian_p:.2g}. "
        wanted += "Leave out method, for a bound without that assumption"
        raise_invalid("method", found.method, wanted)
    if found.ceiling <= epsilon:
        wanted = f"< {found.ceiling:.4g}, the largest bound that {found.observed} + "
        wanted += f"{found.unobserved} scores can give with {found.method!r}. Use more canaries "
        raise_invalid(
            "epsilon", epsilon, f"{wanted}(or trials), or method='gdp' if the noise is Gaussian"
        )
    return found


def _check_measured(scores: Scores, method: str) -> None:
    """Refuse scores without any spread, unless observed ones are larger by a bound for any law."""
    others = scores.unobserved if _compared_with(scores, method) else None
    first, null = scores.observed[0], 0.0 if others is None else others[0]
    flat = np.ptp(scores.observed) == 0 and (others is None or np.ptp(others) == 0)
    if flat and first <= null:
        rest = "" if others is None else f" and {null:.4g} for every unobserved one"
        raise NotMeasured(
            f"the score ({scores.statistic}) is {first:.4g} for every observed canary{rest}: no "
            "canary reached what was released, or the statistic cancels it"
        )
    if flat and BOUNDS[method].gaussian:
        why = f"scores without any spread are no Gaussian ones, as method={method!r} assumes; "
        raise NotMeasured(f"{why}leave out method, for a bound without that assumption")


def _gaussian_p(scores: Scores, method: str) -> float | None:
    """p-value of scores that are Gaussian with one variance, from all less their group's mean."""
    if _compared_with(scores, method):
        groups = in_moderate_units(*scores.both())
    else:
        groups = (normal_scores(scores.cosines, scores.dim or 2),)
    if all(np.ptp(group) == 0 for group in groups):
        return None
    fit = gaussian_test(np.concatenate([group - group.mean() for group in groups]))
    return None if fit is None else fit.p_value


def _compared_with(scores: Scores, method: str) -> int:
    """Number of unobserved scores that a bound uses; 0 with the exact null."""
    exact = scores.dim is not None and not BOUNDS[method].needs_coins
    return 0 if exact or scores.unobserved is None else scores.unobserved.size
