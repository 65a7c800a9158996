"""Arrays in Flower messages, and a model as one flat vector: which numbers a canary moves."""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeVar, assert_never

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy

from fl_epe.archive import one_line
from fl_epe.checks import NamedArrays, Vector

ReplyKind = Literal["model", "update"]
"""What clients answer with: a model, or its difference from the model that they were sent."""

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of a kind by name.

    As ``content.array_records`` and its like, but those refer to themselves: a message that was
    looked into in that way stays in memory, model and all, until Python looks for such circles.
    """
    return {
        name: record for name, record in content.items() if isinstance(record, kind)
    }


def pack(**arrays: np.ndarray) -> ArrayRecord:
    """Named NumPy arrays as a Flower record."""
    return ArrayRecord({name: encoded(value) for name, value in arrays.items()})


def encoded(value: np.ndarray) -> Array:
    """``value`` as Flower's ``Array``, in C order, made with one copy of the values."""
    header, flat = io.BytesIO(), np.ascontiguousarray(value)
    npy.write_array_header_1_0(
        header, npy.header_data_from_array_1_0(flat.reshape(value.shape))
    )
    data = b"".join((header.getvalue(), flat.reshape(-1).view(np.uint8).data))
    return Array(str(value.dtype), tuple(value.shape), _NUMPY, data)


def read_only(array: Array) -> np.ndarray:
    """The values of ``array`` in the memory that it holds, where ``array.numpy()`` is a copy.

    Raises:
        TypeError: if it was not made from a NumPy array.
        ValueError: if its bytes are not those of one.
    """
    if isinstance(array, DecodedArray):
        return array.values
    if array.stype != _NUMPY:
        raise TypeError(f"Expected {array.stype=} to be {_NUMPY!r}.")
    try:
        stream = io.BytesIO(array.data)  # shares the bytes
        shape, columns_first, kind = _HEADERS[npy.read_magic(stream)](stream)
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        flat = np.frombuffer(array.data, kind, math.prod(shape), stream.tell())
        return flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)
    except (
        Exception
    ) as error:  # Python's own parser reads the header, and may raise anything
        raise ValueError(
            f"Expected the bytes of an array: {one_line(error)}"
        ) from error


class DecodedArray(Array):
    """An `Array` that was decoded beforehand, so that threads need not do it.

    NumPy reads a header with Python's parser, which fails now and then ("AST constructor recursion
    depth mismatch", CPython 3.11) if threads do so at once and a collection of garbage runs code.

    Attributes:
        values: which cannot be changed.
    """

    values: np.ndarray

    def __init__(self, array: Array) -> None:
        super().__init__(array.dtype, array.shape, array.stype, array.data)
        vars(self)["values"] = read_only(array)

    def numpy(self) -> np.ndarray:
        """A copy that belongs to the caller."""
        return self.values.copy()

    def deflate(self) -> bytes:
        """As a plain `Array`, which is what another process knows."""
        return Array(self.dtype, self.shape, self.stype, self.data).deflate()

    def __deepcopy__(self, memo: object) -> DecodedArray:
        """Another array of the same values, which cannot be changed."""
        return copy.copy(self)


class SharedArray(DecodedArray):
    """An `Array` that becomes bytes only when it is asked for ``data``, as for another process.

    Args:
        values: in C order; not to be changed any more.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.dtype, self.shape, self.stype = str(values.dtype), values.shape, _NUMPY
        vars(self)["values"] = values.view()
        self.values.flags.writeable = False

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The values as bytes, made anew each time."""
        return encoded(self.values).data


def share(**arrays: np.ndarray) -> ArrayRecord:
    """As `pack`, without a copy: the arrays are not to be changed any more."""
    record = ArrayRecord()  # which would copy what it is made of
    for name, value in arrays.items():
        record[name] = SharedArray(value)
    return record


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
        moved = {
            name: value.dtype.name
            for name, value in values.items()
            if value.dtype.kind == "f" and value.ndim > 0
            if not any(fnmatch.fnmatchcase(name, p) for p in leave_out)
        }
        layout = cls(
            shapes={name: value.shape for name, value in values.items()},
            moved=tuple(moved),
            dtype="float64" if "float64" in moved.values() else "float32",
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
        theirs = self._match(values)
        parts = [values[theirs[name]].reshape(-1)[::step] for name in self.moved]
        return np.concatenate(parts, dtype=self.dtype, casting="same_kind")

    def split(self, flat: Vector) -> dict[str, Vector]:
        """The moved arrays of a flat vector ``(dim,)`` by name, each without its shape; views."""
        ends = np.cumsum([math.prod(self.shapes[name]) for name in self.moved])
        return dict(zip(self.moved, np.split(flat, ends[:-1]), strict=True))

    def form(
        self, like: ArrayRecord, arrays: ArrayRecord, kind: ReplyKind | None = "model"
    ) -> Callable[[Vector], ArrayRecord]:
        """Makes a reply like the one given from a model with the moved entries ``(dim,)``.

        Args:
            like: its names, their order and its types are kept, as a client answered them; but a
                mean of integers that canaries leave alone stays one, as it would be an update else.
            arrays: the global model, from which all comes that canaries leave alone.
            kind: whether replies are a "model" or an "update" of it, in which such arrays are 0; if
                ``None`` they are as in ``like``.

        Raises:
            ValueError: naming what does not fit.
        """
        answered, ours = _decode(like), _decode(arrays)
        theirs, known = self._match(answered), self._match(ours)
        still = {
            name: answered[theirs[name]] for name in self.left_out if name in theirs
        }
        match kind:
            case "model":
                still = {name: ours[known[name]] for name in still}
            case "update":
                still = {name: np.zeros_like(value) for name, value in still.items()}
            case None:
                pass
            case _:
                assert_never(kind)

        means = {
            theirs[name]
            for name, value in still.items()
            if value.dtype.kind == "f" and answered[theirs[name]].dtype.kind != "f"
        }

        def fill(flat: Vector) -> ArrayRecord:
            values, out = {**still, **self.split(flat)}, ArrayRecord()
            by_their_name = {theirs[name]: value for name, value in values.items()}
            for name, own in answered.items():
                value = by_their_name[name].reshape(own.shape)
                kept = value.dtype if name in means else own.dtype
                out[name] = encoded(value.astype(kept, copy=False))
            return out

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
        if [*shapes.values()] == [*self.shapes.values()]:  # renamed, in the same order
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
    largest = [np.finfo(a.dtype).max for a in arrays.values() if "float" in a.dtype]
    return 0.5 * math.sqrt(min(largest, default=math.inf))


def _decode(arrays: ArrayRecord) -> NamedArrays:
    """The arrays' values; refuses by name what no strategy can add up."""
    values = {}
    for name, array in arrays.items():
        if array.stype != _NUMPY:
            raise ValueError(f"Expected {name}.stype={array.stype!r} to be {_NUMPY!r}.")
        values[name] = value = read_only(array)
        if value.dtype.kind not in "fiub" or value.dtype.itemsize > 8:
            shown = array.dtype or value.dtype.name
            raise ValueError(
                f"Expected {name}.dtype={shown!r} to be float16, float32, float64 or an integer:"
                " Flower's strategies cannot add it up."
            )
    return values
