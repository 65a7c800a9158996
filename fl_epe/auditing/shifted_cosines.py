"""Cosines of canaries that are part of a release: the shift μ that they show, in any dimension.

Let a canary c add ``μσ·c`` to a vector that is Gaussian with the deviation σ in each entry. With
its cosine C with the sum, ``T = C·√((d − 1)/(1 − C²))`` has a noncentral t distribution with d − 1
degrees of freedom and the noncentrality μ. √d·C is about N(μ, 1) only where μ² ≪ d: it is at most
√d, however large μ is. Derivation and coverage: docs/notes/estimates.md.

Examples:
    >>> round(fitted_shift(np.array([0.3, 0.4, 0.5]), 100), 2)
    4.37
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

LEAST_DIM = 10
"""The dimension below which `normal_deviates` are not accurate enough for an interval."""

_FAR = 4.0  # deviations, beyond which the correction for skewness stays as it is


def shift_scores(cosines: ArrayLike, dim: int) -> Floats:
    """Scores with the mean μ up to a relative 1/(4d); those of unobserved canaries have variance 1.

    About √dim·cosine where that is small beside √dim. A cosine of 1 has a score of about 10⁸·√dim.
    """
    return np.asarray(_ratio(cosines) * np.sqrt(max(dim - 3, 1)))


def cosines_of(scores: ArrayLike, dim: int) -> Floats:
    """The cosines whose `shift_scores` these are."""
    found = np.asarray(scores, np.float64)
    return np.asarray(found / np.sqrt(max(dim - 3, 1) + found**2))


def hidden_norm(norm: ArrayLike, own: ArrayLike) -> Floats:
    """Norm of the residual of a vector of norm ``norm`` that holds a canary of norm ``own``.

    The residual is orthogonal to the canary. The result is at least 10⁻⁶ of ``norm``, also where
    the canary is the whole vector.
    """
    square = np.square(np.asarray(norm, np.float64))
    return np.asarray(np.sqrt(np.maximum(square - np.square(own), 1e-12 * square)))


def normal_deviates(cosines: ArrayLike, dim: int, shift: ArrayLike) -> Floats:
    """``Φ⁻¹(F(t))``, with F the distribution of T: N(0, 1) if ``shift`` is the cosines' μ.

    By a normal approximation with a correction for skewness, for ``dim`` ≥ `LEAST_DIM`: the mean is
    wrong by at most 0.0015 at d = 10, 10⁻⁴ at d = 100 and 10⁻⁵ at d = 1,000.
    """
    freedom = max(dim - 1, 1)
    t = _ratio(cosines) * np.sqrt(freedom)
    # Mean, variance and third central moment of χ/√freedom.
    mean = 1 - 1 / (4 * freedom) + 1 / (32 * freedom**2)
    variance, third = 1 / (2 * freedom) - 1 / (8 * freedom**2), 1 / (4 * freedom**2)
    wide = np.sqrt(1 + t**2 * variance)
    plain = (t * mean - np.asarray(shift, np.float64)) / wide
    skew = (t / wide) ** 3 * third / 6
    return np.asarray(plain + skew * (np.clip(plain, -_FAR, _FAR) ** 2 - 1))


def fitted_shift(cosines: Floats, dim: int, mean: float = 0.0, sizes: ArrayLike = 1.0) -> float:
    """The μ at which the `normal_deviates` of all cosines have that mean.

    With 0 it is the estimate of μ. With ±z/√k it is an end of its interval, as the mean of k
    independent deviates is N(0, 1/k) at the true μ. With ``sizes`` m, shape ``(k,)``, it is the
    scale κ of shifts κ·m, at which ``Σ m·deviate / Σ m²`` is ``mean``.
    """
    sizes = np.broadcast_to(np.asarray(sizes, np.float64), np.shape(cosines))
    energy = float(np.sum(sizes**2))
    slope = float(np.sum(sizes**2 / np.sqrt(1 + _ratio(cosines) ** 2 / 2))) / energy
    shift = 0.0
    for _ in range(100):  # the mean is nearly linear in μ
        deviates = normal_deviates(cosines, dim, shift * sizes)
        step = (float(np.sum(sizes * deviates)) / energy - mean) / slope
        shift += step
        if abs(step) <= 1e-13 * (1 + abs(shift)):
            break
    return shift


def _ratio(cosines: ArrayLike) -> Floats:
    """C/√(1 − C²), finite for cosines of ±1, which rounding may also exceed."""
    size = np.clip(np.asarray(cosines, np.float64), -1 + 2**-53, 1 - 2**-53)
    return np.asarray(size / np.sqrt((1 - size) * (1 + size)))
