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

import math
from collections.abc import Iterable, Mapping
from typing import Any

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

    def state(self, series: Iterable[str] | None = None) -> dict[str, NDArray[np.generic]]:
        """Named arrays from which `restore` continues: of all series, and vectors that wait.

        Args:
            series: keep these alone; then vectors that wait are scored first.
        """
        out: dict[str, NDArray[np.generic]] = {}
        if series is None:
            out["waiting.names"] = np.array(self._names, dtype=np.str_)
            out["waiting.vectors"] = self._rows[: len(self._names)]
        else:
            self.flush()
        for name in self._norms if series is None else series:
            dots = self._dots.get(name, [])
            out[f"norms.{name}"] = self.norms(name)
            out[f"dots.{name}"] = np.array(dots).reshape(len(dots), self.canaries.count)
        return out

    def restore(self, state: Mapping[str, NDArray[Any]], length: int | None = None) -> None:
        """Continue from what `state` returned.

        Args:
            state: named arrays; others than those of `state` are ignored.
            length: forget what each series has after so many vectors.

        Raises:
            ValueError: if the state has another dimension or number of canaries, or fewer vectors.
        """
        dim, count = self.canaries.dim, self.canaries.count
        vectors = state.get("waiting.vectors", np.empty((0, dim)))
        if vectors.shape[1] != dim or len(vectors) >= self._limit:
            most = (self._limit - 1, dim)
            raise_invalid("waiting.vectors.shape", vectors.shape, f"to be at most {most}")
        self._rows[: len(vectors)] = vectors
        self._names = [str(name) for name in state.get("waiting.names", ())]
        for key, value in state.items():
            kind, _, series = key.partition(".")
            if kind not in ("norms", "dots"):
                continue
            kept = np.asarray(value, np.float64)[:length]
            shape = (length or len(kept), *((count,) if kind == "dots" else ()))
            if kept.shape != shape:
                raise_invalid(f"{key}.shape", value.shape, f"to be at least {shape}")
            if kind == "norms":
                self._norms[series] = kept.tolist()
            else:
                self._dots[series] = list(kept)
