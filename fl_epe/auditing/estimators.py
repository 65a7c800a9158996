"""From scores to an empirical ε with an interval.

Every result here is an *estimate*: what this canary attack achieves, not a bound on what any attack
could. The lower bounds are in `fl_epe.auditing.bounds`. Why known variance and the matched filter
are the defaults: docs/notes/estimates.md.

Examples:
    >>> found = epsilon_from_cosines([0.01, 0.02, 0.03], dim=10_000, delta=1e-5)
    >>> found.low < found.epsilon < found.high
    True
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_epe.accounting import epsilon_two_gaussians, poisson_epsilon, unknown_rounds_epsilon
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.fitted_gaussians import FittedGaussian, estimate_between, fit_gaussian
from fl_epe.auditing.one_release import possible, shift_interval, shift_of_one
from fl_epe.auditing.other_canaries import with_others, without_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.score_spread import (
    check_known_variance,
    check_sign,
    null_interval,
    wider_than_known,
)
from fl_epe.auditing.scores import Scores, in_moderate_units
from fl_epe.auditing.shifted_cosines import shift_scores
from fl_epe.auditing.statistics import (
    STATISTICS,
    ThreatModel,
    check_unknown_rounds_law,
    epoch_blocks,
    expected_signal,
    footprints,
    scores_from_record,
)
from fl_epe.checks import check_probability, check_scores, expected

Floats = NDArray[np.float64]

_ALIKE = 0.01  # relative difference of expected scores that count as equal
_HUGE = 1e145  # for a larger mean score ε is infinite, and squares of many still fit


def epsilon_from_cosines(
    cosines: ArrayLike,
    dim: int,
    delta: float,
    *,
    variance: str = "known",
    confidence: float = 0.95,
    together: bool = False,
    sum_norm: float | None = None,
) -> EpsilonEstimate:
    """ε from the cosines of observed canaries (Andrew et al. 2024, Algorithms 1 and 2).

    The cosines' own law is used, a noncentral t distribution (`shifted_cosines`): each canary is in
    a Gaussian vector of its own, or of the same length. The interval then covers at every ε in
    ``dim`` ≥ 10, and a χ² test refuses cosines that are wider (`check_known_variance`).
    ``benchmarks/estimators.py --dims`` prints bias, coverage and refusals.

    Args:
        cosines: shape ``(k,)``, cosine of each observed canary with what was released.
        dim: dimension of the canaries.
        delta: target δ in (0, 1).
        variance: "known" uses the variance that a shifted null has; "fitted" estimates it, as the
            paper does (noisier, biased upwards), and takes a mixture of canaries for a Gaussian.
        confidence: coverage of the interval.
        together: all of these canaries, and no others, took part in the one release that the
            cosines are with, each with the same norm. ε is then for one of them alone; otherwise
            they hide each other where they are many for the dimension (`epsilon_together`).
        sum_norm: length of the sum of their directions, if you have them. It makes the interval
            short where the canaries are most of the release; only with ``together=True``.

    Raises:
        ValueError: for NaN or infinite cosines, fewer than two, or an argument out of range.
        NotMeasured: a `ValueError`, for cosines that are wider than known variance allows, far
            below 0, or in fewer than 10 dimensions.
    """
    scores = Scores.from_cosines(cosines, dim)
    check_together(together, sum_norm)
    if not together:
        return epsilon_of(scores, delta, variance, confidence, refuse=True)
    if variance != "known":
        raise ValueError(f"Expected variance={variance!r} to be 'known' with together=True.")
    return epsilon_together(scores, delta, confidence, sum_norm=sum_norm)


def check_together(together: bool, sum_norm: float | None) -> None:
    """Refuse a length of the canaries' sum without their word that they share a release.

    Raises:
        ArgumentError: a `ValueError`, that names ``sum_norm``.
    """
    if sum_norm is not None and not together:
        expected(
            "sum_norm", sum_norm, "only for canaries that took part together, which was not said"
        )


def epsilon_together(
    scores: Scores, delta: float, confidence: float = 0.95, *, sum_norm: float | None = None
) -> EpsilonEstimate:
    """ε of one canary alone, from k canaries that took part in one release with equal norms.

    With the mean score m it is ε between N(0, 1) and N(μ, 1), ``μ = m/√(1 − m²k/d)``. Each of the
    canaries hides the others; this takes them out. The interval allows for the noise along the
    canaries, for the length of all that hides them (as of Gaussian noise), and for the length of
    the canaries' sum unless it is given. Without it ε may be infinite where the canaries are
    nearly all of the release: bare cosines do not tell how little else there is.

    Args:
        scores: from `Scores.from_cosines`, of all canaries of the release.
        delta: target δ in (0, 1).
        confidence: coverage of the interval.
        sum_norm: length of the sum of the canaries' directions, such as
            ``np.linalg.norm(canaries.combine(np.ones((1, k))))`` for a `CanarySet`.

    Raises:
        ValueError: if the scores are not cosines, or an argument is out of range.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    count, dim = len(scores.observed), scores.dim
    if dim is None:
        raise ValueError("Expected dim=None to be set: only cosines say how much canaries overlap.")
    check_sign(scores)
    check_known_variance(scores)
    if sum_norm is not None and not 0 < sum_norm <= count * (1 + 1e-6):
        raise ValueError(f"Expected 0 < sum_norm={sum_norm} <= {count}, the number of canaries.")
    mean = float(scores.observed.mean())
    if sum_norm is not None and not possible(mean, count, dim, sum_norm):
        cosine = mean / np.sqrt(dim)
        expected(
            "sum_norm",
            sum_norm,
            f">= {cosine * count:.4g}, as {count} cosines of {cosine:.3g} on average need",
        )
    if not possible(mean, count, dim, sum_norm):
        raise ValueError(
            f"Expected cosines of canaries that share one release, got a mean of "
            f"{mean / np.sqrt(dim):.3g} for {count} of them in {dim} dimensions, which is too "
            "large; leave out together=True if each was in a release of its own."
        )
    low, high = shift_interval(mean, count, dim, confidence, sum_norm)
    shift = min(max(shift_of_one(mean, count, dim, sum_norm), low), high)
    method = f"{scores.statistic}, known variance, other canaries taken out"
    return _estimate_at(np.array([shift, low, high]), delta, confidence, method)


