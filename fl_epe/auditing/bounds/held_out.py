"""A threshold that a tenth of the scores choose, and the errors of the rest there.

Bounds at a threshold that is chosen on the scores by which it is judged are not valid; these are.
Reasons and measurements: docs/notes/lower-bounds.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import (
    Errors,
    FloatArray,
    Sample,
    count_errors,
    count_normal_errors,
    normal_scores,
)

_SHARE_FOR_CHOICE = 0.1
_GRID = np.linspace(-5.0, 5.0, 201)  # standard deviations around each mean, to choose among
_LUCK = np.linspace(-2.4, 2.4, 7)  # standard deviations around the expected number of errors
_LUCK_WEIGHTS = np.exp(-(_LUCK**2) / 2) / np.exp(-(_LUCK**2) / 2).sum()

AtThresholds = Callable[[Errors], FloatArray]


def joint_alpha(sample: Sample) -> float:
    """The level of each estimated rate at which all limits hold together with 1 − α.

    The two groups are independent, so each may fail with probability 1 − √(1 − α).
    """
    return sample.alpha if sample.unobserved is None else -np.expm1(np.log1p(-sample.alpha) / 2)


def held_out(sample: Sample, bound: AtThresholds) -> Errors:
    """Errors at one threshold, counted on other scores than those that chose it.

    Args:
        sample: all scores; ``sample.seed`` decides which of them choose.
        bound: the bound for given errors, element by element. The threshold is chosen where its
            mean is largest over the errors that a Gaussian fit predicts.
    """
    choosing, judging = sample.split(_SHARE_FOR_CHOICE)
    null_mean, mean, std, errors_at = _fit(choosing, judging)
    thresholds = np.concatenate(
        [[(null_mean + mean) / 2], null_mean + std * _GRID, mean + std * _GRID]
    )
    foreseen = errors_at(thresholds)
    missed = _foresee(thresholds - mean, std, foreseen.observed)
    foreseen = dataclasses.replace(foreseen, missed=missed)
    if foreseen.false_alarms is not None:
        false_alarms = _foresee(null_mean - thresholds, std, foreseen.unobserved)
        foreseen = dataclasses.replace(foreseen, false_alarms=false_alarms)
    best = int(np.argmax(_LUCK_WEIGHTS @ bound(foreseen)))
    return errors_at(thresholds[best : best + 1])


def _foresee(distance: FloatArray, std: float, total: int) -> FloatArray:
    """Errors among ``total`` Gaussian scores, from lucky to unlucky, shape (levels, j).

    Args:
        distance: how far the threshold lies beyond the fitted mean, shape (j,).
        std: fitted standard deviation of the scores.
        total: number of scores.
    """
    z = np.copysign(40.0, distance) if std == 0 else distance / std
    rate = scipy.special.ndtr(z)
    from_count = total * rate * (1 - rate)
    from_mean = total * np.exp(-(z**2)) / (2 * np.pi * _SHARE_FOR_CHOICE)
    spread = np.sqrt(from_count + from_mean)
    errors = total * rate + _LUCK[:, np.newaxis] * spread
    return np.asarray(np.clip(errors, 0.0, float(total)))


def _fit(
    choosing: Sample, judging: Sample
) -> tuple[float, float, float, Callable[[FloatArray], Errors]]:
    """Means of unobserved and observed scores, a standard deviation for both, and the errors.

    With the exact null, scores are those of `normal_scores`. Cosines with mean m have the standard
    deviation (1 − m²)^1.5 / √d, so their normal scores, about √(−d·ln(1 − m²)), that times the
    slope there.
    """
    if choosing.unobserved is None or judging.unobserved is None:
        dim = choosing.known_dim()
        square = float(np.clip(choosing.observed.mean(), -1, 1)) ** 2
        square = min(max(square, 1e-12), 1 - 1e-12)
        std = math.sqrt(square * (1 - square) / -math.log1p(-square))
        scores = normal_scores(judging.observed, dim)
        mean = float(normal_scores(choosing.observed, dim).mean())
        return 0.0, mean, std, lambda thresholds: count_normal_errors(scores, thresholds)
    spread = (choosing.observed.var() + choosing.unobserved.var()) / 2
    return (
        float(choosing.unobserved.mean()),
        float(choosing.observed.mean()),
        math.sqrt(spread),
        lambda thresholds: count_errors(judging, thresholds),
    )
