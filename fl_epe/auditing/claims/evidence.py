"""What a run says about a claim of (ε, δ)-DP: two tests of it, what they assume, and their power.

`assert_private` makes a test of a claim. It fails where the claim is refuted: by the estimate, at
half of the level 1 − confidence, if its interval is above the claim and the laws that it rests on
hold in the run (`fl_epe.auditing.claims.laws`), or by a lower bound, at the other half. A true
claim fails with probability at most 1 − confidence, so for 1% over a whole test suite use
``confidence=1 - 0.01 / tests``. This holds only if a failed test is not repeated until it
passes, and if the method is chosen in advance.

A claim that is not refuted is not proved: a better attack may get further. It passes only where
twice the claimed ε would have been found, and was not; else the run is `Undecided`, an error.

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
from typing import Any, Literal, assert_never

from fl_epe.auditing.answer import (
    AuditedClient,
    analytical,
    answer,
    claim_adversary,
    scores_for_claim,
)
from fl_epe.auditing.bounds import BOUNDS, ceiling, lower_bound, method_by_design
from fl_epe.auditing.claims.laws import (
    POWER,
    LawTest,
    compared_with,
    epsilon_of_one_variance,
    laws_of_record,
    laws_of_scores,
    power_of_answer,
    power_of_bound,
    power_of_estimate,
)
from fl_epe.auditing.estimate import Adversary, EpsilonEstimate
from fl_epe.auditing.record import AuditRecord, NotMeasured
from fl_epe.auditing.scoring import UNKNOWN_ROUNDS, Scores
from fl_epe.checks import (
    all_equal,
    check_not_negative,
    check_probability,
    raise_invalid,
)
from fl_epe.wording import how_often

_NO_GAUSSIAN_EPSILON = "Gaussian noise has no finite ε at δ = 0"

Verdict = Literal["violated", "faulty", "not judged", "undecided", "not violated"]
"""What an audit says of a claim, the first of these that applies."""


class Undecided(ValueError):  # noqa: N818 - a finding: the claim is neither refuted nor tested
    """So few scores, or so little that was looked at, say nothing about the claim."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What an audit says about a claim of (ε, δ)-DP; ``str`` gives a short report.

    Attributes:
        claimed: the claimed ε in nats.
        delta: δ of the claim.
        confidence: a true claim is called violated with probability at most 1 − this. It is also
            that of the estimate's interval (two-sided), whose lower end tests the claim at half of
            the level; the lower bound has the other half.
        lower_bound: the true ε exceeds this, under the assumption.
        method: of the lower bound.
        assumption: of the lower bound, besides independent scores.
        estimate: the ε that the attack measured; not a proof. ``None`` at δ = 0, or if none was.
        observed: number of observed scores.
        unobserved: number of unobserved scores; 0 with the exact null.
        statistic: the scores' statistic, in words.
        ceiling: the largest lower bound that this many scores can give; infinite if any.
        laws: tests of the laws that the estimate rests on.
        power: probability that a claim is called violated where ε is twice as large; ``None`` if
            it is called so, or is infinite.
        faults: how the run was seen to differ from what its privacy accounting assumes, as by
            `fl_epe.dp_sgd.audit_dp_sgd`.
        unseen: what the accounting assumes and nobody looked at.
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
    def proved(self) -> bool:
        """Whether the lower bound refutes the claim; one of Gaussian noise if its law holds."""
        holds = not BOUNDS[self.method].gaussian or not self.laws.objection
        return self.lower_bound > self.claimed and holds

    @property
    def refuted_by_estimate(self) -> bool:
        """Whether the estimate's interval is above the claim, and the laws behind it hold."""
        found = self.estimate
        return (
            found is not None and found.low > self.claimed and not self.laws.objection
        )

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.proved or self.refuted_by_estimate

    @property
    def undecided(self) -> str:
        """Why the claim is neither refuted nor tested, as a clause; empty if it is."""
        if self.violated:
            return ""
        found = self.estimate
        if (
            found is not None
            and not self.laws.objection
            and found.high >= 2 * self.claimed
        ):
            return "the estimate's interval does not exclude an ε twice as large"
        if self.power is None or self.power < POWER:
            return self._power()
        return ""

    @property
    def verdict(self) -> Verdict:
        """What the audit says of the claim."""
        if self.violated:
            return "violated"
        if self.faults:
            return "faulty"
        if self.unseen:
            return "not judged"
        return "undecided" if self.undecided else "not violated"

    def _power(self) -> str:
        return f"an ε twice as large would be found in {self.power or 0.0:.0%} of such runs"

    def _tested(self) -> str:
        tests = {
            "Anderson–Darling": self.laws.gaussian_p,
            "sampling": self.laws.sampling_p,
        }
        words = [f"{name}: p = {p:.2g}" for name, p in tests.items() if p is not None]
        return f" ({', '.join(words)})" if words else ""

    def _result(self) -> str:
        alone = ""
        if self.laws.objection:
            alone = f"; by the bound alone, as {self.laws.objection}"
        match self.verdict:
            case "violated":
                if self.proved and not BOUNDS[self.method].gaussian:
                    return "violated: proved, whatever the law of the noise"
                assumed = "the noise is Gaussian"
                if self.adversary is not None and not self.adversary.knows_rounds:
                    assumed += " and sampling is as recorded"
                return f"violated, if {assumed}{self._tested()}"
            case "faulty":
                return "faulty: the run is not what the claim is about"
            case "not judged":
                unseen = "; ".join(self.unseen)
                return f"not judged: nobody saw {unseen} (allow_unseen=True judges without)"
            case "undecided":
                return (
                    f"undecided: {self.undecided}{alone}; use more canaries, rounds or trials, or "
                    "allow_undecided=True"
                )
            case "not violated":
                return f"not violated; {self._power()}{alone}"
        assert_never(self.verdict)

    def _of_whom(self) -> str:
        if self.adversary is None or self.participations is None:
            return ""
        often = how_often(self.participations)
        rounds = f"{often}, and the adversary knows when"
        if not self.adversary.knows_rounds:
            rounds = f"{often} on average, and the adversary does not know when"
        sees = (
            "the final model is"
            if self.adversary.sees_final
            else "every round's model is"
        )
        return f"covers    whoever takes part {rounds}; {sees} seen\n"

    def __str__(self) -> str:
        found = self.estimate
        measured = "not measured"
        if found is not None:
            measured = (
                f"ε = {found.epsilon:.4g}, {100 * self.confidence:.6g}% interval {found.low:.4g} "
                f"to {found.high:.4g} ({found.method})"
            )
        elif not self.delta:
            measured += f": {_NO_GAUSSIAN_EPSILON}"
        sure = f"{100 * self.proof_confidence:.6g}%"
        others = (
            f"{self.unobserved} unobserved" if self.unobserved else "the exact null"
        )
        faults = "".join(f"fault     {fault}\n" for fault in self.faults)
        return faults + (
            f"claimed   ε = {self.claimed:.4g} at δ = {self.delta:.4g}\n{self._of_whom()}"
            f"measured  {measured}\n"
            f"proved    ε ≥ {self.lower_bound:.4g} at {sure} confidence by {self.method!r}, "
            f"assuming {self.assumption}\n"
            f"scores    {self.observed} observed against {others}: {self.statistic}\n"
            f"result    {self._result()}"
        )


