"""`EpsilonEstimate`, an ε with its interval, and the estimate between two fitted Gaussians.

How the intervals of fitted Gaussians are built (Algorithm 3): docs/notes/estimates.md.

Examples:
    >>> null = fit_gaussian(np.array([-1.0, 0.0, 1.0]))
    >>> null
    FittedGaussian(mean=0.0, std=1.0, count=3)
    >>> estimate = estimate_between(null, FittedGaussian(2.0, 1.0, 3), 1e-5, 0.95, "scores")
    >>> estimate.low < estimate.epsilon < estimate.high
    True
"""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing.estimate.adversary import Adversary
from fl_epe.checks import Floats

# Points of the grid in a confidence set, along which ε is computed.
_GRID_ANGLES = 49
_GRID_RADII = 4
_CHORD_POINTS = 17


@dataclasses.dataclass(frozen=True)
class EpsilonEstimate:
    """An estimate of ε at ``delta`` with a two-sided confidence interval.

    Attributes:
        epsilon: the point estimate, in nats.
        low: lower end of the interval.
        high: upper end of the interval.
        delta: the δ of that ε.
        confidence: coverage of the interval, such as 0.95.
        method: the statistic and the variance, in words.
        adversary: the adversary; ``None`` for bare scores, whose adversary is not known.
    """

    epsilon: float
    low: float
    high: float
    delta: float
    confidence: float
    method: str
    adversary: Adversary | None = None


def half_width(confidence: float) -> float:
    """Half the width of a two-sided interval of a normal estimate, in standard errors."""
    return float(scipy.special.ndtri((1 + confidence) / 2))


def epsilon_metrics(
    name: str, estimate: EpsilonEstimate | None
) -> dict[str, float]:
    """ε and its interval under their names in a run's metrics; NaN without an estimate.

    Examples:
        >>> epsilon_metrics("all", EpsilonEstimate(1.0, 0.5, 2.0, 1e-5, 0.95, "displacement"))
        {'epsilon-all': 1.0, 'epsilon-all-low': 0.5, 'epsilon-all-high': 2.0}
    """
    values = [math.nan] * 3
    if estimate is not None:
        values = [estimate.epsilon, estimate.low, estimate.high]
    names = (f"epsilon-{name}", f"epsilon-{name}-low", f"epsilon-{name}-high")
    return dict(zip(names, values, strict=True))


@dataclasses.dataclass(frozen=True)
class FittedGaussian:
    """A Gaussian fitted to ``count`` scores; ``count`` is infinite for an exactly known one."""

    mean: float
    std: float
    count: float = math.inf


def fit_gaussian(scores: Floats) -> FittedGaussian:
    """The Gaussian fitted to ``scores``, shape ``(k,)``; its std is exactly 0 if all are equal."""
    offsets = scores - scores[0]
    mean = float(scores[0] + offsets.mean())
    return FittedGaussian(mean, float(offsets.std(ddof=1)), len(scores))


def estimate_between(
    null: FittedGaussian,
    alt: FittedGaussian,
    delta: float,
    confidence: float,
    method: str,
    adversary: Adversary | None = None,
) -> EpsilonEstimate:
    """ε between two fitted Gaussians, with an interval for large samples.

    Args:
        null: the Gaussian of unobserved canaries.
        alt: the Gaussian of observed canaries.
        delta: target δ in (0, 1).
        confidence: coverage of the interval.
        method: the statistic and the variance, in words.
        adversary: the adversary.

    Raises:
        ValueError: for a ``delta`` or ``confidence`` outside (0, 1).
    """
    # Observed scores should be larger. If they are smaller, the attack failed, and ε is that of
    # equal means.
    mean = max(alt.mean, null.mean)
    epsilon = float(
        epsilon_two_gaussians(null.mean, null.std, mean, alt.std, delta)
    )
    if null.std == 0 or alt.std == 0:  # all scores are equal
        low = 0.0
        high = epsilon
    else:
        means, stds = _confidence_set(null, alt, confidence)
        values = np.asarray(epsilon_two_gaussians(0.0, 1.0, means, stds, delta))
        low = min(epsilon, float(values.min()))
        high = max(epsilon, float(values.max()))
    return EpsilonEstimate(
        epsilon, low, high, delta, confidence, method, adversary
    )


def _confidence_set(
    null: FittedGaussian, alt: FittedGaussian, confidence: float
) -> tuple[Floats, Floats]:
    """Means and standard deviations of the alternative, in units of the null, in a confidence set.

    The set is an ellipse of the large-sample distribution of (mean, ln deviation), on a grid.
    """
    mean = (alt.mean - null.mean) / null.std
    log_std = math.log(alt.std / null.std)
    null_log_variance = 0.5 / (null.count - 1)
    log_variance = 0.5 / (alt.count - 1) + null_log_variance
    variance = math.exp(2 * log_std) / alt.count + 1 / null.count
    variance += mean**2 * null_log_variance
    # Both estimates depend on the deviation of the null.
    shared = mean * null_log_variance
    covariance = np.array([[variance, shared], [shared, log_variance]])
    limit = _mixture_quantile(confidence)
    angles, radii = np.meshgrid(
        np.linspace(0, 2 * np.pi, _GRID_ANGLES),
        np.linspace(1 / _GRID_RADII, 1, _GRID_RADII),
    )
    circles = np.stack([np.cos(angles), np.sin(angles)]) * radii
    to_ellipse = np.linalg.cholesky(covariance) * math.sqrt(limit)
    offsets = np.tensordot(to_ellipse, circles, 1)
    # ε has a kink where both deviations are equal, so the grid has points there too.
    means_of_equal = mean + _chord(covariance, limit, -log_std)
    means = np.append(mean + offsets[0].ravel(), means_of_equal)
    log_stds = np.append(
        log_std + offsets[1].ravel(), np.zeros_like(means_of_equal)
    )
    return np.maximum(means, 0.0), np.exp(log_stds)


def _mixture_quantile(probability: float) -> float:
    """The quantile of an equal mixture of χ² with one and with two degrees of freedom.

    It is the size of the ellipse, as near the kink the level sets of ε are cones, not planes.
    """

    def excess(value: float) -> float:
        probabilities = scipy.special.chdtr([1, 2], value)
        return float(probabilities.sum() / 2 - probability)

    return float(scipy.optimize.brentq(excess, 0.0, 1e3))


def _chord(covariance: Floats, limit: float, log_offset: float) -> Floats:
    """Offsets of the mean in the ellipse of `_confidence_set`, at an offset of ln deviation.

    The result is empty if the ellipse does not extend to that offset.

    Args:
        covariance: the covariance of the mean and ln deviation.
        limit: the size of the ellipse.
        log_offset: the offset of ln deviation.
    """
    slope = covariance[0, 1] / covariance[1, 1]
    remaining = limit - log_offset**2 / covariance[1, 1]
    if remaining < 0:
        return np.empty(0)
    spread = math.sqrt(
        remaining * (covariance[0, 0] - slope * covariance[0, 1])
    )
    points = np.linspace(-1, 1, _CHORD_POINTS)
    return np.asarray(slope * log_offset + spread * points)
