"""Statistics that an auditor would try by hand, each fitted to runs of both worlds.

A statistic maps the releases of m runs, shape (m, s, d), to m numbers that are larger with the
canary. It is fitted on runs that are used neither to select it nor to test the claim.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from fl_epe.checks import Floats

Score = Callable[[Floats], Floats]

VALUES = "counts of values"
DIGITS = "entries with more digits"
RATIO = "likelihood ratio"
ALONG = "along the canary"

_MAX_FEATURES = 160  # the largest number of features of a likelihood ratio
_RIDGE = 1e-12  # the ridge of a covariance, as a fraction of the mean square
_MIN_RIDGE = 1e-300  # for releases without any spread
_ROUNDING = 1e-9  # the relative difference below which values count as the same
_GRID_DIGITS = 14  # the number of binary digits of a coarse grid
_INITIAL_COUNT = (
    0.5  # so that the ratio is finite if one world never has a value
)


def fitted(
    present: Floats,
    absent: Floats,
    canary: Floats,
    arrays: tuple[int, ...],
    *,
    categories: bool,
) -> Iterator[tuple[str, Score]]:
    """Yields every statistic that suits the releases, with its name.

    Args:
        present: releases with the canary, shape (m, s, d).
        absent: releases without it, shape (m, s, d).
        canary: the canary's update in each step, shape (s, d').
        arrays: the number of entries of each array of an update.
        categories: whether categories are released.
    """
    yield VALUES, _log_ratio_of_counts(present, absent, _flat)
    if categories:
        return
    yield DIGITS, _share_of_many_digits
    mean = absent.mean(axis=0)
    yield "largest entry", lambda x: np.abs(x - mean).max(axis=(1, 2))
    yield "norm", lambda x: np.linalg.norm(_flat(x - mean), axis=1)
    # A release may have other entries than an update.
    if present.shape[2] == canary.shape[1]:
        norms = np.linalg.norm(canary, axis=1, keepdims=True)
        units = canary / np.where(norms > 0, norms, 1.0)
        starts = np.append(0, np.cumsum(arrays)[:-1])
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
        if len(canary) * len(arrays) > 1:
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
    """The share of entries that have more binary digits than the numbers of a coarse grid."""
    mantissas, _ = np.frexp(x)
    scaled = mantissas * 2.0**_GRID_DIGITS
    return np.asarray((scaled != np.rint(scaled)).mean(axis=(1, 2)))


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def _likelihood_ratio(
    present: Floats, absent: Floats, features: Score
) -> Score:
    """The likelihood ratio of two Gaussians with the same covariance (Fisher 1936).

    It detects combinations of features in which the noise cancels. ``features`` maps releases of
    m runs to an array of shape (m, k).
    """
    present = features(present)
    absent = features(absent)
    shift = present.mean(axis=0) - absent.mean(axis=0)
    within = np.concatenate(
        [present - present.mean(axis=0), absent - absent.mean(axis=0)]
    )
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    ridge = _RIDGE * float(np.mean(values) + np.mean(shift**2)) + _MIN_RIDGE
    weights = vectors @ ((vectors.T @ shift) / (np.maximum(values, 0) + ridge))
    return lambda x: np.asarray(features(x) @ weights)


def _log_ratio_of_counts(
    present: Floats, absent: Floats, features: Score
) -> Score:
    """The log ratio of a value's counts in both worlds: large if only one has the value."""
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
