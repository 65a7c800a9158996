"""The whitened matched filter: one statistic for rounds that are correlated in any way.

A released vector of round t has the score ``s_t = ⟨c, Y_t⟩`` with a random unit direction c. For a
canary that took no part the scores of all rounds are jointly ``N(0, G/d)``, ``G = Y·Yᵀ``. A canary
that took part adds a known ``f_t``, carried on by a linear server. The optimal score is
``fᵀG⁻¹s / √(fᵀG⁻¹f/d)``: N(0, 1) without the canary, and ``√(d·fᵀG⁻¹f)`` on average with it, which
for a matrix mechanism with noise alone is ``‖C·1_S‖ / z``. G is estimated from M directions that
take no part. What is estimated from M scores widens the null by known factors (Reed, Mallett and
Brennan 1974), which `Precision` has.

Printed for mechanisms with square-root factors, one participation or one in each block of bands:
mean score over theory with its standard error, deviation of the null, and the same for the filter
that takes rounds as independent. Then the time of 2,048 rounds in the package.

    python simulations/studies/whitened_filter.py    # two minutes

What the whitened mean lacks at many rounds is the price of an estimated G: √(1 − T/M).

Expected (the last line on two cores of an AMD EPYC)::

    rounds bands sep momentum | whitened/theory  null | independent/theory  null
        16     1   0      0.0 | 0.989 ± 0.010  0.993 ± 0.004 | 0.990 ± 0.010  0.994 ± 0.004
        64     1   0      0.0 | 1.001 ± 0.008  0.999 ± 0.006 | 1.003 ± 0.008  0.999 ± 0.006
        64     8   0      0.0 | 1.007 ± 0.006  0.998 ± 0.003 | 0.680 ± 0.010  0.993 ± 0.005
        64    64   0      0.0 | 1.008 ± 0.007  0.995 ± 0.005 | 0.625 ± 0.009  0.993 ± 0.005
        64    16  16      0.0 | 0.998 ± 0.004  0.998 ± 0.008 | 0.645 ± 0.006  1.079 ± 0.007
        64    16  16      0.9 | 0.998 ± 0.004  0.998 ± 0.008 | 0.645 ± 0.006  1.079 ± 0.007
        64    64   0     0.95 | 1.008 ± 0.007  0.995 ± 0.005 | 0.625 ± 0.009  0.993 ± 0.005
       256    16  16      0.9 | 0.991 ± 0.003  1.009 ± 0.007 | 0.631 ± 0.002  1.101 ± 0.007
       600    64  64      0.9 | 0.983 ± 0.002  1.007 ± 0.004 | 0.577 ± 0.002  1.052 ± 0.005
    2048 rounds, 2000 canaries: 22.9 s
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe import RoundFacts, RunAuditor
from fl_epe.auditing.whitening import SKETCH_PARTS, Precision, RoundCorrelation, Whitener

Floats = NDArray[np.float64]

_MANY = 10**9  # dimensions of a large model


def whitened(null: Floats, scores: Floats, shapes: Floats) -> Floats:
    """Filtered scores, ``(k,)``, and what their deviation is by the estimation of G.

    The scores of a round with M random directions are an M-dimensional vector whose products are G.

    Args:
        null: ``(T, M)``, scores of directions that take no part.
        scores: ``(T, k)`` of canaries.
        shapes: ``(T, k)``, what they added.
    """
    rounds, parts = null.shape
    whitener = Whitener(parts, rounds)
    correlation = RoundCorrelation.of([whitener.add(row) for row in null], parts)
    lengths = np.sqrt(np.mean(null**2, axis=1))[:, None]
    signals = correlation.whiten(shapes / lengths)
    told = Precision.of(rounds, _MANY, parts)
    found = np.sum(signals * correlation.whiten(scores / lengths), axis=0)
    return np.asarray(found / np.sqrt(np.sum(signals**2, axis=0)) / told.width)


def square_root_factor(rounds: int, bands: int) -> Floats:
    """Lower triangular C: the square root of the matrix of prefix sums, cut to bands.

    Columns have length one: that is the sensitivity of one participation.
    """
    column = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, bands)]))
    factor = np.tril(scipy.linalg.toeplitz(np.pad(column, (0, rounds - bands))))
    return np.asarray(factor / np.linalg.norm(factor, axis=0))


def drawn(
    factor: Floats, shapes: Floats, noise: float, momentum: float, null: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Scores in the limit of many dimensions: of canaries, of as many without a part, of a null."""
    rng, (rounds, count) = np.random.default_rng(seed), shapes.shape
    carried = scipy.linalg.toeplitz(momentum ** np.arange(rounds), np.eye(1, rounds)[0])
    added = carried @ shapes
    spread = carried @ np.linalg.inv(factor) * noise
    scores, without = (spread @ rng.standard_normal((rounds, count)) for _ in range(2))
    return scores + added, without, spread @ rng.standard_normal((rounds, null))