def run_scores(run: object, adversary: Adversary | None = None) -> Scores:
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
            raise TypeError(
                f"Expected run of type {type(found).__name__} to be Scores, an AuditRecord, an "
                "object with record(), or a callable returning these."
            )
        if adversary is not None:
            raise_invalid(
                "adversary",
                adversary,
                "for a record alone: scores do not say who sees what",
            )
        return found
    scores = scores_for_claim(found, adversary)
    if not scores.boundable:
        raise_invalid(
            "unobserved",
            found.unobserved.count,
            f">= 2, as a canary took part {how_often(found.presence.sum(axis=0).max())}",
        )
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
    power: bool = True,
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
        power: whether to compute the test's power, which may take a second. Without it a claim
            that is not violated counts as undecided.

    Raises:
        ValueError, TypeError: if an argument is out of range, or the run has no such scores.
        NotMeasured: a `ValueError`, if all scores are equal, or have no spread and the method
            assumes Gaussian ones.
    """
    check_not_negative("epsilon", epsilon)
    check_probability("confidence", confidence)
    valid = [name for name, bound in BOUNDS.items() if bound.valid]
    if method not in (None, *valid):
        raise_invalid("method", method, f"to be valid, one of {', '.join(valid)}")
    BOUNDS[method or "weighted"].check_delta(delta)
    run = _found_in(run)
    scores = run_scores(run, adversary)
    method = method or method_by_design(scores, delta, confidence) or "clopper-pearson"
    if scores.statistic == UNKNOWN_ROUNDS and BOUNDS[method].gaussian:
        raise_invalid(
            "method",
            method,
            "to be one for scores of any distribution, such as 'weighted': "
            f"{UNKNOWN_ROUNDS} are not Gaussian",
        )
    _check_measured(scores, method)
    sure = (1 + confidence) / 2
    lower = lower_bound(scores, delta, confidence=sure, method=method)
    estimate: EpsilonEstimate | None = None
    laws = LawTest(objection=_NO_GAUSSIAN_EPSILON)
    power_at = None
    of_run: dict[str, Any] = {}
    if isinstance(run, AuditRecord):
        adversary = adversary or claim_adversary(run)
        client = AuditedClient.of(run, adversary, most=True)
        of_run = {
            "faults": run.findings.step_faults,
            "unseen": run.findings.unseen,
            "adversary": adversary,
            "participations": client.participations,
        }
        if delta:
            found = answer(run, adversary, delta, confidence, client)
            estimate = found.estimate
            laws = laws_of_record(run, client, found)
            power_at = functools.partial(power_of_answer, found, client)
    elif delta and scores.infinite:
        laws = LawTest(objection="some scores are infinite, and Gaussian ones are not")
    elif delta:
        estimate = epsilon_of_one_variance(scores, delta, confidence)
        laws = laws_of_scores(scores, method)
        power_at = functools.partial(power_of_estimate, estimate)
    evidence = Evidence(
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        lower_bound=lower,
        method=method,
        assumption=BOUNDS[method].assumption,
        estimate=estimate,
        observed=scores.observed.size,
        unobserved=compared_with(scores, method),
        statistic=scores.statistic,
        ceiling=ceiling(scores, delta, sure, method),
        laws=laws,
        **of_run,
    )
    if not power or evidence.violated or math.isinf(epsilon):
        return evidence
    share = 0.0
    if power_at is not None and not laws.objection:
        share = power_at(epsilon)
    elif run is scores and evidence.ceiling > epsilon and not BOUNDS[method].gaussian:
        share = power_of_bound(scores, delta, epsilon, sure, method)
    return dataclasses.replace(evidence, power=share)


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
    """Fail if a run refutes the claim that it was (ε, δ)-DP; passing does not prove it.

    Args:
        run: as for `find_evidence`, whose evidence is returned.
        epsilon: the claim, in nats, at least 0 and finite.
        delta: δ of the claim.
        confidence: a true claim fails with probability at most 1 − this.
        adversary: as for `find_evidence`.
        method: as for `find_evidence`.
        allow_undecided: pass where the run could not tell ε from twice the claim.
        allow_unseen: pass where nobody saw a part of what the claim rests on.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        Undecided: a `ValueError` with the evidence, if it is neither, and the run could not have
            told; unless that is allowed.
        ValueError, TypeError: as `find_evidence`; and for an infinite claim.
    """
    found = find_evidence(
        run, epsilon, delta, confidence, adversary=adversary, method=method
    )
    if found.violated or found.faults:
        raise AssertionError(str(found))
    if math.isinf(epsilon):
        raise_invalid(
            "epsilon", epsilon, "to be finite, as no run refutes an infinite ε"
        )
    if found.unseen and not allow_unseen:
        raise Undecided(str(found))
    if found.undecided and not allow_undecided:
        raise Undecided(str(dataclasses.replace(found, unseen=())))
    return found


def evidence_against_theory(
    record: AuditRecord, adversary: Adversary, delta: float, confidence: float = 0.99
) -> Evidence | None:
    """`find_evidence` about what theory allows the client that takes part most often.

    A report asks it for each adversary, whether that is violated, so the power of the test, which
    takes longest, is not computed. ``None`` if theory allows no finite ε, or no claim about the
    record can be tested.

    Args:
        record: the audit record of a run.
        adversary: who attacks.
        delta: target δ.
        confidence: as in `find_evidence`.
    """
    try:
        client = AuditedClient.of(record, adversary, most=True)
        limit = analytical(record.mechanism, client, delta).epsilon
        if limit is None or math.isinf(limit):
            return None
        return find_evidence(
            record, limit, delta, confidence, adversary=adversary, power=False
        )
    except ValueError:  # too few canaries, or no null
        return None


def _check_measured(scores: Scores, method: str) -> None:
    """Refuse scores without any spread, unless observed ones are larger by a bound for any law."""
    first, null, rest = scores.observed[0], 0.0, ""
    flat = all_equal(scores.observed)
    if compared_with(scores, method):
        _, others = scores.both()
        null = others[0]
        flat = flat and all_equal(others)
        rest = f" and {null:.4g} for every unobserved one"
    if not flat:
        return
    if first <= null:
        raise NotMeasured(
            f"the score ({scores.statistic}) is {first:.4g} for every observed canary{rest}: no "
            "canary reached what was released, or the statistic cancels it"
        )
    if BOUNDS[method].gaussian:
        raise NotMeasured(
            f"scores without any spread are no Gaussian ones, as method={method!r} assumes; "
            "leave out method, for a bound without that assumption"
        )
