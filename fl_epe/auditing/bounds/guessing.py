"""The lower bound "one-run": an attack guesses which canaries took part.

"one-run" is for canaries that were included by independent fair coins. The attack guesses "in" for
the canaries with the highest scores, "out" for as many with the lowest, and abstains on the
others (Steinke, Nasr, Jagielski 2023). The scores may depend on each other. Each tested ε has its
own number of guesses, fixed before any score is seen. The bound is the end of the range from 0 in
which every ε is rejected. Why no correction is needed for the many tests:
docs/notes/lower-bounds.md.

Examples:
    >>> round(steinke_p_value(1.0, num_canaries=100, guesses=20, right=20, delta=0.0), 4)
    0.0019
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.checks import Floats, Integers

_TOLERANCE = 1e-4  # absolute error of a bound on ε
_LARGEST_EPSILON = 1e6  # the search for a bound ends here

# All values of ε in a cell are tested by the test that is designed for its upper end. A cell has
# this width, or a twentieth of ε if that is larger.
_CELL_WIDTH = 0.1
_CELLS_PER_EPSILON = 20

# Bisections of an interval, after which its width is below the rounding error.
_BISECTIONS = 55

# The tail of N(0, 1) beyond this is 0 in float64.
_FAR = 40

Margin = Callable[[float], float]
"""The p-value of a test of ε minus the test's level, an increasing function of ε.

