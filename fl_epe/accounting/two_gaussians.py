"""The exact (ε, δ) of a pair of Gaussians: how well one draw tells which of the two it came from.

Sources: Andrew et al. 2024, section 3.2 (two fitted Gaussians; the privacy loss is a quadratic);
Steinke 2022, Prop. 7 (δ(ε) from the tails of the privacy loss); for equal variances Balle & Wang
2018 and Dong et al. 2019 (μ-GDP; μ is m below). The two sections that follow are worked out here.

**The frame.** The narrower Gaussian is N(0, 1), the wider one N(m, r²), m ≥ 0, r ≥ 1. The wide
density exceeds e^ε times the narrow one where u = (y − m)/r is above U or below −V, U ≤ V, and
equals it at both ends. So with the Mills ratio M = (1 − Φ)/φ

    δ = φ(U)·[M(U) − M(U + g)/r] + φ(V)·[M(V) − M(V + g′)/r],  U + g = m + rU,  V + g′ = rV − m.

No e^ε is left and both brackets are positive. Measure U from its place at ε = 0, U = U₀ + x: then
ε, V, g and g′ are sums of positive terms in x, whatever the size of ε, m and r − 1, 0 included.

**One direction is enough.** Exchanging the two never gives a larger δ. Proof, for r > 1.
Let f = ln(narrow/wide). Under √(narrow·wide), normalised by Z, f = F − c·w² with c > 0 and w normal
with mean ν ≥ 0. Let k be the density of f, and T(x) = Pr[f < −x] − Pr[f > x]. The two divergences
are δ_wide = Z·E[(e^(−f/2) − e^(ε + f/2))₊] and δ_narrow, the same with −f for f; hence
J(ε) = e^(−ε/2)·(δ_wide − δ_narrow) = 2Z·∫_ε^∞ sinh((x − ε)/2)·(k(−x) − k(x)) dx, J(0) = 0,
J″ = J/4 + Z·(k(−ε) − k(ε)), and by parts J = Z·∫_ε^∞ cosh((x − ε)/2)·T(x) dx.
For 0 < x < F put A = √((F − x)/c) < B = √((F + x)/c); A + B falls as x grows.
(1) While A + B ≥ 2ν, ±A is no farther from ν than ±B, so k(x) ≥ k(−x).
(2) From A + B ≤ 2ν on, Pr[w > B] ≥ Pr[w < A], so T(x) ≥ 0; for x ≥ F, T(x) ≥ 0 anyway.
By (2), J ≥ 0 on the second stretch. On the first, J ≥ 0 at both ends, and at a negative minimum
J″ ≥ 0, which (1) forbids. ∎
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

_Array = NDArray[np.float64]
_Mask = NDArray[np.bool_]

_LARGEST = 1e140  # of m and r − 1: much more and their squares overflow, and so does ε
_LARGEST_EPSILON = 1e300  # δ has long vanished
_LOWEST_SCORE = -9.0  # 1 − Φ is 1 to the last bit
_HIGHEST_SCORE = 40.0  # 1 − Φ is below every double
_SHORT_GAP = 0.25  # M(u) − M(u + gap) cancels for smaller gaps
_DELTA_ROUNDING = 1e-14  # a little more than the relative error of a computed δ, at given x
_EPSILON_ROUNDING = 2e-15  # and of ε at given x, or of x at given ε
_MAX_STEPS = 200  # bisection alone would need fewer


@np.errstate(all="ignore")
def epsilon_two_gaussians(
    null_mean: ArrayLike,
    null_std: ArrayLike,
    alt_mean: ArrayLike,
    alt_std: ArrayLike,
    delta: ArrayLike,
) -> float | _Array:
    """The smallest ε ≥ 0 for which the two Gaussians are (ε, δ)-indistinguishable, both ways round.

    That is, δ(ε) ≤ ``delta`` for the δ(ε) of :func:`delta_two_gaussians`. The answer is rounded up:
    it exceeds the exact one, by a relative error below 1e-9 where that is 1e-3 or more and
    ``delta`` at most 1/2.

    Args:
        null_mean: mean of the statistic without the canary, in any unit.
        null_std: standard deviation of the same, in the same unit.
        alt_mean: mean of the statistic with the canary, in the same unit.
        alt_std: standard deviation of the same, in the same unit.
        delta: the target δ, a probability.

    Returns:
        ε in nats, in the shape to which the arguments broadcast; a ``float`` if that is ``()``.
        0 if δ(0), the total variation distance, is at most ``delta``; identical Gaussians always
        give 0, two equal point masses (both standard deviations 0) included. Infinity if one
        standard deviation is 0 and the other is not, or both are and the means differ: no finite ε
        will do. Infinity too where the means or the standard deviations differ by more than
        1e140 times the smaller standard deviation.

    Raises:
        ValueError: for a mean that is not finite, a standard deviation that is negative or not
            finite, a ``delta`` outside (0, 1), NaN anywhere, or shapes that do not broadcast.
    """
    target = _checked("delta", delta, "in (0, 1)", lambda values: (values > 0) & (values < 1))
    pair = _Pair.of(null_mean, null_std, alt_mean, alt_std)
    epsilon = pair.epsilon(_solve(pair, target)) * (1 + _EPSILON_ROUNDING)
    return _plain(np.where(pair.identical, 0.0, np.where(pair.disjoint, np.inf, epsilon)))


@np.errstate(all="ignore")
def delta_two_gaussians(
    null_mean: ArrayLike,
    null_std: ArrayLike,
    alt_mean: ArrayLike,
    alt_std: ArrayLike,
    epsilon: ArrayLike,
) -> float | _Array:
    """The smallest δ for which the two Gaussians are (ε, δ)-indistinguishable, both ways round.

    With P the null, Q the alternative and f = ln(p/q), this is P[f > ε] − e^ε·Q[f > ε] or the same
    with P and Q exchanged, whichever is larger.

    Args:
        null_mean: mean of the statistic without the canary, in any unit.
        null_std: standard deviation of the same, in the same unit.
        alt_mean: mean of the statistic with the canary, in the same unit.
        alt_std: standard deviation of the same, in the same unit.
        epsilon: ε in nats, infinity allowed.

    Returns:
        δ, in the shape to which the arguments broadcast; a ``float`` if that is ``()``.
        0 for identical Gaussians, two equal point masses included. 1 for every ε, infinity too,
        where :func:`epsilon_two_gaussians` is infinite (one standard deviation 0 and the other not,
        two different point masses). For all other pairs 0 at ε = infinity, and wherever δ is
        smaller than any double. Relative error about 1e-14, and what the rounding of the
        arguments is worth.

    Raises:
        ValueError: for a mean that is not finite, a standard deviation that is negative or not
            finite, a negative ``epsilon``, NaN anywhere, or shapes that do not broadcast.
    """
    given = _checked("epsilon", epsilon, "in [0, inf]", lambda values: values >= 0)
    pair = _Pair.of(null_mean, null_std, alt_mean, alt_std)
    delta = np.minimum(np.exp(_log_delta(pair, pair.offset(given))[0]), 1.0)
    return _plain(np.where(pair.identical, 0.0, np.where(pair.disjoint, 1.0, delta)))


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Pairs of a narrow N(0, 1) and a wide N(m, r²), and what of them does not depend on ε.

    Attributes:
        identical: the two are the same; the fields below then hold some other pair.
        disjoint: no finite ε will do; the fields below then hold some other pair.
        shift: m.
        excess: r − 1, to full relative precision.
        square: r² − 1.
        start: U₀, the value of U at ε = 0.
        slope: dε/dx at x = 0.
        far_gap: g′/(r − 1) at x = 0.
    """

    identical: _Mask
    disjoint: _Mask
    shift: _Array
    excess: _Array
    square: _Array
    start: _Array
    slope: _Array
    far_gap: _Array

    @classmethod
    def of(
        cls, null_mean: ArrayLike, null_std: ArrayLike, alt_mean: ArrayLike, alt_std: ArrayLike
    ) -> _Pair:
        mean0, mean1 = _mean("null_mean", null_mean), _mean("alt_mean", alt_mean)
        std0, std1 = _std("null_std", null_std), _std("alt_std", alt_std)
        narrow = np.minimum(std0, std1)
        shift, excess = np.abs(mean1 - mean0) / narrow, np.abs(std1 - std0) / narrow
        identical = ((mean0 == mean1) & (std0 == std1)) | ((shift == 0) & (excess == 0))
        regular = ~identical & (shift < _LARGEST) & (excess < _LARGEST)  # never where they are NaN
        shift, excess = np.where(regular, shift, 1.0), np.where(regular, excess, 0.0)

        square, log_ratio = excess * (2 + excess), np.log1p(excess)
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

    def epsilon(self, x: _Array) -> _Array:
        return x * (self.slope + self.square * x / 2)

    def offset(self, epsilon: _Array) -> _Array:
        """The x of that ε, or one at which δ has vanished."""
        epsilon = np.minimum(epsilon, _LARGEST_EPSILON)
        root = np.hypot(self.slope, np.sqrt(2 * self.square) * np.sqrt(epsilon))
        vanished = 2 * (_HIGHEST_SCORE + np.abs(self.start))
        x: _Array = np.minimum(2 * epsilon / (self.slope + root), vanished)
        return x


