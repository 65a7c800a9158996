"""The exact (ε, δ) of a pair of Gaussians: how well one draw distinguishes the two.

Sources: Andrew et al. 2024, section 3.2 (two fitted Gaussians); Steinke 2022, Prop. 7 (δ(ε) from
the privacy loss); Balle & Wang 2018 and Dong et al. 2019 (equal variances, μ-GDP).
Derivation: docs/notes/two-gaussians.md.

Examples:
    >>> round(epsilon_two_gaussians(0.0, 1.0, 1.0, 1.0, delta=1e-5), 3)
    4.377
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.checks import Booleans, Floats, raise_invalid

# Largest m and r − 1. The squares of much larger ones overflow, and so does ε.
LARGEST_SHIFT = 1e140

# Largest ε that is evaluated; δ is 0 long before.
_LARGEST_EPSILON = 1e300

# At lower scores 1 − Φ is 1 to the last bit.
_LOWEST_SCORE = -9.0

# At higher scores 1 − Φ is smaller than every double.
_HIGHEST_SCORE = 40.0

# M(u) − M(u + gap) suffers from cancellation for smaller gaps, and is integrated instead.
SHORT_GAP = 0.25
_QUADRATURE_NODES = 5

# Slightly above the relative error of a computed δ at given x.
_DELTA_ROUNDING = 1e-14

# Slightly above the relative error of ε at given x, and of x at given ε.
_EPSILON_ROUNDING = 2e-15

# Bisection alone would need fewer steps.
_MAX_STEPS = 200

# Absolute and relative size of the last step. The error is about the square of the step.
_ABSOLUTE_STEP = 1e-9
_RELATIVE_STEP = 1e-14


@np.errstate(all="ignore")
def epsilon_two_gaussians(
    null_mean: ArrayLike,
    null_std: ArrayLike,
    alt_mean: ArrayLike,
    alt_std: ArrayLike,
    delta: ArrayLike,
) -> float | Floats:
    """The smallest ε ≥ 0 for which the two Gaussians are (ε, δ)-indistinguishable, both ways.

    That is, δ(ε) ≤ ``delta`` for the δ(ε) of :func:`delta_two_gaussians`. The result is rounded up.
    Its relative error is below 1e-9 if ε is at least 1e-3 and ``delta`` at most 1/2.

    Args:
        null_mean: mean of the statistic without the canary, in any unit.
        null_std: standard deviation of the same, in the same unit.
        alt_mean: mean of the statistic with the canary, in the same unit.
        alt_std: standard deviation of the same, in the same unit.
        delta: the target δ, a probability.

    Returns:
        ε in nats, in the shape to which the arguments broadcast; a ``float`` if that is ``()``.
        0 if δ(0), the total variation distance, is at most ``delta``, and for identical Gaussians.
        Infinity if no finite ε suffices: one standard deviation is 0 and the other is not, both
        are 0 and the means differ, or the means or standard deviations differ by more than 1e140
        times the smaller standard deviation.

    Raises:
        ValueError: for a mean that is not finite, a standard deviation that is negative or not
            finite, a ``delta`` outside (0, 1), NaN anywhere, or shapes that do not broadcast.
    """
    target = _checked("delta", delta, "in (0, 1)", _is_probability)
    pair = _Pair.of(null_mean, null_std, alt_mean, alt_std)
    epsilon = pair.epsilon(_solve(pair, target)) * (1 + _EPSILON_ROUNDING)
    return pair.result(epsilon, disjoint=np.inf)


def epsilon_of_shift(shift: ArrayLike, delta: float) -> Floats:
    """ε of scores N(shift, 1) against N(0, 1), in the shape of ``shift``.

    Negative shifts count as 0. The ε of an infinite shift is infinite.
    """
    finite = np.clip(shift, 0.0, 10 * LARGEST_SHIFT)
    return np.asarray(epsilon_two_gaussians(0.0, 1.0, finite, 1.0, delta))


@np.errstate(all="ignore")
def delta_two_gaussians(
    null_mean: ArrayLike,
    null_std: ArrayLike,
    alt_mean: ArrayLike,
    alt_std: ArrayLike,
    epsilon: ArrayLike,
) -> float | Floats:
    """The smallest δ for which the two Gaussians are (ε, δ)-indistinguishable, both ways.

    With P the null, Q the alternative and f = ln(p/q), this is P[f > ε] − e^ε·Q[f > ε] or the same
    with P and Q exchanged, whichever is larger.

    Args:
        null_mean: mean of the statistic without the canary, in any unit.
        null_std: its standard deviation, in the same unit.
        alt_mean: mean of the statistic with the canary, in the same unit.
        alt_std: its standard deviation, in the same unit.
        epsilon: ε in nats, infinity allowed.

    Returns:
        δ, in the shape to which the arguments broadcast; a ``float`` if that is ``()``.
        0 for identical Gaussians. 1 for every ε, infinity included, where
        :func:`epsilon_two_gaussians` is infinite. For all other pairs 0 at ε = infinity and where δ
        is below the smallest double. Relative error about 1e-14, for arguments that are exact.

    Raises:
        ValueError: as :func:`epsilon_two_gaussians`; for a negative ``epsilon``.
    """
    nats = _checked(
        "epsilon", epsilon, "in [0, inf]", lambda values: values >= 0
    )
    pair = _Pair.of(null_mean, null_std, alt_mean, alt_std)
    log_delta, _ = _log_delta(pair, pair.offset(nats))
    return pair.result(np.minimum(np.exp(log_delta), 1.0), disjoint=1.0)


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Pairs of a narrow N(0, 1) and a wide N(m, r²), and their terms that do not depend on ε.

    For a value y of the wide Gaussian let u = (y − m)/r. The ratio of the wide density to the
    narrow one exceeds e^ε where u > U or u < −V, with U ≤ V, and g and g′ are defined by
    U + g = m + r·U and V + g′ = r·V − m. All of them are functions of x = U − U₀ ≥ 0, where U₀ is
    the value of U at ε = 0, and so is ε (docs/notes/two-gaussians.md).

    Attributes:
        identical: whether the two are the same; the fields below then hold a placeholder.
        disjoint: whether no finite ε suffices; the fields below then hold a placeholder.
        shift: m.
        excess: r − 1, to full relative precision.
        square: r² − 1.
        start: U₀.
        slope: dε/dx at x = 0.
        far_gap: g′/(r − 1) at x = 0.
    """

    identical: Booleans
    disjoint: Booleans
    shift: Floats
    excess: Floats
    square: Floats
    start: Floats
    slope: Floats
    far_gap: Floats

    @classmethod
    def of(
        cls,
        null_mean: ArrayLike,
        null_std: ArrayLike,
        alt_mean: ArrayLike,
        alt_std: ArrayLike,
    ) -> _Pair:
        mean0 = _checked("null_mean", null_mean, "in (-inf, inf)", np.isfinite)
        mean1 = _checked("alt_mean", alt_mean, "in (-inf, inf)", np.isfinite)
        std0 = _checked("null_std", null_std, "in [0, inf)", _is_deviation)
        std1 = _checked("alt_std", alt_std, "in [0, inf)", _is_deviation)
        narrow = np.minimum(std0, std1)
        shift = np.abs(mean1 - mean0) / narrow
        excess = np.abs(std1 - std0) / narrow
        identical = ((mean0 == mean1) & (std0 == std1)) | (
            (shift == 0) & (excess == 0)
        )
        # NaN compares as False, so such pairs are disjoint or identical.
        regular = (
            ~identical & (shift < LARGEST_SHIFT) & (excess < LARGEST_SHIFT)
        )
        shift = np.where(regular, shift, 1.0)
        excess = np.where(regular, excess, 0.0)

        square = excess * (2 + excess)
        log_ratio = np.log1p(excess)
        slope = np.hypot(shift, np.sqrt(2 * square * log_ratio))
        return cls(
            identical=identical,
            disjoint=~identical & ~regular,
            shift=shift,
            excess=excess,
            square=square,
            start=(2 * log_ratio - shift**2) / (slope + (1 + excess) * shift),
            slope=slope,
            far_gap=2 * log_ratio / (slope + shift),
        )

    def result(self, values: Floats, disjoint: float) -> float | Floats:
        """The values of regular pairs, 0 for identical ones; a ``float`` for a single pair."""
        regular = np.where(self.disjoint, disjoint, values)
        results = np.where(self.identical, 0.0, regular)
        if results.ndim == 0:
            return float(results)
        return results

    def epsilon(self, x: Floats) -> Floats:
        """The ε at x."""
        return x * (self.slope + self.square * x / 2)

    def offset(self, epsilon: Floats) -> Floats:
        """The x at which ε has this value, or a smaller x at which δ is already 0 in floats."""
        epsilon = np.minimum(epsilon, _LARGEST_EPSILON)
        root = np.hypot(self.slope, np.sqrt(2 * self.square) * np.sqrt(epsilon))
        largest = 2 * (_HIGHEST_SCORE + np.abs(self.start))
        return np.asarray(
            np.minimum(2 * epsilon / (self.slope + root), largest)
        )