def epsilon_from_scores(
    observed: ArrayLike, unobserved: ArrayLike, delta: float, *, confidence: float = 0.95
) -> EpsilonEstimate:
    """ε between two fitted Gaussians (Andrew et al. 2024, Algorithm 3).

    Args:
        observed: shape ``(k,)``, score of each canary that took part.
        unobserved: shape ``(u,)``, scores of canaries that did not.
        delta: target δ in (0, 1).
        confidence: coverage of the interval, for large samples.

    Raises:
        ValueError: for NaN or infinite scores, fewer than two, or an argument out of range.
        NotMeasured: a `ValueError`, for observed scores that are far below unobserved ones.
    """
    others = check_scores("unobserved", unobserved)
    scores = Scores(check_scores("observed", observed), others)
    return epsilon_of(scores, delta, confidence=confidence)


def epsilon_from_record(
    record: AuditRecord,
    delta: float | None = None,
    *,
    threat: ThreatModel = "final",
    statistic: str | None = None,
    variance: str = "known",
    confidence: float = 0.95,
    raw: bool = False,
) -> EpsilonEstimate:
    """ε of an audited run under a threat model.

    Args:
        record: the audit record of the run.
        delta: target δ; the record's by default.
        threat: "final" (the adversary sees the final model) or "all" (every round's model).
        statistic: for "final" "displacement" (the default: cosine with θ_T − θ_0, as the initial
            model is public) or "model" (the paper's: cosine with θ_T). For "all" "matched-filter"
            (the default: the rounds are known), "full-knowledge" (the real clients' sum and the
            other canaries are known as well), "likelihood-ratio" (the rounds are unknown) or
            "maximum" (the paper's: the largest cosine with the model's change in a round).
        variance: "known" or "fitted", see `epsilon_from_cosines`; "maximum" is always fitted,
            "likelihood-ratio" never.
        confidence: coverage of the interval.
        raw: leave the other canaries in what hides one; by default they are taken out of the
            statistics in `AMONG_CLIENTS`, so that ε does not fall where there are many canaries.

    Raises:
        ValueError: if an argument is out of range or the record lacks what the statistic needs.
        NotMeasured: a `ValueError` with the reason, if the run measured nothing.
    """
    delta = record.delta if delta is None else delta
    if threat not in STATISTICS:
        raise ValueError(f"Expected threat={threat!r} to be 'final' or 'all'.")
    statistic = statistic or next(iter(STATISTICS[threat]))
    if statistic == "likelihood-ratio":
        record = with_others(record) if raw else record
        fit = footprint_fit(record, delta, threat="all", confidence=confidence)
        return unknown_rounds_estimate(without_others(record), fit)
    scores = scores_from_record(record, threat, statistic, raw=raw)
    if raw and variance == "known" and scores.standard_null:  # wider, as canaries hide each other
        check_probability("confidence", confidence)
        check_probability("delta", delta)
        method = f"{scores.statistic}, known variance"
        return _known_variance(scores, delta, confidence, method)
    return epsilon_of(scores, delta, variance, confidence)


