"""Two tests of a claim of (ε, δ)-DP by a run, with their assumptions and their power.

`assert_private` fails if one of the tests refutes the claim. The first test refutes it if the
interval of the estimated ε is above the claim, and if the laws that the estimate assumes hold
in the run (`fl_epe.auditing.claims.laws`). The second test refutes it if a lower bound on ε is
above the claim. Each test has half of the level 1 − confidence, so a true claim fails with
probability at most 1 − confidence. For 1% over a whole test suite use
``confidence=1 - 0.01 / tests``. These levels hold only if a failed test is not repeated until it
passes, and if the method of the lower bound is chosen in advance.

A claim that is not refuted is not proved, as a better attack may find a larger ε. The claim passes
only if an ε twice as large would probably have been found. Otherwise `assert_private` raises
`Undecided`.

Examples:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(5, 1, 200), rng.normal(0, 1, 200))
    >>> find_evidence(scores, epsilon=1.0, delta=1e-5).verdict
    'violated'
    >>> from fl_epe.conformance.games import play
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=1000)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5).verdict
    'not violated'
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, assert_never

from fl_epe.auditing.answer import (
    AuditedClient,
    analytical,
    answer,
    claim_adversary,
    scores_for_claim,
)
from fl_epe.auditing.bounds import (
    BOUNDS,
    lower_bound,
    method_by_design,
)
from fl_epe.auditing.claims.laws import (
    MIN_POWER,
    LawTest,
    epsilon_of_one_variance,
    laws_of_record,
    laws_of_scores,
    num_unobserved,
    power_of_answer,
    power_of_bound,
    power_of_estimate,
)
from fl_epe.auditing.estimate import Adversary, EpsilonEstimate
from fl_epe.auditing.record import AuditRecord, Findings, NotMeasured
from fl_epe.auditing.scoring import UNKNOWN_ROUNDS, Scores
from fl_epe.checks import (
    all_equal,
    check_not_negative,
    check_probability,
    raise_invalid,
)
from fl_epe.wording import how_often

_NO_GAUSSIAN_EPSILON = "Gaussian noise has no finite ε at δ = 0"

Verdict = Literal[
    "violated", "faulty", "not judged", "undecided", "not violated"
]
"""The result of an audit of a claim: the first of these that applies.

