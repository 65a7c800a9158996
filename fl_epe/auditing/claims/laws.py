"""The laws that an estimate assumes when it tests a claim, and the power of such tests.

An estimate whose interval is above a claim refutes it if two laws hold: the scores are Gaussian
and, if a client's rounds are secret, participations follow their recorded law. Both are tested
in the same run. Scores of a record are inner products with random directions, which are Gaussian
in any sound mechanism. Bare scores may have any law, so many of them are needed to test whether
they are Gaussian. An estimate refutes nothing if a law was rejected, or if the scores are too
few to reject it. Error rates and power: ``simulations/studies/false_convictions.py``.

Examples:
    >>> power_against_twice(
    ...     lambda shift: 4 * shift, claim=2.0, half_interval=0.3, confidence=0.9973
    ... )
    0.977...
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
    num_members,
)
from fl_epe.auditing.bounds import BOUNDS, ceiling, lower_bound, normal_scores
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

MIN_RECORD_SCORES = 20
"""Least number of a record's scores, observed and unobserved, for a test of the Gaussian law."""

MIN_ASSUMED_SCORES = 200
"""Least number of bare scores for this test, if the user assumes the Gaussian law.

200 scores of Laplace noise reject it in 93% of runs.
"""

MIN_BARE_SCORES = 2000
"""Least number of bare scores for this test, if the user does not assume the law.

2,000 scores of logistic noise, the most similar noise that is in use, reject it in nearly all
runs.
"""

MIN_POWER = 0.8
"""With less power against twice the claimed ε, a claim that is not refuted is undecided."""

# Level of the test of the Gaussian law, and so the rate at which the estimate of a correct run
# is not used. It is above the 0.1% of `not_gaussian`, as a law that is wrongly accepted may
# refute a true claim.
_GAUSSIAN_LEVEL = 0.005

# Level of the tests of equal variances, of the model of a fit, and of sampling.
_MODEL_LEVEL = 0.001

# Relative error of the two scales from which a power is computed.
_SCALE_ERROR = 1e-3

# The powers that `power_of_bound` tries, from the largest.
_POWERS = np.arange(0.95, 0.0, -0.05)

# The square of a larger shift may overflow. Its ε is the same to all digits.
_MAX_SHIFT = 1e100


@dataclasses.dataclass(frozen=True)
class LawTest:
    """Tests of the laws that an estimate assumes.

    Attributes:
        gaussian_p: p-value of the Anderson–Darling test; ``None`` for too few scores.
        sampling_p: p-value of the test that participations follow their recorded law; ``None``
            if the adversary knows them.
        objection: why the estimate refutes no claim, as a clause; empty if it may.
    """

    gaussian_p: float | None = None
    sampling_p: float | None = None
    objection: str = ""


def laws_of_scores(scores: Scores, method: str) -> LawTest:
    """Test whether bare scores are Gaussian with one variance.

    Args:
        scores: the scores, whose null is N(0, 1) or a group of unobserved scores.
        method: the method of the lower bound. A user who names a Gaussian method assumes the
            Gaussian law, which is then tested with fewer scores.
    """
    groups: tuple[Floats, ...]
    if num_unobserved(scores, method):
        groups = in_moderate_units(*scores.both())
    else:
        groups = (normal_scores(scores.cosines, scores.dim or 2),)
    p_value = gaussian_p_value(groups)
    is_assumed = BOUNDS[method].gaussian
    min_scores = MIN_ASSUMED_SCORES if is_assumed else MIN_BARE_SCORES
    objection = _gaussian_objection(groups, p_value, min_scores)
    if not objection and len(groups) == 2:
        observed, unobserved = groups
        ratio = float(np.var(observed, ddof=1) / np.var(unobserved, ddof=1))
        law = scipy.stats.f(observed.size - 1, unobserved.size - 1)
        if 2 * min(law.cdf(ratio), law.sf(ratio)) < _MODEL_LEVEL:
            objection = f"observed scores have {ratio:.3g} times the variance of unobserved ones"
    return LawTest(p_value, None, objection)


def epsilon_of_one_variance(
    scores: Scores, delta: float, confidence: float
) -> EpsilonEstimate:
    """ε of two groups of Gaussian scores with one variance; `epsilon_of` for a null of N(0, 1).

    The shift is the difference of the means, divided by the pooled standard deviation, as in
    Student's test. Its squared standard error is ``1/k + 1/u + shift²/(2·(k + u − 2))`` (Hedges
    and Olkin 1985).

    Args:
        scores: k observed scores, and u unobserved scores or a known null.
        delta: target δ in (0, 1).
        confidence: confidence of the interval.
    """
    if scores.standard_null:
        return epsilon_of(scores, delta, confidence=confidence)
    observed, unobserved = in_moderate_units(*scores.both())
    check_sign(scores)
    alt = fit_gaussian(observed)
    null = fit_gaussian(unobserved)
    student = scipy.stats.ttest_ind_from_stats(
        alt.mean, alt.std, alt.count, null.mean, null.std, null.count
    )
    mean_variance = 1 / alt.count + 1 / null.count
    shift = max(float(student.statistic), 0.0) * math.sqrt(mean_variance)
    freedom = alt.count + null.count - 2
    variance = mean_variance + min(shift, _MAX_SHIFT) ** 2 / (2 * freedom)
    half = half_width(confidence) * math.sqrt(variance)
    low = 0.0
    # The shift is infinite if the scores have no spread. Such scores have no lower limit.
    if math.isfinite(shift):
        low = max(shift - half, 0.0)
    return EpsilonEstimate(
        epsilon=float(epsilon_of_shift(shift, delta)),
        low=float(epsilon_of_shift(low, delta)),
        high=float(epsilon_of_shift(shift + half, delta)),
        delta=delta,
        confidence=confidence,
        method=f"{scores.statistic}, two Gaussians of one variance",
    )


