"""A model's named arrays as one flat vector and back: which numbers a canary moves."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

_FLOATS = ("float16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which arrays of a model a canary moves, and where each stands in the flat vector.

    Floating-point arrays with at least one axis are moved. Integer and boolean buffers, 0-d arrays
    and those that match ``leave_out`` are not: clipping does not treat them as it treats the rest
    (Flower's leaves 0-d arrays as they are, integers lose what they are scaled to), so that no
    canary could stand for a client there.

    Attributes:
        names: of all arrays, in order.
        shapes: their shapes.
        moved: whether a canary moves the array.
        dtype: of the flat vector: float64 if one of the moved arrays is, else float32.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    moved: tuple[bool, ...]
    dtype: str

    @classmethod
    def of(cls, arrays: ArrayRecord, leave_out: Sequence[str] = ()) -> Layout:
        """The layout of a model.

        Args:
            arrays: the model.
            leave_out: names, or patterns with ``*`` and ``?``, of more arrays to leave alone.

        Raises:
            ValueError: for an array of a type that cannot be added up (bfloat16, complex, text,
                another serialisation than NumPy's), or if nothing is left to move.
        """
        moved = []
        for name, array in arrays.items():
            _check_type(name, array)
            match = any(fnmatch.fnmatchcase(name, pattern) for pattern in leave_out)
            moved.append(array.dtype in _FLOATS and len(array.shape) > 0 and not match)
        layout = cls(
            names=tuple(arrays),
            shapes=tuple(tuple(array.shape) for array in arrays.values()),
            moved=tuple(moved),
            dtype="float64" if "float64" in _dtypes(arrays, moved) else "float32",
        )
        if layout.dim < 2:
            raise ValueError(
                f"Expected floating-point arrays with at least 2 entries in all, got {layout.names}"
                f" of which a canary could move {layout.dim} entries."
            )
        return layout

    @property
    def dim(self) -> int:
        """How many numbers a canary moves."""
        sizes = zip(self.shapes, self.moved, strict=True)
        return sum(math.prod(shape) for shape, moved in sizes if moved)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the arrays that no canary moves."""
        pairs = zip(self.names, self.moved, strict=True)
        return tuple(name for name, moved in pairs if not moved)

    def flatten(self, arrays: ArrayRecord) -> NDArray[np.floating]:
        """The moved arrays one after another, shape ``(dim,)``.

        Arrays are found by name; where names differ from the first round's, by position.

        Raises:
            ValueError: naming what does not fit.
        """
        found = self._match(arrays)
        pairs = zip(self.names, self.moved, strict=True)
        parts = [arrays[found[name]].numpy().ravel() for name, moved in pairs if moved]
        return np.concatenate(parts, dtype=self.dtype, casting="same_kind")

    def fill(
        self, flat: NDArray[np.floating], like: ArrayRecord, arrays: ArrayRecord
    ) -> ArrayRecord:
        """A model with the moved entries of ``flat`` and all else from ``arrays``.

        Args:
            flat: shape ``(dim,)``.
            like: its names, their order and its types are kept, as a client answered them.
            arrays: the global model.

        Raises:
            ValueError: naming what does not fit.
        """
        theirs, ours = self._match(like), self._match(arrays)
        values: dict[str, NDArray[Any]] = {}
        start = 0
        for name, shape, moved in zip(self.names, self.shapes, self.moved, strict=True):
            if moved:
                stop = start + math.prod(shape)
                value = flat[start:stop].reshape(shape)
                start = stop
            else:
                value = arrays[ours[name]].numpy()
            values[theirs[name]] = np.asarray(value).astype(like[theirs[name]].dtype)
        return ArrayRecord({name: Array(values[name]) for name in like})

    def _match(self, arrays: ArrayRecord) -> dict[str, str]:
        """Our names to those of ``arrays``."""
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        if shapes.keys() == set(self.names):
            wrong = [n for n, s in zip(self.names, self.shapes, strict=True) if shapes[n] != s]
            if not wrong:
                return {name: name for name in self.names}
            known = dict(zip(self.names, self.shapes, strict=True))[wrong[0]]
            raise ValueError(f"Expected {wrong[0]}.shape={shapes[wrong[0]]} to be {known}.")
        if tuple(shapes.values()) == self.shapes:  # renamed, in the same order
            return dict(zip(self.names, shapes, strict=True))
        missing = sorted(set(self.names) - shapes.keys())
        new = sorted(shapes.keys() - set(self.names))
        raise ValueError(
            f"Expected the model's arrays {list(self.names)}: {missing} are missing, {new} are new,"
            " and their shapes do not match in order."
        )


def _dtypes(arrays: ArrayRecord, moved: Sequence[bool]) -> set[str]:
    return {array.dtype for array, use in zip(arrays.values(), moved, strict=True) if use}


def _check_type(name: str, array: Array) -> None:
    if array.stype != "numpy.ndarray":
        raise ValueError(f"Expected {name}.stype={array.stype!r} to be 'numpy.ndarray'.")
    if array.dtype not in _FLOATS and not array.dtype.startswith(("int", "uint", "bool")):
        raise ValueError(
            f"Expected {name}.dtype={array.dtype!r} to be one of {', '.join(_FLOATS)}, or an"
            " integer: Flower's strategies cannot add it up."
        )
