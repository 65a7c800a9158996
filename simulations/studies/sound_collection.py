"""Right mechanisms that were written as a check from outside, before the suite was run on them.

Half of them change what is released after noise was added, in ways that the conformance suite was
not tried with. None may be accused, with any seed. `mechanism_collection` has others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_epe.accounting import poisson_epsilon
from fl_epe.conformance import Target
from simulations.studies.mechanism_collection import (
    DIM,
    EPSILON,
    GAUSSIAN,
    LAPLACE,
    ONE_COUNT,
    Rng,
    Rows,
    Steps,
    after,
    choice,
    clipped,
    noisy_sum,
    response,
)

_COUNTS: Mapping[str, Any] = {
    "epsilon": 1.0,
    "norm": "l1",
    "inputs": "clipped",
    "nonnegative": True,
    "arrays": (6,),
}
"""The claim of a histogram to which each record adds at most 1."""


def _counted(rows: Rows) -> Rows:
    return np.asarray(clipped(np.rint(rows).clip(0, 1), order=1).sum(axis=0))


def _rounded_to_int8(total: Rows, rng: Rng) -> Rows:
    """Noise, then a grid of which the nearer points are the likelier ones."""
    low = np.floor(total / 0.05)
    up = rng.random(total.size) < total / 0.05 - low
    return np.asarray(np.clip(low + up, -128, 127) * 0.05)


def _bfloat16(total: Rows) -> Rows:
    bits = total.astype(np.float32).view(np.uint32)
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _laplace_sum(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows, order=1).sum(axis=0) + rng.laplace(0, 1.0, rows.shape[1])
    )


def _two_largest(total: Rows) -> Rows:
    return np.where(np.abs(total) >= np.sort(np.abs(total))[-2], total, 0.0)


def _debiased(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["step"] = state.get("step", 0) + 1
    state["mean"] = 0.5 * state.get("mean", 0.0) + 0.5 * noisy_sum(rows, rng)
    return np.asarray(state["mean"] / (1 - 0.5 ** state["step"]))


def _adam(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    noisy = noisy_sum(rows, rng)
    state["mean"] = 0.9 * state.get("mean", 0.0) + 0.1 * noisy
    state["square"] = 0.99 * state.get("square", 0.0) + 0.01 * noisy**2
    return np.asarray(state["mean"] / (np.sqrt(state["square"]) + 1e-8))


def _model(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["model"] = state.get("model", 0.0) - 0.1 * noisy_sum(rows, rng) / 10
    return np.asarray(state["model"])


def _permuted_and_flipped(rows: Rows, rng: Rng) -> int:
    """McKenna and Sheldon 2020."""
    scores = rows.sum(axis=0)
    for category in rng.permutation(scores.size):
        if rng.random() < math.exp((scores[category] - scores.max()) / 2):
            return int(category)
    raise AssertionError("the best category is always taken")


def _median(rows: Rows, rng: Rng) -> int:
    """The exponential mechanism for a median on a grid of eight points."""
    values, grid = rows[:, 0], np.linspace(0, 1, 8)
    scores = -np.abs(
        (values[:, None] > grid).sum(axis=0)
        - (values[:, None] <= grid).sum(axis=0)
    )
    return int(np.argmax(scores / 2 + rng.gumbel(0, 1, grid.size)))


def _one_of_two(rows: Rows, rng: Rng) -> int:
    votes = rows.sum(axis=0) + rng.exponential(2.0, rows.shape[1])
    return int(np.argmax(votes))


def _snapped(rows: Rows, rng: Rng) -> Rows:
    """Mironov 2012, with a grid of 1/4."""
    total = np.clip(clipped(rows, order=1).sum(axis=0), -20, 20)
    noisy = total + rng.choice([-1.0, 1.0], total.size) * np.log(
        1 - rng.random(total.size)
    )
    return np.asarray(np.clip(np.rint(4 * noisy) / 4, -20, 20))


def _two_geometrics(rows: Rows, rng: Rng) -> Rows:
    p = 1 - math.exp(-1)
    noise = rng.geometric(p, rows.shape[1]) - rng.geometric(p, rows.shape[1])
    return np.asarray(_counted(rows) + noise)


def _shares(rows: Rows, rng: Rng) -> Rows:
    noisy = np.maximum(_counted(rows) + rng.laplace(0, 1.0, rows.shape[1]), 0)
    return np.asarray(noisy / max(noisy.sum(), 1.0))


def _staircase(rows: Rows, rng: Rng) -> Rows:
    """Geng and Viswanath 2014, with γ = 1/(1 + e^(ε/2)) and ε = 1."""
    share, sign = 1 / (1 + math.exp(0.5)), rng.choice([-1.0, 1.0])
    step = rng.geometric(1 - math.exp(-1)) - 1
    near = rng.random() < share / (share + (1 - share) * math.exp(-1))
    inside = (
        share * rng.random() if near else share + (1 - share) * rng.random()
    )
    return np.array([rows.clip(0, 1).sum() + sign * (step + inside)])


def _noisy_mean(rows: Rows, rng: Rng) -> Rows:
    std = math.sqrt(2)
    total = clipped(rows).sum(axis=0) + rng.normal(0, std, DIM)
    return np.asarray(
        np.clip(total / max(len(rows) + rng.normal(0, std), 1.0), -1, 1)
    )


def _by_array(rows: Rows, rng: Rng) -> Rows:
    halves = np.split(rows, 2, axis=1)
    total = np.hstack([clipped(half, math.sqrt(0.5)) for half in halves]).sum(
        axis=0
    )
    return np.asarray(total + rng.normal(0, 1, DIM))


def _batch(rows: Rows, rng: Rng) -> Rows:
    return noisy_sum(rows[rng.random(len(rows)) < 0.5], rng)


def _twice(rows: Rows, rng: Rng) -> Rows:
    return np.concatenate(
        [noisy_sum(rows, rng, math.sqrt(2)) for _ in range(2)]
    )


def _noise_of_each(rows: Rows, rng: Rng) -> Rows:
    noisy_rows = clipped(rows) + rng.normal(0, 1, rows.shape)
    return np.asarray(noisy_rows.sum(axis=0))


def _prefix_sums(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["total"] = state.get("total", 0.0) + clipped(rows).sum(axis=0)
    return np.asarray(state["total"] + rng.normal(0, 2.0, DIM))


def _rounded_then_clipped(rows: Rows, rng: Rng) -> Rows:
    low = np.floor(rows / 0.5) * 0.5
    return noisy_sum(
        low + 0.5 * (rng.random(rows.shape) < (rows - low) / 0.5), rng
    )


def _half_of_the_entries(rows: Rows, rng: Rng) -> Rows:
    return noisy_sum(clipped(rows) * (rng.random(DIM) < 0.5), rng)


def _noisier_after_rounding(rows: Rows, rng: Rng) -> Rows:
    """Each record is rounded to a quarter, and is then at most √12/4 longer."""
    rows = clipped(rows)
    low = np.floor(rows / 0.25) * 0.25
    rows = low + 0.25 * (rng.random(rows.shape) < (rows - low) / 0.25)
    return np.asarray(
        rows.sum(axis=0) + rng.normal(0, 1 + math.sqrt(DIM) / 4, DIM)
    )


def _randomised_signs(rows: Rows, rng: Rng) -> Rows:
    """The signs of one record, each told with a twelfth of ε."""
    truth = 1 / (1 + math.exp(-1 / DIM))
    signs = np.where(rng.random(DIM) < truth, 1.0, -1.0)
    return np.asarray(np.where(rows[-1] >= 0, signs, -signs))


_ZERO_OUT: Mapping[str, Any] = {**GAUSSIAN, "adjacency": "zero-out"}

FROM_OUTSIDE: Mapping[str, Target] = {
    "rounded-to-int8-at-random": Target(
        lambda rows, rng: _rounded_to_int8(noisy_sum(rows, rng), rng),
        **GAUSSIAN,
    ),
    "bfloat16-laplace": Target(
        lambda rows, rng: _bfloat16(_laplace_sum(rows, rng)), **LAPLACE
    ),
    "laplace-times-1.2": Target(
        lambda rows, rng: 1.2 * _laplace_sum(rows, rng), **LAPLACE
    ),
    "two-largest-laplace": Target(
        lambda rows, rng: _two_largest(_laplace_sum(rows, rng)), **LAPLACE
    ),
    "clamped-rounded": after(lambda total: np.rint(np.clip(total, -1.5, 1.5))),
    "signs-of-a-smoothed-sum": after(
        lambda total: np.sign(np.convolve(total, [1, 2, 1], "same"))
    ),
    "quantiles": after(lambda total: np.quantile(total, [0.1, 0.5, 0.9])),
    "debiased-average": Steps.target(_debiased, steps=3),
    "adam": Steps.target(_adam, steps=3),
    "model-of-sgd": Steps.target(_model, steps=4),
    "model-of-sgd-at-the-end": Steps.target(_model, steps=4, adversary="last"),
    "permute-and-flip": choice(_permuted_and_flipped, 5),
    "median-on-a-grid": Target(
        _median,
        epsilon=1.0,
        norm="linf",
        inputs="clipped",
        nonnegative=True,
        arrays=(1,),
        categories=True,
    ),
    "noisy-max-exponential": choice(_one_of_two, 4),
    "10-ary-response": response(10, math.e + 9),
    "snapping-to-quarters": Target(
        _snapped, **{**LAPLACE, "epsilon": 1.3, "noise": None}
    ),
    "geometric-histogram": Target(_two_geometrics, **_COUNTS),
    "shares-of-a-histogram": Target(_shares, **_COUNTS),
    "staircase": Target(_staircase, **ONE_COUNT),
    "mean-with-a-noisy-count": Target(_noisy_mean, **GAUSSIAN),
    "clipped-by-array": Target(_by_array, **GAUSSIAN),
    "half-of-the-records": Target(
        _batch, sampling_rate=0.5, draws_batches=True, **GAUSSIAN
    ),
    "half-of-the-records-by-epsilon": Target(
        _batch,
        sampling_rate=0.5,
        draws_batches=True,
        **{
            **GAUSSIAN,
            "noise_multiplier": None,
            "epsilon": poisson_epsilon(1.0, 0.5, 1, 1e-5),
        },
    ),
    "released-twice": Target(_twice, sensitivity=math.sqrt(2), **GAUSSIAN),
    "noise-of-each-record": Target(
        _noise_of_each, **{**_ZERO_OUT, "noise": None}
    ),
    "prefix-sums": Steps.target(
        _prefix_sums, steps=4, participations=1, noise=None
    ),
    "rounded-then-clipped": Target(_rounded_then_clipped, **_ZERO_OUT),
    "half-of-the-entries": Target(_half_of_the_entries, **_ZERO_OUT),
    "noisier-after-rounding": Target(_noisier_after_rounding, **_ZERO_OUT),
    "randomised-signs": Target(
        _randomised_signs,
        epsilon=1.0,
        norm="linf",
        inputs="clipped",
        adjacency="substitute",
        others=[],
    ),
    "gaussian-claim-with-room": Target(
        noisy_sum,
        **{**GAUSSIAN, "noise_multiplier": None, "epsilon": 1.5 * EPSILON},
    ),
}
"""Right ones by name."""
