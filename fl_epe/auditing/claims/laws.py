"""The laws that an estimate assumes when it tests a claim, and the power of such tests.

An estimate refutes a claim below its interval if scores are Gaussian and, if a client's rounds
are secret, these are drawn by the recorded law. Both are tested in the same run. Scores of a
record are inner products with random directions, which are Gaussian in any mechanism unless
something is wrong. Bare scores may have any law, so that the test needs many of them. An
estimate refutes nothing if its law was rejected, or if the scores are too few to reject it.
Error rates and power: ``simulations/studies/false_convictions.py``.

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

LEAST_OF_A_RECORD = 20
"""Least number of a record's scores, observed and unobserved, for a test of Gaussian scores."""

LEAST_ASSUMED = 200
LEAST_BARE = 2000
"""Least number of bare scores for that test, if the user does not assume the law.

`LEAST_ASSUMED` is the number if the user assumes it. 200 scores of Laplace noise reject the
Gaussian law in 93% of runs; 2,000 scores of logistic noise, the most similar noise that is in
use, reject it in nearly all runs.
"""

POWER = 0.8
"""With less power against twice the claimed ε, a claim that is not refuted is undecided."""

# Level of the test of Gaussian scores, and so the rate at which a correct run is left
# undecided. `assumptions.not_gaussian` tests at 0.1%, as a false alarm there costs the
# estimate. Here a false alarm costs a refutation, and a miss is a false accusation.
_GAUSSIAN_LEVEL = 0.005

# Level of the tests of the model of a fit, and of sampling.
_MODEL_LEVEL = 0.001

# Relative error of a scale that is solved for.
_SCALE_ERROR = 1e-3

