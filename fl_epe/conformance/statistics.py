"""Statistics that an auditor would try by hand, each fitted to runs with and without the canary.

A statistic maps the releases of m runs of s steps, shape (m, s, d), to m numbers that are larger
with the canary. It is fitted on runs that are used neither to select it nor to test the claim.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from fl_epe.checks import Floats

Score = Callable[[Floats], Floats]
"""A function from releases, (m, s, d), to a number for each run, (m,)."""
Features = Callable[[Floats], Floats]
"""A function from releases, (m, s, d), to k numbers for each run, (m, k)."""

VALUES = "counts of values"
DIGITS = "entries with more digits"
RATIO = "likelihood ratio"
ALONG = "along the canary"

# The largest number of features of a likelihood ratio. With 4,000 trials, the default, it is fitted
# to 2,000 runs, 12 for each feature.
_MAX_FEATURES = 160
_RIDGE = 1e-12  # the ridge of a covariance, as a fraction of the mean square
_MIN_RIDGE = 1e-300  # for releases without any spread
_ROUNDING = 1e-9  # the relative difference below which values count as the same
# The number of binary digits of a coarse grid, such as those of bfloat16 (8) and float16 (11).
_GRID_DIGITS = 14
# Added to each count, so that the ratio is finite if one world never has a value.
_INITIAL_COUNT = 0.5


def fitted_statistics(
    present: Floats,
    absent: Floats,
    canary: Floats,
    array_sizes: tuple[int, ...],
    *,
    releases_categories: bool,
) -> Iterator[tuple[str, Score]]:
    """Yields the name and the score of every statistic that suits the releases.

    Args:
        present: releases with the canary, shape (m, s, d).
        absent: releases without it, shape (m, s, d).
        canary: the canary's update in each step, shape (s, d').
        array_sizes: the number of entries of each array of an update.
        releases_categories: whether categories are released.
    """
    yield VALUES, _log_ratio_of_counts(present, absent, _flat)
    if releases_categories:
        return
    yield DIGITS, _share_of_many_digits
    mean = absent.mean(axis=0)
    yield "largest entry", lambda x: np.abs(x - mean).max(axis=(1, 2))
    yield "norm", lambda x: np.linalg.norm(_flat(x - mean), axis=1)
    # A release need not have the shape of an update.
    if present.shape[2] == canary.shape[1]:
        norms = np.linalg.norm(canary, axis=1, keepdims=True)
        units = canary / np.where(norms > 0, norms, 1.0)
        starts = np.append(0, np.cumsum(array_sizes)[:-1])
        step, entry = np.unravel_index(np.abs(canary).argmax(), canary.shape)

        def by_array(x: Floats) -> Floats:
            return _flat(np.add.reduceat(x * units, starts, axis=2))

        def one_entry(x: Floats) -> Floats:
            return x[:, step, entry, None]

        yield ALONG, lambda x: (x * units).sum(axis=(1, 2))
        yield (
            f"{VALUES} of one entry",
            _log_ratio_of_counts(present, absent, one_entry),
        )
        if len(canary) * len(array_sizes) > 1:
            yield (
                f"{RATIO} of arrays and steps",
                _likelihood_ratio(present, absent, by_array),
            )
    if 1 < present[0].size <= min(_MAX_FEATURES, len(present)):
        yield (
            f"{RATIO} of all entries",
            _likelihood_ratio(present, absent, _flat),
        )


def _share_of_many_digits(x: Floats) -> Floats:
    """The share of entries that have more binary digits than the numbers of a coarse grid.

    Noise on such a grid has no other entries unless an update is added that is not on the grid.
    """
    mantissas, _ = np.frexp(x)
    scaled = mantissas * 2.0**_GRID_DIGITS
    return np.asarray((scaled != np.rint(scaled)).mean(axis=(1, 2)))


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def _likelihood_ratio(
    present: Floats, absent: Floats, features: Features
) -> Score:
    """The likelihood ratio of two Gaussians with the same covariance (Fisher 1936).

    It detects combinations of features in which the noise cancels.
    """
    with_canary = features(present)
    without_canary = features(absent)
    mean_with = with_canary.mean(axis=0)
    mean_without = without_canary.mean(axis=0)
    shift = mean_with - mean_without
    within = np.concatenate(
        [with_canary - mean_with, without_canary - mean_without]
    )
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    ridge = _RIDGE * float(np.mean(values) + np.mean(shift**2)) + _MIN_RIDGE
    weights = vectors @ ((vectors.T @ shift) / (np.maximum(values, 0) + ridge))
    return lambda x: np.asarray(features(x) @ weights)


def _log_ratio_of_counts(
    present: Floats, absent: Floats, features: Features
) -> Score:
    """The log of the ratio of a value's counts with and without the canary.

    It is large for a value that occurs only with the canary, and very negative for one that occurs
    only without it.
    """
    unit = _ROUNDING * (float(np.abs(absent).max()) or 1.0)

    def keys(x: Floats) -> list[bytes]:
        # Adding 0 turns −0 into 0, as they would differ as bytes.
        return [row.tobytes() for row in np.rint(features(x) / unit) + 0.0]

    present_counts = Counter(keys(present))
    absent_counts = Counter(keys(absent))

    def log_ratio(key: bytes) -> float:
        return math.log(
            (present_counts[key] + _INITIAL_COUNT)
            / (absent_counts[key] + _INITIAL_COUNT)
        )

    return lambda x: np.array([log_ratio(key) for key in keys(x)])
