"""How long does it take to clip an update and add it up? `ClippedSum` against whole vectors.

    python benchmarks/clipped_sum.py        # ten seconds, one thread

The variants take turns on the same update of 1,206,590 float32 entries; the time is the median.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from fl_epe.mechanism import ClippedSum, clipping, norm

DIM, CLIP_NORM = 1_206_590, 0.5
BLOCKS = (1 << 15, 1 << 12, 1 << 17)


def separately(update: np.ndarray, total: np.ndarray) -> None:
    """Clip the whole vector, then add it."""
    clipped = update * ClippedSum(1, CLIP_NORM).scale(norm(update))
    total += np.trunc(clipped, out=clipped)


def in_blocks(size: int) -> Callable[[np.ndarray], None]:
    """`ClippedSum.add` with blocks of another size."""
    with mock.patch.object(clipping, "BLOCK", size):
        total = ClippedSum(DIM, CLIP_NORM)

    def add(update: np.ndarray) -> None:
        with mock.patch.object(clipping, "BLOCK", size):
            total.add(update)

    return add


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Time the variants of clipping and adding."
    )
    parser.add_argument("--turns", type=int, default=200)
    turns = parser.parse_args().turns
    update = np.random.default_rng(0).standard_normal(DIM, dtype=np.float32)
    total = np.zeros(DIM)
    variants: dict[str, Callable[[np.ndarray], None]] = {
        "whole vectors": functools.partial(separately, total=total)
    }
    variants |= {
        f"ClippedSum, blocks of 2^{size.bit_length() - 1}": in_blocks(size)
        for size in BLOCKS
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant(update)
            times[name].append(time.perf_counter() - start)
    for name, measured in times.items():
        print(f"{name:30} {1e3 * statistics.median(measured):5.1f} ms")


if __name__ == "__main__":
    main()
