"""An (ε, δ) bound without a model of the scores: weighted evidence, a test for each ε.

It is the sharpest one for up to about 0.05 / δ canaries. With more it is weak against unobserved
scores, and so is it for fewer than about 16 canaries.

Every canary's score counts by how much likelier it makes the canary's label than the tested ε
allows, if the scores were Gaussian. The bound holds for scores of any distribution.
Derivation: docs/notes/lower-bounds.md.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
import scipy

from fl_epe.auditing.bounds.error_rates import FloatArray, Sample, normal_scores
from fl_epe.auditing.bounds.guessing import (
    Margin,
    confidence_quantile,
    first_accepted,
    guess_design,
    share_beyond,
)

_LEVELS = 16  # the largest weight
_ROUNDING = 1e-11  # more than the error of a probability that ``_tail_of_sum`` computes
_HOEFFDING = np.sqrt(np.log(2e12) / 2)

Law = tuple[FloatArray, int]  # probabilities of 0, 1, 2, …, and how many variables have them


def weighted(sample: Sample) -> float:
    """ε from weighted evidence, against scored unobserved canaries or the exact null."""
    return _exact_null(sample) if sample.unobserved is None else _two_groups(sample)


def _two_groups(sample: Sample) -> float:
    """Weighted guesses of the labels of canaries, from two independent groups of scores.

    Tied scores share the mean weight of their ranks, so that weights depend on scores alone. The
    weight of the right guesses is at most Σ wᵢ·Bernoulli(1/(1 + e^−ε)), plus the largest weight for
    each label that leaks, with probability δ (Kairouz, Oh, Viswanath 2015).
    """
    coins = _fair_coins(sample)
    pooled = -np.concatenate(coins.both())
    values, sizes = np.unique(pooled, return_counts=True)  # from the highest score to the lowest
    members = np.bincount(np.searchsorted(values, -coins.observed), minlength=values.size)
    half = pooled.size // 2
    leaks, leak_chances = _binomial(pooled.size, sample.delta)
    ranks = (np.arange(half) + 0.5) / half

    def at(epsilon: float) -> Margin:
        _, shift = guess_design(pooled.size, sample.alpha, epsilon)
        excess = _rank_excess(ranks, shift, epsilon)
        signed = np.concatenate([excess, np.zeros(pooled.size % 2), -excess[::-1]])
        shared = np.add.reduceat(signed, np.cumsum(sizes) - sizes) / sizes
        weights = np.round(_LEVELS * np.abs(shared) / max(np.abs(shared).max(), 1e-9)).astype(int)
        right = np.where(shared > 0, members, sizes - members)
        still_needed = np.maximum(int(weights @ right) - _LEVELS * leaks, 0)
        counts = np.bincount(weights, sizes, _LEVELS + 1)[1:].astype(int)

        def margin(tested: float) -> float:
            q = scipy.special.expit(tested)
            laws = [(_coin(weight, q), count) for weight, count in enumerate(counts, 1) if count]
            return float(leak_chances @ _tail_of_sum(laws, still_needed)) - coins.alpha

        return margin

    return first_accepted(at)


def _exact_null(sample: Sample) -> float:
    """Weighted cosines of observed canaries.

    Under (ε, δ)-DP, P[C ≥ c] is at most e^ε·P₀[C ≥ c] + δ and at most 1 − e^−ε·(P₀[C < c] − δ),
    where P₀ is the exact null. Cosines are turned into scores that are N(0, 1) under it.
    """
    count = sample.observed.size
    scores = normal_scores(sample.observed, sample.dim)
    shifts, epsilons = _detectable_shifts(count, sample.alpha)

    def at(epsilon: float) -> Margin:
        shift = float(np.interp(epsilon, epsilons, shifts))
        cuts = _cuts(epsilon, shift, count)
        value = np.searchsorted(cuts, scores, side="right").sum(keepdims=True)
        log_tail = scipy.special.log_ndtr(-cuts)

        def margin(tested: float) -> float:
            above = np.exp(np.minimum(tested + log_tail, 0.0)) + sample.delta
            below = np.exp(-tested) * np.maximum(-np.expm1(log_tail) - sample.delta, 0.0)
            tail = np.minimum(np.minimum(above, 1 - below), 1.0)
            law = -np.diff(tail, prepend=1.0, append=0.0)
            return float(_tail_of_sum([(law, count)], value)[0]) - sample.alpha

        return margin

    return first_accepted(at)


def _fair_coins(sample: Sample) -> Sample:
    """A part of the scores that is distributed like canaries included by fair coins.

    If the scores run out, which has probability p, the coins are tossed again and the level becomes
    α·(1 − p).
    """
    observed, unobserved = sample.both()
    pairs = min(observed.size, unobserved.size)
    coins = max(2, 2 * pairs - int(2 * np.sqrt(2 * pairs)))
    heads_possible, chances = _binomial(coins, 0.5)
    enough = (heads_possible <= observed.size) & (coins - heads_possible <= unobserved.size)
    chances = np.where(enough, chances, 0.0)
    rng = sample.rng(1)
    heads = int(rng.choice(heads_possible, p=chances / chances.sum()))
    return dataclasses.replace(
        sample,
        observed=rng.permutation(observed)[:heads],
        unobserved=rng.permutation(unobserved)[: coins - heads],
        alpha=sample.alpha * float(chances.sum()),
    )


@functools.lru_cache
def _detectable_shifts(count: int, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Gaussian shifts, and the ε that ``count`` scores with that shift rule out, increasing."""
    shifts = np.geomspace(0.01, 2000.0, 300)
    hits = np.geomspace(1.0, count, 60)
    threshold = shifts[:, np.newaxis] - scipy.special.ndtri((hits - 0.5) / count)
    lower = scipy.special.betaincinv(hits, count - hits + 1, alpha)
    epsilons = np.log(lower) - scipy.special.log_ndtr(-threshold)
    return shifts, np.maximum.accumulate(np.max(epsilons, axis=1))


