"""Estimates of an empirical ε with an interval, from scores.

Every result here is an *estimate* of the ε that this canary attack achieves. It is not a bound for
all attacks; lower bounds are in `fl_epe.auditing.bounds`. Why known variance and the matched
filter are the defaults: docs/notes/estimates.md.

Examples:
    >>> estimate = epsilon_from_cosines([0.01, 0.02, 0.03], dim=10_000, delta=1e-5)
    >>> estimate.low < estimate.epsilon < estimate.high
    True
"""

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing.answer.answer import answer
from fl_epe.auditing.answer.audited_client import claim_adversary
from fl_epe.auditing.bounds import (
    Sample,
    UpperLimit,
    band_upper,
    count_errors,
    epsilon_from_rates,
    upper_rates,
)
from fl_epe.auditing.estimate import (
    Adversary,
    EpsilonEstimate,
    FittedGaussian,
    estimate_between,
    fit_gaussian,
    half_width,
)
from fl_epe.auditing.record import AuditRecord, NotMeasured
from fl_epe.auditing.scoring import (
    STATISTICS,
    Scores,
    check_known_variance,
    check_sign,
    in_moderate_units,
    not_gaussian,
    scores_of,
    seen_by,
    shift_scores,
    wider_than_known,
)
from fl_epe.checks import Floats, check_probability, raise_invalid

# Expected scores count as equal if their range is at most this share of their mean.
_MAX_RELATIVE_RANGE = 0.01

# Least number of scores in each group, times δ, for an estimate without a law.
_MIN_SCORES_TIMES_DELTA = 10

ANY_LAW = "best threshold, any law"
"""The end of the method of an estimate that assumes no law."""

# Scores are clipped to this size, so that sums of their squares do not overflow. For a larger mean
# score ε is infinite.
_HUGE = 1e145


def epsilon_from_cosines(
    cosines: ArrayLike,
    dim: int,
    delta: float,
    *,
    variance: str = "known",
    confidence: float = 0.95,
) -> EpsilonEstimate:
    """ε from the cosines of observed canaries (Andrew et al. 2024, Algorithms 1 and 2).

    The cosines' exact law is used, a noncentral t distribution
    (`fl_epe.auditing.scoring.scores`), whether the canaries are in independent Gaussian vectors
    or in a common one. The interval has its confidence at every ε for ``dim`` ≥ 10, and a χ² test
    refuses cosines with a larger variance (`check_known_variance`).
    ``benchmarks/estimators.py --dims`` prints bias, coverage and refusals.

    Args:
        cosines: shape ``(k,)``, the cosine of each observed canary with the released vector.
        dim: dimension of the canaries.
        delta: target δ in (0, 1).
        variance: "known" uses the variance of a shifted null. "fitted" estimates it as the
            paper does, which is noisier and biased upwards. It treats scores of canaries with
            different means as one Gaussian.
        confidence: coverage of the interval.

    Raises:
        ValueError: for NaN or infinite cosines, fewer than two, or an argument out of range.
        NotMeasured: a `ValueError`, for cosines with a larger variance than the known one, far
            below 0, or in fewer than 10 dimensions.
    """
    scores = Scores.from_cosines(cosines, dim)
    return epsilon_of(
        scores, delta, variance, confidence, refuse=variance != "fitted"
    )


def epsilon_from_scores(
    observed: ArrayLike,
    unobserved: ArrayLike,
    delta: float,
    *,
    confidence: float = 0.95,
) -> EpsilonEstimate:
    """ε between two fitted Gaussians (Andrew et al. 2024, Algorithm 3).

    For scores that are certainly not Gaussian (`not_gaussian`), the result is that of
    `epsilon_of_thresholds`, which assumes no law and needs at least 10/δ scores in each group.

    Args:
        observed: shape ``(k,)``, the score of each canary that took part.
        unobserved: shape ``(u,)``, the scores of canaries that did not.
        delta: target δ in (0, 1).
        confidence: coverage of the interval, for large samples.

    Raises:
        ValueError: for scores that are NaN, fewer than two, or an argument out of range.
        NotMeasured: a `ValueError`, for observed scores that are far below unobserved ones, and for
            scores that are not Gaussian (infinite ones are not) if there are too few of them.
            `epsilon_lower_bound` assumes no law.
    """
    scores = Scores(np.asarray(observed), np.asarray(unobserved))
    return epsilon_of(scores, delta, confidence=confidence, refuse=True)


