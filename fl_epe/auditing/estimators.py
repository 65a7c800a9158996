"""From scores to an empirical ε with an interval.

Every estimate here is an *estimate*: what the canary attack achieves, not a bound on what any
attack could. `fl_epe.auditing.bounds.by_name` has the lower bounds.

Why known variance is the default. A canary's score has the null's variance, whether it took part
or not, as dimension grows; fitting it only adds error, and where the fitted deviations differ by
2% the ε of two Gaussians at δ = 10⁻⁶ is inflated. `benchmarks/estimators.py` prints, for k = 1000
canaries, δ = 10⁻⁶ and 2,000 runs::

    true ε   variance      bias       sd      rmse   ratio   coverage
         0   known      +0.0476   0.0700    0.0846    1.00     0.9745
         0   fitted     +0.3512   0.2563    0.4347    5.14     0.9570
       0.3   known      +0.0011   0.1296    0.1295    1.00     0.9515
       0.3   fitted     +0.3315   0.3022    0.4486    3.46     0.9565
         1   known      +0.0026   0.1443    0.1442    1.00     0.9450
         1   fitted     +0.3712   0.3337    0.4991    3.46     0.9520
         3   known      +0.0028   0.1638    0.1638    1.00     0.9405
         3   fitted     +0.4619   0.3918    0.6056    3.70     0.9540
        10   known      -0.0053   0.1992    0.1992    1.00     0.9595
        10   fitted     +0.6643   0.5566    0.8665    4.35     0.9540
        30   known      +0.0096   0.2958    0.2958    1.00     0.9465
        30   fitted     +1.1325   1.0442    1.5402    5.21     0.9540
       100   known      +0.0013   0.4704    0.4703    1.00     0.9495
       100   fitted     +2.7987   2.8037    3.9610    8.42     0.9575
       300   known      -0.0031   0.7831    0.7829    1.00     0.9505
       300   fitted     +6.8692   8.0684   10.5949   13.53     0.9610

Why the matched filter is the default where every round is seen. It meets the analytical ε, which
is meant for an adversary who knows the rounds. The maximum over rounds (Andrew et al. 2024,
Algorithm 3) is no Gaussian, and its ε depends on the server's momentum: in the limit, at T = 2048
and z = 0.0496, 0.0986, 0.2317, it is 2067, 577, 98 without momentum and 339, 88, 2.5 with momentum
0.9, where theory says 299, 99, 29 (and the paper prints 382, 89, 2.7); the matched filter is within
1% in both (`simulations/table3.py`).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fl_epe.accounting import epsilon_two_gaussians, poisson_epsilon, unknown_rounds_epsilon
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.fitted_gaussians import (
    FittedGaussian,
    estimate_between,
    fit_gaussian,
)
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import Scores
from fl_epe.auditing.statistics import (
    STATISTICS,
    ThreatModel,
    check_unknown_rounds_law,
    epoch_blocks,
    expected_signal,
    footprints,
    scores_from_record,
)
from fl_epe.checks import check_probability, check_scores

Floats = NDArray[np.float64]


def epsilon_from_cosines(
    cosines: ArrayLike,
    dim: int,
    delta: float,
    *,
    variance: str = "known",
    confidence: float = 0.95,
) -> EpsilonEstimate:
    """ε from the cosines of observed canaries (Andrew et al. 2024, Algorithms 1 and 2).

    The null is N(0, 1/dim), as an unobserved canary's cosine has mean zero and variance 1/dim.

    Args:
        cosines: shape ``(k,)``, cosine of each observed canary with what was released.
        dim: dimension of the canaries.
        delta: target δ in (0, 1).
        variance: "known" holds the observed variance at the null's 1/dim (unbiased, exact
            interval); "fitted" estimates it, as the paper does (noisier, biased upwards).
        confidence: coverage of the interval.

    Raises:
        ValueError: for NaN or infinite cosines, fewer than two, or an argument out of range.
    """
    return epsilon_of(Scores.from_cosines(cosines, dim), delta, variance, confidence)


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
) -> EpsilonEstimate:
    """ε of an audited run under a threat model.

    Args:
        record: what the run left behind.
        delta: target δ; the record's by default.
        threat: "final" (the adversary sees the final model) or "all" (every round's model).
        statistic: for "final": "displacement" (the default: cosine with θ_T − θ_0, as the
            initial model is public) or "model" (the paper's: cosine with θ_T). For "all":
            "matched-filter" (the default: the rounds of participation are known, momentum is
            undone), "full-knowledge" (the real clients' sum is known as well),
            "likelihood-ratio" (the rounds are unknown) or "maximum" (the paper's: largest cosine
            with a round's model delta).
        variance: "known" or "fitted", see `epsilon_from_cosines`; "maximum" is always fitted,
            "likelihood-ratio" never.
        confidence: coverage of the interval.

    Raises:
        ValueError: if an argument is out of range or the record lacks what the statistic needs.
    """
    delta = record.delta if delta is None else delta
    if threat not in STATISTICS:
        raise ValueError(f"Expected threat={threat!r} to be 'final' or 'all'.")
    statistic = statistic or next(iter(STATISTICS[threat]))
    if statistic == "likelihood-ratio":
        return unknown_rounds_estimate(
            record, footprint_fit(record, delta, threat="all", confidence=confidence)
        )
    return epsilon_of(scores_from_record(record, threat, statistic), delta, variance, confidence)


@dataclasses.dataclass(frozen=True)
class FootprintFit:
    """One scale κ that makes every canary's expected score its actual one, up to N(0, 1).

    Attributes:
        scale: κ; 1 if the footprints explain the scores.
        low: lower end of κ's interval.
        high: upper end of κ's interval.
        mean: ε of a participant with the mean footprint.
        most_exposed: ε of the participant with the largest footprint.
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

    Clip norms and participations differ, so the mean canary is not the most exposed one. The
    expected scores ``m_i`` (`statistics.footprints`) know both; κ is their common scale, by
    least squares, with its exact interval. Pass the default ``scores`` of the threat if you
    have them.

    Raises:
        ValueError: if an argument is out of range or the footprints cannot be computed.
    """
    delta = record.delta if delta is None else delta
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    expected = footprints(record, threat)
    if scores is None:
        scores = scores_from_record(record, threat, next(iter(STATISTICS[threat])))
    energy = float(np.sum(expected**2))
    if energy == 0:
        raise ValueError("Expected footprints that are not all zero.")
    half = special.ndtri((1 + confidence) / 2) / np.sqrt(energy)
    scales = np.sum(scores.observed * expected) / energy + np.array([0.0, -half, half])

    def estimate(footprint: float, name: str) -> EpsilonEstimate:
        means = np.maximum(scales, 0.0) * footprint
        method = f"footprint regression, {name} footprint"
        return _estimate_at(means, delta, confidence, method)

    scale, low, high = scales.tolist()
    return FootprintFit(
        scale,
        low,
        high,
        mean=estimate(float(expected.mean()), "mean"),
        most_exposed=estimate(float(expected.max()), "largest"),
    )


def unknown_rounds_estimate(record: AuditRecord, fit: FootprintFit) -> EpsilonEstimate:
    """What the signal is worth to an adversary who sees every round and knows nobody's rounds.

    Args:
        record: what the run left behind.
        fit: how strong the signal is, from the known rounds (`footprint_fit` for "all").

    Raises:
        ValueError: for a schedule whose unknown rounds have no closed-form law.
    """
    law = check_unknown_rounds_law(record)
    delta, confidence = fit.mean.delta, fit.mean.confidence
    signal = np.maximum(expected_signal(record), 1e-9)  # a round that released nothing

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
    scores: Scores, delta: float, variance: str = "known", confidence: float = 0.95
) -> EpsilonEstimate:
    """ε from scores: against N(0, 1) where that is their null, else between two fitted Gaussians.

    The other arguments are those of `epsilon_from_record`; ``variance`` says nothing about scores
    without a standard null, both of whose Gaussians are fitted.

    Raises:
        ValueError: if an argument is out of range, or unobserved scores are needed and missing.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    if not scores.standard_null:
        alt, null = (fit_gaussian(group) for group in scores.both())
        method = f"{scores.statistic}, two fitted Gaussians"
        return estimate_between(null, alt, delta, confidence, method)
    method = f"{scores.statistic}, {variance} variance"
    if variance == "known":
        return _known_variance(scores.observed, delta, confidence, method, scores.spread)
    if variance == "fitted":
        return estimate_between(
            FittedGaussian(0.0, 1.0), fit_gaussian(scores.observed), delta, confidence, method
        )
    raise ValueError(f"Expected variance={variance!r} to be 'known' or 'fitted'.")


def _known_variance(
    scores: Floats, delta: float, confidence: float, method: str, spread: float
) -> EpsilonEstimate:
    """Scores are N(μ, spread²), so their mean is N(μ, spread²/k) and its interval is exact."""
    half = spread * special.ndtri((1 + confidence) / 2) / np.sqrt(len(scores))
    means = np.maximum(scores.mean() + np.array([0.0, -half, half]), 0.0)
    return _estimate_at(means, delta, confidence, method)


def _estimate_at(means: Floats, delta: float, confidence: float, method: str) -> EpsilonEstimate:
    """ε between N(0, 1) and N(mean, 1), for the estimate and both ends of its interval."""
    epsilon, low, high = np.asarray(epsilon_two_gaussians(0.0, 1.0, means, 1.0, delta)).tolist()
    return EpsilonEstimate(epsilon, low, high, delta, confidence, method)
