"""Scores of rotated canaries that took part in nothing: are they N(0, 1), and how independent?

    python simulations/studies/rotation_null.py           # two minutes on one core
    python simulations/studies/rotation_null.py --quick   # smaller: seconds

Canary r has the entries t_j·g[j xor r], g = H·s, with random signs s and t, cut to d entries. What
can be said without simulation, for any x of length 1 that does not depend on the signs (before
cutting, and lengths aside, which vary by √((1 − d/D)/(2d))):

- a score is a sum of D independent signs with weights w = H·(t·x). So its tails are below those of
  N(0, 1)'s bound, P(score > u) <= exp(−u²/2), and its kurtosis is −2·Q/D, Q = D·Σw⁴/(Σw²)²;
- the correlation of the scores of rows r and r', given t, is ρ_h = Σ_j x_j x_{j xor h} t_j
  t_{j xor h}, h = r xor r'. Its mean is 0, and 1 + Σ_h ρ_h² = Q, whose mean is 3 − 2·Σx⁴: the root
  mean square of the correlation of two canaries in random order is at most √(2/D);
- the mean square of all D scores is 1, exactly. So that of k of them has the variance
  2/k·(1 − (k − 1)/(D − 1)): a finite population's.

Table 1: a million scores, d = 1,000,000 (D = 2^20): deviation, kurtosis (its standard error is
0.005), p-value of Kolmogorov–Smirnov and the Anderson–Darling statistic against N(0, 1) (2.49 is
its 5% point), tails beyond 3, 4 and 4.5 deviations over what N(0, 1) has (2,700, 63 and 6.8
scores), Q, and the largest correlation of two canaries for this x.
Table 2: k canaries, d = D = 2^16 or d = 40,000, over 100 seeds: √k times the deviation of their
mean score (1 if independent), the deviation of their mean square over √(2/k) and what the above
says, and how often KS and AD reject at 5%. With x of two equal entries nearly every canary has a
mirror image among 60,000; with one entry scores are multiples of 2/√D or 4/√D.
Table 3: pairs of rows with one given difference among 500 canaries of 65,536, over 400 seeds: mean
and variance, beside those of random permutations.
Table 4: canaries that are much of a release: the deviation of unobserved scores, √(1 − share·d/D),
and the same for independent canaries.
Shifts: that of one canary, 1 over the deviation of its residual (of the canaries' products less
their own), by the null fitted to 400 unobserved canaries, and by N(0, 1); half of the energy is
canaries.
Table 5: mean, deviation, Anderson–Darling statistic and maximum of groups of 316 scores, 50 groups
from each of 40 seeds, d = 100,000, beside normal draws: means ± deviations, and p-values of equal
means and spreads.

Measured (2026-11-22, two cores shared with other work): the tables of docs/notes/rotation.md.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe import CanarySet
from fl_epe.auditing.scoring.assumptions import anderson_darling
from fl_epe.canaries import CanaryKind
from fl_epe.canaries.directions import Rotation, change_signs, transform

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

TAILS = (3.0, 4.0, 4.5)
AD_5_PERCENT = 2.492  # of the statistic for a law that is known
FAMILIES = (
    "Gaussian",
    "one entry",
    "constant",
    "300 entries",
    "rank one",
    "Student-t(1.5)",
    "two equal neighbours",
    "16 equal neighbours",
    "rows of an embedding",
)


def vector(name: str, dim: int, rng: np.random.Generator) -> Vector:
    """A vector of length 1 that knows nothing about canaries."""
    x = np.zeros(dim)
    if name == "Gaussian":
        x = rng.standard_normal(dim)
    elif name == "one entry":
        x[rng.integers(dim)] = 1
    elif name == "constant":
        x[:] = 1
    elif name == "300 entries":
        x[rng.choice(dim, 300, replace=False)] = rng.standard_t(1.5, 300)
    elif name == "rank one":
        side = int(np.sqrt(dim))
        x[: side**2] = np.outer(*rng.standard_normal((2, side))).ravel()
    elif name == "Student-t(1.5)":
        x = rng.standard_t(1.5, dim)
    elif name.endswith("neighbours"):
        count = 2 if name.startswith("two") else 16
        x[count * rng.integers(dim // count) :][:count] = 1
    else:
        for row in rng.choice(dim // 96, dim // 9600, replace=False):
            x[96 * row : 96 * (row + 1)] = rng.standard_normal(96) * rng.pareto(
                1.5
            )
    return np.asarray(x / np.linalg.norm(x), np.float32)


def anderson(scores: Floats) -> float:
    """The Anderson–Darling statistic against N(0, 1)."""
    ordered, count = np.sort(scores), len(scores)
    odd = 2 * np.arange(1, count + 1) - 1
    logs = scipy.special.log_ndtr(ordered) + scipy.special.log_ndtr(
        -ordered[::-1]
    )
    return float(-count - np.sum(odd * logs) / count)


def dependence(family: Rotation, x: Vector) -> tuple[float, float]:
    """Q, and the largest |ρ_h| of two canaries' scores of ``x``, before cutting."""
    padded = np.zeros(family.size, np.float32)
    padded[: family.dim] = x
    change_signs(padded[: family.dim], family.row_signs)
    energy = (transform(padded).astype(np.float64) ** 2) / family.size
    shares = energy / energy.sum()
    correlations = transform(shares.astype(np.float32))
    return float(family.size * np.sum(shares**2)), float(
        np.abs(correlations[1:]).max()
    )


