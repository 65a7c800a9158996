"""How many canaries, rounds and participations it takes to show that ε exceeds a claim.

A lower bound from few canaries is far below the ε that it bounds. Here audits are simulated, in the
limit of a large model: scores N(μ, 1) of canaries that took part and N(0, 1) of others, where μ is
that of a Gaussian mechanism with the true ε. The answer is the least number of canaries with which
the bound exceeds the claim with the wanted probability, the *power*.

Examples:
    >>> found = canaries_for_epsilon(20.0, 4.0, 1e-5)
    >>> 2 <= found.canaries < 40
    True
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import ceiling, lower_bound, method_by_design
from fl_epe.checks import check_probability, raise_invalid

_DIM = 10**8  # of the exact null; larger ones have the same null but for rounding
_LARGEST = 1e6  # of a true ε: beyond it every audit with a few canaries shows any claim
_DRAWS = 40  # simulated audits that choose the number
_FRESH = 3  # times as many say what its power is, with a standard error of at most 0.29/√_DRAWS
_SEED = 0
# The numbers of canaries that are tried, 19% apart.
_NUMBERS = sorted({round(2 ** (1 + step / 4)) for step in range(49)})


@dataclasses.dataclass(frozen=True)
class CanaryAdvice:
    """The audit that shows that ε exceeds a claim.

    Attributes:
        true_epsilon: ε that the run really has at δ.
        claimed: ε that the bound is to exceed.
        delta, confidence: of the bound.
        method: of the bound, for this many canaries; ``None`` if no number is enough.
        shift: μ, the distance of the two Gaussians, for ``participations``.
        participations: rounds in which each canary takes part.
        canaries: observed canaries; ``None`` if 8192 are not enough.
        unobserved: as many unobserved ones; 0 with the exact null.
        power: probability that the bound exceeds the claim, in audits that did not choose the
            number.
        power_error: its standard error.
        ceiling: the largest bound that so many canaries can show.
        rounds: least number of rounds that have room for the canaries; ``None`` if not asked.
    """

    true_epsilon: float
    claimed: float
    delta: float
    confidence: float
    method: str | None
    shift: float
    participations: int
    canaries: int | None
    unobserved: int
    power: float
    power_error: float
    ceiling: float | None
    rounds: int | None = None


def shift_of(epsilon: float, delta: float) -> float:
    """The distance μ of two Gaussians of deviation 1 that have this ε at δ.

    Raises:
        ValueError: if ε is negative or not finite, or δ is not in (0, 1).
    """
    check_probability("delta", delta)
    if not 0 <= epsilon <= _LARGEST:
        raise_invalid("true_epsilon", epsilon, f"in [0, {_LARGEST:g}]")

    def excess(log_shift: float) -> float:
        return float(epsilon_two_gaussians(0, 1, math.exp(log_shift), 1, delta)) - epsilon

    return math.exp(scipy.optimize.brentq(excess, -30.0, 12.0, xtol=1e-12)) if epsilon else 0.0


def canaries_for_epsilon(
    true_epsilon: float,
    claimed: float,
    delta: float,
    *,
    confidence: float = 0.95,
    power: float = 0.8,
    participations: int = 1,
    room: float | None = None,
) -> CanaryAdvice:
    """The least number of canaries whose bound exceeds a claim with the wanted probability.

    Args:
        true_epsilon: ε that the run really has at δ, for a canary's participations.
        claimed: ε that the bound is to exceed, at least 0.
        delta: δ of both, in (0, 1).
        confidence: of the bound, one-sided.
        power: wanted probability, in (0, 1).
        participations: of each canary. The null is exact for a single one; with more, there are
            as many unobserved canaries.
        room: canaries that fit into a round on average; for ``rounds`` alone.

    Raises:
        ValueError: for an argument out of range.
    """
    check_probability("confidence", confidence)
    check_probability("power", power)
    if not 0 <= claimed < math.inf:
        raise_invalid("claimed", claimed, "in [0, inf)")
    exact = participations == 1
    audits = _Audits(shift_of(true_epsilon, delta), delta, confidence, exact)
    enough, reached, tested = None, 0.0, _FRESH * _DRAWS
    least = (
        _least(lambda count: audits.enough(count, claimed, power))
        if claimed < true_epsilon
        else math.inf
    )
    # The draws that chose a number flatter it: others say whether it is enough.
    for number in _NUMBERS:
        if number < least:
            continue
        won = [audits.wins(number, claimed, _DRAWS + draw) for draw in range(tested)]
        if (share := float(np.mean(won))) >= power:
            enough, reached = number, share
            break
    chosen = audits.method_for(enough) if enough else None
    return CanaryAdvice(
        true_epsilon=true_epsilon,
        claimed=claimed,
        delta=delta,
        confidence=confidence,
        method=chosen,
        shift=audits.shift,
        participations=participations,
        canaries=enough,
        unobserved=0 if exact or not enough else enough,
        power=reached,
        power_error=math.sqrt(max(reached * (1 - reached), 0.25 / tested) / tested),
        ceiling=ceiling(audits.scores(enough, 0), delta, confidence, chosen)
        if enough and chosen
        else None,
        rounds=max(participations, math.ceil(enough * participations / room))
        if enough and room
        else None,
    )


def _least(enough: Callable[[int], bool]) -> float:
    """The least of `_NUMBERS` that is enough, if more is never worse; infinite if none is."""
    last = len(_NUMBERS) - 1
    for first in (*range(0, last, 4), last):  # doubling, as large audits take long
        if enough(_NUMBERS[first]):
            place = bisect.bisect_left(_NUMBERS, True, max(first - 3, 0), first, key=enough)
            return _NUMBERS[place]
    return math.inf


@dataclasses.dataclass(frozen=True)
class _Audits:
    """Simulated audits of Gaussian scores; more canaries extend the scores of fewer."""

    shift: float
    delta: float
    confidence: float
    exact: bool

    def scores(self, count: int, draw: int) -> Scores:
        own, others = (np.random.default_rng((_SEED, draw, side)) for side in (0, 1))
        observed = self.shift + own.normal(size=count)
        if self.exact:
            return Scores.from_cosines(np.clip(observed / math.sqrt(_DIM), -1, 1), _DIM)
        return Scores(observed, others.normal(size=count))

    def method_for(self, count: int) -> str | None:
        return method_by_design(self.scores(count, 0), self.delta, self.confidence)

    def wins(self, count: int, claimed: float, draw: int) -> bool:
        """Whether the bound of one audit with ``count`` canaries exceeds the claim."""
        method = self.method_for(count)
        if method is None:
            return False
        scores = self.scores(count, draw)
        return lower_bound(scores, self.delta, confidence=self.confidence, method=method) > claimed

    def enough(self, count: int, claimed: float, power: float) -> bool:
        """Whether so many audits succeed; stops as soon as that is decided."""
        allowed = math.floor((1 - power) * _DRAWS + 1e-9)
        lost = itertools.accumulate(not self.wins(count, claimed, n) for n in range(_DRAWS))
        return all(number <= allowed for number in lost)
