"""Clients' ids, which are texts exactly as they are written.

Ids that are converted to numbers merge clients silently: 7 and 07 are the same number, and two
ids of 20 digits may be the same float64. The clients' participations, their number and the
default δ would be wrong.

Examples:
    >>> import pyarrow
    >>> client_ids(pyarrow.array([7, 12345678901234567])).to_pylist()
    ['7', '12345678901234567']
    >>> id_order(["b", "a"]), id_order(["7", "07", "10"]), id_order(["10", "7"])
    (array([1, 0]), array([2, 0, 1]), array([1, 0]))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_epe.checks import Integers

if TYPE_CHECKING:
    import pyarrow


def client_ids(column: pyarrow.ChunkedArray | pyarrow.Array) -> Any:
    """A column of ids as texts; whole numbers have all their digits.

    Args:
        column: texts, categories, whole numbers, dates, or true and false.

    Returns:
        An array of Arrow's strings, chunked if the column is; null if there is no id, or only
        whitespace.

    Raises:
        ValueError: for ids of any other type, such as real numbers, which do not determine the text
            that was written.
    """
    from pyarrow import string, types

    if types.is_dictionary(column.type):
        kind = column.type.value_type
    else:
        kind = column.type
    if types.is_floating(kind) or types.is_nested(kind):
        raise ValueError(
            f"a client's id is text or a whole number, got {kind}, in which different ids may have "
            "become one: store them as text, as they are written"
        )
    return blank_as_null(column.cast(string()))


def blank_as_null(texts: pyarrow.ChunkedArray | pyarrow.Array) -> Any:
    """A column of texts; a text of whitespace only becomes null."""
    from pyarrow import compute, scalar

    blank = compute.equal(compute.utf8_trim_whitespace(texts), "")
    return compute.if_else(blank, scalar(None, texts.type), texts)


def id_order(ids: Sequence[str]) -> Integers:
    """The rank of each of these ids in their order.

    It is the order of whole numbers if every id is written as Python writes one, so that "7"
    comes before "10", and otherwise the order of texts.
    """
    keys: list[Any] = list(ids)
    try:
        numbers = [int(text) for text in ids]
    except ValueError:
        numbers = []
    if [str(number) for number in numbers] == keys:
        keys = numbers
    return np.argsort(np.argsort(np.array(keys, object)))
