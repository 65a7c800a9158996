"""Which arrays of a reply are the model that was trained, so that it is known again."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_epe.checks import Vector


def arrays_of(content: Any) -> dict[str, np.ndarray]:
    """The arrays in a Flower ``RecordDict``, by their keys."""
    return {
        key: array.numpy()
        for record in content.array_records.values()
        for key, array in record.items()
    }


def names_of_sent(
    arrays: Mapping[str, Any], model: Vector, start: Vector, sizes: np.ndarray
) -> tuple[list[str], str]:
    """The names of a model's tensors in a reply, and what is wrong with it; empty if nothing is.

    Args:
        arrays: of the reply, by name.
        model: that was trained, ``(dim,)``.
        start: that the silo was sent, ``(dim,)``.
        sizes: numbers of entries of the model's tensors, in a row.
    """
    ends = np.cumsum(sizes)[:-1]
    parts = np.split(model, ends), np.split(model - start, ends)
    left = {name: np.asarray(array) for name, array in arrays.items()}
    found: list[str] = []
    for trained, moved in zip(*parts, strict=True):
        name = next(
            (n for n, a in left.items() if _is(a, trained) or _is(a, moved)), None
        )
        if name is None:
            continue
        del left[name]
        found.append(name)
    missing = len(sizes) - len(found)
    if not missing:
        return found, ""
    return [], (
        f"{missing} of {len(sizes)} trained tensors are not in what the silo sends, or not as they"
        " were trained: they stay in the silo, or something (local DP, compression) changes them"
    )


def _is(array: np.ndarray, part: Vector) -> bool:
    if array.size != part.size or array.dtype.kind != "f":
        return False
    return bool(np.array_equal(array.reshape(-1), part.astype(array.dtype)))