def measure(
    factor: Floats, shapes: Floats, noise: float, momentum: float, null: int, seed: int
) -> tuple[float, float, float, float]:
    """Mean score and deviation of the null, whitened; and of a filter for independent rounds."""
    scores, without, free = drawn(factor, shapes, noise, momentum, null, seed)
    rounds, count = shapes.shape
    carried = scipy.linalg.toeplitz(momentum ** np.arange(rounds), np.eye(1, rounds)[0])
    both, added = np.concatenate([scores, without], axis=1), np.tile(carried @ shapes, 2)
    found = whitened(free, both, added)
    plain = np.linalg.inv(carried) @ both  # momentum undone, rounds weighted as if independent
    width = np.std(np.linalg.inv(carried) @ free, axis=1)[:, None]
    alone = np.tile(shapes, 2)
    old = np.sum(alone * plain / width**2, axis=0) / np.sqrt(np.sum((alone / width) ** 2, axis=0))
    return found[:count].mean(), found[count:].std(), old[:count].mean(), old[count:].std()


def participations(rounds: int, count: int, separation: int, seed: int) -> Floats:
    """Who adds 1 to which round: once, or every ``separation`` rounds from a random one on."""
    first = np.random.default_rng(seed).integers(separation or rounds, size=count)
    after = np.arange(rounds)[:, None] - first
    return np.asarray(after % separation == 0 if separation else after == 0, np.float64)


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--null", type=int, default=SKETCH_PARTS)
    asked = parser.parse_args()
    print("rounds bands sep momentum | whitened/theory  null | independent/theory  null")
    for rounds, bands, separation, momentum in (
        (16, 1, 0, 0.0),
        (64, 1, 0, 0.0),
        (64, 8, 0, 0.0),
        (64, 64, 0, 0.0),
        (64, 16, 16, 0.0),
        (64, 16, 16, 0.9),
        (64, 64, 0, 0.95),
        (256, 16, 16, 0.9),
        (600, 64, 64, 0.9),
    ):
        factor = square_root_factor(rounds, bands)
        found = []
        for seed in range(asked.seeds):
            shapes = participations(rounds, asked.canaries, separation, seed)
            theory = np.linalg.norm(factor @ shapes, axis=0).mean()
            mean, null, old, old_null = measure(factor, shapes, 1.0, momentum, asked.null, seed)
            found.append((mean / theory, null, old / theory, old_null))
        centre = np.mean(found, axis=0)
        error = np.std(found, axis=0, ddof=1) / np.sqrt(asked.seeds)
        row = " | ".join(
            f"{centre[i]:.3f} ± {error[i]:.3f}  {centre[i + 1]:.3f} ± {error[i + 1]:.3f}"
            for i in (0, 2)
        )
        print(f"{rounds:6} {bands:5} {separation:3} {momentum:8} | {row}", flush=True)
    print_time(2048, 2000)


def print_time(rounds: int, count: int) -> None:
    """How long `RunAuditor` takes for so many rounds of noise."""
    rng, dim = np.random.default_rng(0), 60_000
    auditor, theta = RunAuditor(count, 100, seed=1, delta=1e-5, window=rounds), np.zeros(dim)
    auditor.begin(theta)
    seconds = 0.0
    for _ in range(rounds):
        here = np.flatnonzero(rng.random(count) < 1 / 16).tolist()
        theta = theta + rng.standard_normal(dim)
        began = time.perf_counter()
        auditor.observe(theta, RoundFacts(here, 1.0))
        seconds += time.perf_counter() - began
    print(f"{rounds} rounds, {count} canaries: {seconds:.1f} s")


if __name__ == "__main__":
    main()
