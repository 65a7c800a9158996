"""The laws that an estimate rests on where it tests a claim, and the power of such tests.

An estimate refutes a claim below its interval if scores are Gaussian and, where a client's rounds
are secret, drawn by the recorded law. Both are tested in the same run. Scores of a record are
inner products with random directions, Gaussian in any mechanism unless something is wrong; bare
scores may have any law, so that many of them are needed to tell. A law that was rejected, or that
so few scores cannot reject, refutes nothing. How often that errs, and its power:
``simulations/studies/false_convictions.py``.

Examples:
    >>> round(power_against_twice(lambda shift: 4 * shift, 2.0, reach=0.3, confidence=0.9973), 2)
    0.98
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from fl_epe.accounting import epsilon_of_shift, scale_at, shift_of_epsilon
from fl_epe.auditing.answer import (
    Answer,
    AuditedClient,
    client_epsilon,
    epsilon_of,
    members_of,
)
from fl_epe.auditing.bounds import BOUNDS, lower_bound, normal_scores
from fl_epe.auditing.estimate import EpsilonEstimate, fit_gaussian, half_width
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scoring import (
    Scores,
    check_sign,
    gaussian_test,
    in_moderate_units,
    null_misfit,
)
from fl_epe.checks import Floats, Integers
from fl_epe.schedules import Events

LEAST_OF_A_RECORD = 20
"""Scores of a record, observed and unobserved, that tell whether they are Gaussian."""

LEAST_ASSUMED = 200
LEAST_BARE = 2000
"""Bare scores for the same, where the user assumes the law, and where nobody does.

