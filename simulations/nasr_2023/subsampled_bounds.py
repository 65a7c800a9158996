"""Lower bounds by f-DP with sampling and composition: the accountant's curve is the ruler.

The mechanisms of one family, noisy sums under Poisson sampling, differ in their noise multiplier.
Error rates rule out every member whose trade-off curve lies above them, so that a limit on the
noise multiplier follows, and from it ε (Nasr et al. 2023, sections 4.1 and 5.5). ε is that of
`poisson_epsilon_below`, so that it is not above the exact one.

Valid for scores of any distribution at a held-out threshold, if the mechanism is of the family:
Gaussian noise, this sampling rate, this number of steps. Adjacency: add-or-remove.

Examples:
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> scores = Scores(rng.normal(1, 1, 2000), rng.normal(0, 1, 2000))  # one step of z = 1
    >>> 1.0 < noise_multiplier_limit(scores) < 1.3
    True
    >>> 1.5 < composed_lower_bound(scores, 1e-5, sampling_rate=0.1, steps=10) < 2.85
    True
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.auditing.bounds.error_rates import (
    Errors,
    Sample,
    clopper_pearson_upper,
    count_errors,
    upper_rates,
)
from fl_epe.auditing.bounds.thresholds import (
    held_out_errors,
    joint_alpha,
    mu_limits,
)
from fl_epe.auditing.scoring.scores import Scores, in_moderate_units
from fl_epe.checks import Floats, check_probability
from simulations.nasr_2023.sampled_gaussian import (
    poisson_epsilon_below,
    poisson_trade_off,
)

_LEAST, _MOST = -4, 10  # noise multipliers from 2⁻⁴ to 2¹⁰
_FINE = 64  # members of the family in each doubling of the noise
_SHARE_FOR_CHOICE = 0.1
_PLACES = 201  # thresholds to choose among
_LUCK = np.linspace(
    -1.5, 1.5, 4
)  # standard deviations around the expected number of errors
_QUANTILES = np.linspace(1e-4, 1 - 1e-4, 60)
_RATES = np.concatenate(
    [np.geomspace(1e-7, 0.05, 80, endpoint=False), np.linspace(0.05, 1, 60)]
)


def subsampled_lower_bound(
    scores: Scores,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    confidence: float = 0.95,
) -> float:
    """A lower bound on the ε of a whole run, from one score a run, by the accountant's curve.

    Args:
        scores: each of an independent run of ``steps`` steps, of two groups or cosines.
        delta: target δ in (0, 1).
        sampling_rate: with which the canary takes part in a step, in (0, 1].
        steps: of the run that a score is of, at least 1.
        confidence: one-sided.

    Returns:
        In nats, at least 0. Members of the family are told apart down to noise multipliers of
        1/16, so that the bound is never above the ε of that one where there is sampling.

    Raises:
        ValueError: if an argument is out of range, or there is nothing to compare with.
    """
    check_probability("delta", delta)
    limit = noise_multiplier_limit(
        scores, sampling_rate=sampling_rate, steps=steps, confidence=confidence
    )
    return poisson_epsilon_below(limit, sampling_rate, steps, delta)


def composed_lower_bound(
    scores: Scores,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    canary_rate: float = 1.0,
    confidence: float = 0.95,
) -> float:
    """A lower bound on the ε of a whole run, from scores that are each of one of its steps.

    The steps' scores give a limit on the noise multiplier, the accountant composes it. It holds if
    every step has the same noise and the run's records are sampled as is said here.

    Args:
        scores: each of one step, as of `fl_epe.conformance.games.play_game` with ``two_runs``.
        delta: target δ of the whole run, in (0, 1).
        sampling_rate: with which a record takes part in a step of the run, in (0, 1].
        steps: of the run.
        canary_rate: with which the canary took part in the steps that were scored, in (0, 1].
        confidence: one-sided.

    Returns:
        In nats, at least 0.

    Raises:
        ValueError: if an argument is out of range, or there is nothing to compare with.
    """
    check_probability("delta", delta)
    limit = noise_multiplier_limit(
        scores, sampling_rate=canary_rate, confidence=confidence
    )
    return poisson_epsilon_below(limit, sampling_rate, steps, delta)


def noise_multiplier_limit(
    scores: Scores,
    *,
    sampling_rate: float = 1.0,
    steps: int = 1,
    confidence: float = 0.95,
) -> float:
    """An upper limit of the noise multiplier: more noise would allow no such scores.

    Args:
        scores: each of ``steps`` steps, of two groups or cosines.
        sampling_rate: with which the canary takes part in a step, in (0, 1].
        steps: that a score is of, at least 1.
        confidence: one-sided.

    Returns:
        ``inf`` if the scores rule out nothing.

    Raises:
        ValueError: if an argument is out of range, or there is nothing to compare with.
    """
    check_probability("confidence", confidence)
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"Expected sampling_rate={sampling_rate} in (0, 1].")
    if steps < 1:
        raise ValueError(f"Expected steps={steps} >= 1.")
    sample = _sample(scores, 1 - confidence)
    if sample is None:
        return math.inf
    if sampling_rate == 1:
        limits = mu_limits(sample)
        mu = float(limits(held_out_errors(sample, limits))[0])
        return math.sqrt(steps) / mu if mu > 0 else math.inf
    return _limit(sample, sampling_rate, steps)


def _sample(scores: Scores, alpha: float) -> Sample | None:
    """What a bound needs, or ``None`` if all scores are alike."""
    if not scores.boundable:
        raise ValueError(
            "Expected unobserved scores or an exact null, got unobserved=None."
        )
    if scores.dim is not None:
        return Sample(scores.cosines, None, scores.dim, 0.5, alpha)
    observed, unobserved = in_moderate_units(*scores.both())
    if np.ptp(np.concatenate([observed, unobserved])) == 0:
        return None
    return Sample(observed, unobserved, 0, 0.5, alpha)


def _limit(sample: Sample, rate: float, steps: int) -> float:
    """The least noise multiplier of the ladder that is ruled out; all larger ones are as well."""
    level = joint_alpha(sample)

    def promise(errors: Errors) -> Floats:
        log_fpr, fnr = upper_rates(errors, clopper_pearson_upper, level)
        return _rungs_ruled_out(np.exp(log_fpr), fnr, rate, steps)

    errors = _held_out(sample, promise, rate, steps)
    log_fpr, fnr = upper_rates(errors, clopper_pearson_upper, level)
    fpr, missed = math.exp(float(log_fpr[0])), float(fnr[0])

    def ruled_out(rung: int) -> bool:
        curve = poisson_trade_off(2.0 ** (rung / _FINE), rate, steps)
        return bool(missed < curve.least_fnr(fpr))

    low, high = _LEAST * _FINE, _MOST * _FINE
    if not ruled_out(high):
        return math.inf
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ruled_out(middle) else (middle + 1, high)
    return float(2.0 ** (low / _FINE))


def _held_out(
    sample: Sample, promise: Callable[[Errors], Floats], rate: float, steps: int
) -> Errors:
    """Errors at a threshold that a tenth of the scores chose, fitted as the family has them.

    Unobserved scores are fitted by a Gaussian, observed ones by its shifts: one for each step in
    which the canary was sampled.
    """
    if sample.unobserved is None:
        return held_out_errors(sample, promise)
    choosing, judging = sample.split(_SHARE_FOR_CHOICE)
    observed, unobserved = choosing.both()
    middle, spread = float(unobserved.mean()), float(unobserved.std())
    shift = max(float(observed.mean()) - middle, 0.0) / (rate * steps)
    times = np.unique(scipy.stats.binom.ppf(_QUANTILES, steps, rate))
    weights = scipy.stats.binom.pmf(times, steps, rate)
    low, high = middle - 4 * spread, middle + shift * times[-1] + 4 * spread
    thresholds = np.linspace(low, high, _PLACES)
    foreseen = count_errors(judging, thresholds)
    scale = max(spread, 1e-9 * max(high - low, 1e-300))
    from_each = scipy.special.ndtr(
        (thresholds - middle - shift * times[:, np.newaxis]) / scale
    )
    missed = (weights / weights.sum()) @ from_each
    alarms = scipy.special.ndtr((middle - thresholds) / scale)
    predicted = dataclasses.replace(
        foreseen,
        missed=_with_luck(missed, foreseen.observed),
        false_alarms=_with_luck(alarms, foreseen.unobserved),
    )
    best = int(np.argmax(promise(predicted).mean(axis=0)))
    return count_errors(judging, thresholds[best : best + 1])


def _with_luck(share: Floats, total: int) -> Floats:
    """Counts of errors that may come, from few to many, shape (levels, j)."""
    spread = np.sqrt(total * share * (1 - share))
    return np.asarray(
        np.clip(
            total * share + _LUCK[:, np.newaxis] * spread, 0.0, float(total)
        )
    )


def _rungs_ruled_out(
    fpr: Floats, fnr: Floats, rate: float, steps: int
) -> Floats:
    """How many doublings of noise these error rates rule out, about: to choose a threshold."""
    ladder = _ladder(rate, steps)
    places = np.interp(
        np.broadcast_to(fpr, fnr.shape), _RATES, np.arange(_RATES.size)
    )
    least = np.array(
        [np.interp(places, np.arange(_RATES.size), row) for row in ladder]
    )
    excess = (
        least - fnr
    )  # grows with the noise, from below 0 to above where it is ruled out
    out = np.sum(excess > 0, axis=0)
    first = np.clip(ladder.shape[0] - out, 1, ladder.shape[0] - 1)
    above = np.take_along_axis(excess, first[np.newaxis], 0)[0]
    below = np.take_along_axis(excess, first[np.newaxis] - 1, 0)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(
            (above > 0) & (below <= 0), above / (above - below), 0.0
        )
    return np.asarray(out + part)


@functools.lru_cache(maxsize=64)
def _ladder(rate: float, steps: int) -> Floats:
    """The least FNR at each of `_RATES`, a row for each doubling of the noise."""
    noises = 2.0 ** np.arange(_LEAST, _MOST + 1)
    return np.array(
        [
            poisson_trade_off(float(z), rate, steps).least_fnr(_RATES)
            for z in noises
        ]
    )
