"""`EXAMPLES`: each broken mechanism beside a correct version, with the game for both.

Before an audit is trusted that found nothing, see whether it detects these.

Examples:
    >>> example = EXAMPLES["too-little-noise"]
    >>> round(example.claim(delta=1e-5), 2)
    4.38
    >>> (broken,) = example.play(example.broken, observations=200, seed=1)
    >>> (correct,) = example.play(example.correct, observations=200, seed=1)
    >>> bool(broken.unobserved.std() < 0.7 < correct.unobserved.std())
    True
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.conformance.games import (
    ALONG_CANARY,
    Adjacency,
    AuditedMechanism,
    Statistic,
    play_game,
)
from fl_epe.mechanism import AdaptiveClip
from fl_epe.seeding import generator
from simulations.shared.noisy_sum import NoisySum
from simulations.tramer_2022.cancelling_statistics import (
    between_steps,
    between_tensors,
    nearest_noise,
    whitened,
)
from simulations.tramer_2022.noise_bugs import (
    FewSeeds,
    NoiseOfWorkers,
    PrefixSums,
    RepeatedNoise,
    SharedNoise,
    TooLittleNoise,
    banded_factor,
)
from simulations.tramer_2022.sensitivity_bugs import (
    AdaptiveSum,
    ClippedByTensor,
    ClipsTheMean,
    OneTensorUnclipped,
    SensitivityOverBatch,
    WeightedSum,
)

Vector = NDArray[np.float64]
Canary = Callable[[int], Vector]
"""The canary's update in each step."""

_DIM, _BATCH, _CLIP, _NOISE = 12, 10, 1.0, 1.0
_LONG = 100.0 * _CLIP  # a canary that only clipping holds back
_OTHERS = np.random.default_rng(2022).standard_normal(
    (_BATCH - 1, _DIM)
)  # 2 to 5 long: clipped


@dataclasses.dataclass(frozen=True)
class Example:
    """A broken mechanism, a correct version, and the game that is played against both.

    Attributes:
        bug: what is wrong, in a few words.
        broken: the broken mechanism.
        correct: the correct version, which claims the same.
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
    broken: AuditedMechanism
    correct: AuditedMechanism
    canary: Canary
    sensitivity: float = _CLIP
    extra: Statistic | None = None
    steps: int = 1
    participations: int = 1
    noise_multiplier: float = _NOISE
    leaks: bool = True
    game: Adjacency = "add-or-remove"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The inner product with the canary, and `extra`; the last is named for this bug."""
        return (
            (ALONG_CANARY,)
            if self.extra is None
            else (ALONG_CANARY, self.extra)
        )

    @property
    def others(self) -> NDArray[np.float64]:
        """Updates of the nine other records, all to be clipped, shape (9, d)."""
        return _OTHERS.copy()

    def claim(self, delta: float) -> float:
        """ε that both versions claim at ``delta``, for an observation of all steps."""
        return gaussian_epsilon(
            self.noise_multiplier / math.sqrt(self.participations), delta
        )

    def play(
        self, mechanism: AuditedMechanism, observations: int, seed: int
    ) -> list[Scores]:
        """Scores of `broken` or `correct` by each of `statistics`."""
        return [
            play_game(
                mechanism,
                self.game,
                self.canary,
                observations=observations,
                steps=self.steps,
                others=self.others,
                statistic=statistic,
                seed=seed,
            )
            for statistic in self.statistics
        ]


def always(vector: Vector) -> Canary:
    """The same update in each step."""
    return lambda _: vector


def redrawn(dim: int, norm: float, seed: int) -> Canary:
    """A uniformly random direction, drawn anew in each step."""

    def vector(step: int) -> Vector:
        drawn = generator(seed, step).standard_normal(dim)
        return np.asarray(drawn * (norm / np.linalg.norm(drawn)))

    return vector


def once(canary: Canary, steps: int, at: int = 0) -> Canary:
    """``canary`` in step ``at`` of every ``steps`` steps alone, and zero in the others."""
    return lambda step: canary(step) * (step % steps == at)


def _sum() -> NoisySum:
    return NoisySum(_CLIP, _NOISE)


def _mean() -> NoisySum:
    return NoisySum(_CLIP, _NOISE, denominator=_BATCH)


