"""A model as one flat vector: which numbers a canary moves, and how a reply is made of them."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, assert_never

import numpy as np
from flwr.app import ArrayRecord

from fl_epe.checks import NamedArrays, Vector
from fl_epe.messages import NUMPY, encoded, read_only

ReplyKind = Literal["model", "update"]
"""What clients answer with: a model, or its difference from the model that they were sent."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which arrays of a model a canary moves, and where each stands in the flat vector.

    Floating-point arrays with at least one axis are moved. Integer and boolean buffers, 0-d arrays
    and those that match ``leave_out`` are not: clipping does not treat them as it treats the rest
    (Flower's leaves 0-d arrays as they are, integers lose what they are scaled to), so that no
    canary could stand for a client there. The first replies show more such arrays, see `without`.

    Attributes:
        shapes: of all arrays, by name and in order.
        moved: names of those that a canary moves, in order.
        dtype: of the flat vector: float64 if one of the moved arrays is, else float32.
    """

    shapes: Mapping[str, tuple[int, ...]]
    moved: tuple[str, ...]
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
        values = _decode(arrays)
        moved_types = {
            name: value.dtype.name
            for name, value in values.items()
            if value.dtype.kind == "f" and value.ndim > 0
            if not any(
                fnmatch.fnmatchcase(name, pattern) for pattern in leave_out
            )
        }
        layout = cls(
            shapes={name: value.shape for name, value in values.items()},
            moved=tuple(moved_types),
            dtype="float64" if "float64" in moved_types.values() else "float32",
        )
        return layout.without(())

    def without(self, names: Collection[str]) -> Layout:
        """The same model, of which canaries leave these arrays alone, too.

        Raises:
            ValueError: if nothing is left to move.
        """
        moved = tuple(name for name in self.moved if name not in names)
        layout = dataclasses.replace(self, moved=moved)
        if layout.dim < 2:
            raise ValueError(
                "Expected floating-point arrays with at least 2 entries in all, got"
                f" {list(self.shapes)} of which a canary could move {layout.dim} entries. It leaves"
                " alone what replies do not change, what is the same in all of them, and what has"
                " no negative entry, as variances."
            )
        return layout

    @property
    def dim(self) -> int:
        """How many numbers a canary moves."""
        return sum(math.prod(self.shapes[name]) for name in self.moved)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the arrays that no canary moves."""
        return tuple(name for name in self.shapes if name not in self.moved)

    def flatten(self, arrays: ArrayRecord, step: int = 1) -> Vector:
        """The moved arrays one after another, shape ``(dim,)``, or each ``step``-th entry of each.

        Arrays are found by name; where names differ from the first round's, by position.

        Raises:
            ValueError: naming what does not fit.
        """
        values = _decode(arrays)
        their_names = self._match(values)
        parts = [
            values[their_names[name]].reshape(-1)[::step] for name in self.moved
        ]
        return np.concatenate(parts, dtype=self.dtype, casting="same_kind")

    def split(self, flat: Vector) -> dict[str, Vector]:
        """The moved arrays of a flat vector ``(dim,)`` by name, each without its shape; views."""
        ends = np.cumsum([math.prod(self.shapes[name]) for name in self.moved])
        return dict(zip(self.moved, np.split(flat, ends[:-1]), strict=True))

    def form(
        self,
        like: ArrayRecord,
        arrays: ArrayRecord,
        kind: ReplyKind | None = "model",
    ) -> Callable[[Vector], ArrayRecord]:
        """Makes a reply like an existing one from a model with the moved entries ``(dim,)``.

        Args:
            like: a client's reply, whose names, their order and types are kept; but a mean of
                integers that canaries leave alone stays one, as it would be an update else.
            arrays: the global model, from which all comes that canaries leave alone.
            kind: whether replies are a "model" or an "update" of it, in which such arrays are 0; if
                ``None`` they are as in ``like``.

        Raises:
            ValueError: naming what does not fit.
        """
        reply_values = _decode(like)
        model_values = _decode(arrays)
        reply_names = self._match(reply_values)
        model_names = self._match(model_values)
        still = {
            name: reply_values[reply_names[name]]
            for name in self.left_out
            if name in reply_names
        }
        match kind:
            case "model":
                still = {
                    name: model_values[model_names[name]] for name in still
                }
            case "update":
                still = {
                    name: np.zeros_like(value) for name, value in still.items()
                }
            case None:
                pass
            case _:
                assert_never(kind)

        means_of_integers = {
            reply_names[name]
            for name, value in still.items()
            if value.dtype.kind == "f"
            and reply_values[reply_names[name]].dtype.kind != "f"
        }

        def fill(flat: Vector) -> ArrayRecord:
            values = {**still, **self.split(flat)}
            by_reply_name = {
                reply_names[name]: value for name, value in values.items()
            }
            filled = ArrayRecord()
            for name, answered in reply_values.items():
                value = by_reply_name[name].reshape(answered.shape)
                if name not in means_of_integers:
                    value = value.astype(answered.dtype, copy=False)
                filled[name] = encoded(value)
            return filled

        return fill

    def _match(self, values: NamedArrays) -> dict[str, str]:
        """The names in ``values`` by our names; those that do not move may be missing."""
        shapes = {name: value.shape for name, value in values.items()}
        if set(self.moved) <= shapes.keys() <= self.shapes.keys():
            for name, shape in shapes.items():
                if shape != self.shapes[name]:
                    raise ValueError(
                        f"Expected {name}.shape={shape} to be {self.shapes[name]}."
                    )
            return {name: name for name in shapes}
        if [*shapes.values()] == [
            *self.shapes.values()
        ]:  # renamed, in the same order
            return dict(zip(self.shapes, shapes, strict=True))
        missing = sorted(self.shapes.keys() - shapes.keys())
        new = sorted(shapes.keys() - self.shapes.keys())
        raise ValueError(
            f"Expected the model's arrays {list(self.shapes)}: {missing} are missing, {new} are"
            " new, and their shapes do not match in order. Name those that clients keep in"
            " leave_out."
        )


def longest_norm(arrays: ArrayRecord) -> float:
    """Norm of an update that can be squared in the coarsest floating-point type of some arrays."""
    largest = [
        np.finfo(a.dtype).max for a in arrays.values() if "float" in a.dtype
    ]
    return 0.5 * math.sqrt(min(largest, default=math.inf))


def _decode(arrays: ArrayRecord) -> NamedArrays:
    """The arrays' values; refuses by name what no strategy can add up."""
    values = {}
    for name, array in arrays.items():
        if array.stype != NUMPY:
            raise ValueError(
                f"Expected {name}.stype={array.stype!r} to be {NUMPY!r}."
            )
        value = read_only(array)
        if value.dtype.kind not in "fiub" or value.dtype.itemsize > 8:
            shown = array.dtype or value.dtype.name
            raise ValueError(
                f"Expected {name}.dtype={shown!r} to be float16, float32, float64 or an integer:"
                " Flower's strategies cannot add it up."
            )
        values[name] = value
    return values
