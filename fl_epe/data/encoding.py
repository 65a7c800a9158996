"""Turns rows of a source into examples of fixed width: what the three data sets have in common."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fl_epe.archive import one_line

Columns = Mapping[str, tuple[str, ...]]
"""The names that sources give a column, by its name in this package."""

CLIENT = "client"


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """Some rows of a source.

    Attributes:
        clients: whose row it is, a string array of shape (rows,).
        columns: the other columns as Arrow arrays of the same length, by the names used here.
        place: where the rows are from, for error messages.
    """

    clients: pa.Array
    columns: dict[str, pa.Array]
    place: str

    def __len__(self) -> int:
        return len(self.clients)


class Encoder(abc.ABC):
    """Turns rows into examples, each a vector of ``width`` integers of type ``dtype``.

    Attributes:
        kind: name of the data set.
        columns: the columns that it needs, the client's among them.
        width: integers of an example.
        dtype: NumPy name of their type.
        overlap: an example shares text with that many later ones of its client, so that a
            held-out part must be the end of a client's rows; 0 if they are independent.
    """

    kind: ClassVar[str]
    columns: ClassVar[Columns]
    width: ClassVar[int]
    dtype: ClassVar[str]
    overlap: ClassVar[int] = 0

    @abc.abstractmethod
    def encode(self, batch: RawBatch) -> np.ndarray:
        """Examples of shape (rows, width) and type ``dtype``.

        Raises:
            ValueError: for columns that hold something else, naming the place.
        """

    def facts(self) -> dict[str, Any]:
        """What a reader of the examples should know besides, as JSON."""
        return {}


def pick(present: Collection[str], wanted: Columns, place: str) -> dict[str, str]:
    """For each wanted column the name that it has among those ``present``.

    Raises:
        ValueError: if one is missing, naming the place and what is there instead.
    """
    found = {}
    for name, choices in wanted.items():
        matches = [choice for choice in choices if choice in present]
        if not matches:
            raise ValueError(
                f"Expected {place} to have a column {' or '.join(map(repr, choices))}, "
                f"found {one_line(', '.join(map(repr, sorted(present))) or 'none')}."
            )
        found[name] = matches[0]
    return found


def raw_batch(columns: Mapping[str, Any], place: str) -> RawBatch:
    """A `RawBatch` from Arrow arrays (or what `pyarrow.array` takes) that include the client's.

    Raises:
        ValueError: for values that are missing or that Arrow cannot hold in one column.
    """
    try:
        arrays = {name: _array(values) for name, values in columns.items()}
        arrays[CLIENT] = arrays[CLIENT].cast(pa.string())
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        reason = one_line(error)
        raise ValueError(f"Expected columns of one type in {place}: {reason}.") from error
    for name, array in arrays.items():
        if array.null_count:
            raise ValueError(f"Expected no missing {name} in {place}, found {array.null_count}.")
    return RawBatch(arrays.pop(CLIENT), arrays, place)


def _array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # combined, some types stay chunked
        values = pa.concat_arrays(values.chunks)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    return array.storage if isinstance(array, pa.ExtensionArray) else array
