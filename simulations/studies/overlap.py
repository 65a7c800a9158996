"""Canaries that overlap: is ε that of one alone, and do the intervals cover?

    python simulations/studies/overlap.py           # all: ten minutes on one core
    python simulations/studies/overlap.py --quick   # 100 runs of four settings: ten seconds

k canaries take part in one release, the sum of their directions in d dimensions and noise of
deviation z: the Gaussian mechanism, whose two Gaussians are μ = 1/z apart. The share is k/d.

The first table is for bare cosines. "plain" is ε without a word about the release, which the other
canaries hide; "alone" with ``together=True``, and "given S" also with the length of the canaries'
sum. For each the median of all runs, the share of runs whose estimate is above the truth (50% if
the median is right), and how many of the 95% intervals for μ cover; ε increases with μ. "no end"
are intervals without an upper end: bare cosines do not tell how much of a release is not canaries.

The second table is for the record of a run, in which the canaries are known. A record's score is
√d times a cosine, which has the mean 1/√(z² + 1/d) for one canary alone. "mean" is that of the
scores over all runs, "error" its distance from theory in standard errors; "wide" is √k times the
deviation of the runs' mean scores, "told" what `mean_spread` says, and "plain" how many intervals
cover that take it to be 1.

The third is for rounds that agree with each other, so that scores of unobserved canaries are
"wide" times as wide as N(0, 1), with a mean of 4 such widths: how often M unobserved canaries find
that, and how many intervals of ε cover, with the measured null and with N(0, 1).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Scores, epsilon_of
from fl_epe.auditing.one_release import shift_interval, shift_of_one
from fl_epe.auditing.other_canaries import take_out
from fl_epe.auditing.score_spread import mean_spread, with_measured_null

Floats = NDArray[np.float64]

DELTA, SEED = 1e-5, 5
NORMAL_95 = 1.959964  # two-sided
SIZES = ((1_000_000, 100), (100_000, 100), (10_000, 100), (10_000, 1000), (1000, 300), (1000, 1000))
NOISE = (0.1, 0.3, 1.0, 3.0)
QUICK = ((10_000, 1000, 0.1), (1000, 1000, 1.0), (1000, 300, 0.3), (10_000, 100, 1.0))


def sum_squares(rng: np.random.Generator, runs: int, dim: int, count: int) -> Floats:
    """``‖S‖²`` of ``count`` random directions, exactly: each adds one at a random angle."""
    squares = np.ones(runs)
    for _ in range(count - 1):
        along = rng.standard_normal(runs)
        cosine = along / np.sqrt(along**2 + rng.chisquare(dim - 1, runs))
        squares += 1 + 2 * np.sqrt(squares) * cosine
    return squares


def epsilon(shift: float) -> float:
    """ε between N(0, 1) and N(shift, 1)."""
    if not np.isfinite(shift):
        return float("inf")
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, DELTA))


def within(ends: Floats, truth: float) -> NDArray[np.bool_]:
    """Which intervals ``(runs, 2)`` have the truth in them."""
    return np.asarray((ends[:, 0] <= truth) & (truth <= ends[:, 1]))


def bare(rng: np.random.Generator, runs: int, dim: int, count: int, z: float) -> str:
    """A row of the first table. Only the mean of the cosines matters."""
    lengths = np.sqrt(sum_squares(rng, runs, dim, count))
    along = lengths + z * rng.standard_normal(runs)
    beside = z * np.sqrt(rng.chisquare(dim - 1, runs))
    cosines = lengths / count * along / np.hypot(along, beside)
    truth = epsilon(1 / z)
    plain = epsilon(float(np.sqrt(dim) * np.median(cosines)))
    row = f"{count / dim:<8g}{dim:>8}{count:>6}{z:>5g}{truth:>8.2f}{plain:>8.2f}"
    for known in (False, True):
        given = [float(length) if known else None for length in lengths]
        pairs = list(zip((np.sqrt(dim) * cosines).tolist(), given, strict=True))
        shifts = np.array([shift_of_one(mean, count, dim, one) for mean, one in pairs])
        ends = np.array([shift_interval(mean, count, dim, 0.95, one) for mean, one in pairs])
        above, covered = np.mean(shifts > 1 / z), np.mean(within(ends, 1 / z))
        row += f"{epsilon(float(np.median(shifts))):>9.2f}{above:>6.0%}{covered:>7.1%}"
        if not known:
            row += f"{np.mean(np.isinf(ends[:, 1])):>7.0%}"
    return row


def recorded(rng: np.random.Generator, runs: int, dim: int, count: int, z: float) -> str:
    """A row of the second table; directions have Gaussian entries, of length 1 on average."""
    means, told, covered, plainly = np.zeros(runs), np.zeros(runs), 0, 0
    shift = 1 / np.sqrt(z**2 + 1 / dim)
    for run in range(runs):
        # Along S, and across: given S, the rest of each direction is independent of it.
        length = np.sqrt(count * rng.chisquare(dim) / dim)
        along, across = rng.standard_normal((2, count))
        with_sum = length * (length / count + (along - along.mean()) / np.sqrt(dim))
        noise_along, beside = z * rng.standard_normal(), z * np.sqrt(rng.chisquare(dim - 1))
        dots = with_sum * (1 + noise_along / length)
        dots += beside * (across - across.mean()) / np.sqrt(dim)
        shared = ((length + noise_along) ** 2 + beside**2, length * (length + noise_along))
        left, squares = take_out(dots, with_sum, 1.0, *shared, length**2)
        scores = np.sqrt(dim) * left / np.sqrt(squares)
        means[run] = mean = scores.mean()
        told[run] = mean_spread(count, dim, np.array([mean]), np.ones(1), mean / np.sqrt(dim))
        far = abs(mean - shift) * np.sqrt(count) / NORMAL_95
        covered += far <= told[run]
        plainly += far <= 1
    wide = means.std(ddof=1)
    error = (means.mean() - shift) / (wide / np.sqrt(runs))
    return (
        f"{count / dim:<8g}{dim:>8}{count:>6}{z:>5g}{shift:>8.3f}{means.mean():>8.3f}{error:>7.1f}"
        f"{wide * np.sqrt(count):>7.2f}{told.mean():>6.2f}{covered / runs:>8.1%}"
        f"{plainly / runs:>8.1%}"
    )


def agreeing(rng: np.random.Generator, runs: int, others: int, wide: float) -> str:
    """A row of the third table."""
    truth, found, covered, plainly = epsilon(4.0), 0, 0, 0
    for _ in range(runs):
        observed = wide * (4 + rng.standard_normal(200))
        scores = Scores(observed, wide * rng.standard_normal(others), standard_null=True)
        measured = with_measured_null(scores)
        found += measured.null is not None
        with_width, without = epsilon_of(measured, DELTA), epsilon_of(scores, DELTA)
        covered += with_width.low <= truth <= with_width.high
        plainly += without.low <= truth <= without.high
    return f"{others:>5}{wide:>6g}{found / runs:>8.1%}{covered / runs:>8.1%}{plainly / runs:>8.1%}"


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    rng, runs = np.random.default_rng(SEED), 100 if quick else 1000
    settings = QUICK if quick else [(*size, z) for size in SIZES for z in NOISE]
    head = f"{'share':<8}{'d':>8}{'k':>6}{'z':>5}"
    say(
        f"{head}{'truth':>8}{'plain':>8}{'alone':>9}{'above':>6}{'covers':>7}{'no end':>7}"
        f"{'given S':>9}{'above':>6}{'covers':>7}"
    )
    for setting in settings:
        say(bare(rng, runs, *setting))
    say(
        f"\n{head}{'theory':>8}{'mean':>8}{'error':>7}{'wide':>7}{'told':>6}{'covers':>8}{'plain':>8}"
    )
    for setting in settings:
        say(recorded(rng, runs, *setting))
    say(f"\n{'M':>5}{'wide':>6}{'found':>8}{'covers':>8}{'N(0, 1)':>8}")
    pairs = [(60, 2.0)] if quick else itertools.product((20, 60, 200, 1000), (1.0, 1.2, 2.0))
    for others, wide in pairs:
        say(agreeing(rng, runs, others, wide))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="100 runs of a few settings")
    main(parser.parse_args().quick)
