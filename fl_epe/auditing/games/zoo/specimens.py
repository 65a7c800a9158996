"""`ZOO`: each broken mechanism beside its twin, with the game that is played against both."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing.games.canary import Canary, constant, dirac, once, random_direction
from fl_epe.auditing.games.game import ADD_OR_REMOVE, Game
from fl_epe.auditing.games.mechanism import Mechanism, NoisySum
from fl_epe.auditing.games.play import play_statistics
from fl_epe.auditing.games.statistic import ALONG_CANARY, Statistic
from fl_epe.auditing.games.structured import between_steps, between_tensors, nearest_noise, whitened
from fl_epe.auditing.games.zoo.noise_bugs import (
    FewSeeds,
    NoiseOfWorkers,
    PrefixSums,
    RepeatedNoise,
    SharedNoise,
    TooLittleNoise,
    banded_factor,
)
from fl_epe.auditing.games.zoo.sensitivity_bugs import (
    AdaptiveSum,
    ClippedByTensor,
    ClipsTheMean,
    OneTensorUnclipped,
    SensitivityOverBatch,
    WeightedSum,
)
from fl_epe.auditing.scores import Scores
from fl_epe.mechanism import AdaptiveClip

_DIM, _BATCH, _CLIP, _NOISE = 12, 10, 1.0, 1.0
_LONG = 100.0 * _CLIP  # a canary that only clipping holds back
_OTHERS = np.random.default_rng(2022).standard_normal((_BATCH - 1, _DIM))  # 2 to 5 long: clipped


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A broken mechanism, its twin, and the game that is played against both.

    Attributes:
        bug: what is wrong, in a few words.
        broken: the broken mechanism.
        twin: the right one, that claims the same.
        canary: whose update is longer than any clip norm.
        noise_multiplier: that both claim, of one step.
        extra: the statistic that looks for this bug, or ``None`` if the inner product does.
        steps: in one observation.
        participations: steps of these in which the canary takes part, as the claim counts.
        sensitivity: that both claim, of what is released in one step.
        leaks: whether the claim is wrong at all.
        game: the adjacency of the claim.
    """

    bug: str
    broken: Mechanism
    twin: Mechanism
    canary: Canary
    sensitivity: float = _CLIP
    extra: Statistic | None = None
    steps: int = 1
    participations: int = 1
    noise_multiplier: float = _NOISE
    leaks: bool = True
    game: Game = ADD_OR_REMOVE

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The inner product with the canary, and `extra`; the last is named for this bug."""
        return (ALONG_CANARY,) if self.extra is None else (ALONG_CANARY, self.extra)

    @property
    def others(self) -> NDArray[np.float64]:
        """Updates of the nine other records, all to be clipped, shape (9, d)."""
        return _OTHERS.copy()

    def claim(self, delta: float) -> float:
        """ε that broken mechanism and twin claim at ``delta``, for an observation of all steps."""
        return gaussian_epsilon(self.noise_multiplier / math.sqrt(self.participations), delta)

    def play(self, mechanism: Mechanism, observations: int, seed: int) -> list[Scores]:
        """Scores of `broken` or `twin` by each of `statistics`."""
        return play_statistics(
            mechanism,
            self.game,
            self.canary,
            self.statistics,
            observations=observations,
            steps=self.steps,
            others=self.others,
            seed=seed,
        )


def _sum() -> NoisySum:
    return NoisySum(_CLIP, _NOISE)


def _mean() -> NoisySum:
    return NoisySum(_CLIP, _NOISE, denominator=_BATCH)


def _few_seeds() -> Specimen:
    broken, canary = FewSeeds(_CLIP, _NOISE, seeds=100), dirac(_DIM, _LONG)
    quiet = NoisySum(_CLIP, 0.0)
    rng = np.random.default_rng(0)
    absent = quiet.release(_OTHERS, rng)
    shift = quiet.release(np.array([canary.vector(0)]), rng)
    nearest = nearest_noise(broken.noises(_DIM), absent, shift)
    return Specimen("noise from one of 100 seeds", broken, _sum(), canary, extra=nearest)


def _prefix_sums(steps: int = 8) -> Specimen:
    factor = banded_factor(steps)
    return Specimen(
        "noise of the wrong triangular factor",
        PrefixSums(_CLIP, _NOISE, factor, right=False),
        PrefixSums(_CLIP, _NOISE, factor),
        once(dirac(_DIM, _LONG), steps),
        extra=whitened(factor, np.tril(np.ones((steps, steps)))),
        steps=steps,
    )


def _adaptive(steps: int = 4) -> Specimen:
    rule = AdaptiveClip(1.0, quantile=0.5, rate=0.3, count_std=2.0, voters=_BATCH)
    return Specimen(
        "adaptive clip norm with the wrong sign",
        AdaptiveSum(rule, _NOISE, right=False),
        AdaptiveSum(rule, _NOISE),
        dirac(_DIM, _LONG),
        steps=steps,
        participations=steps,
        leaks=False,
    )


def _workers(right: bool) -> NoiseOfWorkers:
    return NoiseOfWorkers(_CLIP, _NOISE, _BATCH, 5, right=right)


def _weighted(most: float | None) -> WeightedSum:
    return WeightedSum(_CLIP, _NOISE, [1.0] * (_BATCH - 1) + [3.0], most)


_PLAIN = dirac(_DIM, _LONG)
_ALL_TENSORS = constant(_DIM, _LONG)

ZOO: Mapping[str, Specimen] = types.MappingProxyType(
    {
        "clips-the-mean": Specimen(
            "clipping after averaging",
            ClipsTheMean(_CLIP, _NOISE, _BATCH),
            _mean(),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "sensitivity-over-batch": Specimen(
            "sensitivity divided by the batch size",
            SensitivityOverBatch(_CLIP, _NOISE, _BATCH),
            _mean(),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "few-seeds": _few_seeds(),
        "too-little-noise": Specimen(
            "noise too small by a factor of 2",
            TooLittleNoise(_CLIP, _NOISE, factor=2.0),
            _sum(),
            _PLAIN,
        ),
        "shared-noise": Specimen(
            "noise shared between two tensors",
            SharedNoise(_CLIP, _NOISE),
            _sum(),
            _PLAIN,
            extra=between_tensors(_DIM),
        ),
        "repeated-noise": Specimen(
            "noise repeated after a resume",
            RepeatedNoise(_CLIP, _NOISE, resumed_after=2),
            _sum(),
            random_direction(_DIM, _LONG, seed=1, redrawn=True),
            extra=between_steps(lag=2),
            steps=4,
            participations=4,
        ),
        "noise-of-workers": Specimen(
            "noise of each of 5 workers before averaging",
            _workers(right=False),
            _workers(right=True),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "weights-by-examples": Specimen(
            "weights by number of examples, 3 times the usual",
            _weighted(None),
            _weighted(1.0),
            _PLAIN,
        ),
        "one-tensor-unclipped": Specimen(
            "one tensor unclipped", OneTensorUnclipped(_CLIP, _NOISE), _sum(), _ALL_TENSORS
        ),
        "adaptive-clip-sign": _adaptive(),
        "wrong-clip-norm": Specimen(
            "noise for the wrong clip norm: of one of 4 tensors",
            ClippedByTensor(_CLIP, _NOISE, tensors=4, share=1.0),
            ClippedByTensor(_CLIP, _NOISE, tensors=4, share=0.5),
            _ALL_TENSORS,
        ),
        "wrong-factor": _prefix_sums(),
    }
)
"""Every broken mechanism by name, as Tramèr et al. (2022) and others met them or may."""