@dataclasses.dataclass(frozen=True)
class FootprintFit:
    """The scale κ in ``score = κ · footprint + N(0, 1)``, and ε from it.

    Attributes:
        scale: κ; 1 if the footprints explain the scores.
        low: lower end of κ's interval.
        high: upper end of κ's interval.
        mean: ε of a canary with the mean footprint.
        most_exposed: ε of the canary with the largest footprint.
    """

    scale: float
    low: float
    high: float
    mean: EpsilonEstimate
    most_exposed: EpsilonEstimate


def footprint_fit(
    record: AuditRecord,
    delta: float | None = None,
    *,
    threat: ThreatModel = "final",
    confidence: float = 0.95,
    scores: Scores | None = None,
) -> FootprintFit:
    """Fit ``score_i = κ·m_i + N(0, 1)`` to the displacement or the matched filter.

    The footprints ``m_i`` (`statistics.footprints`) account for a canary's rounds and their clip
    norms. κ is fitted by least squares (of deviates, for cosines). Its interval is wider where
    canaries overlap (`Scores.spread`) or the null was measured, as that of the mean score. Pass the
    threat's default ``scores`` if you have them.

    Raises:
        ValueError: if an argument is out of range or the footprints cannot be computed.
    """
    delta = record.delta if delta is None else delta
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    sizes = footprints(record, threat)
    if scores is None:
        scores = scores_from_record(record, threat, next(iter(STATISTICS[threat])))
    energy = float(np.sum(sizes**2))
    if energy == 0:
        raise ValueError("Expected footprints > 0, got 0 for every canary.")
    # The length of what hides all canaries moves κ as it moves the mean score.
    common = max(scores.spread**2 - 1, 0.0) / (len(sizes) * float(sizes.mean()) ** 2)
    deviation = np.sqrt(min(scores.spread, 1.0) ** 2 / energy + common)
    scales = _with_ends(scores, float(deviation), confidence, sizes)
    mean, most_exposed = (
        _estimate_at(
            scales * footprint, delta, confidence, f"footprint regression, {name} footprint"
        )
        for name, footprint in (("mean", sizes.mean()), ("largest", sizes.max()))
    )
    scale, low, high = scales.tolist()
    return FootprintFit(scale, low, high, mean, most_exposed)


def unknown_rounds_estimate(record: AuditRecord, fit: FootprintFit) -> EpsilonEstimate:
    """ε of an adversary who sees every round's model but does not know the rounds.

    Args:
        record: the audit record of the run.
        fit: strength of the signal, from the known rounds (`footprint_fit` for "all").

    Raises:
        ValueError: if the schedule's unknown rounds have no closed-form law.
    """
    law = check_unknown_rounds_law(record)
    delta, confidence = fit.mean.delta, fit.mean.confidence
    signal = np.maximum(expected_signal(record), 1e-9)  # 0 in a round without a release

    def epsilon(scale: float) -> float:
        if scale <= 0:
            return 0.0
        if law == "coins":
            strength = scale * float(np.sqrt(np.mean(signal**2)))
            rate = min(1.0, record.mechanism.canary_participations / record.rounds)
            return poisson_epsilon(1 / strength, rate, record.rounds, delta)
        return unknown_rounds_epsilon([scale * signal[b] for b in epoch_blocks(record)], delta)

    method = "likelihood ratio at unknown rounds, from its privacy-loss distribution"
    middle, low, high = (epsilon(scale) for scale in (fit.scale, fit.low, fit.high))
    return EpsilonEstimate(middle, low, high, delta, confidence, method)


