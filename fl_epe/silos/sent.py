"""The names of the trained model's arrays in a reply, by which later models are read."""

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
    """The names of a model's tensors in a reply, and what is wrong with the reply.

    The second is empty if nothing is wrong; otherwise there are no names.

    Args:
        arrays: of the reply, by name.
        model: that was trained, ``(dim,)``.
        start: that the silo was sent, ``(dim,)``.
        sizes: numbers of entries of the model's tensors, in a row.
    """
    ends = np.cumsum(sizes)[:-1]
    candidates = {name: np.asarray(array) for name, array in arrays.items()}
    names: list[str] = []
    models = np.split(model, ends)
    updates = np.split(model - start, ends)
    for trained, update in zip(models, updates, strict=True):
        for name, array in candidates.items():
            if _is(array, trained) or _is(array, update):
                names.append(name)
                del candidates[name]
                break
    missing = len(sizes) - len(names)
    if not missing:
        return names, ""
    return [], (
        f"{missing} of {len(sizes)} trained tensors are not in what the silo sends, or not as they"
        " were trained: they stay in the silo, or something (local DP, compression) changes them"
    )


def _is(array: np.ndarray, part: Vector) -> bool:
    """Whether an array has a vector's entries, in the array's own precision."""
    if array.size != part.size or array.dtype.kind != "f":
        return False
    return bool(np.array_equal(array.reshape(-1), part.astype(array.dtype)))
