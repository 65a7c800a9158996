"""The answer of an audit: ε of a client of the run against an adversary.

An `Answer` has three results for the same client, adversary and adjacency: an estimate of ε with
its interval, a lower bound, and the analytical ε. There is one answer for an adversary who sees
the final model, and one for an adversary who sees every round's. The client is an
`AuditedClient`: it takes part as often as the median real client. The adversary knows the
client's rounds, unless a privacy claim rests on hiding them (Poisson sampling, cohorts of fixed
size, balls-in-bins).

For the estimate, κ of ``score = κ · expected score + N(0, 1)`` is fitted over all canaries
(`fl_epe.auditing.answer.ladder_fit`). If the rounds are known, ε is that of two Gaussians κ times
the client's expected score apart. If they are secret, ε is that of the mixture over all rounds
that the client may have, with the same κ. The lower bound compares canaries that took part at
most as often as the client with the exact null, by a method that is chosen beforehand.

Examples:
    >>> from fl_epe.limit import limit_record
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = limit_record(
    ...     ShuffledEpochs(20, 4), 1.0, num_canaries=100, unobserved=2, delta=1e-5, seed=1)
    >>> final, every = answers(record)
    >>> every.proved < every.estimate.epsilon < 20
    True
"""

import dataclasses
import math

import numpy as np

from fl_epe import accounting
from fl_epe.auditing.answer.audited_client import AuditedClient, claim_adversary
from fl_epe.auditing.answer.claim_scores import scores_for_claim
from fl_epe.auditing.answer.ladder_fit import LadderFit, client_fit
from fl_epe.auditing.answer.theory import Analytical, analytical
from fl_epe.auditing.bounds import lower_bound, method_by_design
from fl_epe.auditing.estimate import Adversary, EpsilonEstimate, epsilon_metrics
from fl_epe.auditing.record import AuditRecord, NotMeasured, not_measured
from fl_epe.auditing.scoring import Scores, View, check_sign, scores_of, seen_by
from fl_epe.checks import check_probability, raise_invalid

# ε of secret rounds is computed as if rounds were independent. This is the largest relative error
# of expected scores by that assumption.
_MAX_ERROR_OF_INDEPENDENCE = 0.05


@dataclasses.dataclass(frozen=True)
class Answer:
    """ε of a client of a run against one adversary.

    Attributes:
        adversary: what the adversary sees and knows.
        participations: the client's number of rounds; the expected number if they are secret.
        analytical: the analytical ε, with its assumptions.
        estimate: ε with its interval; ``None`` if it was not measured.
        reason: why ε was not measured, as a sentence without its full stop; empty if it was.
        proved: a lower bound on the client's ε; ``None`` without a bound.
        proof: the method of the lower bound.
        fit: the fitted κ, and tests of its model.
        extrapolated: whether all canaries took part less often than the client at known rounds.
        scores: the scores of the canaries.
        view: the adversary's view, to which κ was fitted.
    """

    adversary: Adversary
    participations: float
    analytical: Analytical
    estimate: EpsilonEstimate | None = None
    reason: str = ""
    proved: float | None = None
    proof: str | None = None
    fit: LadderFit | None = None
    extrapolated: bool = False
    scores: Scores | None = dataclasses.field(default=None, repr=False)
    view: View | None = dataclasses.field(default=None, repr=False)

    @property
    def contradicted(self) -> bool:
        """Whether the lower bound is above the estimate's interval, which is then not reliable."""
        return (
            self.estimate is not None
            and (self.proved or 0.0) > self.estimate.high
        )

    @property
    def exceeds_theory(self) -> bool:
        """Whether the lower bound exceeds the analytical ε, which shows a defect."""
        limit = self.analytical.epsilon
        return limit is not None and (self.proved or 0.0) > limit


def answers(
    record: AuditRecord, delta: float | None = None, confidence: float = 0.95
) -> tuple[Answer, Answer]:
    """The answers for an adversary who sees the final model, and for one who sees every round's.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: confidence of the intervals (two-sided) and of the lower bounds (one-sided).
    """
    every_round = claim_adversary(record)
    final_model = dataclasses.replace(every_round, sees="final")
    return (
        answer(record, final_model, delta, confidence),
        answer(record, every_round, delta, confidence),
    )


def answer_metrics(pair: tuple[Answer, Answer]) -> dict[str, float]:
    """The numbers of `answers` by their names in a run's metrics; NaN for those that are not known.

    The analytical ε is the same against both adversaries.
    """
    final, every = pair
    metrics = epsilon_metrics("final", final.estimate)
    metrics |= epsilon_metrics("all", every.estimate)
    bounds = {
        "epsilon-final-proved": final.proved,
        "epsilon-all-proved": every.proved,
        "epsilon-analytical": every.analytical.epsilon,
    }
    for name, value in bounds.items():
        metrics[name] = math.nan if value is None else value
    return metrics