The test rejects ε where it is negative.
"""


def one_run(sample: Sample) -> float:
    """A bound on ε at δ from the number of right guesses (Steinke et al. 2023)."""
    sizes, members = tied_groups(sample)
    count = int(sizes.sum())

    def test_for(epsilon: float) -> Margin:
        wanted, _ = guess_design(count, sample.alpha, epsilon)
        guesses, right = guesses_on_groups(sizes, members, wanted)

        def margin(tested: float) -> float:
            p_value = steinke_p_value(
                tested, count, guesses, right, sample.delta
            )
            return p_value - sample.alpha

        return margin

    return rejected_up_to(test_for)


def steinke_p_value(
    epsilon: float, num_canaries: int, guesses: int, right: int, delta: float
) -> float:
    """An upper bound on the probability of at least ``right`` right ``guesses`` under (ε, δ)-DP.

    It is β + 2·m·δ·max_i P[v > B ≥ v − i]/i (Steinke et al. 2023) for m canaries, r guesses and
    v right ones. B ~ Bin(r, q) is the number of right guesses at δ = 0, q = 1/(1 + e^−ε), and
    β = P[B ≥ v]. It is near 1 unless 2·m·δ is small.
    """
    if right == 0:
        return 1.0
    q = scipy.special.expit(epsilon)
    tail = scipy.special.bdtrc(np.arange(right - 1, -2, -1), guesses, q)
    by_leaks = np.max((tail[1:] - tail[0]) / np.arange(1, right + 1))
    return float(min(1.0, tail[0] + 2 * num_canaries * delta * by_leaks))


def rejected_up_to(test_for: Callable[[float], Margin]) -> float:
    """The end of the range of rejected values of ε that starts at 0.

    Args:
        test_for: a function from a value of ε to the test that is designed for it. All values
            in a cell are tested by the test of its upper end.

    Returns:
        The end, or infinity if all values up to 10⁶ are rejected: these scores rule out every
        finite ε.
    """
    low = 0.0
    high = _CELL_WIDTH
    while high < _LARGEST_EPSILON:
        margin = test_for(high)
        if margin(high) >= 0:
            if margin(low) >= 0:
                return low
            root = float(
                scipy.optimize.brentq(margin, low, high, xtol=_TOLERANCE)
            )
            return max(low, root - _TOLERANCE)
        low = high
        high += max(_CELL_WIDTH, high / _CELLS_PER_EPSILON)
    return math.inf


def tied_groups(sample: Sample) -> tuple[Integers, Integers]:
    """The number of scores with each value, from the highest, and of observed ones among them."""
    observed, unobserved = sample.both()
    pooled = np.concatenate([observed, unobserved])
    # Negative scores are sorted from the highest score.
    values, sizes = np.unique(-pooled, return_counts=True)
    group_of_observed = np.searchsorted(values, -observed)
    members = np.bincount(group_of_observed, minlength=values.size)
    return sizes, members


def guesses_on_groups(
    sizes: Integers, members: Integers, wanted: int
) -> tuple[int, int]:
    """The number of guesses, and of right ones.

    Half of the guesses are "in", for the highest scores, and half "out", for the lowest. Tied
    scores get the same guess or none, so that guesses depend on the scores alone; with ties at
    an end there are more guesses than ``wanted``. A group that is centred on the middle gets
    none.

    Args:
        sizes: the sizes of `tied_groups`.
        members: the numbers of observed scores of `tied_groups`.
        wanted: the wanted number of guesses, even.
    """
    total = sizes.sum()
    ends = np.cumsum(sizes)
    starts = ends - sizes
    is_in_upper_half = starts + ends < total
    is_in_lower_half = starts + ends > total
    guessed_in = (starts < wanted // 2) & is_in_upper_half
    guessed_out = (total - ends < wanted // 2) & is_in_lower_half
    right = members[guessed_in].sum() + (sizes - members)[guessed_out].sum()
    return int(sizes[guessed_in | guessed_out].sum()), int(right)


def guess_design(
    num_canaries: int, alpha: float, epsilon: float
) -> tuple[int, float]:
    """The design of the test of ``epsilon``: best for Gaussian scores, and valid for any scores.

    Returns:
        An even number of guesses, and the shift between two unit Gaussians at which the test
        rejects that ``epsilon`` in half of the runs.
    """
    epsilons, guesses, shifts = _designs(num_canaries, alpha)
    index = min(int(np.searchsorted(epsilons, epsilon)), epsilons.size - 1)
    return int(guesses[index]), float(shifts[index])


@functools.lru_cache
def _designs(num_canaries: int, alpha: float) -> tuple[Floats, Floats, Floats]:
    """Values of ε, increasing, with the guesses and the shift of `guess_design` at each."""
    # Grids of shifts and of numbers of guesses.
    shifts = np.geomspace(0.02, 40.0, 120)
    counts = np.geomspace(2, num_canaries, 60)
    guesses = np.unique([max(2, 2 * int(count / 2)) for count in counts])
    shift = shifts[:, np.newaxis]
    distance = distance_of_share(guesses / num_canaries, shift)
    # ε that is rejected if as many guesses are right as expected, by Clopper–Pearson limits.
    expected_right = guesses * (1 - wrong_share(distance, shift))
    rates = scipy.special.betaincinv(
        expected_right, guesses - expected_right + 1, alpha
    )
    rejected = scipy.special.logit(rates)
    epsilons = np.maximum.accumulate(np.max(rejected, axis=1))
    return epsilons, guesses[np.argmax(rejected, axis=1)], shifts


def distance_of_share(share: Floats, shift: Floats | float) -> Floats:
    """The distance at which `share_beyond` is ``share``."""
    low = np.zeros(np.broadcast_shapes(np.shape(share), np.shape(shift)))
    high = low + np.max(shift) / 2 + _FAR
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_near = share_beyond(middle, shift) > share
        low = np.where(is_too_near, middle, low)
        high = np.where(is_too_near, high, middle)
    return low


def share_beyond(distance: Floats, shift: Floats | float) -> Floats:
    """The share of scores that are farther than ``distance`` from the midpoint of the two means.

    The scores are half from N(0, 1) and half from N(shift, 1). Both sides of the midpoint count.
    """
    above = shift / 2 - distance
    below = -distance - shift / 2
    return np.asarray(scipy.special.ndtr(above) + scipy.special.ndtr(below))


def wrong_share(distance: Floats, shift: Floats | float) -> Floats:
    """The share of wrong guesses for the scores that `share_beyond` counts."""
    log_right = scipy.special.log_ndtr(shift / 2 - distance)
    log_wrong = scipy.special.log_ndtr(-distance - shift / 2)
    return np.asarray(scipy.special.expit(log_wrong - log_right))
