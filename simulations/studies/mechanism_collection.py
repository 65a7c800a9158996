"""Mechanisms of the literature and of textbooks, some with a common mistake, each with its claim.

`KNOWN` are mistakes, and `HARMLESS` are forms of release, that were known when the conformance
suite was changed for them. `BROKEN` and `SOUND`, and later `MORE_BROKEN` and `MORE_SOUND`, were
written afterwards, before the suite had been run on any of them. In that first run at 4,000 trials
it found 11 of 12 and named 9, accused none of 24; then found 12 of 12 and named 10, and accused 3
of 12: what is scaled, sorted or normalised after noise was added. It was changed after each. A
broken one has the words by which a message names its mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.accounting import gaussian_epsilon
from fl_epe.conformance import Target

Rows = NDArray[np.float64]
Rng = np.random.Generator
Release = Callable[[Rows, Rng], ArrayLike]

DIM, DELTA = 12, 1e-5
EPSILON = gaussian_epsilon(1.0, DELTA)
GAUSSIAN: Mapping[str, Any] = {
    "noise": "gaussian",
    "noise_multiplier": 1.0,
    "delta": DELTA,
    "inputs": "finite",
}
"""The claim of noise with z = 1."""
LAPLACE: Mapping[str, Any] = {
    "noise": "laplace",
    "epsilon": 1.0,
    "norm": "l1",
    "inputs": "finite",
}
ONE_COUNT: Mapping[str, Any] = {
    "epsilon": 1.0,
    "norm": "linf",
    "inputs": "clipped",
    "nonnegative": True,
    "arrays": (1,),
    "others": np.ones((5, 1)),
}
"""The claim of a count, beside five records that are counted."""


def clipped(rows: Rows, limit: float = 1.0, order: float = 2) -> Rows:
    """Each row, shape (n, d), scaled down to a norm."""
    norms = np.linalg.norm(rows, order, axis=1, keepdims=True)
    return np.asarray(rows * (limit / np.maximum(norms, limit)))


def noisy_sum(rows: Rows, rng: Rng, std: float = 1.0) -> Rows:
    """The clipped sum with Gaussian noise, shape (d,)."""
    return np.asarray(
        clipped(rows).sum(axis=0) + rng.normal(0, std, rows.shape[1])
    )


def after(change: Callable[[Rows], ArrayLike]) -> Target:
    """The noisy sum, changed afterwards."""
    return Target(lambda rows, rng: change(noisy_sum(rows, rng)), **GAUSSIAN)


def with_noise(draw: Callable[[Rng, int], Rows], **claim: Any) -> Target:
    """The clipped sum with other noise."""

    def release(rows: Rows, rng: Rng) -> Rows:
        return np.asarray(clipped(rows).sum(axis=0) + draw(rng, rows.shape[1]))

    return Target(release, **{**GAUSSIAN, **claim})


class Steps:
    """A mechanism with a state.

    Args:
        step: from the state, a dictionary that is empty at first, updates and rng to a release.
        claim: of `Target`.
    """

    def __init__(
        self, step: Callable[[dict[str, Any], Rows, Rng], ArrayLike]
    ) -> None:
        self._step = step
        self._state: dict[str, Any] = {}

    def _reset(self) -> None:
        self._state = {}

    def _release(self, rows: Rows, rng: Rng) -> ArrayLike:
        return self._step(self._state, rows, rng)

    @classmethod
    def target(
        cls,
        step: Callable[[dict[str, Any], Rows, Rng], ArrayLike],
        **claim: Any,
    ) -> Target:
        """The target of such a mechanism."""
        mechanism = cls(step)
        return Target(
            mechanism._release, reset=mechanism._reset, **{**GAUSSIAN, **claim}
        )


def choice(release: Release, categories: int, **claim: Any) -> Target:
    """A target that releases a category, of scores or counts in [0, 1] of each record."""
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "norm": "linf",
        "inputs": "clipped",
        "nonnegative": True,
        "arrays": (categories,),
        "categories": True,
    }
    return Target(release, **{**settings, **claim})


def response(categories: int, denominator: float) -> Target:
    """Randomised response over k categories: the truth with probability e^ε / denominator."""
    truth = math.e / denominator

    def release(rows: Rows, rng: Rng) -> int:
        value = int(np.argmax(rows[-1]))
        if rng.random() < truth:
            return value
        return int((value + rng.integers(1, categories)) % categories)

    other_records: list[Any] = []
    return choice(
        release,
        categories,
        adjacency="substitute",
        nonnegative=False,
        others=other_records,
    )


# Known when the suite was changed for them.


def _below_six(rows: Rows, rng: Rng) -> Rows:
    return noisy_sum(rows, rng, 1.0 if len(rows) >= 6 else 0.0)


def _median(rows: Rows, rng: Rng) -> Rows:
    limit = float(np.median(np.linalg.norm(rows, axis=1)))
    total = clipped(rows, max(limit, 1e-9)).sum(axis=0) / max(limit, 1e-9)
    return np.asarray(total + rng.normal(0, 1, total.size))


def _laplace_for_l2(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows).sum(axis=0) + rng.laplace(0, 1.0, rows.shape[1])
    )


def _rounded_at_random(rows: Rows, rng: Rng) -> Rows:
    rows = clipped(rows)
    low = np.floor(rows / 0.5) * 0.5
    rows = low + 0.5 * (rng.random(rows.shape) < (rows - low) / 0.5)
    return np.asarray(rows.sum(axis=0) + rng.normal(0, 1, rows.shape[1]))


def _snapped(rows: Rows, rng: Rng) -> Rows:
    total = np.clip(clipped(rows, order=1).sum(axis=0), -40, 40)
    sign = rng.choice([-1.0, 1.0], total.size)
    noisy = total + sign * np.log(1 - rng.random(total.size))
    return np.asarray(np.clip(np.rint(noisy), -40, 40))


def _int8(total: Rows) -> Rows:
    return np.clip(np.rint(total / 0.1), -128, 127) * 0.1


def _bfloat16(total: Rows) -> Rows:
    bits = total.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


_MANY = np.eye(6)[np.arange(60) % 6]


def _each_response(rows: Rows, rng: Rng, denominator: float) -> Rows:
    """How often each of k categories was told by randomised response of every record."""
    count, categories = rows.shape
    values = rows.argmax(axis=1)
    lies = rng.random(count) >= math.e / denominator
    responses = (
        np.where(lies, values + rng.integers(1, categories, count), values)
        % categories
    )
    return np.bincount(responses, minlength=categories).astype(np.float64)


def _most_frequent(denominator: float) -> Release:
    return lambda rows, rng: int(
        _each_response(rows, rng, denominator).argmax()
    )


def _exponential(factor: float) -> Release:
    """Exponential mechanism, whose exponents are the scores times a factor."""
    return lambda rows, rng: int(
        np.argmax(factor * rows.sum(axis=0) + rng.gumbel(0, 1, rows.shape[1]))
    )


def _raw_median(rows: Rows, rng: Rng) -> Rows:
    return (
        np.asarray(np.median(rows, axis=0))
        if len(rows)
        else np.zeros(rows.shape[1])
    )


def _largest_three(total: Rows) -> Rows:
    is_large = np.abs(total) >= np.sort(np.abs(total))[-3]
    return np.where(is_large, total, 0.0)


KNOWN: Mapping[str, tuple[Target, str]] = {
    "k-ary-response-with-two": (response(6, 1 + math.e), "probabilities"),
    "no-noise-below-6": (Target(_below_six, **GAUSSIAN), "no noise"),
    "median-clip-norm": (Target(_median, **GAUSSIAN), "sensitivity"),
    "laplace-for-l2": (Target(_laplace_for_l2, **LAPLACE), "sensitivity"),
    "sampling-not-done": (
        Target(
            noisy_sum,
            sampling_rate=0.25,
            steps=4,
            draws_batches=True,
            **GAUSSIAN,
        ),
        "sampling rate",
    ),
    "twelve-uniforms": (
        with_noise(lambda rng, d: rng.random((12, d)).sum(axis=0) - 6),
        "shape",
    ),
    "rounded-at-random-before-noise": (
        Target(_rounded_at_random, **GAUSSIAN, adjacency="zero-out"),
        "rounded at random",
    ),
    "float16-noise": (
        with_noise(
            lambda rng, d: rng.normal(size=d).astype(np.float16).astype(float)
        ),
        "coarse grid",
    ),
    "ten-thousandth": (
        with_noise(
            lambda rng, d: rng.normal(0, 5e-5, d),
            epsilon=10.0,
            noise_multiplier=None,
        ),
        "noise: scale",
    ),
    "each-response-with-two": (
        choice(
            _most_frequent(1 + math.e), 6, adjacency="substitute", others=_MANY
        ),
        "probabilities",
    ),
    "exponential-half-sensitivity": (
        choice(_exponential(1.0), 6, adjacency="substitute", others=_MANY),
        "probabilities",
    ),
    "raw-median": (
        Target(_raw_median, **GAUSSIAN),
        "no noise is added, or the same",
    ),
    "raw-top-three": (
        Target(
            lambda rows, rng: _largest_three(
                np.asarray(clipped(rows).sum(axis=0))
            ),
            **GAUSSIAN,
        ),
        "no noise is added, or the same",
    ),
    "raw-winner": (
        choice(
            lambda rows, rng: int(rows.sum(axis=0).argmax()), 6, others=_MANY
        ),
        "no noise is added, or the same",
    ),
}
"""Mistakes by name, with words of the message."""


def _averaged(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["average"] = 0.9 * state.get("average", 0.0) + 0.1 * noisy_sum(
        rows, rng
    )
    return np.asarray(state["average"])


def _histogram(change: Callable[[Rows], ArrayLike], **claim: Any) -> Target:
    """Votes for one of five bins with Laplace noise, changed afterwards."""

    def release(rows: Rows, rng: Rng) -> ArrayLike:
        counts: Rows = clipped(np.rint(rows).clip(0, 1), order=1).sum(axis=0)
        return change(np.asarray(counts + rng.laplace(0, 1.0, rows.shape[1])))

    return Target(
        release,
        **{
            **LAPLACE,
            "inputs": "clipped",
            "nonnegative": True,
            "arrays": (5,),
            **claim,
        },
    )


def _votes(change: Callable[[Rows], ArrayLike], **claim: Any) -> Target:
    """Where the largest entry of each record is, with Laplace noise, changed afterwards."""

    def release(rows: Rows, rng: Rng) -> ArrayLike:
        counts = np.bincount(rows.argmax(axis=1), minlength=rows.shape[1])
        return change(np.asarray(counts + rng.laplace(0, 1.0, rows.shape[1])))

    return Target(
        release,
        **{
            **LAPLACE,
            "inputs": "clipped",
            "nonnegative": True,
            "arrays": (5,),
            **claim,
        },
    )


def _up_to_ten(counts: Rows) -> Rows:
    return np.clip(counts, 0, 10)


HARMLESS: Mapping[str, Target] = {
    "clamped": after(lambda total: np.clip(total, -2, 2)),
    "positive-part": after(lambda total: np.maximum(total, 0)),
    "rounded": after(np.rint),
    "int8": after(_int8),
    "bfloat16": after(_bfloat16),
    "snapping": Target(
        _snapped, **{**LAPLACE, "epsilon": 1.0 + 1e-9, "noise": None}
    ),
    "snapping-laplace": Target(_snapped, **LAPLACE),
    "textbook": Target(noisy_sum, **{**GAUSSIAN, "inputs": "any"}),
    "averaged-over-steps": Steps.target(_averaged, steps=3),
    "averaged-last-step": Steps.target(_averaged, steps=3, adversary="last"),
    "histogram-clamped": _histogram(_up_to_ten),
    "histogram-rounded": _histogram(np.rint),
    "histogram-clamped-rounded": _histogram(
        lambda counts: np.rint(_up_to_ten(counts))
    ),
    "histogram-scaled": _histogram(lambda counts: 1.1 * counts),
    "votes-clamped": _votes(_up_to_ten),
    "votes-rounded": _votes(np.rint),
    "votes-scaled": _votes(lambda counts: 100 * counts),
    "votes-replaced": _votes(np.rint, adjacency="substitute", epsilon=2.0),
    "count-replaced": Target(
        lambda rows, rng: rows.sum(axis=0) + rng.laplace(0, 1.0, 1),
        **{
            **ONE_COUNT,
            "norm": "l1",
            "noise": "laplace",
            "adjacency": "substitute",
        },
        sensitivity=1.0,
    ),
    "each-response": choice(
        _most_frequent(math.e + 5), 6, adjacency="substitute", others=_MANY
    ),
    "exponential-of-many": choice(
        _exponential(0.5), 6, adjacency="substitute", others=_MANY
    ),
}
"""Post-processed and textbook forms by name."""

# Written afterwards.


def _mean_of_those_present(rows: Rows, rng: Rng) -> Rows:
    total = clipped(rows).sum(axis=0) / max(len(rows), 1)
    return np.asarray(total + rng.normal(0, 0.1, total.size))


def _error_feedback(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    owed = state.get("owed", 0.0) + rows.sum(axis=0)
    sent = clipped(owed[None])[0]
    state["owed"] = owed - sent
    return np.asarray(sent + rng.normal(0, 1, sent.size))


def _threshold_alone(rows: Rows, rng: Rng) -> int:
    """Sparse vector technique whose queries get no noise (Lyu et al. 2017, algorithm 5)."""
    above = rows.sum(axis=0) >= 3 + rng.laplace(0, 2.0)
    return int(above @ 2 ** np.arange(rows.shape[1]))


def _sparse_vector(rows: Rows, rng: Rng) -> int:
    """The first query above a threshold (Lyu et al. 2017, algorithm 1 with c = 1)."""
    noisy = rows.sum(axis=0) + rng.laplace(0, 4.0, rows.shape[1])
    above = np.flatnonzero(noisy >= 3 + rng.laplace(0, 2.0))
    return int(above[0]) if len(above) else rows.shape[1]


def _top_two(rows: Rows, rng: Rng) -> int:
    first, second = np.argsort(
        -(rows.sum(axis=0) + rng.laplace(0, 1.0, rows.shape[1]))
    )[:2]
    return int(first * rows.shape[1] + second)


def _unary(same: float, flipped: float) -> Target:
    """Unary encoding: a bit is 1 with one probability where it was 1, and another elsewhere."""

    def release(rows: Rows, rng: Rng) -> Rows:
        bits = np.arange(rows.shape[1]) == np.argmax(rows[-1])
        return np.asarray(
            rng.random(bits.size) < np.where(bits, same, flipped), np.float64
        )

    return Target(
        release,
        epsilon=1.0,
        norm="linf",
        inputs="clipped",
        adjacency="substitute",
        arrays=(4,),
        others=[],
    )


def _log_ten(rng: Rng, dim: int) -> Rows:
    return rng.normal(0, math.sqrt(2 * math.log10(1.25 / DELTA)) / 0.9, dim)


def _first_array(rows: Rows, rng: Rng) -> Rows:
    norms = np.linalg.norm(rows[:, : DIM // 2], axis=1, keepdims=True)
    total = (rows / np.maximum(norms, 1.0)).sum(axis=0)
    return np.asarray(total + rng.normal(0, 1, total.size))


def _counts(draw: Callable[[Rng], float]) -> Target:
    def release(rows: Rows, rng: Rng) -> Rows:
        return np.array([np.rint(rows).clip(0, 1).sum() + draw(rng)])

    return Target(release, **ONE_COUNT)


def _counter(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["step"] = state.get("step", 0) + 1
    state["total"] = state.get("total", 0.0) + clipped(rows).sum(axis=0)
    if state["step"] & (state["step"] - 1) == 0:
        state["noise"] = rng.normal(0, 1, rows.shape[1])
    return np.asarray(state["total"] + state["noise"])


def _one_batch(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    if "chosen" not in state:
        state["chosen"] = rng.random(len(rows)) < 0.25
    return noisy_sum(rows[state["chosen"]], rng)


def _coins(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    return noisy_sum(rows[rng.random(len(rows)) < 0.25], rng)


def _preconditioned(rows: Rows, rng: Rng) -> Rows:
    scale = np.sqrt(np.mean(np.square(rows), axis=0)) + 1e-3
    return np.asarray(noisy_sum(rows, rng) / scale)


SAMPLED: Mapping[str, Any] = {
    "sampling_rate": 0.25,
    "steps": 4,
    "draws_batches": True,
}

BROKEN: Mapping[str, tuple[Target, str]] = {
    "variance-for-deviation": (
        with_noise(
            lambda rng, d: rng.normal(0, 0.7**2, d), noise_multiplier=0.7
        ),
        "noise: scale",
    ),
    "mean-of-those-present": (
        Target(_mean_of_those_present, sensitivity=0.1, **GAUSSIAN),
        "sensitivity",
    ),
    "error-feedback": (
        Steps.target(_error_feedback, steps=3, participations=1),
        "sensitivity",
    ),
    "svt-without-query-noise": (choice(_threshold_alone, 5), "probabilities"),
    "top-two-for-one": (
        choice(_top_two, 5, others=np.repeat(np.eye(5), 2, axis=0)),
        "probabilities",
    ),
    "unary-whole-budget": (
        _unary(math.e / (1 + math.e), 1 / (1 + math.e)),
        "probabilities",
    ),
    "log10-in-formula": (
        with_noise(_log_ten, epsilon=0.9, noise_multiplier=None),
        "noise",
    ),
    "norm-of-first-array": (Target(_first_array, **GAUSSIAN), "sensitivity"),
    "truncated-to-integers": (
        _counts(lambda rng: float(np.trunc(rng.laplace(0, 1.0)))),
        "probabilities",
    ),
    "counter-reuses-noise": (
        Steps.target(_counter, steps=4, participations=1, noise=None),
        "independent",
    ),
    "one-batch-for-all-steps": (
        Steps.target(_one_batch, **SAMPLED),
        "sampling rate",
    ),
    "scaled-by-private-moment": (
        Target(_preconditioned, **{**GAUSSIAN, "noise": None}),
        "moves the release",
    ),
}
"""Mistakes by name, with words of the message."""


def _geometric(rng: Rng) -> float:
    p = 1 - math.exp(-1)
    return float(rng.geometric(p) - rng.geometric(p))


def _by_layer(rows: Rows, rng: Rng) -> Rows:
    halves = np.split(rows, 2, axis=1)
    return np.concatenate(
        [
            clipped(half, limit).sum(axis=0)
            + rng.normal(0, math.sqrt(2) * limit, DIM // 2)
            for half, limit in zip(halves, (0.1, 0.9), strict=True)
        ]
    )


def _momentum(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    state["velocity"] = 0.9 * state.get("velocity", 0.0) + noisy_sum(rows, rng)
    return np.asarray(state["velocity"])


_ROTATION = np.linalg.qr(np.random.default_rng(7).normal(size=(DIM, DIM)))[0]


def _rotated(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(noisy_sum(rows @ _ROTATION, rng) @ _ROTATION.T)


def _noisy_max(rows: Rows, rng: Rng) -> int:
    return int(np.argmax(rows.sum(axis=0) + rng.laplace(0, 2.0, rows.shape[1])))


def _laplace(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows, order=1).sum(axis=0) + rng.laplace(0, 1.0, rows.shape[1])
    )


def _laplace_of_l2(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows).sum(axis=0) + rng.laplace(0, DIM**0.5, rows.shape[1])
    )


def _discrete(rows: Rows, rng: Rng) -> Rows:
    values = np.arange(-60, 61)
    weights = np.exp(-(values**2) / 32)
    total = np.rint(rows).clip(0, 1).sum(axis=0)
    return np.asarray(
        total + rng.choice(values, total.size, p=weights / weights.sum())
    )


def _mean_of_ten(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(noisy_sum(rows, rng) / 10)


def _global_norm(total: Rows) -> Rows:
    return np.asarray(total / max(float(np.linalg.norm(total)), 1.0))


SOUND: Mapping[str, Target] = {
    "gaussian-sum": Target(noisy_sum, **GAUSSIAN),
    "gaussian-by-epsilon": Target(
        noisy_sum, **{**GAUSSIAN, "noise_multiplier": None, "epsilon": EPSILON}
    ),
    "mean-of-ten": Target(_mean_of_ten, sensitivity=0.1, **GAUSSIAN),
    "mean-by-epsilon": Target(
        _mean_of_ten,
        **{**GAUSSIAN, "noise_multiplier": None, "epsilon": EPSILON},
    ),
    "laplace": Target(_laplace, **LAPLACE),
    "laplace-of-l2": Target(_laplace_of_l2, clip_norm=DIM**0.5, **LAPLACE),
    "geometric": _counts(_geometric),
    "k-ary-response": response(6, math.e + 5),
    "optimised-unary": _unary(0.5, 1 / (1 + math.e)),
    "exponential": choice(_exponential(0.5), 5),
    "noisy-max": choice(_noisy_max, 5),
    "sparse-vector": choice(_sparse_vector, 5),
    "poisson-sampled": Steps.target(_coins, **SAMPLED),
    "by-layer": Target(
        _by_layer,
        **{**GAUSSIAN, "noise_multiplier": None, "epsilon": EPSILON},
        clip_norm=0.9056,
    ),
    "momentum": Steps.target(_momentum, steps=3, noise=None),
    "rotated": Target(_rotated, **GAUSSIAN),
    "discrete-gaussian": Target(
        _discrete,
        epsilon=gaussian_epsilon(3.95, 1e-2),
        delta=1e-2,
        norm="linf",
        inputs="clipped",
        nonnegative=True,
        arrays=(1,),
    ),
    "signs": after(np.sign),
    "largest-three": after(_largest_three),
    "normalised": after(_global_norm),
    "rounded-up-at-thousandths": after(
        lambda total: np.ceil(total * 1000) / 1000
    ),
    "more-noise": with_noise(lambda rng, d: rng.normal(0, 1.5, d)),
    "float32": after(lambda total: total.astype(np.float32)),
    "winsorised": after(lambda total: np.clip(total, -3.5, 3.5)),
}
"""Right ones by name."""

# Written after the suite had been changed for these.


def _own_noise(rows: Rows) -> Rows:
    return noisy_sum(rows, np.random.default_rng())


def _own_too_small(rows: Rows) -> Rows:
    return noisy_sum(
        rows, np.random.default_rng(), 1 / math.sqrt(max(len(rows), 1))
    )


def _where_nonzero(rows: Rows, rng: Rng) -> Rows:
    total = clipped(rows).sum(axis=0)
    return np.asarray(total + rng.normal(0, 1, total.size) * (total != 0))


def _largest_entry(rows: Rows, rng: Rng) -> Rows:
    total = (rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1)).sum(
        axis=0
    )
    return np.asarray(total + rng.normal(0, 1, total.size))


def _inverted(rows: Rows, rng: Rng) -> Rows:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    total = (rows * np.minimum(1, norms)).sum(axis=0)
    return np.asarray(total + rng.normal(0, 1, total.size))


def _antithetic(rng: Rng, dim: int) -> Rows:
    half = rng.normal(0, 1, dim // 2)
    return np.concatenate([half, -half])


def _divided_twice(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows).sum(axis=0) / 10 + rng.normal(0, 0.01, rows.shape[1])
    )


def _inverse_scale(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(
        clipped(rows, order=1).sum(axis=0) + rng.laplace(0, 0.5, rows.shape[1])
    )


def _suppressed(rows: Rows, rng: Rng) -> Rows:
    count = float(np.rint(rows).clip(0, 1).sum())
    return np.array([0.0 if count < 6 else count + _geometric(rng)])


def _raw_threshold(rows: Rows, rng: Rng) -> int:
    votes = rows.sum(axis=0)
    return (
        -1
        if votes.max() < 3
        else int(np.argmax(votes + rng.laplace(0, 2.0, votes.size)))
    )


def _replayed(state: dict[str, Any], rows: Rows, rng: Rng) -> Rows:
    total = clipped(rows).sum(axis=0)
    released = total + state.get("last", 0.0) + rng.normal(0, 1, total.size)
    state["last"] = total
    return np.asarray(released)


def _largest_norm(rows: Rows, rng: Rng) -> Rows:
    largest = max(float(np.linalg.norm(rows, axis=1).max(initial=0.0)), 1e-9)
    return np.asarray(
        (rows / largest).sum(axis=0) + rng.normal(0, 1, rows.shape[1])
    )


MORE_BROKEN: Mapping[str, tuple[Target, str]] = {
    "noise-over-root-of-n": (
        Target(_own_too_small, **GAUSSIAN),
        "standard deviation",
    ),
    "noise-where-nonzero": (
        Target(_where_nonzero, **GAUSSIAN),
        "no noise is added",
    ),
    "clips-largest-entry": (Target(_largest_entry, **GAUSSIAN), "sensitivity"),
    "inverted-minimum": (Target(_inverted, **GAUSSIAN), "sensitivity"),
    "antithetic": (with_noise(_antithetic), "independence of arrays"),
    "divided-twice": (
        Target(_divided_twice, sensitivity=0.1, **GAUSSIAN),
        "noise: scale",
    ),
    "inverse-scale": (
        Target(_inverse_scale, **{**LAPLACE, "epsilon": 0.5}),
        "noise: scale",
    ),
    "suppressed-before-noise": (Target(_suppressed, **ONE_COUNT), "no noise"),
    "raw-threshold": (
        choice(_raw_threshold, 5, others=np.eye(5)[[0, 0, 1]]),
        "probabilities",
    ),
    "student-t": (
        with_noise(lambda rng, d: rng.standard_t(5, d) * math.sqrt(3 / 5)),
        "noise: shape",
    ),
    "replays-last-step": (
        Steps.target(_replayed, steps=3, participations=1),
        "in more steps",
    ),
    "scaled-by-largest-norm": (
        Target(_largest_norm, **GAUSSIAN),
        "sensitivity",
    ),
}
"""Mistakes by name, with words of the message."""


def _one_geometric(rows: Rows, rng: Rng) -> Rows:
    return np.asarray([np.rint(rows).clip(0, 1).sum() + _geometric(rng)])


def _one_laplace(rows: Rows, rng: Rng) -> Rows:
    return np.asarray(clipped(rows).sum(axis=0) + rng.laplace(0, 1, 1))


def _softmax(total: Rows) -> Rows:
    weights = np.exp(total - total.max())
    return np.asarray(weights / weights.sum())


MORE_SOUND: Mapping[str, Target] = {
    "own-noise": Target(_own_noise, **GAUSSIAN),
    "own-noise-clamped": Target(
        lambda rows: np.clip(_own_noise(rows), -3, 3), **GAUSSIAN
    ),
    "one-laplace": Target(
        _one_laplace, epsilon=1.0, noise="laplace", arrays=(1,), inputs="finite"
    ),
    "one-geometric": Target(
        _one_geometric,
        epsilon=1.0,
        norm="l1",
        inputs="clipped",
        nonnegative=True,
        arrays=(1,),
    ),
    "thresholded": after(lambda total: np.where(total < 3, 0, total)),
    "spectrum": after(lambda total: np.abs(np.fft.fft(total))),
    "integers": after(lambda total: (total * 1000).astype(int)),
    "softmax": after(_softmax),
    "sorted": after(np.sort),
    "sum-of-entries": after(lambda total: np.array([total.sum()])),
    "times-a-hundred": after(lambda total: 100 * total),
    "float16": after(lambda total: total.astype(np.float16)),
}
"""Right ones by name."""