def answer(
    record: AuditRecord,
    adversary: Adversary,
    delta: float | None = None,
    confidence: float = 0.95,
    client: AuditedClient | None = None,
) -> Answer:
    """The answer for one adversary.

    Args:
        record: the audit record of a run.
        adversary: an adversary who does not know the other clients' updates.
        delta: target δ; the record's by default.
        confidence: confidence of the interval (two-sided) and of the lower bound (one-sided).
        client: the client whose ε it is; by default the median client (`AuditedClient.of`).

    Raises:
        ValueError: for an argument out of range.
    """
    delta = record.delta if delta is None else delta
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    if adversary.knows_others:
        raise_invalid(
            "adversary",
            adversary,
            "not to know the others; name a statistic for that",
        )
    law = record.mechanism.participation
    try:
        client = client or AuditedClient.of(record, adversary)
    except NotMeasured as error:
        theory = Analytical(None, False, law.adjacency, str(error))
        reason = not_measured(record, adversary) or str(error)
        participations = record.mechanism.canary_participations
        return Answer(adversary, participations, theory, reason=reason)
    theory = analytical(record.mechanism, client, delta)
    unmeasured = Answer(adversary, client.participations, theory)
    try:
        return _measured(unmeasured, record, client, delta, confidence)
    except NotMeasured as error:
        return dataclasses.replace(unmeasured, reason=str(error))


def _measured(
    unmeasured: Answer,
    record: AuditRecord,
    client: AuditedClient,
    delta: float,
    confidence: float,
) -> Answer:
    """The answer with its estimate and lower bound; the arguments are those of `answer`.

    Raises:
        NotMeasured: with the reason, if ε cannot be estimated.
    """
    adversary = unmeasured.adversary
    scores = scores_of(seen_by(record, Adversary(adversary.sees)))
    if not scores.observed.any():
        raise NotMeasured(
            "every score is 0: no canary reached what was released"
        )
    check_sign(scores)
    view = client.view(record, adversary)
    fit = client_fit(view, client, confidence)
    knows_rounds = client.secret is None
    method = "κ of the canaries' ladder, at the client's expected score"
    if not knows_rounds:
        method = "κ of all canaries, mixture over secret rounds"
    estimate = EpsilonEstimate(
        epsilon=client_epsilon(view, client, fit.scale, delta),
        low=client_epsilon(view, client, fit.low, delta),
        high=client_epsilon(view, client, fit.high, delta),
        delta=delta,
        confidence=confidence,
        method=method,
        adversary=dataclasses.replace(
            view.adversary, knows_rounds=knows_rounds
        ),
    )
    proved, proof = _proof(record, adversary, client, delta, confidence)
    most_participations = int(record.presence.sum(axis=0).max())
    is_rarer = most_participations < math.floor(client.participations)
    return dataclasses.replace(
        unmeasured,
        estimate=estimate,
        proved=proved,
        proof=proof,
        fit=fit,
        extrapolated=knows_rounds and is_rarer,
        scores=scores,
        view=view,
    )


def client_epsilon(
    view: View, client: AuditedClient, scale: float, delta: float
) -> float:
    """ε of a client whose scores are ``scale`` (κ) times the expected ones, plus N(0, 1).

    At known rounds it is ε of two Gaussians; at secret rounds, ε of the mixture over all rounds
    that the client may have.

    Raises:
        NotMeasured: if the law of the secret rounds is not known, or the residuals of rounds
            are correlated.
    """
    secret = client.secret
    weights = view.expected_scores.weights
    if scale <= 0 or not weights.any():
        return 0.0
    if secret is None:
        expected_score = scale * client.expected_score(view)
        return accounting.epsilon_of_signals(np.array([expected_score]), delta)
    if view.adversary.sees == "final":
        law = accounting.expected_score_law(secret, scale * weights)
        if law is None:
            raise NotMeasured(
                "the law of the client's secret rounds would take minutes"
            )
        return accounting.unknown_expected_score_epsilon(
            law.expected_scores, delta, weights=law.shares
        )
    if client.error_of_secret_rounds(view) > _MAX_ERROR_OF_INDEPENDENCE:
        raise NotMeasured(
            "noise or other clients' updates are correlated between rounds, and ε of secret rounds "
            "is computed for independent ones alone"
        )
    signals = view.expected_scores.unit * np.sqrt(
        view.record.correlation.single_round_energies(weights)
    )
    return accounting.epsilon_of_signals(scale * signals, delta, secret)


def _proof(
    record: AuditRecord,
    adversary: Adversary,
    client: AuditedClient,
    delta: float,
    confidence: float,
) -> tuple[float | None, str | None]:
    """A lower bound on the client's ε and its method; both are ``None`` without a bound.

    There is none with too few canaries, or if clients add noise that canaries do not have.
    """
    if record.findings.clients_add_noise:
        return None, None
    try:
        scores = scores_for_claim(record, adversary, client)
    except NotMeasured:
        return None, None
    method = method_by_design(scores, delta, confidence)
    if method is None:
        return None, None
    return lower_bound(
        scores, delta, confidence=confidence, method=method
    ), method
