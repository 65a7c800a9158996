"""`EpsilonEstimate` against an `Adversary`, what it is made from, and the difference of two.

It is made from a shift of N(0, 1), or from two fitted Gaussians.

How the intervals of fitted Gaussians are built (Algorithm 3): docs/notes/estimates.md. How often
those of a difference hold: simulations/studies/differences.py.

Examples:
    >>> fit_gaussian(np.array([1.0, 2.0, 3.0]))
    FittedGaussian(mean=2.0, std=1.0, count=3)
    >>> first = EpsilonEstimate(5.0, 4.0, 6.0, 1e-5, 0.95, "displacement")
    >>> second = EpsilonEstimate(2.0, 2.0, 2.0, 1e-5, 0.95, "displacement")
    >>> found = epsilon_difference(first, second)
    >>> found.value, found.low, found.high, found.larger_than_chance
    (3.0, 2.0, 4.0, True)
"""

import dataclasses
import math
from typing import Literal, assert_never

import numpy as np
import scipy

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.checks import Floats, checked_type, raise_invalid

Sees = Literal["final", "all"]  # the final model, or every round's model


@dataclasses.dataclass(frozen=True)
class Adversary:
    """Who attacks a client of a run.

    Attributes:
        sees: "final", the final model and the initial one, or "all", every round's model.
        knows_rounds: whether the rounds in which the client takes part are known.
        knows_others: whether all other clients' updates are known (the full knowledge that
            differential privacy assumes); if not, the directions of the other canaries are known
            and no more.
    """

    sees: Sees
    knows_rounds: bool = True
    knows_others: bool = False

    def __post_init__(self) -> None:
        checked_type("sees", self.sees, Sees)

    @property
    def sees_final(self) -> bool:
        """Whether the final model alone is seen, beside the initial one."""
        match self.sees:
            case "final":
                return True
            case "all":
                return False
        assert_never(self.sees)


FINAL_MODEL = Adversary("final")
"""Sees the initial and the final model, and knows the client's rounds."""

EVERY_ROUND = Adversary("all")
"""Sees every round's model, and knows the client's rounds."""


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
        adversary: who attacks; ``None`` for bare scores, which do not tell.
    """

    epsilon: float
    low: float
    high: float
    delta: float
    confidence: float
    method: str
    adversary: Adversary | None = None


def half_width(confidence: float) -> float:
    """Of a two-sided interval of a Gaussian estimate, in its standard errors."""
    return float(scipy.special.ndtri((1 + confidence) / 2))


def epsilon_metrics(name: str, found: EpsilonEstimate | None) -> dict[str, float]:
    """ε and its interval under their names in a run's metrics; NaN where nothing is known.

    Examples:
        >>> epsilon_metrics("all", EpsilonEstimate(1.0, 0.5, 2.0, 1e-5, 0.95, "displacement"))
        {'epsilon-all': 1.0, 'epsilon-all-low': 0.5, 'epsilon-all-high': 2.0}
    """
    ends = {"": "epsilon", "-low": "low", "-high": "high"}
    return {
        f"epsilon-{name}{end}": getattr(found, of, math.nan) for end, of in ends.items()
    }


@dataclasses.dataclass(frozen=True)
class FittedGaussian:
    """A Gaussian fitted to ``count`` scores; ``count`` is infinite if it is known exactly."""

    mean: float
    std: float
    count: float = math.inf


def fit_gaussian(scores: Floats) -> FittedGaussian:
    """Mean and standard deviation of ``scores``, shape ``(k,)``; exactly 0 if all are equal."""
    offsets = scores - scores[0]
    return FittedGaussian(
        float(scores[0] + offsets.mean()), float(offsets.std(ddof=1)), len(scores)
    )


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
        null: of unobserved canaries.
        alt: of observed canaries.
        delta: target δ in (0, 1).
        confidence: coverage of the interval.
        method: the statistic and the variance, in words.
        adversary: who attacks.

    Raises:
        ValueError: for a ``delta`` or ``confidence`` outside (0, 1).
    """
    # Larger scores mean "took part". If the observed scores are smaller, the attack failed.
    mean = max(alt.mean, null.mean)
    epsilon = float(epsilon_two_gaussians(null.mean, null.std, mean, alt.std, delta))
    if null.std == 0 or alt.std == 0:
        low, high = 0.0, epsilon  # all scores are equal
    else:
        means, stds = _plausible(null, alt, confidence)
        values = np.asarray(epsilon_two_gaussians(0.0, 1.0, means, stds, delta))
        low = min(epsilon, float(values.min()))
        high = max(epsilon, float(values.max()))
    return EpsilonEstimate(epsilon, low, high, delta, confidence, method, adversary)