def laws_of_record(
    record: AuditRecord, client: AuditedClient, run_answer: Answer
) -> LawTest:
    """Test whether a record's scores and participations follow the laws that its answer assumes.

    Args:
        record: the audit record of a run.
        client: the client of the claim.
        run_answer: the answer for an adversary.
    """
    scores = run_answer.scores
    fit = run_answer.fit
    view = run_answer.view
    if (
        run_answer.estimate is None
        or scores is None
        or fit is None
        or view is None
    ):
        return LawTest(objection=run_answer.reason or "nothing was measured")
    groups = [scores.deviates(fit.scale * view.expected_scores.observed)]
    if scores.standard_null and scores.unobserved is not None:
        groups.append(scores.unobserved)
    p_value = gaussian_p_value(groups)
    sampling_p = None
    # If there are several objections, the last one is reported.
    objection = _gaussian_objection(groups, p_value, MIN_RECORD_SCORES)
    has_several_scales = any(
        test is not None and test.rejects(_MODEL_LEVEL)
        for test in (fit.intercept_test, fit.trend_test)
    )
    if fit.wide or null_misfit(scores) or has_several_scales:
        objection = "the scores are not N(κ · expected score, 1) with one κ"
    if client.secret is not None:
        sampling_p = sampling_p_value(record, client.secret)
        if sampling_p < _MODEL_LEVEL:
            objection = f"participations do not follow the recorded law (p = {sampling_p:.2g})"
    if record.findings.clients_add_noise:
        objection = "clients add noise of their own, which canaries do not have"
    if record.findings.stopped is not None:
        objection = "a stopping rule ended the run by its scores"
    return LawTest(p_value, sampling_p, objection)


def num_unobserved(scores: Scores, method: str) -> int:
    """Number of unobserved scores that a lower bound uses; 0 with the exact null."""
    has_exact_null = scores.dim is not None and not BOUNDS[method].needs_coins
    if has_exact_null or scores.unobserved is None:
        return 0
    return scores.unobserved.size


def gaussian_p_value(groups: Sequence[Floats]) -> float | None:
    """p-value of a test that groups of scores are Gaussian with one variance.

    The test uses the differences of all scores from their group's mean. The p-value is ``None``
    for fewer than eight scores, or scores without any spread.
    """
    residuals = np.concatenate([group - group.mean() for group in groups])
    fit = gaussian_test(residuals)
    return None if fit is None else fit.p_value


def sampling_p_value(record: AuditRecord, events: Events) -> float:
    """p-value of canaries' participations under the law of their secret rounds.

    The result is 0 if the participations are impossible under the law. Otherwise it is 1 unless
    rounds are drawn by coins. There are then three tests with a Bonferroni correction: of the total
    number of participations, of its variance between canaries (two-sided), and of its variance
    between rounds (one-sided).
    """
    presence = record.presence
    law = record.mechanism.participation
    # The events of a dominating law are not those by which the rounds were drawn.
    if law.dominating is not None:
        return float(np.all(presence.sum(axis=0) <= law.limit))
    # In each event a canary takes part at most once, and exactly once if that is certain.
    for event in events.independent:
        counts = presence[np.unique(event.rounds)].sum(axis=0)
        if np.any(counts > 1) or (event.chance == 1 and np.any(counts == 0)):
            return 0.0
    chances = [
        event.chance
        for event in events.independent
        if event.in_one_round and event.chance < 1
    ]
    if not chances:
        return 1.0
    members = num_members(record, events)
    total = int(presence.sum())
    trials = members * record.rounds
    total_law = scipy.stats.binom(trials, float(np.mean(chances)))
    lower_tail = float(total_law.cdf(total))
    upper_tail = float(total_law.sf(total - 1))
    by_total = 2 * min(lower_tail, upper_tail)
    rate = total / trials
    if not 0 < rate < 1:  # the counts have no variance
        return min(1.0, by_total)
    # Members that the record lacks took part in no round.
    missing_counts = np.zeros(members - presence.shape[1])
    canary_counts = np.append(presence.sum(axis=0), missing_counts)
    canary_excess = _excess_variance(canary_counts, record.rounds, rate)
    round_excess = _excess_variance(presence.sum(axis=1), members, rate)
    by_canaries = 2 * scipy.special.ndtr(-abs(canary_excess))
    by_rounds = scipy.special.ndtr(-round_excess)
    return float(min(1.0, 3 * min(by_total, by_canaries, by_rounds)))


