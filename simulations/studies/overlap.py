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

Expected::

    share          d     k    z   truth   plain    alone above covers no end  given S above covers
    0.0001   1000000   100  0.1   91.82   91.06    91.76   48%  94.8%     0%    91.78   49%  95.3%
    0.0001   1000000   100  0.3   19.13   19.09    19.11   49%  95.1%     0%    19.10   48%  95.1%
    0.0001   1000000   100    1    4.38    4.38     4.38   50%  94.7%     0%     4.38   50%  94.7%
    0.0001   1000000   100    3    1.27    1.26     1.26   48%  95.4%     0%     1.26   48%  95.5%
    0.001     100000   100  0.1   91.82   85.23    91.75   48%  96.0%     0%    91.76   49%  96.3%
    0.001     100000   100  0.3   19.13   19.03    19.17   51%  93.4%     0%    19.17   52%  93.4%
    0.001     100000   100    1    4.38    4.35     4.36   49%  95.2%     0%     4.36   48%  95.1%
    0.001     100000   100    3    1.27    1.26     1.26   49%  95.2%     0%     1.26   49%  95.3%
    0.01       10000   100  0.1   91.82   54.29    91.51   46%  93.7%     0%    91.59   45%  95.0%
    0.01       10000   100  0.3   19.13   17.82    19.08   47%  95.8%     0%    19.08   47%  95.2%
    0.01       10000   100    1    4.38    4.33     4.35   48%  93.9%     0%     4.35   48%  94.1%
    0.01       10000   100    3    1.27    1.30     1.30   52%  95.6%     0%     1.30   52%  95.3%
    0.1        10000  1000  0.1   91.82   16.77    91.01   48%  94.2%     0%    91.78   49%  94.1%
    0.1        10000  1000  0.3   19.13   11.85    19.10   48%  94.9%     0%    19.12   49%  94.8%
    0.1        10000  1000    1    4.38    4.15     4.39   53%  93.8%     0%     4.39   52%  94.3%
    0.1        10000  1000    3    1.27    1.26     1.26   48%  94.5%     0%     1.27   49%  94.6%
    0.3         1000   300  0.1   91.82    8.76    91.64   50%  96.7%    91%    92.09   52%  95.5%
    0.3         1000   300  0.3   19.13    7.61    18.97   48%  96.0%     0%    19.17   52%  94.3%
    0.3         1000   300    1    4.38    3.75     4.36   49%  95.8%     0%     4.37   49%  95.0%
    0.3         1000   300    3    1.27    1.26     1.28   52%  95.7%     0%     1.29   52%  95.8%
    1           1000  1000  0.1   91.82    4.34    71.27   48%  94.5%    96%    92.00   52%  95.1%
    1           1000  1000  0.3   19.13    4.16    18.78   48%  95.2%    53%    19.12   50%  96.2%
    1           1000  1000    1    4.38    2.93     4.35   47%  95.3%     0%     4.39   52%  94.7%
    1           1000  1000    3    1.27    1.20     1.27   50%  95.4%     0%     1.27   50%  95.5%

    share          d     k    z  theory    mean  error   wide  told  covers   plain
    0.0001   1000000   100  0.1  10.000  10.002    0.6   0.98  1.00   95.8%   95.7%
    0.0001   1000000   100  0.3   3.333   3.333   -0.1   0.99  1.00   94.8%   94.8%
    0.0001   1000000   100    1   1.000   0.998   -0.5   1.03  1.00   94.2%   94.2%
    0.0001   1000000   100    3   0.333   0.330   -1.1   1.02  1.00   95.4%   95.4%
    0.001     100000   100  0.1  10.000  10.004    1.3   1.02  1.02   95.4%   94.8%
    0.001     100000   100  0.3   3.333   3.330   -0.9   1.02  1.00   95.2%   95.2%
    0.001     100000   100    1   1.000   1.006    2.0   1.02  1.00   94.8%   94.8%
    0.001     100000   100    3   0.333   0.332   -0.3   1.00  1.00   95.4%   95.4%
    0.01       10000   100  0.1  10.000  10.002    0.4   1.19  1.22   95.2%   90.4%
    0.01       10000   100  0.3   3.333   3.332   -0.5   1.03  1.03   95.5%   95.0%
    0.01       10000   100    1   1.000   1.000   -0.1   0.99  1.00   95.6%   95.6%
    0.01       10000   100    3   0.333   0.333   -0.3   1.01  1.00   95.2%   95.2%
    0.1        10000  1000  0.1  10.000  10.002    0.9   2.45  2.45   95.1%   57.3%
    0.1        10000  1000  0.3   3.333   3.336    2.1   1.26  1.25   94.5%   87.7%
    0.1        10000  1000    1   1.000   1.000   -0.1   1.01  1.02   95.6%   94.7%
    0.1        10000  1000    3   0.333   0.332   -1.1   0.99  1.00   95.8%   95.8%
    0.3         1000   300  0.1  10.000   9.983   -2.4   3.91  3.99   95.7%   41.1%
    0.3         1000   300  0.3   3.333   3.336    0.9   1.62  1.63   95.4%   77.6%
    0.3         1000   300    1   1.000   1.005    2.6   1.08  1.07   94.2%   92.0%
    0.3         1000   300    3   0.333   0.332   -0.8   0.96  1.01   96.3%   96.3%
    1           1000  1000  0.1  10.000   9.998   -0.3   7.36  7.14   95.0%   22.6%
    1           1000  1000  0.3   3.333   3.330   -1.4   2.53  2.56   95.1%   55.8%
    1           1000  1000    1   1.000   1.000    0.1   1.27  1.23   94.3%   88.6%
    1           1000  1000    3   0.333   0.334    1.0   1.07  1.03   94.2%   93.6%
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.scoring.leave_one_out import leave_others_out
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
        ends = np.array(
            [shift_interval(mean, count, dim, 0.95, one) for mean, one in pairs]
        )
        above, covered = np.mean(shifts > 1 / z), np.mean(within(ends, 1 / z))
        row += f"{epsilon(float(np.median(shifts))):>9.2f}{above:>6.0%}{covered:>7.1%}"
        if not known:
            row += f"{np.mean(np.isinf(ends[:, 1])):>7.0%}"
    return row