def _plausible(
    null: FittedGaussian, alt: FittedGaussian, confidence: float
) -> tuple[Floats, Floats]:
    """Means and deviations of the alternative, in units of the null, that fit the scores well.

    They fill an ellipse of the large-sample distribution of (mean, ln deviation).
    """
    mean = (alt.mean - null.mean) / null.std
    log_std = math.log(alt.std / null.std)
    null_share = 0.5 / (null.count - 1)
    both = mean * null_share
    log_variance = 0.5 / (alt.count - 1) + null_share
    variance = math.exp(2 * log_std) / alt.count + 1 / null.count + mean**2 * null_share
    covariance = np.array([[variance, both], [both, log_variance]])
    # The quantile of an equal mixture of χ² with one and with two degrees of freedom.
    chdtr = scipy.special.chdtr
    brentq = scipy.optimize.brentq
    limit = float(
        brentq(lambda v: (chdtr(1, v) + chdtr(2, v)) / 2 - confidence, 0.0, 1e3)
    )
    angles, radii = np.meshgrid(np.linspace(0, 2 * np.pi, 49), np.linspace(0.25, 1, 4))
    circle = np.stack([np.cos(angles), np.sin(angles)]) * radii
    offsets = np.tensordot(np.linalg.cholesky(covariance) * math.sqrt(limit), circle, 1)
    means = mean + offsets[0].ravel()
    logs = log_std + offsets[1].ravel()
    kink = _chord(covariance, limit, -log_std) + mean
    logs = np.concatenate([logs, np.zeros_like(kink)])
    return np.maximum(np.concatenate([means, kink]), 0.0), np.exp(logs)


def _chord(covariance: Floats, limit: float, log_offset: float) -> Floats:
    """Mean offsets in the ellipse at which both deviations are equal; empty if there are none."""
    slope = covariance[0, 1] / covariance[1, 1]
    room = limit - log_offset**2 / covariance[1, 1]
    if room < 0:
        return np.empty(0)
    spread = math.sqrt(room * (covariance[0, 0] - slope * covariance[0, 1]))
    return np.asarray(slope * log_offset + spread * np.linspace(-1, 1, 17))


@dataclasses.dataclass(frozen=True)
class EpsilonDifference:
    """ε of one run less that of another, with a two-sided confidence interval.

    Attributes:
        value: the difference; NaN if both are infinite.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: coverage of the interval.
        independent: whether the interval is for independent runs; else it holds for any.
    """

    value: float
    low: float
    high: float
    confidence: float
    independent: bool

    @property
    def larger_than_chance(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def epsilon_difference(
    first: EpsilonEstimate, second: EpsilonEstimate, *, independent: bool = True
) -> EpsilonDifference:
    """ε of ``first`` less ε of ``second``, with an interval: is it larger than chance?

    For independent runs the distances from the estimates to the ends of their intervals are added
    as squares (Zou and Donner 2008), which keeps the skewness of each; where an interval ends at 0
    because no ε is smaller, it counts as reaching as far below as above. For runs that may depend
    on each other, the interval reaches from one run's lower end to the other's upper end.

    Args:
        first: of one run.
        second: of another, at the same δ and confidence.
        independent: whether no chance is shared: canaries, noise and participation have seeds of
            their own. If not, the confidence of the result is lower: 90% from two 95% intervals.

    Raises:
        ValueError: if δ or the confidence of the two differ.
    """
    for name in ("delta", "confidence"):
        ours = getattr(first, name)
        theirs = getattr(second, name)
        if ours != theirs:
            raise_invalid(f"second.{name}", theirs, f"to be that of first, {ours}")
    ends = (
        first.epsilon,
        first.low,
        first.high,
        second.epsilon,
        second.low,
        second.high,
    )
    value = _less(first.epsilon, second.epsilon, math.nan)
    if independent and all(map(math.isfinite, ends)):
        below = math.hypot(_below(first), second.high - second.epsilon)
        above = math.hypot(first.high - first.epsilon, _below(second))
        low = value - below
        high = value + above
    else:
        low = _less(first.low, second.high, -math.inf)
        high = _less(first.high, second.low, math.inf)
    confidence = first.confidence if independent else 1 - 2 * (1 - first.confidence)
    return EpsilonDifference(value, low, high, confidence, independent)


def _below(found: EpsilonEstimate) -> float:
    """How far the interval reaches below the estimate; at least as far as above where 0 ends it."""
    below = found.epsilon - found.low
    return below if found.low > 0 else max(below, found.high - found.epsilon)


def _less(one: float, other: float, both_infinite: float) -> float:
    return both_infinite if math.isinf(one) and math.isinf(other) else one - other