def null_row(name: str, dim: int, count: int, seed: int) -> str:
    """A row of the first table."""
    x = vector(name, dim, np.random.default_rng((seed, 1)))
    scores = np.sqrt(dim) * CanarySet(dim, count, seed).dot(x, threads=1)
    kurtosis = float(scipy.stats.kurtosis(scores))
    p_value = float(scipy.stats.kstest(scores, "norm").pvalue)
    tails = [
        np.mean(np.abs(scores) > edge) / (2 * scipy.special.ndtr(-edge))
        for edge in TAILS
    ]
    q, largest = dependence(Rotation(dim, seed), x)
    return (
        f"{name:22}{scores.std():>8.4f}{kurtosis:>+9.4f}{p_value:>7.3f}{anderson(scores):>7.2f}"
        + "".join(f"{tail:>7.3f}" for tail in tails)
        + f"{q:>7.2f}{largest:>8.4f}"
    )


def sample_row(name: str, dim: int, count: int, seeds: int) -> str:
    """A row of the second table."""
    means, squares, far, odd = [], [], 0, 0
    for seed in range(seeds):
        x = vector(name, dim, np.random.default_rng((seed, 2)))
        scores = np.sqrt(dim) * CanarySet(dim, count, seed).dot(x, threads=1)
        means.append(scores.mean())
        squares.append(np.mean(scores**2))
        far += scipy.stats.kstest(scores, "norm").pvalue < 0.05
        odd += anderson(scores) > AD_5_PERCENT
    size = Rotation(dim, 0).size
    predicted = np.sqrt(max(0.0, 1 - (count - 1) / (size - 1)))
    return (
        f"{name:22}{dim:>7}{count:>7}{np.std(means) * np.sqrt(count):>8.2f}"
        f"{np.std(squares) * np.sqrt(count / 2):>8.2f}{predicted:>8.2f}"
        f"{far / seeds:>7.1%}{odd / seeds:>7.1%}"
    )


@functools.cache
def shuffled(seed: int, count: int) -> NDArray[np.int64]:
    """Rows of the first canaries of a family of 2^16."""
    return Rotation(1000, seed).rows(np.arange(count))


