"""Canaries: random unit vectors that any process can regenerate from a seed and an id.

The ids of a set are 0, 1, 2, …, and are called numbers.

`CanaryScorer` computes their cosines with the vectors that an adversary sees.

Examples:
    >>> canaries = CanarySet(dim=1000, count=3, seed=1)
    >>> canaries.dot(canaries.vector(1)).round(1) + 0.0
    array([0., 1., 0.])
"""

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, assert_never

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.canaries.directions import (
    Rotation,
    Rows,
    Sphere,
    rotation,
    size_for,
)
from fl_epe.checks import (
    ArgumentError,
    Floats,
    Floats32,
    Reals,
    check_count,
    check_not_negative,
    checked_type,
    raise_invalid,
)
from fl_epe.mechanism import blocks, norm

CanaryKind = Literal["rotation", "sphere"]
"""How the directions of a `CanarySet` are generated."""

_MIN_ROTATION_DIM = 64  # in fewer dimensions, sums of signs are not normal
_MAX_ONE_BY_ONE = 8  # up to this number, rotated canaries are summed one by one, which is faster


class CanarySet:
    """``count`` random directions on the unit sphere of R^``dim``.

    Canary ``i`` depends on ``(seed, i)``, ``dim`` and ``kind`` only. So a set is not stored:
    every process that needs it computes the same bits. A canary's cosine with any independent
    vector has mean 0 and variance ``1 / dim``; its law is in Andrew et al. (2024), Theorem 3.1.

    Args:
        dim: dimension of the model, at least 1.
        count: number of canaries, at least 1.
        seed: a non-negative integer; keep it secret until training has ended.
        kind: "rotation" for rows of a random rotation, all of which are scored by two fast
            transforms, or "sphere" for independent normal draws as in the paper, each of which
            is regenerated for every score. "rotation" falls back to "sphere" in fewer than 64
            dimensions, and for more canaries than a rotation has rows (at least 65,536). See
            docs/notes/rotation.md.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self, dim: int, count: int, seed: int, kind: CanaryKind = "rotation"
    ) -> None:
        check_count("dim", dim)
        check_count("count", count)
        check_not_negative("seed", seed)
        self.dim = int(dim)
        self.count = int(count)
        self.seed = int(seed)
        self.kind: CanaryKind = checked_type("kind", kind, CanaryKind)
        match kind:
            case "sphere":
                is_sphere = True
            case "rotation":
                is_too_small = self.dim < _MIN_ROTATION_DIM
                is_sphere = is_too_small or self.count > size_for(self.dim)
            case _:
                assert_never(kind)
        self._sphere = Sphere(self.dim, self.seed) if is_sphere else None

    def __repr__(self) -> str:
        return f"CanarySet(dim={self.dim}, count={self.count}, seed=..., kind={self.kind!r})"

    @property
    def fast(self) -> bool:
        """Whether the scores of a vector cost the same for any number of canaries."""
        return self._sphere is None

    def vector(self, i: int) -> Floats32:
        """Canary ``i`` as a float32 array of shape ``(dim,)`` with unit norm.

        Raises:
            IndexError: if ``i`` is not in [0, count).
        """
        number = self._chosen([i])[0]
        if self._sphere is not None:
            out = np.empty(self.dim, np.float32)
            self._sphere.fill(number, out)
            return out
        row = self._rotation.rows(number)
        return self._rotation.vector(int(row))

    def vectors(self, numbers: Sequence[int]) -> Floats32:
        """The canaries with these ids, shape ``(len(numbers), dim)``; uses all processors.

        Raises:
            IndexError: if a number is not in [0, count).
        """
        out = np.empty((len(numbers), self.dim), np.float32)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for row, vector in zip(
                out, pool.map(self.vector, numbers), strict=True
            ):
                row[:] = vector
        return out

    def combine(
        self, weights: Reals, *, numbers: Sequence[int] | None = None
    ) -> Floats32:
        """Weighted sums of canaries, without all of them in memory.

        Args:
            weights: the weight of each canary in each sum, shape ``(m, count)`` or
                ``(m, len(numbers))``.
            numbers: ids of the canaries; by default all.

        Returns:
            float32 array of shape ``(m, dim)``.

        Raises:
            ValueError: if ``weights`` has another number of columns.
            IndexError: if a number is not in [0, count).
        """
        chosen = self._chosen(numbers)
        if weights.ndim != 2 or weights.shape[1] != len(chosen):
            raise_invalid(
                "weights.shape", weights.shape, f"to be (m, {len(chosen)})"
            )
        if self._sphere is not None:
            return self._sphere.combine(weights, chosen)
        out = np.zeros((len(weights), self.dim), np.float32)
        if len(chosen) <= _MAX_ONE_BY_ONE:
            for column, i in zip(weights.T, chosen.tolist(), strict=True):
                vector = self.vector(i)
                for total, weight in zip(out, column, strict=True):
                    for block in blocks(self.dim):
                        total[block] += (weight * vector[block]).astype(
                            np.float32
                        )
            return out
        rows, lengths = self._rows
        for total, row_weights in zip(out, weights, strict=True):
            scaled = row_weights / lengths[chosen]
            total[:] = self._rotation.combine(scaled, rows[chosen])
        return out

    def dot(
        self,
        x: ArrayLike,
        *,
        numbers: Sequence[int] | None = None,
        threads: int | None = None,
    ) -> Floats:
        """Inner products of canaries with ``x``, without all canaries in memory.

        Args:
            x: a vector or vectors, shape ``(dim,)`` or ``(m, dim)``.
            numbers: ids of the canaries; by default all.
            threads: number of threads; the result does not depend on it.

        Returns:
            float64 array of shape ``(count,)`` or ``(m, count)``, or with ``len(numbers)``
            columns. The error of "rotation" is about 1e-5 of ``‖x‖ / √dim``.

        Raises:
            ValueError: if the last axis of ``x`` is not ``dim`` long.
            IndexError: if a number is not in [0, count).
        """
        x = np.asarray(x)
        if x.ndim not in (1, 2) or x.shape[-1] != self.dim:
            raise_invalid("x.shape", x.shape, f"to end with dim={self.dim}")
        chosen = self._chosen(numbers)
        vectors = np.atleast_2d(x)
        if self._sphere is not None:
            out = self._sphere.dot(vectors, chosen, threads)
        else:
            out = np.empty((len(vectors), len(chosen)))
            rows, lengths = self._rows
            for dots, vector in zip(out, vectors, strict=True):
                products = self._rotation.products(
                    vector, rows[chosen], threads
                )
                dots[:] = products / lengths[chosen]
        if x.ndim == 2:
            return out
        return np.asarray(out[0])

    def _chosen(self, numbers: Sequence[int] | None) -> Rows:
        """These ids, or by default all, as an array; raises if one is not in the set."""
        if numbers is None:
            return np.arange(self.count)
        chosen = np.asarray(numbers, np.int64)
        outside = chosen[(chosen < 0) | (chosen >= self.count)]
        if len(outside):
            raise IndexError(
                f"Expected i={outside[0]} in [0, count={self.count})."
            )
        return chosen

    @property
    def _rotation(self) -> Rotation:
        """The rotation of which the canaries are rows, from the process's cache."""
        return rotation(self.dim, self.seed)

    @functools.cached_property
    def _rows(self) -> tuple[Rows, Floats]:
        """The row of every canary in the rotation, and each row's norm before it is scaled to 1."""
        rows = self._rotation.rows(np.arange(self.count))
        return rows, self._rotation.lengths(rows)