"violated" means refuted, "faulty" that the run has faults, "not judged" that an assumption of
the claim was not observed, and "undecided" that the tests have too little power.
"""


class Undecided(ValueError):  # noqa: N818 - a result: the claim is neither refuted nor tested
    """The scores are too few, or too little of the run was observed, to test the claim."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The result of an audit of a claim of (ε, δ)-DP; ``str`` gives a short report.

    Attributes:
        claimed: the claimed ε in nats.
        delta: δ of the claim.
        confidence: c. A true claim is called violated with probability at most 1 − c. It is
            the two-sided confidence of the estimate's interval, whose lower end tests the claim
            at half of the level. The lower bound tests it at the other half.
        lower_bound: the lower bound on the true ε, under the assumption.
        method: the method of the lower bound.
        assumption: the assumption of the lower bound, besides independent scores.
        estimate: the ε that the attack measured, which is no proof; ``None`` at δ = 0, or if
            nothing was measured.
        observed: number of observed scores.
        unobserved: number of unobserved scores; 0 with the exact null.
        statistic: the scores' statistic, in words.
        laws: tests of the laws that the estimate assumes.
        power: probability that the claim is called violated if the true ε is twice the claim;
            ``None`` if the claim is violated or infinite, or if the power was not computed.
        faults: deviations of the run from what its privacy accounting assumes, for example from
            `fl_epe.dp_sgd.audit_dp_sgd`.
        unseen: assumptions of the accounting that were not observed.
        adversary: the adversary of the claim, the bound and the estimate; ``None`` for bare
            scores.
        participations: participations of the client that the claim covers; ``None`` for bare
            scores.
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
    laws: LawTest
    power: float | None = None
    faults: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    adversary: Adversary | None = None
    participations: float | None = None

    @property
    def proof_confidence(self) -> float:
        """One-sided confidence of the lower bound."""
        return (1 + self.confidence) / 2

    @property
    def refuted_by_bound(self) -> bool:
        """Whether the lower bound refutes the claim.

        A bound that assumes Gaussian noise refutes nothing if the scores may not be Gaussian.
        """
        if BOUNDS[self.method].gaussian and self.laws.objection:
            return False
        return self.lower_bound > self.claimed

    @property
    def refuted_by_estimate(self) -> bool:
        """Whether the estimate refutes the claim: its interval is above, and its laws hold."""
        estimate = self._reliable_estimate
        return estimate is not None and estimate.low > self.claimed

    @property
    def _reliable_estimate(self) -> EpsilonEstimate | None:
        """The estimate; ``None`` if a law that it assumes was rejected or not tested."""
        if self.laws.objection:
            return None
        return self.estimate

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.refuted_by_bound or self.refuted_by_estimate

    @property
    def undecided_reason(self) -> str:
        """Why the claim is neither refuted nor tested, as a clause; empty if it is either."""
        if self.violated:
            return ""
        estimate = self._reliable_estimate
        if estimate is not None and estimate.high >= 2 * self.claimed:
            return (
                "the estimate's interval does not exclude an ε twice as large"
            )
        if self.power is None or self.power < MIN_POWER:
            return self._power_text()
        return ""

    @property
    def verdict(self) -> Verdict:
        """The result of the audit."""
        if self.violated:
            return "violated"
        if self.faults:
            return "faulty"
        if self.unseen:
            return "not judged"
        if self.undecided_reason:
            return "undecided"
        return "not violated"

    def _power_text(self) -> str:
        return f"an ε twice as large would be found in {self.power or 0.0:.0%} of such runs"

    def _result_text(self) -> str:
        objection = ""
        if self.laws.objection:
            objection = f"; by the bound alone, as {self.laws.objection}"
        match self.verdict:
            case "violated":
                return self._violation_text()
            case "faulty":
                return "faulty: the run differs from what the claim assumes"
            case "not judged":
                unseen = "; ".join(self.unseen)
                return f"not judged: nobody saw {unseen}; allow_unseen=True lets this pass"
            case "undecided":
                return (
                    f"undecided: {self.undecided_reason}{objection}; use more canaries, rounds or"
                    " trials, or allow_undecided=True"
                )
            case "not violated":
                return f"not violated; {self._power_text()}{objection}"
        assert_never(self.verdict)

    def _violation_text(self) -> str:
        """The result for a refuted claim, with the assumptions of the refutation."""
        if self.refuted_by_bound and not BOUNDS[self.method].gaussian:
            return "violated: proved, whatever the law of the noise"
        assumed = "the noise is Gaussian"
        if self.adversary is not None and not self.adversary.knows_rounds:
            assumed += " and sampling is as recorded"
        tests = []
        if self.laws.gaussian_p is not None:
            tests.append(f"Anderson–Darling: p = {self.laws.gaussian_p:.2g}")
        if self.laws.sampling_p is not None:
            tests.append(f"sampling: p = {self.laws.sampling_p:.2g}")
        tested = f" ({', '.join(tests)})" if tests else ""
        return f"violated, if {assumed}{tested}"

    def _coverage_line(self) -> str:
        """The client and the adversary of the claim; empty for bare scores."""
        if self.adversary is None or self.participations is None:
            return ""
        times = how_often(self.participations)
        rounds = f"{times}, and the adversary knows when"
        if not self.adversary.knows_rounds:
            rounds = f"{times} on average, and the adversary does not know when"
        sees = "every round's model is"
        if self.adversary.sees_final:
            sees = "the final model is"
        return f"covers    clients that take part {rounds}; {sees} seen\n"

    def __str__(self) -> str:
        estimate = self.estimate
        measured = "not measured"
        if estimate is not None:
            measured = (
                f"ε = {estimate.epsilon:.4g}, {100 * self.confidence:.6g}% interval "
                f"{estimate.low:.4g} to {estimate.high:.4g} ({estimate.method})"
            )
        elif not self.delta:
            measured += f": {_NO_GAUSSIAN_EPSILON}"
        null = "the exact null"
        if self.unobserved:
            null = f"{self.unobserved} unobserved"
        faults = "".join(f"fault     {fault}\n" for fault in self.faults)
        return (
            f"{faults}"
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n{self._coverage_line()}"
            f"measured  {measured}\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {100 * self.proof_confidence:.6g}% "
            f"confidence by {self.method!r}, assuming {self.assumption}\n"
            f"scores    {self.observed} observed against {null}: {self.statistic}\n"
            f"result    {self._result_text()}"
        )