def _solve(pair: _Pair, delta: Floats) -> Floats:
    """The smallest x ≥ 0 at which δ is at most ``delta``.

    Newton's method is applied to ln δ, from the right. It starts at the U with 1 − Φ(U) = δ/4,
    which is large enough because δ ≤ 2·(1 − Φ(U)). A step that would leave the bracket is replaced
    by a bisection.
    """
    goal = np.log(delta) - _DELTA_ROUNDING
    low = np.zeros(np.broadcast_shapes(pair.start.shape, goal.shape))
    last_score = np.minimum(-scipy.special.ndtri(delta / 4), _HIGHEST_SCORE)
    log_delta, _ = _log_delta(pair, low)
    x = np.maximum(last_score - pair.start, low)
    x = np.where(log_delta <= goal, low, x)
    high = x
    for _ in range(_MAX_STEPS):
        value, slope = _log_delta(pair, x)
        low = np.where(value > goal, x, low)
        high = np.where(value > goal, high, x)
        newton = x + (goal - value) / slope
        usable = ((low < newton) & (newton < high)) | (newton == x)
        previous = x
        x = np.where(usable, newton, (low + high) / 2)
        tolerance = _ABSOLUTE_STEP + _RELATIVE_STEP * x
        if np.all(np.abs(x - previous) <= tolerance):
            break
    return x


