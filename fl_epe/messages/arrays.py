"""Arrays in Flower's records: encoded with one copy, decoded without a copy, or shared."""

from __future__ import annotations

import copy
import io
import math
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy

from fl_epe.archive import one_line

NUMPY = "numpy.ndarray"
"""The serialisation type of an `Array` that was made from a NumPy array."""

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of a kind by name.

    As ``content.array_records`` and its like, but those refer to themselves: a message that was
    looked into in that way stays in memory, model and all, until Python looks for such circles.
    """
    return {
        name: record
        for name, record in content.items()
        if isinstance(record, kind)
    }


def pack(**arrays: np.ndarray) -> ArrayRecord:
    """Named NumPy arrays as a Flower record."""
    return ArrayRecord({name: encoded(value) for name, value in arrays.items()})


def encoded(value: np.ndarray) -> Array:
    """``value`` as Flower's ``Array``, in C order, made with one copy of the values."""
    flat = np.ascontiguousarray(value)
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header, npy.header_data_from_array_1_0(flat.reshape(value.shape))
    )
    data = b"".join((header.getvalue(), flat.reshape(-1).view(np.uint8).data))
    return Array(str(value.dtype), tuple(value.shape), NUMPY, data)


def read_only(array: Array) -> np.ndarray:
    """The values of ``array`` in the memory that it holds, where ``array.numpy()`` is a copy.

    Raises:
        TypeError: if it was not made from a NumPy array.
        ValueError: if its bytes are not those of one.
    """
    if isinstance(array, DecodedArray):
        return array.values
    if array.stype != NUMPY:
        raise TypeError(f"Expected {array.stype=} to be {NUMPY!r}.")
    try:
        stream = io.BytesIO(array.data)  # shares the bytes
        shape, is_columns_first, dtype = _HEADERS[npy.read_magic(stream)](
            stream
        )
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        flat = np.frombuffer(array.data, dtype, math.prod(shape), stream.tell())
        if is_columns_first:
            return flat.reshape(shape[::-1]).T
        return flat.reshape(shape)
    except (
        Exception
    ) as error:  # Python's parser reads the header, and may raise anything
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
        self.dtype = str(values.dtype)
        self.shape = values.shape
        self.stype = NUMPY
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
