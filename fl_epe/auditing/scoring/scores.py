"""`Scores`: one score for each canary, and the null distribution of unobserved canaries.

Cosines of canaries that are part of a released vector determine a shift μ, in any dimension.
Let ``μσ·c`` of a canary c be added to a Gaussian vector with the standard deviation σ in each
entry. If C is the canary's cosine with the sum, ``T = C·√((d − 1)/(1 − C²))`` has a noncentral
t distribution with d − 1 degrees of freedom and the noncentrality μ. √d·C is about N(μ, 1) only
where μ² ≪ d, as it is at most √d. Derivation and coverage: docs/notes/estimates.md.

Scores of several canaries against one released vector share the random norm of its residual,
so they are correlated: see `mean_spread` and docs/notes/other-canaries.md.

Examples:
    >>> round(fitted_shift(np.array([0.3, 0.4, 0.5]), 100), 2)
    4.37
    >>> spread = mean_spread(count=1000, dim=10_000, shifts=np.array([3.0]), noise=np.array([1.0]))
    >>> round(spread**2, 6)
    1.45
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.estimate import Adversary
from fl_epe.checks import Floats, any_infinite, check_scores, raise_invalid

# The statistic whose scores are not Gaussian, so methods for Gaussian mechanisms do not apply.
UNKNOWN_ROUNDS = "likelihood ratios at unknown rounds"

# The squares of scores between these neither underflow nor overflow.
_MIN_MODERATE = 1e-120
_MAX_MODERATE = 1e120

# From this many standard deviations on, the correction for skewness is constant.
_MAX_SKEWED = 4.0

# Relative change of a shift, and number of steps, after which its iteration ends.
_TOLERANCE = 1e-13
_MAX_STEPS = 100

# A cosine may exceed 1 by this much, by rounding in float32.
_ROUNDING = 1e-6

# The least energy of a residual, as a share of the energy of its vector.
_MIN_RESIDUAL_SHARE = 1e-12


def in_moderate_units(*groups: Floats) -> tuple[Floats, ...]:
    """The same scores, in a unit in which their squares neither overflow nor underflow.

    Scores are scaled by a power of 2, and only if necessary. Infinite scores stay infinite.
    """
    scores = np.abs(np.concatenate(groups))
    largest = np.max(scores, where=np.isfinite(scores), initial=0.0)
    if largest == 0 or _MIN_MODERATE < largest < _MAX_MODERATE:
        return groups
    _, exponent = np.frexp(largest)
    return tuple(np.ldexp(group, -int(exponent)) for group in groups)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """One score for each canary, larger for canaries that took part, and their null distribution.

    Scores with a known null distribution are √d·cosine, which is N(0, 1) for an unobserved
    canary. Other scores, such as a maximum over rounds, are compared with the scores of
    unobserved canaries, and may have any unit. Bare scores of unknown law may be infinite, as
    likelihood ratios are: only their order matters.

    Attributes:
        observed: scores of the observed canaries, shape (k,), k ≥ 2.
        unobserved: scores of unobserved canaries, shape (u,), u ≥ 2, or ``None``.
        dim: set if every score is √dim times the cosine of a random direction with *one* vector.
            Its null distribution is then known exactly, not only approximately as N(0, 1).
        statistic: the statistic, in words.
        standard_null: whether the score of an unobserved canary is N(0, 1).
        spread: standard deviation of √k times the mean of the k observed scores; 1 for
            independent scores.
        linear: whether scores with ``dim`` are N(μ, 1) for any μ, like `shift_scores`;
            otherwise they are √dim times a cosine.
        unit: μ of the Gaussian mechanism, divided by the mean score; see `Precision`.
        unit_error: relative standard error of ``unit``.
        followed: number of rounds over which correlations were followed, if the noise's
            strategy is known to reach farther; else ``None``.
        expected: expected observed scores up to a factor, shape (k,); ``None`` if not known.
        adversary: the adversary who computes them from a record; ``None`` for bare scores.

    Examples:
        >>> scores = Scores.from_cosines([0.01, 0.03], dim=10_000)
        >>> scores.observed
        array([1., 3.])
        >>> scores.cosines
        array([0.01, 0.03])
    """

    observed: Floats
    unobserved: Floats | None = None
    dim: int | None = None
    statistic: str = "scores"
    standard_null: bool = False
    spread: float = 1.0
    linear: bool = False
    unit: float = 1.0
    unit_error: float = 0.0
    followed: int | None = None
    expected: Floats | None = None
    adversary: Adversary | None = None

    def __post_init__(self) -> None:
        if self.dim is not None:
            object.__setattr__(self, "standard_null", True)
        may_be_infinite = self.adversary is None and not self.standard_null
        for name in ("observed", "unobserved"):
            scores = getattr(self, name)
            if scores is not None:
                scores = check_scores(name, scores, ranks=may_be_infinite)
                object.__setattr__(self, name, scores)

    @classmethod
    def from_cosines(
        cls, cosines: ArrayLike, dim: int, unobserved: ArrayLike | None = None
    ) -> Scores:
        """Scores from the cosines of canaries with one vector in ``dim`` dimensions.

        Args:
            cosines: cosines of the observed canaries, shape (k,).
            dim: dimension of the canaries.
            unobserved: cosines of unobserved canaries, shape (u,), or ``None``.

        Raises:
            ValueError: for cosines outside [−1, 1] or not finite, fewer than two, or ``dim`` < 1.
        """
        if dim < 1:
            raise_invalid("dim", dim, ">= 1")
        scale = np.sqrt(dim)
        scores = check_cosines("cosines", cosines) * scale
        null = None
        if unobserved is not None:
            null = check_cosines("unobserved", unobserved) * scale
        return cls(scores, null, dim, "cosines")

    @property
    def cosines(self) -> Floats:
        """Cosines of the observed canaries, shape (k,).

        Raises:
            ValueError: if the scores are not cosines with one vector (``dim=None``).
        """
        if self.dim is None:
            raise_invalid(
                "dim", None, f"to be set: {self.statistic} are not cosines"
            )
        if self.linear:
            return cosines_of(self.observed, self.dim)
        return np.asarray(self.observed / np.sqrt(self.dim))

    def deviates(self, shift: float | Floats) -> Floats:
        """The observed scores less ``shift``: N(0, 1) at the true shift, also for cosines."""
        if self.dim is None or self.linear:
            return self.observed - shift
        return normal_deviates(self.cosines, self.dim, shift)

    def shift(self, mean: float = 0.0, expected: float | Floats = 1.0) -> float:
        """The shift at which the `deviates` have this mean, see `fitted_shift`.

        Args:
            mean: the mean of the deviates.
            expected: expected scores, shape (k,); if given, the result is the factor κ on them.
        """
        if self.dim is not None and not self.linear:
            return fitted_shift(self.cosines, self.dim, mean, expected)
        weights = np.broadcast_to(expected, self.observed.shape)
        fitted = np.sum(self.observed * weights) / np.sum(weights**2)
        return float(fitted) - mean

    @property
    def infinite(self) -> bool:
        """Whether some scores are infinite."""
        return any_infinite(self.observed, self.unobserved)

    @property
    def boundable(self) -> bool:
        """Whether there are unobserved scores or an exact null, as a lower bound needs."""
        return self.unobserved is not None or self.dim is not None

    def both(self) -> tuple[Floats, Floats]:
        """Observed and unobserved scores, for methods that need both.

        Raises:
            ValueError: if there are no unobserved scores.
        """
        if self.unobserved is None:
            raise_invalid(
                "unobserved",
                None,
                f"to be at least 2 scores for statistic={self.statistic!r}",
            )
        return self.observed, self.unobserved


def check_cosines(name: str, values: ArrayLike) -> Floats:
    """`check_scores` of values that must also be in [−1, 1], to within rounding."""
    cosines = check_scores(name, values)
    largest = cosines[np.argmax(np.abs(cosines))]
    if np.abs(largest) > 1 + _ROUNDING:
        raise_invalid(name, largest, "in [-1, 1]: with dim, scores are cosines")
    return cosines


def mean_spread(count: int, dim: int, shifts: Floats, noise: Floats) -> float:
    """Standard deviation of √k times the mean score of k canaries in the same released vectors.

    The residual's direction contributes 1 to the variance. The residual's norm varies from run
    to run by its noise and changes all scores together, by ``μ/√(2d)`` for a shift μ. With many
    canaries in few dimensions that contribution is the larger one.

    Args:
        count: number of canaries k.
        dim: dimension d of the canaries.
        shifts: contributions of each released vector to the mean shift, ``(T,)``.
        noise: the noise's share of the energy of each residual, ``(T,)``.
    """
    # Relative variance of the norm of a sum of noise and a fixed vector.
    variances = (1 - (1 - noise) ** 2) / (2 * dim)
    return float(np.sqrt(1 + count * np.sum(shifts**2 * variances)))


def shift_scores(cosines: ArrayLike, dim: int) -> Floats:
    """Scores that are N(0, 1) for unobserved canaries, and have the mean μ for observed ones.

    The mean is correct to a relative 1/(4d). A score is about √dim·cosine for small cosines; a
    cosine of 1 has a score of about 10⁸·√dim.
    """
    return np.asarray(_ratio(cosines) * np.sqrt(max(dim - 3, 1)))


def cosines_of(scores: Floats, dim: int) -> Floats:
    """The cosines whose `shift_scores` these are."""
    return scores / np.sqrt(max(dim - 3, 1) + scores**2)


def residual_norm(norm: ArrayLike, canary_norm: ArrayLike) -> Floats:
    """The norm of a vector's residual, which is orthogonal to the canary that it contains.

    The result is at least 10⁻⁶ of ``norm``, even if the canary is the whole vector.
    """
    energy = np.square(norm)
    residual = energy - np.square(canary_norm)
    least = _MIN_RESIDUAL_SHARE * energy
    return np.asarray(np.sqrt(np.maximum(residual, least)))


def normal_deviates(
    cosines: ArrayLike, dim: int, shift: float | Floats
) -> Floats:
    """``Φ⁻¹(F(T))`` of each cosine, with F the distribution of T: N(0, 1) if ``shift`` is μ.

    It is computed by a normal approximation with a correction for skewness. For ``dim`` ≥ 10
    the mean is wrong by at most 0.0015 at d = 10, 10⁻⁴ at d = 100 and 10⁻⁵ at d = 1,000.
    """
    freedom = max(dim - 1, 1)
    t = _ratio(cosines) * np.sqrt(freedom)
    # Mean, variance and third central moment of χ/√freedom.
    mean = 1 - 1 / (4 * freedom) + 1 / (32 * freedom**2)
    variance = 1 / (2 * freedom) - 1 / (8 * freedom**2)
    third = 1 / (4 * freedom**2)
    scale = np.sqrt(1 + t**2 * variance)
    deviates = (t * mean - shift) / scale
    skewness = (t / scale) ** 3 * third / 6
    clipped = np.clip(deviates, -_MAX_SKEWED, _MAX_SKEWED)
    return np.asarray(deviates + skewness * (clipped**2 - 1))


def fitted_shift(
    cosines: Floats, dim: int, mean: float = 0.0, expected: float | Floats = 1.0
) -> float:
    """The μ at which the `normal_deviates` of all cosines have that mean.

    With a mean of 0 it is the estimate of μ. With ±z/√k it is an end of the interval of μ, as
    the mean of k independent deviates is N(0, 1/k) at the true μ. With expected scores m, shape
    ``(k,)``, it is the factor κ for which the deviates at the shifts κ·m have
    ``Σ m·deviate / Σ m² = mean``.
    """
    expected = np.broadcast_to(expected, np.shape(cosines))
    energy = float(np.sum(expected**2))
    # Minus the derivative of the mean deviate by the shift, at a shift of 0.
    slopes = expected**2 / np.sqrt(1 + _ratio(cosines) ** 2 / 2)
    slope = float(np.sum(slopes)) / energy
    shift = 0.0
    # A few steps suffice, as the mean is nearly linear in μ.
    for _ in range(_MAX_STEPS):
        deviates = normal_deviates(cosines, dim, shift * expected)
        step = (float(np.sum(expected * deviates)) / energy - mean) / slope
        shift += step
        if abs(step) <= _TOLERANCE * (1 + abs(shift)):
            break
    return shift


def _ratio(cosines: ArrayLike) -> Floats:
    """C/√(1 − C²) of each cosine C; finite also for ±1, and for cosines beyond it by rounding."""
    largest = np.nextafter(1.0, 0.0)
    inside = np.clip(np.asarray(cosines, np.float64), -largest, largest)
    return inside / np.sqrt((1 - inside) * (1 + inside))