def _solve(pair: _Pair, delta: _Array) -> _Array:
    """The smallest x ≥ 0 at which δ is at most ``delta``.

    Newton on ln δ, which falls like a concave parabola, from the right: δ ≤ 2·(1 − Φ(U)), so that
    1 − Φ(U) = δ/4 is far enough. A step that would leave the bracket is replaced by a bisection.
    """
    goal = np.log(delta) - _DELTA_ROUNDING
    low = np.zeros(np.broadcast_shapes(pair.start.shape, goal.shape))
    last_score = np.minimum(-scipy.special.ndtri(delta / 4), _HIGHEST_SCORE)
    x = np.maximum(last_score - pair.start, low)
    x = high = np.where(_log_delta(pair, low)[0] <= goal, low, x)
    for _ in range(_MAX_STEPS):
        value, slope = _log_delta(pair, x)
        low, high = np.where(value > goal, x, low), np.where(value > goal, high, x)
        newton = x + (goal - value) / slope
        usable = ((low < newton) & (newton < high)) | (newton == x)
        x, before = np.where(usable, newton, (low + high) / 2), x
        if np.all(np.abs(x - before) <= 1e-9 + 1e-14 * x):  # the error is about the square of this
            break
    return x


def _log_delta(pair: _Pair, x: _Array) -> tuple[_Array, _Array]:
    """The logarithm of δ, and its derivative with respect to x."""
    ratio = 1 + pair.excess
    slope = pair.slope + pair.square * x  # dε/dx
    near = np.clip(pair.start + x, _LOWEST_SCORE, _HIGHEST_SCORE)
    far = np.minimum((ratio * pair.shift + slope) / pair.square, 2 * _HIGHEST_SCORE)
    near_gap, far_gap = (pair.shift + slope) / (1 + ratio), pair.excess * (pair.far_gap + x)
    near_tail, near_mills = _tail(near, near_gap, pair.excess)
    far_tail, far_mills = _tail(far, far_gap, pair.excess)
    weight = np.exp((near - far) * (near + far) / 2)  # φ(V)/φ(U)
    tail = near_tail + weight * far_tail
    value = np.log(tail) - near**2 / 2 - np.log(2 * np.pi) / 2
    return value, -slope * (near_mills + weight * far_mills) / (ratio * tail)