def _log_delta(pair: _Pair, x: Floats) -> tuple[Floats, Floats]:
    """The logarithm of δ, and its derivative with respect to x.

    The variables ``near`` and ``far`` are U and V, and ``near_gap`` and ``far_gap`` are g and g′.
    """
    ratio = 1 + pair.excess
    slope = pair.slope + pair.square * x  # dε/dx
    near = np.clip(pair.start + x, _LOWEST_SCORE, _HIGHEST_SCORE)
    far = np.minimum(
        (ratio * pair.shift + slope) / pair.square, 2 * _HIGHEST_SCORE
    )
    near_gap = (pair.shift + slope) / (1 + ratio)
    far_gap = pair.excess * (pair.far_gap + x)
    near_tail, near_mills = _tail(near, near_gap, pair.excess)
    far_tail, far_mills = _tail(far, far_gap, pair.excess)
    weight = np.exp((near - far) * (near + far) / 2)  # φ(V)/φ(U)
    tail = near_tail + weight * far_tail
    value = np.log(tail) - near**2 / 2 - np.log(2 * np.pi) / 2
    return value, -slope * (near_mills + weight * far_mills) / (ratio * tail)


def _tail(score: Floats, gap: Floats, excess: Floats) -> tuple[Floats, Floats]:
    """M(score) − M(score + gap)/r without cancellation, and M(score + gap); see `_mills`."""
    after = _mills(score + gap)
    half = np.minimum(gap, SHORT_GAP) / 2
    fall = np.zeros_like(after)
    # The fall M(score) − M(score + gap) is the integral of −M′(v) = 1 − v·M(v).
    for node, weight in zip(*quadrature(), strict=True):
        v = score + half * (1 + node)
        fall += half * weight * (1 - v * _mills(v))
    fall = np.where(gap < SHORT_GAP, fall, _mills(score) - after)
    return fall + excess / (1 + excess) * after, after


@functools.cache
def quadrature() -> tuple[Floats, Floats]:
    """Gauss–Legendre nodes and weights. Cached, because numpy.polynomial is slow to import."""
    return np.polynomial.legendre.leggauss(_QUADRATURE_NODES)


def _mills(v: Floats) -> Floats:
    """The Mills ratio (1 − Φ(v))/φ(v)."""
    return np.asarray(np.sqrt(np.pi / 2) * scipy.special.erfcx(v / np.sqrt(2)))


def _checked(
    name: str,
    value: ArrayLike,
    interval: str,
    is_inside: Callable[[Floats], Booleans],
) -> Floats:
    """``value`` as an array, if all of its entries are in the interval."""
    values = np.asarray(value, dtype=np.float64)
    is_valid = is_inside(values)
    if not np.all(is_valid):
        raise_invalid(name, values[~is_valid][0], interval)
    return values


def _is_deviation(values: Floats) -> Booleans:
    """Whether values can be standard deviations."""
    return (values >= 0) & (values < np.inf)


def _is_probability(values: Floats) -> Booleans:
    return (values > 0) & (values < 1)
