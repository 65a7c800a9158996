"""The worst pair of substitute adjacency for who sees only the sum of all steps.

One record's update is +C in the one world and −C in the other; the record takes part in each of T
steps by a secret coin of probability q, and all other updates are 0. The sum of what was released
is then N(±kC, T·z²C²) with k ~ Binomial(T, q) (Pradhan et al. 2025, section 3.1). Everything here
is in units of C.

Examples:
    >>> pair = HiddenSubstitute(noise_multiplier=10.0, sampling_rate=0.25, rounds=500)
    >>> round(pair.epsilon(1e-5), 2)
    4.98
    >>> float(pair.log_ratio(0.0))
    0.0
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_epe.accounting.upper_bounds import check_sampled
from fl_epe.checks import check_probability

Floats = NDArray[np.float64]

_NEGLIGIBLE = 1e-18  # probability of a number of participations that is left out
_FAR = 40.0  # standard deviations


@dataclasses.dataclass(frozen=True)
class HiddenSubstitute:
    """Two mixtures of Gaussians whose likelihood ratio rises with the sum.

    Attributes:
        noise_multiplier: z > 0.
        sampling_rate: q in (0, 1].
        rounds: number T of steps, at least 1.
    """

    noise_multiplier: float
    sampling_rate: float
    rounds: int

    def __post_init__(self) -> None:
        check_sampled(self.noise_multiplier, self.sampling_rate, self.rounds, 0.5)
        for name in ("noise_multiplier", "sampling_rate", "rounds"):
            if getattr(self, name) == 0:
                raise ValueError(f"Expected {name}=0 > 0.")

    @property
    def std(self) -> float:
        """Standard deviation of the noise in the sum."""
        return self.noise_multiplier * math.sqrt(self.rounds)

    @functools.cached_property
    def _counts(self) -> tuple[Floats, Floats]:
        """Numbers of participations that matter, and their probabilities."""
        counts = np.arange(self.rounds + 1)
        weights = scipy.stats.binom.pmf(counts, self.rounds, self.sampling_rate)
        kept = weights > _NEGLIGIBLE
        return counts[kept].astype(float), weights[kept] / weights[kept].sum()

    def log_ratio(self, total: ArrayLike) -> Floats:
        """Log of the density of ``total``, of any shape, for +C over that for −C."""
        shifts = np.asarray(total, np.float64)[..., np.newaxis] / self.std**2
        counts, weights = self._counts
        constant = np.log(weights) - counts**2 / (2 * self.std**2)
        logs = [scipy.special.logsumexp(constant + s * counts * shifts, axis=-1) for s in (1, -1)]
        return np.asarray(logs[0] - logs[1])

    def above(self, threshold: ArrayLike, sign: int) -> Floats:
        """Probability that the sum is above ``threshold``, of any shape, for ``sign``·C."""
        counts, weights = self._counts
        distance = (np.asarray(threshold, np.float64)[..., np.newaxis] - sign * counts) / self.std
        return np.asarray(scipy.special.ndtr(-distance) @ weights)

    def delta(self, epsilon: float) -> float:
        """The least δ at ``epsilon`` ≥ 0; the pair is the same in both directions."""
        return self._delta_at(self._bisect(lambda t: float(self.log_ratio(t)) - epsilon))

    def epsilon(self, delta: float) -> float:
        """The least ε at ``delta``."""
        check_probability("delta", delta)
        if self._delta_at(0.0) <= delta:
            return 0.0
        return float(self.log_ratio(self._bisect(lambda t: delta - self._delta_at(t))))

    def least_fnr(self, fpr: float) -> float:
        """The trade-off curve: the least FNR of any attack with this FPR in (0, 1)."""
        check_probability("fpr", fpr)
        threshold = self._bisect(lambda t: fpr - float(self.above(t, -1)))
        return float(1 - self.above(threshold, 1))

    def _delta_at(self, threshold: float) -> float:
        present, absent = (float(self.above(threshold, sign)) for sign in (1, -1))
        log_ratio = float(self.log_ratio(threshold))
        scaled = math.exp(log_ratio + math.log(absent)) if absent > 0 else 0.0
        return max(present - scaled, 0.0)

    def _bisect(self, rising: Callable[[float], float]) -> float:
        """The sum at which ``rising`` is 0."""
        far = self._counts[0][-1] + _FAR * self.std
        while rising(far) < 0:
            far *= 2
        return float(scipy.optimize.brentq(rising, -far, far, xtol=1e-9 * self.std))