def recorded(
    rng: np.random.Generator, runs: int, dim: int, count: int, z: float
) -> str:
    """A row of the second table; directions have Gaussian entries, of length 1 on average."""
    means, told, covered, plainly = np.zeros(runs), np.zeros(runs), 0, 0
    for run in range(runs):
        # Along S, and across: given S, the rest of each direction is independent of it.
        length = np.sqrt(count * rng.chisquare(dim) / dim)
        along, across = rng.standard_normal((2, count))
        with_sum = length * (length / count + (along - along.mean()) / np.sqrt(dim))
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
        left, hidden, share = leave_others_out(dots, with_sum, 1.0, *shared, length**2)
        lengths = np.sqrt(hidden**2 + 2 * share * left - share**2)
        scores = Scores.from_cosines(left / lengths, dim)
        means[run] = mean = scores.shift()
        told[run] = mean_spread(count, dim, np.array([mean]), np.ones(1))
        covered, plainly = (
            hit + (scores.shift(half) <= 1 / z <= scores.shift(-half))
            for hit, half in (
                (covered, NORMAL_95 * told[run] / np.sqrt(count)),
                (plainly, NORMAL_95 / np.sqrt(count)),
            )
        )
    wide = means.std(ddof=1)
    error = (means.mean() - 1 / z) / (wide / np.sqrt(runs))
    return (
        f"{count / dim:<8g}{dim:>8}{count:>6}{z:>5g}{1 / z:>8.3f}{means.mean():>8.3f}{error:>7.1f}"
        f"{wide * np.sqrt(count):>7.2f}{told.mean():>6.2f}{covered / runs:>8.1%}"
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