def run_scores(run: object, adversary: Adversary | None = None) -> Scores:
    """The scores by which a run is tested.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable without
            arguments that returns one of these. The scores of a record are `scores_for_claim`.
        adversary: the adversary of the claim, for a record.

    Raises:
        ValueError: if a record has neither unobserved canaries nor an exact null.
        NotMeasured: a `ValueError`, if too few canaries took part.
        TypeError: if ``run`` is of another type.
    """
    result = _result_of(run)
    if isinstance(result, Scores):
        if adversary is not None:
            raise_invalid(
                "adversary",
                adversary,
                "to be None: only records are seen by an adversary, and this run has bare scores",
            )
        return result
    if not isinstance(result, AuditRecord):
        raise TypeError(
            f"Expected run of type {type(result).__name__} to be Scores, an AuditRecord, an "
            "object with record(), or a callable returning these."
        )
    scores = scores_for_claim(result, adversary)
    if not scores.boundable:
        most_participations = result.presence.sum(axis=0).max()
        raise_invalid(
            "unobserved",
            result.unobserved.count,
            f">= 2, as a canary took part {how_often(most_participations)} and rounds may be"
            " correlated",
        )
    return scores


def _result_of(run: object) -> object:
    """The result of a run: `Scores`, an `AuditRecord`, or an object of a wrong type.

    A callable is called, and so is the method ``record`` of the run or of what was returned.
    """
    if callable(run) and not hasattr(run, "record"):
        run = run()
    record = getattr(run, "record", None)
    if callable(record):
        return record()
    return run


def find_evidence(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
    power: bool = True,
) -> Evidence:
    """The evidence of a run about the claim that it was (ε, δ)-DP.

    A claim about a record covers the client that takes part most often. Canaries that take part
    more often, or with larger weights than any client, do not count.

    Args:
        run: `Scores`, an `AuditRecord`, an object with ``record()``, or a callable giving one.
        epsilon: the claim, in nats, at least 0; infinite if nothing is claimed.
        delta: the δ of the claim, in [0, 1); above 0 for methods that assume Gaussian noise.
        confidence: c; a true claim is called violated with probability at most 1 − c.
        adversary: the adversary of a claim about a record; by default that of accounting, who
            sees every round's model and knows a client's rounds, unless sampling hides them.
        method: a valid method of `BOUNDS`, chosen before the scores are seen; by default that
            of `method_by_design`, which suits the number of scores and δ.
        power: whether to compute the test's power, which may take a second. Without it a claim
            that is not violated counts as undecided.

    Raises:
        ValueError, TypeError: if an argument is out of range, or the run has no such scores.
        NotMeasured: a `ValueError`, if all scores are equal, or if they have no spread and the
            method assumes Gaussian scores.
    """
    check_not_negative("epsilon", epsilon)
    check_probability("confidence", confidence)
    valid = [name for name, bound in BOUNDS.items() if bound.valid]
    if method not in (None, *valid):
        raise_invalid(
            "method", method, f"to be valid, one of {', '.join(valid)}"
        )
    # The default methods do not assume Gaussian noise, and neither does "weighted".
    BOUNDS[method or "weighted"].check_delta(delta)
    run = _result_of(run)
    scores = run_scores(run, adversary)
    method = (
        method
        or method_by_design(scores, delta, confidence)
        or "clopper-pearson"
    )
    if scores.statistic == UNKNOWN_ROUNDS and BOUNDS[method].gaussian:
        raise_invalid(
            "method",
            method,
            "to be one for scores of any distribution, such as 'weighted': "
            f"{UNKNOWN_ROUNDS} are not Gaussian",
        )
    _check_measured(scores, method)
    proof_confidence = (1 + confidence) / 2
    lower = lower_bound(
        scores, delta, confidence=proof_confidence, method=method
    )
    estimate = None
    laws = LawTest(objection=_NO_GAUSSIAN_EPSILON)
    power_of_claim: Callable[[float], float] | None = None
    findings = Findings()
    participations = None
    if isinstance(run, AuditRecord):
        adversary = adversary or claim_adversary(run)
        client = AuditedClient.of(run, adversary, worst_case=True)
        findings = run.findings
        participations = client.participations
        if delta:
            run_answer = answer(run, adversary, delta, confidence, client)
            estimate = run_answer.estimate
            laws = laws_of_record(run, client, run_answer)
            power_of_claim = functools.partial(
                power_of_answer, run_answer, client
            )
    elif delta and scores.infinite:
        laws = LawTest(
            objection="some scores are infinite, and Gaussian ones are not"
        )
    elif delta:
        estimate = epsilon_of_one_variance(scores, delta, confidence)
        laws = laws_of_scores(scores, method)
        power_of_claim = functools.partial(power_of_estimate, estimate)
    evidence = Evidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        lower_bound=lower,
        method=method,
        assumption=BOUNDS[method].assumption,
        estimate=estimate,
        observed=scores.observed.size,
        unobserved=num_unobserved(scores, method),
        statistic=scores.statistic,
        laws=laws,
        faults=findings.mechanism_faults,
        unseen=findings.unchecked_assumptions,
        adversary=adversary,
        participations=participations,
    )
    if not power or evidence.violated or math.isinf(epsilon):
        return evidence
    claim_power = 0.0
    if power_of_claim is not None and not laws.objection:
        claim_power = power_of_claim(epsilon)
    elif run is scores and not BOUNDS[method].gaussian:
        claim_power = power_of_bound(
            scores, delta, epsilon, proof_confidence, method
        )
    return dataclasses.replace(evidence, power=claim_power)


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
    allow_undecided: bool = False,
    allow_unseen: bool = False,
) -> Evidence:
    """Fail if a run refutes the claim that it was (ε, δ)-DP; passing does not prove the claim.

    Args:
        run: the run, see `find_evidence`, whose evidence is returned.
        epsilon: the claim, in nats, at least 0 and finite.
        delta: the δ of the claim.
        confidence: c; a true claim fails with probability at most 1 − c.
        adversary: see `find_evidence`.
        method: see `find_evidence`.
        allow_undecided: whether to pass if the run cannot distinguish ε from twice the claim.
        allow_unseen: whether to pass if some assumption of the accounting was not observed.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        Undecided: a `ValueError` with the evidence, if the claim is neither refuted nor tested,
            or not judged; unless that is allowed.
        ValueError, TypeError: as `find_evidence`, and for an infinite claim.
    """
    evidence = find_evidence(
        run, epsilon, delta, confidence, adversary=adversary, method=method
    )
    if evidence.violated or evidence.faults:
        raise AssertionError(str(evidence))
    if math.isinf(epsilon):
        raise_invalid(
            "epsilon", epsilon, "to be finite, as no run refutes an infinite ε"
        )
    if evidence.unseen and not allow_unseen:
        raise Undecided(str(evidence))
    if evidence.undecided_reason and not allow_undecided:
        raise Undecided(str(dataclasses.replace(evidence, unseen=())))
    return evidence