def epsilon_of(
    scores: Scores,
    delta: float,
    variance: str = "known",
    confidence: float = 0.95,
    *,
    refuse: bool = False,
) -> EpsilonEstimate:
    """ε from scores: against N(0, 1) if that is their null, else between two fitted Gaussians.

    The other arguments are as in `epsilon_from_record`; ``variance`` is used only with the null
    N(0, 1). Where scores are `wider_than_known`, no number of them is ε: the estimate is that of
    the fitted variance, and its interval has no upper end; with ``refuse=True`` it is an error.

    Raises:
        ValueError: if an argument is out of range, or unobserved scores are needed and missing.
        NotMeasured: a `ValueError`, for observed scores far below unobserved ones, cosines in fewer
            than 10 dimensions, or where ``refuse`` says so.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    if not scores.standard_null:
        observed, unobserved = in_moderate_units(*scores.both())
        check_sign(dataclasses.replace(scores, observed=observed, unobserved=unobserved))
        alt, null = fit_gaussian(observed), fit_gaussian(unobserved)
        method = f"{scores.statistic}, two fitted Gaussians"
        return estimate_between(null, alt, delta, confidence, method)
    method = f"{scores.statistic}, {variance} variance"
    scores = dataclasses.replace(scores, observed=np.clip(scores.observed, -_HUGE, _HUGE))
    check_sign(scores)
    if variance not in ("known", "fitted"):
        raise ValueError(f"Expected variance={variance!r} to be 'known' or 'fitted'.")
    wide = variance == "known" and wider_than_known(scores)
    if variance == "known" and (refuse or not wide):
        check_known_variance(scores)
        return _known_variance(scores, delta, confidence, method)
    observed = scores.observed
    if scores.dim is not None:
        observed = shift_scores(scores.cosines, scores.dim)
    fitted = estimate_between(
        FittedGaussian(0.0, 1.0), fit_gaussian(observed), delta, confidence, method
    )
    if not wide:
        return fitted
    low = min(fitted.low, _known_variance(scores, delta, confidence, method).low)
    method = f"{scores.statistic}, fitted variance as wider than known, no upper end"
    return dataclasses.replace(fitted, low=low, high=math.inf, method=method)


def shift_estimate(
    shift: float, ends: tuple[float, float], delta: float, confidence: float, method: str
) -> EpsilonEstimate:
    """ε of scores N(``shift``, 1) against N(0, 1), with that of both ends of an interval for it.

    A shift below 0 counts as 0.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    return _estimate_at(np.array([shift, *ends]), delta, confidence, method)


def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """The shift between N(0, 1) and N(shift, 1) at which ε is ``epsilon``; its inverse is ε.

    Raises:
        ValueError: if ``epsilon`` is negative or infinite, or ``delta`` is not in (0, 1).
    """
    check_probability("delta", delta)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"Expected epsilon={epsilon} in [0, inf).")

    def excess(shift: float) -> float:
        return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta)) - epsilon

    high = 1.0
    while excess(high) <= 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _known_variance(
    scores: Scores, delta: float, confidence: float, method: str
) -> EpsilonEstimate:
    """The mean of the deviates is N(0, spread²/k) at the true μ; wider if the null was measured.

    The errors of the mean and of the null's width are independent, so their sides of the interval
    add as squares.
    """
    deviation = float(scores.spread / np.sqrt(scores.observed.size))
    if scores.null is not None:
        method += ", measured null"
    if scores.expected is not None and np.ptp(scores.expected) > _ALIKE * scores.expected.mean():
        method += ", of the mean of unequal canaries"
    return _estimate_at(_with_ends(scores, deviation, confidence), delta, confidence, method)


def _with_ends(
    scores: Scores, deviation: float, confidence: float, sizes: ArrayLike = 1.0
) -> Floats:
    """`Scores.shift`, and both ends of its interval.

    Args:
        scores: with the null N(0, 1).
        deviation: of the mean of the deviates, for a known null.
        confidence: coverage.
        sizes: as in `Scores.shift`.
    """
    half = float(scipy.special.ndtri((1 + confidence) / 2)) * deviation
    value, low, high = (scores.shift(mean, sizes) for mean in (0.0, half, -half))
    if scores.null is not None:
        width, count = scores.null
        narrow, wide = null_interval(width, count, confidence)
        low = value - np.hypot(value - low, value * (1 - width / wide))
        high = value + np.hypot(high - value, value * (width / narrow - 1))
    return np.array([value, low, high])


def _estimate_at(means: Floats, delta: float, confidence: float, method: str) -> EpsilonEstimate:
    """ε between N(0, 1) and N(max(mean, 0), 1), for the estimate and both ends of its interval."""
    without = np.isposinf(means)  # nothing hides the canaries
    shifts = np.maximum(np.where(without, 0.0, means), 0.0)
    found = np.asarray(epsilon_two_gaussians(0.0, 1.0, shifts, 1.0, delta))
    epsilon, low, high = np.where(without, np.inf, found).tolist()
    return EpsilonEstimate(epsilon, low, high, delta, confidence, method)