def pairs_row(difference: int, seeds: int, count: int = 500) -> str:
    """A row of the third table."""
    pair_counts: list[list[int]] = [[], []]
    for seed in range(seeds):
        random = np.random.default_rng(seed).permutation(1 << 16)[:count]
        for numbers, rows in zip(
            pair_counts, (shuffled(seed, count), random), strict=True
        ):
            numbers.append(int(np.isin(rows ^ difference, rows).sum()) // 2)
    cells = "".join(
        f"{np.mean(counts):>8.2f}{np.var(counts, ddof=1):>7.2f}"
        for counts in pair_counts
    )
    expected = count * (count - 1) / 2 / ((1 << 16) - 1)
    return f"{difference:>#8x}{cells}{expected:>9.2f}"


def all_differences(seeds: int, count: int = 500) -> list[str]:
    """For shuffled and random rows: how much the number of pairs varies, of all differences."""
    first, second = np.triu_indices(count, 1)
    lines = []
    for name in ("shuffled", "random"):
        total, squares = np.zeros((2, 1 << 16))
        for seed in range(seeds):
            rows = np.random.default_rng(seed).permutation(1 << 16)[:count]
            if name == "shuffled":
                rows = shuffled(seed, count)
            pairs = np.bincount(rows[first] ^ rows[second], minlength=1 << 16)
            total += pairs
            squares += pairs.astype(float) ** 2
        ratio = (
            (squares / seeds - (total / seeds) ** 2) / total.mean() * seeds
        )[1:]
        worst = int(ratio.argmax()) + 1
        cells = f"{ratio.mean():>8.3f}{ratio.max():>8.2f}  {worst:#06x}{np.sum(ratio > 1.6):>6}"
        lines.append(f"{name:10}{cells}")
    return lines


def share_row(
    dim: int, share: float, seeds: int, taking_part: int = 200
) -> str:
    """A row of the fourth table."""
    widths = []
    kinds: tuple[CanaryKind, ...] = ("rotation", "sphere")
    for kind in kinds:
        squares = []
        for seed in range(seeds if kind == "rotation" else max(2, seeds // 5)):
            canaries = CanarySet(dim, taking_part + 400, seed, kind)
            rng = np.random.default_rng((seed, 3))
            weights = np.ones((1, taking_part), np.float32)
            released = canaries.combine(weights, numbers=range(taking_part))[0]
            noise = rng.standard_normal(dim, np.float32)
            released /= np.linalg.norm(released)
            noise /= np.linalg.norm(noise)
            mixed = np.sqrt(share) * released + np.sqrt(1 - share) * noise
            unobserved = range(taking_part, taking_part + 400)
            cosines = canaries.dot(
                mixed, numbers=unobserved, threads=1
            ) / np.linalg.norm(mixed)
            squares.append(dim * np.mean(cosines**2))
        widths.append(float(np.sqrt(np.mean(squares))))
    size = Rotation(dim, 0).size
    predicted = np.sqrt(1 - share * dim / size)
    head = f"{dim:>8}{dim / size:>6.2f}{share:>7.2f}"
    return f"{head}{widths[0]:>10.3f}{predicted:>10.3f}{widths[1]:>8.3f}"


def shift_row(dim: int, taking_part: int, share: float, seeds: int) -> str:
    """A row of the table of shifts: of one canary, by the fitted null and by the known one."""
    shifts = []
    for seed in range(seeds):
        canaries = CanarySet(dim, taking_part + 400, seed)
        rng = np.random.default_rng((seed, 5))
        weights = np.ones((1, taking_part), np.float32)
        total = canaries.combine(weights, numbers=range(taking_part))[0]
        noise = rng.standard_normal(dim, np.float32)
        noise *= (
            np.sqrt((1 - share) / share)
            * np.linalg.norm(total)
            / np.linalg.norm(noise)
        )
        products = canaries.dot(total + noise, threads=1)
        observed, unobserved = products[:taking_part], products[taking_part:]
        truth = 1 / (observed - 1).std()  # without the canary itself
        by_known_null = (
            np.sqrt(dim) * observed.mean() / np.linalg.norm(total + noise)
        )
        fitted = (observed.mean() - unobserved.mean()) / unobserved.std()
        shifts.append([truth, fitted, by_known_null])
    cells = "".join(f"{mean:>9.3f}" for mean in np.mean(shifts, axis=0))
    return f"{dim:>8}{taking_part:>8}{share:>7.2f}{cells}"


def groups(seeds: int, count: int = 316, dim: int = 100_000) -> list[str]:
    """The rows of the fifth table."""
    rng = np.random.default_rng(4)
    values_of: list[list[list[float]]] = [[], []]
    for seed in range(seeds):
        noise = rng.standard_normal(dim, np.float32)
        canaries = CanarySet(dim, 50 * count, 1_000_000 + seed)
        scores = (
            canaries.dot(noise, threads=1)
            * np.sqrt(dim)
            / np.linalg.norm(noise)
        )
        for values, drawn in zip(
            values_of, (scores, rng.standard_normal(50 * count)), strict=True
        ):
            for group in drawn.reshape(50, count):
                fit = anderson_darling(group)
                values.append(
                    [group.mean(), group.std(ddof=1), fit, group.max()]
                )
    rows = []
    statistics = [np.array(values).T for values in values_of]
    for name, rotated, normal in zip(
        ("mean", "deviation", "A²", "largest"), *statistics, strict=True
    ):
        p_mean = scipy.stats.ttest_ind(rotated, normal, equal_var=False).pvalue
        p_spread = scipy.stats.levene(rotated, normal, center="median").pvalue
        cells = "".join(
            f"{x.mean():>9.4f} ± {x.std(ddof=1):.4f}" for x in (rotated, normal)
        )
        rows.append(f"{name:10}{cells}{p_mean:>7.3f}{p_spread:>7.3f}")
    return rows


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    dim = 30_000 if quick else 1_000_000
    say(f"Table 1: {dim:,} canaries in as many dimensions")
    say(
        f"{'x':22}{'sd':>8}{'kurtosis':>9}{'KS p':>7}{'A²':>7}{'>3':>7}{'>4':>7}{'>4.5':>7}"
        f"{'Q':>7}{'max ρ':>8}"
    )
    for name in FAMILIES:
        say(null_row(name, dim, dim, 1))
    say("\nTable 2: k canaries, over seeds")
    say(
        f"{'x':22}{'d':>7}{'k':>7}{'mean':>8}{'square':>8}{'theory':>8}{'KS':>7}{'AD':>7}"
    )
    seeds = 10 if quick else 100
    for name in (
        "Gaussian",
        "one entry",
        "two equal neighbours",
        "300 entries",
    ):
        for size in (1 << 16,) if quick else (1 << 16, 40_000):
            for count in (1000, 60_000):
                say(sample_row(name, size, count, seeds))
    say(
        "\nTable 3: pairs with one difference: mean and variance, shuffled and random; expected"
    )
    for difference in (1, 0x10, 0x100, 0x8080, 0x5555, 0xFFFF):
        say(pairs_row(difference, 20 if quick else 400))
    say(
        "all differences: mean of variance / mean, its largest, where, how many above 1.6"
    )
    for row in all_differences(10 if quick else 600):
        say(row)
    say(
        "\nTable 4: canaries that are a share of the release; deviation of unobserved scores"
    )
    say(
        f"{'d':>8}{'d/D':>6}{'share':>7}{'rotation':>10}{'theory':>10}{'sphere':>8}"
    )
    for size in (7_850, 40_000, 1 << 16):
        for share in (0.05, 0.5):
            say(share_row(size, share, 4 if quick else 25))
    say(
        "\nShifts: of one canary in its residual; by the fitted null, and by the known one"
    )
    for size, count in (
        (65_536, 200),
        (65_536, 60_000),
        (40_000, 200),
        (40_000, 36_000),
    ):
        say(shift_row(size, count, 0.5, 2 if quick else 10))
    say(
        "\nTable 5: statistics of 316 scores, rotated and normal draws; p of means and spreads"
    )
    for row in groups(2 if quick else 40):
        say(row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="smaller, fewer seeds"
    )
    main(parser.parse_args().quick)