def power_against_twice(
    epsilon_at: Callable[[float], float],
    claim: float,
    half_interval: float,
    confidence: float,
) -> float:
    """The probability that an estimate refutes a claim if ε is twice as large.

    Args:
        epsilon_at: ε as an increasing function of a scale.
        claim: the claimed ε, finite.
        half_interval: half the width of the scale's interval.
        confidence: confidence of that interval, two-sided.
    """
    if not 0 < half_interval < math.inf:
        return 0.0
    # One value may take a tenth of a second.
    cached = functools.cache(epsilon_at)
    claimed_scale = scale_at(cached, claim, close=_SCALE_ERROR)
    twice_scale = scale_at(cached, 2 * claim, close=_SCALE_ERROR)
    distance = (twice_scale - claimed_scale) / half_interval
    return float(scipy.special.ndtr(half_width(confidence) * (distance - 1)))


def power_of_answer(
    run_answer: Answer, client: AuditedClient, claim: float
) -> float:
    """`power_against_twice` for the answer of a record."""
    view = run_answer.view
    fit = run_answer.fit
    estimate = run_answer.estimate
    if view is None or fit is None or estimate is None:
        return 0.0
    epsilon_at = functools.partial(
        client_epsilon, view, client, delta=estimate.delta
    )
    return power_against_twice(
        epsilon_at, claim, fit.high - fit.scale, estimate.confidence
    )


def power_of_estimate(estimate: EpsilonEstimate, claim: float) -> float:
    """`power_against_twice` for an estimate from bare scores, by the shift of two Gaussians."""
    if not math.isfinite(estimate.high):
        return 0.0
    delta = estimate.delta
    estimated_shift = shift_of_epsilon(estimate.epsilon, delta)
    high_shift = shift_of_epsilon(estimate.high, delta)
    return power_against_twice(
        lambda shift: float(epsilon_of_shift(shift, delta)),
        claim,
        high_shift - estimated_shift,
        estimate.confidence,
    )


def power_of_bound(
    scores: Scores, delta: float, claim: float, confidence: float, method: str
) -> float:
    """Power of a lower bound against twice the claimed ε, in steps of 5%.

    The noise is Gaussian, or Laplace noise at δ = 0. The scores are the quantiles of its law,
    at ε twice the claim. For each power they are shifted by the sampling error of their means
    that is exceeded with this probability. The result is the largest power at which the bound
    is above the claim.

    Args:
        scores: the scores, of which only their numbers and their null are used.
        delta: target δ.
        claim: the claimed ε, finite.
        confidence: confidence of the bound.
        method: method of the bound.
    """
    if ceiling(scores, delta, confidence, method) <= claim:
        return 0.0  # no scores would refute the claim
    law = scipy.stats.norm if delta else scipy.stats.laplace
    shift = shift_of_epsilon(2 * claim, delta) if delta else 2 * claim
    count = scores.observed.size
    observed = law.ppf(_quantiles(count)) + shift
    variance = 1 / count
    null = None
    unobserved = num_unobserved(scores, method)
    if unobserved:
        null = law.ppf(_quantiles(unobserved))
        variance += 1 / unobserved
    error = law.std() * math.sqrt(variance)
    for power in _POWERS:
        likely_scores = dataclasses.replace(
            scores,
            observed=observed - scipy.special.ndtri(power) * error,
            unobserved=null,
            linear=True,
        )
        bound = lower_bound(
            likely_scores, delta, confidence=confidence, method=method
        )
        if bound > claim:
            return float(power)
    return 0.0


def _gaussian_objection(
    groups: Sequence[Floats], p_value: float | None, min_scores: int
) -> str:
    """The objection of a `LawTest` for scores that are too few, or not Gaussian; else empty."""
    if p_value is None or sum(group.size for group in groups) < min_scores:
        return f"fewer than {min_scores} scores cannot tell whether they are Gaussian"
    if p_value < _GAUSSIAN_LEVEL:
        return f"the scores are not Gaussian (p = {p_value:.2g})"
    return ""


def _excess_variance(
    counts: Integers | Floats, trials: int, rate: float
) -> float:
    """Variance of counts in excess of that of Binomial(trials, rate), in standard errors."""
    variance = trials * rate * (1 - rate)
    fourth_moment = variance * (1 + 3 * (trials - 2) * rate * (1 - rate))
    squares = float(np.sum((counts - trials * rate) ** 2))
    excess = squares - len(counts) * variance
    return excess / math.sqrt(len(counts) * (fourth_moment - variance**2))


def _quantiles(count: int) -> Floats:
    """The levels of ``count`` evenly spread quantiles."""
    return (np.arange(count) + 0.5) / count