def _few_seeds() -> Example:
    broken, canary = FewSeeds(_CLIP, _NOISE, seeds=100), _PLAIN
    quiet = NoisySum(_CLIP, 0.0)
    rng = np.random.default_rng(0)
    absent = quiet.release(_OTHERS, rng)
    shift = quiet.release(np.array([canary(0)]), rng)
    nearest = nearest_noise(broken.noises(_DIM), absent, shift)
    return Example(
        "noise from one of 100 seeds", broken, _sum(), canary, extra=nearest
    )


def _prefix_sums(steps: int = 8) -> Example:
    factor = banded_factor(steps)
    return Example(
        "noise of the wrong triangular factor",
        PrefixSums(_CLIP, _NOISE, factor, right=False),
        PrefixSums(_CLIP, _NOISE, factor),
        once(_PLAIN, steps),
        extra=whitened(factor, np.tril(np.ones((steps, steps)))),
        steps=steps,
    )


def _adaptive(steps: int = 4) -> Example:
    rule = AdaptiveClip(
        1.0, quantile=0.5, rate=0.3, count_std=2.0, voters=_BATCH
    )
    return Example(
        "adaptive clip norm with the wrong sign",
        AdaptiveSum(rule, _NOISE, right=False),
        AdaptiveSum(rule, _NOISE),
        _PLAIN,
        steps=steps,
        participations=steps,
        leaks=False,
    )


def _workers(right: bool) -> NoiseOfWorkers:
    return NoiseOfWorkers(_CLIP, _NOISE, _BATCH, 5, right=right)


def _weighted(most: float | None) -> WeightedSum:
    return WeightedSum(_CLIP, _NOISE, [1.0] * (_BATCH - 1) + [3.0], most)


_PLAIN = always(_LONG * np.eye(_DIM)[0])
_ALL_TENSORS = always(np.full(_DIM, _LONG / math.sqrt(_DIM)))

EXAMPLES: Mapping[str, Example] = types.MappingProxyType(
    {
        "clips-the-mean": Example(
            "clipping after averaging",
            ClipsTheMean(_CLIP, _NOISE, _BATCH),
            _mean(),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "sensitivity-over-batch": Example(
            "sensitivity divided by the batch size",
            SensitivityOverBatch(_CLIP, _NOISE, _BATCH),
            _mean(),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "few-seeds": _few_seeds(),
        "too-little-noise": Example(
            "noise too small by a factor of 2",
            TooLittleNoise(_CLIP, _NOISE, factor=2.0),
            _sum(),
            _PLAIN,
        ),
        "shared-noise": Example(
            "noise shared between two tensors",
            SharedNoise(_CLIP, _NOISE),
            _sum(),
            _PLAIN,
            extra=between_tensors(_DIM),
        ),
        "repeated-noise": Example(
            "noise repeated after a resume",
            RepeatedNoise(_CLIP, _NOISE, resumed_after=2),
            _sum(),
            redrawn(_DIM, _LONG, seed=1),
            extra=between_steps(lag=2),
            steps=4,
            participations=4,
        ),
        "noise-of-workers": Example(
            "noise of each of 5 workers before averaging",
            _workers(right=False),
            _workers(right=True),
            _PLAIN,
            sensitivity=_CLIP / _BATCH,
        ),
        "weights-by-examples": Example(
            "weights by number of examples, 3 times the usual",
            _weighted(None),
            _weighted(1.0),
            _PLAIN,
        ),
        "one-tensor-unclipped": Example(
            "one tensor unclipped",
            OneTensorUnclipped(_CLIP, _NOISE),
            _sum(),
            _ALL_TENSORS,
        ),
        "adaptive-clip-sign": _adaptive(),
        "wrong-clip-norm": Example(
            "noise for the wrong clip norm: of one of 4 tensors",
            ClippedByTensor(_CLIP, _NOISE, tensors=4, share=1.0),
            ClippedByTensor(_CLIP, _NOISE, tensors=4, share=0.5),
            _ALL_TENSORS,
        ),
        "wrong-factor": _prefix_sums(),
    }
)
"""Every broken mechanism by name, as Tramèr et al. (2022) and others met them or may."""