def _tail(score: _Array, gap: _Array, excess: _Array) -> tuple[_Array, _Array]:
    """M(score) − M(score + gap)/r, free of cancellation, and M(score + gap)."""
    after = _mills(score + gap)
    half = np.minimum(gap, _SHORT_GAP) / 2
    fall = np.zeros_like(after)
    for node, weight in zip(*_quadrature(), strict=True):  # −M′(v) = 1 − v·M(v)
        v = score + half * (1 + node)
        fall += half * weight * (1 - v * _mills(v))
    fall = np.where(gap < _SHORT_GAP, fall, _mills(score) - after)
    return fall + excess / (1 + excess) * after, after


@functools.cache
def _quadrature() -> tuple[_Array, _Array]:
    """Nodes and weights of Gauss and Legendre; what makes them is slow to import."""
    return np.polynomial.legendre.leggauss(5)


def _mills(v: _Array) -> _Array:
    ratio: _Array = np.sqrt(np.pi / 2) * scipy.special.erfcx(v / np.sqrt(2))
    return ratio


def _mean(name: str, value: ArrayLike) -> _Array:
    return _checked(name, value, "in (-inf, inf)", np.isfinite)


def _std(name: str, value: ArrayLike) -> _Array:
    return _checked(name, value, "in [0, inf)", lambda values: (values >= 0) & (values < np.inf))


def _checked(name: str, value: ArrayLike, where: str, holds: Callable[[_Array], _Mask]) -> _Array:
    values = np.asarray(value, dtype=np.float64)
    if not np.all(holds(values)):
        raise ValueError(f"Expected {name}={values[~holds(values)][0]} {where}.")
    return values


def _plain(values: _Array) -> float | _Array:
    return float(values) if values.ndim == 0 else values
