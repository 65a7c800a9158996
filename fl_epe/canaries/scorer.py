"""`CanaryScorer`: cosines of every canary with the vectors that an adversary sees.

Rotated canaries are scored at once. Independent ones are expensive to make again, so vectors wait
until a block of them is scored together.

Examples:
    >>> scorer = CanaryScorer(CanarySet(dim=100, count=2, seed=1))
    >>> float(scorer.add("mean", scorer.canaries.vector(0))[0].round(3))
    1.0
    >>> scorer.cosines("mean").shape
    (1, 2)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.canaries.canary_set import CanarySet
from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.mechanism import norm

SCORE_MEMORY = 384 << 20
"""Default bytes for vectors that wait to be scored together."""


class CanaryScorer:
    """Scores named series of vectors of shape ``(dim,)`` against a `CanarySet`.

    Args:
        canaries: observed and unobserved canaries together.
        score_memory: bytes for vectors that wait to be scored together, for independent canaries.


    Raises:
        ValueError: if ``score_memory`` is not positive.
    """

    def __init__(self, canaries: CanarySet, score_memory: int = SCORE_MEMORY) -> None:
        if score_memory < 1:
            raise_invalid("score_memory", score_memory, ">= 1")
        self.canaries = canaries
        self._limit = 1 if canaries.fast else max(1, score_memory // (4 * canaries.dim))
        self._names: list[str] = []  # of the vectors that wait, in the first rows of `_rows`
        self._rows = np.empty((0 if canaries.fast else self._limit, canaries.dim), np.float32)
        self._dots: dict[str, list[NDArray[np.float64]]] = {}
        self._norms: dict[str, list[float]] = {}

    def add(self, series: str, vector: NDArray[np.floating]) -> NDArray[np.float64] | None:
        """Append a vector to a series; it is scored at once, or when enough vectors wait.

        Returns:
            Its inner product with every canary, shape ``(count,)``; ``None`` if it waits.

        Raises:
            ValueError: if the vector has the wrong shape or an entry that is not finite.
        """
        dim = self.canaries.dim
        if vector.shape != (dim,):
            raise_invalid(f"{series}.shape", vector.shape, f"to be ({dim},)")
        length = norm(vector)
        if not math.isfinite(length):
            raise ArgumentError(f"Expected {series} to be finite, got {{norm}}.", norm=length)
        self._norms.setdefault(series, []).append(length)
        if self.canaries.fast:
            dots = self.canaries.dot(vector)
            self._dots.setdefault(series, []).append(dots)
            return dots
        self._rows[len(self._names)] = vector
        self._names.append(series)
        if len(self._names) >= self._limit:
            self.flush()
        return None

    def flush(self) -> None:
        """Score all vectors that wait."""
        if not self._names:
            return
        scored = self.canaries.dot(self._rows[: len(self._names)])
        for name, dots in zip(self._names, scored, strict=True):
            self._dots.setdefault(name, []).append(dots)
        self._names.clear()

    def norms(self, series: str) -> NDArray[np.float64]:
        """Norm of every vector of the series, shape ``(length,)``."""
        return np.array(self._norms.get(series, []))

    def cosines(self, series: str) -> NDArray[np.float64]:
        """Cosines of a series, float64 of shape ``(length, count)``; 0 for a vector of norm 0."""
        self.flush()
        dots = np.array(self._dots.get(series, [])).reshape(-1, self.canaries.count)
        norms = self.norms(series)[:, None]
        return np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)

    @staticmethod
    def names_of(series: Iterable[str]) -> list[str]:
        """The names of the arrays that `scored` returns for these series."""
        return [f"{kind}.{name}" for name in series for kind in ("norms", "dots")]

    def scored(self, series: Iterable[str]) -> dict[str, NDArray[np.generic]]:
        """Norms and inner products of some series; vectors that wait are scored first."""
        names = list(series)
        self.flush()
        out: dict[str, NDArray[np.generic]] = {}
        for name in names:
            dots = self._dots.get(name, [])
            out[f"norms.{name}"] = self.norms(name)
            out[f"dots.{name}"] = np.array(dots).reshape(len(dots), self.canaries.count)
        return out

    def go_on(self, scored: Mapping[str, NDArray[np.generic]], length: int) -> None:
        """Continue series from the first ``length`` of the vectors in what `scored` returned.

        Raises:
            ValueError: if there are fewer, or another number of canaries.
        """
        for key, value in scored.items():
            shape = (length, self.canaries.count) if key.startswith("dots.") else (length,)
            if value[:length].shape != shape:
                raise_invalid(f"{key}.shape", value.shape, f"to be at least {shape}")
        self.restore(
            {
                "waiting.names": np.empty(0, np.str_),
                "waiting.vectors": np.empty((0, self.canaries.dim), np.float32),
                **{key: value[:length] for key, value in scored.items()},
            }
        )

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Named arrays from which `restore` continues, vectors that wait included."""
        out: dict[str, NDArray[np.generic]] = {
            "waiting.names": np.array(self._names, dtype=np.str_),
            "waiting.vectors": self._rows[: len(self._names)],
        }
        for series, norms in self._norms.items():
            dots = self._dots.get(series, [])
            out[f"norms.{series}"] = np.array(norms)
            out[f"dots.{series}"] = np.array(dots).reshape(len(dots), self.canaries.count)
        return out

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned.

        Raises:
            ValueError: if the state has another dimension or number of canaries.
        """
        vectors = state["waiting.vectors"]
        if vectors.shape[1] != self.canaries.dim or len(vectors) >= self._limit:
            most = (self._limit - 1, self.canaries.dim)
            raise_invalid("waiting.vectors.shape", vectors.shape, f"to be at most {most}")
        self._rows[: len(vectors)] = vectors
        self._names = [str(name) for name in state["waiting.names"]]
        for key, value in state.items():
            kind, _, series = key.partition(".")
            if kind == "norms":
                self._norms[series] = [float(length) for length in np.asarray(value, np.float64)]
            elif kind == "dots":
                if value.shape[1] != (count := self.canaries.count):
                    raise_invalid("count", value.shape[1], f"to be {count}")
                self._dots[series] = list(np.asarray(value, np.float64))
