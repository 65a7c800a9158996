"""A model as a flat vector of the entries that a canary moves, and replies made from it."""

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
"""The kind of clients' replies: a model, or its difference from the model that was sent."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The arrays of a model that a canary moves, and their places in the flat vector.

    Floating-point arrays with at least one axis are moved. Integer and boolean arrays and 0-d
    arrays are not, because clipping treats them differently: Flower's clipping does not change
    0-d arrays, and integers lose the scaling. No canary could represent a client there. Nor are
    arrays that match ``leave_out``, and those that the first replies show not to be free
    parameters, see `without`.

    Attributes:
        shapes: the shapes of all arrays, by name and in order.
        moved: the names of the arrays that a canary moves, in order.
        dtype: the type of the flat vector: float64 if one of the moved arrays has it, else
            float32.
    """

    shapes: Mapping[str, tuple[int, ...]]
    moved: tuple[str, ...]
    dtype: str

    @classmethod
    def of(cls, arrays: ArrayRecord, leave_out: Sequence[str] = ()) -> Layout:
        """The layout of a model.

        Args:
            arrays: the model.
            leave_out: names, or patterns with ``*`` and ``?``, of further arrays that canaries
                do not move.

        Raises:
            ValueError: for an array of a type that cannot be added up (bfloat16, complex, text,
                another serialization than NumPy's), or if no array can be moved.
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
        """The layout of the same model in which canaries do not move these arrays either.

        Raises:
            ValueError: if no array can be moved.
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
        """The number of entries that a canary moves."""
        return sum(math.prod(self.shapes[name]) for name in self.moved)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the arrays that no canary moves."""
        return tuple(name for name in self.shapes if name not in self.moved)

    def flatten(self, arrays: ArrayRecord, step: int = 1) -> Vector:
        """The concatenated moved arrays, shape ``(dim,)``, or each ``step``-th entry of each.

        Arrays are matched by name, or by position if names differ from the first round's.

        Raises:
            ValueError: if arrays do not match; the message names them.
        """
        values = _decode(arrays)
        names = self._match(values)
        entries = [
            values[names[name]].reshape(-1)[::step] for name in self.moved
        ]
        return np.concatenate(entries, dtype=self.dtype, casting="same_kind")

    def split(self, flat: Vector) -> dict[str, Vector]:
        """The moved arrays of a flat vector ``(dim,)`` by name, as flat views of it."""
        sizes = [math.prod(self.shapes[name]) for name in self.moved]
        inner_offsets = np.cumsum(sizes)[:-1]
        arrays = np.split(flat, inner_offsets)
        return dict(zip(self.moved, arrays, strict=True))

    def form(
        self,
        like: ArrayRecord,
        arrays: ArrayRecord,
        kind: ReplyKind | None = "model",
    ) -> Callable[[Vector], ArrayRecord]:
        """A function that makes a reply from a model with the moved entries ``(dim,)``.

        Args:
            like: a client's reply, with the names, order and types of the new reply. An
                exception are integer arrays that canaries do not move: if the global model has
                their mean, it is not rounded, as the rounding would be an update.
            arrays: the global model, which has the arrays that canaries do not move.
            kind: the kind of the reply. Arrays that canaries do not move are those of ``arrays`` in
                a model and 0 in an update. If ``None``, they are those of ``like``.

        Raises:
            ValueError: if arrays do not match; the message names them.
        """
        reply_values = _decode(like)
        model_values = _decode(arrays)
        reply_names = self._match(reply_values)
        model_names = self._match(model_values)
        unmoved_values = {
            name: reply_values[reply_names[name]]
            for name in self.left_out
            if name in reply_names
        }
        match kind:
            case "model":
                unmoved_values = {
                    name: model_values[model_names[name]]
                    for name in unmoved_values
                }
            case "update":
                unmoved_values = {
                    name: np.zeros_like(value)
                    for name, value in unmoved_values.items()
                }
            case None:
                pass
            case _:
                assert_never(kind)

        means_of_integers = {
            reply_names[name]
            for name, value in unmoved_values.items()
            if value.dtype.kind == "f"
            and reply_values[reply_names[name]].dtype.kind != "f"
        }

        def fill(flat: Vector) -> ArrayRecord:
            values = {**unmoved_values, **self.split(flat)}
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
        """The name in ``values`` of each array of the layout; arrays not moved may be missing.

        Raises:
            ValueError: if the arrays match neither by name and shape nor by order and shape.
        """
        shapes = {name: value.shape for name, value in values.items()}
        if set(self.moved) <= shapes.keys() <= self.shapes.keys():
            for name, shape in shapes.items():
                if shape != self.shapes[name]:
                    raise ValueError(
                        f"Expected {name}.shape={shape} to be {self.shapes[name]}."
                    )
            return {name: name for name in shapes}
        if list(shapes.values()) == list(self.shapes.values()):
            # The arrays have other names, but the same order.
            return dict(zip(self.shapes, shapes, strict=True))
        missing = sorted(self.shapes.keys() - shapes.keys())
        new = sorted(shapes.keys() - self.shapes.keys())
        raise ValueError(
            f"Expected the model's arrays {list(self.shapes)}: {missing} are missing, {new} are"
            " new, and their shapes do not match in order. Name those that clients keep in"
            " leave_out."
        )


def longest_norm(arrays: ArrayRecord) -> float:
    """The largest norm whose square each floating-point type of the arrays can hold."""
    largest_numbers = [
        np.finfo(array.dtype).max
        for array in arrays.values()
        if "float" in array.dtype
    ]
    # Half of it, as rounding may increase the norm.
    return 0.5 * math.sqrt(min(largest_numbers, default=math.inf))


def _decode(arrays: ArrayRecord) -> NamedArrays:
    """The arrays' values; raises a `ValueError` for an array that no strategy can add up."""
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
