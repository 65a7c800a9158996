"""The clip norm of every round: fixed, or a quantile of the update norms.

The quantile is estimated as in Algorithm 1 of Andrew et al. (2021), "Differentially Private
Learning with Adaptive Clipping", with votes of ±1/2.

Examples:
    >>> rule = FixedClip(1.0)
    >>> rule.update(rule.init(), unclipped=3, voted=4, rng=np.random.default_rng(0))
    1.0
"""

import dataclasses
import math

import numpy as np

from fl_epe.checks import (
    ArgumentError,
    check_positive,
    check_probability,
    raise_invalid,
)


@dataclasses.dataclass(frozen=True)
class FixedClip:
    """A clip norm that is the same in every round.

    Attributes:
        norm: the clip norm, > 0.
    """

    norm: float

    def __post_init__(self) -> None:
        check_positive("norm", self.norm)

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.norm

    def update(
        self,
        clip_norm: float,
        unclipped: float,
        voted: float,
        rng: np.random.Generator,
    ) -> float:
        """The clip norm of the next round: the same."""
        return clip_norm

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of the sum: the same, because no count is released."""
        return noise_multiplier


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """A clip norm that follows a quantile of the update norms (Andrew et al. 2021).

    The next clip norm is ``C' = C * exp(-rate * (b - quantile))``, where ``b`` is the noisy
    share of voters whose update was not clipped. Each voter adds 1/2 to a sum if its update was
    not clipped and -1/2 if it was; N(0, count_std^2) is added and the sum is released. One
    client changes the sum by at most 1/2, as `sum_noise_multiplier` assumes. ``b`` is the sum
    divided by the expected number of ``voters``, plus 1/2.

    Attributes:
        initial_norm: the clip norm of the first round.
        quantile: the share of updates that should not be clipped.
        rate: the step size of the geometric update.
        count_std: the standard deviation of the noise on the count; 0 for no noise.
        voters: the expected number of clients that vote in a round, > 0.
    """

    initial_norm: float
    quantile: float
    rate: float
    count_std: float
    voters: float

    def __post_init__(self) -> None:
        check_positive("initial_norm", self.initial_norm)
        check_positive("rate", self.rate)
        check_positive("voters", self.voters)
        check_probability("quantile", self.quantile)
        if not 0 <= self.count_std < math.inf:
            raise_invalid("count_std", self.count_std, "in [0, inf)")

    def init(self) -> float:
        """The clip norm of the first round."""
        return self.initial_norm

    def update(
        self,
        clip_norm: float,
        unclipped: float,
        voted: float,
        rng: np.random.Generator,
    ) -> float:
        """The clip norm of the next round.

        Args:
            clip_norm: the clip norm of this round.
            unclipped: the number of votes for updates that were not clipped.
            voted: the number of all votes.
            rng: the generator of the noise on the count.
        """
        noisy_sum = unclipped - voted / 2 + rng.normal(0.0, self.count_std)
        noisy_share = noisy_sum / self.voters + 0.5
        return clip_norm * math.exp(-self.rate * (noisy_share - self.quantile))

    def sum_noise_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of the sum if the count of sensitivity 1/2 is released as well.

        It is ``z_sum = (z^-2 - (2 count_std)^-2)^(-1/2)`` (Andrew et al. 2021, Theorem 1), so
        that sum and count together have the privacy cost of one Gaussian mechanism with
        ``noise_multiplier``.

        Raises:
            ValueError: if the count alone has that privacy cost or more.
        """
        z = noise_multiplier
        z_count = 2 * self.count_std  # the count has sensitivity 1/2
        if z == 0:
            return 0.0
        if z >= z_count or z**-2 <= z_count**-2:
            raise ArgumentError(
                "Expected {noise_multiplier} < 2 * {count_std}: the noisy count alone would spend "
                f"the whole budget. Set the latter to {z:g}, with 15% more noise on the sum, or "
                "use a fixed clip norm.",
                noise_multiplier=z,
                count_std=self.count_std,
            )
        return 1 / math.sqrt(z**-2 - z_count**-2)


ClipNorm = FixedClip | AdaptiveClip
"""The clip norm of every round: fixed, or adapted to the norms of the updates."""