Of Laplace noise 200 reject the Gaussian law in 93% of runs; of logistic noise, the nearest that is
in use, 2,000 do in nearly all.
"""

POWER = 0.8
"""Least power against twice the claimed ε with which a claim is not refuted; below: undecided."""

# A right run is left undecided so often. `assumptions.not_gaussian` refuses an estimate at 0.1%, as
# that costs its number; here a false alarm costs a refutation, and a miss is a false accusation.
_GAUSSIAN_LEVEL = 0.005
_MODEL_LEVEL = 0.001
_SCALE_ERROR = 1e-3  # relative error of a scale that is solved for
_POWERS = np.arange(0.95, 0.0, -0.05)


@dataclasses.dataclass(frozen=True)
class LawTest:
    """Tests of the laws that an estimate rests on.

    Attributes:
        gaussian_p: p-value of the Anderson–Darling test; ``None`` for too few scores.
        sampling_p: that participations follow their recorded law; ``None`` where the adversary
            knows them.
        objection: why the estimate refutes no claim, as a clause; empty if it may.
    """

    gaussian_p: float | None = None
    sampling_p: float | None = None
    objection: str = ""


def laws_of_scores(scores: Scores, method: str) -> LawTest:
    """Whether bare scores are Gaussian with one variance.

    Args:
        scores: against N(0, 1), or two groups.
        method: of the lower bound; a user who names a Gaussian one assumes that law.
    """
    if compared_with(scores, method):
        groups = in_moderate_units(*scores.both())
    else:
        groups = (normal_scores(scores.cosines, scores.dim or 2),)
    p_value = gaussian_p_value(groups)
    least = LEAST_ASSUMED if BOUNDS[method].gaussian else LEAST_BARE
    objection = _not_gaussian(groups, p_value, least)
    if not objection and len(groups) == 2:
        ratio = float(np.var(groups[0], ddof=1) / np.var(groups[1], ddof=1))
        law = scipy.stats.f(groups[0].size - 1, groups[1].size - 1)
        if 2 * min(law.cdf(ratio), law.sf(ratio)) < _MODEL_LEVEL:
            objection = f"the variance of observed scores is {ratio:.3g} times that of the others"
    return LawTest(p_value, None, objection)


def epsilon_of_one_variance(
    scores: Scores, delta: float, confidence: float
) -> EpsilonEstimate:
    """ε of two groups of Gaussian scores with one variance, or against N(0, 1) as `epsilon_of`.

    The shift is the difference of the means over the pooled standard deviation, as in Student's
    test. Its squared standard error is ``1/k + 1/u + shift²/(2·(k + u − 2))`` (Hedges and Olkin
    1985).

    Args:
        scores: k observed ones, and u unobserved ones or a known null.
        delta: target δ in (0, 1).
        confidence: of the interval.
    """
    if scores.standard_null:
        return epsilon_of(scores, delta, confidence=confidence)
    observed, unobserved = in_moderate_units(*scores.both())
    check_sign(scores)
    alt = fit_gaussian(observed)
    null = fit_gaussian(unobserved)
    student = scipy.stats.ttest_ind_from_stats(
        *dataclasses.astuple(alt), *dataclasses.astuple(null)
    )
    variance = 1 / alt.count + 1 / null.count  # of the difference of means
    shift = max(float(student.statistic), 0.0) * math.sqrt(variance)
    variance += min(shift, 1e100) ** 2 / (2 * (alt.count + null.count - 2))
    reach = half_width(confidence) * math.sqrt(variance)
    below = (
        0.0 if math.isinf(shift) else max(shift - reach, 0.0)
    )  # no score has any spread
    epsilon, low, high = (
        float(epsilon_of_shift(each, delta)) for each in (shift, below, shift + reach)
    )
    method = f"{scores.statistic}, two Gaussians of one variance"
    return EpsilonEstimate(epsilon, low, high, delta, confidence, method)


def laws_of_record(
    record: AuditRecord, client: AuditedClient, found: Answer
) -> LawTest:
    """Whether a record's scores and participations follow the laws that its answer rests on.

    Args:
        record: the audit record of a run.
        client: whose ε it is.
        found: the answer for an adversary.
    """
    scores, fit, view = found.scores, found.fit, found.view
    if found.estimate is None or scores is None or fit is None or view is None:
        return LawTest(objection=found.reason or "nothing was measured")
    groups = [scores.deviates(fit.scale * view.sizes.observed)]
    if scores.standard_null and scores.unobserved is not None:
        groups.append(scores.unobserved)
    p_value = gaussian_p_value(groups)
    sampling_p = None
    objection = _not_gaussian(groups, p_value, LEAST_OF_A_RECORD)
    tests = [test for test in (fit.number, fit.time) if test is not None]
    if (
        fit.wide
        or null_misfit(scores)
        or any(test.found(_MODEL_LEVEL) for test in tests)
    ):
        objection = "scores do not follow what canaries added"
    if client.secret is not None:
        sampling_p = sampling_p_value(record, client.secret)
        if sampling_p < _MODEL_LEVEL:
            objection = (
                f"participations do not follow the recorded law (p = {sampling_p:.2g})"
            )
    if record.findings.clients_add_noise:
        objection = "clients add noise of their own, which canaries do not have"
    if record.findings.stopped is not None:
        objection = "the run was ended by its scores"
    return LawTest(p_value, sampling_p, objection)


def compared_with(scores: Scores, method: str) -> int:
    """Number of unobserved scores that a bound uses; 0 with the exact null."""
    exact = scores.dim is not None and not BOUNDS[method].needs_coins
    return 0 if exact or scores.unobserved is None else scores.unobserved.size


def gaussian_p_value(groups: Sequence[Floats]) -> float | None:
    """p-value of groups that are Gaussian with one variance, by all scores less their group's mean.

    ``None`` for fewer than eight scores, or scores without any spread.
    """
    fit = gaussian_test(np.concatenate([group - group.mean() for group in groups]))
    return None if fit is None else fit.p_value


def sampling_p_value(record: AuditRecord, events: Events) -> float:
    """p-value of canaries' participations under the law of their secret rounds.

    1 or 0 where a law is known that only dominates. For coins three tests, Bonferroni corrected: of
    their total number, of how much it varies between canaries, and of whether it varies more than
    it may between rounds.
    """
    presence = record.presence
    law = record.mechanism.participation
    if law.dominating is not None:  # which is not the law of the rounds
        return float(np.all(presence.sum(axis=0) <= law.limit))
    members = members_of(record, events)
    drawn = events.independent
    for event in drawn:
        taken = presence[np.unique(event.rounds)].sum(axis=0)
        if np.any(taken > 1) or (event.chance == 1 and np.any(taken == 0)):
            return 0.0
    chances = [
        event.chance for event in drawn if event.in_one_round and event.chance < 1
    ]
    if not chances:
        return 1.0
    total = int(presence.sum())
    trials = members * record.rounds
    rate = float(np.mean(chances))
    totals = scipy.stats.binom(trials, rate)
    by_total = 2 * min(float(totals.cdf(total)), float(totals.sf(total - 1)))
    realised = total / trials
    if not 0 < realised < 1:
        return min(1.0, by_total)
    counts = np.append(presence.sum(axis=0), np.zeros(members - presence.shape[1]))
    canaries = _excess_variance(counts, record.rounds, realised)
    rounds = _excess_variance(presence.sum(axis=1), members, realised)
    smallest = min(
        by_total, 2 * scipy.special.ndtr(-abs(canaries)), scipy.special.ndtr(-rounds)
    )
    return float(min(1.0, 3 * smallest))


def power_against_twice(
    epsilon_at: Callable[[float], float], claim: float, reach: float, confidence: float
) -> float:
    """Probability that an estimate refutes a claim where ε is twice as large.

    Args:
        epsilon_at: ε of a scale, increasing.
        claim: ε, finite.
        reach: from the scale's estimate to the end of its interval.
        confidence: of that interval, two-sided.
    """
    if not 0 < reach < math.inf:
        return 0.0
    known = functools.cache(epsilon_at)  # it may take a tenth of a second
    claimed = scale_at(known, claim, close=_SCALE_ERROR)
    apart = scale_at(known, 2 * claim, close=_SCALE_ERROR) - claimed
    return float(scipy.special.ndtr(half_width(confidence) * (apart / reach - 1)))


def power_of_answer(found: Answer, client: AuditedClient, claim: float) -> float:
    """`power_against_twice` of the answer of a record."""
    view, fit, estimate = found.view, found.fit, found.estimate
    if view is None or fit is None or estimate is None:
        return 0.0
    epsilon_at = functools.partial(client_epsilon, view, client, delta=estimate.delta)
    return power_against_twice(
        epsilon_at, claim, fit.high - fit.scale, estimate.confidence
    )


def power_of_estimate(found: EpsilonEstimate, claim: float) -> float:
    """`power_against_twice` of an estimate from bare scores, by the shift of two Gaussians."""
    if not math.isfinite(found.high):
        return 0.0
    delta = found.delta
    reach = shift_of_epsilon(found.high, delta) - shift_of_epsilon(found.epsilon, delta)
    return power_against_twice(
        lambda shift: float(epsilon_of_shift(shift, delta)),
        claim,
        reach,
        found.confidence,
    )


def power_of_bound(
    scores: Scores, delta: float, claim: float, confidence: float, method: str
) -> float:
    """Power of a lower bound against twice the claimed ε, in steps of 5%.

    That is against Gaussian noise, or Laplace noise at δ = 0: the largest power at which the bound
    of the laws' quantiles, less far apart by what so many scores vary, is above the claim.

    Args:
        scores: of which the numbers and the null count.
        delta: target δ.
        claim: ε, finite.
        confidence: of the bound.
        method: of the bound.
    """
    if delta:
        law = scipy.stats.norm
        shift = shift_of_epsilon(2 * claim, delta)
    else:
        law = scipy.stats.laplace
        shift = 2 * claim
    count = scores.observed.size
    others = compared_with(scores, method)
    error = law.std() * math.sqrt(1 / count + (1 / others if others else 0.0))
    for power in _POWERS:
        observed = (
            law.ppf(_quantiles(count)) + shift - scipy.special.ndtri(power) * error
        )
        null = law.ppf(_quantiles(others)) if others else None
        likely = dataclasses.replace(
            scores, observed=observed, unobserved=null, linear=True
        )
        if lower_bound(likely, delta, confidence=confidence, method=method) > claim:
            return float(power)
    return 0.0


def _not_gaussian(groups: Sequence[Floats], p: float | None, least: int) -> str:
    if p is None or sum(group.size for group in groups) < least:
        return f"fewer than {least} scores cannot tell whether they are Gaussian"
    if p < _GAUSSIAN_LEVEL:
        return f"the scores are not Gaussian (p = {p:.2g})"
    return ""


def _excess_variance(counts: Integers | Floats, trials: int, rate: float) -> float:
    """By how many standard errors counts vary more than Binomial(trials, rate)."""
    square = trials * rate * (1 - rate)
    fourth = square * (1 + 3 * (trials - 2) * rate * (1 - rate))
    excess = float(np.sum((counts - trials * rate) ** 2)) - len(counts) * square
    return excess / math.sqrt(len(counts) * (fourth - square**2))


def _quantiles(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count
