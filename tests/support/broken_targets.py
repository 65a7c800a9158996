"""Broken mechanisms beside right ones that claim the same, as targets of the conformance suite.

Each class or function is written as its author would: nothing here says what is wrong with it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance import Target
from fl_epe.conformance.games import AuditedMechanism
from simulations.studies.mechanism_collection import ONE_COUNT
from simulations.tramer_2022.broken_examples import Example

Rng = np.random.Generator
Choose = Callable[[int, int, Rng], Any]

DIM, Z, DELTA = 12, 1.0, 1e-5


def finite(updates: Floats) -> Floats:
    """The updates, if all are finite."""
    if not np.isfinite(updates).all():
        raise ValueError("Expected finite updates.")
    return np.asarray(updates, np.float64)


def cut(updates: Floats, order: float = 2, limit: float = 1.0) -> Floats:
    """Each row scaled down to a norm."""
    updates = finite(updates)
    norms = np.linalg.norm(updates, order, axis=1, keepdims=True)
    return np.asarray(updates * (limit / np.maximum(norms, limit)))


def gaussian(**more: Any) -> dict[str, Any]:
    return {"delta": DELTA, "noise": "gaussian", "noise_multiplier": Z} | more


def laplace(scale: float) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = cut(updates, order=1).sum(axis=0)
        return total + rng.laplace(0, scale, total.size)

    return Target(release, epsilon=1.0, norm="l1", noise="laplace")


def laplace_of_uniforms(draw: Callable[[Rng, int], Any]) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = cut(updates, order=1).sum(axis=0)
        u = draw(rng, total.size) - 0.5
        return total - np.sign(u) * np.log1p(-2 * np.abs(u))

    return Target(release, epsilon=1.0, norm="l1", noise="laplace")


def clipping(clip: Callable[[Floats], Floats]) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = clip(finite(updates)).sum(axis=0)
        return total + rng.normal(0, Z, total.size)

    return Target(release, **gaussian())


def by_entry(updates: Floats) -> Floats:
    return np.clip(updates, -1.0, 1.0)


def by_layer(share: float) -> Callable[[Floats], Floats]:
    def clip(updates: Floats) -> Floats:
        return np.hstack(
            [cut(part, limit=share) for part in np.split(updates, 2, axis=1)]
        )

    return clip


class Batches:
    """Training steps on batches of a data set."""

    def __init__(self, choose: Choose) -> None:
        self.choose, self.step = choose, 0

    def start(self) -> None:
        self.step = 0

    def release(self, updates: Floats, rng: Rng) -> Any:
        chosen = self.choose(len(updates), self.step % 4, rng)
        self.step += 1
        return cut(updates[chosen]).sum(axis=0) + rng.normal(
            0, Z, updates.shape[1]
        )

    @classmethod
    def target(cls, choose: Choose) -> Target:
        one = cls(choose)
        return Target(
            one.release,
            **gaussian(),
            steps=4,
            sampling_rate=0.25,
            draws_batches=True,
            reset=one.start,
            arrays=(DIM // 4,) * 2,
        )


def in_order(count: int, step: int, rng: Rng) -> Any:
    return np.array_split(np.arange(count), 4)[step]


def by_coins(count: int, step: int, rng: Rng) -> Any:
    return np.flatnonzero(rng.random(count) < 0.25)


def shards(draw: Callable[[Rng, int], list[Floats]]) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = cut(updates).sum(axis=0)
        halves = np.split(total, 2)
        return np.concatenate(
            [
                half + n
                for half, n in zip(halves, draw(rng, DIM // 2), strict=True)
            ]
        )

    return Target(release, **gaussian())


def one_seed(rng: Rng, size: int) -> list[Floats]:
    seed = int(rng.integers(2**62))
    return [np.random.default_rng(seed).normal(0, Z, size) for _ in range(2)]


def two_seeds(rng: Rng, size: int) -> list[Floats]:
    return [
        np.random.default_rng(int(rng.integers(2**62))).normal(0, Z, size)
        for _ in range(2)
    ]


class Accumulation:
    """Noise for the steps of an accumulated batch."""

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.noise: Floats | None = None

    def start(self) -> None:
        self.noise = None

    def release(self, updates: Floats, rng: Rng) -> Any:
        total = cut(updates).sum(axis=0)
        if self.fresh or self.noise is None:
            self.noise = rng.normal(0, Z, total.size)
        return total + self.noise

    @classmethod
    def target(cls, fresh: bool) -> Target:
        one = cls(fresh)
        return Target(one.release, **gaussian(), steps=3, reset=one.start)


def microbatches(each: bool) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        updates = cut(updates) if each else finite(updates)
        total = np.zeros(updates.shape[1])
        for first in range(0, len(updates), 2):
            part = updates[first : first + 2]
            total += (
                part.sum(axis=0) if each else cut(part.mean(axis=0)[None])[0]
            )
        return total + rng.normal(0, Z, total.size)

    return Target(release, **gaussian())


def noisy_max(scale: float) -> Target:
    def release(votes: Floats, rng: Rng) -> int:
        return int(
            np.argmax(votes.sum(axis=0) + rng.laplace(0, scale, votes.shape[1]))
        )

    return Target(
        release,
        epsilon=1.0,
        norm="linf",
        inputs="clipped",
        nonnegative=True,
        arrays=(5,),
        categories=True,
        others=np.repeat(np.eye(5), 2, axis=0),
    )


def truncated(limit: float, epsilon: float = 1.0) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = cut(updates, order=1).sum(axis=0)
        noise = rng.laplace(0, 1 / epsilon, total.size)
        while np.any(far := np.abs(noise) > limit / epsilon):
            noise[far] = rng.laplace(0, 1 / epsilon, int(far.sum()))
        return total + noise

    return Target(release, epsilon=epsilon, norm="l1", noise="laplace")


def truncated_gaussian(limit: float) -> Target:
    def release(updates: Floats, rng: Rng) -> Any:
        total = cut(updates).sum(axis=0)
        noise = rng.normal(0, Z, total.size)
        while np.any(far := np.abs(noise) > limit * Z):
            noise[far] = rng.normal(0, Z, int(far.sum()))
        return total + noise

    return Target(release, **gaussian())


def exponential(factor: float) -> Target:
    def release(scores: Floats, rng: Rng) -> int:
        total = scores.sum(axis=0)
        return int(np.argmax(factor * total + rng.gumbel(0, 1, total.size)))

    return Target(
        release,
        epsilon=1.0,
        norm="linf",
        inputs="clipped",
        arrays=(5,),
        categories=True,
        others=np.zeros((1, 5)),
    )


def randomised_response(truth: float) -> Target:
    def release(bit: Floats, rng: Rng) -> int:
        told = rng.random() < truth
        return int(bit[0, 0] > 0) if told else 1 - int(bit[0, 0] > 0)

    return Target(
        release,
        epsilon=math.log(3),
        norm="linf",
        inputs="clipped",
        nonnegative=True,
        adjacency="zero-out",
        arrays=(1,),
        categories=True,
        others=np.empty((0, 1)),
    )


def geometric(scale: float) -> Target:
    """Two-sided geometric noise on counts, in whole numbers."""
    p = 1 - math.exp(-scale)

    def release(counts: Floats, rng: Rng) -> Any:
        total = np.clip(np.rint(counts), 0, 1).sum(axis=0)
        noise = rng.geometric(p, total.size) - rng.geometric(p, total.size)
        return total + noise

    return Target(release, **ONE_COUNT)


PAIRS = {
    "laplace-half-scale": (laplace(0.5), laplace(1.0)),
    "laplace-10-bits": (
        laplace_of_uniforms(
            lambda rng, n: (rng.integers(1024, size=n) + 0.5) / 1024
        ),
        laplace_of_uniforms(lambda rng, n: rng.random(n)),
    ),
    "clips-entries": (clipping(by_entry), clipping(cut)),
    "clips-layers": (
        clipping(by_layer(1.0)),
        clipping(by_layer(math.sqrt(0.5))),
    ),
    "batches-in-order": (Batches.target(in_order), Batches.target(by_coins)),
    "shared-by-shards": (shards(one_seed), shards(two_seeds)),
    "reused-in-steps": (Accumulation.target(False), Accumulation.target(True)),
    "clips-microbatches": (microbatches(False), microbatches(True)),
    "noisy-max-third": (noisy_max(1 / 3), noisy_max(1.0)),
    "truncated-laplace": (truncated(4.0), truncated(math.inf)),
    "truncated-gaussian": (
        truncated_gaussian(3.5),
        truncated_gaussian(math.inf),
    ),
    "exponential-double": (exponential(1.0), exponential(0.5)),
    "response-too-true": (randomised_response(0.9), randomised_response(0.75)),
    "geometric-half": (geometric(2.0), geometric(1.0)),
}
"""By name: the broken one and the right one."""


def from_example(example: Example, mechanism: AuditedMechanism) -> Target:
    """A target that is an entry of the collection of broken mechanisms."""
    from simulations.tramer_2022.noise_bugs import PrefixSums
    from simulations.tramer_2022.sensitivity_bugs import AdaptiveSum

    adaptive = isinstance(mechanism, AdaptiveSum)
    free = isinstance(mechanism, PrefixSums) or adaptive

    def release(updates: Floats, rng: Rng) -> Any:
        return mechanism.release(updates, rng)

    return Target(
        release,
        delta=DELTA,
        noise_multiplier=example.noise_multiplier,
        noise=None if free else "gaussian",
        inputs="finite",
        sensitivity=example.sensitivity,
        steps=example.steps,
        participations=example.participations,
        reset=mechanism.reset,
        others=example.others,
        clip_rule=(0.5, lambda: mechanism.clip_norm) if adaptive else None,  # type: ignore[attr-defined]
    )


def own_randomness(target: Target) -> Target:
    """The same mechanism, with noise from a generator of its own."""
    rng = np.random.default_rng(5)

    def release(updates: Floats) -> Any:
        return target.release(updates, rng)

    return dataclasses.replace(target, release=release)
