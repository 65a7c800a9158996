"""Statistics that an auditor would try by hand, each fitted to runs of both worlds.

A statistic maps what was released in m runs, shape (m, s, d), to m numbers that are larger with the
canary. It is fitted on runs that neither choose it nor prove anything by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fl_epe.checks import Floats

Score = Callable[[Floats], Floats]
_MOST = 160  # features of a likelihood ratio
_RIDGE = 1e-12  # of the mean variance
_FEW = 1e-9  # relative rounding below which values are the same


def fitted(
    present: Floats, absent: Floats, canary: Floats, arrays: tuple[int, ...], *, categories: bool
) -> Iterator[tuple[str, Score]]:
    """Every statistic that suits, with its name.

    Args:
        present: released with the canary, shape (m, s, d).
        absent: released without it, shape (m, s, d).
        canary: its update in each step, shape (s, d').
        arrays: number of entries of each array of an update.
        categories: whether what is released are categories.
    """
    if categories:
        yield "counts of categories", _counts(present, absent, lambda x: x.transpose(1, 0, 2))
        return
    base = absent.mean(axis=0)
    yield "counts of values", _counts(present, absent, lambda x: x.reshape(1, len(x), -1))
    yield "largest entry", lambda x: np.abs(x - base).max(axis=(1, 2))
    yield "norm", lambda x: np.linalg.norm((x - base).reshape(len(x), -1), axis=1)
    if present.shape[2] == canary.shape[1]:
        largest = np.unravel_index(np.abs(canary).argmax(), canary.shape)
        units = _units(canary)

        def parts(x: Floats) -> Floats:
            cuts = np.append(0, np.cumsum(arrays)[:-1])
            return np.add.reduceat(x * units, cuts, axis=2).reshape(len(x), -1)

        yield "along the canary", lambda x: (x * units).sum(axis=(1, 2))
        yield (
            "counts of values in one entry",
            _counts(present, absent, lambda x: x[None, :, largest[0], largest[1], None]),
        )
        if canary.shape[0] * len(arrays) > 1:
            yield "likelihood ratio of arrays and steps", _ratio(present, absent, parts)
    if 1 < present[0].size <= min(_MOST, len(present)):
        yield "likelihood ratio of all entries", _ratio(present, absent, _flat)


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def _units(canary: Floats) -> Floats:
    norms = np.linalg.norm(canary, axis=1, keepdims=True)
    return np.asarray(canary / np.where(norms > 0, norms, 1.0))


def _ratio(present: Floats, absent: Floats, features: Callable[[Floats], Floats]) -> Score:
    """Of two Gaussians with one covariance (Fisher 1936), which finds what noise cancels in."""
    one, other = features(present), features(absent)
    shift = one.mean(axis=0) - other.mean(axis=0)
    within = np.concatenate([one - one.mean(axis=0), other - other.mean(axis=0)])
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    along = vectors.T @ shift
    size = max(float(np.mean(values)), 1e-300)
    weights = vectors @ (along / (np.maximum(values, 0) + _RIDGE * size))
    return lambda x: features(x) @ weights


def _counts(present: Floats, absent: Floats, blocks: Callable[[Floats], Floats]) -> Score:
    """Sum over blocks of the log ratio of how often each of their values was seen.

    What is possible in one of the worlds alone shows here, whatever its law.
    """
    scale = float(np.abs(absent).max()) or 1.0

    def keys(x: Floats) -> list[list[bytes]]:
        rounded = np.rint(x / (_FEW * scale))
        return [[row.tobytes() for row in np.ascontiguousarray(b) + 0.0] for b in blocks(rounded)]

    tables: list[dict[bytes, Any]] = []
    for one, other in zip(keys(present), keys(absent), strict=True):
        seen: dict[bytes, Any] = {}
        for side, values in enumerate((one, other)):
            for value in values:
                seen.setdefault(value, [0.5, 0.5])[side] += 1
        tables.append({value: np.log(n[0] / n[1]) for value, n in seen.items()})

    def score(x: Floats) -> Floats:
        found = [
            [table.get(value, 0.0) for value in values]
            for table, values in zip(tables, keys(x), strict=True)
        ]
        return np.sum(found, axis=0)

    return score