def evidence_against_theory(
    record: AuditRecord,
    adversary: Adversary,
    delta: float,
    confidence: float = 0.99,
) -> Evidence | None:
    """`find_evidence` about the analytical ε of the client that takes part most often.

    A report only needs to know whether that ε is refuted. So the power of the test, which takes
    most of the time, is not computed. The result is ``None`` if there is no finite analytical ε,
    or if no claim about the record can be tested.

    Args:
        record: the audit record of a run.
        adversary: the adversary.
        delta: target δ.
        confidence: see `find_evidence`.
    """
    try:
        client = AuditedClient.of(record, adversary, worst_case=True)
        limit = analytical(record.mechanism, client, delta).epsilon
        if limit is None or math.isinf(limit):
            return None
        return find_evidence(
            record, limit, delta, confidence, adversary=adversary, power=False
        )
    except ValueError:
        # There are too few canaries, or the scores have no null.
        return None


def _check_measured(scores: Scores, method: str) -> None:
    """Raise for scores without any spread.

    Such scores are allowed if the observed ones are larger, and the method does not assume Gaussian
    scores.
    """
    if not all_equal(scores.observed):
        return
    score = scores.observed[0]
    null_score = 0.0
    null_text = ""
    if num_unobserved(scores, method):
        _, unobserved = scores.both()
        if not all_equal(unobserved):
            return
        null_score = unobserved[0]
        null_text = f" and {null_score:.4g} for every unobserved one"
    if score <= null_score:
        raise NotMeasured(
            f"the score ({scores.statistic}) is {score:.4g} for every observed canary{null_text}: "
            "no canary reached what was released, or the statistic cancels it"
        )
    if BOUNDS[method].gaussian:
        raise NotMeasured(
            f"scores without any spread are not Gaussian, as method={method!r} assumes; "
            "leave out method for a bound without that assumption"
        )
