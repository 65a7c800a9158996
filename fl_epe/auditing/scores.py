"""`Scores`: one score for each canary, with what is known about unobserved canaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing.shifted_cosines import fitted_shift, normal_deviates
from fl_epe.checks import check_scores

Floats = NDArray[np.float64]


UNKNOWN_ROUNDS = "likelihood ratios at unknown rounds"
"""A statistic that is not Gaussian, as methods that assume a Gaussian mechanism want it."""

_SQUARES_FIT = 1e-120, 1e120


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
        null: where the unobserved scores were wider than N(0, 1), their standard deviation, by
            which all scores have been divided, and the number that it was measured on.
        expected: expected observed scores up to a factor, shape (k,), where they are known.
        faults: how the run was seen to differ from what its privacy accounting assumes.

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
    null: tuple[float, int] | None = None
    expected: Floats | None = None
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "observed", check_scores("observed", self.observed))
        if self.unobserved is not None:
            object.__setattr__(self, "unobserved", check_scores("unobserved", self.unobserved))
        if self.dim is not None:
            if self.dim < 1:
                raise ValueError(f"Expected dim={self.dim} >= 1.")
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
            raise ValueError(f"Expected dim={dim} >= 1.")
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
            raise ValueError(f"Expected dim=None to be set: {self.statistic} are not cosines.")
        return np.asarray(self.observed / np.sqrt(self.dim))

    def deviates(self, shift: float | Floats) -> Floats:
        """The observed scores less ``shift``, N(0, 1) where it is right; exact for cosines too."""
        if self.dim is None:
            return self.observed - shift
        return normal_deviates(self.cosines, self.dim, shift)

    def shift(self, mean: float = 0.0, sizes: ArrayLike = 1.0) -> float:
        """The shift, or scale of the shifts ``sizes``, at which `deviates` have that mean."""
        if self.dim is not None:
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


def pool(runs: Sequence[Scores]) -> Scores:
    """The scores of several runs as if they were of one; for estimates, not for bounds.

    Raises:
        ValueError: if the null distribution of some is exact, or in another dimension, and of
            others is not.
    """
    first = runs[0]
    if any(scores.dim != first.dim for scores in runs):
        dims = [scores.dim for scores in runs]
        raise ValueError(f"Expected scores of one kind in all runs, got dim={dims}.")
    others = [scores.unobserved for scores in runs if scores.unobserved is not None]
    return dataclasses.replace(
        first,
        observed=np.concatenate([scores.observed for scores in runs]),
        unobserved=np.concatenate(others) if len(others) == len(runs) else None,
        standard_null=all(scores.standard_null for scores in runs),
        expected=None,
    )


def _check_cosines(name: str, values: ArrayLike) -> Floats:
    cosines = check_scores(name, values)
    if np.any(np.abs(cosines) > 1 + 1e-6):
        raise ValueError(f"Expected {name}={cosines[np.argmax(np.abs(cosines))]} in [-1, 1].")
    return cosines
