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

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

_NUMPY = "numpy.ndarray"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of a kind by name, such as ``content.array_records``.

    Which refers to itself: a message that was looked into in that way stays in memory, model and
    all, until Python looks for such circles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def pack(**arrays: NDArray[Any]) -> ArrayRecord:
    """Named NumPy arrays as a Flower record."""
    return ArrayRecord({name: encoded(value) for name, value in arrays.items()})


def encoded(value: NDArray[Any]) -> Array:
    """What ``Array(value)`` is, to the last byte, but made with one copy of the values."""
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
    stream = io.BytesIO(array.data)  # shares the bytes
    version = npy.read_magic(stream) if array.stype == _NUMPY else None
    if version not in _HEADERS:
        values = array.numpy()  # says what is wrong, if anything is
    else:
        shape, columns_first, kind = _HEADERS[version](stream)
        flat = np.frombuffer(array.data, kind, math.prod(shape), stream.tell())
        values = flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)
    values.flags.writeable = False
    return values


class DecodedArray(Array):
    """An `Array` that was decoded beforehand, so that threads need not do it.

    NumPy reads a header with Python's parser, which fails in one of some hundred thousand calls
    ("AST constructor recursion depth mismatch", CPython 3.11) if threads do so at once.
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
