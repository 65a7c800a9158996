"""How often does the calibration of a run warn, where the null is right and where it is wrong?

    python simulations/studies/calibration.py           # 10,000 right runs: ten seconds on one core
    python simulations/studies/calibration.py --quick   # 1,000 right runs, 200 of the others

`misfits` is asked about the measured nulls of runs with three statistics that have an exact null.
A null is drawn as its histogram, which is multinomial, and its mean and deviation, which are
normal. "wrong" is what one of the three is in truth; "found" the share of runs with a warning, and
"by" what most of them warn of.

"tails x3, gradual" is 98.3% N(0, 1) and 1.7% N(0, 1.5²), which has 3 times as many scores beyond 4
deviations, 1.7 times beyond 3.5, and 1.3 times beyond 3. "tails x3 beyond 4" is N(0, 1) otherwise:
of 131,072 scores 25 lie there on average, where 8.3 are expected.

Expected::

    wrong                canaries    runs warned   found  by
    nothing                131072   10000      3   0.03%  tail beyond 3.5
    nothing                  1000   10000      4   0.04%  deviation
    1% too wide            131072    1000      4   0.40%  tail beyond 3.5
    3% too wide            131072    1000   1000 100.00%  deviation
    3% too narrow          131072    1000   1000 100.00%  deviation
    30% too wide           131072    1000   1000 100.00%  tail beyond 3
    mean 0.01              131072    1000      1   0.10%  tail beyond 3.5
    mean 0.03              131072    1000    999  99.90%  mean
    tails x3, gradual      131072    1000    930  93.00%  tail beyond 3.5
    tails x3 beyond 4      131072    1000    736  73.60%  tail beyond 4
    tails x5 beyond 4      131072    1000   1000 100.00%  tail beyond 4
    30% too wide             1000    1000   1000 100.00%  deviation
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing import MeasuredNull, misfits

Floats = NDArray[np.float64]

SEED = 14
STATISTICS = ("model", "displacement", "matched-filter")
LARGE, SMALL = 131_072, 1000
MIXED, WIDE = 0.0166, 1.5


@dataclasses.dataclass(frozen=True)
class Law:
    """Of one score: its probability in each cell of the histogram, and its moments."""

    cells: Floats
    mean: float = 0.0
    variance: float = 1.0
    fourth: float = 3.0


def normal(mean: float = 0.0, width: float = 1.0) -> Law:
    """N(mean, width²)."""
    below = scipy.special.ndtr((MeasuredNull.edges - mean) / width)
    cells = np.diff(np.concatenate([[0.0], below, [1.0]]))
    return Law(cells, mean, width**2, 3 * width**4)


def gradual(share: float, width: float) -> Law:
    """N(0, 1), with a share of N(0, width²)."""
    cells = (1 - share) * normal().cells + share * normal(0, width).cells
    variance, fourth = (1 + share * (width**power - 1) for power in (2, 4))
    return Law(cells, 0.0, variance, 3 * fourth)


def beyond(limit: float, times: float) -> Law:
    """N(0, 1), with so many times the scores beyond a limit on both sides."""
    cells, edges = normal().cells, MeasuredNull.edges
    outside = np.concatenate([edges <= -limit, [False]]) | np.concatenate([[False], edges >= limit])
    share, density = scipy.special.ndtr(-limit), np.exp(-(limit**2) / 2) / np.sqrt(2 * np.pi)
    square = limit * density + share  # E[x²] beyond the limit, on one side
    fourth = limit**3 * density + 3 * square
    total = 1 + 2 * (times - 1) * share
    return Law(
        cells * np.where(outside, times, 1.0) / total,
        0.0,
        (1 + 2 * (times - 1) * square) / total,
        (3 + 2 * (times - 1) * fourth) / total,
    )


def draw(rng: np.random.Generator, size: int, laws: tuple[Law, ...]) -> MeasuredNull:
    """The measured null of a run, one law for each statistic."""
    noise = rng.standard_normal((2, len(laws))) / np.sqrt(size)
    widths = np.sqrt([law.variance for law in laws])
    spread = np.sqrt([law.fourth - law.variance**2 for law in laws]) / (2 * widths)
    return MeasuredNull(
        STATISTICS[: len(laws)],
        np.array([law.mean for law in laws]) + widths * noise[0],
        widths + spread * noise[1],
        np.array([rng.multinomial(size, law.cells) for law in laws]),
    )


def row(rng: np.random.Generator, name: str, size: int, runs: int, law: Law) -> str:
    """How many runs are warned of, of those in which one statistic has a law."""
    found, by = 0, collections.Counter[str]()
    for _ in range(runs):
        warned = {one.what for one in misfits(draw(rng, size, (law, normal(), normal())))}
        found += bool(warned)
        by.update(warned)
    most = by.most_common(1)[0][0] if by else "-"
    return f"{name:<20}{size:>9}{runs:>8}{found:>7}{found / runs:>8.2%}  {most}"


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the table."""
    rng = np.random.default_rng(SEED)
    right, wrong = (1000, 200) if quick else (10_000, 1000)
    say(f"{'wrong':<20}{'canaries':>9}{'runs':>8}{'warned':>7}{'found':>8}  by")
    for size in (LARGE, SMALL):
        say(row(rng, "nothing", size, right, normal()))
    for name, law in (
        ("1% too wide", normal(0, 1.01)),
        ("3% too wide", normal(0, 1.03)),
        ("3% too narrow", normal(0, 0.97)),
        ("30% too wide", normal(0, 1.3)),
        ("mean 0.01", normal(0.01)),
        ("mean 0.03", normal(0.03)),
        ("tails x3, gradual", gradual(MIXED, WIDE)),
        ("tails x3 beyond 4", beyond(4.0, 3.0)),
        ("tails x5 beyond 4", beyond(4.0, 5.0)),
    ):
        say(row(rng, name, LARGE, wrong, law))
    say(row(rng, "30% too wide", SMALL, wrong, normal(0, 1.3)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    main(parser.parse_args().quick)