# The powers that `power_of_bound` tries.
_POWERS = np.arange(0.95, 0.0, -0.05)


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
    """Whether bare scores are Gaussian with one variance.

    Args:
        scores: the scores, whose null is N(0, 1) or a group of unobserved scores.
        method: the method of the lower bound; a user who names a Gaussian method assumes that
            law.
    """
    groups: tuple[Floats, ...]
    if compared_with(scores, method):
        groups = in_moderate_units(*scores.both())
    else:
        groups = (normal_scores(scores.cosines, scores.dim or 2),)
    p_value = gaussian_p_value(groups)
    least = LEAST_ASSUMED if BOUNDS[method].gaussian else LEAST_BARE
    objection = _not_gaussian(groups, p_value, least)
    if not objection and len(groups) == 2:
        observed, unobserved = groups
        ratio = float(np.var(observed, ddof=1) / np.var(unobserved, ddof=1))
        law = scipy.stats.f(observed.size - 1, unobserved.size - 1)
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
        *dataclasses.astuple(alt), *dataclasses.astuple(null)
    )
    mean_variance = 1 / alt.count + 1 / null.count
    shift = max(float(student.statistic), 0.0) * math.sqrt(mean_variance)
    freedom = alt.count + null.count - 2
    variance = mean_variance + min(shift, 1e100) ** 2 / (2 * freedom)
    half = half_width(confidence) * math.sqrt(variance)
    low = 0.0
    # The shift is infinite if the scores have no spread.
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
    """Whether a record's scores and participations follow the laws that its answer assumes.

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
    groups = [scores.deviates(fit.scale * view.sizes.observed)]
    if scores.standard_null and scores.unobserved is not None:
        groups.append(scores.unobserved)
    p_value = gaussian_p_value(groups)
    sampling_p = None
    objection = _not_gaussian(groups, p_value, LEAST_OF_A_RECORD)
    fails_ladder = any(
        test is not None and test.is_significant(_MODEL_LEVEL)
        for test in (fit.number, fit.time)
    )
    if fit.wide or null_misfit(scores) or fails_ladder:
        objection = "scores do not follow what canaries added"
    if client.secret is not None:
        sampling_p = sampling_p_value(record, client.secret)
        if sampling_p < _MODEL_LEVEL:
            objection = f"participations do not follow the recorded law (p = {sampling_p:.2g})"
    if record.findings.clients_add_noise:
        objection = "clients add noise of their own, which canaries do not have"
    if record.findings.stopped is not None:
        objection = "the run was ended by its scores"
    return LawTest(p_value, sampling_p, objection)


def compared_with(scores: Scores, method: str) -> int:
    """Number of unobserved scores that a bound uses; 0 with the exact null."""
    has_exact_null = scores.dim is not None and not BOUNDS[method].needs_coins
    if has_exact_null or scores.unobserved is None:
        return 0
    return scores.unobserved.size


def gaussian_p_value(groups: Sequence[Floats]) -> float | None:
    """p-value of a test that groups of scores are Gaussian with one variance.

    The test uses all scores less their group's mean.

    It is ``None`` for fewer than eight scores, or scores without any spread.
    """
    fit = gaussian_test(
        np.concatenate([group - group.mean() for group in groups])
    )
    if fit is None:
        return None
    return fit.p_value


def sampling_p_value(record: AuditRecord, events: Events) -> float:
    """p-value of canaries' participations under the law of their secret rounds.

    It is 1 or 0 if only a dominating law is known. For coins there are three tests with a
    Bonferroni correction: of the total number of participations, of its variance between
    canaries (two-sided), and of its variance between rounds (one-sided).
    """
    presence = record.presence
    law = record.mechanism.participation
    # A dominating law is not the law of the rounds.
    if law.dominating is not None:
        return float(np.all(presence.sum(axis=0) <= law.limit))
    members = num_members(record, events)
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
    total = int(presence.sum())
    trials = members * record.rounds
    totals = scipy.stats.binom(trials, float(np.mean(chances)))
    by_total = 2 * min(float(totals.cdf(total)), float(totals.sf(total - 1)))
    rate = total / trials
    if not 0 < rate < 1:
        return min(1.0, by_total)
    absent = np.zeros(members - presence.shape[1])
    canary_counts = np.append(presence.sum(axis=0), absent)
    canary_excess = _excess_variance(canary_counts, record.rounds, rate)
    round_excess = _excess_variance(presence.sum(axis=1), members, rate)
    by_canaries = 2 * scipy.special.ndtr(-abs(canary_excess))
    by_rounds = scipy.special.ndtr(-round_excess)
    return float(min(1.0, 3 * min(by_total, by_canaries, by_rounds)))


def power_against_twice(
    epsilon_at: Callable[[float], float],
    claim: float,
    reach: float,
    confidence: float,
) -> float:
    """The probability that an estimate refutes a claim if ε is twice as large.

    Args:
        epsilon_at: ε as an increasing function of a scale.
        claim: the claimed ε, finite.
        reach: distance of the scale's estimate from the end of its interval.
        confidence: confidence of that interval, two-sided.
    """
    if not 0 < reach < math.inf:
        return 0.0
    # One value may take a tenth of a second.
    cached = functools.cache(epsilon_at)
    claimed = scale_at(cached, claim, close=_SCALE_ERROR)
    twice = scale_at(cached, 2 * claim, close=_SCALE_ERROR)
    distance = (twice - claimed) / reach
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
    shift = shift_of_epsilon(estimate.epsilon, delta)
    return power_against_twice(
        lambda shift: float(epsilon_of_shift(shift, delta)),
        claim,
        shift_of_epsilon(estimate.high, delta) - shift,
        estimate.confidence,
    )


def power_of_bound(
    scores: Scores, delta: float, claim: float, confidence: float, method: str
) -> float:
    """Power of a lower bound against twice the claimed ε, in steps of 5%.

    The noise is Gaussian, or Laplace noise at δ = 0. Scores at the quantiles of its law are
    shifted by their sampling error at each power; the largest power at which the bound is above
    the claim is returned.

    Args:
        scores: the scores, of which only their numbers and their null are used.
        delta: target δ.
        claim: the claimed ε, finite.
        confidence: confidence of the bound.
        method: method of the bound.
    """
    # Without this, all powers would be tried in vain.
    if ceiling(scores, delta, confidence, method) <= claim:
        return 0.0
    law = scipy.stats.norm if delta else scipy.stats.laplace
    shift = shift_of_epsilon(2 * claim, delta) if delta else 2 * claim
    count = scores.observed.size
    observed = law.ppf(_quantiles(count)) + shift
    variance = 1 / count
    null = None
    unobserved = compared_with(scores, method)
    if unobserved:
        null = law.ppf(_quantiles(unobserved))
        variance += 1 / unobserved
    error = law.std() * math.sqrt(variance)
    for power in _POWERS:
        likely = dataclasses.replace(
            scores,
            observed=observed - scipy.special.ndtri(power) * error,
            unobserved=null,
            linear=True,
        )
        if (
            lower_bound(likely, delta, confidence=confidence, method=method)
            > claim
        ):
            return float(power)
    return 0.0


def _not_gaussian(
    groups: Sequence[Floats], p_value: float | None, least: int
) -> str:
    """The objection of a `LawTest` for scores that are too few, or not Gaussian; else empty."""
    if p_value is None or sum(group.size for group in groups) < least:
        return (
            f"fewer than {least} scores cannot tell whether they are Gaussian"
        )
    if p_value < _GAUSSIAN_LEVEL:
        return f"the scores are not Gaussian (p = {p_value:.2g})"
    return ""


def _excess_variance(
    counts: Integers | Floats, trials: int, rate: float
) -> float:
    """The excess of the counts' variance over Binomial(trials, rate), in standard errors."""
    square = trials * rate * (1 - rate)
    fourth = square * (1 + 3 * (trials - 2) * rate * (1 - rate))
    excess = float(np.sum((counts - trials * rate) ** 2)) - len(counts) * square
    return excess / math.sqrt(len(counts) * (fourth - square**2))


def _quantiles(count: int) -> Floats:
    """The levels of ``count`` evenly spread quantiles."""
    return (np.arange(count) + 0.5) / count