def _cuts(epsilon: float, shift: float, count: int) -> FloatArray:
    """Scores at which the weight rises by one, increasing.

    Between log-odds of −ε and ε the weight is constant. Above, it rises by ``_LEVELS`` up to the
    largest score expected among ``count`` Gaussians; below, it falls in the same way.
    """
    largest = shift - scipy.special.ndtri(0.5 / count)
    step = max(shift * largest - shift**2 / 2 - epsilon, 1e-9) / _LEVELS
    excess = epsilon + step * (np.arange(_LEVELS) + 0.5)
    return np.asarray(np.concatenate([-excess[::-1], excess]) / shift + shift / 2)


def _rank_excess(ranks: FloatArray, shift: float, epsilon: float) -> FloatArray:
    """Excess over ``epsilon`` of the log-odds of guesses at ``ranks`` (shares from either end)."""
    distance = np.linspace(0.0, confidence_quantile(ranks[:1], shift)[0], _LEVELS * 100)
    share = share_beyond(distance, shift)
    log_odds = shift * np.interp(ranks, share[::-1], distance[::-1])
    return np.maximum(log_odds - epsilon, 0.0)


def _binomial(tosses: int, chance: float) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """The values of a binomial variable, and their probabilities."""
    values = np.arange(tosses + 1)
    return values, -np.diff(scipy.special.bdtrc(values, tosses, chance), prepend=1.0)


def _coin(weight: int, chance: float) -> FloatArray:
    law = np.zeros(weight + 1)
    law[0], law[-1] = 1 - chance, chance
    return law


def _tail_of_sum(laws: list[Law], values: npt.NDArray[np.int64]) -> FloatArray:
    """P[S ≥ v] at each of ``values``, S the sum of independent variables, rounded up.

    Computed by Fourier transform, on a window around the mean that S leaves with probability below
    10⁻¹² (Hoeffding's inequality).
    """
    mean = sum(count * (law @ np.arange(law.size)) for law, count in laws)
    reach = _HOEFFDING * np.sqrt(sum(count * (law.size - 1) ** 2 for law, count in laws))
    first, last = int(mean - reach), int(mean + reach) + 1
    size = scipy.fft.next_fast_len(last - first + 1, real=True)
    transform = np.ones(size // 2 + 1, np.complex128)
    for law, count in laws:
        transform *= scipy.fft.rfft(law, size) ** count
    density = np.roll(scipy.fft.irfft(transform, size), -first)
    tail = np.append(np.cumsum(density[::-1])[::-1], 0.0)
    return np.asarray(tail[np.clip(values - first, 0, size)] + _ROUNDING)
