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
"""The serialization type of an `Array` that was made from a NumPy array."""

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

# NumPy's functions that read a header, by the version of its format.
_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of a kind by name.

    Flower's ``content.array_records`` and the like return the same, but create a reference
    cycle: the message and its model then stay in memory until Python's garbage collection.
    """
    return {
        name: record
        for name, record in content.items()
        if isinstance(record, kind)
    }


def pack(**arrays: np.ndarray) -> ArrayRecord:
    """A Flower record of named NumPy arrays."""
    return ArrayRecord({name: encoded(value) for name, value in arrays.items()})


def encoded(value: np.ndarray) -> Array:
    """The value as Flower's ``Array``, in C order, with one copy of the values."""
    flat = np.ascontiguousarray(value)
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header, npy.header_data_from_array_1_0(flat.reshape(value.shape))
    )
    data = b"".join((header.getvalue(), flat.reshape(-1).view(np.uint8).data))
    return Array(str(value.dtype), tuple(value.shape), NUMPY, data)


def read_only(array: Array) -> np.ndarray:
    """The values of ``array`` in its own memory, whereas ``array.numpy()`` is a copy.

    Raises:
        TypeError: if ``array`` was not made from a NumPy array.
        ValueError: if its bytes are not those of a NumPy array.
    """
    if isinstance(array, DecodedArray):
        return array.values
    if array.stype != NUMPY:
        raise TypeError(f"Expected {array.stype=} to be {NUMPY!r}.")
    try:
        stream = io.BytesIO(array.data)  # the stream shares the bytes
        read_header = _HEADERS[npy.read_magic(stream)]
        shape, fortran_order, dtype = read_header(stream)
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        flat = np.frombuffer(array.data, dtype, math.prod(shape), stream.tell())
        if fortran_order:
            return flat.reshape(shape[::-1]).T
        return flat.reshape(shape)
    except Exception as error:
        # NumPy reads the header with Python's parser, which may raise any error.
        raise ValueError(
            f"Expected the bytes of an array: {one_line(error)}"
        ) from error


class DecodedArray(Array):
    """An `Array` that was decoded beforehand, so that threads need not decode it.

    NumPy reads a header with Python's parser. This sometimes fails ("AST constructor recursion
    depth mismatch", CPython 3.11) if threads parse at the same time and garbage collection runs
    code.

    Attributes:
        values: the decoded values, a read-only array.
    """

    values: np.ndarray

    def __init__(self, array: Array) -> None:
        super().__init__(array.dtype, array.shape, array.stype, array.data)
        self.values = read_only(array)

    def numpy(self) -> np.ndarray:
        """A copy that belongs to the caller."""
        return self.values.copy()

    def deflate(self) -> bytes:
        """The bytes of a plain `Array`, the type that another process expects."""
        return Array(self.dtype, self.shape, self.stype, self.data).deflate()

    def __deepcopy__(self, memo: object) -> DecodedArray:
        """Another array that shares the read-only values."""
        return copy.copy(self)


class SharedArray(DecodedArray):
    """An `Array` that is converted to bytes only when ``data`` is read, as for another process.

    Args:
        values: the values in C order, which must not be changed afterwards.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.dtype = str(values.dtype)
        self.shape = values.shape
        self.stype = NUMPY
        self.values = values.view()
        self.values.flags.writeable = False

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The values as bytes, which are computed in each call."""
        return encoded(self.values).data


def share(**arrays: np.ndarray) -> ArrayRecord:
    """The record of `pack` without a copy; the arrays must not be changed afterwards."""
    # The constructor of a record would copy the arrays.
    record = ArrayRecord()
    for name, value in arrays.items():
        record[name] = SharedArray(value)
    return record
