"""`Scores`: one score for each canary, with what is known about unobserved canaries.

`check_known_variance` and `check_sign` refuse scores that no estimate fits. `mean_spread` says how
far the mean of overlapping canaries' scores varies, as all of them share the random norm of the
residual. Derivations: docs/notes/other-canaries.md.

Examples:
    >>> found = mean_spread(count=1000, dim=10_000, shifts=np.array([3.0]), noise=np.array([1.0]))
    >>> round(found**2, 6)
    1.45
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing.epsilon_estimate import Adversary
from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.shifted_cosines import LEAST_DIM, cosines_of, fitted_shift, normal_deviates
from fl_epe.checks import check_scores, raise_invalid

Floats = NDArray[np.float64]


UNKNOWN_ROUNDS = "likelihood ratios at unknown rounds"
"""A statistic that is not Gaussian, as methods that assume a Gaussian mechanism want it."""

LEAST_CERTAINTY = 0.999
"""One-sided confidence that scores are wider than their law, below which they stay as they are."""

LEAST_FOR_NULL = 20
"""Unobserved canaries whose scores find a null that is 1.5 times too wide."""

_SQUARES_FIT = 1e-120, 1e120
_WRONG_SIGN = 1e-6  # probability of observed scores so far below unobserved ones by chance


def in_moderate_units(*groups: Floats) -> tuple[Floats, ...]:
    """The same scores, in a unit in which their squares neither overflow nor vanish.

    Only scores that are not so already are changed, by a power of 2.
    """
    largest = max(float(np.max(np.abs(group))) for group in groups)
    if largest == 0 or _SQUARES_FIT[0] < largest < _SQUARES_FIT[1]:
        return groups
    exponent = int(np.frexp(largest)[1])
    return tuple(np.asarray(np.ldexp(group, -exponent)) for group in groups)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """One score for each canary, larger for "took part", and their null distribution.

    If the null distribution is known, the scores are √d·cosine, which is N(0, 1) for an unobserved
    canary. Other scores, such as a maximum over rounds, are compared with the scores of unobserved
    canaries and may have any unit.

    Attributes:
        observed: scores of the observed canaries, shape (k,), k ≥ 2.
        unobserved: scores of unobserved canaries, shape (u,), u ≥ 2, or ``None``.
        dim: set if every score is √dim times the cosine of a random direction with *one* vector.
            Its null distribution is then known exactly, not only approximately as N(0, 1).
        statistic: the statistic, in words.
        standard_null: whether the score of an unobserved canary is N(0, 1).
        spread: standard deviation of the observed scores, if it is known and not 1; of √k times
            their mean where it is not that of k independent scores.
        linear: whether scores with ``dim`` are inner products with their own part in, and not √dim
            times a cosine: N(μ, 1) whatever μ is.
        unit: a mean score times this is μ of the Gaussian mechanism, see `Precision`.
        unit_error: relative standard error of that.
        expected: expected observed scores up to a factor, shape (k,), where they are known.
        faults: how the run was seen to differ from what its privacy accounting assumes.
        adversary: who computes them from a record; ``None`` for bare scores.

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
    expected: Floats | None = None
    faults: tuple[str, ...] = ()
    adversary: Adversary | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "observed", check_scores("observed", self.observed))
        if self.unobserved is not None:
            object.__setattr__(self, "unobserved", check_scores("unobserved", self.unobserved))
        if self.dim is not None:
            if self.dim < 1:
                raise_invalid("dim", self.dim, ">= 1")
            object.__setattr__(self, "standard_null", True)

    @classmethod
    def from_cosines(
        cls,
        cosines: ArrayLike,
        dim: int,
        unobserved: ArrayLike | None = None,
        statistic: str = "cosines",
    ) -> Scores:
        """Scores from the cosines of canaries with one vector in ``dim`` dimensions.

        Args:
            cosines: of the observed canaries, shape (k,).
            dim: dimension of the canaries.
            unobserved: cosines of unobserved canaries, shape (u,), or ``None``.
            statistic: the statistic, in words.

        Raises:
            ValueError: for cosines outside [−1, 1] or not finite, fewer than two, or ``dim`` < 1.
        """
        if dim < 1:
            raise_invalid("dim", dim, ">= 1")
        members = _check_cosines("cosines", cosines)
        others = None if unobserved is None else _check_cosines("unobserved", unobserved)
        scale = np.sqrt(dim)
        return cls(members * scale, None if others is None else others * scale, dim, statistic)

    @property
    def cosines(self) -> Floats:
        """Cosines of the observed canaries, shape (k,).

        Raises:
            ValueError: if the scores are not cosines with one vector (``dim=None``).
        """
        if self.dim is None:
            raise_invalid("dim", None, f"to be set: {self.statistic} are not cosines")
        if self.linear:
            return cosines_of(self.observed, self.dim)
        return np.asarray(self.observed / np.sqrt(self.dim))

    def deviates(self, shift: float | Floats) -> Floats:
        """The observed scores less ``shift``, N(0, 1) where it is right; exact for cosines too."""
        if self.dim is None or self.linear:
            return self.observed - shift
        return normal_deviates(self.cosines, self.dim, shift)

    def shift(self, mean: float = 0.0, sizes: ArrayLike = 1.0) -> float:
        """The shift, or scale of the shifts ``sizes``, at which `deviates` have that mean."""
        if self.dim is not None and not self.linear:
            return fitted_shift(self.cosines, self.dim, mean, sizes)
        each = np.broadcast_to(np.asarray(sizes, np.float64), self.observed.shape)
        return float(np.sum(self.observed * each) / np.sum(each**2)) - mean

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
            raise ValueError(
                f"Expected at least 2 unobserved scores for statistic={self.statistic!r}, "
                "got unobserved=None."
            )
        return self.observed, self.unobserved