def epsilon_of_thresholds(
    scores: Scores, delta: float, confidence: float = 0.95
) -> EpsilonEstimate:
    """ε of the best threshold on the scores, whatever their law.

    It is the largest of ln((P[S ≥ t] − δ)/Q[S ≥ t]) and ln((Q[S < t] − δ)/P[S < t]) over all
    thresholds t, with P the law of observed scores and Q that of unobserved ones (Kairouz, Oh,
    Viswanath 2015). It is ε of the scores if their likelihood ratio increases with the score, and
    less otherwise. The interval is computed from limits of both rates that hold at all
    thresholds simultaneously, so it has its confidence for every law. Coverage and width:
    ``simulations/studies/any_law.py``.

    Raises:
        ValueError: if an argument is out of range, or unobserved scores are missing.
        NotMeasured: a `ValueError`, for too few scores: an event that was never observed may
            have a probability above δ, so that ε may be infinite.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    observed, unobserved = in_moderate_units(*scores.both())
    # Four bands, a lower and an upper one for each rate, have a quarter of the level each.
    alpha = (1 - confidence) / 4
    sample = Sample(observed, unobserved, 0, delta, alpha)
    thresholds = np.append(
        np.unique(np.concatenate([observed, unobserved])), math.inf
    )
    errors = count_errors(sample, thresholds)

    def largest_epsilon(limit: UpperLimit) -> float:
        with np.errstate(divide="ignore"):  # A rate may be 0.
            log_fpr, fnr = upper_rates(errors, limit, alpha)
        return float(np.max(epsilon_from_rates(log_fpr, fnr, delta)))

    def lower_limit(count: Floats, total: int, alpha: float) -> Floats:
        return 1 - band_upper(total - count, total, alpha)

    def estimated_rate(count: Floats, total: int, _: float) -> Floats:
        return (count + 0.5) / (total + 1)

    # Smaller error rates give a larger ε.
    low = largest_epsilon(band_upper)
    high = largest_epsilon(lower_limit)
    epsilon = largest_epsilon(estimated_rate)
    if math.isinf(high):
        raise NotMeasured(
            f"without a law, an ε at δ = {delta:.2g} needs at least "
            f"{math.ceil(_MIN_SCORES_TIMES_DELTA / delta):,} scores of each side"
        )
    return EpsilonEstimate(
        epsilon=min(max(epsilon, low), high),
        low=low,
        high=high,
        delta=delta,
        confidence=confidence,
        method=f"{scores.statistic}, {ANY_LAW}",
        adversary=scores.adversary,
    )


def epsilon_from_record(
    record: AuditRecord,
    delta: float | None = None,
    *,
    adversary: Adversary | None = None,
    statistic: str | None = None,
    variance: str = "known",
    confidence: float = 0.95,
    leave_one_out: bool = True,
) -> EpsilonEstimate:
    """ε of an audited run against an adversary: that of `fl_epe.auditing.answer.answer`.

    With a named ``statistic``, fitted variance, or ``leave_one_out=False`` the result is ε of the
    canaries' mean score in that statistic instead.

    Args:
        record: the audit record of the run.
        delta: target δ; the record's by default.
        adversary: what the adversary sees and knows. The default is the adversary of a named
            ``statistic``. Without one it is that of privacy accounting, who sees every round's
            model and knows the rounds of a client unless sampling hides them.
        statistic: "displacement" is the cosine with θ_T − θ_0, as the initial model is public, and
            "model" is the paper's, the cosine with θ_T. The others use every round's model:
            "matched-filter" needs known rounds; "full-knowledge" is for an adversary who also knows
            the real clients' sum and the other canaries' updates; "maximum" is the paper's (the
            largest cosine with the model's change in a round).
        variance: "known" or "fitted", see `epsilon_from_cosines`; "maximum" is always fitted.
        confidence: coverage of the interval.
        leave_one_out: whether the other canaries are projected out of the released vectors, so
            that ε does not fall where there are many canaries.

    Raises:
        ValueError: if an argument is out of range or the record lacks the data of the
            statistic.
        NotMeasured: a `ValueError` with the reason, if the run measured nothing.
    """
    delta = record.delta if delta is None else delta
    if adversary is None:
        adversary = STATISTICS.get(statistic or "", claim_adversary(record))
    # No answer of a run is for an adversary who knows the others.
    needs_statistic = statistic is not None or adversary.knows_others
    if not needs_statistic and variance == "known" and leave_one_out:
        run_answer = answer(record, adversary, delta, confidence)
        if run_answer.estimate is None:
            raise NotMeasured(run_answer.reason)
        return run_answer.estimate
    view = seen_by(record, adversary)
    if not leave_one_out:
        view = view.with_all_canaries
    scores = scores_of(view, statistic)
    if leave_one_out or variance != "known" or not scores.standard_null:
        return epsilon_of(scores, delta, variance, confidence)
    # Canaries are noise to each other, so the scores have a larger variance than the known one.
    # `epsilon_of` would test the variance and refuse it.
    method = f"{scores.statistic}, known variance"
    return _known_variance(scores, delta, confidence, method)


def epsilon_of(
    scores: Scores,
    delta: float,
    variance: str = "known",
    confidence: float = 0.95,
    *,
    refuse: bool = False,
) -> EpsilonEstimate:
    """ε from scores: against N(0, 1) if that is their null, else between two fitted Gaussians.

    Args:
        scores: the scores.
        delta: target δ in (0, 1).
        variance: "known" or "fitted", for scores with the null N(0, 1); not used for others.
        confidence: coverage of the interval.
        refuse: whether scores with another law than the assumed one are an error, namely those
            that are `wider_than_known` or not Gaussian. If both groups are given and large
            enough, the result is that of `epsilon_of_thresholds` instead. Without ``refuse``,
            scores that are `wider_than_known` get the estimate of the fitted variance, with an
            interval without an upper end.

    Raises:
        ValueError: if an argument is out of range, or unobserved scores are needed and missing.
        NotMeasured: a `ValueError`, for observed scores far below unobserved ones, cosines in fewer
            than 10 dimensions, or scores that ``refuse`` excludes.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    if not scores.standard_null:
        return _two_gaussians(scores, delta, confidence, refuse)
    if variance not in ("known", "fitted"):
        raise_invalid("variance", variance, "to be 'known' or 'fitted'")
    method = f"{scores.statistic}, {variance} variance"
    finite = np.clip(scores.observed, -_HUGE, _HUGE)
    scores = dataclasses.replace(scores, observed=finite)
    check_sign(scores)
    is_known = variance == "known"
    is_wide = is_known and wider_than_known(scores)
    if is_known and (refuse or not is_wide):
        check_known_variance(scores)
        return _known_variance(scores, delta, confidence, method)
    if refuse:
        reason = not_gaussian(scores)
        if reason:
            raise NotMeasured(reason)
    observed = scores.observed
    if scores.dim is not None:
        observed = shift_scores(scores.cosines, scores.dim)
    null = FittedGaussian(0.0, 1.0)
    alt = fit_gaussian(observed)
    fitted = estimate_between(
        null, alt, delta, confidence, method, scores.adversary
    )
    if not is_wide:
        return fitted
    low = min(
        fitted.low, _known_variance(scores, delta, confidence, method).low
    )
    method = (
        f"{scores.statistic}, fitted variance as wider than known, no upper end"
    )
    return dataclasses.replace(fitted, low=low, high=math.inf, method=method)