SCORE_MEMORY = 384 << 20
"""Bytes for vectors that wait to be scored together, for independent canaries."""


class CanaryScorer:
    """Scores named series of vectors of shape ``(dim,)`` against a `CanarySet`.

    With rotated canaries each vector is scored at once. Independent canaries are expensive to
    regenerate, so vectors wait until a block of them is scored together.

    Args:
        canaries: observed and unobserved canaries together.
    """

    def __init__(self, canaries: CanarySet) -> None:
        self.canaries = canaries
        self._limit = 1  # a block of this number of vectors is scored together
        rows = 0
        if not canaries.fast:
            rows = max(1, SCORE_MEMORY // (4 * canaries.dim))
            self._limit = rows
        self._waiting = np.empty((rows, canaries.dim), np.float32)
        # The series of the vectors in the first rows of `_waiting`.
        self._names: list[str] = []
        self._dots: dict[str, list[Floats]] = {}
        self._norms: dict[str, list[float]] = {}

    def add(self, series: str, vector: Reals) -> Floats | None:
        """Append a vector to a series; it is scored at once, or as soon as enough vectors wait.

        Returns:
            The vector's inner product with every canary, shape ``(count,)``; ``None`` if it
            waits.

        Raises:
            ValueError: if the vector has the wrong shape or an entry that is not finite.
        """
        dim = self.canaries.dim
        if vector.shape != (dim,):
            raise_invalid(f"{series}.shape", vector.shape, f"to be ({dim},)")
        length = norm(vector)
        if not math.isfinite(length):
            raise ArgumentError(
                f"Expected {series} to be finite, got {{norm}}.", norm=length
            )
        self._norms.setdefault(series, []).append(length)
        if self.canaries.fast:
            dots = self.canaries.dot(vector)
            self._dots.setdefault(series, []).append(dots)
            return dots
        self._waiting[len(self._names)] = vector
        self._names.append(series)
        if len(self._names) >= self._limit:
            self.flush()
        return None

    def flush(self) -> None:
        """Score all vectors that wait."""
        if not self._names:
            return
        scores = self.canaries.dot(self._waiting[: len(self._names)])
        for name, dots in zip(self._names, scores, strict=True):
            self._dots.setdefault(name, []).append(dots)
        self._names.clear()

    def norms(self, series: str) -> Floats:
        """The norm of every vector of the series, shape ``(length,)``."""
        return np.array(self._norms.get(series, []))

    def cosines(self, series: str) -> Floats:
        """Cosines of a series, float64 of shape ``(length, count)``; 0 for a vector of norm 0."""
        self.flush()
        dots = np.array(self._dots.get(series, [])).reshape(
            -1, self.canaries.count
        )
        norms = self.norms(series)[:, None]
        return np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)

    def state(
        self, series: Iterable[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Named arrays from which `restore` continues.

        Args:
            series: names of the series to include, whose waiting vectors are scored first. By
                default all series are included, and waiting vectors as they are.
        """
        out: dict[str, np.ndarray] = {}
        if series is None:
            series = self._norms
            out["waiting.names"] = np.array(self._names, dtype=np.str_)
            out["waiting.vectors"] = self._waiting[: len(self._names)]
        else:
            self.flush()
        for name in series:
            dots = self._dots.get(name, [])
            out[f"norms.{name}"] = self.norms(name)
            out[f"dots.{name}"] = np.array(dots).reshape(
                len(dots), self.canaries.count
            )
        return out

    def restore(
        self, state: Mapping[str, np.ndarray], length: int | None = None
    ) -> None:
        """Continue from a `state`.

        Args:
            state: named arrays; arrays that are not part of a `state` are ignored.
            length: number of vectors of each series; later vectors are discarded. By default all
                are restored.

        Raises:
            ValueError: if the state has another dimension or number of canaries, or fewer vectors.
        """
        dim = self.canaries.dim
        vectors = state.get("waiting.vectors", np.empty((0, dim)))
        if vectors.shape[1] != dim or len(vectors) >= self._limit:
            wanted = f"to be at most {(self._limit - 1, dim)}"
            raise_invalid("waiting.vectors.shape", vectors.shape, wanted)
        self._waiting[: len(vectors)] = vectors
        self._names = [str(name) for name in state.get("waiting.names", ())]
        for key, value in state.items():
            kind, _, series = key.partition(".")
            if kind not in ("norms", "dots"):
                continue
            rows = np.asarray(value, np.float64)[:length]
            shape: tuple[int, ...] = (length or len(rows),)
            if kind == "dots":
                shape = (*shape, self.canaries.count)
            if rows.shape != shape:
                raise_invalid(
                    f"{key}.shape", value.shape, f"to be at least {shape}"
                )
            if kind == "norms":
                self._norms[series] = rows.tolist()
            else:
                self._dots[series] = list(rows)