def _check_cosines(name: str, values: ArrayLike) -> Floats:
    cosines = check_scores(name, values)
    if np.any(np.abs(cosines) > 1 + 1e-6):
        raise_invalid(name, cosines[np.argmax(np.abs(cosines))], "in [-1, 1]")
    return cosines


def mean_spread(count: int, dim: int, shifts: Floats, noise: Floats) -> float:
    """Standard deviation of √k times the mean shift of k canaries, each alone in its residual.

    The direction of the residual adds 1. Its norm varies from run to run by the noise in it and
    moves all shifts at once, by ``μ/√(2d)`` for a shift μ: with many canaries in a
    dimension that is more than the rest.

    Args:
        count: number of canaries, k.
        dim: their dimension d.
        shifts: ``(T,)``, what each released vector contributes to the mean shift.
        noise: ``(T,)``, the noise's share of the energy of each of their residuals.
    """
    lengths = (1 - (1 - noise) ** 2) / (2 * dim)  # relative variance, for noise and a fixed vector
    return float(np.sqrt(1 + count * np.sum(shifts**2 * lengths)))


def wider_than_known(scores: Scores) -> str | None:
    """How wide scores are, in words, if they are certainly wider than N(μ, 1).

    Their mean then does not tell ε: canaries with different expected scores are a mixture, and the
    largest of them decide ε. Where these are known up to a factor (`Scores.expected`), either they
    or equal ones may explain the scores. The χ² test has the level 1 − `LEAST_CERTAINTY`. What it
    finds: ``benchmarks/estimators.py --dims``.
    """
    models = [np.ones_like(scores.observed)]
    if scores.expected is not None and scores.expected.any():
        models.append(scores.expected)
    freedom = len(scores.observed) - 1
    square = min(
        float(np.var(scores.deviates(scores.shift(0.0, sizes) * sizes), ddof=1)) for sizes in models
    )
    p = scipy.stats.chi2.sf(square * freedom, freedom)
    if p >= 1 - LEAST_CERTAINTY:
        return None
    return (
        f"observed {scores.statistic} are {np.sqrt(square):.2f} times as wide as known variance "
        f"allows (χ² test, p = {p:.1g}), as where canaries take part unequally: ε of their mean is "
        "smaller than that of the worst case"
    )


def null_misfit(scores: Scores) -> str | None:
    """How unobserved scores differ from N(0, 1), in words, if that is their law and they do.

    Only scores that are wider or shifted are judged, by a χ² and a z test of `LEAST_CERTAINTY`
    together: with narrower ones, bounds still hold.
    """
    if not scores.standard_null or scores.unobserved is None:
        return None
    found, count = scores.unobserved, len(scores.unobserved)
    mean, width = float(found.mean()), float(np.sqrt(np.mean(found**2)))
    p = min(
        scipy.stats.chi2.sf(count * width**2, count),
        2 * scipy.special.ndtr(-abs(mean) * np.sqrt(count)),
    )
    if 2 * p >= 1 - LEAST_CERTAINTY:
        return None
    return (
        f"{scores.statistic} of the {count} unobserved canaries have the mean {mean:.3f} and "
        f"spread {width:.3g}, where 0 and 1 are expected (p = {2 * p:.1g})"
    )


def check_known_variance(scores: Scores) -> None:
    """Refuse scores that are `wider_than_known`, and cosines in few dimensions.

    Raises:
        NotMeasured: with the reason.
    """
    if scores.dim is not None and scores.dim < LEAST_DIM:
        raise NotMeasured(
            f"the cosines are in {scores.dim} dimensions; an estimate needs at least {LEAST_DIM}"
        )
    if reason := wider_than_known(scores):
        raise NotMeasured(reason)


def check_sign(scores: Scores) -> None:
    """Refuse observed scores that are far below unobserved ones (p < 10⁻⁶): ε would be 0.

    Raises:
        NotMeasured: with both medians.
    """
    null = 0.0
    if scores.standard_null:
        z = float(scores.deviates(0.0).mean()) * np.sqrt(len(scores.observed))
        p = scipy.special.ndtr(z / max(scores.spread, 1.0))
    else:
        observed, unobserved = scores.both()
        null = float(np.median(unobserved))
        p = 1.0
        if np.ptp(np.concatenate([observed, unobserved])) > 0:
            p = scipy.stats.mannwhitneyu(observed, unobserved, alternative="less").pvalue
    if p < _WRONG_SIGN:
        raise NotMeasured(
            f"observed {scores.statistic} are far below unobserved ones (median "
            f"{np.median(scores.observed):.4g} against {null:.4g}), and larger scores must mean "
            "that a canary took part; negate them, or swap the two sides"
        )
