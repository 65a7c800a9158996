"""ε of an adversary who sees every round but does not know in which ones a client took part.

The adversary's statistic is `fl_epe.auditing.statistics.likelihood_ratio`. It is not Gaussian, so
its ε comes from the distribution of the privacy loss. Derivation: docs/notes/unknown-rounds.md.

Examples:
    >>> import numpy as np
    >>> known = unknown_rounds_epsilon([np.array([1.0])], 1e-5)
    >>> unknown_rounds_epsilon([np.ones(10)], 1e-5) < known
    True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.checks import check_probability

Floats = NDArray[np.float64]

_DRAWS = 2000
_GRID = 2048
_GRID_DRAWS = 500  # with several epochs
_TAIL = 8.5  # standard deviations of the participant's score that the grid covers


def unknown_rounds_epsilon(epochs: Sequence[Floats], delta: float, *, seed: int = 0) -> float:
    """ε of one participation in each epoch, at a round that the adversary does not know.

    Args:
        epochs: for each epoch the expected scores ``a_t`` of its rounds, shape ``(T_e,)``.
        delta: target δ in (0, 1).
        seed: seed of the simulation. Its error in ε is about 1%, or several percent if a few rounds
            have a far larger signal than the others.

    Raises:
        ValueError: if there is no epoch, a score is not positive and finite, or δ is out of range.
    """
    check_probability("delta", delta)
    if not len(epochs):
        raise ValueError("Expected epochs=[] to hold at least one epoch.")
    for rounds in epochs:
        if not (len(rounds) and np.all(np.isfinite(rounds)) and np.all(rounds > 0)):
            raise ValueError(f"Expected epochs={rounds} to be positive and finite.")
    draws = [_draw(rounds, np.random.default_rng((seed, e))) for e, rounds in enumerate(epochs)]
    curve = _one_epoch(draws[0]) if len(draws) == 1 else _several_epochs(draws)

    def excess(epsilon: float) -> float:
        return curve(epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, rtol=1e-12))


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """An epoch of ``count`` rounds: draws of the participant's signal and of the others' ln W."""

    count: int
    own: Floats
    log_background: Floats

    def threshold(self, loss: float) -> Floats:
        """The participant's score at which the loss is reached, for every draw; may be −∞."""
        total = math.log(self.count) + loss
        gap = np.minimum(self.log_background - total, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray((total + np.log(-np.expm1(gap)) + self.own**2 / 2) / self.own)

    def limits(self) -> tuple[float, float]:
        """Smallest and largest loss that the grid must cover."""

        def loss(score: Floats) -> Floats:
            term = np.logaddexp(self.own * score - self.own**2 / 2, self.log_background)
            return np.asarray(term - math.log(self.count))

        low, high = loss(np.full_like(self.own, -_TAIL)).min(), loss(self.own + _TAIL).max()
        return float(low), float(max(high, low + 1e-9))


def _one_epoch(epoch: _Epoch) -> Callable[[float], float]:
    """δ as a function of ε, without a grid.

    The larger of ``E_Q[(1 − e^(ε − L))_+]`` and ``E_P[(1 − e^(ε + L))_+]``: for each draw of the
    background an integral over the participant's score, by Gauss–Legendre quadrature.
    """
    nodes, weights = np.polynomial.legendre.leggauss(24)

    def integral(epsilon: float, mean: Floats, start: Floats, end: Floats, sign: int) -> float:
        half = np.maximum(end - start, 0.0) / 2
        score = start + half * (1 + nodes[:, None])
        loss = np.logaddexp(epoch.own * score - epoch.own**2 / 2, epoch.log_background)
        loss -= math.log(epoch.count)
        gain = -np.expm1(np.minimum(epsilon - sign * loss, 0.0))
        density = np.exp(-((score - mean) ** 2) / 2) / math.sqrt(2 * math.pi)
        return float(np.mean(weights @ (gain * density) * half))

    def delta(epsilon: float) -> float:
        own, none = epoch.own, np.zeros_like(epoch.own)
        start = np.maximum(epoch.threshold(epsilon), own - _TAIL)
        removed = integral(epsilon, own, start, np.maximum(start, own) + _TAIL, 1)
        end = np.clip(epoch.threshold(-epsilon), -_TAIL, _TAIL)
        added = integral(epsilon, none, np.minimum(end, none) - _TAIL, end, -1)
        return max(removed, added)

    return delta


def _several_epochs(epochs: list[_Epoch]) -> Callable[[float], float]:
    """δ as a function of ε, from the losses' distributions on a grid, convolved."""
    epochs = [_thin(epoch) for epoch in epochs]
    limits = [epoch.limits() for epoch in epochs]
    step = math.fsum(high - low for low, high in limits) / _GRID
    low = math.fsum(low for low, _ in limits)
    members = others = np.ones(1)
    for epoch, (start, end) in zip(epochs, limits, strict=True):
        edges = start + step * np.arange(np.ceil((end - start) / step) + 1.0)
        scores = np.array([epoch.threshold(edge) for edge in edges])
        member = np.diff(scipy.special.ndtr(scores - epoch.own).mean(axis=1))
        other = np.diff(scipy.special.ndtr(scores).mean(axis=1))
        members = np.maximum(scipy.signal.fftconvolve(members, member), 0.0)
        others = np.maximum(scipy.signal.fftconvolve(others, other), 0.0)
    # The middle of each cell; a sum of cells, one from each epoch, lies half a step further each.
    losses = low + step * (np.arange(float(len(members))) + 0.5 * len(epochs))

    def delta(epsilon: float) -> float:
        removed = np.sum(members * -np.expm1(np.minimum(epsilon - losses, 0.0)))
        added = np.sum(others * -np.expm1(np.minimum(epsilon + losses, 0.0)))
        return float(max(removed, added))

    return delta


def _thin(epoch: _Epoch) -> _Epoch:
    """Fewer draws, evenly spaced among those of each round, sorted by their background."""
    order = np.lexsort((epoch.log_background, epoch.own))[:: _DRAWS // _GRID_DRAWS]
    return _Epoch(epoch.count, epoch.own[order], epoch.log_background[order])


def _draw(rounds: Floats, rng: np.random.Generator) -> _Epoch:
    place = np.arange(_DRAWS) * len(rounds) // _DRAWS  # every round equally often
    log_background = np.empty(_DRAWS)
    for block in np.array_split(np.arange(_DRAWS), 1 + _DRAWS * len(rounds) // 2_000_000):
        terms = rounds * rng.standard_normal((len(block), len(rounds))) - rounds**2 / 2
        terms[np.arange(len(block)), place[block]] = -np.inf
        log_background[block] = scipy.special.logsumexp(terms, axis=1)
    return _Epoch(len(rounds), rounds[place], log_background)
