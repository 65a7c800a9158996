"""Canaries that overlap: is ε that of one alone, and do the intervals cover?

    python simulations/studies/overlap.py           # all: ten minutes on one core
    python simulations/studies/overlap.py --quick   # 100 runs of four settings: ten seconds

k canaries take part in one release, the sum of their directions in d dimensions and noise of
deviation z: the Gaussian mechanism, whose two Gaussians are μ = 1/z apart. The share is k/d.

The first table is for bare cosines. "plain" is ε without a word about the release, which the other
canaries hide; "alone" by `one_release.epsilon_together`, and "given S" also with the length of the
canaries' sum. For each the median of all runs, the share of runs whose estimate is above the truth
(50% if the median is right), and how many of the 95% intervals for μ cover; ε increases with μ. "no
end" are intervals without an upper end: bare cosines do not tell how much of a release is not
canaries.

The second table is for the record of a run, in which the canaries are known. "mean" is the mean
`Scores.shift` of all runs, "error" its distance from 1/z in standard errors; "wide" is √k times the
deviation of the runs' shifts, "told" what `mean_spread` says, and "plain" how many intervals cover
that take it to be 1.

Measured: both tables of docs/notes/other-canaries.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.scoring.leave_one_out import project_out
from fl_epe.auditing.scoring.scores import mean_spread
from simulations.studies.one_release import shift_interval, shift_of_one

Floats = NDArray[np.float64]

DELTA, SEED = 1e-5, 5
NORMAL_95 = 1.959964  # two-sided
SIZES = (
    (1_000_000, 100),
    (100_000, 100),
    (10_000, 100),
    (10_000, 1000),
    (1000, 300),
    (1000, 1000),
)
NOISE = (0.1, 0.3, 1.0, 3.0)
QUICK = (
    (10_000, 1000, 0.1),
    (1000, 1000, 1.0),
    (1000, 300, 0.3),
    (10_000, 100, 1.0),
)


def sum_squares(
    rng: np.random.Generator, runs: int, dim: int, count: int
) -> Floats:
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


def bare(
    rng: np.random.Generator, runs: int, dim: int, count: int, z: float
) -> str:
    """A row of the first table. Only the mean of the cosines matters."""
    lengths = np.sqrt(sum_squares(rng, runs, dim, count))
    along = lengths + z * rng.standard_normal(runs)
    beside = z * np.sqrt(rng.chisquare(dim - 1, runs))
    cosines = lengths / count * along / np.hypot(along, beside)
    truth = epsilon(1 / z)
    plain = epsilon(float(np.sqrt(dim) * np.median(cosines)))
    row = (
        f"{count / dim:<8g}{dim:>8}{count:>6}{z:>5g}{truth:>8.2f}{plain:>8.2f}"
    )
    for is_known in (False, True):
        norms = [float(length) if is_known else None for length in lengths]
        pairs = list(zip((np.sqrt(dim) * cosines).tolist(), norms, strict=True))
        shifts = np.array(
            [shift_of_one(mean, count, dim, norm) for mean, norm in pairs]
        )
        ends = np.array(
            [
                shift_interval(mean, count, dim, 0.95, norm)
                for mean, norm in pairs
            ]
        )
        above, covered = np.mean(shifts > 1 / z), np.mean(within(ends, 1 / z))
        row += f"{epsilon(float(np.median(shifts))):>9.2f}{above:>6.0%}{covered:>7.1%}"
        if not is_known:
            row += f"{np.mean(np.isinf(ends[:, 1])):>7.0%}"
    return row


def recorded(
    rng: np.random.Generator, runs: int, dim: int, count: int, z: float
) -> str:
    """A row of the second table; directions have Gaussian entries, of length 1 on average."""
    means, widths, covered, plainly = np.zeros(runs), np.zeros(runs), 0, 0
    for run in range(runs):
        # Along S, and across: given S, the rest of each direction is independent of it.
        length = np.sqrt(count * rng.chisquare(dim) / dim)
        along, across = rng.standard_normal((2, count))
        with_sum = length * (
            length / count + (along - along.mean()) / np.sqrt(dim)
        )
        noise_along, beside = (
            z * rng.standard_normal(),
            z * np.sqrt(rng.chisquare(dim - 1)),
        )
        dots = with_sum * (1 + noise_along / length)
        dots += beside * (across - across.mean()) / np.sqrt(dim)
        shared = (
            (length + noise_along) ** 2 + beside**2,
            length * (length + noise_along),
        )
        projected, hidden, share = project_out(
            dots, with_sum, 1.0, *shared, length**2
        )
        lengths = np.sqrt(hidden**2 + 2 * share * projected - share**2)
        scores = Scores.from_cosines(projected / lengths, dim)
        means[run] = mean = scores.shift()
        widths[run] = mean_spread(count, dim, np.array([mean]), np.ones(1))
        covered, plainly = (
            hit + (scores.shift(half) <= 1 / z <= scores.shift(-half))
            for hit, half in (
                (covered, NORMAL_95 * widths[run] / np.sqrt(count)),
                (plainly, NORMAL_95 / np.sqrt(count)),
            )
        )
    wide = means.std(ddof=1)
    error = (means.mean() - 1 / z) / (wide / np.sqrt(runs))
    return (
        f"{count / dim:<8g}{dim:>8}{count:>6}{z:>5g}{1 / z:>8.3f}{means.mean():>8.3f}{error:>7.1f}"
        f"{wide * np.sqrt(count):>7.2f}{widths.mean():>6.2f}{covered / runs:>8.1%}"
        f"{plainly / runs:>8.1%}"
    )


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    runs = 100 if quick else 1000
    first, second = (np.random.default_rng(SEED + table) for table in range(2))
    settings = QUICK if quick else [(*size, z) for size in SIZES for z in NOISE]
    head = f"{'share':<8}{'d':>8}{'k':>6}{'z':>5}"
    say(
        f"{head}{'truth':>8}{'plain':>8}{'alone':>9}{'above':>6}{'covers':>7}{'no end':>7}"
        f"{'given S':>9}{'above':>6}{'covers':>7}"
    )
    for setting in settings:
        say(bare(first, runs, *setting))
    say(
        f"\n{head}{'theory':>8}{'mean':>8}{'error':>7}{'wide':>7}{'told':>6}{'covers':>8}{'plain':>8}"
    )
    for setting in settings:
        say(recorded(second, runs, *setting))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="100 runs of a few settings"
    )
    main(parser.parse_args().quick)
