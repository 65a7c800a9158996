"""ε of an adversary who sees every round but does not know in which ones a client took part.

Such an adversary's most powerful score is the likelihood ratio of a mixture of Gaussians
(`fl_epe.scores.likelihood_ratio`). It is not Gaussian, so its ε comes from its privacy-loss
distribution.

One epoch of T rounds: under "took part", the round j is uniform and ``s_j ~ N(a_j, 1)``. The loss
is ``ln((e^(a_j s_j − a_j²/2) + W) / T)``, where ``W``, the sum of the other rounds' terms, has the
same law under both hypotheses. Given j and W the loss rises with ``s_j``, so its distribution
function is an average of normal ones over draws of (j, W). Epochs are independent: their losses
add up, and their distributions are convolved on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal, special

Floats = NDArray[np.float64]

_DRAWS = 500
_GRID = 2048
_TAIL = 8.5  # standard deviations of the participant's score that the grid covers


def secret_rounds_epsilon(epochs: Sequence[Floats], delta: float, *, seed: int = 0) -> float:
    """ε of one participation in each epoch, at a round that the adversary does not know.

    Args:
        epochs: for each epoch the expected scores ``a_t`` of its rounds, shape ``(T_e,)``.
        delta: target δ in (0, 1).
        seed: of the draws of the other rounds' terms (`_DRAWS` of them).

    Raises:
        ValueError: if there is no epoch, a signal is not positive and finite, or δ is out of range.
    """
    if not 0 < delta < 1:
        raise ValueError(f"Expected delta={delta} in (0, 1).")
    if not len(epochs):
        raise ValueError("Expected epochs=[] to hold at least one epoch.")
    for rounds in epochs:
        if not (len(rounds) and np.all(np.isfinite(rounds)) and np.all(rounds > 0)):
            raise ValueError(f"Expected epochs={rounds} to be positive and finite.")
    losses, members, others = _loss_distribution(epochs, np.random.default_rng(seed))

    def excess(epsilon: float) -> float:
        removed = np.sum(members * -np.expm1(np.minimum(epsilon - losses, 0.0)))
        added = np.sum(others * -np.expm1(np.minimum(epsilon + losses, 0.0)))
        return float(max(removed, added)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0 and high < losses[-1]:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high)) if excess(high) <= 0 else float(losses[-1])


def _loss_distribution(
    epochs: Sequence[Floats], rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Losses on a grid, with their probabilities for those who took part and for the others."""
    draws = [_draw(rounds, rng) for rounds in epochs]
    limits = [_limits(*draw) for draw in draws]
    step = sum(high - low for low, high in limits) / _GRID
    low = math.fsum(low for low, _ in limits)
    members = others = np.ones(1)
    for draw, (start, end) in zip(draws, limits, strict=True):
        edges = start + step * np.arange(np.ceil((end - start) / step) + 1.0)
        member, other = _probabilities(*draw, edges)
        members = np.maximum(signal.fftconvolve(members, member), 0.0)
        others = np.maximum(signal.fftconvolve(others, other), 0.0)
    # The middle of each cell; a sum of cells from each epoch lies half a step an epoch further.
    losses = low + step * (np.arange(float(len(members))) + 0.5 * len(epochs))
    return losses, members, others


def _draw(rounds: Floats, rng: np.random.Generator) -> tuple[int, Floats, Floats]:
    """Number of rounds, and draws of the participant's signal and of the others' ``ln W``."""
    place = rng.integers(len(rounds), size=_DRAWS)
    log_background = np.full(_DRAWS, -np.inf)
    if len(rounds) > 1:
        for i, j in enumerate(place):
            terms = rounds * rng.standard_normal(len(rounds)) - rounds**2 / 2
            log_background[i] = special.logsumexp(np.delete(terms, j))
    return len(rounds), rounds[place], log_background


def _limits(count: int, own: Floats, log_background: Floats) -> tuple[float, float]:
    """Smallest and largest loss that matter."""

    def loss(score: Floats) -> Floats:
        return np.asarray(np.logaddexp(own * score - own**2 / 2, log_background) - np.log(count))

    low, high = loss(np.full_like(own, -_TAIL)).min(), loss(own + _TAIL).max()
    return float(low), float(max(high, low + 1e-9))


def _probabilities(
    count: int, own: Floats, log_background: Floats, edges: Floats
) -> tuple[Floats, Floats]:
    """Probability of each cell, for a participant and for another."""
    member, other = np.empty(len(edges)), np.empty(len(edges))
    for i, edge in enumerate(edges):
        # The participant's term is e^total less the background; none is left where it is larger.
        total = np.log(count) + edge
        gap = np.minimum(log_background - total, 0.0)
        with np.errstate(divide="ignore"):
            score = (total + np.log(-np.expm1(gap)) + own**2 / 2) / own
        member[i], other[i] = special.ndtr(score - own).mean(), special.ndtr(score).mean()
    return np.diff(member), np.diff(other)
