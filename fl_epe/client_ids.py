"""Clients' ids as texts, exactly as they are written.

Converting ids to numbers could merge clients: 7 and 07 are the same number, and two ids of 20
digits may be the same float64. Then the clients' participations, their number and the default δ
would be wrong.

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
    """A column of ids as texts, with all digits of whole numbers.

    Args:
        column: texts, categories, whole numbers, dates, or true and false.

    Returns:
        An array of Arrow's strings, chunked if the column is. An id that is missing, or is only
        whitespace, is null.

    Raises:
        ValueError: for ids of any other type, such as real numbers, from which the text that was
            written cannot be recovered.
    """
    from pyarrow import string, types

    if types.is_dictionary(column.type):
        kind = column.type.value_type
    else:
        kind = column.type
    if types.is_floating(kind) or types.is_nested(kind):
        raise ValueError(
            f"a client's id is text or a whole number, got {kind}, in which different ids may have "
            "become equal: store ids as text, as they are written"
        )
    return blank_as_null(column.cast(string()))


def blank_as_null(texts: pyarrow.ChunkedArray | pyarrow.Array) -> Any:
    """The column with null in place of texts that are only whitespace."""
    from pyarrow import compute, scalar

    blank = compute.equal(compute.utf8_trim_whitespace(texts), "")
    return compute.if_else(blank, scalar(None, texts.type), texts)


def id_order(ids: Sequence[str]) -> Integers:
    """The rank of each id in the order of all.

    If every id is a whole number as Python writes it, the order is that of numbers: "7" comes
    before "10". Otherwise it is the order of texts.
    """
    keys: list[Any] = list(ids)
    try:
        numbers = [int(text) for text in ids]
    except ValueError:
        numbers = []
    if [str(number) for number in numbers] == keys:
        keys = numbers
    return np.argsort(np.argsort(np.array(keys, object)))
