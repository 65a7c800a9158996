"""What is in a Flower message: NumPy arrays as bytes of ``.npy`` files, copied as rarely as can be.

Examples:
    >>> import numpy as np
    >>> record = pack(theta=np.array([1.0, 2.0]))
    >>> read_only(record["theta"])
    array([1., 2.])
"""

from __future__ import annotations

import io
import math
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fl_epe.archive import one_line

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of a kind by name.

    As ``content.array_records`` and its like, but those refer to themselves: a message that was
    looked into in that way stays in memory, model and all, until Python looks for such circles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def pack(**arrays: NDArray[Any]) -> ArrayRecord:
    """Named NumPy arrays as a Flower record."""
    return ArrayRecord({name: encoded(value) for name, value in arrays.items()})


def encoded(value: NDArray[Any]) -> Array:
    """``value`` as Flower's ``Array``, in C order, made with one copy of the values."""
    if value.dtype.kind not in "biufc":  # no numbers
        return Array(value)
    header, flat = io.BytesIO(), np.ascontiguousarray(value)
    described = npy.header_data_from_array_1_0(flat.reshape(value.shape))
    npy.write_array_header_1_0(header, described)
    data = b"".join((header.getvalue(), flat.reshape(-1).view(np.uint8).data))
    return Array(str(value.dtype), tuple(value.shape), _NUMPY, data)


def read_only(array: Array) -> NDArray[Any]:
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
        values = _parsed(array)
    except Exception as error:  # Python's own parser reads the header, and may raise anything
        raise ValueError(f"Expected the bytes of an array: {one_line(error)}") from error
    values.flags.writeable = False
    return values


def _parsed(array: Array) -> NDArray[Any]:
    stream = io.BytesIO(array.data)  # shares the bytes
    read_header = _HEADERS.get(npy.read_magic(stream))
    if read_header is None:  # a newer version of the format
        return array.numpy()
    shape, columns_first, kind = read_header(stream)
    start, count = stream.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or count * kind.itemsize > len(array.data) - start:
        raise ValueError(f"shape {shape} of {kind} in {len(array.data) - start} bytes")
    flat = np.frombuffer(array.data, kind, count, start)
    return flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)


class DecodedArray(Array):
    """An `Array` that was decoded beforehand, so that threads need not do it.

    NumPy reads a header with Python's parser, which fails now and then ("AST constructor recursion
    depth mismatch", CPython 3.11) if threads do so at once and a collection of garbage runs code.
    """

    def __init__(self, array: Array) -> None:
        super().__init__(array.dtype, array.shape, array.stype, array.data)
        self.__dict__["_values"] = read_only(array)

    @property
    def values(self) -> NDArray[Any]:
        """Its values, which cannot be changed."""
        values: NDArray[Any] = self.__dict__["_values"]
        return values

    def numpy(self) -> NDArray[Any]:
        """A copy that belongs to the caller."""
        return self.values.copy()
