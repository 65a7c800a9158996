"""The worst pair of substitute adjacency for an adversary who sees only the sum of all steps.

`HiddenSubstitute` is the pair, `play_hidden_state` draws its scores at once where `games.play_game`
with "substitute", many steps and a sampling rate plays it step by step, and
`hidden_substitute_lower_bound` reads error rates along its trade-off curve.

One record's update is +C in the one world and −C in the other; the record takes part in each of T
steps by a secret coin of probability q, and all other updates are 0. The sum of what was released
is then N(±kC, T·z²C²) with k ~ Binomial(T, q) (Pradhan et al. 2025, section 3.1). Everything here
is in units of C.

Examples:
    >>> pair = HiddenSubstitute(noise_multiplier=10.0, sampling_rate=0.25, rounds=500)
    >>> round(pair.epsilon(1e-5), 2)
    4.98
    >>> scores = play_hidden_state(pair, observations=1000, seed=1)
    >>> 0 < hidden_substitute_lower_bound(scores, 0.25, 500, 1e-5) < pair.epsilon(1e-5)
    True
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import Scores
from fl_epe.auditing.bounds.error_rates import (
    Sample,
    clopper_pearson_upper,
    upper_rates,
)
from fl_epe.auditing.bounds.thresholds import (
    held_out_errors,
    joint_alpha,
    mu_limits,
)
from fl_epe.checks import check_probability
from fl_epe.conformance import games
from fl_epe.seeding import generator

Floats = NDArray[np.float64]

_NEGLIGIBLE = (
    1e-18  # probability of a number of participations that is left out
)
_FAR = 40.0  # standard deviations
_STATISTIC = "log-likelihood ratio of the hidden state"
_MOST_AT_ONCE = (
    10_000  # scores: each is compared with every number of participations
)
_LOG_NOISE = (math.log(1e-3), math.log(1e6))  # what is looked at, over √T
_TOLERANCE = 1e-6


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
        for name in ("noise_multiplier", "sampling_rate", "rounds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Expected {name}={getattr(self, name)} > 0.")

    @property
    def std(self) -> float:
        """Standard deviation of the noise in the sum."""
        return self.noise_multiplier * math.sqrt(self.rounds)

    @functools.cached_property
    def _counts(self) -> tuple[Floats, Floats]:
        """Numbers of participations that matter, and their probabilities."""
        counts = np.arange(self.rounds + 1)
        weights = scipy.stats.binom.pmf(counts, self.rounds, self.sampling_rate)
        matters = weights > _NEGLIGIBLE
        return counts[matters].astype(float), weights[matters] / weights[
            matters
        ].sum()

    def log_ratio(self, total: ArrayLike) -> Floats:
        """Log of the density of ``total``, of any shape, for +C over that for −C."""
        shifts = np.asarray(total, np.float64)[..., np.newaxis] / self.std**2
        counts, weights = self._counts
        constant = np.log(weights) - counts**2 / (2 * self.std**2)
        logs = [
            scipy.special.logsumexp(constant + s * counts * shifts, axis=-1)
            for s in (1, -1)
        ]
        return np.asarray(logs[0] - logs[1])

    def above(self, threshold: ArrayLike, sign: int) -> Floats:
        """Probability that the sum is above ``threshold``, of any shape, for ``sign``·C."""
        counts, weights = self._counts
        distance = (
            np.asarray(threshold, np.float64)[..., np.newaxis] - sign * counts
        ) / self.std
        return np.asarray(scipy.special.ndtr(-distance) @ weights)

    def delta(self, epsilon: float) -> float:
        """The least δ at ``epsilon`` ≥ 0; the pair is the same in both directions."""
        return self._delta_at(
            self._bisect(lambda t: float(self.log_ratio(t)) - epsilon)
        )

    def epsilon(self, delta: float) -> float:
        """The least ε at ``delta``."""
        check_probability("delta", delta)
        if self._delta_at(0.0) <= delta:
            return 0.0
        return float(
            self.log_ratio(self._bisect(lambda t: delta - self._delta_at(t)))
        )

    def least_fnr(self, fpr: float) -> float:
        """The trade-off curve: the least FNR of any attack with this FPR in (0, 1)."""
        check_probability("fpr", fpr)
        threshold = self._bisect(lambda t: fpr - float(self.above(t, -1)))
        return float(1 - self.above(threshold, 1))

    def _delta_at(self, threshold: float) -> float:
        present, absent = (
            float(self.above(threshold, sign)) for sign in (1, -1)
        )
        log_ratio = float(self.log_ratio(threshold))
        scaled = math.exp(log_ratio + math.log(absent)) if absent > 0 else 0.0
        return max(present - scaled, 0.0)

    def _bisect(self, rising: Callable[[float], float]) -> float:
        """The sum at which ``rising`` is 0."""
        far = self._counts[0][-1] + _FAR * self.std
        while rising(far) < 0:
            far *= 2
        return float(
            scipy.optimize.brentq(rising, -far, far, xtol=1e-9 * self.std)
        )


def hidden_state_ratio(
    pair: HiddenSubstitute, clip_norm: float = 1.0
) -> games.Statistic:
    """Log of the ratio of the two mixtures at the sum along the canary: the best statistic.

    Args:
        pair: noise multiplier, sampling rate and number of steps of one observation.
        clip_norm: C, the norm of the canary.
    """
    if not clip_norm > 0:
        raise ValueError(f"Expected clip_norm={clip_norm} > 0.")
    return games.Statistic(
        _STATISTIC,
        lambda *seen: float(
            pair.log_ratio(games.ALONG_CANARY.score(*seen) / clip_norm)
        ),
    )


def play_hidden_state(
    pair: HiddenSubstitute, *, observations: int, seed: int = 0
) -> Scores:
    """Scores by `hidden_state_ratio` of ``observations`` runs of each world.

    Raises:
        ValueError: if there are fewer than 2 observations.
    """
    if observations < 2:
        raise ValueError(f"Expected observations={observations} >= 2.")
    rng = generator(seed)
    present, absent = (
        _ratios(pair, sign, observations, rng) for sign in (1, -1)
    )
    return Scores(present, absent, statistic=_STATISTIC)


def _ratios(
    pair: HiddenSubstitute, sign: int, count: int, rng: np.random.Generator
) -> Floats:
    times = rng.binomial(pair.rounds, pair.sampling_rate, count)
    totals = sign * times + rng.normal(0.0, pair.std, count)
    parts = np.array_split(totals, -(-count // _MOST_AT_ONCE))
    return np.concatenate([pair.log_ratio(part) for part in parts])


def hidden_substitute_lower_bound(
    scores: Scores,
    sampling_rate: float,
    rounds: int,
    delta: float,
    *,
    confidence: float = 0.95,
) -> float:
    """ε at ``delta`` exceeds this at the stated confidence, if the mechanism is of the family.

    What "gdp" is for a Gaussian mechanism (Nasr et al. 2023), this is for T sampled Gaussian steps
    of which only the sum is seen: the error rates at a held-out threshold rule out every noise
    multiplier that is so large that nobody could err so rarely.

    The family: ``rounds`` steps of a clipped sum with Gaussian noise of one unknown size, a secret
    coin of ``sampling_rate`` for the record in each, and a score that depends on the steps through
    their sum alone. The scores may be any function of that sum.

    Args:
        scores: of independent runs in the world with +C and in the one with −C.
        sampling_rate: q in (0, 1].
        rounds: number T of steps, at least 1.
        delta: in (0, 1).
        confidence: one-sided.

    Returns:
        The bound in nats, at least 0; infinite if the rates rule out any noise at all.

    Raises:
        ValueError: if an argument is out of range, or there are no unobserved scores.
    """
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    HiddenSubstitute(1.0, sampling_rate, rounds)  # checks the others
    if scores.unobserved is None:
        raise ValueError(
            "Expected scores of the other world, got unobserved=None."
        )
    sample = Sample(
        scores.observed, scores.unobserved, 0, delta, 1 - confidence
    )
    errors = held_out_errors(sample, mu_limits(sample))
    limits = upper_rates(errors, clopper_pearson_upper, joint_alpha(sample))
    fpr, fnr = math.exp(float(limits[0][0])), float(limits[1][0])
    if fpr + fnr >= 1:
        return 0.0

    def pair(log_noise: float) -> HiddenSubstitute:
        return HiddenSubstitute(
            math.exp(log_noise) * math.sqrt(rounds), sampling_rate, rounds
        )

    def excess(log_noise: float) -> float:
        return pair(log_noise).least_fnr(fpr) - fnr

    if excess(_LOG_NOISE[0]) >= 0:
        return math.inf
    if excess(_LOG_NOISE[1]) <= 0:
        return 0.0
    root = float(scipy.optimize.brentq(excess, *_LOG_NOISE, xtol=_TOLERANCE))
    return pair(root + _TOLERANCE).epsilon(delta)