def _two_gaussians(
    scores: Scores, delta: float, confidence: float, refuse: bool
) -> EpsilonEstimate:
    """ε between Gaussians that are fitted to both groups of scores."""
    observed, unobserved = in_moderate_units(*scores.both())
    check_sign(
        dataclasses.replace(scores, observed=observed, unobserved=unobserved)
    )
    if refuse or scores.infinite:
        reason = not_gaussian(scores)
        if reason:
            try:
                return epsilon_of_thresholds(scores, delta, confidence)
            except NotMeasured as error:
                raise NotMeasured(f"{reason}; {error}") from None
    alt = fit_gaussian(observed)
    null = fit_gaussian(unobserved)
    method = f"{scores.statistic}, two fitted Gaussians"
    return estimate_between(
        null, alt, delta, confidence, method, scores.adversary
    )


def _known_variance(
    scores: Scores, delta: float, confidence: float, method: str
) -> EpsilonEstimate:
    """ε by known variance: at the true μ the mean of the k deviates is N(0, spread²/k).

    The interval includes the error of the scores' unit.
    """
    expected = scores.expected
    is_unequal = (
        expected is not None
        and np.ptp(expected) > _MAX_RELATIVE_RANGE * expected.mean()
    )
    if is_unequal:
        method += ", of the mean of unequal canaries"
    quantile = half_width(confidence)
    half = quantile * scores.spread / math.sqrt(scores.observed.size)
    shift = scores.shift(0.0)
    unit_error = quantile * scores.unit_error * shift
    low = shift - math.hypot(shift - scores.shift(half), unit_error)
    high = shift + math.hypot(scores.shift(-half) - shift, unit_error)
    return EpsilonEstimate(
        epsilon=float(epsilon_of_shift(scores.unit * shift, delta)),
        low=float(epsilon_of_shift(scores.unit * low, delta)),
        high=float(epsilon_of_shift(scores.unit * high, delta)),
        delta=delta,
        confidence=confidence,
        method=method,
        adversary=scores.adversary,
    )
